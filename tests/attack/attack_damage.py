"""Damaged and hostile files: each function makes one random case."""

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
from attack_target import NUMBERS, TEXTS, Attack, Case

from offrec.data.arrays import describe_array
from offrec.data.folder import complete_meta
from offrec.data.json_files import format_json, seal


def flips(attack: Attack, choose: random.Random) -> Case:
    """Change bits, bytes or a range of a file."""
    path, reader = attack.choose_file(choose)
    content = bytearray(attack.originals[path])
    how = choose.choice(["bit", "bytes", "range", "digit"])
    if how == "digit" and (digits := [at for at, byte in enumerate(content) if 48 <= byte <= 57]):
        content[choose.choice(digits)] = choose.randrange(48, 58)
    elif how == "range" and content:
        first = choose.randrange(len(content))
        content[first : first + choose.randrange(1, 200)] = choose.randbytes(choose.randrange(1, 200))
    else:
        for _ in range(1 if how == "bit" else choose.randrange(1, 9)):
            if content:
                content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)
    return _damage("flips", attack, path, reader, how)


def truncations(attack: Attack, choose: random.Random) -> Case:
    """Cut, extend, empty or remove a file."""
    path, reader = attack.choose_file(choose)
    content = attack.originals[path]
    how = choose.choice(["cut", "extend", "empty", "remove", "double", "zeros"])
    if how == "remove":
        path.unlink()
    else:
        length = choose.randrange(max(1, len(content)))
        changed = {
            "cut": content[:length],
            "extend": content + choose.randbytes(9),
            "empty": b"",
            "double": content * 2,
        }
        path.write_bytes(changed.get(how, content[:length] + bytes(len(content) - length)))
    return _damage("truncations", attack, path, reader, how)


def swaps(attack: Attack, choose: random.Random) -> Case:
    """Put one file in the place of another of the same kind."""
    path, reader = attack.choose_file(choose)
    others = [other for other in attack.originals if other.suffix == path.suffix and other != path]
    other = choose.choice(others or [path])
    path.write_bytes(attack.originals[other])
    return _damage("swapped files", attack, path, reader, f"from {other.relative_to(attack.base)}")


def _damage(kind: str, attack: Attack, path: Path, reader: str, how: str) -> Case:
    what = f"{how} {path.relative_to(attack.base)}, {reader}"
    # A run without its result is waiting, and the report says so.
    is_result = path.name == "round.json" or (path.parent.name == "results" and path.suffix == ".json")
    is_absent = how in ("remove", "loop") and is_result
    expected = None if is_absent else attack.outputs[reader]
    return Case(kind, what, attack.readers[reader], expected, lambda: restore_all(attack, path))


def restore_all(attack: Attack, *paths: Path) -> None:
    """Restore files and the rest of their folders."""
    attack.restore(*paths)
    for folder in {path.parent for path in paths}:
        for path in folder.rglob("*"):
            if path.is_file() and path not in attack.originals:
                path.unlink()
        for path, content in attack.originals.items():  # a command that continues a run writes its checkpoints
            if path.is_relative_to(folder) and (not path.exists() or path.stat().st_size != len(content)):
                path.write_bytes(content)


def other_values(attack: Attack, choose: random.Random) -> Case:
    """Change values on purpose, with the right checksums: nothing can detect that, but nothing may break."""
    path, reader = attack.choose_file(choose)
    attempts = 0
    while path.suffix not in (".npy", ".json") or path.stat().st_size > 1 << 20 or "model" in path.name:
        path, reader = attack.choose_file(choose)
        attempts += 1
        assert attempts < 1000
    what = _change_json(path, choose) if path.suffix == ".json" else _change_array(path, choose)
    also = [sibling for sibling in path.parent.glob("*.json") if sibling in attack.originals]
    return Case(
        "other values",
        f"{what} in {path.relative_to(attack.base)}, {reader}",
        attack.readers[reader],
        None,
        lambda: restore_all(attack, path, *also),
    )


