"""What is attacked: the files, the commands that read them with their right outputs, and one case."""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attack_base

from offrec.commands.ab import Ab
from offrec.commands.estimate import Estimate
from offrec.commands.evaluate import Evaluate
from offrec.commands.recommend import Recommend
from offrec.commands.verify import Verify
from offrec.data.dataset import Dataset
from offrec.data.prepare import prepare
from offrec.errors import InputError
from offrec.reports.report import build_report
from offrec.reports.text_formats import csv
from offrec.rounds.results import read_results
from offrec.runs.train import train
from offrec.serving.erasure import erase_sessions
from offrec.serving.errors import RequestError
from offrec.serving.item_lists import ItemLists

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
            "served 2": self._erase,
            "items 0": Verify((base / "items",)).run,
            "items 1": lambda: print(Dataset.open(base / "items").item_properties),
            "run_items 0": Recommend(base / "run_items", k=3, new_items=(str(base / "new_items.parquet"),), **cpu).run,  # type: ignore[arg-type]
            "run_items 1": Verify((base / "run_items",)).run,
            "later": Evaluate((run,), baselines="popular", dataset=base / "later", split="all", **cpu).run,  # type: ignore[arg-type]
            "warm": Recommend(base / "warm", k=3, **cpu).run,  # type: ignore[arg-type]
            "run 4": self._continue_training,
            "run 5": self._use_as_logging_policy,
            "rounds": lambda: print(read_results(base / "rounds").as_json()),
            "held 0": self._read_lists,
            "held 1": Verify((base / "held",)).run,
            "served 3": Verify((base / "served",)).run,
            "rounds/": Verify((base / "rounds",)).run,
        }
        return readers | ({"model": Verify((model,)).run} if model in self.originals else {})

    def _resume(self) -> None:
        data, run = self.base / "data", self.base / "run"
        policy = train(data, run, settings=attack_base.SMALL, device="cpu", resume=True, console=attack_base.QUIET)
        print(policy.recommend([], 3).as_json())

    def _prepare_served(self) -> None:
        dataset = prepare(self.base / "served", out=self.scratch / "from_log", format="served", force=True)
        print(dataset.meta["data_hash"], dataset.meta["decisions"]["notes"])

    def _erase(self) -> None:
        """Erase a session from a copy of the decision log, then read the copy."""
        copy = self.scratch / "erased"
        shutil.rmtree(copy, ignore_errors=True)
        # Links: a copy of a sparse file would fill the disk, and erasing replaces files instead of changing them.
        shutil.copytree(self.base / "served", copy, symlinks=True, copy_function=os.link)
        print(erase_sessions(copy, ["v1"], attack_base.QUIET.line))
        dataset = prepare(copy, out=self.scratch / "from_log", format="served", force=True)
        print(dataset.meta["data_hash"], dataset.meta["decisions"]["notes"])

    def _continue_training(self) -> None:
        shutil.rmtree(self.scratch / "warm", ignore_errors=True)
        policy = attack_base.continue_training(self.base, self.scratch / "warm")
        print(policy.recommend([], 3).as_json())

    def _use_as_logging_policy(self) -> None:
        data, run, out = self.base / "data", self.base / "run", self.scratch / "dc"
        shutil.rmtree(out, ignore_errors=True)
        settings = {**attack_base.SMALL, "algorithm.name": "dc"}
        policy = train(data, out, settings=settings, logging_policy=run, device="cpu", console=attack_base.QUIET)
        print(policy.recommend([], 3).as_json())

    def _read_lists(self) -> None:
        lists = ItemLists(self.base / "held")
        try:
            print(lists.describe_all(), lists.ids("stock"))
        except RequestError as error:
            raise InputError(error.sentence) from error

    def choose_file(self, choose: random.Random) -> tuple[Path, str]:
        """Return a file and the name of a reader that depends on it."""
        name = choose.choice(sorted(self.readers))
        return choose.choice(self.files_of(name)), name

    def files_of(self, name: str) -> list[Path]:
        """Return the files that a reader depends on."""
        folder = name.split(" ")[0].rstrip("/")
        inside = [path for path in self.originals if str(path.relative_to(self.base)).startswith(folder)]
        inside = [p for p in inside if p.suffix not in (".lock", ".toml", ".log") and "finished" not in p.name]
        if folder == "data":
            inside = [path for path in inside if "logging" not in path.parts]
        if name == "study":
            inside = [path for path in inside if "runs" not in path.parts]
        if folder in ("run", "lists", "later"):
            inside = [path for path in inside if path.parent == self.base / folder]
        if name == "rounds":  # what the results depend on
            inside = [path for path in inside if path.name in ("round.json", "rounds.json", "yardsticks.json")]
        return inside

    def restore(self, *paths: Path) -> None:
        """Restore files to their original content."""
        for path in paths:
            if path.is_symlink() or path.exists():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            if path in self.originals:
                path.write_bytes(self.originals[path])
