"""`offrec train`, `evaluate`, `recommend` and `options`."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from offrec.commands.printing import console_for, figures_table, ids, print_json, print_table, unset
from offrec.console import Console
from offrec.errors import InputError, RunError

if TYPE_CHECKING:
    from offrec.policy import Policy


@dataclass(frozen=True)
class Train:
    """Train a policy on a dataset. Ctrl-C stops cleanly; --resume goes on exactly where it stopped.

    Example: offrec train data/retailrocket --backbone gru --out runs/sl --set training.epochs=10
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """A folder made by `offrec prepare`."""
    out: Path
    """The folder for the run: options, metrics.jsonl, best and last checkpoint."""
    algorithm: Annotated[str | None, unset("NAME")] = None
    """The learner: sl (the default), dqn, pg, sl+dqn, sl+pg, sdac, sc, sr, pc, dc or re."""
    backbone: Annotated[str | None, unset("NAME")] = None
    """History to state: gru (the default; of `paper`, cfn), cfn, caser, nextitnet or sasrec."""
    preset: Annotated[Literal["strong", "paper"] | None, unset("strong|paper")] = None
    """`strong` (the default) does well; `paper` is the paper's setting (Xin et al. 2020's, which its figures imply)."""
    select: Annotated[Literal["ndcg", "reward", "value", "last"] | None, unset("ndcg|reward|value|last")] = None
    """The checkpoint kept: by NDCG@10 on validation, by hits weighted by their reward, by a cheap estimate of value, or
    the last. By default what the learner does best with."""
    config: Annotated[Path | None, unset("FILE")] = None
    """A TOML file with options of the run, such as the run.toml of another run."""
    set: tuple[str, ...] = ()
    """An option by its dotted key, as often as needed: --set training.epochs=3 --set reward.cart=2. Overrides --config.
    `offrec options --algorithm NAME` lists them."""
    seed: Annotated[int | None, unset("INT")] = None
    """Seed of weights, batches and dropout. Default 0."""
    seeds: Annotated[str | None, unset("INTS")] = None
    """Several seeds, separated by commas: trained at once on one device, into --out/seed-0, --out/seed-1 …"""
    device: Annotated[str | None, unset("DEVICE")] = None
    """auto (the default), cpu, cuda, cuda:1 …"""
    resume: bool = False
    """Go on with the run in --out."""
    force: bool = False
    """Replace the run in --out."""

    def run(self) -> None:
        from offrec.runs.option_text import parse_settings, read_toml
        from offrec.runs.train import train, train_many

        settings = read_toml(self.config) if self.config else {}
        settings = {key: value for key, value in settings.items() if key not in ("dataset", "out")}
        if self.preset is not None and settings.get("preset", self.preset) != self.preset:
            raise InputError(f"{self.config} was made with the preset {settings['preset']}; leave out --preset.")
        settings |= parse_settings(self.set)
        flags = {
            "algorithm.name": self.algorithm,
            "network.backbone": self.backbone,
            "preset": self.preset,
            "select": self.select,
            "seed": self.seed,
            "device": self.device,
        }
        settings |= {key: value for key, value in flags.items() if value is not None}
        console = Console()
        if self.seeds is None:
            train(self.dataset, self.out, settings=settings, resume=self.resume, force=self.force, console=console)
            console.line(f"Done. Next: offrec evaluate {self.out}")
            return
        if "seed" in settings:
            raise InputError("--seeds says which seeds; leave seed out of --set and --config.")
        runs = {f"seed-{seed}": {**settings, "seed": seed} for seed in self._seeds()}
        done = train_many(self.dataset, runs, self.out, resume=self.resume, force=self.force, console=console)
        if len(done) < len(runs):
            raise RunError(f"{len(runs) - len(done)} of {len(runs)} runs failed; {len(done)} are done.")
        console.line(f"Done. Next: offrec evaluate {self.out}/{next(iter(runs))}")

    def _seeds(self) -> list[int]:
        try:
            seeds = [int(part) for part in (self.seeds or "").split(",")]
        except ValueError:
            seeds = []
        if not seeds or len(set(seeds)) < len(seeds) or self.seed is not None:
            raise InputError(f"--seeds is {self.seeds!r}; give different numbers, as in 0,1,2, and no --seed.")
        return seeds


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
    baseline: Annotated[str | None, unset("NAME")] = None
    """A policy without training, instead of a run: popular, recent, markov, sknn or vsknn."""
    dataset: Annotated[Path | None, unset("DATASET")] = None
    """The dataset of the baseline, or of a run whose dataset has moved."""
    on: Literal["test", "validation"] = "test"
    """The split to rank."""
    score_first: Annotated[bool | None, unset("True|False")] = None
    """Score first events of sessions or not, whatever the dataset's protocol says. Changes the fingerprint."""
    unseen: Annotated[Literal["keep", "drop"] | None, unset("keep|drop")] = None
    """Score items that never occur in training or not. Changes the fingerprint."""
    score_last: Annotated[int | None, unset("N")] = None
    """Score only the last n events of each session. Changes the fingerprint."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.baselines import baseline
        from offrec.data.dataset import Dataset
        from offrec.evaluation import evaluate
        from offrec.policy import Policy
        from offrec.runs.loading import load, open_dataset, pick_device

        policy: Policy
        if (self.run_ is None) == (self.baseline is None):
            raise InputError("Give either a run's folder or --baseline NAME --dataset DATASET.")
        if self.run_ is not None:
            dataset = open_dataset(self.run_, self.dataset)
            policy = load(self.run_, self.device)
        elif self.dataset is not None and self.baseline is not None:
            dataset = Dataset.open(self.dataset)
            policy = baseline(self.baseline, dataset, device=pick_device(self.device))
        else:
            raise InputError("A baseline needs --dataset DATASET.")
        asked = {"score_first": self.score_first, "unseen": self.unseen, "score_last": self.score_last}
        dataset = dataset.with_protocol(**{key: value for key, value in asked.items() if value is not None})
        with console_for(self.json).counter(f"ranking {self.on} events") as at:
            found = evaluate(policy, dataset, self.on, progress=at)
        if self.json:
            print_json(found.as_json())
        else:
            columns, rows = figures_table(found)
            print_table(f"{found.policy} on {self.on}  {found.fingerprint}", columns, rows)


@dataclass(frozen=True)
class Recommend:
    """The best items after a history, or after every session of a table, under the log's own ids.

    Examples: offrec recommend runs/sl --history 12,55,9 -k 10
              offrec recommend runs/sl --input sessions.parquet --out recommendations.parquet -k 20
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
    candidates: Annotated[str | None, unset("IDS")] = None
    """Choose among these item ids only, separated by commas."""
    input: tuple[str, ...] = ()
    """A table with an event a row, as `prepare` reads it, its sessions one after the other: a list for each of them."""
    out: Annotated[Path | None, unset("FILE")] = None
    """With --input: the table to write, .parquet, .csv, .tsv or .jsonl: session, rank, item, score, probability."""
    chunk: int = 4096
    """With --input: sessions held in memory at once, besides a block of the table (16 MB of text, 262,144 rows)."""
    format: str = "events"
    """With --input: what the table is, as for `prepare`."""
    session: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the column that tells sessions apart (default: `session`, else `user`)."""
    item: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the column with the item's id (default: `item`)."""
    time: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the column that orders a session's events (default: `time`, else `position`, else the file)."""
    force: bool = False
    """With --out: replace the file if it exists."""
    device: str = "auto"
    """auto, cpu, cuda …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.runs.loading import load

        if bool(self.input) != (self.out is not None):
            raise InputError("--input TABLE and --out FILE belong together; give both or neither.")
        if self.input and (self.history or self.exclude or self.candidates is not None):
            raise InputError("--history, --exclude and --candidates are for one history; leave them out with --input.")
        policy = load(self.run_, self.device)
        if self.out is not None:
            self._table(policy, self.out)
            return
        found = policy.recommend(
            ids(self.history),
            self.k,
            exclude_seen=self.exclude_seen,
            exclude=ids(self.exclude),
            candidates=None if self.candidates is None else ids(self.candidates),
        )
        if self.json:
            print_json(found.as_json())
            return
        if found.unknown:
            print(f"{found.unknown} of the history's items are not in the catalogue: skipped.", file=sys.stderr)
        rows = [
            [str(n + 1), str(i), f"{s:.4f}"] for n, (i, s) in enumerate(zip(found.items, found.scores, strict=True))
        ]
        for row, probability in zip(rows, found.probabilities or [], strict=False):
            row.append(f"{probability:.4%}")
        print_table(f"{policy.name} after {self.history or 'nothing'}", ["", "item", "score", "probability"], rows)

    def _table(self, policy: "Policy", out: Path) -> None:
        from offrec.data.formats import Columns
        from offrec.serving.recommend_table import TableOptions, recommend_table

        columns = Columns(session=self.session, item=self.item, time=self.time)
        options = TableOptions(self.k, self.exclude_seen, self.format, columns, self.chunk)
        console = console_for(self.json)
        done = recommend_table(policy, self.input, out, options, console, force=self.force)
        if self.json:
            print_json(done.as_json())
            return
        skipped = f"; {done.unknown_items:,} of items not in the catalogue: skipped" if done.unknown_items else ""
        console.line(f"Written: {out}, {done.sessions:,} sessions of {done.events:,} events{skipped}")


@dataclass(frozen=True)
class Options:
    """List every option of a run with its value under a preset and what it means, as TOML."""

    algorithm: str = "sl"
    """The learner: sl, dqn, pg, sl+dqn, sl+pg, sdac, sc, sr, pc, dc or re."""
    backbone: Annotated[str | None, unset("NAME")] = None
    """The backbone; by default the preset's."""
    preset: Literal["strong", "paper"] = "strong"
    """The preset."""

    def run(self) -> None:
        from offrec.runs.option_text import describe_options
        from offrec.runs.options import resolve_options

        flat = {"algorithm.name": self.algorithm, "preset": self.preset}
        flat |= {"network.backbone": self.backbone} if self.backbone else {}
        print(describe_options(resolve_options(flat, "events")), end="")
