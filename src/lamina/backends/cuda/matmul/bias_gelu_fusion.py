"""A product with its bias and gelu as one op that keeps gelu's input, and the gradient of both as one op.

The gradient is the product that makes the gradient of gelu's result, gelu's derivative on it, and the bias' gradient,
which is its sum over the rows. Formulations:

blas    cuBLASLt's epilogue GELU_AUX_BIAS, for the tanh form (its DGELU_BGRAD takes 1.6 to 3.1 times as long as the
        steps: bfloat16, 2,048 to 16,384 rows of 384 to 2,048, compute capability 9.0)
conv    cuDNN's convolution with one position, a bias and either form of gelu, whose input is an output, too
matmul  the same behind cuDNN's matmul
sum     cuDNN's matmul with gelu's derivative and a sum over the rows behind it; the sum's order is any, and it is
        asked only where results are compared
unfused the ops without this fusion; where that is as fast, a graph keeps them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lamina.backends import Fusion, NoKernel, Plan
from lamina.backends.cuda.cudnn_graphs.conv import window_arguments
from lamina.backends.cuda.cudnn_graphs.epilogue import Axes, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product, matrices, multiplied
from lamina.backends.cuda.elementwise.loop import KernelOperand, elementwise
from lamina.backends.cuda.launch.program import Fill, Place, SubPlan, scratch, source, target
from lamina.backends.cuda.matmul.cublaslt import Extras, cublaslt_aux_formulations
from lamina.backends.cuda.matmul.matmul import as_convolution, cudnn_multiplies, product_of
from lamina.backends.cuda.registry import fusions, kernels
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose
from lamina.backends.pattern import PatternMatch, PatternValue, Results, made_by, operand
from lamina.cudnn import Graph, Tensor
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add, Gelu, GeluGrad, GeluTanh
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import Policy, ShapeError, Spec, bfloat16, float16, float32

_DTYPES = (float32, float16, bfloat16)
_SUM_OF_ROWS = Reduce("sum", (0,))
#: cuBLASLt reads and writes gelu's input in rows whose length is a multiple of this.
_STEP = 8


@dataclass(frozen=True)
class MatmulBiasGelu(Op):
    """(a, b, bias [N]) -> (gelu(h), h), with h = a b + bias [M, N]; a and b as for `product`."""

    product: Matmul
    gelu: Gelu | GeluTanh
    differentiable = False
    arity = 3

    def infer(self, a: Spec, b: Spec, bias: Spec) -> tuple[Spec, Spec]:
        (h,) = self.product.infer(a, b)
        if h.ndim != 2 or bias.shape != h.shape[1:]:
            raise ShapeError(f"{self.name}: a bias [N] belongs to matrices [M, N], got {bias} for {h}")
        self.check_float(h, bias)
        return h, h

    def reference(self, a: Array, b: Array, bias: Array) -> tuple[Array, ...]:
        (product,) = self.product.reference(a, b)
        (h,) = Add().reference(product, bias)
        return (*self.gelu.reference(h), h)

    def flops(self, a: Spec, b: Spec, bias: Spec) -> int:
        return self.product.flops(a, b)

    def __str__(self) -> str:
        return f"{self.name}({self.product} > {self.gelu})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for gelu in (Gelu(), GeluTanh()):
            for m, k, n in _SIZES:
                for transposed in (False, True):
                    b = (n, k) if transposed else (k, n)
                    yield Sample.of(cls(Matmul(False, transposed), gelu), (m, k), b, (n,), dtypes=_DTYPES)


@dataclass(frozen=True)
class MatmulGeluGrad(Op):
    """(a, b, h [M, N]) -> (dh [M, N], dbias [N]): dh = gelu'(h) * (a b), and dbias its sum over the rows."""

    product: Matmul
    grad: GeluGrad
    differentiable = False
    arity = 3

    def infer(self, a: Spec, b: Spec, h: Spec) -> tuple[Spec, Spec]:
        (g,) = self.product.infer(a, b)
        if g.ndim != 2 or h.shape != g.shape:
            raise ShapeError(f"{self.name}: gelu's input and gradient must be alike, got {h} and {g}")
        (dh,) = self.grad.infer(h, g)
        return dh, _SUM_OF_ROWS.infer(dh)[0]

    def reference(self, a: Array, b: Array, h: Array) -> tuple[Array, ...]:
        (dh,) = self.grad.reference(h, *self.product.reference(a, b))
        return (dh, *_SUM_OF_ROWS.reference(dh))

    def flops(self, a: Spec, b: Spec, h: Spec) -> int:
        return self.product.flops(a, b)

    def __str__(self) -> str:
        return f"{self.name}({self.product} > {self.grad})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for grad in (GeluGrad(), GeluGrad("tanh")):
            for m, k, n in _SIZES:
                for transposed in (False, True):
                    b = Arg((n, k) if transposed else (k, n))
                    yield Sample.of(cls(Matmul(False, transposed), grad), (m, k), b, (m, n), dtypes=_DTYPES)


