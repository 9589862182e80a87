"""Time one epoch of offrec. Needs offrec; run by run.py.

The epoch equals those of the other libraries, except that offrec also predicts the first event of each session.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import peerlog
import torch

import offrec
from offrec.console import Advance, Console


class Clock(Console):
    """Times the steps of an epoch as the trainer reports them, without validation and checkpoints."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.seconds, self.updates, self.before = 0.0, 0, 0.0

    @contextmanager
    def steps(self, label: str, total: int) -> Iterator[Advance]:
        if not label.startswith("epoch"):
            with super().steps(label, total) as advance:
                yield advance
            return
        self.before = peerlog.resident()
        started = time.perf_counter()
        with super().steps(label, total) as advance:
            yield advance
        self.seconds += time.perf_counter() - started
        self.updates += total


def main() -> None:
    parser = peerlog.options(__doc__)
    parser.add_argument("--algorithm", default="sl")
    parser.add_argument("--backbone", default="sasrec")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings, as in `offrec train`"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings: dict[str, object] = {
        "network.width": options.width,
        "network.layers": options.layers,
        "network.heads": options.heads,
        "network.dropout": options.dropout,
        "network.history": options.history,
        "training.epochs": 1,
        "training.batch_size": options.batch,
        "training.learning_rate": options.rate,
        "diagnostics": "some",
    }
    settings |= dict(pair.split("=", 1) for pair in options.set)
    clock = Clock()
    offrec.train(
        options.dataset,
        options.work / "run",
        algorithm=options.algorithm,
        backbone=options.backbone,
        device="cpu",
        settings=settings,
        console=clock,
    )
    log, whole = peerlog.read(options.dataset), peerlog.read(options.dataset, "whole")
    peerlog.report(
        seconds=clock.seconds,
        updates=clock.updates,
        events=log.events,
        epoch_events=whole.events,
        before=clock.before,
    )


if __name__ == "__main__":
    main()
