"""The CUDA backend on a GPU: what the test of all ops does not see. Every test stands alone and is small, but for
those whose names say otherwise; run them under compute-sanitizer with `-k "not large"`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import conv
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.transforms import padded_formulation, space_to_depth_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, plain_formulation
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.matmul import matmul
from lamina.backends.cuda.select import autotune, formulations
from lamina.backends.cuda.select.formulations import candidates, make_plan
from lamina.backends.reference import run_reference
from lamina.cudnn import Choice, ExecutionPlan, Handle, PlanStore, handle_of
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    CrossEntropy,
    Dropout,
    Fused,
    Matmul,
    MaxPool,
    MaxPoolGrad,
    Mul,
    Reduce,
    Relu,
    ReluGrad,
    SgdUpdate,
    Softmax,
    Transpose,
    Window,
)
from lamina.runtime import Device, from_host, to_host
from lamina.spec import (
    DType,
    Policy,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
    int64,
    pack,
    unpack,
)
from tests.helpers.eager import mismatch, run_on

pytestmark = pytest.mark.gpu
FASTEST = Policy(algorithm="fastest")


@pytest.fixture
def device() -> Device:
    return Device("cuda:0")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Device) -> Iterator[PlanStore]:
    """A plan store of this test's own, and nothing planned yet."""
    own = PlanStore(device.name, "test", tmp_path)
    monkeypatch.setattr(formulations, "plan_store", lambda _: own)
    _forget()
    yield own
    _forget()


def _forget() -> None:
    conv._cached.cache_clear()
    matmul._cached.cache_clear()


def normal(shape: tuple[int, ...], dtype: DType = float32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype.numpy)


def check(device: Device, op: Op, arrays: list[Array], policy: Policy | None = None) -> Sequence[Array]:
    found = run_on(backend(device), op, arrays, policy=policy)
    wanted = run_reference(op, arrays, float64)
    for y, ref in zip(found, wanted, strict=True):
        problem = mismatch(y, ref, as_dtype(y.dtype))
        assert not problem, f"{op}: {problem}"
    return found


def window(stride: int = 1, pad: int = 1) -> Window:
    return Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))


# -------------------------------------------------------------------------------------------------- layouts


@pytest.mark.feature("F044", "F075")
@pytest.mark.parametrize("dtype", [float64, float32, bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 3, 48, 64), (3, 64, 33, 31), (1, 8, 1, 9), (5, 1, 4, 4)])
def test_reorders_there_and_back(device: Device, dtype: DType, shape: tuple[int, ...]) -> None:
    x = normal(shape, dtype)
    first, last = Spec(shape, dtype).fixed, Spec(shape, dtype, channels_last(shape))
    for given, wanted in ((first, last), (last, first)):
        plan = backend(device).reorder(given, wanted)
        source, out = (
            from_host(pack(x, given.physical).view(np.uint8), device),
            device.allocate(wanted.nbytes),
        )
        plan.bind(Call((source.pointer,), (out.pointer,), 0, device.default_stream.handle))()
        found = unpack(to_host(out).view(dtype.numpy), wanted.physical, shape)
        np.testing.assert_array_equal(found, x)


CHANNELS_LAST: dict[str, tuple[Op, list[tuple[int, ...]]]] = {
    "pool": (MaxPool((3, 3), Window((2, 2), ((1, 1), (1, 1)), (1, 1)), True), [(2, 16, 9, 11)]),
    "sum": (Reduce("sum", (0, 2, 3)), [(3, 24, 9, 7)]),
    "softmax": (Softmax((1,)), [(2, 40, 5, 3)]),
    "add": (Add(), [(2, 16, 5, 3), (16, 1, 1)]),
    "transpose": (Transpose((0, 2, 3, 1)), [(2, 5, 4, 3)]),
}


@pytest.mark.feature("F018")
@pytest.mark.parametrize("name", CHANNELS_LAST)
@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_channels_last(device: Device, name: str, dtype: DType) -> None:
    op, shapes = CHANNELS_LAST[name]
    arrays = [normal(s, dtype, i) for i, s in enumerate(shapes)]
    layouts = [Spec(s, dtype, channels_last(s)) for s in shapes]
    found = run_on(backend(device), op, arrays, layouts)
    for y, ref in zip(found, run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, ref, as_dtype(y.dtype))


