"""Change every value of every JSON file and checkpoint, with the right checksums, and run a command that reads it.

    python every_value.py BASE [--only READER,...] [--json FILE]

BASE is what attack_base.py made. The class "other values" of attack.py changes random values; this script visits each
key once. Positions in a list and names of metrics count as one key. A run's checkpoints contain the checksum of its
run.json, so they are written again with each change of run.json, as an attacker would do. The outcomes are those of
attack.py, and a command may accept any value that is valid. A traceback, a hang and missing memory are failures.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from attack_damage import restore_all
from attack_target import Attack

from attack import FAILURES, run
from offrec.data.folder import complete_meta
from offrec.data.json_files import checksum, format_json
from offrec.training import checkpoint

HASHES = ("fingerprint", "data_hash", "arrays", "sha256")
Keys = tuple[str | int, ...]


def leaves(node: Any, keys: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of every value, also of objects and lists."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield (*keys, key)
        yield from leaves(value, (*keys, key))


def replacements(old: Any) -> list[Any]:
    """Return values of other types, and others of the same type."""
    values: list[Any] = [None, True, [], {}, "x", -1, 0, 1, 2**63, 0.5, [old], {"x": old}]
    if isinstance(old, int | float) and not isinstance(old, bool):
        values += [old + 1, old * 10**6, float(old)]
    if isinstance(old, list):
        values += [old[:-1], old * 2, old[::-1]]
    if isinstance(old, dict) and old:
        values += [dict(list(old.items())[:-1])]
    return [value for value in values if type(value) is not type(old) or value != old]


def pattern(path: Path, base: Path, keys: Keys) -> tuple[str, ...]:
    """Return what identifies a key: values with the same pattern have the same meaning."""
    is_result = path.parent.name == "results"  # results of a study have the same keys
    name = "results" if is_result else str(path.relative_to(base))
    known = ["*" if isinstance(key, int) or "@" in str(key) else str(key) for key in keys]
    return (name, *known)


def write_changed(target: Attack, path: Path, content: Any, keys: Keys, value: Any) -> list[Path]:
    """Write the file with another value and the right checksums. Return the files that were written."""
    content = json.loads(json.dumps(content))
    node: Any = content
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    if path.suffix == ".safetensors":
        checkpoint.save(path, checkpoint.load(path)[0], content)
        return [path]
    if path.name == "dataset.json" and keys[0] not in HASHES:
        with suppress(TypeError, KeyError, AttributeError, ValueError):
            content = complete_meta({k: v for k, v in content.items() if k not in HASHES}, content["arrays"])
    path.write_text(format_json(content))
    checkpoints = [one for one in path.parent.glob("*.safetensors") if path.name == "run.json"]
    for one in checkpoints:
        tensors, facts = checkpoint.load(one)
        checkpoint.save(one, tensors, {**facts, "run": checksum({k: v for k, v in content.items() if k != "sha256"})})
    return [path, *checkpoints]


def read_content(target: Attack, path: Path) -> dict[str, Any] | None:
    """Return the values of a JSON file or the facts of a checkpoint, or None for another file."""
    if path.suffix == ".safetensors":
        return checkpoint.load(path)[1]
    if path.suffix != ".json" or path.stat().st_size > 1 << 20:
        return None
    content = json.loads(target.originals[path])
    return content if isinstance(content, dict) else None


def attack(base: Path, only: tuple[str, ...] = ()) -> tuple[dict[str, Counter[str]], list[str]]:
    """Visit every key. Return the outcomes by command, and the failures."""
    tally: dict[str, Counter[str]] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="offrec-values-") as scratch:
        work = Path(scratch, "base")
        shutil.copytree(base, work, symlinks=True)
        target = Attack(work, Path(scratch), run)
        for reader in target.readers:
            if only and reader not in only:
                continue
            seen: set[tuple[str, ...]] = set()
            counts = tally.setdefault(reader, Counter())
            for path in target.files_of(reader):
                content = read_content(target, path)
                for keys in leaves(content):
                    name = pattern(path, work, keys)
                    if name not in seen and keys[-1] != "sha256":
                        seen.add(name)
                        _visit(target, reader, path, content, keys, counts, failures)
            print(f"{reader}: {len(seen)} keys, {dict(counts)}", flush=True)
    return tally, failures


def _visit(
    target: Attack, reader: str, path: Path, content: Any, keys: Keys, counts: Counter[str], failures: list[str]
) -> None:
    old = content
    for key in keys:
        old = old[key]
    for value in replacements(old):
        written = write_changed(target, path, content, keys, value)
        outcome = run(target.readers[reader])
        verdict = outcome.classify(None)
        counts[verdict] += 1
        if verdict in FAILURES:
            said = (outcome.error.strip().splitlines() or [""])[-1][:300]
            where = f"{'.'.join(map(str, keys))} = {str(value)[:30]!r} in {path.relative_to(target.base)}"
            failures.append(f"{verdict} {reader}: {where}: {said}")
            print(f"  {failures[-1]}", flush=True)
        restore_all(target, *written)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("--only", default="", help="commands that read, separated by commas")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tally, failures = attack(options.base, tuple(filter(None, options.only.split(","))))
    total = sum(sum(counts.values()) for counts in tally.values())
    print(f"{total} cases, failures: {len(failures)}")
    if options.json is not None:
        options.json.write_text(json.dumps({"cases": total, "counts": tally, "failures": failures}, indent=1) + "\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