#: M, K and N of samples.
_SIZES = ((16, 24, 32), (33, 16, 8), (1, 8, 40))


# -------------------------------------------------------------------------------------------------------- fusions


def _unfit(product: Matmul, result: PatternValue) -> str:
    """Why no library supports such an epilogue for a product with this result, "" where one may."""
    if result.ndim != 2:
        return f"libraries put a bias and gelu behind two matrices, not behind a batch of them: {result.spec}"
    if result.dtype not in _DTYPES:
        return f"no library computes gelu behind a product of {result.dtype}"
    if product.transpose_a and product.transpose_b:
        return "both operands are transposed: the result lies column by column, and the bias along its rows"
    if result.shape[1] % _STEP or 0 in result.shape:
        return f"gelu's input is kept in rows of a multiple of {_STEP} elements, not as {result.spec}"
    return ""


def _why_not_forward(match: PatternMatch) -> str:
    bias, (y,) = match["bias"], match.root.outputs
    if bias.shape != y.shape[-1:]:
        return f"what is added to {y.spec} is no bias, one number for each column: {bias.spec}"
    return _unfit(match.node("product").op, y)


def _input_kept(match: PatternMatch) -> Results:
    """gelu(product + bias), and the sum, which the gradient reads."""
    node, product = match.root, match.node("product")
    op = MatmulBiasGelu(product.op, node.op)
    y, h = match.apply(op, *match.inputs(product), match["bias"], at=node)
    return {node.outputs[0]: y, match["sum"]: h}


def _why_not_backward(match: PatternMatch) -> str:
    return _unfit(match.node("product").op, match["grad"])


def _sum_taken_along(match: PatternMatch) -> Results:
    """gelu_grad(h, product) and its sum over the rows, at the place of gelu's gradient."""
    grad, product = match.node("grad"), match.node("product")
    op = MatmulGeluGrad(product.op, grad.op)
    dh, dbias = match.apply(op, *match.inputs(product), match["h"], at=grad)
    return {match["grad"]: dh, match.root.outputs[0]: dbias}


_product = made_by(Matmul, name="product").read_once
_sum = made_by(Add, _product, operand("bias"), name="sum").read_elsewhere
_gelu_grad = made_by(GeluGrad, operand("h"), _product, name="grad")

BIAS_GELU = fusions.add(
    Fusion("bias_gelu", made_by(Gelu | GeluTanh, _sum), _input_kept, MatmulBiasGelu, check=_why_not_forward)
)
BIAS_GELU_GRAD = fusions.add(
    Fusion(
        "bias_gelu_grad",
        made_by(Reduce, _gelu_grad, where=lambda node: node.op == _SUM_OF_ROWS),
        _sum_taken_along,
        MatmulGeluGrad,
        check=_why_not_backward,
    )
)


# ---------------------------------------------------------------------------------------------------------- plans