@pytest.mark.feature("F063")
@pytest.mark.parametrize("last", [False, True])
def test_dropout_drops_the_same_elements_in_every_layout(device: Device, last: bool) -> None:
    x, state = normal((3, 8, 6, 5)), np.array([5, 2**32 - 3])
    layout = channels_last(x.shape) if last else contiguous(x.shape)
    layouts = [Spec(x.shape, float32, layout), Spec((2,), int64).fixed]
    found = run_on(backend(device), Dropout(0.3), [x, state], layouts)
    for y, ref in zip(found, Dropout(0.3).reference(x, state), strict=True):
        np.testing.assert_allclose(y, ref, rtol=1e-6)


def _at(device: Device, plan: Plan, arrays: list[Array], shift: int) -> tuple[Array, ...]:
    """Run a plan with operands `shift` bytes off alignment."""
    held = []
    for array, spec in zip(arrays, plan.inputs, strict=True):
        data = pack(array, spec.physical).view(np.uint8).reshape(-1)
        held.append(from_host(np.concatenate([np.zeros(shift, np.uint8), data]), device))
    outs = [device.allocate(s.nbytes + shift) for s in plan.outputs]
    scratch = device.allocate(plan.workspace)
    stream = device.default_stream
    inputs, outputs = tuple(b.pointer + shift for b in held), tuple(b.pointer + shift for b in outs)
    plan.bind(Call(inputs, outputs, scratch.pointer, stream.handle))()
    stream.synchronize()
    return tuple(
        unpack(to_host(b)[shift:].copy().view(s.dtype.numpy), s.physical, s.shape)
        for b, s in zip(outs, plan.outputs, strict=True)
    )


