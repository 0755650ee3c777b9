"""LSTMs and GRUs whose weights stay on the GPU: on a CPU with all blocks at once, compiled for an H200, run on it."""

import ctypes
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.backends import Call, Plan
from lamina.backends.cuda.launch.program import Fill, Launch, Launches, Program, SubPlan, Together
from lamina.backends.cuda.rnn import persistent, rnn
from lamina.backends.cuda.rnn.persistent import Tiling, forward_plan, gradient_plan, tiling
from lamina.backends.reference import run_reference
from lamina.cudnn import Choice, Handle
from lamina.ops.core import Array
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32, float64, uint8
from tests.backends.test_rnn import network
from tests.helpers import emulator, slow_from
from tests.helpers.eager import apart
from tests.helpers.own_programs import hasty_cubin
from tests.helpers.planned import H200, KINDS

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CPU = Device("cpu")


def multiplied(op: Matmul, specs: Sequence[Spec], *rest: Any) -> Plan:
    """A product by NumPy on the addresses of the call."""
    (out,) = op.infer(*specs)

    def make(call: Call) -> Any:
        def run() -> None:
            a, b, c = (view(p, s) for p, s in zip((*call.inputs, *call.outputs), (*specs, out), strict=True))
            c[:] = op.reference(a.astype(np.float32), b.astype(np.float32))[0].astype(c.dtype)

        return run

    return Plan(tuple(s.fixed for s in specs), (out.fixed,), make)


def view(address: int, spec: Spec) -> Array:
    raw = (ctypes.c_uint8 * spec.nbytes).from_address(address)
    return np.frombuffer(raw, spec.dtype.numpy).reshape(spec.shape)


def run(plan: Plan, arrays: Sequence[Array], misaligned: bool = False) -> list[Array]:
    """The outputs of a plan. misaligned: operands at addresses that are odd multiples of an element."""
    assert isinstance(plan.make, Launches)
    places = [2 if misaligned and s.dtype != uint8 else 0 for s in (*plan.inputs, *plan.outputs)]
    given = [np.ascontiguousarray(a).view(np.uint8).reshape(-1) for a in arrays]
    sizes = [*(a.nbytes for a in given), *(s.nbytes for s in plan.outputs)]
    memories = [emulator.Memory(size + place) for size, place in zip(sizes, places, strict=True)]
    for memory, place, raw in zip(memories, places, given, strict=False):
        memory.bytes[place:] = raw
    scratch = emulator.Memory(plan.workspace)
    addresses = [m.pointer + place for m, place in zip(memories, places, strict=True)]
    call = Call(tuple(addresses[: len(given)]), tuple(addresses[len(given) :]), scratch.pointer)
    steps = plan.make.plain() if misaligned and plan.make.plain else plan.make.steps
    emulator.run_steps(steps, call)
    for memory in (*memories, scratch):
        memory.check(plan.label)
    results = zip(memories[len(given) :], plan.outputs, places[len(given) :], strict=True)
    return [m.bytes[place:].copy().view(s.dtype.numpy).reshape(s.shape) for m, s, place in results]


def operands(op: Rnn, sizes: Sizes, dtype: DType) -> list[Array]:
    rng = np.random.default_rng(sizes.batch)
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch)]
    found = [rng.uniform(-1, 1, s) for s in shapes]
    found += [rng.uniform(-1, 1, s) / np.sqrt(op.hidden) for s in op.weight_shapes(sizes.inputs)]
    return [a.astype(dtype.numpy) for a in found]


