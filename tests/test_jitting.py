"""lm.jit: functions of tensors, compiled per set of shapes; what they close over is read by reference."""

import gc
import re
import threading
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.planned import H200
from tests.helpers.second_device import SECOND, known

RNG, ONE = np.random.default_rng(0), lm.ones(1)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Outputs:
    """What a network gives, as a user's own class."""

    logits: Any
    loss: Any = None
    name: str | None = None


class Scorer(nn.Module):
    def __init__(self) -> None:
        self.body = nn.Linear(2, 3)

    def forward(self, x: Any) -> Outputs:
        y = self.body(x)
        return Outputs(y, ops.mean(y * y))


def test_a_dataclass_among_the_results_holds_tensors() -> None:
    """Compiled, in a derivative's further results, in a training step and from a predictor."""
    net, x = Scorer(), lm.tensor(array(4, 2))
    wanted = net(x)
    whole = lm.jit(lambda x: {"first": net(x), "second": [x, net(x)]})(x)
    (loss, aux), _ = lm.jit(lm.value_and_grad(lambda net, x: (net(x).loss, net(x)), has_aux=True))(net, x)
    for found in (whole["first"], whole["second"][1], lm.jit(net)(x), aux):
        assert type(found) is Outputs
        np.testing.assert_allclose(found.logits.numpy(), wanted.logits.numpy(), rtol=1e-6)
        np.testing.assert_allclose(found.loss.item(), wanted.loss.item(), rtol=1e-6)
    assert lm.jit(lambda x: Outputs(x, name="scores"))(x).name == "scores"
    graph = lm.trace(lambda x: Outputs(ops.exp(x), ops.sum(x)), x)
    assert [v.shape for v in graph.outputs] == [(4, 2), ()]
    each = lm.vmap(lambda row: Outputs(row * 2.0, ops.sum(row)))(x)
    np.testing.assert_allclose(each.loss.numpy(), x.numpy().sum(1), rtol=1e-5)
    step = lm.train_step(net, lambda outputs, _: outputs.loss, lm.optim.SGD(0.1), device="cpu")
    assert step(x, None).item() == pytest.approx(loss.item(), rel=1e-6)


def test_results_have_the_functions_own_structure() -> None:
    @lm.jit
    def f(a: Any, *, parts: dict[str, Any], scale: float) -> Any:
        return {"sum": a + parts["b"][0] * scale, "pair": Pair(a, None), "name": "f", "list": [a.mean(), 3]}

    a, b = array(2, 3), array(2, 3)
    found = f(lm.tensor(a), parts={"b": (b,)}, scale=2.0)
    np.testing.assert_allclose(found["sum"].numpy(), a + 2 * b, rtol=1e-6)
    assert isinstance(found["pair"], Pair)
    assert found["pair"].second is None
    assert (found["name"], found["list"][1]) == ("f", 3)
    np.testing.assert_allclose(found["list"][0].item(), a.mean(), rtol=1e-5)


def test_each_set_of_shapes_is_traced_once() -> None:
    traced = []

    @lm.jit
    def f(a: Any, n: object = 1) -> Any:
        traced.append((a.shape, n))
        return a * 2

    for x in (array(2), array(2), lm.tensor(array(2)), array(3), array(2).astype(np.float64)):
        np.testing.assert_array_equal(f(x).numpy(), np.asarray(x) * 2)
    assert [s for s, _ in traced] == [(2,), (2,), (3,), (2,)]  # a tensor says its device, an array does not
    for n in (1, 2, 1, 1.0, True, "1"):
        f(array(2), n)
    assert [n for _, n in traced[4:]] == [1, 2, 1.0, True, "1"]


def test_the_policy_is_part_of_the_key() -> None:
    count = []
    f = lm.jit(lambda a: count.append(1) or a + 1)
    x = array(2)
    f(x)
    with lm.policy(deterministic=True):
        f(x)
    f(x)
    assert len(count) == 2


def test_what_is_returned_is_new_memory() -> None:
    held = lm.tensor(array(3))
    f = lm.jit(lambda a: (a, held, a))
    x = lm.tensor(array(3))
    found = f(x)
    before = [y.tolist() for y in found]
    for y in found:
        y.copy_(np.zeros(3))
    assert [x.tolist(), held.tolist(), x.tolist()] == before


def test_what_it_closes_over_is_read_by_reference() -> None:
    weight = lm.tensor(array(3))
    f = lm.jit(lambda a: a + ops.exp(weight))  # exp of the weight alone, too
    x = np.zeros(3, np.float32)
    for _ in range(3):
        np.testing.assert_allclose(f(x).numpy(), np.exp(weight.numpy()), rtol=1e-6)
        weight.copy_(array(3))


def test_arrays_of_any_byte_order_and_kind_are_taken() -> None:
    run = lm.jit(lambda x: x * 2)
    for x in (np.arange(6, dtype=">f4"), np.arange(6, dtype=np.float32), np.ma.array([1.0, 2.0])):
        assert run(x).tolist() == (np.asarray(x) * 2).tolist()
    assert run(np.float32(3)).item() == 6


def test_memory_of_another_library_is_read_by_each_call() -> None:
    foreign = array(3)
    held = lm.from_dlpack(foreign)
    f = lm.jit(lambda: held * 2)
    for _ in range(3):
        np.testing.assert_array_equal(f().numpy(), foreign * 2)
        foreign += 1