@pytest.mark.feature("F011")
@pytest.mark.parametrize(
    "op",
    [
        Add(),
        MaxPool((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True),
        Reduce("sum", (0, 2, 3)),
        Conv(window()),
    ],
    ids=lambda op: op.name,
)
def test_addresses_that_are_not_aligned(device: Device, op: Op) -> None:
    """Views into foreign arrays may start anywhere."""
    shapes = {"add": [(2, 16, 6, 6)] * 2, "conv": [(2, 16, 6, 6), (8, 16, 3, 3)]}.get(
        op.name, [(2, 16, 6, 6)]
    )
    arrays = [normal(s, bfloat16, i) for i, s in enumerate(shapes)]
    plan = backend(device).plan(op, [Spec(s, bfloat16) for s in shapes], Policy())
    for y, ref in zip(_at(device, plan, arrays, 2), run_reference(op, arrays, float64), strict=True):
        assert not mismatch(y, ref, as_dtype(y.dtype))


# ------------------------------------------------------------------------------------------------- in place


def test_in_place(device: Device) -> None:
    """An output may take over its input's memory where the plan says so."""
    cases: list[tuple[Op, list[Array]]] = [
        (Relu(), [normal((5, 7))]),
        (Add(), [normal((4, 6)), normal((6,))]),
        (Softmax((1,)), [normal((9, 33))]),
        (
            SgdUpdate(0.9, 0.0, 1e-3, True),
            [normal((13,)), normal((13,), seed=1), normal((13,), seed=2), np.float32(0.1)],
        ),
    ]
    for op, arrays in cases:
        arrays = [np.asarray(a) for a in arrays]
        plan = backend(device).plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
        assert plan.aliases, str(op)
        held = [
            from_host(pack(a, s.physical).view(np.uint8), device)
            for a, s in zip(arrays, plan.inputs, strict=True)
        ]
        outs = [
            held[plan.aliases[i]] if i in plan.aliases else device.allocate(s.nbytes)
            for i, s in enumerate(plan.outputs)
        ]
        stream = device.default_stream
        pointers = tuple(b.pointer for b in held), tuple(b.pointer for b in outs)
        plan.bind(Call(*pointers, 0, stream.handle))()
        stream.synchronize()
        for b, s, ref in zip(outs, plan.outputs, run_reference(op, arrays, float64), strict=True):
            found = unpack(to_host(b).view(s.dtype.numpy), s.physical, s.shape)
            assert not mismatch(found, ref, s.dtype), str(op)


# ---------------------------------------------------------------------------------------------------- graphs


CAPTURED: dict[str, tuple[Op, list[Array]]] = {
    "conv": (Conv(window()), [normal((2, 16, 8, 8), bfloat16), normal((8, 16, 3, 3), bfloat16)]),
    "filter gradient": (
        ConvFilterGrad(window(), (3, 3)),
        [normal((2, 16, 8, 8), bfloat16), normal((2, 8, 8, 8), bfloat16)],
    ),
    "matmul": (Matmul(False, True), [normal((16, 32), bfloat16), normal((24, 32), bfloat16)]),
    "deep": (
        Conv(Window((4, 4), ((0, 0), (0, 0)), (1, 1))),
        [normal((2, 1, 35, 35), bfloat16), normal((8, 1, 11, 11), bfloat16)],
    ),
    "sum": (Reduce("sum", (0,)), [normal((50_000, 16))]),
    "pool": (
        MaxPool((3, 3), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True),
        [normal((2, 8, 9, 9), bfloat16)],
    ),
    "loss": (CrossEntropy(), [normal((9, 10)), np.arange(9) % 10]),
    "dropout": (Dropout(0.5), [normal((7, 9)), np.array([1, 2])]),
    "chain": (Fused((Add(), Relu(), Mul())), [normal((4, 6)), normal((6,)), normal((4, 6), seed=3)]),
}


@pytest.mark.feature("F037", "B016")
@pytest.mark.parametrize("name", CAPTURED)
def test_plans_are_captured_in_a_cuda_graph(device: Device, name: str) -> None:
    op, arrays = CAPTURED[name]
    plan = backend(device).plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    held = [
        from_host(pack(a, s.physical).view(np.uint8), device)
        for a, s in zip(arrays, plan.inputs, strict=True)
    ]
    outs = [device.allocate(s.nbytes) for s in plan.outputs]
    scratch = device.allocate(plan.workspace)
    with device.stream() as stream:
        device.synchronize()
        pointers = tuple(b.pointer for b in held), tuple(b.pointer for b in outs)
        run = plan.bind(Call(*pointers, scratch.pointer, stream.handle))
        run()  # libraries load lazily
        stream.synchronize()
        with stream.capture() as graph:
            run()
        for out in outs:
            device.platform.fill(out.pointer, 0xFF, out.nbytes, stream)
        graph.launch(stream)
        stream.synchronize()
        assert graph.node_count >= 1
        for b, s, ref in zip(outs, plan.outputs, run_reference(op, arrays, float64), strict=True):
            found = unpack(to_host(b)[: s.nbytes].view(s.dtype.numpy), s.physical, s.shape)
            assert not mismatch(found, ref, s.dtype)
        graph.close()


@pytest.mark.feature("F015")
def test_the_stream_is_the_calls(device: Device) -> None:
    """One plan bound for two streams runs on each."""
    op, arrays = CAPTURED["conv"]
    plan = backend(device).plan(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    held = [
        from_host(pack(a, s.physical).view(np.uint8), device)
        for a, s in zip(arrays, plan.inputs, strict=True)
    ]
    scratch = device.allocate(plan.workspace)
    spec = plan.outputs[0]
    with device.stream() as first, device.stream() as second:
        runs = []
        for stream in (first, second):
            out = device.allocate(spec.nbytes)
            call = Call(tuple(b.pointer for b in held), (out.pointer,), scratch.pointer, stream.handle)
            runs.append((plan.bind(call), out, stream))
        device.synchronize()
        for run, _, stream in runs + runs:
            run()
            stream.synchronize()
        (ref,) = run_reference(op, arrays, float64)
        for _, out, _ in runs:
            found = unpack(to_host(out)[: spec.nbytes].view(spec.dtype.numpy), spec.physical, spec.shape)
            assert not mismatch(found, ref, spec.dtype)


# ------------------------------------------------------------------------------------- formulations, precision


STRIDED = {
    "alexnet": ((3, 1, 51, 47), (16, 1, 11, 11), 4, 0),
    "resnet": ((2, 3, 33, 31), (8, 3, 7, 7), 2, 3),
}


@pytest.mark.parametrize("case", STRIDED)
@pytest.mark.parametrize("direction", [Conv, ConvDataGrad, ConvFilterGrad])
@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_every_formulation_gives_the_same(
    device: Device, case: str, direction: Direction, dtype: DType
) -> None:
    x_shape, w_shape, stride, pad = STRIDED[case]
    win = window(stride, pad)
    x, w = normal(x_shape, dtype), normal(w_shape, dtype, 1)
    (y,) = Conv(win).infer(Spec(x_shape, dtype), Spec(w_shape, dtype))
    g = normal(y.shape, dtype, 2)
    op, arrays = {
        Conv: (Conv(win), [x, w]),
        ConvDataGrad: (ConvDataGrad(win, x_shape[2:]), [g, w]),
        ConvFilterGrad: (ConvFilterGrad(win, w_shape[2:]), [x, g]),
    }[direction]
    o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in (x_shape, w_shape, y.shape)))
    problem = conv_problem(direction, o, device)
    assert {"padded", "plain", "direct"} <= {formulation.name for formulation in problem.formulations}
    (ref,) = run_reference(op, arrays, float64)
    seen = set()
    for found in candidates(problem, handle_of(device), Policy(), ("a", "fallback"), []):
        if found.formulation.name in seen:
            continue  # the first engine of each way
        seen.add(found.formulation.name)
        (result,) = _run(device, make_plan(problem, found, device), arrays)
        problem_found = mismatch(result, ref, dtype)
        assert not problem_found, f"{found.label}: {problem_found}"
    assert seen == {formulation.name for formulation in problem.formulations}


