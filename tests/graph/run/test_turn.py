"""Executables that update the same tensors take turns, whatever their threads."""

import gc

import numpy as np

import lamina as lm
from lamina.graph import compile, trace
from lamina.graph.run.turn import _turn_of, turns_of
from lamina.spec import Spec, float32
from tests.helpers.many_threads import in_threads


def test_two_executables_on_one_state_lose_no_update() -> None:
    p = lm.tensor(np.zeros(4096, np.float32))
    runs = []
    for n in (1, 2):
        graph = trace(lambda p, x: (p + x[:1] * 0.0 + 1.0,), p, Spec((n,), float32))
        runs.append(compile(graph, "cpu", donate={0: 0}))
        runs[-1].load({0: p})
    in_threads(lambda k: [runs[k % 2](np.zeros(k % 2 + 1, np.float32)) for _ in range(50)], 8)
    assert set(p.tolist()) == {400.0}


def test_state_is_not_moved_under_a_call() -> None:
    """Another executable wants the weights in another layout, again and again, while they are updated."""
    w = lm.tensor(np.zeros((32, 32, 3, 3), np.float32))
    update = compile(trace(lambda w: (w + 1.0,), w), "cpu", donate={0: 0})
    x = np.zeros((1, 32, 8, 8), np.float32)
    reader = compile(trace(lambda w, x: lm.ops.conv2d(x, w), w, x), "cpu", resident=[0])
    update.load({0: w})
    reader.load({0: w})

    def work(k: int) -> None:
        for _ in range(40):
            if k % 2:
                update()
            else:
                reader(x)

    in_threads(work, 4)
    assert set(w.numpy().ravel().tolist()) == {80.0}


def test_turns_are_shared_by_what_is_updated_together_and_go_with_the_tensors() -> None:
    a, b, c = (lm.zeros(1) for _ in range(3))
    assert not turns_of([a])._turns  # nobody updates it
    one = turns_of([a, b], [a, b])._turns
    assert len(one) == 1
    assert turns_of([b])._turns == one
    both = turns_of([c, a], [c, a])._turns
    assert [t.number for t in both] == sorted(t.number for t in both)
    assert len(both) == 2
    keys = [id(x) for x in (a, b, c)]
    assert all(k in _turn_of for k in keys)
    del a, b, c
    gc.collect()
    assert not any(k in _turn_of for k in keys)
