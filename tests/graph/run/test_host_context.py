"""Calls that begin and end on the host; on a CPU they are the same, without a queue."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Executable, compile, trace
from lamina.graph.run.host_context import HostContext
from lamina.runtime import LibraryState, library_state
from lamina.spec import Spec, float32
from tests.helpers.many_threads import in_threads


def host_context(run: Executable) -> HostContext:
    return HostContext(run.program, run.program.outputs, run._shared, run.device, False)


def test_inputs_and_outputs_lie_on_the_host() -> None:
    x, w = (np.random.default_rng(k).standard_normal((4, 4)).astype(np.float32) for k in range(2))
    run = compile(
        trace(lambda a, b: (a @ b, ops.relu(a)), Spec((4, 4), float32), Spec((4, 4), float32)), "cpu"
    )
    context = host_context(run)
    for given in (x, lm.tensor(x), lm.tensor(np.asfortranarray(x))):
        product, positive = context(list(zip(run.program.inputs, (given, w), strict=True)))
        np.testing.assert_allclose(product.numpy(), x @ w, rtol=1e-5)
        np.testing.assert_array_equal(positive.numpy(), np.maximum(x, 0))
    kept = positive.numpy()
    context(list(zip(run.program.inputs, (-x, w), strict=True)))
    np.testing.assert_array_equal(kept, np.maximum(x, 0))  # in memory of its own


def test_each_binds_to_handles_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is recorded goes on using the memory behind a handle: no two contexts share one, nor does a thread."""
    run = compile(trace(lambda x: x * 2.0, Spec((3,), float32)), "cpu")
    found: list[LibraryState] = []
    plain = HostContext.bound

    def bound(self: HostContext, *given: Any) -> Any:
        found.append(library_state())
        return plain(self, *given)

    monkeypatch.setattr(HostContext, "bound", bound)
    for _ in range(2):
        host_context(run)([(run.program.inputs[0], np.ones(3, np.float32))])
    assert len({id(s) for s in (*found, library_state())}) == 3


def test_tensors_without_elements() -> None:
    run = compile(trace(lambda x: x * 2.0, Spec((0, 3), float32)), "cpu")
    (y,) = host_context(run)([(run.program.inputs[0], np.zeros((0, 3), np.float32))])
    assert y.shape == (0, 3)


@pytest.mark.gpu
@pytest.mark.feature("F113")
def test_gpu_contexts_have_streams_of_their_own() -> None:
    w = lm.tensor(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    graph = trace(lambda w, x: (ops.tanh(x @ w), x + 1.0), Spec((64, 64), float32), Spec((64, 64), float32))
    run = compile(graph, "cuda:0", resident=[0], contexts=4)
    run.load({0: w})
    xs = [np.random.default_rng(k).standard_normal((64, 64)).astype(np.float32) for k in range(8)]
    wanted = [[y.numpy().copy() for y in run(x)] for x in xs]

    def work(k: int) -> Any:
        for i in np.random.default_rng(k).integers(0, 8, 200):
            for y, z in zip(run(xs[i]), wanted[i], strict=True):
                assert y.device.kind == "cpu"
                assert y.numpy().tobytes() == z.tobytes()

    in_threads(work, 8)
    streams = {c._stream.handle for c in run._contexts.items}
    assert len(streams) == run.contexts > 1
    assert run.device.default_stream.handle not in streams
