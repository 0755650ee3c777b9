"""Recurrent networks without a GPU: settings, shapes, parameters by name, errors, lifetime."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam, CudnnNotSupported
from lamina.cudnn.legacy.base import ClosedError
from lamina.cudnn.legacy.rnn import RNN
from lamina.cudnn.legacy.rnn_data import RNNData
from lamina.cudnn.legacy.rnn_weights import Entry, WeightLayout, parts
from tests.helpers.legacy.rnn_reference import Rnn
from tests.helpers.resident import growth

CELLS = ("relu", "tanh", "lstm", "gru")
SIZES = {"input_size": 6, "hidden_size": 8, "layers": 2}


# ---------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("cell", CELLS)
def test_states_that_have_no_descriptor_are_dense(cell: str) -> None:
    with RNN(cell=cell, **SIZES) as rnn:
        h, other = rnn._states(3, None, None)
        assert h.get().dims == rnn.state_shape(3)
        assert (other is not None) == (cell == "lstm")
        assert rnn._states(3, h, h) == (h, h)
        assert rnn._states(3, h, None)[0] is h


@pytest.mark.feature("F024", "F068", "F069", "F008")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("algorithm", "bias"),
    [("standard", bias) for bias in ("none", "single_input", "single_recurrent", "double")]
    + [(name, "double") for name in ("persist_static", "persist_dynamic", "persist_static_small_h")],
)
def test_settings_come_back(cell: str, bias: str, algorithm: str) -> None:
    with RNN(cell=cell, **SIZES, bidirectional=True, bias=bias, algorithm=algorithm) as rnn:
        got = rnn.get()
        assert got._replace(cell=0, bias=0, algorithm=0) == (
            0, 6, 8, 2, None, True, 0, c.CUDNN_LINEAR_INPUT, 0, c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_FLOAT,
            c.CUDNN_DEFAULT_MATH, None, True, None,
        )  # fmt: skip
        assert got.cell.name.endswith(cell.upper())
        assert got.algorithm.name == f"CUDNN_RNN_ALGO_{algorithm.upper()}"
        assert got.bias == {"none": 0, "single_input": 1, "double": 2, "single_recurrent": 3}[bias]
        again = eval(repr(rnn), {"RNN": RNN})
        assert again == rnn
        assert hash(again) == hash(rnn)


@pytest.mark.feature("F069")
def test_projection_clipping_and_skip_input_come_back() -> None:
    rnn = RNN(cell="lstm", **SIZES, projection=3, clip=(-1.5, 2), padded_io=False)
    got = rnn.get()
    assert (got.projection, got.clip, got.padded_io) == (3, (-1.5, 2.0), False)
    assert "projection=3" in repr(rnn)
    assert rnn.replace(clip=None).get().clip is None
    skipping = RNN(cell="gru", input_size=8, hidden_size=8, input_mode="skip")
    assert skipping.get().input_mode == c.CUDNN_SKIP_INPUT


@pytest.mark.parametrize(
    ("data_type", "precision", "math_type"),
    [
        ("float32", c.CUDNN_DATA_FLOAT, c.CUDNN_DEFAULT_MATH),
        ("float64", c.CUDNN_DATA_DOUBLE, c.CUDNN_DEFAULT_MATH),
        ("float16", c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_OP_MATH),
        ("bfloat16", c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_OP_MATH),
    ],
)
def test_math_follows_the_data_type(data_type: str, precision: int, math_type: int) -> None:
    got = RNN(cell="lstm", **SIZES, data_type=data_type).get()
    assert (got.math_precision, got.math_type) == (precision, math_type)
    assert RNN(cell="lstm", **SIZES, data_type=data_type, math_type="fma").get().math_type == c.CUDNN_FMA_MATH


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"cell": "gru", "projection": 4}, ValueError, r"projection=4 needs cell='lstm', got 'gru'"),
        ({"projection": 9}, ValueError, r"projection must be from 1 to hidden_size \(8\), got 9"),
        ({"cell": "tanh", "clip": (0, 1)}, ValueError, "needs cell='lstm'"),
        ({"input_mode": "skip"}, ValueError, "skip input needs input_size = hidden_size, got 6 and 8"),
        ({"cell": "rnn"}, ValueError, "there are rnn_relu, rnn_tanh, lstm, gru"),
        ({"layers": 0}, CudnnBadParam, "numLayers < 1"),
        ({"clip": (2, 1)}, CudnnBadParam, "lclip > rclip"),
        (
            {"data_type": "float64", "math_precision": "float32"},
            CudnnNotSupported,
            "mathPrec=CUDNN_DATA_FLOAT",
        ),
        ({"algorithm": "persist_static", "bias": "none"}, CudnnNotSupported, "biasMode=CUDNN_RNN_NO_BIAS"),
        ({"algorithm": "persist_static", "projection": 4}, CudnnNotSupported, "projSize=4"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        RNN(**({"cell": "lstm"} | SIZES | settings))


# ---------------------------------------------------------------------------------------------------- data


@pytest.mark.feature("F024", "F070")
@pytest.mark.parametrize(
    ("layout", "shape"),
    [("sequence_major", (5, 3, 6)), ("batch_major", (3, 5, 6)), ("packed", (9, 6))],
)
@pytest.mark.parametrize("data_type", ["float32", "float64", "float16", "bfloat16"])
def test_sequences_come_back(layout: str, shape: tuple[int, ...], data_type: str) -> None:
    lengths = [5, 3, 1]
    data = RNNData(
        data_type=data_type, max_length=5, batch=3, vector_size=6, lengths=lengths, layout=layout, fill=-1.5
    )
    got = data.get()
    assert (got.max_length, got.batch, got.vector_size, got.lengths, got.fill) == (5, 3, 6, (5, 3, 1), -1.5)
    assert data.shape == shape
    assert data.nbytes == np.prod(shape) * {"float64": 8, "float32": 4}.get(data_type, 2)
    assert eval(repr(data), {"RNNData": RNNData}) == data


def test_all_sequences_are_full_unless_lengths_say_otherwise() -> None:
    assert RNNData(max_length=4, batch=3, vector_size=2).get().lengths == (4, 4, 4)
    many = RNNData(max_length=2, batch=70_000, vector_size=1)
    assert len(many.get().lengths) == 70_000


def test_more_time_steps_than_cudnn_takes_are_refused_with_a_way_out() -> None:
    assert RNNData(max_length=65_535, batch=1, vector_size=2).get().max_length == 65_535
    with pytest.raises(CudnnNotSupported) as caught:
        RNNData(max_length=65_536, batch=1, vector_size=2)
    (note,) = caught.value.__notes__
    assert note.startswith("max_length is 65536: cuDNN takes 65535 time steps; feed the sequence in pieces")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lengths": [5, 3]}, "lengths has 2 entries, batch is 3"),
        ({"lengths": [5, 6, 1]}, r"lengths\[1\] is 6, it must be from 0 to 5"),
        ({"lengths": [1, 5, 3], "layout": "packed"}, "sorted, longest first"),
        ({"layout": "time_major"}, "there are seq_major_unpacked, seq_major_packed, batch_major_unpacked"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RNNData(max_length=5, batch=3, vector_size=6, **settings)


# ---------------------------------------------------------------------------------------------------- lifetime


@pytest.mark.feature("F029")
def test_closing_is_idempotent_and_use_after_it_raises() -> None:
    rnn, data = RNN(cell="gru", **SIZES), RNNData(max_length=5, batch=3, vector_size=6)
    for one in (rnn, data):
        one.close()
        one.close()
        assert one.closed
        assert "closed" in repr(one)
        with pytest.raises(ClosedError, match="closed"):
            one.get()
    with pytest.raises(ClosedError):
        rnn.forward(0, x_desc=data, x=0, y_desc=data, y=0, weights=(0, 4), workspace=(0, 4))


@pytest.mark.feature("F029")
def test_twenty_thousand_of_each_leave_nothing() -> None:
    def one() -> None:
        RNN(cell="lstm", **SIZES, clip=(-1, 1)).close()
        RNNData(max_length=5, batch=3, vector_size=6)

    for _ in range(2000):
        one()

    def work() -> None:
        for _ in range(20_000):
            one()

    assert growth(work, 1 << 20) <= 1 << 20


# ---------------------------------------------------------------------------------------------------- calls


CALLS = ("cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8", "cudnnSetTensor")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """(function, its arguments by C's names) of each call that would reach the library."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def keeper(name: str) -> Any:
        signature = inspect.signature(getattr(c, name))
        return lambda *given: calls.append((name, dict(signature.bind(*given).arguments)))

    for name in CALLS:
        monkeypatch.setattr(c, name, keeper(name))
    return calls


def numbers(arguments: dict[str, Any]) -> dict[str, int]:
    """Addresses, sizes and modes, but for what describes the states, which is made for the call."""
    return {k: int(v) for k, v in arguments.items() if v is not None and k not in ("hDesc", "cDesc")}


def descriptors(rnn: RNN, described: dict[str, Any]) -> dict[str, int]:
    """Their addresses, by C's names."""
    made = {"rnnDesc": rnn, "xDesc": described["x_desc"], "yDesc": described["y_desc"]}
    return {name: int(one.native.address) for name, one in made.items()}


def described(rnn: RNN) -> dict[str, Any]:
    x = RNNData(max_length=5, batch=3, vector_size=6)
    y = RNNData(max_length=5, batch=3, vector_size=rnn.output_size)
    return {"x_desc": x, "y_desc": y, "workspace": (50, 500)}


SPACES = {
    "weightSpaceSize": 400, "weightSpace": 40, "workSpaceSize": 500, "workSpace": 50, "reserveSpaceSize": 600,
    "reserveSpace": 60,
}  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
def test_what_the_forward_call_is_told(training: bool, told: list[tuple[str, dict[str, Any]]]) -> None:
    """A reserve is given where gradients follow, and given back."""
    rnn = RNN(cell="lstm", **SIZES)
    states = {"hx": 21, "hy": 22, "cx": 31, "cy": 32}
    arrays = {"x": 11, "y": 12, "weights": (40, 400), "lengths": 10, **states}
    data = described(rnn)
    reserve = rnn.forward(7, **data, **arrays, training=training, reserve=(60, 600))
    ((name, given),) = told
    mode = c.CUDNN_FWD_MODE_TRAINING if training else c.CUDNN_FWD_MODE_INFERENCE
    wanted = {"handle": 7, "fwdMode": int(mode), "devSeqLengths": 10, "x": 11, "y": 12, **states, **SPACES}
    wanted |= descriptors(rnn, data)
    if not training:
        del wanted["reserveSpace"]
        wanted["reserveSpaceSize"] = 0
    assert (name, numbers(given)) == ("cudnnRNNForward", wanted)
    assert tuple(reserve) == ((60, 600) if training else (None, 0))


def test_what_the_gradient_of_the_data_is_told(told: list[tuple[str, dict[str, Any]]]) -> None:
    rnn = RNN(cell="lstm", **SIZES)
    states = {"hx": 21, "dhy": 22, "dhx": 23, "cx": 31, "dcy": 32, "dcx": 33}
    arrays = {"y": 11, "dy": 12, "dx": 13, "lengths": 10, **states}
    data = described(rnn)
    rnn.backward_data(7, **data, **arrays, weights=(40, 400), reserve=(60, 600))
    ((name, given),) = told
    wanted = {"handle": 7, "devSeqLengths": 10, "y": 11, "dy": 12, "dx": 13, **states, **SPACES}
    wanted |= descriptors(rnn, data)
    assert (name, numbers(given)) == ("cudnnRNNBackwardData_v8", wanted)


@pytest.mark.parametrize("accumulate", [None, True, False])
@pytest.mark.parametrize(("data_type", "size"), [("float32", 4), ("float16", 2), ("float64", 8)])
def test_gradients_of_parameters_are_added_unless_zeros_are_asked_for(
    accumulate: bool | None, data_type: str, size: int, told: list[tuple[str, dict[str, Any]]]
) -> None:
    """cuDNN knows no other mode: all of the space is set to zero before."""
    rnn, zeroed = RNN(cell="gru", **SIZES, data_type=data_type), list[tuple[int, ...]]()
    keep, data = c.cudnnSetTensor, described(rnn)

    def clear(handle: Any, desc: Any, y: Any, value: Any) -> None:
        zeroed.append(c.cudnnGetTensorNdDescriptor(desc, 4)[2])
        keep(handle, desc, y, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c, "cudnnSetTensor", clear)
        asked = {} if accumulate is None else {"accumulate": accumulate}
        arrays = {"x": 11, "y": 12, "hx": 21, "lengths": 10, "dweights": (40, 400), "reserve": (60, 600)}
        rnn.backward_weights(7, **data, **arrays, **asked)
    *before, (name, given) = told
    spaces = {k.replace("weightSpace", "dweightSpace") if v == 40 else k: v for k, v in SPACES.items()}
    mode = {"addGrad": int(c.CUDNN_WGRAD_MODE_ADD)}
    wanted = {"handle": 7, **mode, "devSeqLengths": 10, "x": 11, "hx": 21, "y": 12, **spaces}
    wanted |= descriptors(rnn, data)
    assert (name, numbers(given)) == ("cudnnRNNBackwardWeights_v8", wanted)
    if accumulate is False:
        assert [(n, g["y"], g["valuePtr"]) for n, g in before] == [("cudnnSetTensor", 40, 0.0)]
        assert [tuple(dims) for dims in zeroed] == [(1, 1, 1, 400 // size)]
    else:
        assert before == []


# ---------------------------------------------------------------------------------------------------- parameters


def plain(rnn: RNN, data_type: int = c.CUDNN_DATA_FLOAT) -> WeightLayout:
    """A layout with the network's parameters one after the other, and gaps: as if the library had told it."""
    got = rnn.get()
    names = {}
    projected = got.projection is not None
    for _, _, part in parts(got.cell, got.layers, got.bidirectional, projected):
        names |= {part.name(what): (what, part) for what in ("weight", "bias")}
    entries, offset = [], 3
    for name, shape in rnn.parameter_shapes().items():
        what, part = names[name]
        entries.append(Entry(name, what, part, offset, shape))
        offset += int(np.prod(shape)) + 5
    size = {c.CUDNN_DATA_FLOAT: 4, c.CUDNN_DATA_DOUBLE: 8}.get(data_type, 2)
    return WeightLayout(got.cell, c.cudnnDataType_t(data_type), offset * size, tuple(entries))


def state(cell: str, **settings: Any) -> tuple[Rnn, dict[str, Any]]:
    rng = np.random.default_rng(0)
    rnn = Rnn(cell, 6, 8, layers=2, **settings)
    return rnn, {n: rng.normal(size=s).astype(np.float32) for n, s in rnn.shapes().items()}


VARIANTS = [
    (cell, projection)
    for cell, projection in itertools.product(CELLS, (None, 3))
    if cell == "lstm" or not projection
]


@pytest.mark.torch
@pytest.mark.feature("F071")
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "projection"), VARIANTS)
def test_parameters_by_gate_are_pytorchs_both_ways(
    cell: str, projection: int | None, bidirectional: bool
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    module = kind(6, 8, 2, bidirectional=bidirectional, **({"proj_size": projection} if projection else {}))
    parameters = module.state_dict()
    layout = plain(RNN(cell=cell, **SIZES, projection=projection, bidirectional=bidirectional))
    space = layout.from_torch(parameters)
    assert space.nbytes == layout.nbytes
    gates = {"lstm": "ifgo", "gru": "rzn"}.get(cell, " ")
    for name, value in layout.unpack(space).items():
        base, _, gate = name.partition(".")
        rows = parameters[base].numpy()
        expected = rows if not gate else np.split(rows, len(gates))[gates.index(gate)]
        np.testing.assert_array_equal(value, expected, err_msg=name)
    back = layout.to_torch(space)
    assert list(back) == list(parameters)  # names and order
    for name, value in parameters.items():
        np.testing.assert_array_equal(back[name], value.numpy(), err_msg=name)
    np.testing.assert_array_equal(layout.pack(layout.unpack(space)), space)


@pytest.mark.feature("F071")
@pytest.mark.parametrize(
    ("data_type", "size"), [(c.CUDNN_DATA_DOUBLE, 8), (c.CUDNN_DATA_HALF, 2), (c.CUDNN_DATA_BFLOAT16, 2)]
)
def test_parameters_are_rounded_to_the_networks_type(data_type: int, size: int) -> None:
    layout = plain(RNN(cell="gru", **SIZES), data_type)
    _, parameters = state("gru")
    space = layout.from_torch(parameters)
    assert space.dtype.itemsize == size
    for name, value in layout.to_torch(space.view(np.uint8)).items():
        np.testing.assert_array_equal(value, parameters[name].astype(layout.dtype), err_msg=name)


@pytest.mark.feature("F069", "F071")
@pytest.mark.parametrize(("bias", "kept"), [("single_input", "bias_ih"), ("single_recurrent", "bias_hh")])
def test_one_bias_takes_the_sum_of_two(bias: str, kept: str) -> None:
    layout = plain(RNN(cell="lstm", **SIZES, bias=bias))
    _, parameters = state("lstm")
    back = layout.to_torch(layout.from_torch(parameters))
    for suffix in ("l0", "l1"):
        both = parameters[f"bias_ih_{suffix}"] + parameters[f"bias_hh_{suffix}"]
        np.testing.assert_array_equal(back[f"{kept}_{suffix}"], both)
        other = "bias_hh" if kept == "bias_ih" else "bias_ih"
        assert not back[f"{other}_{suffix}"].any()


@pytest.mark.feature("F069", "F071")
def test_biases_that_a_mode_cannot_express_are_refused() -> None:
    _, parameters = state("gru")
    with pytest.raises(ValueError, match=r"bias_hh_l0\.n is not zero, and this bias mode has no place"):
        plain(RNN(cell="gru", **SIZES, bias="single_input")).from_torch(parameters)
    layout = plain(RNN(cell="gru", **SIZES, bias="none"))
    with pytest.raises(ValueError, match="bias_ih_l0 is not zero"):
        layout.from_torch(parameters)
    weights = {name: value for name, value in parameters.items() if name.startswith("weight")}
    assert list(layout.to_torch(layout.from_torch(weights))) == list(weights)


@pytest.mark.feature("F069", "F071")
def test_skip_input_is_pytorchs_identity() -> None:
    layout = plain(RNN(cell="gru", input_size=8, hidden_size=8, input_mode="skip"))
    assert "weight_ih_l0.r" not in layout
    rnn = Rnn("gru", 8, 8)
    parameters = {
        n: np.random.default_rng(0).normal(size=s).astype(np.float32) for n, s in rnn.shapes().items()
    }
    with pytest.raises(ValueError, match="with skip input weight_ih_l0 must be identities"):
        layout.from_torch(parameters)
    parameters["weight_ih_l0"] = np.tile(np.eye(8, dtype=np.float32), (3, 1))
    back = layout.to_torch(layout.from_torch(parameters))
    assert list(back) == list(parameters)
    for name, value in parameters.items():
        np.testing.assert_array_equal(back[name], value)


def test_parameters_that_do_not_fit_are_named() -> None:
    layout = plain(RNN(cell="lstm", **SIZES))
    _, parameters = state("lstm")
    with pytest.raises(ValueError, match="weight_hh_l1 is missing"):
        layout.from_torch({n: v for n, v in parameters.items() if n != "weight_hh_l1"})
    with pytest.raises(ValueError, match=r"unknown \['weight_ih_l7'\]"):
        layout.from_torch(parameters | {"weight_ih_l7": parameters["weight_ih_l0"]})
    with pytest.raises(ValueError, match=r"weight_ih_l0\.i has shape \(8, 7\), \(8, 6\) is needed"):
        layout.from_torch(parameters | {"weight_ih_l0": np.zeros((32, 7))})
    with pytest.raises(ValueError, match="30 rows, not a multiple of 4"):
        layout.from_torch(parameters | {"weight_ih_l0": np.zeros((30, 6))})
    with pytest.raises(ValueError, match=r"missing \['bias_hh_l0.f'"):
        layout.pack({})
    with pytest.raises(ValueError, match=f"the weight space has {layout.nbytes} bytes, got 12"):
        layout.unpack(np.zeros(3, np.float32))
    assert layout.addresses(1000)["weight_ih_l0.i"] == 1000 + 4 * layout["weight_ih_l0.i"].offset
    assert len(layout) == len(layout.names) == 2 * 2 * 8
    assert "CUDNN_LSTM" in repr(layout)


@pytest.mark.feature("F069", "F071")
@pytest.mark.parametrize(
    ("bias", "kept", "other"), [("single_input", "ih", "hh"), ("single_recurrent", "hh", "ih")]
)
def test_a_grus_new_gate_needs_the_bias_that_a_mode_lacks_to_be_zero(
    bias: str, kept: str, other: str
) -> None:
    _, parameters = state("gru")
    layout = plain(RNN(cell="gru", **SIZES, bias=bias))
    with pytest.raises(ValueError, match=rf"bias_{other}_l0\.n is not zero"):
        layout.from_torch(parameters)
    parameters = {name: value.copy() for name, value in parameters.items()}
    for suffix in ("l0", "l1"):
        rows = parameters[f"bias_{other}_{suffix}"]
        rows[2 * len(rows) // 3 :] = 0
    back = layout.to_torch(layout.from_torch(parameters))
    for suffix in ("l0", "l1"):
        both = parameters[f"bias_ih_{suffix}"] + parameters[f"bias_hh_{suffix}"]
        np.testing.assert_array_equal(back[f"bias_{kept}_{suffix}"], both)


@pytest.mark.feature("F071")
@pytest.mark.parametrize(
    "settings",
    [
        *({"cell": cell} for cell in CELLS),
        *({"cell": "gru", "data_type": name} for name in ("float64", "float16", "bfloat16")),
        *({"cell": "lstm", "bias": name} for name in ("none", "single_input", "single_recurrent")),
        {"cell": "lstm", "bidirectional": True},
        {"cell": "lstm", "projection": 3, "bidirectional": True},
        {"cell": "gru", "input_size": 8, "input_mode": "skip"},
    ],
    ids=str,
)
def test_the_layout_is_what_the_library_tells_part_by_part(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses become offsets in elements; a part without a matrix or bias has no entry."""
    rnn = RNN(**(SIZES | settings))
    got = rnn.get()
    wanted = plain(rnn, got.data_type)
    numbered = parts(got.cell, got.layers, got.bidirectional, got.projection is not None)
    names = {(pseudo, identity): part for pseudo, identity, part in numbered}

    def fill(desc: int, name: str, space: int) -> int:
        if name not in wanted:
            return 0
        rows, columns = (*wanted[name].shape, 1)[:2]
        c.cudnnSetTensorNdDescriptor(desc, got.data_type, 3, [1, rows, columns], [rows * columns, columns, 1])
        return space + wanted.dtype.itemsize * wanted[name].offset

    def tell(
        handle: int,
        rnn_desc: int,
        pseudo: int,
        nbytes: int,
        space: int,
        identity: int,
        matrix: int,
        bias: int,
    ) -> c.cudnnGetRNNWeightParams_result:
        assert (handle, rnn_desc, nbytes) == (7, rnn.native.address, wanted.nbytes)
        part = names[pseudo, identity]
        return c.cudnnGetRNNWeightParams_result(
            fill(matrix, part.name("weight"), space), fill(bias, part.name("bias"), space)
        )

    monkeypatch.setattr(c, "cudnnGetRNNWeightSpaceSize", lambda handle, desc: wanted.nbytes)
    monkeypatch.setattr(c, "cudnnGetRNNWeightParams", tell)
    assert rnn.weight_layout(7) == wanted


@pytest.mark.feature("F071")
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "projection"), [*VARIANTS, ("lstm", 8)])
def test_shapes_of_parameters_and_states(cell: str, projection: int | None, bidirectional: bool) -> None:
    """As PyTorch has them, by gate; a projection to all of the state is none."""
    settings: dict[str, Any] = {"projection": projection, "bidirectional": bidirectional}
    rnn = RNN(cell=cell, input_size=6, hidden_size=8, layers=2, **settings)
    gates = {"lstm": 4, "gru": 3}.get(cell, 1)
    width, directions = projection or 8, 1 + bidirectional
    wanted: dict[str, tuple[int, ...]] = {}
    for suffix, columns in (("l0", 6), ("l1", directions * width)):
        for name in (suffix, f"{suffix}_reverse")[:directions]:
            wanted |= {f"weight_ih_{name}": (8, columns), f"weight_hh_{name}": (8, width)}
            wanted |= {f"bias_ih_{name}": (8,), f"bias_hh_{name}": (8,)}
            wanted |= {f"weight_hr_{name}": (3, 8)} if projection == 3 else {}
    found = rnn.parameter_shapes()
    assert {name.partition(".")[0] for name in found} == wanted.keys()
    assert len(found) == sum(1 if "_hr_" in name else gates for name in wanted)
    for name, shape in found.items():
        assert shape == wanted[name.partition(".")[0]], name
    assert rnn.output_size == directions * width
    assert rnn.state_shape(5) == (2 * directions, 5, width)
    assert rnn.cell_shape(5) == (2 * directions, 5, 8)


@pytest.mark.parametrize("training", [False, True])
def test_sizes_and_kernels_that_are_asked_for(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rnn = RNN(cell="lstm", input_size=6, hidden_size=8, layers=2)
    data = RNNData(max_length=5, batch=3, vector_size=6)
    asked: list[tuple[Any, ...]] = []

    def keep(*given: Any) -> tuple[int, int]:
        asked.append(given)
        return 10, 20

    mode = c.CUDNN_FWD_MODE_TRAINING if training else c.CUDNN_FWD_MODE_INFERENCE
    for name in ("cudnnGetRNNTempSpaceSizes", "cudnnBuildRNNDynamic"):
        monkeypatch.setattr(c, name, keep)
    assert tuple(rnn.temp_space_sizes(7, data, training=training)) == (10, 20)
    rnn.build_dynamic(7, 3)
    address = rnn.native.address
    assert asked == [(7, address, mode, data.native.address), (7, address, 3)]