#: op, sizes, (wave, units, groups, chains), type
CASES = [
    (Rnn("lstm", 128), Sizes(5, 3, 8), (False, 8, 1, 1), float16),
    (Rnn("lstm", 128, 2), Sizes(4, 8, 24), (True, 16, 1, 1), bfloat16),
    (Rnn("lstm", 128, 3, bias=False), Sizes(7, 13, 16), (True, 32, 2, 2), float16),
    (Rnn("lstm", 128, 2), Sizes(3, 37, 16), (False, 8, 1, 1), float16),
    (Rnn("lstm", 384), Sizes(3, 20, 7), (False, 16, 4, 2), float16),
    (Rnn("lstm", 256, 2), Sizes(1, 5, 8), (True, 32, 1, 1), bfloat16),
    (Rnn("lstm", 128, 2), Sizes(5, 11, 16), (False, 128, 2, 1), bfloat16),
    (Rnn("lstm", 128, bias=False), Sizes(1, 8, 9), (False, 128, 1, 1), float16),
    (Rnn("gru", 128), Sizes(6, 16, 128), (False, 128, 2, 1), float16),
    (Rnn("gru", 128, 2, bias=False), Sizes(3, 5, 8), (False, 128, 1, 1), bfloat16),
    (Rnn("gru", 128), Sizes(5, 3, 8), (False, 8, 1, 1), bfloat16),
    (Rnn("gru", 128, 3), Sizes(6, 13, 16), (True, 32, 2, 2), float16),
    (Rnn("gru", 256, 2), Sizes(4, 10, 7), (False, 32, 1, 1), float16),
    (Rnn("gru", 384, 2, bias=False), Sizes(3, 8, 8), (True, 32, 1, 1), float16),
]


@compiler
@pytest.mark.parametrize("misaligned", [False, True])
@pytest.mark.parametrize(("op", "sizes", "shared", "dtype"), slow_from(2, CASES, several=True), ids=str)
def test_values(
    op: Rnn, sizes: Sizes, shared: tuple[bool, int, int, int], dtype: DType, misaligned: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Forward, and the gradients from what it keeps, or from a forward pass of their own."""
    monkeypatch.setattr(persistent, "matmul_plan", multiplied)
    found = Tiling(H200.machine, sizes.steps, sizes.batch, op.hidden, op.layers, *shared)
    assert found.fits
    if not misaligned:  # large tiles, too
        found = replace(found, machine=replace(H200.machine, multiprocessors=12))
    arrays = operands(op, sizes, dtype)
    specs = [Spec(a.shape, dtype).fixed for a in arrays]
    wanted = run_reference(op, [a.astype(np.float64) for a in arrays], float64)
    training = Rnn(op.mode, op.hidden, op.layers, bias=op.bias, reserve=True)
    plan = forward_plan(training, specs, found, CPU, Policy())
    *outputs, reserve = run(plan, arrays, misaligned)
    roundings = sizes.steps * op.layers
    check(op, outputs, wanted, dtype, roundings)
    if not misaligned:
        slim = run(forward_plan(op, specs, found, CPU, Policy()), arrays)
        for a, b in zip(slim, outputs, strict=True):
            np.testing.assert_array_equal(a, b)
    rng = np.random.default_rng(1)
    grads = [rng.uniform(-1, 1, a.shape).astype(dtype.numpy) for a in outputs]
    back = RnnGrad(op.mode, op.hidden, op.layers, bias=op.bias, reserve=misaligned)
    head = 1 + op.states
    given = [*arrays[:head], outputs[0], *grads, *([reserve] if misaligned else []), *arrays[head:]]
    plan = gradient_plan(back, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in given], found, CPU, Policy())
    gradients = run(plan, given, misaligned)
    alone = RnnGrad(op.mode, op.hidden, op.layers, bias=op.bias)
    wide = [a.astype(np.float64) for a in given if a.dtype != np.uint8]
    check(alone, gradients[: len(arrays)], run_reference(alone, wide, float64), dtype, roundings)


def check(op: Any, found: Sequence[Array], wanted: Sequence[Array], dtype: DType, roundings: int) -> None:
    for i, (y, ref) in enumerate(zip(found, wanted, strict=True)):
        problem = apart(y, ref, dtype, roundings)
        assert not problem, f"{op} output {i}: {problem}"


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("mode", "sizes", "hidden", "layers", "wave"),
    [
        ("lstm", Sizes(50, 8, 512), 512, 3, True),
        ("lstm", Sizes(100, 64, 1024), 1024, 2, False),
        ("lstm", Sizes(9, 3, 5), 128, 1, False),
        ("gru", Sizes(50, 8, 512), 512, 3, True),
        ("gru", Sizes(100, 64, 1024), 1024, 2, False),
        ("gru", Sizes(20, 16, 128), 128, 1, False),
    ],
    ids=str,
)
def test_machine_code(
    mode: str, sizes: Sizes, hidden: int, layers: int, wave: bool, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """They compile for an H200, at any addresses too; what is large runs layer by layer.

    Optimized for one half type: for the other other instructions convert and multiply.
    """
    pytest.importorskip("cuda.core")
    cubin = Program.cubin if dtype == float16 else hasty_cubin
    monkeypatch.setattr(persistent, "matmul_plan", multiplied)
    op, back = Rnn(mode, hidden, layers, reserve=True), RnnGrad(mode, hidden, layers, reserve=True)
    found = tiling(op, sizes, [dtype], H200.machine)
    assert found is not None
    assert found.alone == (hidden == 128)
    assert (found.wave, found.fits) == (wave, True)
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch), *op.weight_shapes(sizes.inputs)]
    specs = [Spec(s, dtype).fixed for s in shapes]
    plan = forward_plan(op, specs, found, CPU, Policy())
    y, *last, reserve = plan.outputs
    head = 1 + op.states
    given = [*specs[:head], y, y, *last, reserve, *specs[head:]]
    gradient = gradient_plan(back, given, found, CPU, Policy())
    assert gradient.inputs[1 + 2 * head].shape == reserve.shape == (found.reserve,)
    for made in (plan.make, gradient.make):
        assert isinstance(made, Launches)
        for program in (*made.programs, *made.plain_programs):
            assert len(cubin(program, H200.machine.target)) > 1000


@pytest.mark.parametrize(
    ("op", "sizes", "forward", "backward"),
    [
        (Rnn("gru", 128), Sizes(20, 16, 128), [SubPlan, Launch], [Launch, Launch]),
        (Rnn("lstm", 512, 3), Sizes(50, 8, 512), [Fill, SubPlan, Together], [Fill, Together, SubPlan, Launch]),
        (
            Rnn("lstm", 1024),
            Sizes(100, 64, 1024),
            [Fill, SubPlan, Together],
            [Fill, Together, SubPlan, SubPlan, SubPlan, Launch],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_launches(
    op: Rnn, sizes: Sizes, forward: list[type], backward: list[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small products are one launch with the sums of the biases; large ones are left to libraries."""
    monkeypatch.setattr(persistent, "matmul_plan", multiplied)
    found = tiling(op, sizes, [float16], H200.machine)
    assert found is not None
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch), *op.weight_shapes(sizes.inputs)]
    specs, head = [Spec(s, float16).fixed for s in shapes], 1 + op.states
    plan = forward_plan(Rnn(op.mode, op.hidden, op.layers, reserve=True), specs, found, CPU, Policy())
    back = RnnGrad(op.mode, op.hidden, op.layers, reserve=True)
    y, *last, reserve = plan.outputs
    given = [*specs[:head], y, y, *last, reserve, *specs[head:]]
    gradient = gradient_plan(back, given, found, CPU, Policy())
    for made, wanted in ((plan.make, forward), (gradient.make, backward)):
        assert isinstance(made, Launches)
        assert [type(step) for step in made.steps] == wanted


