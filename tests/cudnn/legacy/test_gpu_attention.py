"""Multi-head attention of the older interface on a GPU against NumPy: values, gradients, windows, lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina.cudnn.legacy.attention import MultiHeadAttention
from lamina.cudnn.legacy.handles import Handle
from lamina.cudnn.legacy.sequence import SequenceData
from lamina.runtime import Buffer, from_host, to_host
from tests.helpers.legacy import attention_reference as reference

pytestmark = pytest.mark.gpu

BATCH, Q, KV, HEADS = 3, 4, 6, 2
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16}
TOLERANCE = {"float64": 1e-10, "float32": 3e-5, "float16": 3e-2}
PROJECTED = {
    "q_size": 8, "k_size": 8, "v_size": 8, "q_projection": 4, "k_projection": 4, "v_projection": 4, "o_projection": 8,
}  # fmt: skip
PLAIN = {
    "q_size": 8, "k_size": 8, "v_size": 8, "q_projection": 0, "k_projection": 0, "v_projection": 0, "o_projection": 0,
}  # fmt: skip
LENGTHS = ([4, 2, 1], [6, 3, 5])
WINDOW = ([0, 0, 1, 2], [1, 3, 3, 6])


@pytest.fixture
def handle() -> Iterator[Handle]:
    with Handle("cuda:0") as made:
        yield made


class Run:
    """One attention on the device."""

    def __init__(
        self,
        handle: Handle,
        data_type: str,
        sizes: dict[str, int],
        *,
        variable: bool = False,
        window: Any = None,
        order: tuple[str, ...] = ("time", "batch", "beam"),
        biases: bool = False,
        residual: bool = False,
        training: bool = True,
    ) -> None:
        self.handle, self.order, self.window, self.dtype = handle, order, window, np.dtype(DTYPES[data_type])
        math_type = "fma" if data_type == "float32" else "default"
        self.attention = MultiHeadAttention(
            heads=HEADS, **sizes, max_q_length=Q, max_kv_length=KV, max_batch=BATCH, scale=0.35, data_type=data_type,
            biases=biases, math_type=math_type,
        )  # fmt: skip
        self.lengths = LENGTHS if variable else (None, None)
        rng = np.random.default_rng(5)
        self.q, self.k, self.v = (
            self.rounded(rng.normal(size=(BATCH, t, sizes[f"{n}_size"])))
            for n, t in (("q", Q), ("k", KV), ("v", KV))
        )
        width = self.attention.output_size
        self.dout = self.rounded(rng.normal(size=(BATCH, Q, width)))
        if variable:
            self.dout[np.arange(Q) >= np.array(LENGTHS[0])[:, None]] = 0
        self.descs = {
            name: SequenceData(
                data_type=data_type, time=time, batch=BATCH, vector_size=size, lengths=lengths, order=order
            )
            for name, time, size, lengths in (
                ("q", Q, sizes["q_size"], self.lengths[0]), ("k", KV, sizes["k_size"], self.lengths[1]),
                ("v", KV, sizes["v_size"], self.lengths[1]), ("o", Q, width, self.lengths[0]),
            )
        }  # fmt: skip
        self.layout = self.attention.weight_layout(handle)
        shapes = {entry.name: entry.dims for entry in self.layout.entries}
        self.weights = {name: self.rounded(0.5 * rng.normal(size=shape)) for name, shape in shapes.items()}
        self.space = self.put(self.layout.pack(self.weights)) if self.weights else None
        self.arrays = {
            name: self.put(self.laid(x)) for name, x in (("q", self.q), ("k", self.k), ("v", self.v))
        }
        self.out = self.put(np.full(self.descs["o"].nbytes, 0xFF, np.uint8))
        self.residual = self.q if residual else None
        self.reserve = self.attention.forward(
            handle, **self.inputs(), o_desc=self.descs["o"], out=self.out, weights=self.space, window=window,
            residuals=self.arrays["q"] if residual else None, training=training,
        )  # fmt: skip
        handle.synchronize()

    def inputs(self) -> dict[str, Any]:
        names = {"q": "queries", "k": "keys", "v": "values"}
        given = {f"{n}_desc": self.descs[n] for n in "qkv"}
        return given | {names[n]: self.arrays[n] for n in "qkv"}

    def rounded(self, array: Any) -> Any:
        return array.astype(self.dtype).astype(np.float64)

    def laid(self, array: Any) -> Any:
        """(batch, time, size) in the order of the axes, one beam."""
        axes = {"batch": 0, "time": 1, "beam": 2}
        whole = array[:, :, None, :].transpose(*(axes[name] for name in self.order), 3)
        return np.ascontiguousarray(whole).astype(self.dtype)

    def unlaid(self, buffer: Buffer, name: str) -> Any:
        array = to_host(buffer).view(self.dtype).reshape(self.descs[name].shape).astype(np.float64)
        place = [self.order.index(axis) for axis in ("batch", "time", "beam")]
        return array.transpose(*place, 3)[:, :, 0]

    def put(self, array: Any) -> Buffer:
        return from_host(np.ascontiguousarray(array).reshape(-1).view(np.uint8), self.handle.device)

    def expected(self) -> reference.Attention:
        return reference.forward(
            self.q, self.k, self.v, self.weights, heads=HEADS, scale=0.35, q_lengths=self.lengths[0],
            kv_lengths=self.lengths[1], window=self.window, residuals=self.residual,
        )  # fmt: skip

    def gradients(self, accumulate: int = 0) -> dict[str, Any]:
        """By the reference's names."""
        dout = self.put(self.laid(self.dout))
        made = {n: self.put(np.full(self.descs[n].nbytes, 0xFF, np.uint8)) for n in "qkv"}
        names = {"dqueries": made["q"], "dkeys": made["k"], "dvalues": made["v"]}
        shared = self.inputs() | {"o_desc": self.descs["o"], "dout": dout, "reserve": self.reserve}
        self.attention.backward_data(self.handle, **shared, **names, weights=self.space, window=self.window)
        found = {}
        if self.space is not None:
            dspace = self.put(np.full(self.layout.nbytes, 0xFF, np.uint8))
            for times in range(accumulate + 1):
                self.attention.backward_weights(
                    self.handle, **shared, weights=self.space, dweights=dspace, accumulate=times > 0
                )
            self.handle.synchronize()
            found = {n: a.astype(np.float64) for n, a in self.layout.unpack(to_host(dspace)).items()}
        self.handle.synchronize()
        wholes = {"queries": "q", "keys": "k", "values": "v"}
        return found | {name: self.unlaid(made[short], short) for name, short in wholes.items()}


