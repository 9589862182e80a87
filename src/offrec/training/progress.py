"""The progress of a run, which its checkpoints and metrics.jsonl store."""

import zlib
from dataclasses import dataclass, field
from pathlib import Path

from offrec.data.regular_files import check_regular
from offrec.data.schema import Anything, Number, Table, schema_of
from offrec.errors import InputError
from offrec.training import checkpoint


@dataclass
class Progress:
    """Progress of a run: all values in its checkpoint that are not tensors."""

    epoch: int = 0  # epochs completed
    step: int = 0  # within the current epoch
    updates: int = 0  # in all epochs
    best: float = 0.0  # the best validation figure
    best_epoch: int = -1  # counted from 0; −1 before the first validation, or if the weights at the start are best
    start_validated: bool = False  # whether the weights at the start were validated
    since_best: int = 0  # epochs without a clear improvement
    finished: bool = False
    stopped_early: bool = False  # whether early stopping ended the run before `TrainingOptions.epochs`
    log_bytes: int = 0  # length of metrics.jsonl at the time of the checkpoint
    log_crc32: int = 0  # checksum of metrics.jsonl at the time of the checkpoint
    sums: dict[str, float] = field(default_factory=dict)  # of the loss terms in this epoch
    warnings: dict[str, str] = field(default_factory=dict)  # of the best epoch, by condition
    suspected: list[str] = field(default_factory=list)  # conditions of the previous epoch
    warned: list[str] = field(default_factory=list)  # conditions that were printed


FACTS = Table({"progress": schema_of(Progress)}, {"rate": Number(0.0)}, Anything())  # of a checkpoint


def verify_last_checkpoint(folder: Path) -> None:
    """Raise InputError if last.safetensors or the epochs before it in metrics.jsonl are damaged."""
    _, facts = checkpoint.load(folder / "last.safetensors")
    problem = FACTS.problem(facts, "")
    if problem is not None:
        raise InputError(f"{folder}/last.safetensors is damaged: {problem}; train the run again.")
    verify_log(folder, Progress(**facts["progress"]))


def verify_log(folder: Path, progress: Progress) -> None:
    """Raise InputError if the epochs before a checkpoint are not in metrics.jsonl as they were written."""
    path = folder / "metrics.jsonl"
    try:
        check_regular(path)
        with path.open("rb") as log:
            content = log.read(progress.log_bytes)
        if len(content) < progress.log_bytes or zlib.crc32(content) != progress.log_crc32:
            raise ValueError("its checksum does not match")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} is damaged ({reason}); train the run again.") from error
