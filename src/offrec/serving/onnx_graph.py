"""An ONNX graph, written node by node.

By hand and not by torch's exporter: a session's length stays open (a loop over the CFN cell, one GRU node that stops
each row at its own length), one item table serves input and output, and writing takes milliseconds. What keeps the two
in step is that every export is compared with torch before it is kept (`export_check`).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

OPSET = 20  # the first with GELU
IR_VERSION = 9  # of the time of that opset, so that older runtimes read the file


class Graph:
    """Every method that adds something gives back the name of its value."""

    def __init__(self, prefix: str = "", outer: "Graph | None" = None) -> None:
        """`outer`: of a loop's body, the graph around it, which keeps the body's constants too."""
        self.prefix, self.nodes = prefix, list[onnx.NodeProto]()
        self.initializers: list[onnx.TensorProto] = outer.initializers if outer else []
        self._known: dict[Any, str] = outer._known if outer else {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.ops(kind, inputs, 1, **attributes)[0]

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        names = [f"{self.prefix}{kind}_{len(self.nodes)}_{output}" for output in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def weight(self, tensor: Tensor, rows: int | None = None, transposed: bool = False) -> str:
        """A parameter, once however often it is asked for; filled up to so many rows with zeros."""

        def values() -> NDArray[Any]:
            found = tensor.detach().cpu().numpy()
            found = found.T if transposed else found
            more = 0 if rows is None else rows - len(found)
            return np.concatenate([found, np.zeros((more, *found.shape[1:]), found.dtype)]) if more else found

        key = (tensor.data_ptr(), tuple(tensor.shape), rows, transposed)
        if key not in self._known:
            self._known[key] = self._keep(values())
        return self._known[key]

    def array(self, values: NDArray[Any]) -> str:
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._known:
            self._known[key] = self._keep(values)
        return self._known[key]

    def whole(self, *values: int) -> str:
        """[n] integers."""
        return self.array(np.array(values, dtype=np.int64))

    def real(self, value: float) -> str:
        return self.array(np.array(value, dtype=np.float32))

    def slice(self, value: str, last: int | str, axis: int) -> str:
        """value[:last] along an axis; the bound is a number or the name of a [1] integer."""
        end = self.whole(last) if isinstance(last, int) else last
        return self.op("Slice", value, self.whole(0), end, self.whole(axis))

    def length(self, value: str, axis: int) -> str:
        """[1] how long an axis is."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def join(self, *values: str, axis: int = 0) -> str:
        return self.op("Concat", *values, axis=axis)

    def cast(self, value: str, to: type) -> str:
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))

    def linear(self, value: str, layer: nn.Linear) -> str:
        """x Wᵀ + b over the last axis, whatever the number of axes."""
        found = self.op("MatMul", value, self.weight(layer.weight, transposed=True))
        return found if layer.bias is None else self.op("Add", found, self.weight(layer.bias))

    def norm(self, value: str, layer: nn.LayerNorm) -> str:
        weights = self.weight(layer.weight), self.weight(layer.bias)
        return self.op("LayerNormalization", value, *weights, axis=-1, epsilon=layer.eps)

    def name(self, value: str, name: str) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    @property
    def bytes(self) -> int:
        return sum(len(tensor.raw_data) for tensor in self.initializers)

    def model(self, inputs: dict[str, Any], outputs: dict[str, Any], facts: dict[str, str]) -> onnx.ModelProto:
        """`inputs`, `outputs`: name → (numpy type, shape with names for what is open)."""
        graph = self._closed("policy", inputs, outputs, self.initializers)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="offrec")
        helper.set_model_props(model, facts)
        return model

    def body(self, inputs: dict[str, Any], outputs: dict[str, Any]) -> onnx.GraphProto:
        return self._closed(self.prefix, inputs, outputs, [])

    def _closed(self, name: str, inputs: Any, outputs: Any, initializers: list[onnx.TensorProto]) -> onnx.GraphProto:
        def typed(values: dict[str, Any]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
                for name, (kind, shape) in values.items()
            ]

        return helper.make_graph(self.nodes, name, typed(inputs), typed(outputs), initializers)

    def _keep(self, values: NDArray[Any]) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name
