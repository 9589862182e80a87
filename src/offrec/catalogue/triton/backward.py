"""The backward pass: what each row's gradient comes to, then the tables' gradients, and those of picked items."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from offrec.catalogue.triton import backward_kernel, row_kernels
from offrec.catalogue.triton.forward import ROWS, Few, Plan, arguments, constants
from offrec.catalogue.triton.launch import Blocks, fitted, pairs_of, power

FACTORS = 5  # numbers a row that say how an item's gradient hangs on its weight


def rows_gradients(
    plan: Plan,
    parts: Sequence[Any],
    extras: tuple[Any, ...],
    few: Few,
    given: tuple[Any, ...],
    found: Tensor,
    expected: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, list[Tensor | None], list[Tensor | None]]:
    """Factors [5, B] as the kernel has them; the gradients of the states and of the slots' values."""
    n_rows, device = found.shape[1], found.device
    factors = torch.empty(FACTORS, n_rows, device=device)
    states = [torch.empty(parts[3 * i].shape, device=device) if wanted[i] else None for i in range(3)]
    learned = few.values[: plan.learned]
    slots: list[Tensor | None] = [torch.empty_like(values) for values in learned]
    placeholders = [part if part is not None else factors for part in (*states, *slots, *[None] * (3 - len(slots)))]
    gradients = [factors if g is None else g for g in given]
    row_kernels.spread[(triton.cdiv(n_rows, ROWS),)](
        *gradients, *(g.stride(-1) for g in gradients), found, expected, *few.arguments(found, 3),
        *(part if part is not None else found for part in extras), *plan.coefficients, factors,
        *placeholders, *arguments(parts, 3)[9:], n_rows, len(parts[1]), few.n, plan.scale, plan.temperature,
        OF_LSE=given[0] is not None, OF_MEAN=given[1] is not None, OF_MASS=given[2] is not None,
        SLOTS=few.room, HEADS=plan.learned, LINEAR=plan.linear, BELOW=plan.below, NOISE=plan.noise,
        DIRECT=plan.direct, V0=wanted[0], V1=wanted[1], V2=wanted[2], DM=expected.shape[2], BM=ROWS, num_warps=4,
    )  # fmt: skip
    return factors, states, slots + [None] * (len(few.values) - len(slots))


@dataclass(frozen=True)
class Left:
    """What a backward pass leaves to do: the tables' gradients, on which nothing but the optimiser waits."""

    plan: Plan
    parts: Sequence[Any]
    extras: tuple[Any, ...]
    few: Few
    lse: Tensor
    factors: Tensor
    given: tuple[Any, ...]
    picked: tuple[Tensor, Tensor, Tensor, bool] | None  # gradients [B, n], actions [B, n], exact states; in the kernel?

    def gradients(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Of each wanted head's table and bias."""
        self._hold()
        found: list[Tensor | None] = []
        for i, want in enumerate(wanted):
            found += self._of(i) if want else [None, None]
        return found

    def _of(self, which: int) -> list[Tensor | None]:
        picked = self.picked if which == 0 else None
        picks = None if picked is None or not picked[3] else (picked[1].contiguous(), picked[0].contiguous())
        made = table_gradients(
            self.plan, which, self.parts, self.extras, self.few, self.lse, self.factors, picks, self.given
        )
        found: list[Tensor | None] = [None, *made]
        if picked is not None:
            g_picked, actions, exact, inside = picked
            add_picked(found, g_picked, actions, [exact, self.parts[1]], in_kernel=inside)
        return found[1:]

    def _hold(self) -> None:
        """The memory is another stream's, which may not use it again while this one reads."""
        tensors = (*self.parts, *self.extras, *self.few.tensors, self.lse, self.factors, *self.given)
        for tensor in (*tensors, *(self.picked or ())):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))


def table_gradients(
    plan: Plan,
    which: int,
    parts: Sequence[Any],
    extras: tuple[Any, ...],
    few: Few,
    lse: Tensor,
    factors: Tensor,
    picks: tuple[Tensor, Tensor] | None,
    given: tuple[Any, ...],
) -> tuple[Tensor, Tensor | None]:
    """Of one head's table and bias."""
    state, table, bias = parts[3 * which : 3 * which + 3]
    to_table, to_bias = torch.empty_like(table), torch.empty(len(table), device=table.device)
    turned = table.dtype == torch.float32
    sources = state.T.contiguous() if turned else state
    linear, below = plan.linear and given[1] is not None, plan.below if given[2] is not None else -1
    compiled = constants(plan, parts, 3) | {
        "HEADS": plan.learned, "LINEAR": linear and which == 0, "BELOW": -1 if which else below, "NOISE": plan.noise,
        "EXCLUDED": few.n > 0, "WHICH": which, "TO_BIAS": bias is not None,
        "PICKED": picks[0].shape[1] if picks else 0, "TURNED": turned, "DW": power(table.shape[1]),
    }  # fmt: skip

    def launch(size: Blocks) -> None:
        n_tiles = triton.cdiv(len(table), size.items)
        pairs = pairs_of(few.items, len(table), size, state, few.ahead)
        backward_kernel.backward_table[(n_tiles,)](
            *arguments(parts, 3), *plan.coefficients, *(part if part is not None else lse for part in extras),
            pairs.edges, pairs.row, pairs.item, lse, factors[which + 2 if which else 0], factors[1], factors[2],
            *(picks or (pairs.row, pairs.row)), sources, to_table, to_bias,
            len(state), len(table), n_tiles, plan.scale, **compiled, **size.constants,
        )  # fmt: skip

    fitted("backward", plan.back, state, compiled, launch)
    return to_table, None if bias is None else to_bias


def add_picked(
    gradients: list[Tensor | None], g_picked: Tensor, actions: Tensor, parts: Sequence[Any], in_kernel: bool
) -> None:
    """What comes from the values at actions, added to π's gradients in place: no second table of zeros."""
    state, table = parts[0], parts[1]
    if gradients[0] is not None:
        gradients[0] = gradients[0] + (g_picked[..., None] * table[actions].float()).sum(1)
    if in_kernel:
        return
    flat = actions.reshape(-1)
    if gradients[1] is not None:
        moves = (g_picked[..., None] * state.float()[:, None]).reshape(-1, state.shape[1])
        if table.dtype != torch.float32:
            flat, moves = _summed_by_item(flat, moves)
        gradients[1].index_add_(0, flat, moves.to(table.dtype))
    if gradients[2] is not None:
        gradients[2].index_add_(0, actions.reshape(-1), g_picked.reshape(-1))


def _summed_by_item(items: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Moves of one item summed in float32, in one place, zeros in its others: bfloat16 then rounds only once."""
    items, order = items.sort()
    place = torch.searchsorted(items, items)
    return items, torch.zeros_like(moves).index_add_(0, place, moves[order])
