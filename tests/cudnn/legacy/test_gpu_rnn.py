"""Recurrent networks on a GPU against the NumPy one: values, gradients, weights by gate, algorithms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from lamina.c.errors import CudnnError, CudnnNotSupported
from lamina.cudnn.legacy.dropout import Dropout
from lamina.cudnn.legacy.handles import Handle
from lamina.cudnn.legacy.rnn import RNN
from lamina.cudnn.legacy.rnn_data import RNNData
from lamina.cudnn.legacy.rnn_search import search_rnn, table
from lamina.runtime import Buffer, from_host, to_host
from tests.helpers.legacy import rnn_reference as reference
from tests.helpers.legacy.rnn_reference import Rnn

pytestmark = pytest.mark.gpu

TIME, BATCH, INPUTS, HIDDEN = 6, 4, 8, 16
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: (relative, absolute): sums of some hundred products per element over a few layers and steps.
TOLERANCE = {
    "float64": (1e-10, 1e-11),
    "float32": (2e-5, 2e-5),
    "float16": (2e-2, 2e-2),
    "bfloat16": (1e-1, 1e-1),
}
BATCHES = {
    "full": ("seq_major_unpacked", None),
    "sorted": ("seq_major_unpacked", [6, 5, 3, 1]),
    "unsorted": ("seq_major_unpacked", [3, 6, 1, 5]),
    "batch first": ("batch_major_unpacked", [3, 6, 1, 5]),
    "packed": ("seq_major_packed", [6, 5, 3, 1]),
}


@pytest.fixture
def handle() -> Iterator[Handle]:
    with Handle("cuda:0") as made:
        yield made


class Case(NamedTuple):
    """A network, a batch, and random numbers for both, rounded to the type."""

    rnn: RNN
    spec: Rnn
    dtype: Any
    x_desc: RNNData
    y_desc: RNNData
    parameters: dict[str, Any]
    arrays: dict[str, Any]  # x, h0, c0, dy, dhn, dcn, time first and padded
    lengths: list[int] | None
    states: bool


def case(
    cell: str,
    data_type: str,
    batch: str = "full",
    *,
    states: bool = True,
    inputs: int = INPUTS,
    hidden: int = HIDDEN,
    layers: int = 2,
    **settings: Any,
) -> Case:
    layout, lengths = BATCHES[batch]
    settings = {"math_type": "fma"} | settings if data_type == "float32" else settings
    rnn = RNN(
        cell=cell, input_size=inputs, hidden_size=hidden, layers=layers, data_type=data_type, **settings
    )
    got = rnn.get()
    bounds = got.clip and (
        float(np.float32(got.clip[0])),
        float(np.float32(got.clip[1])),
    )  # as cuDNN holds them
    spec = Rnn(cell, inputs, hidden, layers, got.projection, got.bidirectional, bounds)
    rng, dtype = np.random.default_rng(42), DTYPES[data_type]

    def numbers(shape: tuple[int, ...], scale: float = 1.0) -> Any:
        return rng.uniform(-scale, scale, shape).astype(dtype).astype(np.float64)

    parameters = {name: numbers(shape, hidden**-0.5) for name, shape in spec.shapes().items()}
    h, cells = rnn.state_shape(BATCH), rnn.cell_shape(BATCH)
    arrays = {
        "x": numbers((TIME, BATCH, inputs)), "dy": numbers((TIME, BATCH, rnn.output_size)),
        "h0": numbers(h), "dhn": numbers(h), "c0": numbers(cells), "dcn": numbers(cells),
    }  # fmt: skip
    if lengths is not None:
        past = np.arange(TIME)[:, None] >= np.array(lengths)
        arrays["x"][past] = arrays["dy"][past] = 0
    descs = (
        RNNData(
            data_type=data_type,
            max_length=TIME,
            batch=BATCH,
            vector_size=size,
            lengths=lengths,
            layout=layout,
        )
        for size in (inputs, rnn.output_size)
    )
    x_desc, y_desc = descs
    return Case(rnn, spec, dtype, x_desc, y_desc, parameters, arrays, lengths, states)


def laid(array: Any, desc: RNNData, dtype: Any) -> Any:
    """(time, batch, size) as the layout has it."""
    if len(desc.shape) == 2:
        steps = [array[t, b] for t in range(TIME) for b in range(BATCH) if t < desc.lengths[b]]
        return np.ascontiguousarray(np.stack(steps)).astype(dtype)
    batch_first = desc.shape[0] == BATCH
    return np.ascontiguousarray(array.swapaxes(0, 1) if batch_first else array).astype(dtype)


def unlaid(buffer: Buffer, desc: RNNData, dtype: Any) -> Any:
    """The array in a buffer as (time, batch, size), zero past the ends of packed sequences."""
    array = to_host(buffer).view(dtype).reshape(desc.shape).astype(np.float64)
    if len(desc.shape) == 3:
        return array.swapaxes(0, 1) if desc.shape[0] == BATCH else array
    padded = np.zeros((TIME, BATCH, desc.vector_size))
    places = [(t, b) for t in range(TIME) for b in range(BATCH) if t < desc.lengths[b]]
    for row, (t, b) in zip(array, places, strict=True):
        padded[t, b] = row
    return padded


class Run:
    """A case on the device: forward, and the gradients."""

    def __init__(self, handle: Handle, made: Case, *, training: bool = True) -> None:
        self.handle, self.made = handle, made
        self.layout = made.rnn.weight_layout(handle)
        self.space = self.layout.from_torch(self.expressible())
        self.weights = self.put(self.space)
        self.x = self.put(laid(made.arrays["x"], made.x_desc, made.dtype))
        self.y = self.filled(made.y_desc.nbytes)
        lstm = made.spec.cell == "lstm"
        self.hx = self.put(made.arrays["h0"].astype(made.dtype)) if made.states else None
        self.cx = self.put(made.arrays["c0"].astype(made.dtype)) if made.states and lstm else None
        self.hy = self.filled(made.arrays["h0"].size * np.dtype(made.dtype).itemsize)
        self.cy = self.filled(made.arrays["c0"].size * np.dtype(made.dtype).itemsize) if lstm else None
        self.reserve = made.rnn.forward(
            handle, x_desc=made.x_desc, x=self.x, y_desc=made.y_desc, y=self.y, weights=self.weights, hx=self.hx,
            hy=self.hy, cx=self.cx, cy=self.cy, training=training,
        )  # fmt: skip
        handle.synchronize()

    def expressible(self) -> dict[str, Any]:
        """The parameters that this bias and input mode has a place for."""
        known = {name.split(".")[0] for name in self.layout.names}
        return {name: value for name, value in self.made.parameters.items() if name in known}

    def put(self, array: Any) -> Buffer:
        return from_host(np.ascontiguousarray(array).view(np.uint8), self.handle.device)

    def filled(self, nbytes: int) -> Buffer:
        """Bytes of ones, which are NaNs in every type."""
        return self.put(np.full(nbytes, 0xFF, np.uint8))

    def array(self, buffer: Buffer | None, shape: tuple[int, ...]) -> Any:
        assert buffer is not None
        return to_host(buffer).view(self.made.dtype).reshape(shape).astype(np.float64)

    def backward(self, *, accumulate: int = 0) -> reference.Gradients:
        made, dtype = self.made, self.made.dtype
        dy = self.put(laid(made.arrays["dy"], made.y_desc, dtype))
        dhy = self.put(made.arrays["dhn"].astype(dtype)) if made.states else None
        dcy = self.put(made.arrays["dcn"].astype(dtype)) if self.cx is not None else None
        dx, dweights = self.filled(made.x_desc.nbytes), self.filled(self.space.nbytes)
        dhx, dcx = self.filled(self.hy.nbytes), self.filled(self.cy.nbytes) if self.cy is not None else None
        shared = {
            "x_desc": made.x_desc,
            "y_desc": made.y_desc,
            "y": self.y,
            "reserve": self.reserve,
            "hx": self.hx,
        }
        made.rnn.backward_data(
            self.handle,
            dy=dy,
            dx=dx,
            weights=self.weights,
            dhy=dhy,
            dhx=dhx,
            cx=self.cx,
            dcy=dcy,
            dcx=dcx,
            **shared,
        )
        made.rnn.backward_weights(self.handle, x=self.x, dweights=dweights, accumulate=False, **shared)
        for _ in range(accumulate):
            made.rnn.backward_weights(self.handle, x=self.x, dweights=dweights, accumulate=True, **shared)
        self.handle.synchronize()
        parameters = self.layout.to_torch(to_host(dweights))
        return reference.Gradients(
            unlaid(dx, made.x_desc, dtype),
            self.array(dhx, made.arrays["h0"].shape),
            None if dcx is None else self.array(dcx, made.arrays["c0"].shape),
            {name: value.astype(np.float64) for name, value in parameters.items()},
        )

    def expected(self, parameters: Mapping[str, Any] | None = None) -> reference.Result:
        made = self.made
        states = (made.arrays["h0"], made.arrays["c0"]) if made.states else (None, None)
        given = made.parameters if parameters is None else parameters
        return reference.forward(made.spec, given, made.arrays["x"], *states, made.lengths)

    def expected_gradients(self, result: reference.Result) -> reference.Gradients:
        made = self.made
        last = (made.arrays["dhn"], made.arrays["dcn"]) if made.states else (None, None)
        return reference.backward(result, made.arrays["dy"], *last)


def close(got: Any, want: Any, data_type: str, what: str) -> None:
    """Within the type's tolerance, relative to the largest number there."""
    rtol, atol = TOLERANCE[data_type]
    scale = max(1.0, float(np.abs(want).max()))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol * scale, err_msg=what)


