"""`offrec train`, `recommend` and `options`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from offrec.commands.printing import (
    console_for,
    print_json,
    print_table,
    registered,
    registered_names,
    significant,
    split_ids,
    unset,
)
from offrec.console import Console
from offrec.errors import InputError, RunError

if TYPE_CHECKING:
    from offrec.policy import Id, Policy


@dataclass(frozen=True)
class Train:
    """Train a policy on a dataset. Ctrl-C saves the run; --resume continues it exactly where it stopped.

    Example: offrec train data/retailrocket --backbone gru --out runs/sl --set training.epochs=10
    """

    dataset: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")]
    """Dataset folder written by `offrec prepare`."""
    out: Path
    """Run folder: options, metrics.jsonl, best and last checkpoint."""
    algorithm: Annotated[str | None, registered("learner", "The learner; by default sl. One of")] = None
    backbone: Annotated[
        str | None, registered("backbone", "The backbone; by default gru, with --preset paper cfn. One of")
    ] = None
    preset: Annotated[Literal["strong", "paper"] | None, unset("strong|paper")] = None
    """`strong` (the default) works well on most logs; `paper` uses the paper's settings (those of Xin et al. 2020)."""
    select: Annotated[Literal["ndcg", "reward", "value", "last"] | None, unset("ndcg|reward|value|last")] = None
    """Which checkpoint to keep: the one with the best validation NDCG@10, the best reward@10 (hits weighted by reward),
    the best value@5 (estimated value), or the last. The default depends on the learner."""
    config: Annotated[Path | None, unset("FILE")] = None
    """A TOML file with options of the run, such as the run.toml of another run. Flags and --set override it."""
    set: tuple[str, ...] = ()
    """An option by its dotted key; can be repeated: --set training.epochs=3 --set reward.cart=2. `offrec options
    --algorithm NAME` lists the options."""
    seed: Annotated[int | None, unset("INT")] = None
    """Seed of weights, batches and dropout; by default 0."""
    seeds: Annotated[str | None, unset("INTS")] = None
    """Several seeds, separated by commas. They are trained concurrently on one device, in --out/seed-0, …"""
    device: Annotated[str | None, unset("DEVICE")] = None
    """auto (the default), cpu, cuda, cuda:1, …"""
    from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")] = None
    """Start from the weights of this run instead of random ones; items are matched by id. Options that are not given
    are those of the run, with a shorter schedule."""
    logging_policy: Annotated[Path | None, unset("RUN")] = None
    """An SL run on the same dataset, with the same network, that serves as the logging policy instead of a new fit."""
    resume: bool = False
    """Continue the run in --out."""
    force: bool = False
    """Replace the run in --out."""
    track: tuple[Literal["auto", "tensorboard", "wandb", "mlflow", "none"], ...] = ()
    """Where to send the figures of each epoch, in addition to metrics.jsonl; can be repeated. auto (the default):
    TensorBoard, if it is installed; view it with tensorboard --logdir RUNS."""

    def run(self) -> None:
        from offrec.runs.train import train, train_many

        settings, console = self._settings(), Console()
        if self.seeds is None:
            train(
                self.dataset,
                self.out,
                settings=settings,
                start_from=self.from_,
                logging_policy=self.logging_policy,
                resume=self.resume,
                force=self.force,
                track=self.track,
                console=console,
            )
            console.line(f"Next: offrec evaluate {self.out}")
            return
        if "seed" in settings:
            raise InputError("--seeds sets the seeds; remove --seed, and seed from --set and --config.")
        if self.logging_policy is not None:
            raise InputError("--logging-policy serves one seed, but --seeds was given; use --seed.")
        runs = {f"seed-{seed}": {**settings, "seed": seed} for seed in self._seeds(self.seeds)}
        policies = train_many(
            self.dataset,
            runs,
            self.out,
            start_from=self.from_,
            resume=self.resume,
            force=self.force,
            track=self.track,
            console=console,
        )
        if len(policies) < len(runs):
            raise RunError(f"{len(runs) - len(policies)} of {len(runs)} runs failed.")
        console.line(f"Next: offrec evaluate {self.out}/{next(iter(runs))}")

    def _settings(self) -> dict[str, Any]:
        """Return all options under dotted keys: those of the file, overridden by --set and flags, which must agree."""
        from offrec.runs.option_errors import merge_flags
        from offrec.runs.option_text import parse_settings, read_toml

        file = read_toml(self.config) if self.config else {}
        file = {key: value for key, value in file.items() if key not in ("dataset", "out", "from")}
        if self.preset is not None and file.get("preset", self.preset) != self.preset:
            # The file may contain every option of a run, so another preset would change nothing.
            raise InputError(f"--preset is {self.preset}, but {self.config} has preset {file['preset']}; leave it out.")
        flags = {
            "--algorithm": ("algorithm.name", self.algorithm),
            "--backbone": ("network.backbone", self.backbone),
            "--preset": ("preset", self.preset),
            "--select": ("select", self.select),
            "--seed": ("seed", self.seed),
            "--device": ("device", self.device),
        }
        return {**file, **merge_flags(flags, parse_settings(self.set))}

    @staticmethod
    def _seeds(text: str) -> list[int]:
        try:
            seeds = [int(part) for part in text.split(",")]
        except ValueError:
            seeds = []
        if not seeds or len(set(seeds)) < len(seeds):
            raise InputError(f"--seeds must be distinct integers, such as 0,1,2; got {text!r}.")
        return seeds


