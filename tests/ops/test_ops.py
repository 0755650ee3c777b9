"""The one test of all ops: every op with its samples on every backend in every dtype, and its gradients."""

import inspect
from dataclasses import MISSING, fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda.attention.joint_attention_fusion import JointAttention
from lamina.backends.cuda.attention.parted_attention_fusion import PartedAttention
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import PoolNormGrad
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm
from lamina.backends.reference import run_reference
from lamina.graph.ir.graph import Value, reachable
from lamina.ops.core import REGISTRY, Array, Op, Sample, bind
from lamina.ops.primitives import Cast, Fused, FusedElementwise
from lamina.ops.primitives.attention import Attention
from lamina.ops.primitives.rnn import RnnGrad
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Policy,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    dense,
    float16,
    float32,
    float64,
)
from tests.helpers.eager import Eager, apart, execute, gradients, mismatch, numeric, run_on
from tests.helpers.registered import registered

OPS = registered()
#: Ops that exist for a backend's fusions are that backend's alone, and have their meaning on the reference backend.
PUBLIC = [name for name in OPS if REGISTRY[name].__module__.startswith("lamina.ops.")]
#: Ops with sums in a wider type over what they rounded to a half type on the way.
WITH_STATISTICS = (Attention, JointAttention, PartedAttention, ConvNorm, DataGradNorm, PoolNormGrad)
DIFFERENTIABLE = [name for name in OPS if REGISTRY[name].differentiable]
#: The number of directions in which a gradient is checked; small inputs are checked in every element.
DIRECTIONS = 3


def _rng(sample: Sample) -> np.random.Generator:
    return np.random.default_rng(sum(map(ord, str(sample))))


def _may_refuse(op: Op) -> bool:
    """Whether a backend may have no plan for it: a graph then keeps the parts apart."""
    return isinstance(op, Fused | FusedElementwise) or (
        isinstance(op, DataGradNorm) and isinstance(op.grad, Fused)
    )


def _precision(op: Op, dtype: DType, output: Spec) -> DType:
    """What an output is as precise as: wide statistics are sums over what was rounded to a half type."""
    return dtype if isinstance(op, WITH_STATISTICS) else output.dtype


def _check_values(backend: backends.Backend, op_class: type[Op]) -> list[str]:
    """One line for each sample and dtype whose outputs are wrong.

    A backend may refuse what is fused (its parts then run one by one), but not all samples of an op.
    """
    wrong, ran = [], 0
    for sample in op_class.samples():
        for dtype in sample.dtypes or op_class.dtypes:
            arrays = sample.draw(_rng(sample), dtype)
            specs = sample.op.infer(*(Spec(a.shape, as_dtype(a.dtype)) for a in arrays))
            wanted = run_reference(sample.op, arrays, float64)
            try:
                found = run_on(backend, sample.op, arrays)
            except backends.NoKernel:
                if not _may_refuse(sample.op):
                    raise
                continue
            ran += 1
            assert len(found) == len(wanted) == len(specs), f"{sample} {dtype}: number of outputs"
            for i, (y, ref, spec) in enumerate(zip(found, wanted, specs, strict=True)):
                problem = mismatch(y, ref, _precision(sample.op, dtype, spec))
                if problem and isinstance(sample.op, RnnGrad) and dtype in (float16, bfloat16):
                    # rounded at every step of every layer
                    problem = apart(y, ref, spec.dtype, arrays[0].shape[0] * sample.op.layers)
                if (y.shape, as_dtype(y.dtype)) != (spec.shape, spec.dtype):
                    problem = f"{y.dtype}{list(y.shape)} where infer says {spec}"
                if problem:
                    wrong.append(f"{sample} {dtype} output {i}: {problem}")
    assert ran or not backend.supports(op_class), f"{backend.name} refuses every sample of {op_class.name}"
    return wrong


@pytest.mark.feature("F105", "F117", "F118")
@pytest.mark.parametrize("name", OPS)
def test_values_on_reference(name: str) -> None:
    """Half types stay within their tolerance of float64; outputs have the shapes and dtypes of infer."""
    assert _check_values(backends.get(Device("cpu"), "reference"), REGISTRY[name]) == []


@pytest.mark.parametrize("name", [name for name in OPS if REGISTRY[name].alone])
def test_what_one_output_alone_depends_on(name: str) -> None:
    moved = set()
    for sample in REGISTRY[name].samples():
        arrays = sample.draw(_rng(sample), float32)
        before = run_reference(sample.op, arrays, float64)
        for i, only in sample.op.alone.items():
            changed = [2 * x + 1 if k == i else x for k, x in enumerate(arrays)]
            after = run_reference(sample.op, changed, float64)
            differ = {
                k for k, pair in enumerate(zip(before, after, strict=True)) if not np.array_equal(*pair)
            }
            assert differ <= {only}
            moved |= differ
    assert moved == set(REGISTRY[name].alone.values())