def check(run: Run, data_type: str, *, gradients: bool = True) -> None:
    want = run.expected()
    close(unlaid(run.y, run.made.y_desc, run.made.dtype), want.y, data_type, "y")
    close(run.array(run.hy, want.hn.shape), want.hn, data_type, "hy")
    if want.cn is not None:
        close(run.array(run.cy, want.cn.shape), want.cn, data_type, "cy")
    if gradients:
        got = run.backward()
        if run.made.spec.cell == "relu":
            take_sides(run, want, got)
        check_gradients(run, got, run.expected_gradients(want), data_type)


def take_sides(run: Run, want: reference.Result, got: reference.Gradients) -> None:
    """Where relu's argument is within rounding of zero, the reference follows the side that the device took."""
    past = np.arange(TIME)[:, None] >= np.array(run.made.x_desc.lengths)

    def distance() -> float:
        found = run.expected_gradients(want)
        return float(np.linalg.norm((got.dx - found.dx)[~past]) + np.linalg.norm(got.dh0 - found.dh0))

    reference.take_sides(want, float(ml_dtypes.finfo(run.made.dtype).eps), distance)


def check_gradients(run: Run, got: reference.Gradients, want: reference.Gradients, data_type: str) -> None:
    past = np.arange(TIME)[:, None] >= np.array(run.made.x_desc.lengths)
    got.dx[past] = 0  # behind the ends dx is anything
    close(got.dx, want.dx, data_type, "dx")
    close(got.dh0, want.dh0, data_type, "dhx")
    if want.dc0 is not None:
        close(got.dc0, want.dc0, data_type, "dcx")
    known = {name.split(".")[0] for name in run.layout.names}
    for name in known & set(want.parameters):
        close(got.parameters[name], want.parameters[name], data_type, name)


