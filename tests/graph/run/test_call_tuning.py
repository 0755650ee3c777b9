"""Tuning between calls: by what calls take, not by what passes; one thread at a time; nothing where all is known."""

import gc
import importlib
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, nn, ops
from lamina.graph import Executable
from lamina.graph.run import call_tuning, tuning
from lamina.graph.run.call_tuning import CallBudget, CallTuner, TunedCalls
from lamina.graph.run.timeline import Timeline
from lamina.graph.run.tuning import APART, SHARE, PartKind, TuningState
from lamina.infer import Inferer, Predictor
from tests.graph.run.test_tuning import Fails
from tests.helpers.tunable import Clock, Tunable
from tests.helpers.tunable import counted as counted
from tests.helpers.tunable import inline as inline

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
CALL = 0.002


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tunable], Tunable]]:
    """Lets a backend be every device's; each call takes `CALL` by its clock."""
    run = Executable.__call__

    def using(backend: Tunable) -> Tunable:
        def timed(executable: Executable, *inputs: Any) -> Any:
            backend.clock.advance(CALL)
            return run(executable, *inputs)

        monkeypatch.setattr(backends, "get", lambda device, name=None: backend)
        monkeypatch.setattr(Executable, "__call__", timed)
        return backend

    yield using
    gc.collect()


def network() -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))


def predictor_of(backend: Tunable, begin: float = 0.0, **options: Any) -> Predictor:
    predictor = Predictor(network(), device="cpu", **options)
    if not predictor.tuning.ended:
        predictor._tuner = CallTuner(clock=backend.clock, threads=2, begin=begin)
    return predictor


def calls_of(predictor: Predictor) -> list[Any]:
    return [program.calls for program in predictor._programs]


def ask(predictor: Predictor, backend: Tunable, calls: int, pause: float = 0.0) -> list[bytes]:
    """The answers, asked one after another with pauses between them."""
    answers = []
    for _ in range(calls):
        answers.append(predictor(IMAGES).numpy().tobytes())
        backend.clock.advance(pause)
    return answers


# ------------------------------------------------------------------------------------------------------- the budget


def test_a_part_fits_the_call_that_it_precedes() -> None:
    budget, part = CallBudget(), PartKind("time")
    budget.called(1000, 1.0)
    budget.spent(part, 0.004)
    for _ in range(10):  # longer than a call: rare
        budget.allows(part) and budget.spent(part, 0.004)
    budget.call = 0.003
    assert not budget.allows(part)
    budget.call = 0.0085
    assert budget.allows(part)
    assert not budget.allows(part, spent=0.003)
    budget.call = 0.003
    budget.called(2 * APART, 0.0)
    assert budget.allows(part)


def test_a_wait_earns_nothing() -> None:
    budget = CallBudget()
    budget.called(10, 0.5)
    budget.waited(100.0)
    assert budget.credit == pytest.approx(SHARE * 0.5)
    assert budget.passed_seconds == 0.5


# ------------------------------------------------------------------------------------------------------- calls


@pytest.mark.usefixtures("inline")
def test_answers_with_swaps_are_those_without(use: Callable[[Tunable], Tunable]) -> None:
    """And where all is known, the program is called as if there had never been a tuner."""
    plain_backend = use(Tunable(Clock()))
    plain = predictor_of(plain_backend, tuning=False)
    expected = ask(plain, plain_backend, 1)
    assert plain.tuning.ended == "switched off"
    backend = use(Tunable(Clock(), part=1e-4))
    predictor = predictor_of(backend)
    assert ask(predictor, backend, 2000) == 2000 * expected
    assert predictor.tuning.won == predictor.tuning.done == len(backend.held) >= 2
    assert (predictor.tuning.open, predictor.tuning.ended) == (0, "")
    assert predictor.tuning.swaps >= 1
    assert plain_backend.ran["winner"] == 0
    last = dict(backend.ran)
    ask(predictor, backend, 1)
    assert backend.ran["first"] == last["first"]
    assert backend.ran["winner"] > last["winner"]
    (calls,) = calls_of(predictor)
    assert isinstance(calls, Executable)


@pytest.mark.usefixtures("inline")
def test_what_calls_take_earns_and_not_what_passes_between_them(use: Callable[[Tunable], Tunable]) -> None:
    """A service that asks every hundred milliseconds: two seconds of calls are a thousand of them."""
    backend = use(Tunable(Clock(), parts=40, part=0.001))
    predictor = predictor_of(backend, begin=tuning.BEGIN)
    needed = round(tuning.BEGIN / CALL)
    ask(predictor, backend, needed, pause=0.1)
    assert (backend.rooms, predictor.tuning.seconds) == ([], 0.0)
    ask(predictor, backend, 5000, pause=0.1)
    assert predictor.tuning.done > 0
    assert 0 < predictor.tuning.seconds <= tuning.EAGER * 5000 * CALL


