"""The commands. Each is a dataclass whose fields are its flags and whose docstrings are its help."""

import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from offrec.console import Console
from offrec.data.prepare import PrepareOptions
from offrec.errors import InputError, Interrupted, RunError

if TYPE_CHECKING:
    from offrec.evaluation import Evaluation


def _unset(metavar: str) -> Any:
    """For a flag whose default is told in its text."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True)
class Prepare:
    """Turn a raw log into a dataset: a folder that `train` and `evaluate` read.

    Example: offrec prepare events.csv.gz --format retailrocket --protocol paper --out data/retailrocket
    """

    sources: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE [SOURCE …]", help_behavior_hint="")
    ]
    """Files or quoted globs, plain or .gz, .zst, .zip."""
    out: Path
    """The folder to write."""
    options: Annotated[PrepareOptions, tyro.conf.arg(name="")]
    force: bool = False
    """Replace the folder if it exists; the old one stays until the new one is whole."""
    json: bool = False
    """Print dataset.json instead of a table."""

    def run(self) -> None:
        from offrec.data.prepare import prepare
        from offrec.data.statistics import rows

        say = _console(self.json).line
        dataset = prepare(self.sources, out=self.out, chosen=self.options, force=self.force, progress=say)
        if self.json:
            _print_json(dataset.meta)
        else:
            _print_table(f"{self.out}  {dataset.fingerprint}", ["", ""], [list(row) for row in rows(dataset.meta)])


@dataclass(frozen=True)
class Train:
    """Train a policy on a dataset. Ctrl-C stops cleanly; --resume goes on exactly where it stopped.

    Example: offrec train data/retailrocket --backbone gru --out runs/sl --set training.epochs=10
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """A folder made by `offrec prepare`."""
    out: Path
    """The folder for the run: options, metrics.jsonl, best and last checkpoint."""
    algorithm: Annotated[str | None, _unset("NAME")] = None
    """The learner: sl (the default)."""
    backbone: Annotated[str | None, _unset("NAME")] = None
    """History to state: gru (the default), cfn, caser, nextitnet or sasrec."""
    preset: Annotated[Literal["strong", "paper"] | None, _unset("strong|paper")] = None
    """`strong` (the default) does well; `paper` is the paper's setting (Xin et al. 2020's, which its figures imply)."""
    config: Annotated[Path | None, _unset("FILE")] = None
    """A TOML file with options of the run, such as the run.toml of another run."""
    set: tuple[str, ...] = ()
    """An option by its dotted key, as often as needed: --set training.epochs=3 --set reward.cart=2. Overrides --config.
    `offrec options` lists them."""
    seed: Annotated[int | None, _unset("INT")] = None
    """Seed of weights, batches and dropout. Default 0."""
    device: Annotated[str | None, _unset("DEVICE")] = None
    """auto (the default), cpu, cuda, cuda:1 …"""
    resume: bool = False
    """Go on with the run in --out."""
    force: bool = False
    """Replace the run in --out."""

    def run(self) -> None:
        from offrec import config, experiment

        settings = config.read_toml(self.config) if self.config else {}
        settings = {key: value for key, value in settings.items() if key not in ("dataset", "out")}
        settings |= config.parse_set(self.set)
        flags = {
            "algorithm.name": self.algorithm,
            "network.backbone": self.backbone,
            "preset": self.preset,
            "seed": self.seed,
            "device": self.device,
        }
        settings |= {key: value for key, value in flags.items() if value is not None}
        console = Console()
        experiment.train(
            self.dataset, self.out, settings=settings, resume=self.resume, force=self.force, console=console
        )
        console.line(f"Done. Next: offrec evaluate {self.out}")