@kernels(MatmulBiasGelu, source="cudnn")
def bias_gelu(op: MatmulBiasGelu, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One product with an epilogue of a library, or the unfused form."""
    op.infer(*specs)
    steps = _with_step(op.product, Add(), specs, target(1), device, policy)
    gelu = kernels.plan(op.gelu, steps[-1].plan.outputs, device, policy)
    steps.append(SubPlan(gelu, (target(1),), (target(0),)))
    return _choose(
        op, specs[2].open.fixed, steps, gelu.outputs * 2, partial(_forward_formulations, op), device, policy
    )


@kernels(MatmulGeluGrad, source="cudnn")
def bias_gelu_grad(op: MatmulGeluGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One product with an epilogue of a library, or the unfused form."""
    op.infer(*specs)
    steps = _with_step(op.product, op.grad, specs, target(0), device, policy)
    (dh,) = steps[-1].plan.outputs
    total = kernels.plan(_SUM_OF_ROWS, (dh,), device, policy)
    steps.append(SubPlan(total, (target(0),), (target(1),)))
    return _choose(
        op,
        specs[2].open.fixed,
        steps,
        (dh, *total.outputs),
        partial(_backward_formulations, op),
        device,
        policy,
    )


def _with_step(
    product: Matmul, step: Op, specs: Sequence[Spec], place: Place, device: Device, policy: Policy
) -> list[SubPlan]:
    """The product with a step on it, to a place; separately where no engine fuses both.

    Raises NoKernel where the result is column-major.
    """
    third = specs[2].open.fixed
    try:
        both = kernels.plan(Fused((product, step)), (*specs[:2], third), device, policy)
        found = [SubPlan(both, (source(0), source(1), source(2)), (place,))]
    except NoKernel:
        first = kernels.plan(product, specs[:2], device, policy)
        given, places = [third], [source(2)]
        given.insert(step.chained, first.outputs[0])
        places.insert(step.chained, place)
        second = kernels.plan(step, given, device, policy)
        found = [SubPlan(first, (source(0), source(1)), (place,)), SubPlan(second, tuple(places), (place,))]
    y = found[0].plan.outputs[0]
    if not y.same_memory(y.open.fixed):
        raise NoKernel(f"{found[0].plan.label} leaves {y} column by column, and a bias lies along its rows")
    return found


#: (product, operand specs, h or dh, device, policy) -> the libraries' fused formulations.
_Formulations = Callable[[Product, Sequence[Spec], Spec, Device, Policy], list[Formulation]]


def _choose(
    op: MatmulBiasGelu | MatmulGeluGrad,
    third: Spec,
    steps: Sequence[SubPlan],
    outputs: tuple[Spec, ...],
    make: _Formulations,
    device: Device,
    policy: Policy,
) -> Plan:
    """The fastest of the libraries' fused formulations and the separate steps; without timing cuBLASLt's epilogue,
    else the steps.

    cuDNN's graphs take 1.7 to 2.1 times as long as the steps (erf, bfloat16, 6,272 to 401,408 rows, compute
    capability 9.0).
    """
    parts = tuple(step.plan for step in steps)
    inputs = (*parts[0].inputs[:2], third)
    room = max(part.workspace for part in parts)
    unfused = Formulation("unfused", steps=tuple(steps), scratch=room, parts=parts)
    product = product_of(op.product, *inputs[:2])
    fused = make(product, inputs, outputs[0], device, policy) if outputs[0].numel and product.k else []
    ordered = sorted((*fused, unfused), key=lambda one: one.graph is not None)
    key = f"{op} {' '.join(map(str, inputs))}"
    problem = Problem(key, op.name, inputs, outputs, tuple(ordered), product.flops, kind=str(op))
    return choose(problem, device, policy)


def _forward_formulations(
    op: MatmulBiasGelu, p: Product, inputs: Sequence[Spec], h: Spec, device: Device, policy: Policy
) -> list[Formulation]:
    """For the tanh form cuBLASLt's epilogue, and cuDNN's graphs."""
    places, blas, bias = (source(0), source(1), target(0)), [], inputs[2]
    if isinstance(op.gelu, GeluTanh):
        extras = Extras(source(2), aux=target(1))
        blas = cublaslt_aux_formulations(p, h.dtype, places, device, policy, "gelu_aux_bias", extras)
    if not cudnn_multiplies(h.dtype, policy):
        return blas
    conv = (
        [Formulation("conv", partial(_forward_conv, op, p, h))]
        if p.b_transposed and not p.a_transposed
        else []
    )
    cudnn = [*conv, Formulation("matmul", partial(_forward_matmul, op, p, bias, h))]
    return [*blas, *cudnn]


_Graph = tuple[Graph, Mapping[int, Place]]


def _forward_conv(op: MatmulBiasGelu, p: Product, h: Spec) -> _Graph:
    """The product as a convolution with one position, which has more engines; columns are channels."""
    _, o, (a, b, _) = as_convolution(p, h.dtype)
    made = Graph("float32")
    x, w = (made.tensor(s.shape, s.physical.strides, s.dtype.name) for s in (o.x, o.w))
    value = made.tensor(o.y.shape, o.y.physical.strides, "float32", virtual=True)
    made.conv(x, w, value, **window_arguments(o.window))
    bias = Spec((1, p.n, 1, 1), h.dtype)
    return _with_gelu(op, made, value, bias, o.y, lambda *axes: axes, {x.uid: a, w.uid: b})


def _forward_matmul(op: MatmulBiasGelu, p: Product, bias: Spec, h: Spec) -> _Graph:
    """The product by cuDNN's matmul."""
    made, value, (a, b) = multiplied(p, h.dtype, virtual=True)
    return _with_gelu(op, made, value, bias, h, matrices, {a: source(0), b: source(1)})


def _with_gelu(
    op: MatmulBiasGelu,
    made: Graph,
    value: Tensor,
    bias: Spec,
    h: Spec,
    axes: Axes,
    pointers: Mapping[int, Place],
) -> _Graph:
    """Product > bias > gelu, with gelu's input as an output of the graph."""
    kept, y = (made.tensor(value.dimensions, value.strides, h.dtype.name) for _ in range(2))
    given = Epilogue((Add(),), (bias,), 2).attach(made, value, kept, h.shape, h.physical, axes)
    Epilogue((op.gelu,), (), 3).attach(made, kept, y, h.shape, h.physical, axes)
    return made, {**pointers, kept.uid: target(1), y.uid: target(0), **given}


def _backward_formulations(
    op: MatmulGeluGrad, p: Product, inputs: Sequence[Spec], dh: Spec, device: Device, policy: Policy
) -> list[Formulation]:
    """cuDNN's, if results are compared and the order of summation does not matter."""
    compared = policy.algorithm == "fastest" and not policy.deterministic
    if compared and cudnn_multiplies(dh.dtype, policy):
        return [sum_formulation(op, p, inputs[2], dh)]
    return []


def sum_formulation(op: MatmulGeluGrad, p: Product, h: Spec, dh: Spec) -> Formulation:
    """cuDNN sums in float32, onto zeros; a kernel rounds the result."""
    zeros = Fill(scratch(), 0, 4 * p.n)
    operands = [KernelOperand(float32, (1,), scratch())], [KernelOperand(dh.dtype, (1,), target(1))]
    rounded = elementwise((p.n,), (0,), *operands, [], ["a0"])
    graph = partial(_backward_graph, op, p, h, dh)
    return Formulation("sum", graph, before=(zeros,), after=(rounded,), scratch=4 * p.n)


def _backward_graph(op: MatmulGeluGrad, p: Product, h: Spec, dh: Spec) -> tuple[Graph, Mapping[int, Place]]:
    """Product > gelu's derivative at h, and the sum over the rows in float32 at the start of the workspace."""
    made, value, (a, b) = multiplied(p, dh.dtype, virtual=True)
    out = made.tensor((1, p.m, p.n), p.c_strides, dh.dtype.name)
    given = Epilogue((op.grad,), (h,), 2).attach(made, value, out, dh.shape, dh.physical, matrices)
    total = made.reduce("add", out, made.tensor((1, 1, p.n), (p.n, p.n, 1), "float32"))
    return made, {a: source(0), b: source(1), out.uid: target(0), total.uid: scratch(), **given}
