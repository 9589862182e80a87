"""Adam, and a smaller optimiser for the item tables of very large catalogues.

Steps can be captured as CUDA graphs: counts and rates are tensors on the device, so no step synchronises with it.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

TableState = Literal["full", "rowwise"]
Tensors = dict[str, Tensor]

BETAS, EPSILON = (0.9, 0.999), 1e-8
CHUNK = 1 << 22  # table elements updated at a time


class Adam:
    """Adam by PyTorch's fused kernel, which is at least three times faster than separate operations, also on a CPU.

    It takes the same steps as `torch.optim.Adam(fused=True)`, which imports torch._dynamo when it is created: seconds
    before the first update. A parameter without a gradient is not updated and has no state.

    Args:
        parameters: What to train, all on one device.
        rate: Learning rate; a tensor on a GPU, which captured steps read.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], rate: Tensor | float) -> None:
        self.parameters, self.rate = list(parameters), rate
        self.state: dict[int, Tensors] = {}  # by index of the parameter

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters."""
        trained = [(index, one) for index, one in enumerate(self.parameters) if one.grad is not None]
        if not trained:
            return
        for index, parameter in trained:
            if index not in self.state:
                count = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                self.state[index] = {"step": count, **moments}
        counts, first, second = (
            [self.state[index][key] for index, _ in trained] for key in ("step", "exp_avg", "exp_avg_sq")
        )
        torch._foreach_add_(counts, 1.0)
        torch._fused_adam_(
            [parameter for _, parameter in trained],
            [parameter.grad for _, parameter in trained if parameter.grad is not None],
            first,
            second,
            [],
            counts,
            lr=self.rate,  # type: ignore[arg-type]  # a number or a tensor; the stub lists one overload
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )


class Optimiser:
    """Adam for all parameters that require gradients, and `Rowwise` for item tables with `table_state="rowwise"`.

    Args:
        module: The module to train.
        rate: Learning rate.
        tables: The item tables.
        table_state: Optimiser state of the item tables.
    """

    def __init__(
        self, module: nn.Module, rate: float, tables: Sequence[nn.Parameter] = (), table_state: TableState = "full"
    ) -> None:
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        rowwise_ids = {id(table) for table in tables} if table_state == "rowwise" else set()
        device = trained[0].device
        self.adam = Adam(
            [parameter for parameter in trained if id(parameter) not in rowwise_ids],
            torch.tensor(rate, device=device) if device.type == "cuda" else rate,
        )
        self.rowwise = Rowwise([parameter for parameter in trained if id(parameter) in rowwise_ids], device)
        self._rate = rate

    @property
    def rate(self) -> float:
        """The learning rate."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        self._rate = rate
        if isinstance(self.adam.rate, Tensor):
            self.adam.rate.fill_(rate)  # in place: captured updates read it
        else:
            self.adam.rate = rate

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for parameter in (*self.adam.parameters, *self.rowwise.tables):
            parameter.grad = None

    def step(self) -> None:
        """Update the parameters."""
        self.adam.step()
        self.rowwise.step(self.adam.rate)

    def tensors(self) -> Tensors:
        """Return the state, for a checkpoint."""
        state = sorted(self.adam.state.items())
        tensors = {f"optimiser.{index}.{key}": value for index, slots in state for key, value in slots.items()}
        return tensors | {f"optimiser.rowwise.{key}": value for key, value in self.rowwise.tensors().items()}

    def load(self, tensors: Tensors, rate: float) -> None:
        """Restore the state from a checkpoint."""
        state: dict[int, Tensors] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimiser.") and not name.startswith("optimiser.rowwise."):
                _, index, key = name.split(".")
                parameter = self.adam.parameters[int(index)]
                if tensor.shape != (() if key == "step" else parameter.shape):
                    raise ValueError(f"{name} has the shape {list(tensor.shape)}")
                state.setdefault(int(index), {})[key] = tensor.to(parameter.device, torch.float32, copy=True)
        self.adam.state = state
        for key, tensor in self.rowwise.tensors().items():
            tensor.copy_(tensors[f"optimiser.rowwise.{key}"])
        self.rate = rate


class Rowwise:
    """An optimiser like Adam with a smaller state, for tables [A, d] of millions of items:

        m ← β₁ m + (1 − β₁) g                  stored in bfloat16
        v ← β₂ v + (1 − β₂) mean_d(g²)         one number per row, not per weight
        table ← table − rate · m̂ / (√v̂ + ε)    m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ)

    It needs 2 bytes per weight instead of 8. An item's weights share one step size, so its step is along m.
    """

    def __init__(self, tables: Sequence[nn.Parameter], device: torch.device) -> None:
        self.tables = list(tables)
        self.count = torch.zeros((), device=device)
        self.first = [torch.zeros_like(table, dtype=torch.bfloat16) for table in tables]
        self.second = [torch.zeros(len(table), device=device) for table in tables]

    def tensors(self) -> Tensors:
        """Return the state, for a checkpoint."""
        if not self.tables:
            return {}
        tensors = {"count": self.count}
        for index, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            tensors |= {f"{index}.first": first, f"{index}.second": second}
        return tensors

    @torch.no_grad()
    def step(self, rate: Tensor | float) -> None:
        """Update the tables."""
        if not self.tables:
            return
        self.count += 1
        bias_correction = 1 - BETAS[0] ** self.count, 1 - BETAS[1] ** self.count
        for table, first, second in zip(self.tables, self.first, self.second, strict=True):
            if table.grad is None:
                continue
            rows = max(1, CHUNK // table.shape[1])
            parts = (torch.split(tensor, rows) for tensor in (table, table.grad, first, second))
            for weights, gradient, m, v in zip(*parts, strict=True):
                mean = m.float().lerp_(gradient, 1 - BETAS[0])
                m.copy_(mean)
                v.lerp_(gradient.square().mean(1), 1 - BETAS[1])
                scale = (rate / bias_correction[0]) / ((v / bias_correction[1]).sqrt_() + EPSILON)
                weights.sub_(mean.mul_(scale[:, None]))


def state_bytes(module: nn.Module, tables: Sequence[nn.Parameter], table_state: TableState) -> int:
    """Return the bytes of the optimiser state for the parameters of `module` that require gradients."""
    rowwise_ids = {id(table) for table in tables} if table_state == "rowwise" else set()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return sum(2 * p.numel() + 4 * len(p) if id(p) in rowwise_ids else 2 * p.nbytes for p in trained)
