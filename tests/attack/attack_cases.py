"""The classes of attack, by name."""

import random
from collections.abc import Callable

from attack_damage import flips, hostile_folders, other_values, swaps, truncations
from attack_disks import can_mount, full_disks, small_disks
from attack_input import fuzzed_commands, fuzzed_tables
from attack_target import Attack, Case

CASES: dict[str, Callable[[Attack, random.Random], Case]] = {
    "flips": flips,
    "truncations": truncations,
    "swapped files": swaps,
    "other values": other_values,
    "hostile files": hostile_folders,
    "fuzzed tables": fuzzed_tables,
    "fuzzed commands": fuzzed_commands,
    "full disks": full_disks,
}
if can_mount():  # the administrator may, and so may a user in a namespace of the kernel
    CASES["small disks"] = small_disks
