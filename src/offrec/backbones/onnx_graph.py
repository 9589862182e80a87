"""Write an ONNX graph node by node.

Unlike torch's exporter, this module supports sessions of variable length, shares one item table between input and
output, and takes milliseconds. Every export is compared with torch before it is published
(`offrec.serving.onnx_check`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

OPSET = 20  # the first opset with GELU
IR_VERSION = 9  # released with this opset, so that older runtimes can read the file

Values = Mapping[str, tuple[Any, Sequence[str | int]]]  # name → (numpy type, shape; variable lengths have names)


class OnnxGraph:
    """A graph under construction. Methods that add a node return the name of its output.

    Args:
        prefix: Prefix of all node names; required for the body of a loop.
        outer: The enclosing graph of a loop body; it stores the constants of both.

    Example:
        A backbone's ONNX writer mirrors its `forward`, with names instead of tensors:

        >>> def write_onnx(graph, module, inputs):
        ...     return graph.op("Tanh", graph.linear(inputs, module.linear))
    """

    def __init__(self, prefix: str = "", outer: "OnnxGraph | None" = None) -> None:
        self.prefix, self.nodes = prefix, list[onnx.NodeProto]()
        self.initializers: list[onnx.TensorProto] = outer.initializers if outer else []
        self._constant_names: dict[Any, str] = outer._constant_names if outer else {}

    def op(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output.

        Args:
            operator: The name of the ONNX operator.
            *inputs: The names of its inputs.
            **attributes: Its attributes.

        Returns:
            The name of its output.
        """
        return self.ops(operator, inputs, 1, **attributes)[0]

    def ops(self, operator: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """Add a node with several outputs.

        Args:
            operator: The name of the ONNX operator.
            inputs: The names of its inputs.
            outputs: The number of its outputs.
            **attributes: Its attributes.

        Returns:
            The names of its outputs.
        """
        names = [f"{self.prefix}{operator}_{len(self.nodes)}_{output}" for output in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def weight(self, tensor: Tensor, rows: int | None = None, transposed: bool = False) -> str:
        """Add a parameter, unless the graph already contains it, and return its name.

        Args:
            tensor: The parameter.
            rows: Pad it with zeros to this number of rows.
            transposed: Whether to transpose it.

        Returns:
            The name of the constant.
        """
        key = (tensor.data_ptr(), tuple(tensor.shape), rows, transposed)
        if key not in self._constant_names:
            values = tensor.detach().cpu().numpy()
            values = values.T if transposed else values
            padding = 0 if rows is None else rows - len(values)
            if padding:
                values = np.concatenate([values, np.zeros((padding, *values.shape[1:]), values.dtype)])
            self._constant_names[key] = self._add_constant(values)
        return self._constant_names[key]

    def array(self, values: NDArray[Any]) -> str:
        """Add a constant array, unless the graph already contains it, and return its name."""
        key = (values.dtype.str, values.shape, values.tobytes())
        if key not in self._constant_names:
            self._constant_names[key] = self._add_constant(values)
        return self._constant_names[key]

    def integers(self, *values: int) -> str:
        """Add a constant [n] of 64-bit integers."""
        return self.array(np.array(values, dtype=np.int64))

    def integer(self, value: int) -> str:
        """Add a constant scalar, a 64-bit integer."""
        return self.array(np.array(value, dtype=np.int64))

    def real(self, value: float) -> str:
        """Add a constant scalar, a 32-bit float."""
        return self.array(np.array(value, dtype=np.float32))

    def slice(self, value: str, end: int | str, axis: int) -> str:
        """Take value[:end] along an axis; `end` is a number or the name of an integer [1]."""
        stop = self.integers(end) if isinstance(end, int) else end
        return self.op("Slice", value, self.integers(0), stop, self.integers(axis))

    def length(self, value: str, axis: int) -> str:
        """Return the length of an axis, as an integer [1]."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def concat(self, *values: str, axis: int = 0) -> str:
        """Concatenate values along an axis."""
        return self.op("Concat", *values, axis=axis)

    def cast(self, value: str, dtype: Any) -> str:
        """Convert a value to a numpy type."""
        return self.op("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def linear(self, value: str, layer: nn.Linear) -> str:
        """Apply a linear layer to the last axis."""
        product = self.op("MatMul", value, self.weight(layer.weight, transposed=True))
        return product if layer.bias is None else self.op("Add", product, self.weight(layer.bias))

    def layer_norm(self, value: str, layer: nn.LayerNorm) -> str:
        """Apply a layer normalisation to the last axis."""
        parameters = self.weight(layer.weight), self.weight(layer.bias)
        return self.op("LayerNormalization", value, *parameters, axis=-1, epsilon=layer.eps)

    def name_output(self, value: str, name: str) -> None:
        """Give a value the name of an output of the graph."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    @property
    def weight_bytes(self) -> int:
        """The total size of all constants, in bytes."""
        return sum(len(tensor.raw_data) for tensor in self.initializers)

    def model(self, inputs: Values, outputs: Values, metadata: dict[str, str]) -> onnx.ModelProto:
        """Return the finished model.

        Args:
            inputs: The inputs of the graph.
            outputs: The outputs of the graph.
            metadata: Key–value pairs to store in the model.

        Returns:
            The model.
        """
        graph = self._finish("policy", inputs, outputs, self.initializers)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="offrec")
        helper.set_model_props(model, metadata)
        return model

    def begin_loop(self, prefix: str) -> "OnnxGraph":
        """Return an empty graph for the body of a loop.

        Args:
            prefix: Prefix of its node names; it must be unique in this graph.

        Returns:
            The graph. Call its `loop_body` to get the body.
        """
        return OnnxGraph(prefix, self)

    def loop_body(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> onnx.GraphProto:
        """Convert the graph to the body of a loop.

        Args:
            inputs: Name → width of the float inputs, each [batch, width].
            outputs: Name → width of the float outputs, each [batch, width].

        Returns:
            The body.
        """

        def typed(widths: Mapping[str, int]) -> Values:
            return {name: (np.float32, ["batch", width]) for name, width in widths.items()}

        return self._finish(self.prefix, typed(inputs), typed(outputs), [])

    def _finish(
        self, name: str, inputs: Values, outputs: Values, initializers: list[onnx.TensorProto]
    ) -> onnx.GraphProto:
        def value_infos(values: Values) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
                for name, (dtype, shape) in values.items()
            ]

        return helper.make_graph(self.nodes, name, value_infos(inputs), value_infos(outputs), initializers)

    def _add_constant(self, values: NDArray[Any]) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name