def _run(device: Device, plan: Plan, arrays: list[Array]) -> tuple[Array, ...]:
    return _at(device, plan, arrays, 0)


@pytest.mark.feature("B017", "F093")
@pytest.mark.parametrize("policy", [Policy(), FASTEST], ids=["heuristic", "fastest"])
def test_float32_is_float32_unless_tf32_is_asked_for(
    device: Device, store: PlanStore, policy: Policy
) -> None:
    """TF32 rounds to 10 bits of mantissa: an error near 3e-4. The default keeps far below."""
    x, w = normal((4, 64, 14, 14)), normal((64, 64, 3, 3), seed=1)
    a, b = normal((96, 256)), normal((80, 256), seed=1)
    for op, arrays in ((Conv(window()), [x, w]), (Matmul(False, True), [a, b])):
        (exact,) = run_reference(op, arrays, float64)
        (found,) = run_on(backend(device), op, arrays, policy=policy)
        error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
        assert error < 3e-5, f"{op}: relative error {error:.1e}"
        (rough,) = run_on(backend(device), op, arrays, policy=Policy(tf32=True, algorithm=policy.algorithm))
        assert np.linalg.norm(rough - exact) / np.linalg.norm(exact) < 2e-3


@pytest.mark.feature("F091")
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
def test_deterministic_plans_repeat_bit_by_bit(device: Device, store: PlanStore, algorithm: str) -> None:
    policy = Policy(deterministic=True, algorithm=algorithm)
    x, g = normal((16, 24, 15, 15), bfloat16), normal((16, 32, 15, 15), bfloat16, 1)
    op = ConvFilterGrad(window(), (3, 3))
    results = [run_on(backend(device), op, [x, g], policy=policy)[0] for _ in range(4)]
    assert all(r.tobytes() == results[0].tobytes() for r in results)
    y = normal((20_000, 40))
    sums = [run_on(backend(device), Reduce("sum", (0,)), [y])[0] for _ in range(3)]
    assert all(s.tobytes() == sums[0].tobytes() for s in sums)


@pytest.mark.feature("B011", "F088")
def test_workspace_limit_holds(device: Device, store: PlanStore) -> None:
    for algorithm in ("heuristic", "fastest", "fallback"):
        policy = Policy(workspace_limit=0, algorithm=algorithm)
        x, w = Spec((4, 32, 14, 14), float32), Spec((32, 32, 3, 3), float32)
        plan = backend(device).plan(Conv(window()), [x, w], policy)
        assert plan.workspace == 0, algorithm
        check(device, Conv(window()), [normal(x.shape), normal(w.shape, seed=1)], policy)


