"""`offrec recommend`."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from offrec.commands.engines import EngineName, RayOptions
from offrec.commands.printing import console_for, print_json, print_table, registered, significant, split_ids, unset
from offrec.console import Console
from offrec.errors import InputError

if TYPE_CHECKING:
    from offrec.policy import Id, Policy
    from offrec.scale.ray_engine import RayEngine


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
    be repeated, oldest first. The user model learns from it; --history may be left out. Unknown items are ignored with
    a warning, here and in --candidates and --exclude."""
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
    """With --input: the file to write (.parquet, .csv, .tsv or .jsonl) with session, rank, item, score, probability
    and, if the items have titles, title. A name without a suffix is a folder with one Parquet file per file of the
    input."""
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
    engine: EngineName = "local"
    """With --input and a folder as --out: where files are processed. `ray`: on a Ray cluster, whose machines have the
    run, the input and the folder."""
    ray: Annotated[RayOptions, tyro.conf.arg(name="")] = field(default_factory=RayOptions)
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
        if self.engine == "ray" and (self.out is None or self.out.suffix):
            raise InputError("--engine ray needs --input TABLE and --out FOLDER, a name without a suffix.")
        check_skip_recent(self.skip_recent)
        engine = self.ray.connect(self.engine)
        policy = load(self.run_, self.device, new_items=self.new_items or None)
        for sentence in policy.warnings if self.new_items else ():
            Console().line(f"Warning: {sentence}")
        allow = None if self.allow is None else read_ids(self.allow, "--allow")
        deny = [] if self.deny is None else read_ids(self.deny, "--deny")
        if self.out is not None:
            self._write_table(policy, self.out, allow, deny, engine)
            return
        exclude, shown = split_ids(self.exclude), [_parse_shown(text) for text in self.shown]
        named = None if self.candidates is None else _parse_items("--candidates", self.candidates)
        candidates = allow if named is None else named
        if allow is not None and not policy.vocabulary.encode(allow)[0]:
            raise InputError(f"--allow {self.allow} contains no item of the catalogue; give item ids of the log.")
        answer = policy.recommend(
            split_ids(self.history),
            self.k,
            skip_recent=self.skip_recent,
            exclude_seen=self.exclude_seen,
            exclude=[*exclude, *deny],
            candidates=candidates,
            shown=shown,
        )
        parts = {
            "candidates": named or [],
            "exclude": exclude,
            "shown": [item for items, _ in shown for item in items],
        }
        unknown = {name: policy.vocabulary.encode(items)[1] for name, items in parts.items()}
        for name, count in unknown.items():
            if count:
                verb, them = ("is", "it") if count == 1 else ("are", "them")
                found = f"{count} of {len(parts[name])} items {verb} not in the catalogue"
                console_for(self.json).line(f"Warning: --{name}: {found}; ignored {them}.")
        if self.json:
            print_json(answer.as_json() | {f"unknown_{name}": count for name, count in unknown.items()})
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
        after = (
            f"{len(self.shown)} list{'s' * (len(self.shown) > 1)}" if self.shown else self.history or "an empty history"
        )
        print_table(f"{policy.name} after {after}", columns, rows)

    def _write_table(
        self, policy: "Policy", out: Path, allow: "list[Id] | None", deny: "list[Id]", engine: "RayEngine | None"
    ) -> None:
        from offrec.data.formats import Columns
        from offrec.serving.recommend_parts import write_parts
        from offrec.serving.recommend_table import TableOptions, write_recommendations

        columns = Columns(session=self.session, item=self.item, time=self.time, offered=self.offered)
        options = TableOptions(
            self.k, self.exclude_seen, self.skip_recent, self.format, columns, self.chunk, allow, deny
        )
        console = console_for(self.json)
        if out.suffix:
            done = write_recommendations(policy, self.input, out, options, console, force=self.force)
        else:
            device = self.ray.device(self.device)
            new_items = tuple(str(Path(one).resolve()) for one in self.new_items)
            load = partial(_load_run, self.run_.resolve(), device, new_items)
            done = write_parts(policy, self.input, out, options, console, force=self.force, engine=engine, load=load)
        if self.json:
            print_json(done.as_json())
            return
        ignored = f"; {done.unknown_items:,} events with unknown items ignored" if done.unknown_items else ""
        console.line(f"Written: {out}, {done.sessions:,} sessions with {done.events:,} events{ignored}.")


def _load_run(run: Path, device: str, new_items: tuple[str, ...]) -> "Policy":
    """Load a run on another machine."""
    from offrec.runs.loading import load

    return load(run, device, new_items=new_items or None)


def _parse_shown(text: str) -> tuple[list[str], str | None]:
    """Read a value of --shown: the items of a list, and the pick after =."""
    listed, equals, pick = text.rpartition("=") if "=" in text else (text, "", "")
    items = [] if equals and pick.strip() and not listed.strip() else _parse_items("--shown", listed)  # a pick alone
    return items, pick.strip() or None


def _parse_items(flag: str, text: str) -> list[str]:
    """Split text at commas into different item ids."""
    items = [part.strip() for part in text.split(",")]
    if not all(items):
        raise InputError(f"{flag} must be item ids separated by commas, such as 12,55,9; got {text!r}.")
    if repeated := [item for item in items if items.count(item) > 1]:
        raise InputError(f"{flag} {text!r} contains the item {repeated[0]!r} twice; name each item once.")
    return items
