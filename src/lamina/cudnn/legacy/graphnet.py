"""Graph neural networks: aggregation over neighbours, and attention over them (GAT, GATv2).

    graph = CSCGraph(offsets, indices, sources=1000, destinations=1000, edges=8000)
    mean = Aggregation(graph, node=64, op="mean")
    mean.forward(stream, output, nodes=features)

The graph is given by its destinations: destination d hears from the sources indices[offsets[d]:offsets[d + 1]]
(compressed sparse columns). Feature arrays are row-major, one row per node or edge, contiguous, on the stream's
device; they come from any array library or as plain addresses. A feature that is not there is None, of width 0.

These calls came with cuDNN 9.26.1 (aggregation) and 9.28 (attention), for compute capability 8.0 and newer. With an
older library the classes cannot be made: `MissingSymbol` names the version that is needed. Their kernels are
compiled at the first call of each kind. Not on Windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.c._arguments import Pointer, address, pointer
from lamina.cudnn.descriptor import data_type, named
from lamina.cudnn.legacy.causal import positive, require

_INDEX = {"int32": c.CUDNN_DATA_INT32, "int64": c.CUDNN_DATA_INT64}
_TYPES = (c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_HALF, c.CUDNN_DATA_BFLOAT16)


def _element(call: str, argument: str, value: str | int) -> c.cudnnDataType_t:
    kind = data_type(value)
    if kind not in _TYPES:
        raise ValueError(f"{call}: {argument} must be float32, float16 or bfloat16, got {value!r}")
    return kind


def _width(call: str, argument: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(f"{call}: {argument} must be a whole number from 0 on, got {value!r}")
    return value


def _given(call: str, **pairs: tuple[Pointer, int]) -> None:
    """ValueError unless each array is there exactly when its width is not 0."""
    for name, (array, width) in pairs.items():
        if (array is None) != (width == 0):
            what = "must be given" if width else "must be None"
            raise ValueError(f"{call}: {name} {what}: its width is {width}")


class CSCGraph:
    """A directed graph by destinations (compressed sparse columns). It keeps its arrays alive.

    Args:
        offsets: (destinations + 1,) where each destination's sources start in `indices`.
        indices: (edges,) the sources.
        sources, destinations, edges: how many.
        index_type: "int32" or "int64", of all the arrays here.
        edge_positions: (edges,) row of the edge features for each entry of `indices`; None: the same order.
        reverse_positions: (edges,) the same for the reversed graph; the reproducible gradients need it.
        reverse_offsets: (sources + 1,) offsets of the reversed graph; the reproducible gradients need it.

    Raises:
        MissingSymbol: the library is older than 9.26.1.

    C: cudnnGnnCscGraph_t.
    """

    def __init__(
        self,
        offsets: Pointer,
        indices: Pointer,
        *,
        sources: int,
        destinations: int,
        edges: int,
        index_type: str = "int32",
        edge_positions: Pointer = None,
        reverse_positions: Pointer = None,
        reverse_offsets: Pointer = None,
    ) -> None:
        if index_type not in _INDEX:
            raise ValueError(f"CSCGraph: index_type must be 'int32' or 'int64', got {index_type!r}")
        for name, value in {"sources": sources, "destinations": destinations, "edges": edges}.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
                raise ValueError(f"CSCGraph: {name} must be a whole number from 0 on, got {value!r}")
        require("cudnnGnnAggSimpleForward")
        self.sources, self.destinations, self.edges = sources, destinations, edges
        self.index_type = index_type
        arrays = (offsets, indices, edge_positions, reverse_positions, reverse_offsets)
        self._arrays = arrays  # alive as long as their addresses are in the structure
        first, second, positions, reverse, back = (address(pointer(a)) or None for a in arrays)
        counts = (sources, destinations, edges)
        self.native = c.cudnnGnnCscGraph_t(
            first, second, positions, reverse, *counts, int(_INDEX[index_type]), back
        )

    @property
    def reversible(self) -> bool:
        """Whether the arrays of the reversed graph are there, for reproducible gradients."""
        return self._arrays[3] is not None and self._arrays[4] is not None

    def __repr__(self) -> str:
        counts = f"sources={self.sources}, destinations={self.destinations}, edges={self.edges}"
        return f"CSCGraph({counts}, index_type={self.index_type!r})"


class Aggregation:
    """Sum, mean, maximum or minimum over each destination's sources, of node and edge features.

    A row of the output is [node aggregate | edge aggregate | concat], of width `node` + `edge` + `concat`.

    Args:
        graph: the graph.
        node: width of the source nodes' features, (sources, node); 0: none.
        edge: width of the edges' features, (edges, edge); 0: none. One of the two must be there.
        concat: width of the features of the destinations that are passed through, (destinations, concat).
        op: "sum", "mean", "max" or "min".
        data_type: float32, float16 or bfloat16.

    Raises:
        MissingSymbol: the library is older than 9.26.1. ValueError: a width, type or operation that it lacks.

    C: cudnnGnnAggSimpleForward, cudnnGnnAggSimpleBackward.
    """

    def __init__(
        self,
        graph: CSCGraph,
        *,
        node: int = 0,
        edge: int = 0,
        concat: int = 0,
        op: str | int = "sum",
        data_type: str | int = "float32",
    ) -> None:
        name = "Aggregation"
        widths = {"node": node, "edge": edge, "concat": concat}
        self.node, self.edge, self.concat = (_width(name, key, value) for key, value in widths.items())
        if not (node or edge):
            raise ValueError(f"{name}: node or edge must be more than 0")
        self.graph = graph
        self.op = named(c.cudnnGnnAggOp_t, "CUDNN_GNN_AGG_", op, "op")
        self.data_type = _element(name, "data_type", data_type)
        require("cudnnGnnAggSimpleForward", "cudnnGnnAggSimpleBackward")

    @property
    def keeps_positions(self) -> bool:
        """Whether the gradient needs to know which source won: (destinations, node + edge), in index_type."""
        return self.op in (c.CUDNN_GNN_AGG_MAX, c.CUDNN_GNN_AGG_MIN)

    def forward(
        self,
        stream: Pointer,
        output: Pointer,
        *,
        nodes: Pointer = None,
        edges: Pointer = None,
        concat: Pointer = None,
        positions: Pointer = None,
    ) -> None:
        """Queue the aggregation; `output` is (destinations, node + edge + concat).

        positions: written for "max" and "min" (see `keeps_positions`), None otherwise. Raises ValueError,
        CudnnError.
        """
        self._check("forward", nodes, edges, concat, positions)
        arrays = (nodes, edges, concat, output, positions)
        c.cudnnGnnAggSimpleForward(stream, self.graph.native, *arrays, *self._tail)

    def backward(
        self,
        stream: Pointer,
        doutput: Pointer,
        *,
        dnodes: Pointer = None,
        dedges: Pointer = None,
        dconcat: Pointer = None,
        positions: Pointer = None,
    ) -> None:
        """Queue the gradients. dnodes and dedges are added to (fill them with zeros first); dconcat is written.

        The sums are atomic: their last bits differ from run to run. Raises ValueError, CudnnError.
        """
        self._check("backward", dnodes, dedges, dconcat, positions)
        arrays = (doutput, positions, dnodes, dedges, dconcat)
        c.cudnnGnnAggSimpleBackward(stream, self.graph.native, *arrays, *self._tail)

    def _check(self, call: str, nodes: Pointer, edges: Pointer, concat: Pointer, positions: Pointer) -> None:
        _given(
            f"Aggregation.{call}",
            nodes=(nodes, self.node),
            edges=(edges, self.edge),
            concat=(concat, self.concat),
            positions=(positions, (self.node + self.edge) * self.keeps_positions),
        )

    @property
    def _tail(self) -> tuple[Any, ...]:
        return self.node, self.edge, self.concat, self.data_type, self.op

    def __repr__(self) -> str:
        widths = f"node={self.node}, edge={self.edge}, concat={self.concat}"
        return f"Aggregation({self.graph!r}, {widths}, op={self.op.name}, data_type={self.data_type.name})"


class AttentionSizes(NamedTuple):
    """Elements of the arrays around a `GraphAttention` (type in brackets)."""

    weights: int
    """attention weights [data_type]"""
    output: int
    """[data_type]"""
    scores: int
    """logits, then coefficients [float32]"""
    activations: int
    """activated edge vectors that `forward` keeps; 0 but for GATv2 [data_type]"""
    node_workspace: int
    """for reproducible gradients [gradient_type]"""
    weight_workspace: int
    """for reproducible gradients [weight_gradient_type]"""


class GraphAttention:
    """Attention of each destination over its sources, several heads: GAT, or GATv2 with ``version=2``.

    GAT (Velickovic et al., 2018): logit = act(a_src . h_src + a_dst . h_dst + a_edge . e); GATv2 (Brody et al.,
    2022): logit = a . act(h_src + h_dst + e). A softmax over each destination's sources weighs their features.

    Args:
        graph: the graph.
        node: width of source and destination features; a multiple of heads.
        edge: width of the edge features, a multiple of heads, or 0; GATv2 takes 0 or `node`.
        heads: how many.
        concat: put the heads side by side (output (destinations, node)), or average them (node // heads).
        activation: "linear", "relu", "sigmoid", "tanh", "elu", "scalar" or "leaky_relu".
        slope: of the leaky ReLU (> 0), or the scalar.
        data_type: float32, float16 or bfloat16.
        gradient_type, weight_gradient_type: of the gradients: data_type (as they are by default) or float32.
            GATv2 takes one type for both.
        version: 1 (GAT) or 2 (GATv2).

    Raises:
        MissingSymbol: the library is older than 9.28. ValueError: a width, type or activation that it lacks.

    C: cudnnGnnMhaGatForward, cudnnGnnMhaGatBackward, cudnnGnnMhaGatV2Forward, cudnnGnnMhaGatV2Backward.
    """

    def __init__(
        self,
        graph: CSCGraph,
        *,
        node: int,
        edge: int = 0,
        heads: int = 1,
        concat: bool = True,
        activation: str | int = "leaky_relu",
        slope: float = 0.2,
        data_type: str | int = "float32",
        gradient_type: str | int | None = None,
        weight_gradient_type: str | int | None = None,
        version: int = 1,
    ) -> None:
        positive("GraphAttention", node=node, heads=heads)
        _check_widths(version, node, _width("GraphAttention", "edge", edge), heads)
        self.graph, self.node, self.edge, self.heads = graph, node, edge, heads
        self.concat, self.version, self.slope = bool(concat), version, float(slope)
        self.activation = named(c.cudnnGnnActivationOp_t, "CUDNN_GNN_ACT_", activation, "activation")
        self.data_type = _element("GraphAttention", "data_type", data_type)
        self.gradient_type = self._gradient("gradient_type", gradient_type)
        self.weight_gradient_type = self._gradient("weight_gradient_type", weight_gradient_type)
        if version == 2 and self.gradient_type != self.weight_gradient_type:
            raise ValueError("GraphAttention: version 2 takes one type for all gradients")
        self._stem = "cudnnGnnMhaGat" + ("V2" if version == 2 else "")
        require(self._stem + "Forward", self._stem + "Backward")
        self._parameters = c.cudnnGnnMhaParams_t(int(self.activation), self.slope, heads, int(self.concat))

    def _gradient(self, argument: str, value: str | int | None) -> c.cudnnDataType_t:
        kind = self.data_type if value is None else _element("GraphAttention", argument, value)
        if kind not in (self.data_type, c.CUDNN_DATA_FLOAT):
            raise ValueError(f"GraphAttention: {argument} must be data_type or float32, got {value!r}")
        return kind

    @property
    def sizes(self) -> AttentionSizes:
        """How many elements the arrays have."""
        edges, v2 = self.graph.edges, self.version == 2
        weights = self.node if v2 else 2 * self.node + self.edge
        width = self.node if self.concat else self.node // self.heads
        return AttentionSizes(
            weights,
            self.graph.destinations * width,
            2 * self.heads * edges,
            edges * self.node if v2 else 0,
            edges * self.node,
            self.graph.destinations * weights,
        )

    def forward(
        self,
        stream: Pointer,
        source: Pointer,
        destination: Pointer,
        weights: Pointer,
        output: Pointer,
        scores: Pointer,
        *,
        edges: Pointer = None,
        dropout: Pointer = None,
        activations: Pointer = None,
    ) -> None:
        """Queue the attention.

        Args:
            stream: the stream.
            source: (sources, node). destination: (destinations, node). edges: (edges, edge) or None.
            weights: source, destination and edge weights in a row (GAT), or (node,) (GATv2).
            output: written. scores: written, float32, (2, heads, edges): logits, then coefficients.
            dropout: factors to multiply the coefficients by, float32, (heads, edges), or None.
            activations: written by GATv2 for its gradient, (edges, node); None for GAT.

        Raises:
            ValueError: an array that is missing or not wanted. CudnnError: the library refuses.
        """
        _given("GraphAttention.forward", edges=(edges, self.edge), activations=(activations, self.sizes[3]))
        arrays = (source, destination, edges, weights, dropout, output, scores)
        graph, parameters = self.graph.native, self._parameters
        if self.version == 2:
            c.cudnnGnnMhaGatV2Forward(
                stream, graph, *arrays, activations, self.node, parameters, self.data_type
            )
        else:
            c.cudnnGnnMhaGatForward(stream, graph, *arrays, self.node, self.edge, parameters, self.data_type)

    def backward(
        self,
        stream: Pointer,
        doutput: Pointer,
        saved: Mapping[str, Pointer],
        gradients: Mapping[str, Pointer],
        *,
        dattention: Pointer = None,
        workspaces: tuple[Pointer, Pointer] | None = None,
    ) -> None:
        """Queue the gradients; all are written.

        Args:
            stream: the stream.
            doutput: gradient of the output.
            saved: what `forward` had: "source", "destination", "weights", "scores", and where they were given
                "edges", "dropout", "activations".
            gradients: "source", "destination" (may be the same array where source and destination were),
                "scores" (float32, as scores), "weights" (GATv2 can do without), and "edges" where there are any.
            dattention: gradient of the coefficients, float32, (heads, edges), or None.
            workspaces: two arrays (`sizes.node_workspace`, `sizes.weight_workspace`) make the gradients
                reproducible; the graph must be `reversible`. None: atomic sums.

        Raises:
            ValueError: a name that is missing or unknown. CudnnError: the library refuses.
        """
        kept = _named_arrays("saved", saved, _SAVED, ("source", "destination", "weights", "scores"))
        needed = ("source", "destination", "scores") + (() if self.version == 2 else ("weights",))
        made = _named_arrays("gradients", gradients, _GRADIENTS, needed)
        for name, arrays in (("saved", kept), ("gradients", made)):
            _given(f"GraphAttention.backward: {name}", edges=(arrays["edges"], self.edge))
        if workspaces is not None and not self.graph.reversible:
            raise ValueError(
                "GraphAttention.backward: reproducible gradients need a CSCGraph with reverse_positions and "
                "reverse_offsets"
            )
        self._backward(stream, doutput, kept, made, dattention, workspaces or (None, None))

    def _backward(
        self,
        stream: Pointer,
        doutput: Pointer,
        kept: dict[str, Pointer],
        made: dict[str, Pointer],
        dattention: Pointer,
        workspaces: tuple[Pointer, Pointer],
    ) -> None:
        order = ("source", "destination", "edges", "weights", "scores")
        inputs: list[Any] = [doutput, *(kept[name] for name in order)]
        if self.version == 2:
            inputs.append(kept["activations"])
        outputs = [made[name] for name in order]
        arrays = [*inputs, kept["dropout"], dattention, *outputs, *workspaces]
        if self.version == 2:
            rest = [self.node, self._parameters, self.data_type, self.gradient_type]
            call: Callable[..., None] = c.cudnnGnnMhaGatV2Backward
        else:
            types = (self.data_type, self.gradient_type, self.weight_gradient_type)
            rest = [self.node, self.edge, self._parameters, *types]
            call = c.cudnnGnnMhaGatBackward
        call(stream, self.graph.native, *arrays, *rest)

    def __repr__(self) -> str:
        sizes = f"node={self.node}, edge={self.edge}, heads={self.heads}, concat={self.concat}"
        kind = f"activation={self.activation.name}, data_type={self.data_type.name}, version={self.version}"
        return f"GraphAttention({self.graph!r}, {sizes}, {kind})"


_SAVED = ("source", "destination", "edges", "weights", "scores", "dropout", "activations")
_GRADIENTS = ("source", "destination", "edges", "weights", "scores")


def _check_widths(version: int, node: int, edge: int, heads: int) -> None:
    if version not in (1, 2):
        raise ValueError(f"GraphAttention: version must be 1 (GAT) or 2 (GATv2), got {version!r}")
    if node % heads or edge % heads:
        raise ValueError(
            f"GraphAttention: node ({node}) and edge ({edge}) must be multiples of heads ({heads})"
        )
    if version == 2 and edge not in (0, node):
        raise ValueError(f"GraphAttention: version 2 takes edge 0 or node ({node}), got {edge}")


def _named_arrays(
    what: str, given: Mapping[str, Pointer], known: tuple[str, ...], needed: tuple[str, ...]
) -> dict[str, Pointer]:
    unknown, missing = set(given) - set(known), [n for n in needed if given.get(n) is None]
    if unknown or missing:
        problem = f"unknown {sorted(unknown)}" if unknown else f"missing {missing}"
        raise ValueError(f"GraphAttention.backward: {what}: {problem}; known: {', '.join(known)}")
    return {name: given.get(name) for name in known}