def _change_json(path: Path, choose: random.Random) -> str:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        return "nothing"
    node, keys = content, []
    while isinstance(node, dict | list) and node:
        parent, key = node, choose.choice(list(node) if isinstance(node, dict) else range(len(node)))
        keys.append(str(key))
        node = parent[key]
        if choose.random() < 0.15:
            break
    old = parent[key]
    kinds: list[Any] = [None, True, [], {}, choose.choice(TEXTS), choose.choice(NUMBERS), [old] * 3, {"x": old}]
    if isinstance(old, int | float) and not isinstance(old, bool):
        kinds += [old + 1, -old, old * 10**6, float(old)] * 2
    parent[key] = choose.choice(kinds)
    if path.name == "dataset.json" and choose.random() < 0.7:
        try:
            hashes = ("fingerprint", "data_hash", "arrays", "sha256")
            content = complete_meta({k: v for k, v in content.items() if k not in hashes}, content["arrays"])
        except (TypeError, KeyError, AttributeError, ValueError):
            pass
    path.write_text(format_json(content))
    return f"{'.'.join(keys)} = {str(parent[key])[:30]!r}"


def _change_array(path: Path, choose: random.Random) -> str:
    array = np.load(path)
    how = choose.choice(["extreme", "constant", "type", "shape", "shuffle", "nan", "empty"])
    info = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(array.dtype)
    if how == "extreme" and array.size:
        array.flat[choose.randrange(array.size)] = choose.choice([info.min, info.max, 0, 1])
    elif how == "constant":
        array[...] = choose.choice([info.min, info.max, 0, 1])
    elif how == "type":
        with np.errstate(invalid="ignore"):
            array = array.astype(choose.choice(["int64", "float32", "uint8", "complex64", "U3", "bool", ">i4"]))
    elif how == "shape":
        array = choose.choice(
            [array[:-1], array.reshape(1, -1), np.concatenate([array, array]), array[..., None, None]]
        )
    elif how == "shuffle":
        array = np.random.default_rng(choose.randrange(99)).permutation(array)
    elif how == "nan" and array.dtype.kind == "f" and array.size:
        array.flat[choose.randrange(array.size)] = np.nan
    elif how == "empty":
        array = array[:0]
    np.save(path, array)
    _describe_again(path, array)
    return how


def _describe_again(path: Path, array: Any) -> None:
    """Put the right checksum of a changed array into the JSON file that describes it."""
    try:
        description = describe_array(array)
    except (TypeError, ValueError):
        return
    for file in path.parent.glob("*.json"):
        content = json.loads(file.read_text())
        arrays = content.get("arrays", {}) if isinstance(content, dict) else {}
        name = next((key for key in arrays if path.stem in (key, f"{file.stem}.{key}", f"data.{key}")), None)
        if name is None:
            continue
        arrays[name] = description
        if file.name == "dataset.json":
            if name in ("items", "behaviours") and len(array.shape) == 1:
                content["counts"]["events"] = len(array)
            hashes = ("fingerprint", "data_hash", "arrays", "sha256")
            content = complete_meta({k: v for k, v in content.items() if k not in hashes}, arrays)
        file.write_text(json.dumps(seal(content)))


def hostile_folders(attack: Attack, choose: random.Random) -> Case:
    """Put something else in the place of a file: a FIFO, a device, a folder, a loop of links, a bomb."""
    path, reader = attack.choose_file(choose)
    path.unlink()
    how = choose.choice(["fifo", "device", "folder", "loop", "deep", "large", "link", "array bomb", "no permission"])
    if how == "fifo":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to(choose.choice(["/dev/zero", "/dev/null", "/dev/random", "/dev/full"]))
    elif how == "folder":
        path.mkdir()
    elif how == "loop":
        path.symlink_to(path.name)
    elif how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "deep":
        path.write_text(choose.choice(["[", '{"a":', '{"arrays":{"items":']) * 100_000)
    elif how == "large":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # a sparse file of 1 TiB
    elif how == "array bomb":
        header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({2 ** choose.randrange(10, 62)},)}}".ljust(117)
        path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.encode() + b"\n" + bytes(64))
    else:
        path.write_bytes(attack.originals[path])
        path.chmod(0)
    # Root may read any file, and a link to an equal file is harmless.
    return _damage("hostile files", attack, path, reader, how)
