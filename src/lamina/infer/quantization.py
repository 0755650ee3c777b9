"""8-bit inference of a trained network: calibrate, round weights and activations, compile.

The ranges of the inputs of convolutions and linear layers are collected over a few batches. Then each of these layers
reads its input and its weights as int8 or float8 (e4m3); everything between them stays in float32. Scales are
symmetric, one for each tensor of activations, one for each output channel of the weights (Wu et al. 2020, "Integer
quantization for deep learning inference": this and nothing more is within 1 % of float32 for common networks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lamina import _tree
from lamina._tree import Structure
from lamina.graph import Executable, Graph, Node, Value, compile, constant, trace
from lamina.graph.ir.graph import traced_for
from lamina.graph.passes.canonicalize import (
    common_subexpressions,
    drop_identities,
    fold_constants,
    fold_weights,
)
from lamina.graph.passes.fold_batch_norm import fold_batch_norm
from lamina.graph.passes.pattern import replace
from lamina.infer.predictor import Predictor, TracedNet, flat_outputs
from lamina.nn import Module
from lamina.nn.module import evaluating
from lamina.nn.parameter import standing_in
from lamina.ops.arguments import checked
from lamina.ops.core import Op
from lamina.ops.primitives import Conv, Matmul, Quantize, QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.quantize import LARGEST, rounded
from lamina.runtime import Device
from lamina.spec import DType, Spec, float8_e4m3fn, float32, int8
from lamina.tensors import array_spec, flatten_arrays

KINDS = {"int8": int8, "fp8": float8_e4m3fn}


@checked
def quantize(
    net: Module,
    batches: Iterable[Any],
    *,
    precision: str = "int8",
    per_channel: bool = True,
    percentile: float | None = None,
    device: Device | str = "auto",
    backend: str | None = None,
) -> QuantizedPredictor:
    """net compiled for inference with 8-bit convolutions and linear layers: predictor(images) -> float32 outputs.

    batches: inputs (images (N, …) float32, or a dict of arrays), or (inputs, labels), to calibrate with; a hundred
        typical images are enough.
    precision: "int8", or "fp8" (e4m3; multiplied in float32 on a CPU, which lacks such arithmetic).
    per_channel: a scale for each output channel of the weights instead of one for all of them.
    percentile: the percentile of the magnitudes that is still represented, such as 99.99, the mean over the batches;
        larger ones saturate. By default the largest magnitude is represented.

    The current weights are used: call again after training.
    Raises ValueError for an unknown precision, a percentile outside (0, 100], no batches, non-finite values in a
    layer's input, or a network with nothing to quantize.
    """
    if precision not in KINDS:
        raise ValueError(f"quantize: precision must be one of {', '.join(KINDS)}, got {precision!r}")
    if percentile is not None and not 0 < percentile <= 100:
        raise ValueError(f"quantize: percentile must be above 0 and at most 100, got {percentile}")
    made = QuantizedPredictor(net, KINDS[precision], per_channel, device, backend)
    made.calibrate(batches, percentile)
    return made


class QuantizedPredictor(Predictor):
    """A network with 8-bit layers, made by `quantize`: predictor(images) -> outputs in float32.

    ranges: the largest magnitude that each quantized layer's input represents, in the order in which they run.
    """

    def __init__(
        self, net: Module, dtype: DType, per_channel: bool, device: Device | str, backend: str | None
    ) -> None:
        super().__init__(net, device=device, precision="fp32", backend=backend)
        self.dtype, self.per_channel = dtype, per_channel
        self.ranges: list[float] = []
        self._weights = {id(x): constant(x.numpy().copy()) for x in self._held.values()}
        self._held = {}  # no float32 weights are kept but those in the graph

    def _told(self) -> str:
        """Its precision and device."""
        return f"{self.dtype} on {self.device}"

    def renewed(self) -> bool:
        """No effect: the calibrated state is fixed."""
        self._same.look()
        return False

    def compiled(self, graph: Graph) -> Executable:
        """The executable of a traced graph, its layers in 8 bits."""
        return compile(self._quantized(graph), self.device, backend=self.backend)

    def calibrate(self, batches: Iterable[Any], percentile: float | None) -> None:
        """Calibrate the ranges with these batches.

        Raises ValueError when there are none, or nothing to quantize, and for non-finite values.
        """
        programs: dict[Any, Executable] = {}
        seen: list[list[float]] = []
        for number, batch in enumerate(batches):
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            given, structure = flatten_arrays(inputs, "quantize")
            specs = tuple([array_spec(x) for x in given])
            if (structure, specs) not in programs:
                programs[structure, specs] = self._observer(structure, specs)
            values = programs[structure, specs](*given)
            ranges = [_range(x.numpy(), percentile) for x in values]
            if not np.isfinite(ranges).all():
                layer = int(np.isfinite(ranges).argmin())
                raise ValueError(
                    f"quantize: of batch {number}, layer {layer} of {len(ranges)} reads {ranges[layer]}; "
                    "calibrate with inputs that give finite values"
                )
            seen.append(ranges)
        if not seen:
            raise ValueError("quantize: no batches to calibrate with")
        self.ranges = list(np.max(seen, 0) if percentile is None else np.mean(seen, 0))

    def traced(self, structure: Structure, specs: Sequence[Spec]) -> TracedNet:
        """Inference in float32 with the weights as constants, and batch norms folded into them."""
        made: list[Structure] = []

        def forward(*values: Any) -> Any:
            with standing_in(dict(self._weights)):
                return flat_outputs(self.net, structure, values, float32, float32, made)

        with evaluating(self.net), traced_for(self.device):
            graph = trace(forward, *specs, names=_tree.names(structure, "inputs"))
        folded = fold_batch_norm(common_subexpressions(drop_identities(fold_constants(graph))))
        return TracedNet(fold_weights(folded), made[0])

    def _observer(self, structure: Structure, specs: Sequence[Spec]) -> Executable:
        """The inputs of the layers."""
        graph = self.traced(structure, specs).graph
        read = [n.inputs[0] for n in graph.nodes if self._is_layer(n)]
        if not read:
            raise ValueError(f"quantize: {type(self.net).__name__} has no layer that can be quantized")
        return compile(Graph(graph.inputs, read, "calibration"), self.device, backend=self.backend)

    def _is_layer(self, node: Node) -> bool:
        """Whether a node is a convolution or a product with constant weights that 8-bit kernels take."""
        op = node.op
        if not isinstance(op, Conv | Matmul) or node.inputs[1].constant is None:
            return False
        return isinstance(op, Conv) or not (op.transpose_a or node.inputs[0].ndim != 2)

    def _quantized(self, graph: Graph) -> Graph:
        """The graph with its layers in 8 bits."""
        layers = [n for n in graph.nodes if self._is_layer(n)]
        return replace(
            graph,
            {
                node.outputs[0]: self._layer(node, largest)
                for node, largest in zip(layers, self.ranges, strict=True)
            },
        )

    def _layer(self, node: Node, largest: float) -> Value:
        """One layer: round its input, multiply, scale."""
        x = node.inputs[0]
        scale = np.float32(largest / LARGEST[self.dtype] if largest > 0 else 1)
        weights, factors = self._weights_of(node)
        before = x.node.serial if x.node is not None else node.serial - 1
        serial = (before + node.serial) / 2  # serials are only compared
        q = Node(Quantize(self.dtype), (x, constant(scale)), node.policy, serial, origin=node.origin).outputs[
            0
        ]
        op: Op = QuantizedConv(node.op.window) if isinstance(node.op, Conv) else QuantizedMatmul()
        return Node(
            op, (q, weights, constant(scale * factors)), node.policy, node.serial, origin=node.origin
        ).outputs[0]

    def _weights_of(self, node: Node) -> tuple[Value, np.ndarray[Any, Any]]:
        """A layer's weights in 8 bits, [K, C/g, *k] or [N, K], and their scale for each output channel, float32."""
        held = node.inputs[1].constant
        assert held is not None
        values = held.numpy()
        if isinstance(node.op, Matmul) and not node.op.transpose_b:
            values = np.ascontiguousarray(values.T)
        q, scale = rounded(values, self.dtype, 0 if self.per_channel else None)
        return constant(q), np.broadcast_to(scale, values.shape[:1])


def _range(x: np.ndarray[Any, Any], percentile: float | None) -> float:
    """The magnitude to represent for a batch; NaN or infinity where a value is not finite."""
    if not x.size:
        return 0.0
    largest = np.abs(x).max()
    return float(
        largest if percentile is None or not np.isfinite(largest) else np.percentile(np.abs(x), percentile)
    )