@dataclass(frozen=True)
class Recommend:
    """Print the best items for a history, or write them for every session of a table. Items have the ids of the log.

    Examples: offrec recommend runs/sl --history 12,55,9 -k 10
              offrec recommend runs/sl --history 12,55,9 --new-items new.parquet
              offrec recommend runs/sl --input sessions.parquet --out recommendations.parquet -k 20 --allow stock.txt
    """

    run_: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="run", metavar="RUN")]
    """Run folder written by `offrec train`."""
    history: str = ""
    """Item ids, oldest first, separated by commas; empty for a new visitor."""
    shown: tuple[str, ...] = ()
    """A list that the visitor was shown, and the pick from it: --shown 12,55,9=55, or --shown 4,5,6 without a pick. May
    be repeated, oldest first. The user model learns from it; --history may be left out."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10
    """Number of items to recommend."""
    skip_recent: int = 0
    """Rank this many of the last items of the history below all other items."""
    exclude_seen: bool = False
    """Leave out the items of the history."""
    exclude: str = ""
    """Item ids to leave out, separated by commas."""
    candidates: Annotated[str | None, unset("IDS")] = None
    """Recommend only these item ids, separated by commas."""
    allow: Annotated[Path | None, unset("FILE")] = None
    """Recommend only the item ids in this file: one per line, or a JSON array in a .json file."""
    deny: Annotated[Path | None, unset("FILE")] = None
    """Leave out the item ids in this file."""
    new_items: Annotated[tuple[str, ...], unset("FILE [FILE …]")] = ()
    """Tables of items that the run has never seen, with the columns of `offrec prepare --items`. They are appended to
    the catalogue and scored by their features."""
    input: tuple[str, ...] = ()
    """A table with one event per row, as `prepare` reads it, sorted by session: one list per session is written. With
    --format decisions, each row is a list that was shown (`offered`), and `item` the pick from it or nothing."""
    out: Annotated[Path | None, unset("FILE")] = None
    """With --input: the file to write (.parquet, .csv, .tsv or .jsonl) with session, rank, item, score, probability."""
    chunk: int = 4096
    """With --input: the number of sessions in memory, in addition to a block of the table (16 MB of text, 262,144
    rows)."""
    format: Annotated[str, registered("format", "With --input: format of the table; by default events. One of")] = (
        "events"
    )
    session: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the session column (default: `session`, else `user`)."""
    item: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the item column (default: `item`)."""
    time: Annotated[str | None, unset("COLUMN")] = None
    """With --input: the column that orders events (default: `time`, else `position`, else the order of the file)."""
    offered: Annotated[str | None, unset("COLUMN")] = None
    """With --input and --format decisions: the column of lists that were shown (default: `offered`)."""
    force: bool = False
    """With --out: replace the file if it exists."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, …"""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.data.id_files import read_ids
        from offrec.policy import check_skip_recent
        from offrec.runs.loading import load

        if bool(self.input) != (self.out is not None):
            raise InputError("--input TABLE and --out FILE must be used together; give both or neither.")
        if self.input and (self.history or self.shown or self.exclude or self.candidates is not None):
            raise InputError(
                "--history, --shown, --exclude and --candidates are for one history; remove them or --input."
            )
        if self.allow is not None and self.candidates is not None:
            raise InputError("--allow and --candidates both name the items to choose from; remove one of them.")
        check_skip_recent(self.skip_recent)
        policy = load(self.run_, self.device, new_items=self.new_items or None)
        for sentence in policy.warnings if self.new_items else ():
            Console().line(f"Warning: {sentence}")
        allow = None if self.allow is None else read_ids(self.allow, "--allow")
        deny = [] if self.deny is None else read_ids(self.deny, "--deny")
        if self.out is not None:
            self._write_table(policy, self.out, allow, deny)
            return
        candidates = allow if self.candidates is None else split_ids(self.candidates)
        if allow is not None and not policy.vocabulary.encode(allow)[0]:
            raise InputError(f"--allow {self.allow} contains no item of the catalogue; give item ids of the log.")
        answer = policy.recommend(
            split_ids(self.history),
            self.k,
            skip_recent=self.skip_recent,
            exclude_seen=self.exclude_seen,
            exclude=[*split_ids(self.exclude), *deny],
            candidates=candidates,
            shown=[_parse_shown(text) for text in self.shown],
        )
        if self.json:
            print_json(answer.as_json())
            return
        if answer.unknown:
            one = answer.unknown == 1
            verb = "item of the history is" if one else "items of the history are"
            Console().line(f"{answer.unknown} {verb} not in the catalogue; ignored {'it' if one else 'them'}.")
        columns = ["", "item", *(["title"] if answer.titles else []), "score"]
        columns += ["probability"] if answer.probabilities else []
        rows = [
            [str(rank), str(item), significant(score, 4)]
            for rank, (item, score) in enumerate(zip(answer.items, answer.scores, strict=True), 1)
        ]
        for row, title in zip(rows, answer.titles or [], strict=False):
            row.insert(2, title or "")
        for row, probability in zip(rows, answer.probabilities or [], strict=False):
            row.append(f"{significant(100 * probability)} %")
        after = f"{len(self.shown)} lists" if self.shown else self.history or "an empty history"
        print_table(f"{policy.name} after {after}", columns, rows)

    def _write_table(self, policy: "Policy", out: Path, allow: "list[Id] | None", deny: "list[Id]") -> None:
        from offrec.data.formats import Columns
        from offrec.serving.recommend_table import TableOptions, write_recommendations

        columns = Columns(session=self.session, item=self.item, time=self.time, offered=self.offered)
        options = TableOptions(
            self.k, self.exclude_seen, self.skip_recent, self.format, columns, self.chunk, allow, deny
        )
        console = console_for(self.json)
        done = write_recommendations(policy, self.input, out, options, console, force=self.force)
        if self.json:
            print_json(done.as_json())
            return
        ignored = f"; {done.unknown_items:,} events with unknown items ignored" if done.unknown_items else ""
        console.line(f"Written: {out}, {done.sessions:,} sessions with {done.events:,} events{ignored}.")


def _parse_shown(text: str) -> tuple[list[str], str | None]:
    """Read a value of --shown: the items of a list, and the pick after =."""
    items, equals, pick = text.rpartition("=")
    return (split_ids(items), pick.strip() or None) if equals else (split_ids(text), None)


@dataclass(frozen=True)
class Options:
    """Print every option of a run as TOML, with its value in a preset, its help text and its bounds.

    Example: offrec options --algorithm dc --preset paper
    """

    algorithm: Annotated[str, registered("learner", "The learner; by default sl. One of")] = "sl"
    backbone: Annotated[str | None, registered("backbone", "The backbone; by default the preset's. One of")] = None
    preset: Literal["strong", "paper"] = "strong"
    """The preset."""
    names: bool = False
    """Print the names of all learners, backbones, baselines, formats and metrics instead, with those of plug-ins."""

    def run(self) -> None:
        from offrec.runs.option_text import describe_options
        from offrec.runs.options import resolve_options

        if self.names:
            print(registered_names())
            return
        settings = {"algorithm.name": self.algorithm, "preset": self.preset}
        settings |= {"network.backbone": self.backbone} if self.backbone else {}
        print(describe_options(resolve_options(settings, "events")), end="")
