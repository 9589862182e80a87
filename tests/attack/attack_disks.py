"""Full disks: each function makes one random case."""

import json
import os
import random
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import attack_base
from attack_input import remove
from attack_target import Attack, Case, Command

from offrec.commands.recommend import Recommend
from offrec.commands.verify import verify
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.reports.report import build_report
from offrec.reports.writing import write_report
from offrec.rounds import run_rounds
from offrec.runs.replacement import MARK
from offrec.runs.train import train
from offrec.serving.erasure import erase_sessions
from offrec.serving.errors import RequestError
from offrec.serving.export import export_onnx
from offrec.serving.item_lists import ItemLists
from offrec.shop import Shop
from offrec.shop.log import write_log


def full_disks(attack: Attack, choose: random.Random) -> Case:
    """Let no file have more than some bytes: the old files stay, and nothing partial is left."""
    base, limit = attack.base, choose.choice([0, 1, 100, 500, 1000, 2000, 5000, 10_000, 50_000])
    new = attack.scratch / "full"
    new.mkdir()
    name, write = _choose_writer(attack, new, choose)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def command() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def check(code: int) -> bool:
        return _is_intact(attack, new, code, write) and not [path for path in base.iterdir() if path.name[0] == "."]

    return Case(
        "full disks", f"{name} with {limit} bytes per file", command, None, lambda: _restore(attack, new), check
    )


def small_disks(attack: Attack, choose: random.Random) -> Case:
    """Let a file system in memory be full after some bytes; it also refuses to create files and to extend folders."""
    disk = attack.scratch / "disk"
    mount(disk, "8m")
    free = choose.choice([0, 4096, 8192, 16_384, 40_960, 65_536, 131_072, 262_144, 524_288])
    name, write = _choose_writer(attack, disk, choose)
    if choose.random() < 0.5:  # the repetition of the command replaces its output while the disk is full
        assert attack.run(write).code == 0
    fill(disk, free)

    def check(code: int) -> bool:
        (disk / FILLER).unlink()
        return _is_intact(attack, disk, code, write)

    def restore() -> None:
        unmount(disk)
        _restore(attack)

    return Case("small disks", f"{name} with {free} bytes left", write, None, restore, check)


FILLER = "filler"


def can_mount() -> bool:
    """Return whether this process may mount a file system in memory."""
    with tempfile.TemporaryDirectory(prefix="offrec-disk-") as folder:
        try:
            mount(Path(folder), "64k")
        except OSError:
            return False
        unmount(Path(folder))
    return True


def mount(folder: Path, size: str) -> None:
    """Mount a new file system in memory.

    Raises:
        OSError: If this process may not mount one.
    """
    folder.mkdir(exist_ok=True)
    try:
        _mount("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise OSError(f"{folder} cannot be mounted") from error


def unmount(folder: Path) -> None:
    """Remove a file system in memory with all its files."""
    _mount("umount", str(folder))


def _mount(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def fill(disk: Path, free: int) -> None:
    """Fill a disk with a file until only `free` bytes are left."""
    status = os.statvfs(disk)
    with (disk / FILLER).open("wb") as file:
        file.write(bytes(max(0, status.f_bavail * status.f_frsize - free)))


def _choose_writer(attack: Attack, new: Path, choose: random.Random) -> tuple[str, Command]:
    """Return a writing command with its name. It writes into the folder `new`, and replaces what it wrote there."""
    base = attack.base
    small: dict[str, Any] = {"settings": attack_base.SMALL, "device": "cpu", "console": attack_base.QUIET}
    tables = (str(base / "shop" / "events.parquet"),)
    writers: dict[str, Command] = {
        "prepare": lambda: prepare(base / "shop" / "events.parquet", out=new / "data", force=True),
        "prepare --items": lambda: prepare(
            base / "shop" / "events.parquet", out=new / "data", items=(f"{base}/shop/items.parquet",), force=True
        ),
        "prepare served": lambda: prepare(base / "served", out=new / "data", format="served", force=True),
        "recommend": lambda: Recommend(
            base / "run", input=tables, out=new / "lists.csv", k=3, device="cpu", force=True, json=True
        ).run(),
        "report": lambda: write_report(build_report([base / "study"]), [new / "report.md"]),
        "shop": lambda: write_log(Shop.open("tiny"), 20, new / "shop", force=True),
        "erase": lambda: erase_sessions(new / "served", ["v1"], attack_base.QUIET.line),
        "lists": lambda: _put_list(new),
        "export": lambda: export_onnx(base / "run", new / "model.onnx", force=True),
        "train": lambda: train(base / "data", new / "run", force=True, **small),
        "train --from": lambda: _train_from(base, new),
        "rounds": lambda: run_rounds(attack_base.ROUNDS, new / "rounds", attack_base.QUIET),
    }
    slow = ("export", "train", "train --from", "rounds")
    name = choose.choice(slow if choose.random() < 0.1 else [name for name in writers if name not in slow])
    if name == "erase":
        shutil.copytree(base / "served", new / "served")
    return name, writers[name]


def _put_list(new: Path) -> None:
    try:
        ItemLists(new / "held").put("stock", json.dumps(list(range(5000))).encode(), is_json=True)
    except RequestError as error:
        raise InputError(error.sentence) from error


def _train_from(base: Path, new: Path) -> None:
    train(
        base / "later", new / "run", start_from=base / "run", force=True, settings={"training.epochs": 1}, device="cpu",
        console=attack_base.QUIET,
    )  # fmt: skip


def _is_intact(attack: Attack, new: Path, code: int, write: Command) -> bool:
    """Check that the base is intact and nothing partial is left. If the command failed, its repetition must succeed."""
    if not all(path.exists() and path.stat().st_size == len(content) for path, content in attack.originals.items()):
        return False
    kept = (".lock", ".run.replacement", MARK)  # --resume continues a run that was not finished
    if any(path.name not in kept for path in new.rglob(".*")):
        return False
    if (new / "data").exists() and verify(new / "data").problems:
        return False
    if code != 0 and attack.run(write).code != 0:
        return False
    folders = [new / kind for kind in ("data", "run") if (new / kind).exists()]
    return not any(verify(folder).problems for folder in folders) and not list(new.rglob(".*"))


def _restore(attack: Attack, *created: Path) -> None:
    remove(*created)
    attack.restore(*[path for path, content in attack.originals.items() if not path.exists()])