def close(got: Any, want: Any, data_type: str, what: str) -> None:
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[data_type] * scale, err_msg=what)


def valid(array: Any, lengths: list[int] | None) -> Any:
    """The positions before the ends."""
    if lengths is None:
        return array
    return array[np.arange(array.shape[1]) < np.array(lengths)[:, None]]


@pytest.mark.feature("F072", "F025", "F117", "F118")
@pytest.mark.parametrize("data_type", list(DTYPES))
@pytest.mark.parametrize("sizes", [PROJECTED, PLAIN], ids=["projected", "plain"])
@pytest.mark.parametrize(
    ("variable", "window"), [(False, None), (True, None), (False, WINDOW)], ids=["full", "variable", "window"]
)
def test_values_and_gradients(
    handle: Handle, variable: bool, window: Any, sizes: dict[str, int], data_type: str
) -> None:
    run = Run(handle, data_type, sizes, variable=variable, window=window)
    want = run.expected()
    q_lengths, kv_lengths = run.lengths
    close(valid(run.unlaid(run.out, "o"), q_lengths), valid(want.out, q_lengths), data_type, "out")
    got, gradients = run.gradients(), reference.backward(want, run.dout)
    assert set(got) == set(gradients)
    for name, value in gradients.items():
        lengths = {"queries": q_lengths, "keys": kv_lengths, "values": kv_lengths}.get(name)
        close(valid(got[name], lengths), valid(value, lengths), data_type, name)


@pytest.mark.feature("F072", "F025")
@pytest.mark.parametrize(
    "order", [("batch", "time", "beam"), ("batch", "beam", "time"), ("beam", "time", "batch")]
)
def test_orders_of_the_axes(handle: Handle, order: tuple[str, ...]) -> None:
    run = Run(handle, "float64", PROJECTED, order=order)
    want = run.expected()
    close(run.unlaid(run.out, "o"), want.out, "float64", "out")
    gradients = reference.backward(want, run.dout)
    for name, value in run.gradients().items():
        close(value, gradients[name], "float64", name)


@pytest.mark.feature("F072")
def test_inference_with_biases_and_residuals(handle: Handle) -> None:
    run = Run(handle, "float64", PROJECTED, biases=True, residual=True, training=False)
    assert run.reserve == (None, 0)
    assert set(run.layout.names) == {f"{n}_{kind}" for n in "qkvo" for kind in ("weights", "biases")}
    close(run.unlaid(run.out, "o"), run.expected().out, "float64", "out")


@pytest.mark.feature("F072")
def test_one_position_after_the_other(handle: Handle) -> None:
    run = Run(handle, "float64", PROJECTED, window=WINDOW, training=False)
    want = run.expected().out
    out = run.put(np.full(run.descs["o"].nbytes, 0xFF, np.uint8))
    for step in range(Q):
        run.attention.forward(
            handle,
            **run.inputs(),
            o_desc=run.descs["o"],
            out=out,
            weights=run.space,
            window=WINDOW,
            step=step,
        )
    handle.synchronize()
    close(run.unlaid(out, "o"), want, "float64", "out")


@pytest.mark.feature("F078", "F072")
def test_weight_gradients_are_set_or_added(handle: Handle) -> None:
    run = Run(handle, "float64", PROJECTED)
    want = reference.backward(run.expected(), run.dout)
    got = run.gradients(accumulate=1)
    for name in run.layout.names:
        close(got[name], 2 * want[name], "float64", name)


@pytest.mark.feature("F025")
def test_sizes(handle: Handle) -> None:
    made = MultiHeadAttention(heads=HEADS, **PROJECTED, max_q_length=Q, max_kv_length=KV, max_batch=BATCH)
    training, inference = (made.space_sizes(handle, training=t) for t in (True, False))
    assert training.weights == inference.weights == 4 * HEADS * (3 * 4 * 8 + 8 * 4)
    assert training.reserve > 0 == inference.reserve
    layout = made.weight_layout(handle)
    assert {e.name: e.dims for e in layout.entries} == {
        "q_weights": (2, 4, 8), "k_weights": (2, 4, 8), "v_weights": (2, 4, 8), "o_weights": (2, 8, 4),
    }  # fmt: skip
    everything = layout.pack({e.name: np.ones(e.dims) for e in layout.entries})
    assert everything.all()  # every element of the space belongs to one matrix
