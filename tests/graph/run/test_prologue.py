"""What programs make once of weights that stay: as long as it is read, and once for programs of several shapes."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Executable, compile, trace
from lamina.graph.run import prologue
from lamina.graph.run.prologue import derivations, lasting, part
from lamina.spec import Spec, float32

W = np.array([1.0, 4.0, 9.0], np.float32)


def scaled(n: int, factor: float = 2.0) -> Executable:
    """x times factor / (sqrt(w) + 1): a chain of three ops on the weight, of which calls read the last."""

    def f(w: Any, x: Any) -> Any:
        return ops.div(factor, ops.sqrt(w) + 1.0) * x

    given = Spec((3,), float32), Spec((n, 3), float32)
    return compile(trace(f, *given), "cpu", resident=(0,), optimize=False, backend="reference")


def ones(n: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones((n, 3), np.float32)


WANTED = [1.0, 2.0 / 3.0, 0.5]


def made(program: Executable) -> list[int]:
    """Where what lasts lies."""
    return [program.shared(slot).pointer for slot in lasting(program.program)]


def test_what_only_the_prologue_reads_is_not_kept() -> None:
    run = scaled(1)
    run.load({0: lm.tensor(W)})
    (slot,) = lasting(run.program)
    assert len(run.program.prologue) > 2
    inside = part(run.program, [slot])
    assert len(inside.steps) == len(run.program.prologue)
    assert slot not in inside.temporaries
    assert len(inside.temporaries) == len(inside.steps) - 1
    assert inside.placement.nbytes < sum(max(s.spec.nbytes, 64) for s in inside.temporaries) + 1024
    with pytest.raises(KeyError):
        run.shared(inside.temporaries[0])
    np.testing.assert_allclose(run(ones(1))[0].numpy()[0], WANTED, rtol=1e-6)


def test_of_what_is_there_nothing_is_made() -> None:
    run = scaled(1)
    assert part(run.program, []).steps == []


def test_programs_of_other_shapes_read_what_was_made() -> None:
    weight = lm.tensor(W)
    first, second = scaled(1), scaled(4)
    first.load({0: weight})
    second.load({0: weight}, [first])
    assert made(second) == made(first)
    assert second._prologue.borrowed == set(lasting(second.program))
    alone = scaled(4)
    alone.load({0: weight})
    assert second.own_bytes == alone.own_bytes - sum(s.spec.nbytes for s in lasting(second.program))
    for n, run in ((1, first), (4, second)):
        np.testing.assert_allclose(run(ones(n))[0].numpy(), [WANTED] * n, rtol=1e-6)


def test_other_weights_other_numbers_and_other_constants_share_nothing() -> None:
    weight = lm.tensor(W)
    first = scaled(1)
    first.load({0: weight})
    for other, tensor in ((scaled(4), lm.tensor(W)), (scaled(4, 3.0), weight)):
        other.load({0: tensor}, [first])
        assert made(other) != made(first)
    weight.copy_(W * 4)  # `first` has not met these yet
    third = scaled(4)
    third.load({0: weight}, [first])
    assert made(third) != made(first)
    assert third(ones(4))[0].numpy()[0, 0] == np.float32(2.0 / 3.0)


def test_what_another_program_reads_is_not_written_again() -> None:
    weight = lm.tensor(W)
    first, second = scaled(1), scaled(4)
    first.load({0: weight})
    second.load({0: weight}, [first])
    before = made(second)
    weight.copy_(W * 4)
    assert first(ones(1))[0].numpy()[0, 0] == np.float32(2.0 / 3.0)  # made anew, elsewhere
    assert made(first) != before
    assert made(second) == before
    assert second(ones(4))[0].numpy()[0, 0] == np.float32(2.0 / 3.0)
    places = made(first)
    weight.copy_(W)
    np.testing.assert_allclose(first(ones(1))[0].numpy()[0], WANTED, rtol=1e-6)
    assert made(first) == places  # nobody else reads it any more


def test_values_are_known_by_how_they_were_made() -> None:
    one, two = scaled(1), scaled(4)
    names = [
        derivations(run.program, {run.program.inputs[0]: "w"})[lasting(run.program)[0]] for run in (one, two)
    ]
    assert names[0] is names[1]
    assert derivations(one.program, {})[lasting(one.program)[0]] is not names[0]


def test_a_predictor_makes_of_its_weights_what_several_batch_sizes_read_once() -> None:
    lm.manual_seed(0)
    net = lm.nn.Sequential(lm.nn.Conv2d(3, 8, 3), lm.nn.BatchNorm2d(8), lm.nn.ReLU())
    predict = lm.infer.Predictor(net, device="cpu")
    x = np.random.default_rng(0).normal(size=(3, 3, 9, 9)).astype(np.float32)
    alone = predict(x[:1]).numpy()
    np.testing.assert_allclose(predict(x).numpy()[:1], alone, atol=1e-6)
    small, large = (p.executable for p in predict._programs)
    assert set(made(small)) & set(made(large))
    net[0].weight.copy_(net[0].weight.numpy() * 2)
    predict.refresh()
    assert set(made(small)) & set(made(large))
    np.testing.assert_allclose(predict(x[:1]).numpy(), lm.infer.Predictor(net, device="cpu")(x[:1]).numpy())


def test_jitted_functions_share_what_was_made_too() -> None:
    weight = lm.tensor(W)
    run = lm.jit(lambda x: ops.div(2.0, ops.sqrt(weight) + 1.0) * x)
    for n in (1, 4):
        np.testing.assert_allclose(run(ones(n)).numpy(), [WANTED] * n, rtol=1e-6)
    first, second = (p.executable for p in run._programs)
    assert made(first) == made(second) != []


def test_what_is_made_again_and_again_stays_bound_where_it_lies() -> None:
    """A plan is bound again for other memory alone; numbers are those of the weights as they are."""
    run, w = scaled(1), lm.tensor(W)
    run.load({0: w})
    first = run._prologue._bound
    assert first is not None
    for factor in (1.0, 4.0, 9.0):
        w.copy_(W * factor)
        np.testing.assert_allclose(run(ones(1))[0].numpy()[0], 2 / (np.sqrt(W * factor) + 1), rtol=1e-6)
        assert run._prologue._bound is first
    other = lm.tensor(W * 16)
    run.load({0: other})
    assert run._prologue._bound is not first
    np.testing.assert_allclose(run(ones(1))[0].numpy()[0], 2 / (4 * np.sqrt(W) + 1), rtol=1e-6)


def test_what_takes_much_memory_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "_KEPT", 64)
    run, w = scaled(1), lm.tensor(W)
    run.load({0: w})
    assert run._prologue._bound is None
    w.copy_(W * 4)
    np.testing.assert_allclose(run(ones(1))[0].numpy()[0], 2 / (2 * np.sqrt(W) + 1), rtol=1e-6)