VARIANTS = [("relu", None), ("tanh", None), ("lstm", None), ("gru", None), ("lstm", 12)]


# ------------------------------------------------------------------------------------- values and gradients


@pytest.mark.feature("F068", "F069", "F070", "F117", "F118")
@pytest.mark.parametrize("data_type", list(DTYPES))
@pytest.mark.parametrize("batch", list(BATCHES))
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "projection"), VARIANTS)
def test_values_and_gradients(
    handle: Handle, cell: str, projection: int | None, bidirectional: bool, batch: str, data_type: str
) -> None:
    made = case(cell, data_type, batch, bidirectional=bidirectional, projection=projection)
    try:
        run = Run(handle, made)
    except CudnnNotSupported as error:
        if data_type != "bfloat16":
            raise
        pytest.skip(f"this cuDNN refuses bfloat16: {error}")
    check(run, data_type)


@pytest.mark.feature("F068", "F070")
@pytest.mark.parametrize("batch", ["full", "unsorted"])
@pytest.mark.parametrize("cell", ["relu", "tanh", "lstm", "gru"])
def test_inference_without_states(handle: Handle, cell: str, batch: str) -> None:
    made = case(cell, "float32", batch, states=False, bidirectional=True)
    run = Run(handle, made, training=False)
    assert run.reserve == (None, 0)
    check(run, "float32", gradients=False)


