"""Attention and sequence data of the older interface without a GPU: settings, weights by kind, errors, lifetime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam, CudnnNotSupported
from lamina.cudnn.legacy.attention import MultiHeadAttention
from lamina.cudnn.legacy.attention_weights import AttentionLayout, WeightEntry
from lamina.cudnn.legacy.base import ClosedError
from lamina.cudnn.legacy.sequence import SequenceData
from tests.helpers.resident import growth

SIZES = {
    "heads": 2, "q_size": 8, "k_size": 6, "v_size": 4, "q_projection": 5, "k_projection": 5, "v_projection": 3,
    "o_projection": 7, "max_q_length": 4, "max_kv_length": 6, "max_batch": 3,
}  # fmt: skip


@pytest.mark.feature("F025", "F008")
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("query_map", ["all_to_one", "one_to_one"])
@pytest.mark.parametrize("data_type", ["float32", "float64", "float16"])
def test_settings_come_back(data_type: str, query_map: str, biases: bool) -> None:
    beam = 2 if query_map == "all_to_one" else 1  # several beams of keys: not supported up to cuDNN 9.28
    made = MultiHeadAttention(
        **SIZES,
        max_beam=beam,
        scale=0.25,
        data_type=data_type,
        query_map=query_map,
        biases=biases,
        math_type="fma",
    )
    got = made.get()
    assert got[:11] == tuple(SIZES.values())
    assert (got.max_beam, got.scale, got.query_map, got.biases) == (beam, 0.25, query_map, biases)
    assert got.math_type == c.CUDNN_FMA_MATH
    assert got.compute_type == (c.CUDNN_DATA_DOUBLE if data_type == "float64" else c.CUDNN_DATA_FLOAT)
    assert made.output_size == 7
    assert eval(repr(made), {"MultiHeadAttention": MultiHeadAttention}) == made


def test_without_output_projection_the_heads_stand_side_by_side() -> None:
    assert MultiHeadAttention(**(SIZES | {"o_projection": 0})).output_size == 2 * 3
    assert MultiHeadAttention(**(SIZES | {"o_projection": 0, "v_projection": 0})).output_size == 2 * 4


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"query_map": "none"}, ValueError, r"one of \['all_to_one', 'one_to_one'\], got 'none'"),
        ({"k_projection": 4}, CudnnBadParam, "kProjSize=4"),
        ({"scale": -1.0}, CudnnBadParam, "smScaler=-1.0"),
        ({"heads": 0}, CudnnBadParam, "nHeads=0"),
        ({"query_map": "one_to_one", "max_beam": 2}, CudnnNotSupported, "maxBeamSize=2"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        MultiHeadAttention(**(SIZES | settings))


@pytest.mark.feature("F025")
@pytest.mark.parametrize(
    ("order", "shape"),
    [(("time", "batch", "beam"), (5, 3, 2, 8)), (("batch", "beam", "time"), (3, 2, 5, 8))],
)
def test_sequences_come_back(order: tuple[str, ...], shape: tuple[int, ...]) -> None:
    lengths = [5, 4, 3, 2, 1, 5]
    data = SequenceData(
        time=5, batch=3, beam=2, vector_size=8, lengths=lengths, order=order, data_type="float16"
    )
    got = data.get()
    assert (got.time, got.batch, got.beam, got.vector_size) == (5, 3, 2, 8)
    assert (got.order, got.lengths) == (order, tuple(lengths))
    assert data.shape == shape
    assert data.nbytes == 2 * np.prod(shape)
    assert eval(repr(data), {"SequenceData": SequenceData}) == data
    assert SequenceData(time=5, batch=2, vector_size=1).get().lengths == (5, 5)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lengths": [1, 2]}, r"lengths has 2 entries, batch \* beam is 3"),
        ({"lengths": [1, 2, 6]}, r"lengths\[2\] is 6, it must be from 1 to 5"),
        ({"lengths": [0, 2, 5]}, r"lengths\[0\] is 0"),
        ({"order": ("time", "batch", "vect")}, "'time', 'batch' and 'beam'"),
        ({"data_type": "bfloat16"}, "float32, float64 or float16, got 'bfloat16'"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SequenceData(time=5, batch=3, vector_size=8, **settings)


@pytest.mark.feature("F025")
def test_weights_by_kind_follow_their_strides() -> None:
    rng = np.random.default_rng(0)
    q = WeightEntry("q_weights", 0, (2, 5, 8), (5, 1, 10))  # columns outermost, as the library lays them
    o = WeightEntry("o_weights", 80, (2, 7, 3), (3, 6, 1))
    layout = AttentionLayout(c.CUDNN_DATA_FLOAT, 4 * 122, (q, o))
    weights = {e.name: rng.normal(size=e.dims).astype(np.float32) for e in (q, o)}
    space = layout.pack(weights)
    assert space.shape == (122,)
    assert space[10 * 3 + 5 * 1 + 2] == weights["q_weights"][1, 2, 3]
    for name, value in layout.unpack(space).items():
        np.testing.assert_array_equal(value, weights[name])
    assert space.all()  # every element has a place
    with pytest.raises(ValueError, match=r"missing \['o_weights'\], unknown \['x'\]"):
        layout.pack({"q_weights": weights["q_weights"], "x": 0})
    with pytest.raises(ValueError, match=r"q_weights has shape \(2, 8, 5\)"):
        layout.pack(weights | {"q_weights": np.zeros((2, 8, 5))})
    with pytest.raises(ValueError, match="488 bytes, got 4"):
        layout.unpack(np.zeros(1, np.float32))


@pytest.mark.feature("F025")
def test_calls_check_what_they_are_given() -> None:
    made = MultiHeadAttention(**SIZES)
    q = SequenceData(time=4, batch=3, vector_size=8)
    k, v = (SequenceData(time=6, batch=3, vector_size=n) for n in (6, 4))
    o = SequenceData(time=4, batch=3, vector_size=7)
    arrays = {
        "q_desc": q,
        "queries": 0,
        "k_desc": k,
        "keys": 0,
        "v_desc": v,
        "values": 0,
        "o_desc": o,
        "out": 0,
    }
    with pytest.raises(ValueError, match="window has 1 and 1 entries, the queries have 4 positions"):
        made.forward(0, **arrays, window=([0], [1]))
    with pytest.raises(TypeError, match="pass q_lengths and kv_lengths"):
        made.forward(0, **arrays)
    with pytest.raises(TypeError, match="the size of 7 is unknown"):
        made.forward(0, **arrays, q_lengths=1, kv_lengths=1, weights=7, workspace=(1, 1))
    with pytest.raises(CudnnBadParam):
        made.forward(0, **arrays, q_lengths=1, kv_lengths=1, weights=(7, 4), workspace=(1, 1))
    for training in (False, True):
        with pytest.raises(CudnnBadParam, match="cudnnGetMultiHeadAttnBuffers"):
            made.space_sizes(0, training=training)


@pytest.mark.feature("F029")
def test_closing_is_idempotent_and_leaves_nothing() -> None:
    def one() -> None:
        MultiHeadAttention(**SIZES).close()
        SequenceData(time=5, batch=3, vector_size=8)

    closed = MultiHeadAttention(**SIZES)
    closed.close()
    closed.close()
    with pytest.raises(ClosedError, match="MultiHeadAttention was closed"):
        closed.get()
    for _ in range(2000):
        one()

    def work() -> None:
        for _ in range(20_000):
            one()

    assert growth(work, 1 << 20) <= 1 << 20
