"""The classes of attack. Each function makes one random case."""

import gzip
import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attack_base
import numpy as np

from offrec import cli
from offrec.commands.ab import Ab
from offrec.commands.estimate import Estimate
from offrec.commands.evaluate import Evaluate
from offrec.commands.prepare import Prepare
from offrec.commands.runs import Recommend
from offrec.commands.verify import Verify
from offrec.data.arrays import describe_array
from offrec.data.dataset import Dataset
from offrec.data.folder import complete_meta
from offrec.data.json_files import format_json, seal
from offrec.data.options import PrepareOptions
from offrec.data.prepare import prepare
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.runs.train import train

Command = Callable[[], object]
TEXTS = (
    "[red]x[/red]",
    "[/",
    "\x1b[2J",
    "\u202eabc",
    "a" * 10_000,
    "\x07",
    "é",
    "{}",
    "%s",
    "../x",
    "-1",
    "1e400",
    "NaN",
    '"',
    "'",
    "a,b",
    "a\tb",
    "💥",
    "none",
    "null",
    "<script>",
    "\\",
    " ",
    "0",
    "9223372036854775808",
)
LARGE = str(10**30)
NUMBERS = (-1, 0, 1, 2, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**30, -(2**63), 0.5, -0.5, 1e308, 1e-320)


@dataclass
class Case:
    """One case: a command, the output that it must have if it succeeds, and how to undo the attack."""

    kind: str
    what: str
    command: Command
    expected: str | None
    restore: Callable[[], None]
    check: Callable[[int], bool] | None = None  # of the exit code: whether everything else is as it must be


@dataclass
class Attack:
    """The folder under attack, its readers with their right outputs, and the original content of every file."""

    base: Path
    scratch: Path
    run: Callable[[Command], Any]
    originals: dict[Path, bytes] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.originals = {path: path.read_bytes() for path in sorted(self.base.rglob("*")) if path.is_file()}
        self.outputs = {name: self._output(command) for name, command in self.readers.items()}

    def _output(self, command: Command) -> str:
        outcome = self.run(command)
        assert outcome.code == 0, outcome.error
        return str(outcome.out)

    @property
    def readers(self) -> dict[str, Command]:
        """Commands whose output depends on the files of a folder, by the name of the folder and a number."""
        base, cpu = self.base, {"device": "cpu", "json": True}
        data, lists, run, model = base / "data", base / "lists", base / "run", base / "model.onnx"
        estimate = Estimate((base / "run_lists",), dataset=lists, estimator="importance", **cpu)  # type: ignore[arg-type]
        readers: dict[str, Command] = {
            "data 0": Evaluate(baselines="popular", dataset=data, **cpu).run,  # type: ignore[arg-type]
            "data 1": lambda: print(Dataset.open(data).vocabulary.ids),
            "data 2": Verify((data,)).run,
            "data/logging": lambda: print(attack_base.fit_logging_policy(data)),
            "lists 0": estimate.run,
            "lists 1": Verify((lists,)).run,
            "run 0": Recommend(run, k=3, **cpu).run,  # type: ignore[arg-type]
            "run 1": Evaluate((run,), dataset=data, **cpu).run,  # type: ignore[arg-type]
            "run 2": Verify((run,)).run,
            "run 3": self._resume,
            "run_lists": estimate.run,
            "study": lambda: print(csv(build_report([base / "study"]))),
            "study/": Verify((base / "study",)).run,
            "served 0": self._prepare_served,
            "served 1": Ab((str(base / "served"),), ("view=1",), window_hours=1e-6, json=True).run,
        }
        return readers | ({"model": Verify((model,)).run} if model in self.originals else {})

    def _resume(self) -> None:
        data, run = self.base / "data", self.base / "run"
        policy = train(data, run, settings=attack_base.SMALL, device="cpu", resume=True, console=attack_base.QUIET)
        print(policy.recommend([], 3).as_json())

    def _prepare_served(self) -> None:
        dataset = prepare(self.base / "served", out=self.scratch / "from_log", format="served", force=True)
        print(dataset.meta["data_hash"], dataset.meta["decisions"]["notes"])

    def choose_file(self, choose: random.Random) -> tuple[Path, str]:
        """Return a file and the name of a reader that depends on it."""
        name = choose.choice(sorted(self.readers))
        folder = name.split(" ")[0].rstrip("/")
        inside = [path for path in self.originals if str(path.relative_to(self.base)).startswith(folder)]
        inside = [p for p in inside if p.suffix not in (".lock", ".toml", ".log") and "finished" not in p.name]
        if folder == "data":
            inside = [path for path in inside if "logging" not in path.parts]
        if name == "study":
            inside = [path for path in inside if "runs" not in path.parts]
        if folder == "run":
            inside = [path for path in inside if path.parent.name == "run"]
        return choose.choice(inside), name

    def restore(self, *paths: Path) -> None:
        """Restore files to their original content."""
        for path in paths:
            if path.is_symlink() or path.exists():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if path in self.originals:
                path.write_bytes(self.originals[path])


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
    is_absent = how in ("remove", "loop") and path.parent.name == "results" and path.suffix == ".json"
    expected = None if is_absent else attack.outputs[reader]
    return Case(kind, what, attack.readers[reader], expected, lambda: _restore_all(attack, path))