@pytest.mark.usefixtures("inline")
def test_a_sporadic_call_is_rarely_twice_as_long(use: Callable[[Tunable], Tunable]) -> None:
    """Whatever has passed since the call before: parts that take longer than a call come before one of many."""
    backend, took = use(Tunable(Clock(), parts=20, part=0.05)), list[float]()
    predictor = predictor_of(backend)
    for _ in range(4 * APART):
        begin = backend.clock.now
        predictor(IMAGES)
        took.append(backend.clock.now - begin)
        backend.clock.advance(10.0)
    long = [seconds for seconds in took if seconds > 2 * CALL]
    assert 0 < len(long) <= tuning.FIRST + 4


@pytest.mark.usefixtures("inline")
def test_calls_are_looked_at_now_and_then(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_tuning, "_REST_SECONDS", 1.0)
    backend, looks = use(Tunable(Clock())), list[int]()
    look = CallTuner.before_call
    monkeypatch.setattr(CallTuner, "before_call", lambda self, calls: (looks.append(1), look(self, calls))[1])
    predictor = predictor_of(backend, begin=100.0)
    ask(predictor, backend, 1000)
    assert len(looks) <= 1000 / call_tuning._MOST_RESTING + 5
    assert predictor._tuner.budget.passed_seconds == pytest.approx(1000 * CALL, rel=0.3)


@pytest.mark.usefixtures("inline")
def test_batches_share_what_is_learnt(use: Callable[[Tunable], Tunable]) -> None:
    found = []
    for tunes in (False, True):
        backend, answers = use(Tunable(Clock(), part=1e-4)), []
        predictor = predictor_of(backend, tuning=tunes)
        for number in range(3000):
            size = 4 if number % 3 and number else 8
            answers.append(predictor(IMAGES[:size].copy() if size == 8 else IMAGES[:size]).numpy().tobytes())
        with lm.policy(tf32=True):
            answers.append(predictor(IMAGES).numpy().tobytes())
        found.append(answers)
    assert found[0] == found[1]
    assert predictor.tuning.won >= 2


@pytest.mark.usefixtures("inline")
def test_a_function_of_several_kinds_is_tuned(use: Callable[[Tunable], Tunable]) -> None:
    backend, weight = use(Tunable(Clock(), part=1e-4)), lm.tensor(RNG.standard_normal((16, 8)))

    def product(x: Any) -> Any:
        return ops.relu(ops.matmul(x, weight)) * 2.0

    plain, function = lm.jit(product, device="cpu", tuning=False), lm.jit(product, device="cpu")
    function._tuner = CallTuner(clock=backend.clock, threads=2, begin=0.0)
    given = [lm.tensor(RNG.standard_normal((n, 16))) for n in (3, 5)]
    expected = [plain(x).numpy() for x in given]
    for number in range(3000):
        found = function(given[number % 2]).numpy()
        np.testing.assert_array_equal(found, expected[number % 2])
    assert function.tuning.won > 0
    assert function.tuning.swaps >= 2
    assert (function.tuning.open, plain.tuning.ended) == (0, "switched off")
    assert all(isinstance(program.calls, Executable) for program in function._programs)
    assert backend.ran["winner"] > 0


@pytest.mark.usefixtures("inline")
def test_state_that_a_function_writes_stays(use: Callable[[Tunable], Tunable]) -> None:
    backend, total = use(Tunable(Clock(), part=1e-4)), lm.tensor(np.zeros(4))

    @lm.jit(device="cpu")
    def add(x: Any) -> Any:
        total.copy_(total + x)
        return total * 1.0

    add._tuner = CallTuner(clock=backend.clock, threads=2, begin=0.0)
    for number in range(2000):
        assert add(np.ones(4)).numpy().tolist() == [number + 1.0] * 4
    assert add.tuning.swaps >= 1
    assert total.numpy().tolist() == [2000.0] * 4


# ------------------------------------------------------------------------------------------------- PyTorch's calls


