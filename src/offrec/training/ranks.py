"""The processes that train one run: which of them store the same items, and which read the same sessions.

A world of N ranks consists of D = N / C groups of C ranks. The C ranks of a catalogue group compute the same rows, and
each stores a C-th of the items. The D groups read different sessions. The ranks with the same items, one in each group,
form a data group, which sums the gradients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from offrec.catalogue.shard import Shard, batch_group, sum_all
from offrec.errors import InputError
from offrec.types import Sessions

T = TypeVar("T")
LARGE = 1 << 20  # numbers; larger gradients are sent without being copied into one message


@dataclass(frozen=True)
class Ranks:
    """This process among those that train a run.

    Args:
        rank: Its number in the world.
        world: N, the number of processes.
        catalogue_ranks: C, the number of processes that together store the catalogue. It divides N.
        catalogue_group: The process group of the C ranks that compute the same rows.
        data_group: The process group of the N / C ranks that store the same items.
        control_group: A process group of all ranks for Python objects and flags on the host.
    """

    rank: int
    world: int
    catalogue_ranks: int
    catalogue_group: Any
    data_group: Any
    control_group: Any

    @staticmethod
    def create(catalogue_ranks: int | None = None) -> "Ranks":
        """Create the groups of the initialised world. All ranks must call it.

        Args:
            catalogue_ranks: C; None for all ranks.

        Raises:
            InputError: If C does not divide the number of ranks.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        count = world if catalogue_ranks is None else catalogue_ranks
        if count < 1 or world % count:
            raise InputError(f"--catalogue-ranks must divide the {world} processes that torchrun started; got {count}.")
        on_host = dist.get_backend() == "gloo"
        catalogue = [dist.new_group(list(range(first, first + count))) for first in range(0, world, count)]
        data = [dist.new_group(list(range(index, world, count))) for index in range(count)]
        control = dist.group.WORLD if on_host else dist.new_group(backend="gloo")
        # A rank that refuses its options and ends at once would break the connections that others still make.
        dist.barrier(group=control)
        return Ranks(rank, world, count, catalogue[rank // count], data[rank % count], control)

    @property
    def is_leader(self) -> bool:
        """Whether this rank writes the files that are not sharded, and prints."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """The device of tensors in messages."""
        return torch.device("cpu" if dist.get_backend(self.data_group) == "gloo" else "cuda")

    @property
    def catalogue_index(self) -> int:
        """The number of this rank in its catalogue group."""
        return self.rank % self.catalogue_ranks

    @property
    def data_ranks(self) -> int:
        """D, the number of groups that read different sessions."""
        return self.world // self.catalogue_ranks

    @property
    def data_index(self) -> int:
        """The number of this rank's group."""
        return self.rank // self.catalogue_ranks

    def shard(self, n_items: int) -> Shard | None:
        """Return the items that this rank stores; None if it stores all."""
        if self.catalogue_ranks == 1:
            return None
        return Shard(n_items, self.catalogue_index, self.catalogue_ranks, self.catalogue_group)

    def from_leader(self, value: T | None) -> T:
        """Return the leader's value on all ranks."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.control_group)
        received = values[0]
        assert received is not None
        return received

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=self.control_group)
        return values

    def gather_data(self, value: T) -> list[T]:
        """Return one value per group that reads different sessions, in their order."""
        return self.gather(value)[:: self.catalogue_ranks] if self.data_ranks > 1 else [value]

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set on any rank."""
        number = torch.tensor(float(flag))
        dist.all_reduce(number, group=self.control_group)
        return bool(number > 0)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.any(False)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let means over a batch include the rows of all data ranks inside a `with` block."""
        with batch_group(self.data_group if self.data_ranks > 1 else None):
            yield

    def reduce_gradients(self, parameters: Sequence[nn.Parameter], is_sharded: set[int]) -> None:
        """Sum gradients over the groups that read different sessions.

        On a GPU, gradients of replicated parameters are also averaged over the ranks that compute the same rows. They
        are equal in exact arithmetic, but kernels may sum in another order on each rank.

        Args:
            parameters: The trained parameters.
            is_sharded: The ids of those that differ between the ranks of a catalogue group.
        """
        gradients = [one.grad for one in parameters if one.grad is not None]
        ids = [id(one) for one in parameters if one.grad is not None]
        if self.data_ranks > 1:
            _sum_in_place(gradients, self.data_group)
        if self.catalogue_ranks > 1 and any(one.is_cuda for one in gradients):
            replicated = [one for one, number in zip(gradients, ids, strict=True) if number not in is_sharded]
            _sum_in_place(replicated, self.catalogue_group)
            torch._foreach_div_(replicated, float(self.catalogue_ranks))

    def own_sessions(self, sessions: Sessions) -> tuple[int, int]:
        """Return the range of a split's sessions that this rank reads; ranges have about equally many events."""
        offsets = sessions.offsets
        edges = [
            int(offsets.searchsorted(offsets[0] + sessions.events * index // self.data_ranks))
            for index in range(self.data_ranks + 1)
        ]
        edges[0], edges[-1] = 0, len(sessions)
        return edges[self.data_index], edges[self.data_index + 1]


def _sum_in_place(tensors: list[Tensor], group: Any) -> None:
    small = [one for one in tensors if one.numel() < LARGE]
    for one in tensors:
        if one.numel() >= LARGE:
            dist.all_reduce(one, group=group)
    for one, total in zip(small, sum_all(small, group) if small else [], strict=True):
        one.copy_(total)