def _restore_all(attack: Attack, *paths: Path) -> None:
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
        lambda: _restore_all(attack, path, *also),
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


def fuzzed_tables(attack: Attack, choose: random.Random) -> Case:
    """Prepare a table with strange ids, behaviours, times, separators, encodings or compressed content."""
    path, out, run = attack.scratch / "table", attack.scratch / "fuzzed", attack.scratch / "fuzzed-run"
    ids = [choose.choice(TEXTS) for _ in range(5)] + [f"i{n}" for n in range(5)]
    names = ["session", "item", *choose.sample(["time", "behaviour", "position", "note"], choose.randrange(3))]
    if choose.random() < 0.15:
        names = choose.sample(["session", "item", "time", "user", "propensity", "offered", choose.choice(TEXTS)], 4)
    rows = []
    for number in range(choose.randrange(60)):
        row: dict[str, Any] = dict.fromkeys(names, "x")
        row |= {"session": f"s{number // 3}", "item": choose.choice(ids), "time": number, "position": number}
        row |= {"behaviour": choose.choice(["view", "buy", ids[0]])}
        if choose.random() < 0.02:
            row[choose.choice(list(row))] = str(choose.choice(NUMBERS))
        rows.append({name: row[name] for name in names})
    form = choose.choice(["csv", "tsv", "jsonl"])
    if form == "jsonl":
        data = "\n".join(json.dumps(row) for row in rows)
    else:
        separator = "," if form == "csv" else "\t"
        cell = str if choose.random() < 0.2 else (lambda text: '"' + str(text).replace('"', '""') + '"')
        lines = [names, *(row.values() for row in rows)]
        data = "\n".join(separator.join(map(cell, line)) for line in lines)
    encoding = "utf-8" if choose.random() < 0.9 else choose.choice(["utf-16", "latin1"])
    content = bytearray(data.encode(encoding, errors="replace"))
    for _ in range(choose.choice([0] * 7 + [1, 5])):
        if content:
            content[choose.randrange(len(content))] = choose.randrange(256)
    blob = gzip.compress(bytes(content)) if choose.random() < 0.2 else bytes(content)
    blob = blob[: choose.randrange(len(blob) + 1)] if choose.random() < 0.05 else blob
    path.write_bytes(blob)
    kind = "events" if choose.random() < 0.8 else choose.choice(["decisions", "served", "retailrocket", "yoochoose"])
    preparing = Prepare((str(path),), out, PrepareOptions(format=kind), force=True, json=choose.random() < 0.5)
    depth, history = choose.random(), [choose.choice(ids) for _ in range(2)]

    def command() -> None:
        preparing.run()
        Evaluate(baselines="recent", dataset=out, device="cpu", json=depth < 0.5).run()
        if depth < 0.08:  # strange ids and behaviours through training and recommendations too
            train(out, run, settings=attack_base.SMALL, device="cpu", console=attack_base.QUIET)
            Recommend(run, history=",".join(history), k=1, device="cpu", json=depth < 0.04).run()
            Evaluate((run,), device="cpu").run()
            Verify((out, run)).run()

    def check(code: int) -> bool:
        return not any(name.name.startswith(".fuzzed") for name in attack.scratch.iterdir())

    return Case("fuzzed tables", f"{form} as {kind}", command, None, lambda: _remove(path, out, run), check)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def fuzzed_commands(attack: Attack, choose: random.Random) -> Case:
    """Give a command random flags, values, paths and options, through the command line's own parser."""
    base, out = attack.base, attack.scratch / "command"
    text, number = choose.choice(TEXTS), str(choose.choice(NUMBERS))
    value = choose.choice([text, number])
    keys = [
        "network.width",
        "network.layers",
        "network.heads",
        "training.epochs",
        "training.batch_size",
        "gamma",
        "seed",
        "network.history",
        "critic.ground",
        "training.learning_rate",
        "reward.view",
        "network.dropout",
        "select",
        text,
    ]
    here = {name: str(base / name) for name in ("data", "run", "lists", "study", "shop")}
    commands = [
        ["recommend", here["run"], "-k", value, "--history", choose.choice(TEXTS), "--device", "cpu"],
        [
            "recommend",
            here["run"],
            "--candidates",
            text,
            "--exclude",
            choose.choice(TEXTS),
            "--json",
            "--device",
            "cpu",
        ],
        ["evaluate", here["run"], "--dataset", choose.choice([*here.values(), text]), "--score-last", value],
        ["evaluate", "--baselines", text, "--dataset", here["data"]],
        [
            "train",
            here["data"],
            "--out",
            str(out),
            "--set",
            f"{choose.choice(keys[:-1])}={choose.choice(['-1', '0', text])}",
            "--set",
            "training.epochs=0",
        ],
        ["train", here["data"], "--out", str(out), "--set", f"{choose.choice(keys)}={value}", "--algorithm", "none"],
        ["prepare", choose.choice([text, *here.values()]), "--out", str(out), "--filter", text],
        ["prepare", f"{here['shop']}/events.parquet", "--out", str(out), "--sample", number, "--split-seed", value],
        ["prepare", f"{here['shop']}/events.parquet", "--out", str(out), "--gap-minutes", value, "--item", text],
        [
            "shop",
            "--world",
            choose.choice([text, "tiny"]),
            "--sessions",
            choose.choice(["-1", "0", text, LARGE]),
            "--out",
            str(out),
        ],
        [
            "simulate",
            here["run"],
            "--dataset",
            here["data"],
            "--sessions",
            choose.choice(["-1", "0", text, LARGE]),
            "--gamma",
            value,
        ],
        [
            "estimate",
            here["run"],
            "--dataset",
            choose.choice(list(here.values())),
            "--gamma",
            value,
            "--refits",
            "0",
            "--estimator",
            choose.choice(["importance", text]),
        ],
        [
            "report",
            choose.choice(list(here.values())),
            "--out",
            choose.choice([str(out) + ".csv", str(base), "/dev/null"]),
            "--cutoffs",
            value,
        ],
        [
            "compare",
            here["data"],
            "--out",
            choose.choice([str(out), here["run"]]),
            "--algorithms",
            text,
            "--seeds",
            value,
        ],
        ["options", "--algorithm", text],
        ["verify", choose.choice([*here.values(), text])],
        [text],
        [text, value],
        ["export", here["run"], "--out", choose.choice([text, here["data"]])],
        ["tune", here["data"], "--trials", value],
        ["sweep", here["data"], "--vary", text, "--out", str(out)],
        ["train", here["data"], "--config", text, "--out", str(out)],
    ]
    words = choose.choice(commands)
    words = [word for word in words if "\0" not in word]
    if choose.random() < 0.2:
        words.insert(choose.randrange(len(words) + 1), choose.choice([*TEXTS[:4], f"--{text}", "--json", "--out"]))

    def command() -> None:
        sys.argv = ["offrec", *words]
        cli.main()

    before = {path: path.stat().st_mtime_ns for path in attack.originals}

    def check(code: int) -> bool:
        return all(path.exists() and path.stat().st_mtime_ns == time for path, time in before.items())

    shown = " ".join(word[:40] for word in words).replace(str(base), "BASE")
    return Case("fuzzed commands", shown, command, None, lambda: _remove(out, out.with_suffix(".csv")), check)


