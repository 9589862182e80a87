"""Several runs at once in one process: small models leave a GPU idle, and a study has many of them.

Each run has its own random state, stream and captured updates, so it is the run it would be alone; on a CPU bit for
bit.
"""

from collections.abc import Callable, Mapping

from offrec.errors import InputError, Interrupted, RunError
from offrec.training.loop import Trainer, stop_requests

TURN = 8  # updates of one run before the next run's turn


def together(trainers: Mapping[str, Trainer], failed: Callable[[str, Exception], None]) -> list[str]:
    """Train all of them, turn by turn. A run that fails is told to `failed`, and the others go on; the names of those
    that did not fail come back. A stop request stops all of them, each saved.
    """
    done: list[str] = []
    stopped: list[str] = []
    with stop_requests() as stop:
        going = {name: trainer.steps(stop) for name, trainer in trainers.items()}
        while going:
            for name in list(going):
                try:
                    with trainers[name].turn():
                        finished = not all(next(going[name], name) is None for _ in range(TURN))
                    if not finished:
                        continue
                    done.append(name)
                except Interrupted:
                    stopped.append(name)
                except (InputError, RunError, RuntimeError, MemoryError, OSError) as error:
                    failed(name, error)
                del going[name]
    for trainer in trainers.values():
        trainer.isolation.finish()
    if stopped:
        raise Interrupted(
            f"Stopped {', '.join(stopped)}; all of it is saved, and the same command with --resume goes on."
        )
    return done
