"""Measure every figure of the speed page, store them in one file per device, and print what moved.

    python benchmarks/ledger.py gpu [--dataset DATASET] [--only catalogue update …]             # also: make speed
    python benchmarks/ledger.py cpu [--dataset DATASET] [--environments FOLDER] [--log FILE]
                                    [--before SOURCE --before-dataset DATASET]                 # also: make bench
    python benchmarks/ledger.py pages                        # only write the tables of the pages again

Each section of the ledger is the result of one script in `benchmarks/`, with its command, commit, date and machine. The
files are `results/ledger-gpu.json` and `results/ledger-cpu.json`. A section that is not measured, because it fails or
needs an argument that is missing, keeps its earlier result and its earlier commit. Afterwards the tables of the pages
are written again (`ledger_pages.py`), and every figure that moved by more than 5 % since the last commit is printed.

Needs torch, triton, numpy and safetensors on a GPU; the datasets are prepared elsewhere.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evidence import ROOT, git, read_results, read_stamps

MOVED = 0.05  # smaller changes are not printed
NAMING = {
    "items",
    "width",
    "rows",
    "connections",
    "queries",
    "workers",
    "runs",
    "seeds",
    "batch",
    "neighbours",
}  # integers that name a row
MEASURED = re.compile(r"(^|_)(ms|mb|gb|seconds|second|median|cpu|reserved|use|after|planned)($|_)")
Figures = dict[str, float]


@dataclass(frozen=True)
class Section:
    """One script of the ledger; arguments in braces are replaced by options of this command."""

    script: str
    arguments: str = ""
    file_flag: str = "--json"
    on_request: bool = False  # measured only if it is named by --only

    def missing(self, given: Mapping[str, Path | None]) -> list[str]:
        """Return the options that the section needs and that are not given."""
        names = re.findall(r"\{(\w+)\}", self.arguments)
        return [f"--{name.replace('_', '-')}" for name in names if given.get(name) is None]

    def command(self, given: Mapping[str, Path | None], out: Path) -> list[str]:
        """Return the words of the command, without the interpreter."""
        words = [word.format(**given) for word in self.arguments.split()]
        return [self.script, *words, self.file_flag, str(out)]


GPU = {
    "catalogue": Section("catalogue.py"),
    "update": Section("update.py"),
    "profile": Section("profile_update.py"),
    "scale": Section("scale.py"),
    "engine": Section("engine.py"),
    "memory": Section("gpu_memory.py"),
    "epochs": Section("update.py", "--epochs {dataset}"),
    "epochs-again": Section("update.py", "--epochs {dataset} --learners sl dc"),  # with compiled kernels
    "epochs-sl-dc": Section("update.py", "--epochs {dataset} --learners sl dc", on_request=True),
    "epoch": Section("epoch.py", "{dataset} --seeds 5"),
    "block-sizes": Section("block_sizes.py", on_request=True),
}
CPU = {
    "catalogue-cpu": Section("catalogue_cpu.py"),
    "updates-cpu": Section("updates_cpu.py", "{dataset} --before {before} {before_dataset}"),
    "start-up": Section("start_up.py", "{dataset} --threads 2"),
    "ranking": Section("evaluation.py"),
    "prepare": Section("prepare.py"),
    "serving": Section("serving.py", "--seconds 4", "--out"),
    "serving-million": Section(
        "serving.py",
        "--items 1000000 --seconds 4 --servers before offrec network --before {before} --requests lists",
        "--out",
    ),
    "serving-load": Section("serving_load.py", file_flag="--out"),
    "serving-memory": Section("serving_memory.py", file_flag="--out"),
    "serving-lists": Section("serving_lists.py", file_flag="--out"),
    "serving-durable": Section("serving.py", "--servers offrec durable unlogged --items 10000", "--out"),
    "export": Section("export.py", "{log}", "--out"),
    "peers-sasrec": Section("peers/run.py", "{dataset} --environments {environments} --only offrec recbole rectools"),
    "peers-actions": Section("peers/run.py", "{dataset} --environments {environments} --only offrec d3rlpy"),
}
GIVEN = ("dataset", "environments", "log", "before", "before_dataset")
DEVICES = {"gpu": GPU, "cpu": CPU}
Runner = Callable[[list[str]], None]


@dataclass
class Ledger:
    """The sections of a ledger file, and one stamp or more per section."""

    sections: dict[str, Any]
    stamps: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """Read a ledger file; a file that does not exist is an empty ledger."""
        return cls.parse(path.read_text()) if path.exists() else cls({}, [])

    @classmethod
    def parse(cls, text: str) -> "Ledger":
        """Read the text of a ledger file."""
        content = json.loads(text)
        return cls(content["sections"], content["evidence"])

    def replace(self, name: str, result: Path) -> None:
        """Replace a section by the result of a script and its stamps."""
        self.sections[name] = read_results(result)
        self.stamps = [stamp for stamp in self.stamps if stamp["section"] != name]
        self.stamps += [{"section": name, **stamp} for stamp in read_stamps(result)]

    def write(self, path: Path) -> None:
        """Write the file."""
        from offrec.data.files import publish_text

        order = {name: number for number, name in enumerate(self.sections)}
        stamps = sorted(self.stamps, key=lambda stamp: order[stamp["section"]])
        content = {"evidence": stamps, "sections": self.sections}
        publish_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def stamps_of(self, name: str) -> list[dict[str, Any]]:
        """Return the stamps of a section."""
        return [stamp for stamp in self.stamps if stamp["section"] == name]

    def figures(self) -> Figures:
        """Return every measured figure under a readable name."""
        return dict(_figures(self.sections, ""))


def _figures(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            if isinstance(one, (int, float)) and not isinstance(one, bool):
                if MEASURED.search(key):
                    yield f"{name}: {key}", float(one)
            elif key not in ("options", "rounds", "all", "first", "losses", "note"):
                yield from _figures(one, f"{name}, {key}" if name else key)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _figures(one, f"{name}, {_label(one) or number}")


def _label(row: Any) -> str:
    """Return what names a row: its texts, and integers such as the number of items."""
    if not isinstance(row, Mapping):
        return ""
    named = [one if isinstance(one, str) else f"{key} {one}" for key, one in row.items() if _names_row(key, one)]
    return " ".join(named)


def _names_row(key: str, value: Any) -> bool:
    return (isinstance(value, str) and key != "formula") or isinstance(value, bool) or key in NAMING


def moved(before: Figures, after: Figures) -> list[str]:
    """Return a line for each figure that both ledgers contain and that moved by more than 5 %."""
    lines = []
    for name, figure in after.items():
        old = before.get(name)
        if old and abs(figure / old - 1) > MOVED:
            lines.append(f"{100 * (figure / old - 1):+6.0f} %  {name}: {old:.4g} → {figure:.4g}")
    return lines


def run_script(command: list[str]) -> None:
    """Run a script of `benchmarks/` in its own process."""
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    script, *words = command
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / script), *words], check=True, cwd=ROOT, env=environment)


def measure(
    ledger: Ledger,
    sections: Mapping[str, Section],
    given: Mapping[str, Path | None],
    run: Runner = run_script,
    note: str | None = None,
) -> list[str]:
    """Measure sections and replace them in the ledger.

    Args:
        ledger: The ledger, which is changed.
        sections: What to measure.
        given: Values of the options that sections may need: dataset, environments, log, before, before_dataset.
        run: Runs the command of a section.
        note: What a reader of the figures must know, such as other load of the machine.

    Returns:
        A line for each section that was not measured.
    """
    problems = []
    for name, section in sections.items():
        if missing := section.missing(given):
            problems.append(f"{name}: not measured; needs {' and '.join(missing)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            out, start = Path(folder) / "result.json", time.perf_counter()
            try:
                run(section.command(given, out))
                ledger.replace(name, out)
            except (subprocess.CalledProcessError, OSError, ValueError) as error:
                problems.append(f"{name}: not measured; {error}")
                continue
        for stamp in ledger.stamps_of(name):
            stamp["command"] = _readable(stamp["command"], given, folder)
            if note is not None:
                stamp["note"] = note
        print(f"{name}: measured in {time.perf_counter() - start:.0f} s", flush=True)
    return problems


def _readable(command: str, given: Mapping[str, Path | None], folder: str) -> str:
    """Replace paths of this machine by names."""
    command = command.replace(f"{folder}/result.json", "FILE")
    for name, path in sorted(given.items(), key=lambda pair: -len(str(pair[1]))):  # a path may begin another one
        command = command.replace(str(path), name.upper()) if path else command
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", choices=[*DEVICES, "pages"])
    parser.add_argument("--dataset", type=Path, help="the prepared log retailrocket-sessions")
    parser.add_argument("--environments", type=Path, help="environments of the other libraries; see peers/README.md")
    parser.add_argument("--log", type=Path, help="retailrocket-sessions.parquet")
    parser.add_argument("--before", type=Path, help="source folder of version 0.1, next to its tests and benchmarks")
    parser.add_argument("--before-dataset", type=Path, help="retailrocket-sessions, prepared by version 0.1")
    parser.add_argument("--note", help="a sentence for the measured tables, such as other load of the machine")
    parser.add_argument("--only", nargs="+", choices=[*GPU, *CPU], help="measure only these sections")
    options = parser.parse_args(arguments)
    problems = measure_device(options) if options.device != "pages" else []
    from ledger_pages import write_pages

    for page in write_pages(ROOT):
        print(f"wrote {page}")
    print("\n".join(problems))
    return 1 if problems else 0


def measure_device(options: argparse.Namespace) -> list[str]:
    path = ROOT / f"results/ledger-{options.device}.json"
    committed = git(ROOT, "show", f"HEAD:{path.relative_to(ROOT)}")
    before = Ledger.parse(committed) if committed else Ledger({}, [])
    known = DEVICES[options.device]
    chosen = options.only or [name for name, section in known.items() if not section.on_request]
    given = {name: getattr(options, name) for name in GIVEN}
    ledger, problems = Ledger.read(path), list[str]()
    for name in chosen:  # written after every section, so that an interrupted run keeps what it has measured
        problems += measure(ledger, {name: known[name]}, given, note=options.note)
        ledger.write(path)
    lines = moved(before.figures(), ledger.figures())
    print(f"{len(lines)} figures moved by more than {MOVED:.0%} since the last commit:")
    print("\n".join(lines))
    return problems


if __name__ == "__main__":
    sys.exit(main())