@dataclass(frozen=True)
class Evaluate:
    """Rank every logged item of a split in the full catalogue and print HR, NDCG, MRR and coverage.

    Examples: offrec evaluate runs/sl
              offrec evaluate --baseline recent --dataset data/retailrocket
    """

    run_: Annotated[
        Path | None, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN", help_behavior_hint="")
    ] = None
    """A folder made by `offrec train`."""
    baseline: Annotated[Literal["popular", "recent", "markov", "sknn", "vsknn"] | None, _unset("NAME")] = None
    """A policy without training, instead of a run: popular, recent, markov, sknn or vsknn."""
    dataset: Annotated[Path | None, _unset("DATASET")] = None
    """The dataset of the baseline, or of a run whose dataset has moved."""
    on: Literal["test", "validation"] = "test"
    """The split to rank."""
    score_first: Annotated[bool | None, _unset("True|False")] = None
    """Score first events of sessions or not, whatever the dataset's protocol says. Changes the fingerprint."""
    unseen: Annotated[Literal["keep", "drop"] | None, _unset("keep|drop")] = None
    """Score items that never occur in training or not. Changes the fingerprint."""
    score_last: Annotated[int | None, _unset("N")] = None
    """Score only the last n events of each session. Changes the fingerprint."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec import experiment
        from offrec.baselines import baseline
        from offrec.data.dataset import Dataset
        from offrec.evaluation import evaluate
        from offrec.policy import Policy

        policy: Policy
        if (self.run_ is None) == (self.baseline is None):
            raise InputError("Give either a run's folder or --baseline NAME --dataset DATASET.")
        if self.run_ is not None:
            dataset = experiment.dataset_of(self.run_, self.dataset)
            policy = experiment.load(self.run_, self.device)
        elif self.dataset is not None and self.baseline is not None:
            dataset = Dataset.open(self.dataset)
            policy = baseline(self.baseline, dataset, device=experiment.pick_device(self.device))
        else:
            raise InputError("A baseline needs --dataset DATASET.")
        asked = {"score_first": self.score_first, "unseen": self.unseen, "score_last": self.score_last}
        dataset = dataset.with_protocol(**{key: value for key, value in asked.items() if value is not None})
        with _console(self.json).counter(f"ranking {self.on} events") as at:
            found = evaluate(policy, dataset, self.on, progress=at)
        if self.json:
            _print_json(found.as_json())
        else:
            columns, rows = _figures_table(found)
            _print_table(f"{found.policy} on {self.on}  {found.fingerprint}", columns, rows)


@dataclass(frozen=True)
class Recommend:
    """The best items after a history, under the log's own ids.

    Example: offrec recommend runs/sl --history 12,55,9 -k 10
    """

    run_: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """A folder made by `offrec train`."""
    history: str = ""
    """Item ids, oldest first, separated by commas; empty for a new visitor."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10
    """How many."""
    exclude_seen: bool = False
    """Leave out the items of the history."""
    exclude: str = ""
    """Item ids to leave out, separated by commas."""
    candidates: Annotated[str | None, _unset("IDS")] = None
    """Choose among these item ids only, separated by commas."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec import experiment

        policy = experiment.load(self.run_, self.device)
        found = policy.recommend(
            _ids(self.history),
            self.k,
            exclude_seen=self.exclude_seen,
            exclude=_ids(self.exclude),
            candidates=None if self.candidates is None else _ids(self.candidates),
        )
        if self.json:
            _print_json(found.as_json())
            return
        if found.unknown:
            print(f"{found.unknown} of the history's items are not in the catalogue: skipped.", file=sys.stderr)
        rows = [
            [str(n + 1), str(i), f"{s:.4f}"] for n, (i, s) in enumerate(zip(found.items, found.scores, strict=True))
        ]
        for row, probability in zip(rows, found.probabilities or [], strict=False):
            row.append(f"{probability:.4%}")
        _print_table(f"{policy.name} after {self.history or 'nothing'}", ["", "item", "score", "probability"], rows)


@dataclass(frozen=True)
class Options:
    """List every option of a run with its value under a preset, as TOML."""

    algorithm: str = "sl"
    """The learner."""
    backbone: str = "gru"
    """The backbone."""
    preset: Literal["strong", "paper"] = "strong"
    """The preset."""

    def run(self) -> None:
        from offrec import config

        flat = config.layered(self.preset, self.backbone, "events", {"algorithm.name": self.algorithm})
        print(config.to_toml(config.build(flat).flat()), end="")


@dataclass(frozen=True)
class Demo:
    """A small log is made, prepared, learned from and evaluated beside the baselines."""

    out: Path = field(default=Path("demo"))
    """The folder for everything; an earlier demo there is replaced."""
    seed: int = 0
    """Seed of the log and of the run."""

    def run(self) -> None:
        from offrec.demo import demo

        demo(self.out, self.seed, Console(), _print_table)


Command = (
    Annotated[Prepare, tyro.conf.subcommand("prepare")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
    | Annotated[Recommend, tyro.conf.subcommand("recommend")]
    | Annotated[Options, tyro.conf.subcommand("options")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
)


def _figures_table(found: "Evaluation") -> tuple[list[str], list[list[str]]]:
    """A row for each figure, a column for each behaviour."""
    columns = ["", *(f"{name} ({figures.events:,})" for name, figures in found.figures.items())]
    names = list(found.figures["all"].values)
    table = [[name, *(f"{f.values[name]:.4f}" if f.events else "–" for f in found.figures.values())] for name in names]
    return columns, table


def _ids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _console(json_wanted: bool) -> Console:
    return Console(quiet=json_wanted and not sys.stderr.isatty())


def _print_json(tree: Any) -> None:
    print(json.dumps(tree, indent=2, ensure_ascii=False))


def _print_table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console as RichConsole
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    RichConsole(width=None if sys.stdout.isatty() else 120).print(table)


def main() -> None:
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `offrec … | head` is no error
    command: Any = tyro.cli(
        Command,
        prog="offrec",
        description="Recommendation policies learned offline from logged sessions.",
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.UseAppendAction),
    )
    try:
        command.run()
    except InputError as error:
        sys.exit(_say(error, 2))
    except RunError as error:
        sys.exit(_say(error, 1))
    except (Interrupted, KeyboardInterrupt) as error:
        sys.exit(_say(error or "Stopped.", 130))


def _say(error: object, code: int) -> int:
    print(f"offrec: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
