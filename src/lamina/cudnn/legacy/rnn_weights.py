"""Where each matrix and bias of a recurrent network is in cuDNN's weight space, and PyTorch's names for them.

    layout = rnn.weight_layout(handle)
    space = layout.from_torch(torch.nn.LSTM(16, 32).state_dict())   # a host array of layout.nbytes bytes
    weights = from_host(space, device)
    layout["weight_ih_l0.f"].shape                                  # (32, 16)

Names are PyTorch's, with the gate after a dot where there are several: "weight_ih_l0.i" (input to gate i of layer
0), "bias_hh_l1_reverse.n", "weight_hr_l0" (projection). Gates: i, f, g, o of the LSTM; r, z, n of the GRU. Both
libraries order the gates alike and apply the reset gate after the recurrent product, so that the numbers move over
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from lamina.c import cudnn as c
from lamina.cudnn.legacy.flags import DataType, short

Array = np.ndarray[Any, np.dtype[Any]]

#: Gates of each cell, in cuDNN's and PyTorch's order.
GATES: dict[int, tuple[str, ...]] = {
    c.CUDNN_RNN_RELU: ("",),
    c.CUDNN_RNN_TANH: ("",),
    c.CUDNN_LSTM: ("i", "f", "g", "o"),
    c.CUDNN_GRU: ("r", "z", "n"),
}
_NUMPY: dict[int, Any] = {
    c.CUDNN_DATA_DOUBLE: np.float64,
    c.CUDNN_DATA_FLOAT: np.float32,
    c.CUDNN_DATA_HALF: np.float16,
    c.CUDNN_DATA_BFLOAT16: ml_dtypes.bfloat16,
}


def numpy_type(data_type: int) -> np.dtype[Any]:
    """The NumPy type (ml_dtypes' for bfloat16) of the elements of a recurrent network."""
    found: np.dtype[Any] = np.dtype(_NUMPY[data_type])
    return found


class Part(NamedTuple):
    """One of the linear maps that cuDNN numbers within a layer (its "linLayerID")."""

    kind: str
    """ "ih" (from the layer's input), "hh" (from its state) or "hr" (projection)."""
    gate: str
    """ "" where the cell has one gate."""
    layer: int
    reverse: bool

    @property
    def suffix(self) -> str:
        """Of PyTorch's names: "l0", "l1_reverse"."""
        return f"l{self.layer}{'_reverse' if self.reverse else ''}"

    def name(self, what: str) -> str:
        """Name of its "weight" or "bias"."""
        gate = f".{self.gate}" if self.gate else ""
        return f"{what}_{self.kind}_{self.suffix}{gate}"


def parts(cell: int, layers: int, bidirectional: bool, projected: bool) -> Iterator[tuple[int, int, Part]]:
    """(pseudo-layer, linear id, what it is) of every linear map, in cuDNN's order."""
    directions = 2 if bidirectional else 1
    gates = GATES[cell]
    for pseudo in range(layers * directions):
        layer, reverse = pseudo // directions, pseudo % directions == 1
        for identity in range(2 * len(gates)):
            kind = "ih" if identity < len(gates) else "hh"
            yield pseudo, identity, Part(kind, gates[identity % len(gates)], layer, reverse)
        if projected:
            yield pseudo, 2 * len(gates), Part("hr", "", layer, reverse)


class Entry(NamedTuple):
    """One matrix or bias in the weight space."""

    name: str
    what: str
    """ "weight" or "bias"."""
    part: Part
    offset: int
    """Where it starts, in elements."""
    shape: tuple[int, ...]
    """(rows, columns), row-major, or (rows,)."""

    @property
    def size(self) -> int:
        """How many elements."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class WeightLayout:
    """The weight space of one recurrent network on one kind of device.

    The order is the library's own and depends on algorithm, device and version: keep parameters by name
    (`unpack`, `to_torch`), not as a space.
    """

    cell: c.cudnnRNNMode_t
    data_type: c.cudnnDataType_t
    nbytes: int
    entries: tuple[Entry, ...]

    @cached_property
    def _by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all matrices and biases, in the library's order."""
        return tuple(self._by_name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type of the elements."""
        return numpy_type(self.data_type)

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __len__(self) -> int:
        return len(self.entries)

    def addresses(self, base: int) -> dict[str, int]:
        """Name -> address of each matrix and bias of the weight space at address `base`."""
        return {entry.name: base + entry.offset * self.dtype.itemsize for entry in self.entries}

    # ---- by gate
    def unpack(self, space: Any) -> dict[str, Array]:
        """Name -> array of each matrix and bias in a weight space on the host, sharing its memory.

        Args:
            space: `nbytes` bytes: a NumPy array of any type, C-contiguous.

        Raises:
            ValueError: another size.
        """
        flat = self._flat(space)
        return {e.name: flat[e.offset : e.offset + e.size].reshape(e.shape) for e in self.entries}

    def pack(self, parameters: Mapping[str, Any]) -> Array:
        """A weight space on the host: (nbytes / itemsize,) of `dtype`, filled from arrays by name.

        Raises:
            ValueError: a name is missing or unknown, or a shape differs; the text names all of them.
        """
        missing, unknown = self._by_name.keys() - parameters.keys(), parameters.keys() - self._by_name.keys()
        if missing or unknown:
            raise ValueError(f"pack: missing {sorted(missing)}, unknown {sorted(unknown)}")
        space = np.zeros(self.nbytes // self.dtype.itemsize, self.dtype)
        for name, place in self.unpack(space).items():
            value = host(parameters[name])
            if value.shape != place.shape:
                raise ValueError(f"pack: {name} has shape {value.shape}, {place.shape} is needed")
            place[...] = value.astype(self.dtype)
        return space

    def _flat(self, space: Any) -> Array:
        array = np.ascontiguousarray(space).reshape(-1)
        if array.nbytes != self.nbytes:
            raise ValueError(f"unpack: the weight space has {self.nbytes} bytes, got {array.nbytes}")
        whole = self.nbytes // self.dtype.itemsize
        return array.view(np.uint8)[: whole * self.dtype.itemsize].view(self.dtype)

    # ---- PyTorch
    def to_torch(self, space: Any) -> dict[str, Array]:
        """PyTorch's parameters of the same network: name -> array, as in its state_dict.

        Where cuDNN has one bias the other one is zero; the matrices that skip input leaves out are identities.
        """
        grouped: dict[str, list[Array]] = {}
        for name, value in self.unpack(space).items():
            grouped.setdefault(name.split(".")[0], []).append(value)
        found = {name: np.concatenate(values) for name, values in grouped.items()}
        return {name: found[name] for name in self._torch_names(found)}

    def _torch_names(self, found: dict[str, Array]) -> list[str]:
        """PyTorch's order of the names; fills in what cuDNN has not."""
        order = []
        for suffix in dict.fromkeys(entry.part.suffix for entry in self.entries):
            recurrent = found[f"weight_hh_{suffix}"]
            hidden = len(recurrent) // len(GATES[self.cell])
            eye = np.tile(np.eye(hidden, dtype=self.dtype), (len(GATES[self.cell]), 1))
            found.setdefault(f"weight_ih_{suffix}", eye)
            order += [f"weight_ih_{suffix}", f"weight_hh_{suffix}"]
            biases = [f"bias_ih_{suffix}", f"bias_hh_{suffix}"]
            if any(name in found for name in biases):
                for name in biases:
                    found.setdefault(name, np.zeros(len(recurrent), self.dtype))
                order += biases
            order += [f"weight_hr_{suffix}"] * (f"weight_hr_{suffix}" in found)
        return order

    def from_torch(self, parameters: Mapping[str, Any]) -> Array:
        """A weight space on the host from PyTorch's parameters (state_dict of torch.nn.RNN, LSTM or GRU).

        With one bias in cuDNN PyTorch's two are added up; with none they must be zero.

        Args:
            parameters: name -> tensor or array; biases may be missing (``bias=False``).

        Raises:
            ValueError: a name or shape that does not fit, or biases that this bias mode cannot express.
        """
        known = {name: host(value) for name, value in parameters.items()}
        self._check_torch_names(known)
        wanted: dict[str, Array] = {}
        for suffix in dict.fromkeys(entry.part.suffix for entry in self.entries):
            wanted |= self._biases(known, suffix)
        wanted |= {name: value for name, value in known.items() if name.startswith("weight_")}
        split: dict[str, Array] = {}
        for entry in self.entries:
            base = entry.name.split(".")[0]
            if base not in wanted:
                raise ValueError(f"from_torch: {base} is missing")
            split[entry.name] = self._gate(base, wanted[base], entry.part.gate)
        return self.pack(split)

    def _check_torch_names(self, known: dict[str, Array]) -> None:
        names = {entry.name.split(".")[0] for entry in self.entries}
        suffixes = {entry.part.suffix for entry in self.entries}
        names |= {f"bias_{kind}_{suffix}" for kind in ("ih", "hh") for suffix in suffixes}
        unknown = sorted(set(known) - names)
        skipped = [n for n in unknown if n.startswith("weight_ih_l0") and n.split("ih_")[1] in suffixes]
        for name in skipped:  # skip input: PyTorch's matrix must say the same
            value = known.pop(name)
            rows, columns = value.shape
            if not np.array_equal(value, np.tile(np.eye(columns), (rows // columns, 1))):
                raise ValueError(f"from_torch: with skip input {name} must be identities")
        if set(unknown) - set(skipped):
            raise ValueError(f"from_torch: unknown {sorted(set(unknown) - set(skipped))}")

    def _biases(self, known: dict[str, Array], suffix: str) -> dict[str, Array]:
        """The biases that cuDNN has for one layer and direction, from PyTorch's two."""
        inputs, states = f"bias_ih_{suffix}", f"bias_hh_{suffix}"
        rows = len(known[f"weight_hh_{suffix}"]) if f"weight_hh_{suffix}" in known else 0
        bi, bh = (known.get(name, np.zeros(rows)) for name in (inputs, states))
        has = {e.name.split(".")[0] for e in self.entries if e.what == "bias" and e.part.suffix == suffix}
        if has == {inputs, states}:
            return {inputs: bi, states: bh}
        if not has:
            self._need_zero(inputs, bi)
            self._need_zero(states, bh)
            return {}
        (one,) = has
        if self.cell == c.CUDNN_GRU:  # the new gate's recurrent bias is multiplied by the reset gate
            other = states if one == inputs else inputs
            self._need_zero(f"{other}.n", np.split(bh if one == inputs else bi, 3)[2])
        return {one: bi + bh}

    @staticmethod
    def _need_zero(name: str, value: Array) -> None:
        if np.any(value):
            raise ValueError(f"from_torch: {name} is not zero, and this bias mode has no place for it")

    def _gate(self, name: str, value: Array, gate: str) -> Array:
        gates = GATES[self.cell]
        if not gate:
            return value
        if value.shape[0] % len(gates):
            raise ValueError(f"from_torch: {name} has {value.shape[0]} rows, not a multiple of {len(gates)}")
        return np.split(value, len(gates))[gates.index(gate)]

    def __repr__(self) -> str:
        kind = f"{self.cell.name}, {short(DataType(self.data_type))}"
        return f"WeightLayout({kind}, {self.nbytes} bytes, {len(self.entries)} matrices and biases)"


def host(value: Any) -> Array:
    """A NumPy array of a parameter: an array, a list, or a tensor of PyTorch on any device."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    return np.asarray(value)