def test_training_is_seen() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    f = lm.jit(net)
    step = lm.train_step(net, ops.mse_loss, lm.optim.SGD(lr=0.1), device="cpu")
    x, y = array(8, 3), array(8, 2)
    net.eval()
    seen = []
    for _ in range(3):
        net.train()
        step(x, y)
        net.eval()
        seen.append(f(x).numpy().copy())
        np.testing.assert_allclose(seen[-1], net(lm.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
    assert not np.allclose(seen[0], seen[1])


def network() -> nn.Module:
    lm.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_states_and_random_numbers_go_on_as_without() -> None:
    x = lm.tensor(array(8, 3))
    eager, compiled = network(), network()
    f = lm.jit(compiled)
    lm.manual_seed(5)
    wanted = [eager(x).numpy() for _ in range(3)]
    after = nn.random.default_generator.counter
    lm.manual_seed(5)
    for y in wanted:
        np.testing.assert_allclose(f(x).numpy(), y, rtol=1e-5, atol=1e-6)
    assert nn.random.default_generator.counter == after
    for (name, a), b in zip(eager.state_dict().items(), compiled.state_dict().values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


def test_modes_are_traced_apart_and_kept() -> None:
    x = lm.tensor(array(8, 3))
    net, count = network(), []

    def forward(x: Any) -> Any:
        count.append(1)
        return net(x)

    f = lm.jit(forward)
    for mode in (True, False, True, False):
        net.train(mode)
        f(x)
    assert len(count) == 2
    np.testing.assert_allclose(f(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_parameters_that_change_their_type_are_traced_anew() -> None:
    net = nn.Linear(3, 2)
    f = lm.jit(net)
    assert f(array(1, 3)).dtype == lm.float32
    net.to("float64")
    assert f(array(1, 3).astype(np.float64)).dtype == lm.float64
    assert repr(f).startswith("jit(Linear): 2 of at most 64 programs")


def test_copy_is_an_update() -> None:
    total = lm.zeros(2)

    @lm.jit
    def add(x: Any) -> Any:
        total.copy_(total + x)
        return total * 1

    for n in (1.0, 2.0):
        assert add(np.full(2, n, np.float32)).tolist() == total.tolist()
    assert total.tolist() == [3, 3]
    with pytest.raises(lm.ShapeError, match=r"copy_: cannot write shape \(3,\)"):
        lm.jit(lambda x: total.copy_(x))(array(3))


def test_inside_other_transformations() -> None:
    weight = nn.Parameter(lm.tensor(array(3)))
    f = lm.jit(lambda x: ops.sum(x * x * weight))
    x = array(3)
    np.testing.assert_allclose(lm.grad(f)(x).numpy(), 2 * x * weight.numpy(), rtol=1e-6)
    both = lm.jit(lm.value_and_grad(f))
    for _ in range(2):
        value, slope = both(x)
        np.testing.assert_allclose(value.item(), (x * x * weight.numpy()).sum(), rtol=1e-5)
        np.testing.assert_allclose(slope.numpy(), 2 * x * weight.numpy(), rtol=1e-6)
        weight.copy_(array(3))
    assert len(lm.jit(lambda a: f(a) + 1)(x).shape) == 0


def test_gradients_of_parameters() -> None:
    net = nn.Linear(3, 2)

    @lm.jit
    def loss_and_grads(x: Any, y: Any) -> Any:
        loss = ops.mse_loss(net(x), y)
        return loss, lm.gradients(loss, [net.weight, net.bias])

    x, y = array(4, 3), array(4, 2)
    loss, (dw, db) = loss_and_grads(x, y)
    away = x @ net.weight.numpy().T + net.bias.numpy() - y
    np.testing.assert_allclose(loss.item(), (away**2).mean(), rtol=1e-5)
    np.testing.assert_allclose(dw.numpy(), away.T @ x * 2 / away.size, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(db.numpy(), away.sum(0) * 2 / away.size, rtol=1e-4, atol=1e-6)


def test_the_cache_has_a_bound() -> None:
    f = lm.jit(lambda a: a + 1, max_programs=2)
    held = []
    for n in (1, 2, 3, 1):
        f(array(n))
        held.append(weakref.ref(f.program(array(n))))
    gc.collect()
    assert [h() is not None for h in held] == [False, False, True, True]
    f.clear()
    gc.collect()
    assert [h() for h in held] == [None] * 4


def test_what_was_not_called_for_longest_goes_first() -> None:
    traced = list[Any]()

    @lm.jit(max_programs=2)
    def f(a: Any) -> Any:
        traced.append(a.shape)
        return a * 2

    one, two, three = (lm.ones(n) for n in (1, 2, 3))
    for x in (one, two, one, two, one, three, one):
        assert f(x).tolist() == [2.0] * len(x)
    assert traced == [(1,), (2,), (3,)]
    f(two)
    assert traced[3:] == [(2,)]


def test_an_argument_that_is_closed_over_and_written_is_one_tensor() -> None:
    """As without jit; for other arguments of the shape too, of which none is written, and for parts."""
    state, other = lm.zeros(2, 2), lm.ones(2, 2)

    def advance(x: Any, y: Any) -> Any:
        state.add_(1)
        return x + 10 * y

    compiled = lm.jit(advance)
    for _ in range(2):
        for given in ((other, other), (state, other), (other, state), (state, state), (state[0], other[0])):
            wanted = advance(*given).tolist()
            state.sub_(1)
            assert compiled(*given).tolist() == wanted
    assert compiled(other, other).tolist() == [[11, 11], [11, 11]]


def test_programs_that_are_known_by_the_identity_of_arguments_are_those_that_hold() -> None:
    """The same tensors again: another mode of a module, another policy, dropped programs."""
    net = nn.Dropout(0.5)
    f = lm.jit(lambda x, y: net(x) + y, max_programs=2)
    x, y = lm.ones((64,)), lm.zeros((64,))
    for training in (True, False, True, False):
        net.train(training)
        for _ in range(3):
            assert (0.0 in f(x, y).tolist()) == training
    with lm.policy(deterministic=True):
        assert f(x, y).tolist() == [1.0] * 64
    kept = weakref.ref(f.program(x, y))
    f.clear()
    gc.collect()
    assert kept() is None
    assert f(x, y).tolist() == [1.0] * 64
    assert f(x.to(dtype="float64"), y).dtype.name == "float64"
    assert f(y=y, x=x).tolist() == [1.0] * 64


def test_options_and_the_decorator() -> None:
    @lm.jit(backend="reference", max_programs=3)
    def double(a: Any) -> Any:
        """Twice."""
        return a * 2

    assert double(array(2)).shape == (2,)
    assert double.program(array(2)).backend.name == "reference"
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert "1 of at most 3 programs" in repr(double)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: lm.jit(3), TypeError, "jit: fn must be a function, got int"),
        (lambda: lm.jit(abs, max_programs=0), ValueError, "max_programs must be at least 1, got 0"),
        (lambda: lm.jit(lambda a: a)({"x": {1, 2}}), TypeError, r"jit: args[0]['x'] is a set"),
        (lambda: lm.jit(lambda a: a)(a=bytearray(2)), TypeError, "jit: kwargs['a'] is a bytearray"),
        (lambda: lm.jit(lambda a: 1 if a > 0 else 2)(lm.ones(1)), TypeError, "has no truth value"),
        (lambda: lm.jit(lambda a: float(a.sum()))(lm.ones(1)), TypeError, "a Python number (item, float"),
        (lambda: lm.jit(lambda a: f"{a.sum():.2f}")(lm.ones(1)), TypeError, "a Python number (item, float"),
        (lambda: lm.jit(lambda a: np.sort(a))(lm.ones(1)), TypeError, "use lamina.ops inside a trace"),
        (lambda: lm.jit(lambda a, one=ONE: a * one.item())(lm.ones(1)), TypeError, "while the function is traced"),
        (lambda: lm.gradients(lm.ones(()), [lm.ones(1)]), TypeError, "gradients: Tensor f32[] is not traced"),
        (lambda: lm.compile(abs), TypeError, "compile: takes a Graph, got abs; lamina.jit compiles a function"),
        (lambda: lm.jit(lambda a: a * 2)({1}), TypeError, "is a set"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_named(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_an_error_leaves_nothing_behind() -> None:
    f = lm.jit(lambda a: float(a.sum()))
    with pytest.raises(TypeError):
        f(array(2))
    assert (lm.ones(2) + 1).tolist() == [2, 2]  # ops compute again
    assert "0 of at most" in repr(f)


def test_threads_share_a_function() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    f = lm.jit(net)
    inputs = [array(n % 3 + 1, 8) for n in range(24)]
    wanted = [net(lm.tensor(x)).numpy() for x in inputs]
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        for i in range(k, len(inputs), 4):
            found[i] = f(inputs[i]).numpy().copy()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i, y in enumerate(wanted):
        np.testing.assert_allclose(found[i], y, rtol=1e-5, atol=1e-6)


def test_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="pickle its function"):
        lm.jit(abs).__reduce__()


def test_it_runs_where_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments and what it closes over, on one device; arrays of the host and borrowed memory travel there."""
    for module in ("jitting", "graph.run.executable"):
        monkeypatch.setattr(f"lamina.{module}._where", lambda device: device)
    with known():
        here, count, there = lm.ones(3), lm.zeros(3), lm.ones(3, device=SECOND)
        array = np.ones(3, np.float32)
        borrowed, batch = lm.from_dlpack(array), lm.data.default_convert(array)
        for f, x in (
            (lambda a: a + there, array),
            (lambda a: a + there, batch),
            (lambda a: a + there, batch.view(3, 1)),
            (lambda a: a * 2, there),
            (lambda a: a + there, there),
            (lambda a: a + borrowed, there),
        ):
            assert lm.jit(f).program(x).device is SECOND
        for f, x in ((lambda a: a + here, array), (lambda a: a * 2, array), (lambda a: a + borrowed, array)):
            assert lm.jit(f).program(x).device == here.device

        def counted(a: Any) -> Any:  # what is written goes where the rest is
            count.copy_(count + 1)
            return a * 2

        assert lm.jit(counted).program(there).device is SECOND
        assert lm.jit(lambda: there * 2).program().device is SECOND
        assert lm.jit(lambda a: a * 2, device=SECOND).program(array).device is SECOND
        for f, x in (
            (lambda a: a + there, here),
            (lambda a: a + here, there),
            (lambda a: (here + a, there * 2), array),
        ):
            with pytest.raises(
                ValueError, match="reads tensors on cpu, cpu; move arguments and parameters to one"
            ):
                lm.jit(f)(x)


def test_batches_of_a_loader_are_arrays_to_a_program() -> None:
    f = lm.jit(lambda x: x * 2)
    values = array(4, 2)
    for x in (values, lm.data.default_collate(list(values)), lm.data.default_convert(values)):
        np.testing.assert_array_equal(f(x), 2 * values)
    assert repr(f).count("\n") == 1  # one program


@pytest.mark.gpu
def test_on_a_gpu_states_stay_and_devices_are_checked() -> None:
    x = array(8, 3)
    net = network().to("cuda")
    f = lm.jit(net)
    lm.manual_seed(5)
    eager = network().to("cuda")
    lm.manual_seed(5)
    wanted = [eager(lm.tensor(x, device="cuda")).numpy() for _ in range(3)]
    lm.manual_seed(5)
    for y in wanted:
        np.testing.assert_allclose(f(x).numpy(), y, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="reads tensors on cpu, cuda:0"):
        f(lm.tensor(x))


def test_reprs_say_shapes_device_kernels_and_memory() -> None:
    net = nn.Linear(3, 2)
    f = lm.jit(net)
    f(array(4, 3))
    lines = repr(f).splitlines()
    assert lines[0] == "jit(Linear): 1 of at most 64 programs"
    assert re.fullmatch(
        r"  Executable\(Linear on cpu: \(f32\[4,3\]\) -> \(f32\[4,2\]\); \d kernels, arena .*B, "
        r"2 resident tensors 32 B\)",
        lines[1],
    )
    step = lm.train_step(net, ops.mse_loss, lm.optim.SGD(lr=0.1), device="cpu")
    step(array(4, 3), array(4, 2))
    lines = repr(step).splitlines()
    assert lines[0].startswith(
        "Step(Linear, SGD(lr=0.1, momentum=0.0, weight_decay=0.0), fp32 on cpu; 1 done, state "
    )
    assert "f32[4,3], f32[4,2]) -> (f32[]" in lines[1]
    predict = lm.infer.Predictor(net, device="cpu")
    predict(array(4, 3))
    lines = repr(predict).splitlines()
    assert lines[0] == "Predictor(Linear, fp32 on cpu; weights 32 B)"
    assert "(f32[4,3]) -> (f32[4,2])" in lines[1]


@pytest.mark.gpu
def test_on_a_gpu_arrays_of_the_host_travel_with_each_call() -> None:
    scale = np.full(3, 2.0, np.float32)
    shared = lm.from_dlpack(scale)
    net = nn.Linear(3, 2).to("cuda")
    f = lm.jit(lambda x: net(x * shared))
    x = array(4, 3)
    for factor in (2.0, 3.0):
        scale[:] = factor
        wanted = net(lm.tensor(x * scale, device="cuda")).numpy()
        np.testing.assert_allclose(f(x).numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_a_tensor_that_the_function_makes_begins_anew_at_each_call() -> None:
    class Kept:
        total: Any = None

    kept = Kept()

    @lm.jit
    def filled(x: Any) -> Any:
        out = lm.zeros(3)
        out.add_(x)
        out[0] = 5
        inside = lm.ones(3)
        inside[1:] = inside[1:] * x[1:]
        if kept.total is None:
            kept.total = lm.zeros(3)
        kept.total.add_(inside)
        return {"out": out, "sum": (inside + out).sum()}

    for k, total in ((1, [1, 1, 1]), (1, [2, 2, 2]), (3, [3, 5, 5])):
        found = filled(lm.ones(3) * k)
        assert found["out"].tolist() == [5, k, k]
        assert found["sum"].item() == 6 + 4 * k
        assert kept.total.tolist() == total


def test_minus_zero_is_another_argument_than_zero_and_nan_the_same() -> None:
    x, f = lm.ones(3), lm.jit(lambda x, number: x.masked_fill(x > 0, number))
    for number in (0.0, -0.0, 0.0):
        assert np.signbit(f(x, number).numpy()).all() == (str(number) == "-0.0")
    programs = {f.program(x, float("nan")) for _ in range(3)}
    assert len(programs) == 1


def test_what_a_function_closes_over_may_be_exchanged() -> None:
    rate, table, net = 1.0, {"shift": 0.0}, nn.Linear(2, 2)

    @lm.jit
    def call(x: Any) -> Any:
        return net(x) * rate + table["shift"]

    x = array(3, 2)
    before = call(x).numpy()
    rate = 2.0
    np.testing.assert_allclose(call(x).numpy(), before * 2, rtol=1e-6)
    table["shift"] = 1.0
    np.testing.assert_allclose(call(x).numpy(), before * 2 + 1, rtol=1e-6)
    net = nn.Linear(2, 2)
    np.testing.assert_allclose(call(x).numpy(), net(x).numpy() * 2 + 1, rtol=1e-5)
    assert len(call._programs) == 4
    rate, table["shift"] = 2.0, 1.0
    call(x)
    assert len(call._programs) == 4


def test_an_object_among_the_arguments_may_change() -> None:
    class Config:
        def __init__(self) -> None:
            self.rate, self.calls = 1.0, 0

    @lm.jit
    def call(x: Any, config: Config) -> Any:
        return x * config.rate

    config, x = Config(), array(3)
    call(x, config)
    config.rate = 2.0
    np.testing.assert_array_equal(call(x, config).numpy(), x * 2)
    config.calls += 1  # which nothing reads
    call(x, config)
    assert len(call._programs) == 2


@pytest.mark.parametrize("place", [{"device": H200}, {"backend": "null"}], ids=["not there", "null"])
def test_a_program_that_nothing_runs_is_planned_all_the_same(place: dict[str, Any]) -> None:
    """With tensors that it closes over, which stay where they are; a call says why it cannot run."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    call = lm.jit(lambda x: net(x), **place)
    found = call.program(array(3, 4))
    assert found.kernels > 0
    assert len(found.resident) == len(list(net.parameters())) + len(list(net.buffers()))
    assert net[0].weight.device.kind == "cpu"
    with pytest.raises(
        RuntimeError, match="stands for a GPU that is not there|the null backend plans graphs"
    ):
        call(array(3, 4))
    with pytest.raises(
        RuntimeError, match="stands for a GPU that is not there|the null backend plans graphs"
    ):
        lm.jit(lambda x: x * 2, **place)(array(3, 4))


def test_a_method_may_be_compiled() -> None:
    """The object is among its arguments, and fixed; what it reads of the object may change."""

    class Rated:
        def __init__(self, rate: float) -> None:
            self.net, self.rate = nn.Linear(2, 2), rate

        @lm.jit
        def scores(self, x: Any, shift: float = 0.0) -> Any:
            """Scores."""
            return self.net(x) * self.rate + shift

    one, other, x = Rated(1.0), Rated(2.0), array(3, 2)
    for scorer in (one, other):
        np.testing.assert_allclose(scorer.scores(x).numpy(), scorer.net(x).numpy() * scorer.rate, rtol=1e-5)
    one.rate = 3.0
    np.testing.assert_allclose(one.scores(x, shift=1.0).numpy(), one.net(x).numpy() * 3 + 1, rtol=1e-5)
    assert isinstance(Rated.scores, lm.jitting.Jitted)
    assert Rated.scores.__doc__ == "Scores."

    class Net(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(2, 2)

        @lm.jit
        def forward(self, x: Any) -> Any:
            return self.inner(x)

    net = Net()
    np.testing.assert_allclose(net(x).numpy(), net.inner(x).numpy(), rtol=1e-6)
    step = lm.train_step(net, ops.mse_loss, lm.optim.SGD(lr=0.1), device="cpu")
    assert step(x, x).item() > step(x, x).item()


def test_containers_among_default_arguments_are_looked_at() -> None:
    settings = {"rate": 1.0}
    call = lm.jit(lambda x, settings=settings: x * settings["rate"])
    x = array(3)
    call(x)
    settings["rate"] = 2.0
    np.testing.assert_array_equal(call(x).numpy(), x * 2)


class Positions(nn.Module):
    """A table that is made when it is first needed, and made anew where it is too short."""

    def __init__(self) -> None:
        self.fc = nn.Linear(2, 2)
        self.length, self.table = 0, None

    def forward(self, x: Any) -> Any:
        """x [N, 2]."""
        if x.shape[0] > self.length:
            self.length = x.shape[0]
            self.table = lm.arange(self.length).to("float32").unsqueeze(1) * 0.1
        assert self.table is not None
        return self.fc(x) + self.table[: x.shape[0]]


class Scaled(nn.Module):
    """A table of a parameter, which no argument is in: not carried."""

    def __init__(self) -> None:
        self.fc, self.rate, self.table = nn.Linear(2, 2), nn.Parameter(lm.ones(1)), None

    def forward(self, x: Any) -> Any:
        """x [N, 2]."""
        if self.table is None:
            self.table = ops.exp(self.rate * lm.arange(2).to("float32"))
        return self.fc(x) * self.table


class Carried(nn.Module):
    """The last result is added to the next one."""

    def __init__(self) -> None:
        self.fc, self.last = nn.Linear(2, 2), None

    def forward(self, x: Any) -> Any:
        """x [N, 2]."""
        y = self.fc(x)
        if self.last is not None:
            y = y + self.last
        self.last = y
        return y


def test_tables_that_a_network_keeps_are_of_each_trace() -> None:
    net, eager = Positions(), Positions()
    eager.load_state_dict(net.state_dict())
    compiled = lm.jit(net)
    for n in (3, 2, 5, 3):
        x = lm.ones((n, 2))
        np.testing.assert_array_equal(compiled(x).numpy(), eager(x).numpy())
        assert (net.length, net.table) == (0, None)
    np.testing.assert_array_equal(net(lm.ones((4, 2))).numpy(), eager(lm.ones((4, 2))).numpy())
    assert isinstance(net.table, lm.Tensor)
    x = lm.ones((2, 2))
    np.testing.assert_array_equal(compiled(x).numpy(), eager(x).numpy())


def test_what_is_assigned_for_others_to_look_at_says_what_it_is() -> None:
    class Shown(nn.Module):
        def forward(self, x: Any) -> Any:
            weights = ops.softmax(x, -1)
            self.weights = weights
            return weights

    net = Shown()
    compiled = lm.jit(net)
    for n in (2, 3):
        compiled(lm.ones((n, 3)))
        with pytest.raises(TypeError, match="a traced value .* has no numbers"):
            float(net.weights[0, 0])


def test_a_trace_that_fails_leaves_attributes_as_they_were() -> None:
    net = Positions()

    @lm.jit
    def failing(x: Any) -> Any:
        net(x)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        failing(lm.ones((3, 2)))
    assert (net.length, net.table) == (0, None)


def test_what_is_carried_from_call_to_call_is_warned_of() -> None:
    net = Carried()
    with pytest.warns(UserWarning, match=r"Carried\.last is carried from call to call.*register_buffer"):
        first = lm.jit(net)(lm.ones((3, 2)))
    assert net.last is None
    np.testing.assert_array_equal(first.numpy(), net.fc(lm.ones((3, 2))).numpy())
    lm.jit(Scaled())(lm.ones((3, 2)))
    lm.train_step(Scaled(), ops.mse_loss, optim.SGD(0.1))(lm.ones((3, 2)), lm.zeros((3, 2)))
    step = lm.train_step(Carried(), ops.mse_loss, optim.SGD(0.1))
    with pytest.warns(UserWarning, match=r"Carried\.last is carried"):
        step(lm.ones((3, 2)), lm.zeros((3, 2)))


def test_a_function_that_is_differentiated_at_once_carries_numbers() -> None:
    net, x = Carried(), lm.ones((3, 2))
    found = [lm.value_and_grad(lambda net: net(x).sum())(net)[0].item() for _ in range(3)]
    np.testing.assert_allclose(found, [found[0], 2 * found[0], 3 * found[0]], rtol=1e-6)
    assert isinstance(net.last, lm.Tensor)


def seen(fn: Any, x: np.ndarray) -> list[Any]:
    """What a function gives of x by all ways."""
    ways = (fn, lm.jit(fn), lambda x: lm.vmap(fn)(x.unsqueeze(0))[0])
    found = [way(lm.tensor(x.copy())).tolist() for way in ways]
    return [*found, lm.grad(lambda x: ops.sum(ops.square(fn(x))) / 2)(lm.tensor(x.copy())).tolist()]


@pytest.mark.parametrize(
    "copied",
    [
        lambda x: x.T.reshape(-1),
        lambda x: x[:, 1:].flatten(),
        lambda x: x.T.contiguous(),
        lambda x: x[:, 1:].reshape(4),
    ],
    ids=["reshape of a transpose", "flatten of a slice", "contiguous", "reshape of a slice"],
)
def test_what_is_written_over_a_copy_is_not_written_over_its_source(copied: Any) -> None:
    """Of elements that do not lie as a view could, reshape and contiguous make others, as in torch."""
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def fn(x: Any) -> Any:
        x = x * 1.0
        copied(x).fill_(7.0)
        return x

    assert seen(fn, x) == [x.tolist()] * 4


@pytest.mark.parametrize(
    "part", [lambda x: x.reshape(-1), lambda x: x.T.T.reshape(6), lambda x: x[1:].flatten()]
)
def test_what_is_written_over_a_view_is_written_over_its_source(part: Any) -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)

    def fn(x: Any) -> Any:
        x = x * 1.0
        part(x).fill_(7.0)
        return x

    eager, compiled, mapped, gradient = seen(fn, x)
    assert eager == compiled == mapped
    assert eager[1] == [7.0] * 3
    assert gradient[1] == [0.0] * 3


def test_parts_that_a_compiled_function_closes_over_are_parts() -> None:
    """Rows of a cache that were taken before: what is written is seen in the other, in the call and after."""
    cache = lm.tensor(np.zeros((2, 3), np.float32))
    keys, values = cache[0], cache[1]

    @lm.jit
    def write_part(x: Any) -> Any:
        keys.copy_(x)
        return cache * 1.0

    @lm.jit
    def write_whole(x: Any) -> Any:
        cache.copy_(x)
        return values * 1.0

    x = np.array([1.0, 2.0, 3.0], np.float32)
    assert write_part(lm.tensor(x)).tolist() == [[1, 2, 3], [0, 0, 0]]
    assert cache.tolist() == [[1, 2, 3], [0, 0, 0]]
    assert write_whole(lm.ones(2, 3) * 5).tolist() == [5, 5, 5]
    assert keys.tolist() == [5, 5, 5]
    cache.fill_(8.0)
    assert write_part(lm.tensor(x)).tolist() == [[1, 2, 3], [8, 8, 8]]


# ------------------------------------------------------------------- what a function does to attributes and numbers
class DataInitialized(nn.Module):
    """A shift that the first batch sets, as in activation normalization."""

    def __init__(self) -> None:
        self.register_buffer("shift", lm.zeros(3))
        self.scale, self.initialized = nn.Parameter(lm.ones(3)), False

    def forward(self, x: Any) -> Any:
        """x [N, 3]."""
        if not self.initialized:
            self.shift.copy_(x.mean(0))
            self.initialized = True
        return (x - self.shift) * self.scale


def test_a_flag_that_a_trace_switches_is_what_it_is_in_the_next_call() -> None:
    net, x = DataInitialized(), array(5, 3)
    compiled = lm.jit(net)
    for more in (0, 1, 2):
        np.testing.assert_allclose(compiled(x + more).numpy(), x + more - x.mean(0), atol=1e-6)
        assert net.initialized
    assert compiled.program(x) is compiled.program(x)
    net.initialized = False
    for more in (3, 4):
        np.testing.assert_allclose(compiled(x + more).numpy(), x + more - x.mean(0) - 3, atol=1e-5)

    net = DataInitialized()
    step = lm.train_step(net, ops.mse_loss, optim.SGD(lr=0.0))
    for more in (0, 1, 2):
        step(x + more, x)
        np.testing.assert_allclose(net.shift.numpy(), x.mean(0), atol=1e-6)


def test_a_trace_that_fails_leaves_flags_as_they_were() -> None:
    net = DataInitialized()

    @lm.jit
    def failing(x: Any) -> Any:
        net(x)
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"):
        failing(array(5, 3))
    assert not net.initialized


class Counting(nn.Module):
    """A rate that grows with the calls; how many these were is for others to look at."""

    def __init__(self) -> None:
        self.fc, self.steps, self.calls = nn.Linear(2, 2), 0, 0

    def forward(self, x: Any) -> Any:
        """x [N, 2]."""
        self.steps += 1
        self.calls += 1
        return self.fc(x) * min(1.0, self.steps / 10)


def test_counts_that_calls_go_by_are_warned_of() -> None:
    x = lm.ones((3, 2))
    with pytest.warns(UserWarning, match=r"Counting\.steps is carried from call to call.*it stays 1") as told:
        lm.jit(Counting())(x)
    assert len(told) == 1
    with pytest.warns(UserWarning, match=r"Counting\.steps is carried"):
        lm.train_step(Counting(), ops.mse_loss, optim.SGD(0.1))(x, lm.zeros((3, 2)))
    net = Counting()  # at once each call counts
    lm.vmap(net)(x)
    lm.value_and_grad(lambda net: net(x).sum())(net)
    assert net.steps == 2


def test_a_forward_of_an_objects_own_is_looked_at() -> None:
    net, x, factor = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), array(2, 4), {"by": 2.0}
    compiled = lm.jit(lambda x: net(x))
    step = lm.train_step(net, ops.mse_loss, optim.SGD(lr=0.0))

    def agree() -> None:
        expected = net(lm.tensor(x))
        np.testing.assert_allclose(compiled(x).numpy(), expected.numpy(), rtol=1e-6)
        np.testing.assert_allclose(step(x, x).item(), ops.mse_loss(expected, lm.tensor(x)).item(), rtol=1e-6)

    agree()
    net[1].forward = lambda x: x * factor["by"]
    agree()
    factor["by"] = 3.0
    agree()
    del net[1].forward
    agree()


def test_dataclasses_of_tensors_among_arguments() -> None:
    traces: list[None] = []

    @lm.jit
    def doubled(given: Outputs) -> Outputs:
        traces.append(None)
        return Outputs(given.logits * 2, given.loss, given.name)

    x = array(3, 2)
    for more in (0.0, 1.0):
        found = doubled(Outputs(x + more, name="a"))
        np.testing.assert_allclose(found.logits.numpy(), 2 * (x + more))
        assert (found.loss, found.name) == (None, "a")
    assert len(traces) == 1
    found = doubled(Outputs(lm.tensor(x), loss=x, name="b"))
    np.testing.assert_array_equal(found.loss.numpy(), x)
    assert found.name == "b"


@dataclass(frozen=True)
class Settings:
    """Numbers and a dtype: one value that stays fixed."""

    factor: int = 2
    dtype: Any = lm.float32


@dataclass(frozen=True)
class Nested:
    """A record within a record."""

    part: Settings


@dataclass(frozen=True)
class Listed:
    """It has a hash function that fails."""

    names: list[str]


@dataclass
class Changing:
    """Its fields may be assigned, so that it has no hash."""

    factor: float
    part: Any = None


def test_records_that_may_change_are_told_by_their_fields() -> None:
    x, compiled = array(3), lm.jit(lambda x, record: (x * record.factor, record))
    record = Changing(2.0)
    for factor in (2.0, 3.0, 2.0):
        record.factor = factor
        found, given = compiled(x, record)
        np.testing.assert_allclose(found.numpy(), x * factor)
        assert given == record
    assert compiled(x, Changing(1.0, Settings(3)))[1].part == Settings(3)


def test_dataclasses_without_tensors_stay_whole() -> None:
    def scaled(x: Any, settings: Settings) -> Any:
        assert settings.dtype is lm.float32
        return x * settings.factor

    x, compiled = array(3), lm.jit(scaled)
    for factor in (2, 3, 2):
        np.testing.assert_allclose(compiled(x, Settings(factor)).numpy(), x * factor)
    with pytest.raises(TypeError, match=r"args\[1\] is a Listed: .* dict or dataclass of such"):
        compiled(x, Listed([]))  # type: ignore[arg-type]


def test_dtypes_among_results_are_the_same_objects() -> None:
    x = lm.ones(2)
    _, given = lm.jit(lambda x, record: ({"x": x, "dtype": x.dtype}, record))(x, Changing(1.0, lm.int8))
    assert given.part is lm.int8
    assert lm.jit(lambda x: (x, x.dtype))(x)[1] is lm.float32
    assert lm.vmap(lambda x: (x, x.dtype))(x)[1] is lm.float32
    assert lm.grad(lambda x: (ops.sum(x), x.dtype), has_aux=True)(x)[1] is lm.float32


def test_slices_among_arguments() -> None:
    x, cut = array(5, 2), lm.jit(lambda x, where: x[where])
    for where in (slice(0, 2), slice(1, None), (slice(None), 1), slice(0, 2)):
        np.testing.assert_array_equal(cut(x, where).numpy(), x[where])


class FirstFree:
    """Nothing at the first call."""

    def __init__(self) -> None:
        self.first = True

    def __call__(self, x: Any) -> Any:
        if self.first:
            self.first = False
            return x * 0
        return x


def first_free_closure() -> Any:
    first = True

    def free(x: Any) -> Any:
        nonlocal first
        if first:
            first = False
            return x * 0
        return x

    return free


def first_free_by_dict() -> Any:
    state = {"phase": "first", "calls": 0}

    def free(x: Any) -> Any:
        state["calls"] = 7
        if state["phase"] == "first":
            state["phase"] = "later"
            return x * 0
        return x

    return free


@pytest.mark.parametrize("make", [FirstFree, first_free_closure, first_free_by_dict])
def test_flags_around_a_function_are_what_they_are_in_the_next_call(make: Any) -> None:
    x = array(3, 3)
    compiled = lm.jit(make())
    assert [bool(ops.any(compiled(x)).item()) for _ in range(4)] == [False, True, True, True]
    assert len(compiled._programs) == 2
    net, free = nn.Linear(3, 3), make()
    step = lm.train_step(net, lambda y, t: ops.mse_loss(free(y), t), optim.SGD(lr=0.0))
    zeros = np.zeros_like(x)
    assert [step(x, zeros).item() > 0 for _ in range(4)] == [False, True, True, True]


# ------------------------------------------------------------------------------- what a function counts around it
TOTAL = 0


class Counter:
    """Numbers of an object that is no module."""

    def __init__(self) -> None:
        self.steps = self.calls = 0

    def advanced(self) -> int:
        self.steps += 1
        return self.steps


class Slots:
    """A number without a dictionary."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


def counted_closure() -> Any:
    steps = calls = 0

    def by(x: Any) -> Any:
        nonlocal steps, calls
        steps += 1
        calls += 1
        return x / steps

    return by


def counted_within() -> Any:
    steps = 0

    def advance() -> None:
        nonlocal steps
        steps = steps + 1

    def by(x: Any) -> Any:
        advance()
        return x / steps

    return by


def counted_global() -> Any:
    def by(x: Any) -> Any:
        global TOTAL
        TOTAL += 1
        return x / TOTAL

    return by


def counted_object() -> Any:
    counter = Counter()

    def by(x: Any) -> Any:
        counter.calls += 1
        return x / counter.advanced()

    return by


def counted_slot() -> Any:
    slots = Slots()

    def by(x: Any) -> Any:
        slots.steps += 1
        return x / slots.steps

    return by


def counted_dict() -> Any:
    state = {"steps": 0, "calls": 0}

    def by(x: Any) -> Any:
        state["calls"] += 1
        state["steps"] = state["steps"] + 1
        return x / state["steps"]

    return by


def counted_list() -> Any:
    counts = [0, 0]

    def by(x: Any) -> Any:
        counts[0] += 1
        counts[1] += 1
        return x / counts[0]

    return by


def counted_module() -> Any:
    net = nn.Identity()
    net.steps = 0

    def by(x: Any) -> Any:
        net.steps += 1
        return net(x) / net.steps

    return by


class Outside(nn.Module):
    """A module that goes by an object's count."""

    def __init__(self) -> None:
        self.counter = Counter()

    def forward(self, x: Any) -> Any:
        """x of any shape."""
        return x / self.counter.advanced()


COUNTED = [
    (counted_closure, "steps"),
    (counted_within, "steps"),
    (counted_global, "TOTAL"),
    (counted_object, "Counter.steps"),
    (counted_slot, "Slots.steps"),
    (counted_dict, "state['steps']"),
    (counted_list, "counts[0]"),
    (counted_module, "Identity.steps"),
    (Outside, "Counter.steps"),
]


@pytest.mark.parametrize(("make", "name"), COUNTED)
def test_counts_around_a_function_that_it_goes_by_are_warned_of(make: Any, name: str) -> None:
    x = array(3, 3)
    compiled = lm.jit(make())
    with pytest.warns(
        UserWarning, match=f"^{re.escape(name)} is carried from call to call.*it stays"
    ) as told:
        compiled(x)
    assert len(told) == 1
    assert told[0].filename == __file__
    by = make()
    step = lm.train_step(nn.Linear(3, 3), lambda y, t: ops.mse_loss(by(y), t), optim.SGD(lr=0.0))
    with pytest.warns(UserWarning, match=f"^{re.escape(name)} is carried") as told:
        step(x, x)
    assert len(told) == 1


def test_a_forward_that_counts_is_told_once() -> None:
    net = Counting()
    with pytest.warns(UserWarning, match=r"Counting\.steps is carried") as told:
        lm.jit(lambda x: net.forward(x))(lm.ones((3, 2)))
    assert len(told) == 1


def test_counts_that_nothing_goes_by_are_not_warned_of() -> None:
    calls, log, seen = 0, {"calls": 0, "rows": 0}, [0]
    counter, scale = Counter(), 2.0

    @lm.jit
    def counting(x: Any) -> Any:
        nonlocal calls
        calls += 1
        log["calls"] += 1
        log["rows"] = log["rows"] + len(x)
        seen[0] += 1
        counter.calls += 1
        return x * scale

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counting(array(3, 3))
        scale = 3.0  # of others
        counting(array(3, 3))
    assert (calls, log["calls"], seen[0], counter.calls) == (2, 2, 2, 2)


class Unopened:
    """An object with an attribute, no container."""

    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize("container", [Unopened, lambda x: deque([x])])
def test_objects_that_hide_traced_values_are_refused(container: Any) -> None:
    with pytest.raises(
        TypeError, match=r"jit: result\['y'\] is a .* holds traced values: return them as tensors"
    ):
        lm.jit(lambda x: {"y": container(x * 2)})(array(2))
    held = container(3)
    assert lm.jit(lambda x: (x, held))(array(2))[1] is held


@pytest.mark.parametrize(
    "held",
    [
        Settings,
        lambda n: Nested(Settings(n)),
        lambda n: (Settings(n),),
        lambda n: frozenset([n]),
        lambda n: {n: 0},
    ],
)
def test_equal_values_of_other_types_have_their_own_programs(held: Any) -> None:
    def scaled(x: Any, given: Any) -> Any:
        part = given.part if isinstance(given, Nested) else given[0] if isinstance(given, tuple) else given
        return x * (part.factor if isinstance(part, Settings) else next(iter(part)))

    x, compiled = lm.tensor([3, 4]), lm.jit(scaled)
    for factor in (2, 2.0, 1, True, 1.0, 2):
        found, wanted = compiled(x, held(factor)), scaled(x, held(factor))
        assert found.dtype is wanted.dtype
        assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("held", [lambda n: n, Settings, lambda n: Nested(Settings(n))])
def test_zeros_of_two_signs_have_their_own_programs(held: Any) -> None:
    def scaled(x: Any, given: Any) -> Any:
        part = given.part if isinstance(given, Nested) else given
        return x * (part.factor if isinstance(part, Settings) else part)

    compiled = lm.jit(scaled)
    for zero in (-0.0, 0.0):
        assert np.signbit(compiled(np.ones(1, np.float32), held(zero)).numpy()) == np.signbit(zero)


MASKS: dict[str, Any] = {
    "eye": lambda x: ~lm.eye(4, dtype="bool"),
    "ones like": lambda x: ops.ones_like(x * 2).triu(1) == 1,
    "another type": lambda x: ops.ones_like(x, dtype="bool").tril(),
    "range": lambda x: lm.arange(4) % 2 == 0,
    "numbers": lambda x: lm.tensor([True, False, True, True]),
    "new": lambda x: x.new_ones(4, 4).triu(1) == x.new_tensor(1),
    "full": lambda x: lm.full((4, 4), True),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_the_function_makes_are_known(name: str) -> None:
    x, mask = lm.tensor(array(4, 4)), MASKS[name]

    def f(x: Any) -> Any:
        return x[mask(x)] * 2

    compiled = lm.jit(f)
    for a in (x, x * 3):
        np.testing.assert_array_equal(compiled(a).numpy(), f(a).numpy())
    slope = lm.jit(lambda x: lm.grad(lambda x: ops.sum(f(x) ** 2))(x))
    np.testing.assert_allclose(slope(x).numpy(), lm.grad(lambda x: ops.sum(f(x) ** 2))(x).numpy(), rtol=1e-6)
    pairs = ops.stack([x, x * 3])
    np.testing.assert_array_equal(lm.jit(lambda x: lm.vmap(f)(x))(pairs).numpy(), lm.vmap(f)(pairs).numpy())


def test_a_mask_that_is_written_is_known_unless_by_an_input() -> None:
    def f(x: Any, by: Any) -> Any:
        mask = lm.zeros(4, 4)
        mask[0] = 1.0
        mask[:, 2] = by
        return x[mask == 1]

    x = lm.tensor(array(4, 4))
    np.testing.assert_array_equal(lm.jit(lambda x: f(x, 1.0))(x).numpy(), f(x, 1.0).numpy())
    compiled = lm.jit(f)
    for by in ([1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]):
        by = lm.tensor(np.array(by, np.float32))
        np.testing.assert_array_equal(compiled(x, by).numpy(), f(x, by).numpy())
    assert len(compiled._programs) == 3  # 7, 6 and 5 elements


def test_as_many_elements_as_a_mask_selects_in_the_call() -> None:
    def f(x: Any, y: Any) -> Any:
        rows = x[y > 0]
        return rows, ops.cat([rows[rows[:, 0] > 0], x]), ops.masked_select(x, x < 0)

    compiled = lm.jit(f)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 3), 5))
        for found, wanted in zip(compiled(x, y), f(lm.tensor(x), lm.tensor(y)), strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    slope = lm.jit(lambda x: lm.grad(lambda x: ops.sum(x[x > 0] ** 3))(x))
    x = array(4, 4)
    np.testing.assert_allclose(slope(x).numpy(), np.where(x > 0, 3 * x**2, 0), rtol=1e-6)


def test_a_mask_of_the_closure_has_its_current_numbers() -> None:
    x, mask = lm.tensor(array(3, 4)), lm.tensor([True, False, True])
    compiled = lm.jit(lambda x: x[mask] * 2)
    for kept in ([True, False, True], [False, True, True], [True, False, False]):
        mask.copy_(np.array(kept))
        np.testing.assert_array_equal(compiled(x).numpy(), x.numpy()[kept] * 2)
    assert len(compiled._programs) == 2


def test_many_numbers_of_elements_are_warned_of() -> None:
    compiled = lm.jit(lambda x: x[x > 0])
    x = np.arange(20, dtype=np.float32)
    for i in range(15):
        assert compiled(x - i).shape == (19 - i,)
    with pytest.warns(UserWarning, match="16 programs for arguments of the same shapes"):
        compiled(x - 15)
    assert compiled(x - 16).shape == (3,)


def test_many_numbers_are_warned_of() -> None:
    compiled = lm.jit(lambda x, y, share, flag=True: x * share + y)
    for i in range(15):
        compiled(1.0, lm.ones(2), i / 20)
        compiled(1.0, lm.ones(3), i / 20)
    message = r"16 programs for arguments of the same shapes, one for each value of args\[2\]: .* passed as a tensor"
    with pytest.warns(UserWarning, match=message) as found:
        compiled(1.0, lm.ones(2), 0.9)
    assert found[0].filename == __file__
    assert compiled(1.0, lm.ones(2), 0.95).tolist() == pytest.approx([1.95, 1.95])


def test_many_values_of_a_variable_are_warned_of() -> None:
    share = 0.0
    compiled = lm.jit(lambda x: x * share)
    for i in range(15):
        share = i / 20
        compiled(lm.ones(2))
    share = 1.0
    with pytest.warns(UserWarning, match="one for each value of share: "):
        compiled(lm.ones(2))


def test_a_mask_of_one_sample_has_no_number() -> None:
    message = "the shape of the result depends on the numbers in the mask"
    with pytest.raises(TypeError, match=message):
        lm.jit(lambda x: lm.vmap(lambda x: x[x > 0])(x))(lm.ones(2, 3))
    with pytest.raises(TypeError, match=message):
        lm.trace(lambda x: x[x > 0], lm.Spec((3,), lm.float32))


def test_a_mask_that_outlives_its_trace_is_known_in_one_call() -> None:
    held: list[Any] = []

    @lm.jit
    def f(x: Any) -> Any:
        if not held:
            held.append(lm.zeros(4))
        held[0].add_(1.0)
        return x[held[0] < 2]

    x = lm.tensor(array(4, 4))
    assert f(x).shape == (4, 4)
    assert held[0].tolist() == [1] * 4
    assert f(x).shape == (0, 4)
    assert held[0].tolist() == [2] * 4


def test_tensors_of_numbers_in_a_function_need_no_further_trace() -> None:
    calls = []

    @lm.jit
    def f(x: Any) -> Any:
        calls.append(1)
        return x * lm.tensor([2.0, 3.0]) + lm.tensor(4).item()

    for k in range(3):
        np.testing.assert_array_equal(f(lm.full((2,), float(k))).numpy(), [2 * k + 4, 3 * k + 4])
    assert len(calls) == 1


def test_further_numbers_are_computed_op_by_op() -> None:
    """From 16 programs on, each for a number of selected elements, calls with other numbers have none."""
    total = lm.zeros(())

    @lm.jit
    def positive(x: Any) -> Any:
        chosen = x[x > 0]
        total.copy_(total + chosen.sum())
        return {"sorted": chosen.sort()[0], "x": x, "n": chosen.shape[0]}

    expected = 0.0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*16 programs")
        for count in range(22):
            x = np.where(np.arange(30) < count, np.arange(30) + 1.0, -1).astype(np.float32)
            found = positive(x)
            np.testing.assert_array_equal(found["sorted"].numpy(), np.arange(count) + 1)
            np.testing.assert_array_equal(found["x"].numpy(), x)
            assert found["n"] == count
            expected += count * (count + 1) / 2
            assert float(total) == expected
    assert len(positive._programs) == 16
    with pytest.raises(TypeError, match="computed op by op for such arguments, without a program"):
        positive.program(np.full(30, 2, np.float32))
    found["x"].copy_(found["x"] + 1)  # in memory of its own
    assert x[0] == 1


@pytest.mark.filterwarnings("ignore:.*16 programs:UserWarning")
def test_calls_without_a_program_take_turns_with_those_that_have_one() -> None:
    """Each of them updates the same tensor, in four threads."""
    total = lm.zeros(())

    @lm.jit
    def positive(x: Any) -> Any:
        chosen = x[x > 0]
        total.copy_(total + chosen.shape[0])
        return chosen.sum()

    counts = [(7 * thread + i) % 24 for thread in range(4) for i in range(30)]
    wrong: list[int] = []

    def work(own: list[int]) -> None:
        for count in own:
            if float(positive((np.arange(30) < count).astype(np.float32))) != count:
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(counts[30 * i : 30 * i + 30],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert float(total) == sum(counts)
    assert len(positive._programs) == 16