def trained(network: Any, torch: Any, steps: int) -> list[float]:
    """Losses of steps in which two forward passes are under way at a time."""
    x, y = (torch.arange(24.0).reshape(4, 6) / 24, torch.ones(4, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss, other = torch.nn.functional.mse_loss(network(x), y), network(x * 0.5).square().mean()
        optimizer.zero_grad()
        (loss + other).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.torch
@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("gradients", [False, True])
def test_graphs_of_pytorch_are_tuned(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch, gradients: bool
) -> None:
    """Between forward passes; a backward pass runs the plans of its forward pass."""
    torch = pytest.importorskip("torch")
    compiled, backend = (
        importlib.import_module(f"lamina.convert.torch.{n}") for n in ("compiled", "backend")
    )
    found, tunable = [], use(Tunable(Clock(), part=1e-4))
    forward = compiled._CallMemory.forward

    def timed(memory: Any, tensors: Any) -> Any:
        tunable.clock.advance(CALL)
        return forward(memory, tensors)

    monkeypatch.setattr(compiled._CallMemory, "forward", timed)
    for tunes in (False, True):
        made = list[Any]()

        def lamina(graph: Any, inputs: Any, tunes: bool = tunes, made: list[Any] = made) -> Any:
            function = backend.lamina(graph, inputs, options={"tuning": tunes})
            if tunes:
                function._tuner = CallTuner(clock=tunable.clock, threads=2, begin=0.0)
            made.append(function)
            return function

        torch._dynamo.reset()
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        network = torch.compile(net, backend=lamina, dynamic=False)
        if gradients:
            found.append(trained(network, torch, 300))
        else:
            with torch.no_grad():
                found.append([network(torch.ones(4, 6)).sum().item() for _ in range(500)])
    assert found[0] == found[1]
    (function,) = made
    assert function.tuning.ended == ""
    assert function.tuning.won > 0
    assert function.tuning.swaps > 0
    assert tunable.ran["winner"] > 0
    (program,) = function._programs
    assert (program.calls is program.executable) == (not function.tuning.open)
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------------------- switched off


@pytest.mark.usefixtures("inline")
@pytest.mark.feature("F093")
def test_deterministic_calls_are_not_tuned(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    predictor = predictor_of(backend)
    with lm.policy(deterministic=True):
        ask(predictor, backend, 200)
    assert (backend.rooms, predictor.tuning) == ([], TuningState())
    assert all(isinstance(calls, Executable) for calls in calls_of(predictor))


def test_switches(use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = use(Tunable(Clock()))
    monkeypatch.setenv("LAMINA_TUNING", "0")
    predictor = predictor_of(backend)
    assert predictor.tuning.ended == "LAMINA_TUNING=0"
    ask(predictor, backend, 50)
    assert (backend.rooms, backend.ran["winner"]) == ([], 0)
    assert all(isinstance(calls, Executable) for calls in calls_of(predictor))
    assert lm.jit(lambda x: x, tuning=True).tuning.ended == "LAMINA_TUNING=0"


def test_an_inferer_stays_with_its_plans(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    with Inferer(network(), device="cpu") as inferer:
        answers = {inferer(IMAGES).numpy().tobytes() for _ in range(50)}
    assert len(answers) == 1
    assert (backend.rooms, backend.ran["winner"]) == ([], 0)


# ------------------------------------------------------------------------------------------------------- errors


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("where", ["candidates", "contest"])
def test_an_error_ends_tuning_with_one_warning(use: Callable[[Tunable], Tunable], where: str) -> None:
    backend = use(Tunable(Clock()))
    expected = ask(predictor_of(backend, tuning=False), backend, 1)
    backend = use(Fails(where, ValueError("broken")))
    predictor = predictor_of(backend)
    with pytest.warns(RuntimeWarning, match="tuning between runs has ended: ValueError: broken") as told:
        assert ask(predictor, backend, 300) == 300 * expected
    assert len(told) == 1
    assert (predictor.tuning.ended, predictor.tuning.open) == ("ValueError: broken", 0)
    assert all(isinstance(calls, Executable) for calls in calls_of(predictor))


@pytest.mark.usefixtures("inline")
def test_a_call_that_fails_gives_the_turn_back(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    predictor = predictor_of(backend)
    ask(predictor, backend, tuning.WARM)
    (calls,) = calls_of(predictor)
    with pytest.raises(TypeError, match="takes 1 inputs"):
        calls()  # is measured
    assert not predictor._tuner._turn.locked()
    assert calls.seconds == 0.0
    ask(predictor, backend, 20)
    assert calls.seconds == pytest.approx(CALL)


# ------------------------------------------------------------------------------------------------------- threads


@pytest.mark.usefixtures("inline")
def test_who_finds_another_thread_tuning_runs(use: Callable[[Tunable], Tunable]) -> None:
    """Without waiting; in a contest's parts alone calls of the program wait for its end."""
    backend, other = use(Tunable(Clock())), list[bytes]()
    predictor = predictor_of(backend)
    expected = ask(predictor, backend, tuning.WARM)[0]
    (calls,) = calls_of(predictor)
    within = predictor._tuner.before_call(calls)
    assert within is not tuning.AS_EVER
    thread = threading.Thread(target=lambda: other.extend(ask(predictor, backend, 50)))
    with within:
        thread.start()
        thread.join(30)
    assert other == 50 * [expected]
    assert not predictor._tuner._turn.locked()
    nested = predictor._tuner._turn
    with nested:  # as a function that is called within a call that is looked at
        assert ask(predictor, backend, 5) == 5 * [expected]


@pytest.mark.usefixtures("inline")
def test_no_contest_is_held_while_a_thread_stays_in_a_call(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that calls a function within an op of its own: nobody waits for it for long, nor it for itself."""
    monkeypatch.setattr(call_tuning, "_PATIENCE", 1e-3)
    backend = use(Tunable(Clock(), part=1e-4))
    predictor = predictor_of(backend)
    ask(predictor, backend, 20)
    (program,) = predictor._programs
    held = program.executable._contexts.take()
    parts, swaps = sum(map(len, [backend.held, backend.rooms])), predictor.tuning.swaps
    tuned = program.calls
    assert isinstance(tuned, TunedCalls)
    for _ in range(50):
        backend.clock.advance(1.0)
        tuned._count += 1
        with predictor._tuner.before_call(tuned):
            pass
    assert (sum(map(len, [backend.held, backend.rooms])), predictor.tuning.swaps) == (parts, swaps)
    program.executable._contexts.give(held)
    ask(predictor, backend, 2000)
    assert predictor.tuning.swaps > swaps
    assert predictor.tuning.ended == ""


def test_plans_change_while_threads_call(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock(), part=1e-4))
    predictor, wrong, done = predictor_of(backend), list[int](), threading.Event()
    inputs = [RNG.standard_normal((8, 1, 8, 8)).astype(np.float32) for _ in range(4)]
    reference = predictor_of(backend, tuning=False)
    expected = [reference(x).numpy().tobytes() for x in inputs]

    def work(k: int) -> None:
        for _ in range(20_000):
            if predictor(inputs[k]).numpy().tobytes() != expected[k]:
                wrong.append(k)
            if done.is_set():
                return
            if predictor.tuning.swaps and not predictor.tuning.open:
                done.set()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert (wrong, predictor.tuning.ended) == ([], "")
    assert done.is_set()
    assert backend.ran["winner"] > 0


# ------------------------------------------------------------------------------------------------------- lifetimes


@pytest.mark.usefixtures("inline")
def test_programs_that_go_are_not_kept(use: Callable[[Tunable], Tunable]) -> None:
    """Evicted in the middle of a contest, whose choices are still settled by the calls of others."""
    backend = use(Tunable(Clock(), parts=50))
    predictor = predictor_of(backend, max_programs=1)
    ask(predictor, backend, 60)
    assert predictor.tuning.open > 0
    (first,) = [weakref.ref(program.executable) for program in predictor._programs]
    larger = np.concatenate([IMAGES, IMAGES])
    expected = predictor_of(backend, tuning=False)(larger).numpy().tobytes()
    assert predictor(larger).numpy().tobytes() == expected
    gc.collect()
    assert first() is None
    for _ in range(5000):
        assert predictor(larger).numpy().tobytes() == expected
    assert predictor.tuning.ended == ""
    tuner = weakref.ref(predictor._tuner)
    del predictor
    gc.collect()
    assert tuner() is None


@pytest.mark.usefixtures("inline")
def test_weights_are_refreshed_between_contests(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock(), parts=50))
    predictor = predictor_of(backend)
    ask(predictor, backend, 60)
    assert predictor.tuning.open > 0
    bias = predictor.net[3].bias  # type: ignore[index]
    bias.copy_(bias + 1.0)
    predictor.refresh()
    expected = Predictor(predictor.net, device="cpu", tuning=False)(IMAGES).numpy().tobytes()
    assert set(ask(predictor, backend, 500)) == {expected}


def test_a_timeline_of_the_users_own_goes_first(use: Callable[[Tunable], Tunable]) -> None:
    backend, timeline = use(Tunable(Clock())), Timeline()
    predictor = predictor_of(backend)
    with timeline.record():
        ask(predictor, backend, 50)
    assert timeline.recorded == 50
    assert predictor.tuning.seconds == 0.0
    assert isinstance(calls_of(predictor)[0], TunedCalls)


def test_a_forked_child_does_not_tune() -> None:
    tuner = CallTuner()
    with tuner._turn:
        tuner.renew()
        assert tuner.state.ended == "a forked process"
        assert not tuner._turn.locked()
    assert isinstance(tuner.before_call(TunedCalls(tuner, None, _User())), nullcontext)  # type: ignore[arg-type]


class _User:
    calls: Any = None
