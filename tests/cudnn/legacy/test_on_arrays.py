"""Operations on arrays: descriptors follow from them, results go where the caller says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.cudnn import legacy
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import TOLERANCE, close

pytestmark = needs_cudnn
X, W, Y = (2, 8, 9, 7), (16, 8, 3, 3), (2, 16, 9, 7)


def recorded(monkeypatch: pytest.MonkeyPatch, name: str) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(c, name, lambda *arguments: calls.append(arguments))
    return calls


@pytest.mark.feature("F077", "F011")
@pytest.mark.parametrize("format", [None, "nhwc"])
def test_descriptors_follow_from_the_arrays(monkeypatch: pytest.MonkeyPatch, format: str | None) -> None:
    calls = recorded(monkeypatch, "cudnnConvolutionForward")
    seen: dict[int, Any] = {}
    empty = legacy.base.Native.create

    def create(kind: str) -> Any:
        made = empty(kind)
        seen[made.address] = made
        return made

    monkeypatch.setattr(legacy.base.Native, "create", create)
    order = (0, 2, 3, 1) if format else (0, 1, 2, 3)
    x, w, y = (np.zeros([shape[axis] for axis in order], np.float16) for shape in (X, W, Y))
    convolution = legacy.Convolution(pad=1)
    operands = {"x": x, "w": w, "y": y, "beta": 1.0, "workspace": (4096, 7)}
    legacy.on_arrays(convolution.forward, handle=12345, format=format, **operands)
    ((handle, alpha, x_desc, _, w_desc, *_, beta, y_desc, _),) = calls
    assert (handle, alpha, beta) == (12345, 1.0, 1.0)
    assert {x_desc, w_desc, y_desc} <= set(seen)
    assert c.cudnnGetTensorNdDescriptor(x_desc, 4).dimA == list(X)
    assert c.cudnnGetFilterNdDescriptor(w_desc, 4).filterDimA == list(W)
    assert c.cudnnGetTensorNdDescriptor(y_desc, 4).dimA == list(Y)


@pytest.mark.feature("F077")
def test_what_does_not_fit_is_said() -> None:
    x, w = np.zeros(X, np.float32), np.zeros(W, np.float32)
    forward = legacy.Convolution(pad=1).forward
    with pytest.raises(TypeError, match=r"forward has no argument 'out'; it has x_desc, x, w_desc"):
        legacy.on_arrays(forward, handle=1, x=x, w=w, out=x)
    with pytest.raises(ValueError, match=r"w: a filter of sizes \(16, 8, 3, 3\) must be packed"):
        legacy.on_arrays(forward, handle=1, x=x, w=np.zeros((16, 8, 3, 6), np.float32)[..., ::2], y=x)
    with pytest.raises(TypeError, match="is an array whose device"):
        legacy.on_arrays(legacy.Softmax().forward)


@pytest.mark.gpu
@pytest.mark.feature("F077", "F078", "F011")
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_results_go_to_the_callers_arrays(library: str) -> None:
    """Nothing is waited for: all of it is queued on the stream that the library uses too."""
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    rng = np.random.default_rng(0)
    host = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("x", X), ("w", W), ("y", Y))
    }
    put = module.asarray if library == "cupy" else lambda array: module.from_numpy(array.copy()).cuda()
    back = (lambda array: array.get()) if library == "cupy" else (lambda array: array.cpu().numpy())
    x, w, y, out, again = (put(host[name]) for name in ("x", "w", "y", "y", "y"))
    x = 2 * x
    convolution, window = legacy.Convolution(pad=1, math_type="fma"), ((1, 1), (1, 1), (1, 1))
    legacy.on_arrays(convolution.forward, x=x, w=w, y=out, alpha=0.5, beta=3.0)
    legacy.on_arrays(legacy.Softmax(mode="channel").forward, x=out, y=again)
    legacy.on_arrays(legacy.OpTensor("add").run, a=y, b=again, c=y)  # in place over a
    wanted = ref.conv(host["x"].astype(np.float64), host["w"].astype(np.float64), *window) + 3 * host["y"]
    close(back(out).astype(np.float64), wanted, TOLERANCE["float32"])
    soft = ref.softmax("accurate", "channel", wanted)
    close(back(y).astype(np.float64), soft + host["y"], 4 * TOLERANCE["float32"])