@pytest.mark.feature("F068", "F069", "F070")
@pytest.mark.parametrize("batch", ["full", "unsorted", "packed"])
@pytest.mark.parametrize("input_mode", ["linear", "skip"])
@pytest.mark.parametrize("bias", ["none", "single_input", "single_recurrent", "double"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "projection"), VARIANTS)
def test_bias_and_input_modes(
    handle: Handle,
    cell: str,
    projection: int | None,
    bidirectional: bool,
    bias: str,
    input_mode: str,
    batch: str,
) -> None:
    """Every cell with every bias, each with x multiplied by a matrix or added as it is."""
    inputs = HIDDEN if input_mode == "skip" else INPUTS
    settings = {
        "bidirectional": bidirectional,
        "projection": projection,
        "bias": bias,
        "input_mode": input_mode,
    }
    made = case(cell, "float64", batch, inputs=inputs, **settings)
    known = {name.split(".")[0] for name in made.rnn.weight_layout(handle).names}
    biases = {"none": set(), "single_input": {"ih"}, "single_recurrent": {"hh"}, "double": {"ih", "hh"}}[bias]
    assert {name.split("_")[1] for name in known if name.startswith("bias")} == biases
    assert ("weight_ih_l0" in known) == (input_mode == "linear")
    kept = {name: value for name, value in made.parameters.items() if name in known}
    try:
        run = Run(handle, made._replace(parameters=kept))
    except CudnnNotSupported as error:
        if projection is None or (input_mode, bias) == ("linear", "double"):
            raise
        print(f"refused: {error}")
        return
    check(run, "float64")


@pytest.mark.feature("F069")
@pytest.mark.parametrize("batch", ["full", "unsorted"])
@pytest.mark.parametrize("projection", [None, 12])
@pytest.mark.parametrize("data_type", ["float64", "float32", "float16"])
def test_clipping(handle: Handle, data_type: str, projection: int | None, batch: str) -> None:
    """cx and every c are clipped, cy is the last c before that; the gradient is 0 where something was clipped."""
    low, high = (float(np.float32(bound)) for bound in (-0.1, 0.15))
    made = case("lstm", data_type, batch, clip=(-0.1, 0.15), projection=projection, bidirectional=True)
    run = Run(handle, made)
    want = run.expected()
    clipped = np.mean([step.inner != step.cell for done in want.tape for step in done.steps])
    assert 0.05 < clipped < 0.95
    outside = np.array([~done.kept for done in want.tape])
    assert outside.mean() > 0.05
    assert want.cn is not None
    beyond = np.maximum(low - want.cn, want.cn - high).max()
    assert beyond > 3 * TOLERANCE[data_type][1]  # more than the tolerance that hides a clipped cy
    check(run, data_type, gradients=False)
    got = run.backward()
    assert got.dc0 is not None
    assert not np.any(got.dc0[outside])
    if data_type != "float16":  # there rounding carries cells over a bound, where the gradient has a step
        check_gradients(run, got, run.expected_gradients(want), data_type)


@pytest.mark.feature("F078")
def test_weight_gradients_are_added(handle: Handle) -> None:
    run = Run(handle, case("lstm", "float64"))
    want = run.expected_gradients(run.expected())
    got = run.backward(accumulate=2)
    for name, value in want.parameters.items():
        close(got.parameters[name], 3 * value, "float64", name)


@pytest.mark.feature("F070")
def test_the_fill_is_written_behind_the_ends(handle: Handle) -> None:
    made = case("gru", "float32", "unsorted")
    y_desc = RNNData(
        max_length=TIME, batch=BATCH, vector_size=made.rnn.output_size, lengths=made.lengths, fill=-7.5
    )
    run = Run(handle, made._replace(y_desc=y_desc), training=False)
    y = unlaid(run.y, y_desc, np.float32)
    past = np.arange(TIME)[:, None] >= np.array(made.lengths)
    assert np.all(y[past] == -7.5)
    assert not np.any(y[~past] == -7.5)


@pytest.mark.feature("F007")
def test_raw_addresses_and_lengths_on_the_device(handle: Handle) -> None:
    made = case("lstm", "float32", "sorted", states=False)
    run = Run(handle, made, training=False)
    lengths = from_host(np.array(made.lengths, np.int32), handle.device)
    again = run.filled(made.y_desc.nbytes)
    work = handle.device.allocate(made.rnn.temp_space_sizes(handle, made.x_desc).workspace)
    made.rnn.forward(
        handle.address, x_desc=made.x_desc, x=run.x.pointer, y_desc=made.y_desc, y=again.pointer,
        weights=(run.weights.pointer, run.weights.nbytes), lengths=lengths.pointer,
        workspace=(work.pointer, work.nbytes),
    )  # fmt: skip
    handle.device.synchronize()
    np.testing.assert_array_equal(to_host(again), to_host(run.y))