@pytest.mark.feature("F052", "B013")
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
@pytest.mark.parametrize("policy", [Policy(), FASTEST], ids=["heuristic", "fastest"])
def test_fused_convolutions_and_products(
    device: Device, store: PlanStore, dtype: DType, policy: Policy
) -> None:
    x, w, bias = (
        normal((4, 16, 9, 9), dtype),
        normal((24, 16, 3, 3), dtype, 1),
        normal((1, 24, 1, 1), dtype, 2),
    )
    check(device, Fused((Conv(window()), Add(), Relu())), [x, w, bias], policy)
    a, b, c = normal((32, 48), dtype), normal((40, 48), dtype, 1), normal((40,), dtype, 2)
    check(device, Fused((Matmul(False, True), Add(), Relu())), [a, b, c], policy)
    first, small = normal((2, 1, 35, 35), dtype), normal((8, 1, 11, 11), dtype, 1)
    strided = Conv(Window((4, 4), ((0, 0), (0, 0)), (1, 1)))
    check(device, Fused((strided, Add(), Relu())), [first, small, normal((1, 8, 1, 1), dtype, 2)], policy)


@pytest.mark.feature("F052")
def test_residual_epilogue(device: Device) -> None:
    x, w = normal((2, 32, 8, 8), bfloat16), normal((32, 32, 3, 3), bfloat16, 1)
    op = Fused((Conv(window()), Add(), Add(), Relu()))
    check(device, op, [x, w, normal((1, 32, 1, 1), bfloat16, 2), normal((2, 32, 8, 8), bfloat16, 3)])


