"""Train several runs in turns in one process. A small model leaves most of a GPU idle, and a study trains many.

Each run has its own random state, stream and captured updates, so it gives the same results as if it were trained
alone; on a CPU they are identical bit for bit.
"""

from collections.abc import Callable, Mapping

from offrec.errors import InputError, Interrupted, RunError
from offrec.training.loop import Trainer
from offrec.training.stop_requests import stop_requests

TURN = 8  # updates per turn of a run


def train_interleaved(trainers: Mapping[str, Trainer], failed: Callable[[str, Exception], None]) -> list[str]:
    """Train all runs in turns.

    Args:
        trainers: The runs by name.
        failed: Called with the name and the exception of a run that fails; the others continue.

    Returns:
        The names of the runs that finished.

    Raises:
        Interrupted: If a stop was requested; every unfinished run is saved.
    """
    finished: list[str] = []
    stopped: list[str] = []
    with stop_requests() as stop:
        active = {name: trainer.steps(stop) for name, trainer in trainers.items()}
        while active:
            for name in list(active):
                try:
                    with trainers[name].active():
                        if all(next(active[name], name) is None for _ in range(TURN)):
                            continue
                    finished.append(name)
                except Interrupted:
                    stopped.append(name)
                except (InputError, RunError, RuntimeError, MemoryError, OSError) as error:
                    failed(name, error)
                del active[name]
                trainers[name].close()
    if stopped:
        raise Interrupted(f"Stopped {', '.join(stopped)}; everything is saved. Run the command with --resume to go on.")
    return finished