@pytest.mark.feature("F105", "F117", "F118")
@pytest.mark.parametrize("name", PUBLIC)
def test_values_on_cpu(name: str) -> None:
    assert _check_values(backends.get(Device("cpu"), "cpu"), REGISTRY[name]) == []


@pytest.mark.gpu
@pytest.mark.feature("F105", "F117", "F118")
@pytest.mark.parametrize("name", OPS)
def test_values_on_cuda(name: str) -> None:
    assert _check_values(backends.get(Device("cuda:0"), "cuda"), REGISTRY[name]) == []


def _with_gaps(spec: Spec) -> Spec:
    """Each line as a part of one that has 8 elements more, behind which the next one begins."""
    if not spec.numel or not spec.ndim:
        return spec
    innermost = min(range(spec.ndim), key=lambda axis: (spec.physical.strides[axis], -axis))
    wider = list(spec.shape)
    wider[innermost] = -(-spec.shape[innermost] // 8) * 8 + 8
    order = sorted(range(spec.ndim), key=lambda axis: (-spec.physical.strides[axis], axis))
    return Spec(spec.shape, spec.dtype, dense(tuple(wider), tuple(order)))


def _check_layouts(backend: backends.Backend, op_class: type[Op]) -> None:
    """Layouts left open, tensors that lie channels-last, and parts of either: the same values."""
    for sample in op_class.samples():
        dtypes = sample.dtypes or op_class.dtypes
        wide = float32 if float32 in dtypes else dtypes[0]
        for dtype in dict.fromkeys((wide, bfloat16 if bfloat16 in dtypes else wide)):
            arrays = sample.draw(_rng(sample), dtype)
            wanted = run_reference(sample.op, arrays, float64)
            plain = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
            last = [Spec(s.shape, s.dtype, channels_last(s.shape)) for s in plain]
            whole = (plain, last) if dtype == wide else ()
            for specs in (*whole, [_with_gaps(s) for s in plain], [_with_gaps(s) for s in last]):
                try:
                    found = run_on(backend, sample.op, arrays, specs)
                except backends.NoKernel:
                    assert _may_refuse(sample.op), f"{backend.name}: {sample} {specs}"
                    continue
                for y, ref, spec in zip(found, wanted, sample.op.infer(*plain), strict=True):
                    problem = mismatch(y, ref, _precision(sample.op, dtype, spec))
                    if problem and isinstance(sample.op, RnnGrad) and dtype == bfloat16:
                        problem = apart(y, ref, spec.dtype, arrays[0].shape[0] * sample.op.layers)
                    assert not problem, f"{sample} from {specs}: {problem}"


@pytest.mark.parametrize("name", OPS)
def test_layouts_on_reference(name: str) -> None:
    _check_layouts(backends.get(Device("cpu"), "reference"), REGISTRY[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_layouts_on_cpu(name: str) -> None:
    _check_layouts(backends.get(Device("cpu"), "cpu"), REGISTRY[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_layouts_on_cuda(name: str) -> None:
    _check_layouts(backends.get(Device("cuda:0"), "cuda"), REGISTRY[name])


def _check_in_place(backend: backends.Backend, op_class: type[Op]) -> None:
    """Outputs that a plan lets lie over an input are the same there."""
    for sample in op_class.samples():
        for dtype in sample.dtypes or op_class.dtypes:
            arrays = sample.draw(_rng(sample), dtype)
            specs = [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]
            try:
                plan = backend.plan(sample.op, specs, Policy())
            except backends.NoKernel:
                assert _may_refuse(sample.op), f"{backend.name}: {sample} {dtype}"
                continue
            if not plan.aliases or plan.view:
                continue
            for o, i in plan.aliases.items():
                assert plan.outputs[o].same_memory(plan.inputs[i]), (
                    f"{sample} {dtype}: output {o} over input {i}"
                )
            apart = execute(backend.device, plan, arrays)
            over = execute(backend.device, plan, arrays, in_place=True)
            for a, b in zip(apart, over, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{sample} {dtype}")


@pytest.mark.parametrize("name", OPS)
def test_outputs_may_take_over_inputs_of_their_own_size(name: str) -> None:
    """What `inplace` names is there, each input once; an example has as many elements of one type in both."""
    op_class, fitting = REGISTRY[name], set()
    assert len(set(op_class.inplace.values())) == len(op_class.inplace)
    for sample in op_class.samples():
        dtype = (sample.dtypes or op_class.dtypes)[0]
        specs = [Spec(a.shape, a.dtype or dtype) for a in sample.args]
        outputs = sample.op.infer(*specs)
        for o, i in op_class.inplace.items():
            if o < len(outputs) and i < len(specs):
                y, x = outputs[o], specs[i]
                fitting |= {o} if (y.numel, y.dtype) == (x.numel, x.dtype) else set()
    assert fitting == set(op_class.inplace)


IN_PLACE = [name for name in OPS if REGISTRY[name].inplace]


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_on_reference(name: str) -> None:
    _check_in_place(backends.get(Device("cpu"), "reference"), REGISTRY[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_in_place_on_cpu(name: str) -> None:
    _check_in_place(backends.get(Device("cpu"), "cpu"), REGISTRY[name])


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPS)
def test_in_place_on_cuda(name: str) -> None:
    _check_in_place(backends.get(Device("cuda:0"), "cuda"), REGISTRY[name])


@pytest.mark.parametrize("name", OPS)
def test_null_plans_what_infer_says(name: str) -> None:
    backend = backends.get(Device("cpu"), "null")
    for sample in REGISTRY[name].samples():
        dtype = (sample.dtypes or REGISTRY[name].dtypes)[0]
        specs = [Spec(a.shape, a.dtype or dtype) for a in sample.args]
        plan = backend.plan(sample.op, specs, Policy())
        assert [s.open for s in plan.outputs] == [s.open for s in sample.op.infer(*specs)]
        plan.bind(backends.Call((0,) * len(specs), (0,) * len(plan.outputs)))()


@pytest.mark.parametrize("name", OPS)
def test_ops_are_values(name: str) -> None:
    """Equal fields make equal, hashable ops that print alike; the registry finds them by name."""
    first, second = list(REGISTRY[name].samples()), list(REGISTRY[name].samples())
    assert first == second
    assert len({s.op for s in first}) == len(dict.fromkeys(map(str, (s.op for s in first))))
    assert all(str(s.op).startswith(name + "(") and type(s.op) is REGISTRY[name] for s in first)
    assert all(s.op.arity in (None, len(s.args)) for s in first)
    assert REGISTRY[name].__doc__


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_differentiable_ops_have_samples(name: str) -> None:
    samples = list(_gradient_samples(name))
    assert len(samples) >= 5, f"{name} has {len(samples)} samples whose gradient can be checked"


def _gradient_samples(name: str) -> list[Sample]:
    """Samples in float64 with at least one input that the op is differentiable in."""
    op_class = REGISTRY[name]
    return [
        s
        for s in op_class.samples()
        if float64 in (s.dtypes or op_class.dtypes) and any(_varies(s, i) for i in range(len(s.args)))
    ]


def _varies(sample: Sample, i: int) -> bool:
    arg = sample.args[i]
    return arg.differentiable and (arg.dtype or float64) == float64 and not arg.integers and arg.value is None


def _eps(op: Op) -> float:
    """The step of the finite differences: larger where the op itself rounds."""
    return 1e-2 if isinstance(op, Cast) and op.dtype != float64 else 1e-6


def _directions(x: Array, rng: np.random.Generator) -> list[Array]:
    if 0 < x.size <= 24:
        return [np.eye(1, x.size, i).reshape(x.shape) for i in range(x.size)]
    return [rng.standard_normal(x.shape) for _ in range(DIRECTIONS)]


def _close(analytic: float, finite: float, coarse: bool) -> bool:
    absolute, relative = (1e-3, 1e-3) if coarse else (1e-5, 1e-3)
    return abs(analytic - finite) <= absolute + relative * abs(finite)


@pytest.mark.feature("F105", "F118")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient(name: str) -> None:
    """The vjp equals central differences of the reference, in float64."""
    for sample in _gradient_samples(name):
        rng = _rng(sample)
        arrays = sample.draw(rng, float64)
        outputs = run_reference(sample.op, arrays)
        weights = [rng.standard_normal(y.shape) if y.dtype.kind == "f" else None for y in outputs]
        found = _vjp(sample.op, arrays, weights)
        for i in range(len(arrays)):
            if _varies(sample, i):
                _check_direction(sample, arrays, i, weights, found[i], rng)


def _vjp(op: Op, arrays: list[Array], weights: list[Array | None]) -> list[Array]:
    inputs = [Eager(a) for a in arrays]
    outputs = Eager.bind_op(op, inputs)
    grads = [
        None if w is None else Eager(w.astype(y.dtype.numpy)) for w, y in zip(weights, outputs, strict=True)
    ]
    kept = [(y, g) for y, g in zip(outputs, grads, strict=True) if g is not None]
    found = gradients([y for y, _ in kept], [g for _, g in kept], inputs)
    return [np.zeros(x.shape) if g is None else g.value for x, g in zip(inputs, found, strict=True)]


def _check_direction(
    sample: Sample,
    arrays: list[Array],
    i: int,
    weights: list[Array | None],
    found: Array,
    rng: np.random.Generator,
) -> None:
    def loss(x: Array) -> float:
        outputs = run_reference(sample.op, [*arrays[:i], x, *arrays[i + 1 :]])
        return sum(float(np.sum(w * y)) for w, y in zip(weights, outputs, strict=True) if w is not None)

    for direction in _directions(arrays[i], rng):
        analytic = float(np.sum(found * direction))
        finite = numeric(loss, arrays[i], direction, _eps(sample.op))
        assert _close(analytic, finite, isinstance(sample.op, Cast)), (
            f"{sample}: the gradient in input {i} is {analytic}, finite differences say {finite}"
        )


def _has_second_derivative(op_class: type[Op]) -> bool:
    """Whether its gradient is made of ops that have gradients: it is known from what a sample's gradient records."""
    for sample in islice(op_class.samples(), 1):
        dtype = float64 if float64 in (sample.dtypes or op_class.dtypes) else float32
        arrays = sample.draw(_rng(sample), dtype)
        inputs = [Value(Spec(a.shape, as_dtype(a.dtype))) for a in arrays]
        outputs = bind(sample.op, *inputs)
        grads = [Value(y.spec) if y.dtype.is_float else None for y in outputs]
        found = [g for g in sample.op.vjp(grads, inputs, outputs) if isinstance(g, Value)]
        nodes = [n for n in reachable(found) if n.op != sample.op]
        smooth = [n for n in nodes if any(y.dtype.is_float for y in n.outputs)]
        return all(n.op.differentiable or n.op.composed(*n.inputs) is not None for n in smooth)
    return True


@pytest.mark.feature("F105", "F118")
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivative(name: str) -> None:
    """The gradient of the gradient, by the same rules, equals central differences of the gradient.

    Where PyTorch has none (its connectionist temporal classification), the refusal names the op.
    """
    if not _has_second_derivative(REGISTRY[name]):
        sample = next(iter(_gradient_samples(name)))
        with pytest.raises(TypeError, match=f"{name}_grad has no gradient, and the result depends on it"):
            _check_second(sample)
        return
    for sample in islice(_gradient_samples(name), 4):
        _check_second(sample)


def _reference(fn: Any, arrays: list[Array]) -> Any:
    """fn, computed by the ops' meaning in NumPy."""
    return lm.compile(lm.trace(fn, *arrays), "cpu", backend="reference", optimize=False)


def _check_second(sample: Sample) -> None:
    rng = _rng(sample)
    arrays = sample.draw(rng, float64)
    varied = [i for i in range(len(arrays)) if _varies(sample, i)]
    weights = [rng.standard_normal(y.shape) for y in run_reference(sample.op, arrays)]
    inner = [rng.standard_normal(arrays[i].shape) for i in varied]

    def loss(*xs: Any) -> Any:
        outputs = bind(sample.op, *xs)
        pairs = [(y, w) for y, w in zip(outputs, weights, strict=True) if y.dtype.is_float]
        return sum(ops.sum(y * w.astype(y.dtype.numpy)).cast(float64) for y, w in pairs)

    def along(*xs: Any) -> Any:
        first = lm.grad(loss, varied)(*xs)
        return sum(ops.sum(g * w) for g, w in zip(first, inner, strict=True))

    second, first = (_reference(f, arrays) for f in (lm.grad(along, varied), along))
    for i, h in zip(varied, second(*arrays), strict=True):
        direction = rng.standard_normal(arrays[i].shape)
        analytic = float(np.sum(h.numpy() * direction))
        finite = numeric(
            lambda x, i=i: float(first(*arrays[:i], np.asarray(x), *arrays[i + 1 :])[0]),
            arrays[i],
            direction,
            max(1e-5, _eps(sample.op)),
        )
        assert _close(analytic, finite, True), (
            f"{sample}: the second derivative in input {i} is {analytic}, finite differences say {finite}"
        )


def test_defaults_of_ops_are_those_of_their_functions() -> None:
    """Where the function does not leave the choice to what it is given (None)."""
    compared = 0
    for name, kind in REGISTRY.items():
        function = getattr(ops, name, None)
        if not callable(function) or not is_dataclass(kind):
            continue
        parameters = inspect.signature(function).parameters
        for field in fields(kind):
            given = parameters[field.name].default if field.name in parameters else inspect.Parameter.empty
            if MISSING is field.default or given is inspect.Parameter.empty or None in (given, field.default):
                continue
            assert given == field.default, f"{name}: {field.name}"
            compared += 1
    assert compared > 25


@pytest.mark.parametrize("name", [name for name in OPS if not REGISTRY[name].reads_numbers])
def test_results_are_those_of_other_numbers(name: str) -> None:
    for sample in REGISTRY[name].samples():
        (first, second) = (sample.draw(np.random.default_rng(k), sample.op.dtypes[0]) for k in (0, 1))
        for a, b in zip(sample.op.reference(*first), sample.op.reference(*second), strict=True):
            np.testing.assert_array_equal(a, b)
