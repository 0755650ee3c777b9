"""Recurrent networks: relu, tanh, LSTM, GRU.

    rnn = RNN(cell="lstm", input_size=64, hidden_size=128, layers=2, bidirectional=True, data_type="float16")
    x_desc = RNNData(data_type="float16", max_length=50, batch=8, vector_size=64, lengths=lengths)
    y_desc = RNNData(data_type="float16", max_length=50, batch=8, vector_size=rnn.output_size, lengths=lengths)
    weights = device.allocate(rnn.weight_space_size(handle))
    reserve = rnn.forward(handle, x_desc=x_desc, x=x, y_desc=y_desc, y=y, weights=weights, training=True)
    rnn.backward_data(handle, y_desc=y_desc, y=y, dy=dy, x_desc=x_desc, dx=dx, weights=weights, reserve=reserve)
    rnn.backward_weights(handle, x_desc=x_desc, x=x, y_desc=y_desc, y=y, dweights=dweights, reserve=reserve)

States (hx, hy, cx, cy and their gradients) are (layers * directions, batch, size), packed, the directions of a layer
next to each other; None is zero for an input, and "not wanted" for an output.

Limits: sequences of more than 65,535 steps are refused (CUDNN_STATUS_NOT_SUPPORTED, by `RNNData` already); feed
them in pieces and hand the state over. The batch may be larger. Results may differ in the last bits from run to run
where cuBLAS picks another algorithm: CUBLAS_WORKSPACE_CONFIG=:4096:2 or :16:8, set before the process starts,
prevents it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from lamina.c import cudnn as c
from lamina.c.errors import CudnnNotSupported
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import PREFIXES, DataType, MathType, Name, flag, short
from lamina.cudnn.legacy.handles import Scratch, by_size, kept, scratch, sized
from lamina.cudnn.legacy.rnn_data import RNNData
from lamina.cudnn.legacy.rnn_weights import GATES, Entry, Part, WeightLayout, numpy_type, parts
from lamina.cudnn.legacy.tensor import TensorDescriptor

RNNCell: TypeAlias = c.cudnnRNNMode_t
RNNAlgorithm: TypeAlias = c.cudnnRNNAlgo_t
RNNBias: TypeAlias = c.cudnnRNNBiasMode_t
RNNInput: TypeAlias = c.cudnnRNNInputMode_t

PREFIXES.update(
    {
        RNNCell: "CUDNN_",
        RNNAlgorithm: "CUDNN_RNN_ALGO_",
        RNNBias: "CUDNN_RNN_",
        RNNInput: "CUDNN_",
    }
)
#: Further names of settings.
_ALIASES = {
    "relu": "rnn_relu",
    "tanh": "rnn_tanh",
    "none": "no_bias",
    "no": "no_bias",
    "input": "single_inp_bias",
    "single_input": "single_inp_bias",
    "recurrent": "single_rec_bias",
    "single_recurrent": "single_rec_bias",
    "double": "double_bias",
    "linear": "linear_input",
    "skip": "skip_input",
}
_BASE = 1 << 40  # a stand-in address of the weight space, to read offsets from


def _alias(value: Name) -> Name:
    return _ALIASES.get(value.lower(), value) if isinstance(value, str) else value


# -------------------------------------------------------------------------------------------------- the network


class RNNSettings(NamedTuple):
    """What `RNN.get` returns."""

    cell: RNNCell
    input_size: int
    hidden_size: int
    layers: int
    projection: int | None
    bidirectional: bool
    bias: RNNBias
    input_mode: RNNInput
    algorithm: RNNAlgorithm
    data_type: DataType
    math_precision: DataType
    math_type: MathType
    dropout: Descriptor | None
    padded_io: bool
    clip: tuple[float, float] | None


class TempSpaces(NamedTuple):
    """Bytes that a call needs beside its arrays."""

    workspace: int
    """Scratch of each call."""
    reserve: int
    """What a training forward leaves for its gradients; 0 for inference."""


class RNN(Descriptor):
    """A recurrent network of one or more layers.

    Args:
        cell: "relu" or "tanh" (one gate), "lstm", or "gru" (reset gate after the recurrent product).
        input_size: length of a vector of x.
        hidden_size: length of the hidden state.
        layers: how many, one on the output of the other.
        projection: length that the LSTM's output is projected to (and fed back with); None: no projection.
        bidirectional: each layer has a second pass from the end; outputs are put side by side.
        bias: "double" (one for the input, one for the state), "single_inp", "single_rec" or "none".
        input_mode: "linear", or "skip": the first layer adds x as it is (input_size = hidden_size).
        algorithm: "standard", "persist_static" (weights stay in registers over the steps), "persist_dynamic"
            (the same, compiled for the batch: call `build_dynamic`), "persist_static_small_h". The persistent ones
            want double bias and no projection; what else they take depends on cell, sizes, types, lengths and
            device. `search_rnn` tries and times them.
        data_type: of x, y, states and weights: "float32", "float64", "float16" or "bfloat16".
        math_precision: what is computed in; None: float64 for float64, else float32.
        math_type: "default" (float32 may be rounded to TF32), "fma" (it is not), "tensor_op",
            "tensor_op_math_allow_conversion"; None: "tensor_op" for 16-bit types, else "default".
        dropout: a Dropout between the layers; it stays alive with this object.
        padded_io: allow padded layouts with sequences of different lengths.
        clip: (low, high), bounds of the LSTM's cell in every layer, rounded to float32:
            c_t = f * clip(c_{t-1}) + i * g, with c_0 = cx, and h_t = o * tanh(clip(c_t)). cy is the last c_t before
            it is clipped. Gradients are zero through what was clipped (dcx too), dcy goes to c_t itself. None: not
            clipped.

    Raises:
        ValueError: settings that contradict each other. CudnnError: the library refuses.

    C: cudnnSetRNNDescriptor_v8, cudnnRNNSetClip_v9.
    """

    kind = "RNNDescriptor"

    def __init__(
        self,
        *,
        cell: Name,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        projection: int | None = None,
        bidirectional: bool = False,
        bias: Name = "double_bias",
        input_mode: Name = "linear_input",
        algorithm: Name = "standard",
        data_type: Name = "float32",
        math_precision: Name | None = None,
        math_type: Name | None = None,
        dropout: Descriptor | None = None,
        padded_io: bool = True,
        clip: tuple[float, float] | None = None,
    ) -> None:
        kind, element = flag(RNNCell, _alias(cell)), flag(DataType, data_type)
        mode = flag(RNNInput, _alias(input_mode))
        _check(kind, input_size, hidden_size, projection, mode, clip)
        self._dropout = None if dropout is None else (dropout, dropout.native)
        super().__init__()
        self._made = RNNSettings(
            kind,
            input_size,
            hidden_size,
            layers,
            projection,
            bool(bidirectional),
            flag(RNNBias, _alias(bias)),
            mode,
            flag(RNNAlgorithm, algorithm),
            element,
            *_math(element, math_precision, math_type),
            dropout,
            bool(padded_io),
            clip,
        )
        self._set(self._made)

    def _set(self, made: RNNSettings) -> None:
        kinds = (made.algorithm, made.cell, made.bias, int(made.bidirectional), made.input_mode)
        types = (made.data_type, made.math_precision, made.math_type)
        sizes = (made.input_size, made.hidden_size, made.projection or made.hidden_size, made.layers)
        call(c.cudnnSetRNNDescriptor_v8, self, *kinds, *types, *sizes, made.dropout, int(made.padded_io))
        if made.clip is not None:
            call(c.cudnnRNNSetClip_v9, self, c.CUDNN_RNN_CLIP_MINMAX, *made.clip)

    def get(self) -> RNNSettings:
        """The settings, read back from cuDNN. C: cudnnGetRNNDescriptor_v8, cudnnRNNGetClip_v9."""
        got = call(c.cudnnGetRNNDescriptor_v8, self)
        mode, low, high = call(c.cudnnRNNGetClip_v9, self)
        return RNNSettings(
            got.cellMode,
            got.inputSize,
            got.hiddenSize,
            got.numLayers,
            None if got.projSize == got.hiddenSize else got.projSize,
            got.dirMode == c.CUDNN_BIDIRECTIONAL,
            got.biasMode,
            got.inputMode,
            got.algo,
            got.dataType,
            got.mathPrec,
            got.mathType,
            self._dropout[0] if got.dropoutDesc and self._dropout else None,
            bool(got.auxFlags & c.CUDNN_RNN_PADDED_IO_ENABLED),
            None if mode == c.CUDNN_RNN_CLIP_NONE else (low, high),
        )

    def replace(self, **changes: Any) -> RNN:
        """A new network with some settings changed, by the constructor's names."""
        return RNN(**(self._made._asdict() | changes))

    # ---- shapes
    @property
    def directions(self) -> int:
        """1, or 2 if bidirectional."""
        return 2 if self._made.bidirectional else 1

    @property
    def state_size(self) -> int:
        """Length of a hidden state: projection, or hidden_size."""
        return self._made.projection or self._made.hidden_size

    @property
    def output_size(self) -> int:
        """Length of a vector of y: `state_size` times `directions`."""
        return self.state_size * self.directions

    def state_shape(self, batch: int) -> tuple[int, int, int]:
        """Shape of hx, hy and their gradients."""
        return self._made.layers * self.directions, batch, self.state_size

    def cell_shape(self, batch: int) -> tuple[int, int, int]:
        """Shape of cx, cy and their gradients (LSTM)."""
        return self._made.layers * self.directions, batch, self._made.hidden_size

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every matrix and bias, by gate (see `rnn_weights`); needs no GPU."""
        made = self._made
        found: dict[str, tuple[int, ...]] = {}
        has = {"ih": made.bias in _INPUT_BIAS, "hh": made.bias in _STATE_BIAS, "hr": False}
        for _, _, part in self._parts():
            columns = self._columns(part)
            rows = self.state_size if part.kind == "hr" else made.hidden_size
            if columns:
                found[part.name("weight")] = (rows, columns)
            if has[part.kind]:
                found[part.name("bias")] = (rows,)
        return found

    def _parts(self) -> list[tuple[int, int, Part]]:
        made = self._made
        projected = made.projection not in (None, made.hidden_size)
        return list(parts(made.cell, made.layers, made.bidirectional, projected))

    def _columns(self, part: Part) -> int:
        """Columns of a matrix; 0 where there is none."""
        if part.kind == "hr":
            return self._made.hidden_size
        if part.kind == "hh":
            return self.state_size
        if part.layer:
            return self.output_size
        skips = self._made.input_mode == c.CUDNN_SKIP_INPUT
        return 0 if skips else self._made.input_size

    # ---- sizes and weights
    def weight_space_size(self, handle: AnyHandle) -> int:
        """Bytes of all parameters together. C: cudnnGetRNNWeightSpaceSize."""
        return call(c.cudnnGetRNNWeightSpaceSize, handle, self)

    def temp_space_sizes(self, handle: AnyHandle, x_desc: RNNData, *, training: bool = False) -> TempSpaces:
        """Bytes of workspace and reserve for a batch. C: cudnnGetRNNTempSpaceSizes."""
        return TempSpaces(*call(c.cudnnGetRNNTempSpaceSizes, handle, self, _mode(training), x_desc))

    def build_dynamic(self, handle: AnyHandle, batch: int) -> None:
        """Compile the kernels of algorithm "persist_dynamic" for exactly `batch` sequences.

        C: cudnnBuildRNNDynamic (NVRTC; seconds).
        """
        call(c.cudnnBuildRNNDynamic, handle, self, batch)

    def weight_layout(self, handle: AnyHandle) -> WeightLayout:
        """Where every matrix and bias is in the weight space. C: cudnnGetRNNWeightParams."""
        nbytes = self.weight_space_size(handle)
        entries: list[Entry] = []
        for pseudo, identity, part in self._parts():
            entries += self._entries(handle, nbytes, pseudo, identity, part)
        return WeightLayout(self._made.cell, self._made.data_type, nbytes, tuple(entries))

    def _entries(self, handle: AnyHandle, nbytes: int, pseudo: int, identity: int, part: Part) -> list[Entry]:
        matrix, bias = TensorDescriptor.empty(None), TensorDescriptor.empty(None)
        where = (pseudo, nbytes, _BASE, identity)
        found = call(c.cudnnGetRNNWeightParams, handle, self, *where, matrix, bias)
        width = numpy_type(self._made.data_type).itemsize
        entries = []
        for what, desc, address in (("weight", matrix, found.mAddr), ("bias", bias, found.bAddr)):
            if address:
                dims = desc.dims[1 : 3 if what == "weight" else 2]
                entries.append(Entry(part.name(what), what, part, (address - _BASE) // width, dims))
        return entries

    # ---- calls
    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: RNNData,
        x: Memory,
        y_desc: RNNData,
        y: Memory,
        weights: Memory | tuple[Memory, int],
        hx: Memory = None,
        hy: Memory = None,
        cx: Memory = None,
        cy: Memory = None,
        training: bool = False,
        lengths: Memory = None,
        h_desc: Descriptor | None = None,
        c_desc: Descriptor | None = None,
        workspace: Memory | tuple[Memory, int] = None,
        reserve: Memory | tuple[Memory, int] = None,
    ) -> Scratch:
        """Queue y, hy, cy = rnn(x, hx, cx).

        Args:
            handle: on which device and stream.
            x_desc, x: input, ``x_desc.shape``. y_desc, y: output, vectors of `output_size`.
            weights: the weight space: a Buffer or an array with its size, or (address, bytes).
            hx, cx: states before the first step (None: zeros). hy, cy: states after the last one (None: not
                wanted); cx and cy for the LSTM alone.
            training: keep what the gradients need.
            lengths: (batch,) int32 on the device, as in x_desc; None: the library copies them itself.
            h_desc, c_desc: tensors of the states, where they are not packed as `state_shape`, `cell_shape`.
            workspace, reserve: memory of `temp_space_sizes`; None: the handle's scratch, and fresh memory.

        Returns:
            The reserve for the gradients; keep it until they are done. Without training: (None, 0).

        Raises:
            CudnnError: the library refuses. TypeError: no memory given and a bare handle.

        C: cudnnRNNForward.
        """
        sizes = self._sizes(handle, x_desc, training)
        work = scratch(handle, workspace, lambda: sizes().workspace)
        keep = kept(handle, reserve, lambda: sizes().reserve) if training else Scratch(None, 0)
        space, states = sized("weights", weights), self._states(x_desc.batch, h_desc, c_desc)
        arrays = (lengths, x_desc, x, y_desc, y, states[0], hx, hy, states[1], cx, cy)
        self._run(c.cudnnRNNForward, handle, self, _mode(training), *arrays, *by_size(space, work, keep))
        return keep

    def backward_data(
        self,
        handle: AnyHandle,
        *,
        y_desc: RNNData,
        y: Memory,
        dy: Memory,
        x_desc: RNNData,
        dx: Memory,
        weights: Memory | tuple[Memory, int],
        reserve: Memory | tuple[Memory, int],
        hx: Memory = None,
        dhy: Memory = None,
        dhx: Memory = None,
        cx: Memory = None,
        dcy: Memory = None,
        dcx: Memory = None,
        lengths: Memory = None,
        h_desc: Descriptor | None = None,
        c_desc: Descriptor | None = None,
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """Queue the gradients of the input and of the first states, from those of the outputs.

        Call it once after a training `forward`, with the same weights, states and descriptors. Behind a sequence's
        end dy must be zero in padded layouts.

        Args:
            handle: on which device and stream.
            y, dy: the output and its gradient. dx: the input's gradient, written.
            weights, hx, cx, lengths, h_desc, c_desc: as in `forward`.
            reserve: what `forward` returned; changed here, and then wanted by `backward_weights`.
            dhy, dcy: gradients of the last states (None: zeros). dhx, dcx: of the first ones (None: not wanted).
            workspace: scratch; None: the handle's.

        Raises:
            CudnnError: the library refuses.

        C: cudnnRNNBackwardData_v8.
        """
        work = scratch(handle, workspace, lambda: self._sizes(handle, x_desc, True)().workspace)
        space, keep = sized("weights", weights), sized("reserve", reserve)
        states = self._states(x_desc.batch, h_desc, c_desc)
        arrays = (lengths, y_desc, y, dy, x_desc, dx, states[0], hx, dhy, dhx, states[1], cx, dcy, dcx)
        self._run(c.cudnnRNNBackwardData_v8, handle, self, *arrays, *by_size(space, work, keep))

    def backward_weights(
        self,
        handle: AnyHandle,
        *,
        x_desc: RNNData,
        x: Memory,
        y_desc: RNNData,
        y: Memory,
        dweights: Memory | tuple[Memory, int],
        reserve: Memory | tuple[Memory, int],
        hx: Memory = None,
        accumulate: bool = True,
        lengths: Memory = None,
        h_desc: Descriptor | None = None,
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """Queue the gradients of the parameters; after `backward_data`, which leaves its part in the reserve.

        Args:
            handle: on which device and stream.
            x, y, hx, lengths, h_desc: as in `forward`.
            dweights: as large as the weights; its layout is the same.
            reserve: as `backward_data` left it.
            accumulate: add to dweights (cuDNN's only mode for recurrent networks); False: set it to zero first.
            workspace: scratch; None: the handle's.

        Raises:
            CudnnError: the library refuses.

        C: cudnnRNNBackwardWeights_v8; cudnnSetTensor for the zeros.
        """
        work = scratch(handle, workspace, lambda: self._sizes(handle, x_desc, True)().workspace)
        space, keep = sized("dweights", dweights), sized("reserve", reserve)
        if not accumulate:
            self._zero(handle, space)
        states = self._states(x_desc.batch, h_desc, None)
        arrays = (lengths, x_desc, x, states[0], hx, y_desc, y)
        mode = c.CUDNN_WGRAD_MODE_ADD
        self._run(c.cudnnRNNBackwardWeights_v8, handle, self, mode, *arrays, *by_size(space, work, keep))

    def _sizes(self, handle: AnyHandle, x_desc: RNNData, training: bool) -> Callable[[], TempSpaces]:
        return lambda: self.temp_space_sizes(handle, x_desc, training=training)

    def _states(
        self, batch: int, h_desc: Descriptor | None, c_desc: Descriptor | None
    ) -> tuple[Descriptor, Descriptor | None]:
        element = self._made.data_type
        h = (
            TensorDescriptor(self.state_shape(batch), data_type=element, format=None)
            if h_desc is None
            else h_desc
        )
        if c_desc is None and self._made.cell == c.CUDNN_LSTM:
            c_desc = TensorDescriptor(self.cell_shape(batch), data_type=element, format=None)
        return h, c_desc

    def _zero(self, handle: AnyHandle, space: Scratch) -> None:
        element = self._made.data_type
        count = space.nbytes // numpy_type(element).itemsize
        flat = TensorDescriptor((1, 1, 1, count), data_type=element, format=None)
        call(c.cudnnSetTensor, handle, flat, space.memory, 0.0)

    def _run(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            call(function, *arguments)
        except CudnnNotSupported as error:
            if self._made.algorithm != c.CUDNN_RNN_ALGO_STANDARD:
                error.add_note(
                    f"algorithm={short(self._made.algorithm)!r} does not take this; try 'standard'"
                )
            raise


_INPUT_BIAS = (c.CUDNN_RNN_DOUBLE_BIAS, c.CUDNN_RNN_SINGLE_INP_BIAS)
_STATE_BIAS = (c.CUDNN_RNN_DOUBLE_BIAS, c.CUDNN_RNN_SINGLE_REC_BIAS)


def _mode(training: bool) -> c.cudnnForwardMode_t:
    return c.CUDNN_FWD_MODE_TRAINING if training else c.CUDNN_FWD_MODE_INFERENCE


def _math(element: DataType, precision: Name | None, kind: Name | None) -> tuple[DataType, MathType]:
    """What is computed in, and with which units: see `RNN`."""
    if precision is None:
        precision = "float64" if element == c.CUDNN_DATA_DOUBLE else "float32"
    if kind is None:
        kind = "tensor_op" if element in (c.CUDNN_DATA_HALF, c.CUDNN_DATA_BFLOAT16) else "default"
    return flag(DataType, precision), flag(MathType, kind)


def _check(
    cell: RNNCell,
    input_size: int,
    hidden_size: int,
    projection: int | None,
    mode: RNNInput,
    clip: tuple[float, float] | None,
) -> None:
    """ValueError for settings that cuDNN refuses without a reason, or takes and does not follow."""
    if cell not in GATES:
        raise ValueError(f"RNN: cell must be relu, tanh, lstm or gru, got {cell!r}")
    if projection is not None and cell != c.CUDNN_LSTM:
        raise ValueError(f"RNN: projection={projection} needs cell='lstm', got {short(cell)!r}")
    if projection is not None and not 1 <= projection <= hidden_size:
        raise ValueError(f"RNN: projection must be from 1 to hidden_size ({hidden_size}), got {projection}")
    if mode == c.CUDNN_SKIP_INPUT and input_size != hidden_size:
        raise ValueError(
            f"RNN: skip input needs input_size = hidden_size, got {input_size} and {hidden_size}"
        )
    if clip is not None and cell != c.CUDNN_LSTM:
        raise ValueError(f"RNN: clip={clip} needs cell='lstm', got {short(cell)!r}")
