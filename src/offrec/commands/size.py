"""`offrec size`: what a catalogue of a given size needs, before there is a dataset."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from offrec.commands.printing import print_json, print_table, registered, split_ids, unset
from offrec.errors import InputError


@dataclass(frozen=True)
class Size:
    """Print the memory per rank, the messages between ranks and the expected time of training, for any catalogue.

    Memory is exact, apart from that of an update, and needs no dataset. The log and validation batches come on top:
    `offrec train` prints them. Times are for one NVIDIA H200 and contain no messages.

    Example: offrec size --items 10000000 --algorithms sl,dc --catalogue-ranks 4
    """

    items: int
    """Items in the catalogue."""
    algorithms: Annotated[str, registered("learner", "Learners, separated by commas; by default sl", "NAMES")] = "sl"
    backbone: Annotated[str | None, registered("backbone", "The backbone; by default the preset's. One of")] = None
    preset: Literal["strong", "paper"] = "strong"
    """Preset of the options."""
    set: tuple[str, ...] = ()
    """An option of the run, such as network.width=128. Can be repeated."""
    catalogue_ranks: int = 1
    """Ranks that together store the catalogue, as for `offrec train`."""
    data_ranks: int = 1
    """Groups of ranks that read different sessions."""
    session_length: int = 5
    """Events per session, about."""
    list_length: int = 10
    """Items per list, for user-model."""
    events: Annotated[int | None, unset("N")] = None
    """Training events, for the expected time of an epoch."""
    json: bool = False
    """Print JSON."""

    def run(self) -> None:
        from offrec.runs.option_text import parse_settings
        from offrec.runs.options import resolve_options
        from offrec.runs.sizing import Ranks, RunSize, batch_size_of, size_of_run

        if self.events is not None and self.events < 1:
            raise InputError(f"--events must be at least 1; got {self.events}.")
        ranks = Ranks(self.catalogue_ranks, self.data_ranks)
        rows = list[tuple[RunSize, float | None]]()
        algorithms = split_ids(self.algorithms)
        if not algorithms:
            raise InputError("--algorithms names no learner; give names separated by commas, such as sl,dc.")
        for algorithm in algorithms:
            settings: dict[str, Any] = {"algorithm.name": algorithm, "preset": self.preset, **parse_settings(self.set)}
            settings |= {"network.backbone": self.backbone} if self.backbone else {}
            options = resolve_options(settings, "events")
            size = size_of_run(options, self.items, ranks, self.session_length, self.list_length)
            seconds = None
            if self.events is not None and size.milliseconds is not None:
                seconds = self.events / batch_size_of(options) * size.milliseconds / 1000
            rows.append((size, seconds))
        if self.json:
            print_json([size.as_json() | {"seconds_per_epoch": seconds} for size, seconds in rows])
        else:
            self._print(rows)

    def _print(self, sizes: list[Any]) -> None:
        from offrec.training.memory import size as text

        first = sizes[0][0]
        ranks = self.catalogue_ranks * self.data_ranks
        title = f"{self.items:,} items, width {first.width}, {ranks:,} rank{'s' * (ranks > 1)}: per rank"
        parts = ("item_tables", "networks", "frozen", "gradients", "optimiser", "update", "total")
        lines = [[part.replace("_", " "), *(text(getattr(size, part)) for size, _ in sizes)] for part in parts]
        weights = [f"{size.trained_per_item} + {size.frozen_per_item} frozen" for size, _ in sizes]
        lines.append(["weights per item", *weights])
        for name in ("catalogue", "data"):
            sent = [text(getattr(size, f"sent_in_{name}_group")) for size, _ in sizes]
            lines.append([f"sent per update, {name} group", *sent])
        estimated = ["" if size.is_measured else " (extrapolated)" for size, _ in sizes]
        times = [
            "not measured" if size.milliseconds is None else f"{size.milliseconds:.3g} ms{mark}"
            for (size, _), mark in zip(sizes, estimated, strict=True)
        ]
        lines.append(["time per update", *times])
        if self.events is not None:
            lines.append(["time per epoch", *("not measured" if one is None else f"{one:,.3g} s" for _, one in sizes)])
        print_table(title, ["", *(size.algorithm for size, _ in sizes)], lines)