@pytest.mark.parametrize("batch", [1, 8, 20, 64, 72])
@pytest.mark.parametrize(("hidden", "layers"), [(128, 1), (256, 4), (384, 2), (512, 3), (768, 1), (1024, 2)])
@pytest.mark.parametrize("device", KINDS.values(), ids=list(KINDS))
def test_tilings(batch: int, hidden: int, layers: int, device: Device) -> None:
    """Blocks, shared memory and registers suffice, and every sequence has a block."""
    machine = device.machine
    found = tiling(Rnn("lstm", hidden, layers), Sizes(10, batch, 64), [float16], machine)
    if found is None:
        assert hidden > 512
        assert batch == 72 or machine != H200.machine
        return
    team, teams = found.grid
    assert team * found.units == hidden
    assert teams // found.span * found.chains * found.tiles * 8 >= batch
    assert found.alone or team * teams <= machine.multiprocessors
    assert found.alone or found.shared <= machine.shared_memory


@pytest.mark.parametrize(
    ("op", "sizes", "dtypes"),
    [
        (Rnn("tanh", 128), Sizes(3, 8, 8), [float16]),
        (Rnn("lstm", 128, bidirectional=True), Sizes(3, 8, 8), [float16]),
        (Rnn("lstm", 128, projection=64), Sizes(3, 8, 8), [float16]),
        (Rnn("lstm", 128), Sizes(3, 8, 8), [float32]),
        (Rnn("lstm", 128), Sizes(3, 8, 8), [float16, bfloat16]),
        (Rnn("lstm", 96), Sizes(3, 8, 8), [float16]),
        (Rnn("lstm", 4096), Sizes(3, 8, 8), [float16]),
        (Rnn("lstm", 1024), Sizes(3, 512, 8), [float16]),
        (Rnn("lstm", 128), Sizes(3, 0, 8), [float16]),
    ],
    ids=str,
)
def test_what_is_not_for_them(op: Rnn, sizes: Sizes, dtypes: list[DType]) -> None:
    assert tiling(op, sizes, dtypes, H200.machine) is None


