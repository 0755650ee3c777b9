"""A small builder over the descriptors: name tensors and operations, get plans.

graph = Graph()
x = graph.tensor((8, 64, 56, 56), (200704, 1, 3584, 64), "bfloat16")
w = graph.tensor((128, 64, 3, 3), (576, 1, 192, 64), "bfloat16")
y = graph.tensor((8, 128, 56, 56), (401408, 1, 7168, 128), "bfloat16")
graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
plan = graph.plan(handle)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lamina.c.errors import CudnnError
from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.descriptor import Descriptor
from lamina.cudnn.engine import Candidates, EngineConfig, Key, OperationGraph, Target, key_text
from lamina.cudnn.matmul import Matmul, MatmulOperation
from lamina.cudnn.plan import ExecutionPlan
from lamina.cudnn.pointwise import Pointwise, PointwiseOperation
from lamina.cudnn.reduction import Reduction, ReductionOperation
from lamina.cudnn.resample import Resample, ResampleBackward, ResampleForward
from lamina.cudnn.tensor import Tensor

Accept = Callable[[EngineConfig], str]


class NoPlanError(RuntimeError):
    """No engine computes a graph; `reasons` says why each one was passed over or refused."""

    def __init__(self, graph: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        listing = (
            "".join(f"\n  - {reason}" for reason in self.reasons) or "\n  - no heuristic named an engine"
        )
        super().__init__(f"cuDNN has no plan for {graph}:{listing}")


class Graph:
    """Tensors and operations of one graph.

    Args:
        compute: type of the arithmetic, unless an operation says another.
    """

    def __init__(self, compute: str | int = "float32") -> None:
        self.compute = compute
        self.operations: list[Descriptor] = []
        self.tensors: list[Tensor] = []
        self._titles: list[str] = []

    # -- tensors --------------------------------------------------------------------------------------------

    def tensor(
        self,
        dimensions: Sequence[int],
        strides: Sequence[int],
        data_type: str | int,
        *,
        virtual: bool = False,
        alignment: int = 16,
    ) -> Tensor:
        """A tensor with the next free uid (1, 2, …)."""
        made = Tensor(
            dimensions=dimensions,
            strides=strides,
            data_type=data_type,
            uid=len(self.tensors) + 1,
            virtual=virtual,
            alignment=alignment,
        )
        self.tensors.append(made)
        return made

    def like(self, tensor: Tensor, data_type: str | int | None = None) -> Tensor:
        """A virtual tensor of the same sizes and strides, in the compute type unless another is named."""
        kind = self.compute if data_type is None else data_type
        return self.tensor(tensor.dimensions, tensor.strides, kind, virtual=True)

    # -- operations -----------------------------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """y = alpha * conv(x, w) + beta * y."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv", ConvolutionForward(window, x, w, y, alpha=alpha, beta=beta))
        return y

    def conv_data_grad(
        self,
        dy: Tensor,
        w: Tensor,
        dx: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dx from dy and the filter."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv_data_grad", ConvolutionBackwardData(window, dy, w, dx, alpha=alpha, beta=beta))
        return dx

    def conv_filter_grad(
        self,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dw from x and dy."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv_filter_grad", ConvolutionBackwardFilter(window, x, dy, dw, alpha=alpha, beta=beta))
        return dw

    def _window(
        self,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None,
        dilation: Sequence[int] | None,
        flip: bool,
    ) -> Convolution:
        return Convolution(
            stride=stride, pre=pre, post=post, dilation=dilation, compute=self.compute, flip=flip
        )

    def matmul(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        """out = a @ b for [batch, M, K] and [batch, K, N]."""
        self._add("matmul", MatmulOperation(Matmul(compute=self.compute), a, b, out))
        return out

    def pointwise(
        self,
        mode: str | int,
        x: Tensor,
        b: Tensor | None = None,
        out: Tensor | None = None,
        *,
        t: Tensor | None = None,
        **parameters: float | int | None,
    ) -> Tensor:
        """out = mode(x, b, t); for a gradient ("relu_bwd") x is the forward's operand and b is dy.

        Without `out` the result is virtual.
        """
        result = self.like(x) if out is None else out
        function = Pointwise(mode, compute=self.compute, **parameters)
        if function.is_backward:
            operation = PointwiseOperation(function, x=x, dy=b, dx=result)
        else:
            operation = PointwiseOperation(function, x=x, b=b, t=t, y=result)
        self._add(function.mode.name.removeprefix("CUDNN_POINTWISE_").lower(), operation)
        return result

    def reduce(self, operator: str | int, x: Tensor, y: Tensor) -> Tensor:
        """y = the reduction of x over the axes where y has size 1."""
        self._add("reduce", ReductionOperation(Reduction(operator, compute=self.compute), x, y))
        return y

    def pool(self, resample: Resample, x: Tensor, y: Tensor, index: Tensor | None = None) -> Tensor:
        """y = pooling or interpolation of x."""
        self._add("resample", ResampleForward(resample, x, y, index=index))
        return y

    def pool_grad(
        self,
        resample: Resample,
        dy: Tensor,
        dx: Tensor,
        *,
        index: Tensor | None = None,
        x: Tensor | None = None,
        y: Tensor | None = None,
    ) -> Tensor:
        """dx of pooling or interpolation."""
        self._add("resample_grad", ResampleBackward(resample, dy, dx, index=index, x=x, y=y))
        return dx

    def _add(self, title: str, operation: Descriptor) -> None:
        self.operations.append(operation)
        self._titles.append(title)

    # -- plans ----------------------------------------------------------------------------------------------

    def build(self, target: Target) -> OperationGraph:
        """The operation graph for a handle or for device properties. Raises CudnnError."""
        return OperationGraph(self.operations, target)

    def candidates(self, target: Target, modes: Sequence[str | int] = ("a", "fallback")) -> Candidates:
        """Engine configurations of several heuristics, best first, each once."""
        try:
            return self.build(target).configs(modes)
        except CudnnError as error:
            return Candidates([], [f"graph: {error.code}: {error.message}"])

    def plans(
        self,
        target: Target,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        workspace_limit: int | None = None,
        accept: Accept | None = None,
        refusals: list[str] | None = None,
    ) -> Iterator[ExecutionPlan]:
        """Plans that could be made, best first, one after the other as they are asked for.

        Args:
            target: the handle or the device properties.
            modes: heuristics to ask.
            workspace_limit: bytes; plans that need more are passed over.
            accept: says why a configuration is unwanted, "" when it is wanted.
            refusals: a list that the reasons are appended to.
        """
        reasons = [] if refusals is None else refusals
        candidates = self.candidates(target, modes)
        reasons.extend(candidates.refusals)
        for config in candidates:
            unwanted = accept(config) if accept else ""
            if unwanted:
                reasons.append(f"{key_text(config.key)}: {unwanted}")
                continue
            try:
                plan = ExecutionPlan(config, target)
            except CudnnError as error:
                reasons.append(f"{key_text(config.key)}: {error.code}: {error.message}")
                continue
            if workspace_limit is not None and plan.workspace > workspace_limit:
                reasons.append(
                    f"{key_text(config.key)}: needs {plan.workspace} bytes of workspace, "
                    f"the limit is {workspace_limit}"
                )
                continue
            yield plan

    def plan(
        self,
        target: Target,
        modes: Sequence[str | int] = ("a", "fallback"),
        *,
        workspace_limit: int | None = None,
        accept: Accept | None = None,
    ) -> ExecutionPlan:
        """The first plan that could be made. Raises NoPlanError with all the reasons."""
        reasons: list[str] = []
        found = self.plans(target, modes, workspace_limit=workspace_limit, accept=accept, refusals=reasons)
        for plan in found:
            return plan
        raise NoPlanError(str(self), reasons)

    def rebuild(self, target: Target, key: Key) -> ExecutionPlan:
        """The plan of a known engine number and knob values. Raises CudnnError."""
        return ExecutionPlan(EngineConfig(self.build(target), key[0], dict(key[1])), target)

    def __str__(self) -> str:
        shown = [
            f"{t.data_type.name.removeprefix('CUDNN_DATA_').lower()}{list(t.dimensions)}"
            for t in self.tensors
            if not t.virtual
        ]
        return f"{' -> '.join(self._titles)} on {', '.join(shown)}"