# ---------------------------------------------------------------------------------------------------- weights


@pytest.mark.feature("F071")
@pytest.mark.parametrize(("cell", "projection"), VARIANTS)
@pytest.mark.parametrize("bias", ["none", "single_input", "single_recurrent", "double"])
def test_the_library_has_the_parameters_that_are_expected(
    handle: Handle, cell: str, projection: int | None, bias: str
) -> None:
    for bidirectional, layers, data_type in itertools.product((False, True), (1, 3), ("float32", "float16")):
        rnn = RNN(
            cell=cell, input_size=INPUTS, hidden_size=HIDDEN, layers=layers, bidirectional=bidirectional,
            projection=projection, bias=bias, data_type=data_type,
        )  # fmt: skip
        layout = rnn.weight_layout(handle)
        assert {entry.name: entry.shape for entry in layout.entries} == rnn.parameter_shapes()
        ends = sorted((entry.offset, entry.offset + entry.size) for entry in layout.entries)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends)), "parameters overlap"
        assert ends[-1][1] * layout.dtype.itemsize <= layout.nbytes == rnn.weight_space_size(handle)


@pytest.mark.feature("F071")
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("cell", "projection"), VARIANTS)
def test_pytorchs_parameters_both_ways(
    handle: Handle, cell: str, projection: int | None, bidirectional: bool
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    extra: dict[str, Any] = {"proj_size": projection} if projection else {}
    extra |= {"nonlinearity": cell} if kind is torch.nn.RNN else {}
    torch.manual_seed(0)
    module = kind(INPUTS, HIDDEN, 2, bidirectional=bidirectional, **extra).double()
    parameters = {name: value.numpy() for name, value in module.state_dict().items()}
    made = case(cell, "float64", projection=projection, bidirectional=bidirectional, states=False)
    run = Run(handle, made._replace(parameters=parameters))
    y, _ = module(torch.from_numpy(made.arrays["x"]))
    close(unlaid(run.y, made.y_desc, np.float64), y.detach().numpy(), "float64", "y")
    back = run.layout.to_torch(to_host(run.weights))
    assert list(back) == list(parameters)
    for name, value in parameters.items():
        np.testing.assert_array_equal(back[name], value, err_msg=name)
    (y * torch.from_numpy(made.arrays["dy"])).sum().backward()
    got = run.backward()
    for name, parameter in module.named_parameters():
        close(got.parameters[name], parameter.grad.numpy(), "float64", name)


# ------------------------------------------------------------------------------------------------ algorithms


@pytest.mark.feature("F024", "F068", "F118")
@pytest.mark.parametrize("algorithm", ["persist_static", "persist_dynamic", "persist_static_small_h"])
@pytest.mark.parametrize("cell", ["relu", "tanh", "lstm", "gru"])
@pytest.mark.parametrize("data_type", ["float32", "float16"])
def test_persistent_algorithms(handle: Handle, cell: str, algorithm: str, data_type: str) -> None:
    made = case(cell, data_type, hidden=64, inputs=64, algorithm=algorithm)
    try:
        if algorithm == "persist_dynamic":
            made.rnn.build_dynamic(handle, BATCH)
        run = Run(handle, made)
    except CudnnError as error:
        pytest.skip(f"{algorithm} does not take this here: {error}")
    check(run, data_type)


@pytest.mark.feature("F092", "F091", "B011")
def test_search_times_what_runs_and_says_why_not(handle: Handle) -> None:
    rnn = RNN(cell="lstm", input_size=256, hidden_size=256, layers=2, data_type="float16")
    x_desc = RNNData(data_type="float16", max_length=20, batch=16, vector_size=256)
    found = search_rnn(handle, rnn, x_desc, repeats=2)
    print(table(found))
    assert len(found) == 4
    ran = [p for p in found if not p.reason]
    assert ran == found[: len(ran)]
    assert [p.time for p in ran] == sorted(p.time for p in ran)
    standard = next(p for p in ran if p.algorithm.name.endswith("STANDARD"))
    assert standard.forward > 0
    assert standard.backward_data > 0
    assert standard.backward_weights > 0
    sizes = rnn.temp_space_sizes(handle, x_desc, training=True)
    assert standard.spaces == sizes
    assert all(
        p.deterministic
        for p in search_rnn(handle, rnn, x_desc, repeats=2, deterministic=True)
        if not p.reason
    )
    inference = search_rnn(handle, rnn, x_desc, training=False, algorithms=["standard"], repeats=1)
    assert inference[0].backward_data == 0
    (capped,) = search_rnn(handle, rnn, x_desc, algorithms=["standard"], workspace_limit=0, repeats=1)
    assert capped.reason == f"needs a workspace of {sizes.workspace} bytes, the limit is 0"
    (refused,) = search_rnn(
        handle, rnn.replace(projection=128), x_desc, algorithms=["persist_static"], repeats=1
    )
    assert "NOT_SUPPORTED" in refused.reason
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        search_rnn(handle, rnn, x_desc, repeats=0)


# ---------------------------------------------------------------------------------------------------- the rest


@pytest.mark.feature("F069", "F023")
def test_dropout_between_layers(handle: Handle) -> None:
    half, nothing = (Dropout(handle, rate=rate, seed=1) for rate in (0.5, 0.0))
    with half, nothing:
        kept = case("lstm", "float64", dropout=nothing)
        assert kept.rnn.get().dropout is nothing
        check(Run(handle, kept), "float64")  # rate 0 changes nothing
        dropped = case("lstm", "float64", dropout=half)
        run = Run(handle, dropped)
        want = run.expected()
        got = unlaid(run.y, dropped.y_desc, np.float64)
        assert np.all(np.isfinite(got))
        assert not np.allclose(got, want.y)
        inference = Run(handle, dropped, training=False)  # without training nothing is dropped
        close(unlaid(inference.y, dropped.y_desc, np.float64), want.y, "float64", "y")
        dropped.rnn.close()


@pytest.mark.feature("F070")
def test_a_long_sequence_in_pieces(handle: Handle) -> None:
    """Two calls that hand the state over are one call."""
    made = case("lstm", "float64", layers=1)
    run, itemsize = Run(handle, made, training=False), 8
    x_half, y_half = (
        RNNData(data_type="float64", max_length=TIME // 2, batch=BATCH, vector_size=n)
        for n in (INPUTS, made.rnn.output_size)
    )
    assert run.hx is not None
    assert run.cx is not None
    y = run.filled(run.y.nbytes)
    states = [(run.hx, run.cx)] + [(run.filled(run.hx.nbytes), run.filled(run.cx.nbytes)) for _ in range(2)]
    for piece in range(2):
        x_at, y_at = (piece * (TIME // 2) * BATCH * n * itemsize for n in (INPUTS, made.rnn.output_size))
        (hx, cx), (hy, cy) = states[piece : piece + 2]
        made.rnn.forward(
            handle, x_desc=x_half, x=run.x.view(x_at, x_half.nbytes), y_desc=y_half,
            y=y.view(y_at, y_half.nbytes), weights=run.weights, hx=hx, hy=hy, cx=cx, cy=cy,
        )  # fmt: skip
    handle.synchronize()
    close(unlaid(y, made.y_desc, np.float64), run.expected().y, "float64", "y")


def test_a_long_batch(handle: Handle) -> None:
    """More than 65,535 sequences: one of them equals the reference."""
    rnn = RNN(cell="gru", input_size=2, hidden_size=2, data_type="float64")
    x_desc, y_desc = (
        RNNData(data_type="float64", max_length=2, batch=70_000, vector_size=2) for _ in range(2)
    )
    rng = np.random.default_rng(0)
    spec = Rnn("gru", 2, 2)
    parameters = {name: rng.normal(size=shape) for name, shape in spec.shapes().items()}
    x = rng.normal(size=(2, 70_000, 2))
    weights = from_host(rnn.weight_layout(handle).from_torch(parameters), handle.device)
    on_device, y = from_host(x, handle.device), handle.device.allocate(y_desc.nbytes)
    rnn.forward(handle, x_desc=x_desc, x=on_device, y_desc=y_desc, y=y, weights=weights)
    handle.synchronize()
    got = to_host(y).view(np.float64).reshape(2, 70_000, 2)
    want = reference.forward(spec, parameters, x[:, [0, 65_535, 65_536, 69_999]]).y
    close(got[:, [0, 65_535, 65_536, 69_999]], want, "float64", "y")