@pytest.mark.feature("B006")
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
def test_plans_from_disk_compute_the_same(
    device: Device, store: PlanStore, tmp_path: Path, algorithm: str
) -> None:
    """Epilogues, whose kernels are compiled at run time: made, then loaded, bit by bit the same."""
    x, w, b = (
        normal((4, 32, 14, 14), bfloat16),
        normal((64, 32, 3, 3), bfloat16, 1),
        normal((1, 64, 1, 1), bfloat16, 2),
    )
    g, y = normal((4, 64, 14, 14), bfloat16, 3), normal((4, 32, 14, 14), bfloat16, 4)
    a, m = normal((96, 64), bfloat16, 5), normal((128, 64), bfloat16, 6)
    cases = [
        (Fused((Conv(window()), Add(), Relu())), [x, w, b]),
        (Fused((ConvDataGrad(window(), (14, 14)), ReluGrad())), [g, w, y]),
        (Fused((Matmul(False, True), Add(), Relu())), [a, m, normal((1, 128), bfloat16, 7)]),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAMINA_CACHE", str(tmp_path))
        made = [check(device, op, arrays, Policy(algorithm=algorithm)) for op, arrays in cases]
        kept = {file.name: file.read_bytes() for file in (tmp_path / "compiled").iterdir()}
        assert kept
        _forget()
        patch.setattr(ExecutionPlan, "json", property(_no_contest))  # what is loaded is not written again
        loaded = [check(device, op, arrays, Policy(algorithm=algorithm)) for op, arrays in cases]
    for first, second in zip(made, loaded, strict=True):
        assert [v.tobytes() for v in first] == [v.tobytes() for v in second]
    assert {file.name: file.read_bytes() for file in (tmp_path / "compiled").iterdir()} == kept


@pytest.mark.feature("B008", "B013")
def test_an_epilogue_that_nothing_takes_says_why(device: Device) -> None:
    """float64 with a residual: the graph keeps the steps apart, and the refusal lists the engines' reasons."""
    specs = [Spec(s, float64) for s in ((2, 3, 5, 6), (4, 3, 3, 3), (1, 4, 1, 1), (2, 4, 5, 6))]
    op = Fused((Conv(window()), Add(), Add(), Relu()))
    with pytest.raises(NoKernel, match=r"(?s)cuda has no plan for conv.*\n  - plain: heuristic"):
        backend(device).plan(op, specs, Policy())


# --------------------------------------------------------------------------------------------------- the contest


@pytest.mark.feature("B009", "B010", "F080", "F084", "F086")
def test_the_fastest_plan_is_remembered(device: Device, store: PlanStore) -> None:
    """A second process finds the choice in the file and times nothing."""
    x, w = Spec((8, 32, 20, 20), bfloat16), Spec((32, 32, 3, 3), bfloat16)
    first = backend(device).plan(Conv(window()), [x, w], FASTEST)
    (key,) = store.keys()
    entry = store.get(key)
    assert entry is not None
    assert entry.milliseconds > 0
    assert entry.formulation in first.label
    _forget()
    again = PlanStore(device.name, "test", store.path.parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulations, "plan_store", lambda _: again)
        patch.setattr(autotune, "contest", _no_contest)
        second = backend(device).plan(Conv(window()), [x, w], FASTEST)
    assert second.label == first.label
    check(device, Conv(window()), [normal(x.shape, bfloat16), normal(w.shape, bfloat16, 1)], FASTEST)


def _no_contest(*arguments: object) -> None:
    raise AssertionError("the choice was in the store: nothing should be timed")


@pytest.mark.feature("B010")
def test_a_choice_that_does_not_build_is_made_anew(device: Device, store: PlanStore) -> None:
    x, w = Spec((4, 16, 12, 12), bfloat16), Spec((16, 16, 3, 3), bfloat16)
    backend(device).plan(Conv(window()), [x, w], FASTEST)
    (key,) = store.keys()
    store.put(key, Choice("plain", 9999, ((1, 2),)))
    _forget()
    backend(device).plan(Conv(window()), [x, w], FASTEST)
    again = PlanStore(device.name, "test", store.path.parent).get(key)
    assert again is not None
    assert again.engine != 9999


@pytest.mark.feature("B009", "B011")
def test_fastest_agrees_with_heuristic(device: Device, store: PlanStore) -> None:
    x, w = normal((4, 24, 13, 13), bfloat16), normal((40, 24, 3, 3), bfloat16, 1)
    check(device, Conv(window()), [x, w], FASTEST)
    check(device, ConvDataGrad(window(), (13, 13)), [normal((4, 40, 13, 13), bfloat16), w], FASTEST)
    check(device, ConvFilterGrad(window(), (3, 3)), [x, normal((4, 40, 13, 13), bfloat16)], FASTEST)
    check(device, Matmul(), [normal((40, 24), bfloat16), normal((24, 16), bfloat16)], FASTEST)


@pytest.mark.feature("F013", "F015")
def test_handles(device: Device) -> None:
    with Handle(device) as handle, device.stream() as stream:
        handle.use(stream.handle)
        assert handle.stream == stream.handle
        assert handle_of(device) is handle_of(device)
        assert handle_of(device) is not handle
    assert handle.closed
    handle.close()
    with pytest.raises(ValueError, match="was closed"):
        _ = handle.address


# ------------------------------------------------------------------------------------------------ large and slow


@pytest.mark.feature("F054")
def test_large_pooling_and_its_gradient(device: Device) -> None:
    win = Window((2, 2), ((0, 0), (0, 0)), (1, 1))
    x = normal((16, 96, 54, 54), bfloat16)
    y, index = run_on(backend(device), MaxPool((3, 3), win, True), [x])
    wanted, places = MaxPool((3, 3), win, True).reference(x)
    np.testing.assert_array_equal(y.view(np.uint16), wanted.view(np.uint16))
    np.testing.assert_array_equal(index, places)
    g = normal(y.shape, bfloat16, 1)
    check(device, MaxPoolGrad((3, 3), win, (54, 54)), [g, index])


def test_large_space_to_depth_against_plain(device: Device) -> None:
    """AlexNet's first layer at batch 128: the deep formulation equals the plain one, both ways."""
    win = Window((4, 4), ((0, 0), (0, 0)), (1, 1))
    x, w, g = (normal(s, bfloat16) for s in ((128, 1, 224, 224), (96, 1, 11, 11), (128, 96, 54, 54)))
    o = Operands(win, *(Spec(a.shape, bfloat16, channels_last(a.shape)) for a in (x, w, g)))
    for direction, arrays in ((Conv, [x, w]), (ConvFilterGrad, [x, g])):
        problem = conv_problem(direction, o, device)
        results = []
        for formulation in (
            space_to_depth_formulation(direction, o, NONE),
            padded_formulation(direction, o, NONE),
            plain_formulation(direction, o, NONE),
        ):
            one = formulations.Problem(
                problem.key, direction.name, problem.inputs, problem.outputs, (formulation,), 0
            )
            found = next(candidates(one, handle_of(device), Policy(), ("a", "fallback"), []))
            results.append(_run(device, make_plan(one, found, device), arrays)[0].astype(np.float64))
        for other in results[1:]:
            error = np.linalg.norm(other - results[0]) / np.linalg.norm(results[0])
            assert error < 1e-2, f"{direction.name}: {error:.1e}"