def full_disks(attack: Attack, choose: random.Random) -> Case:
    """Let the disk be full after some bytes of a file: the old files stay, and nothing partial is left."""
    base, limit = attack.base, choose.choice([0, 1, 100, 500, 1000, 2000, 5000, 10_000, 50_000])
    out = choose.choice([base / "data", attack.scratch / "new"])
    commands: dict[str, Command] = {
        "prepare": lambda: prepare(base / "shop" / "events.parquet", out=out, force=True),
        "recommend": Recommend(
            base / "run",
            input=(str(base / "shop" / "events.parquet"),),
            out=attack.scratch / "new",
            device="cpu",
            force=True,
        ).run,  # no suffix: refused before anything is written
        "recommend csv": Recommend(
            base / "run",
            input=(str(base / "shop" / "events.parquet"),),
            out=attack.scratch / "new.csv",
            device="cpu",
        ).run,
        "report": lambda: _write_report(base / "study", attack.scratch / "new.md"),
        "train": lambda: train(
            base / "data", attack.scratch / "new", settings=attack_base.SMALL, device="cpu", console=attack_base.QUIET
        ),
        "served": attack._prepare_served,
    }
    name = choose.choice(list(commands) if choose.random() < 0.2 else [n for n in commands if n != "train"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def command() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            commands[name]()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    def check(code: int) -> bool:
        hidden = [p for p in (*base.iterdir(), *attack.scratch.iterdir()) if p.name.startswith(".")]
        # A command that succeeds replaces the dataset together with its caches.
        intact = code == 0 or all(path.exists() for path in attack.originals)
        return intact and not hidden and Dataset.open(base / "data").n_items > 0

    new = [attack.scratch / "new", attack.scratch / "new.csv", attack.scratch / "new.md"]
    data = [path for path in attack.originals if path.is_relative_to(base / "data")]

    def restore() -> None:
        _remove(*new)
        for path in data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(attack.originals[path])

    return Case("full disks", f"{name} with {limit} bytes to {out.name}", command, None, restore, check)


def _write_report(study: Path, out: Path) -> None:
    from offrec.reports.writing import write_report

    write_report(build_report([study]), [out])


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
