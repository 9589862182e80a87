"""Time a few updates of d3rlpy's learners for discrete actions; each item is an action. Run by run.py.

Needs requirements-d3rlpy.txt. d3rlpy has no sequence encoder for these learners. An observation is the mean of fixed
random vectors of the last `history` items (zeros if there are none), with the width of offrec's states, followed by two
hidden layers of that width.
"""

import time

import d3rlpy
import numpy as np
import peerlog
import torch
from numpy.typing import NDArray

REWARD = 0.2  # of a view


def observations(log: peerlog.Log, width: int, history: int) -> NDArray[np.float32]:
    """Return the observation before each event, [E, width]; a window's sum is the difference of two running sums."""
    vectors = np.random.default_rng(0).standard_normal((log.n_items, width), dtype=np.float32)
    total = np.zeros((log.events + 1, width))
    np.cumsum(vectors[log.items], axis=0, dtype=np.float64, out=total[1:])
    here = np.arange(log.events)
    begin = np.maximum(np.repeat(log.offsets[:-1], log.lengths), here - history)
    count = np.maximum(here - begin, 1)
    return ((total[here] - total[begin]) / count[:, None]).astype(np.float32)


def replay(log: peerlog.Log, width: int, history: int) -> d3rlpy.dataset.MDPDataset:
    terminals = np.zeros(log.events, dtype=np.float32)
    terminals[log.offsets[1:] - 1] = 1
    return d3rlpy.dataset.MDPDataset(
        observations=observations(log, width, history),
        actions=log.items[: log.events, None],
        rewards=np.full((log.events, 1), REWARD, dtype=np.float32),
        terminals=terminals,
        action_space=d3rlpy.ActionSpace.DISCRETE,
        action_size=log.n_items,
    )


def learner(name: str, width: int, batch: int, rate: float) -> d3rlpy.algos.QLearningAlgoBase:
    encoder = d3rlpy.models.VectorEncoderFactory(hidden_units=[width, width])
    if name == "DiscreteSAC":
        return d3rlpy.algos.DiscreteSACConfig(
            batch_size=batch,
            gamma=0.5,
            actor_learning_rate=rate,
            critic_learning_rate=rate,
            actor_encoder_factory=encoder,
            critic_encoder_factory=encoder,
        ).create(device="cpu")
    config = getattr(d3rlpy.algos, f"{name}Config")
    return config(batch_size=batch, gamma=0.5, learning_rate=rate, encoder_factory=encoder).create(device="cpu")


def main() -> None:
    parser = peerlog.options(__doc__)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--learner", default="DiscreteSAC", help="DiscreteSAC, DiscreteCQL, DiscreteBCQ, DQN, …")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    log, whole = peerlog.read(options.dataset), peerlog.read(options.dataset, "whole")
    dataset = replay(log, options.width, options.history)
    algorithm = learner(options.learner, options.width, options.batch, options.rate)
    algorithm.build_with_dataset(dataset)
    ends: list[float] = []
    before, started = peerlog.resident(), time.perf_counter()
    algorithm.fit(
        dataset,
        n_steps=options.updates,
        n_steps_per_epoch=options.updates,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
        callback=lambda *_: ends.append(time.perf_counter()),
    )
    peerlog.report(
        seconds=ends[-1] - started,
        updates=options.updates,
        events=options.updates * options.batch,
        epoch_events=whole.events,
        before=before,
    )


if __name__ == "__main__":
    main()