def test_a_part_of_a_device_refuses() -> None:
    """Blocks that were promised a place and find none say so; they do not wait for each other for ever."""
    found = Tiling(H200.machine, 5, 8, 128, 1, False, 8, 1)
    with pytest.raises(RuntimeError, match="16 blocks do not fit on cpu at once"):
        persistent.NoRoom(found.grid[0] * found.grid[1]).bind(CPU, Call((), ()))


@pytest.mark.parametrize("faster", [True, False])
def test_both_directions_run_what_won(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reserve is the way's own: forward and backward, with or without timing, must choose alike."""
    store: dict[str, Choice] = {}

    class Store:
        get = staticmethod(store.get)
        put = staticmethod(store.__setitem__)

    contests: list[str] = []

    def duel(known: Any, sizes: Sizes, dtype: DType, formulation: str, *rest: Any) -> tuple[str, float]:
        contests.append(formulation)
        return (rnn.PERSISTENT, 1.0) if faster else (formulation, 2.0)

    monkeypatch.setattr(rnn, "target_of", lambda device: object.__new__(Handle))
    monkeypatch.setattr(rnn, "plan_store", lambda device: Store)
    monkeypatch.setattr(rnn, "_fastest_of_library", lambda *rest: ("persist_static packed", 2.0))
    monkeypatch.setattr(rnn, "_duel", duel)
    op, back = Rnn("lstm", 128, reserve=True), RnnGrad("lstm", 128, reserve=True)
    x = [Spec((5, 8, 16), float16)]
    fastest, direct = Policy(algorithm="fastest"), Policy(algorithm="direct")
    formulations = [rnn._formulation(one, x, True, CPU, fastest) for one in (op, back, op)]
    assert formulations == ["resident" if faster else "persist_static packed"] * 3
    assert contests == ["persist_static packed"]
    heuristic = Policy(algorithm="heuristic")
    assert [rnn._formulation(op, x, True, CPU, policy) for policy in (direct, heuristic)] == [
        "resident",
        "standard",
    ]
    wide = [Spec((5, 8, 16), float32)]
    assert [rnn._formulation(op, wide, True, CPU, p) for p in (direct, fastest)] == [
        "standard",
        "persist_static packed",
    ]
    assert len(contests) == 1


def test_auto_takes_what_was_known_when_it_was_first_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reserve is read as it was written, also when another process has timed meanwhile."""
    known: dict[str, Choice] = {}
    monkeypatch.setattr(rnn, "_settled", {})
    monkeypatch.setattr(rnn, "target_of", lambda device: object.__new__(Handle))
    monkeypatch.setattr(rnn, "plan_store", lambda device: known)
    op, back, x = (
        Rnn("lstm", 128, reserve=True),
        RnnGrad("lstm", 128, reserve=True),
        [Spec((5, 8, 16), float16)],
    )
    assert rnn._formulation(op, x, True, CPU, Policy()) == "resident"
    ((_, key),) = rnn._settled
    known[key] = Choice("persist_static")
    assert rnn._formulation(back, x, True, CPU, Policy()) == "resident"
    rnn._settled.clear()
    assert [rnn._formulation(one, x, True, CPU, Policy()) for one in (op, back)] == ["persist_static"] * 2


@pytest.mark.feature("B053")
@pytest.mark.parametrize(
    ("batch", "dtype", "limit", "taken"),
    [
        (64, float16, None, "resident"),
        (65, float16, None, "standard"),  # nobody has timed so many
        (8, float32, None, "standard"),  # there are no own kernels
        (8, float16, 1 << 20, "standard"),
    ],
)
def test_own_kernels_by_default_where_they_are_expected_to_be_faster(
    batch: int, dtype: DType, limit: int | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnn, "_settled", {})
    monkeypatch.setattr(rnn, "target_of", lambda device: object.__new__(Handle))
    monkeypatch.setattr(rnn, "plan_store", lambda device: {})
    x, policy = [Spec((5, batch, 16), dtype)], Policy(workspace_limit=limit)
    for op in (Rnn("gru", 128, reserve=True), RnnGrad("gru", 128, reserve=True)):
        assert rnn._formulation(op, x, True, CPU, policy) == taken


GPU_CASES = [
    (Rnn("lstm", 128), Sizes(1, 8, 16)),
    (Rnn("lstm", 256, 3), Sizes(33, 20, 40)),
    (Rnn("lstm", 384, 2), Sizes(7, 3, 9)),
    (Rnn("lstm", 512, 2, bias=False), Sizes(16, 8, 512)),
    (Rnn("lstm", 1024, 2), Sizes(9, 64, 128)),
    (Rnn("lstm", 128, 2), Sizes(40, 21, 64)),
    (Rnn("gru", 128), Sizes(20, 16, 128)),
    (Rnn("gru", 128, 2, bias=False), Sizes(7, 1100, 24)),
    (Rnn("gru", 512, 3), Sizes(50, 8, 512)),
    (Rnn("gru", 384, 2), Sizes(7, 3, 9)),
    (Rnn("gru", 1024, 2), Sizes(9, 64, 128)),
]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that wait in vain end the launch after some seconds, in place of waiting for ever."""
    monkeypatch.setattr(persistent, "PATIENCE", 1 << 24)


@pytest.mark.gpu
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(("op", "sizes"), GPU_CASES, ids=str)
def test_gradients_on_cuda(op: Rnn, sizes: Sizes, dtype: DType) -> None:
    """One by one, recorded, and replayed: always the same bits, and right ones."""
    values = operands(op, sizes, dtype)
    wide = [v.astype(np.float64) for v in values]
    y, *last = run_reference(op, wide, float64)
    grads = [np.full(s.shape, i + 1.0) for i, s in enumerate((y, *last))]
    back, head = RnnGrad(op.mode, op.hidden, op.layers, bias=op.bias), 1 + op.states
    wanted = run_reference(back, [*wide[:head], y, *grads, *wide[head:]], float64)
    with lm.policy(algorithm="direct"):
        run = lm.compile(lm.trace(lm.grad(network(op), list(range(len(values)))), *values), "cuda:0")
    labels = [step.plan.label for step in run.program.steps if "rnn" in step.plan.label]
    assert labels == ["kernel rnn resident", "kernel rnn_grad resident"]
    given = [lm.tensor(v, device="cuda:0") for v in values]
    runs = [[g.numpy() for g in run(*given)] for _ in range(6)]
    check(back, runs[0], wanted, dtype, sizes.steps * op.layers)
    for found in runs[1:]:
        for a, b in zip(found, runs[0], strict=True):
            np.testing.assert_array_equal(a.view(np.uint16), b.view(np.uint16))


@pytest.mark.gpu
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("mode", ["lstm", "gru"])
@pytest.mark.parametrize("hidden", [128, 256])
def test_not_a_number_stays_and_ends_on_cuda(mode: str, hidden: int) -> None:
    """Numbers that are none, of any pattern, pass through the states; nobody waits for them for ever."""
    op, sizes = Rnn(mode, hidden, 2), Sizes(6, 8, 16)
    values = operands(op, sizes, float16)
    values[0][2, 3] = np.nan
    values[1].view(np.uint16)[0, 5] = 0xFFFF
    with lm.policy(algorithm="direct"):
        run = lm.compile(lm.trace(lm.grad(network(op), [0, 1]), *values), "cuda:0")
        dx, dh = (g.numpy() for g in run(*[lm.tensor(v, device="cuda:0") for v in values]))
    rows = [b for b in range(8) if np.isnan(dx[:, b]).any()]
    assert rows == [3, 5]
    assert [b for b in range(8) if np.isnan(dh[:, b]).any()] == [3, 5]
