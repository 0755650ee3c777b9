"""Variable-length sequences in one batch: packed or padded, as torch.nn.utils.rnn.

If the lengths are known (numbers, arrays, tensors that compute immediately) a packed batch has torch's format: the
first steps of all sequences, longest first, then the second steps of those that have them. In a compiled program
lengths are inputs of each call, and shapes must not depend on them: there `data` is the padded batch [T, N, *] with
zeros after the sequences' ends, which consumers of packed batches also accept.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from lamina import ops
from lamina.ops.arguments import checked, shown
from lamina.ops.core import Array, Operand, operand, recorder
from lamina.ops.primitives.sequence import checked_lengths, inside, take_rows
from lamina.spec import DTypeError, ShapeError, int64
from lamina.tensors import Tensor


class PackedSequence(NamedTuple):
    """Variable-length sequences, stored step by step.

    data: [sum of lengths, *]. batch_sizes: the number of sequences that have each step, an int64 array on the host.
    sorted_indices: the permutation that puts the longest first; None if they are already sorted. unsorted_indices:
    the inverse permutation. In a compiled program: see the module.
    """

    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


class Packing(NamedTuple):
    """The geometry of a packed batch: lengths [N] in the order of the padded batch, steps T, sequences N.

    rows, inverse: the row of the padded batch [T N, *] for each row of data, and the reverse, -1 if there is none;
    None if data is padded itself.
    """

    lengths: Any
    steps: int
    batch: int
    rows: Array | None = None
    inverse: Array | None = None


@checked
def packing_of(packed: PackedSequence) -> Packing:
    """The packing of a batch. Raises TypeError if its sizes are unknown while its data is compact."""
    data, sizes = operand(packed.data), _known(packed.batch_sizes)
    if sizes is None:
        later = operand(packed.batch_sizes)
        steps = later.shape[0]
        if data.ndim < 3 or data.shape[0] != steps:
            raise TypeError(
                "a packed sequence cannot be an argument of a compiled function, as its shape depends on values; "
                "hand over the padded batch and its lengths, and call pack_padded_sequence inside"
            )
        ranks = packed.unsorted_indices
        ranks = np.arange(data.shape[1]) if ranks is None else ranks
        lengths = (later.unsqueeze(1) > ranks).cast(int64).sum(0)
        return Packing(lengths, steps, data.shape[1])
    if sizes.ndim != 1 or not len(sizes) or np.any(sizes[1:] > sizes[:-1]) or sizes[-1] < 1:
        raise ValueError(
            f"PackedSequence: batch_sizes must be [T], at least 1 and falling, got {shown(sizes)}"
        )
    if int(sizes.sum()) != data.shape[0]:
        raise ShapeError(
            f"PackedSequence: data {data.spec} must have {int(sizes.sum())} rows, as batch_sizes say"
        )
    return _packing(_lengths_of(sizes), packed.sorted_indices)


def _lengths_of(sizes: Array) -> Array:
    """The lengths, descending, from the number of sequences that have each step."""
    return np.asarray((sizes[:, None] > np.arange(sizes[0])).sum(0), np.int64)


def _packing(lengths: Array, order: Any) -> Packing:
    """The packing for descending lengths of the sequences in a given order."""
    steps, batch = int(lengths[0]), len(lengths)
    places = np.arange(batch) if order is None else np.asarray(_known(order))
    t, n = np.nonzero(lengths > np.arange(steps)[:, None])
    index = t * batch + places[n]
    inverse = np.full(steps * batch, -1)
    inverse[index] = np.arange(len(index))
    by_place = np.empty_like(lengths)
    by_place[places] = lengths
    return Packing(by_place, steps, batch, index, inverse)


def _known(values: Any) -> Array | None:
    """The values on the host; None if they are only known later, in a program that is being compiled."""
    if isinstance(values, Tensor):
        return values.numpy() if recorder() is None else None
    return None if isinstance(values, Operand) else np.asarray(values)


@checked
def padded_data(packed: PackedSequence, packing: Packing) -> Any:
    """The padded batch [T, N, *], zeros after the sequences' ends."""
    data = operand(packed.data)
    if packing.rows is None:
        return data
    return take_rows(data, packing.inverse, packing.rows).reshape(
        (packing.steps, packing.batch, *data.shape[1:])
    )


@checked
def with_data(packed: PackedSequence, packing: Packing, padded: Any) -> PackedSequence:
    """A batch with the same packing, from a padded batch [T, N, *]."""
    if packing.rows is not None:
        rows = padded.reshape((packing.steps * packing.batch, *padded.shape[2:]))
        padded = take_rows(rows, packing.rows, packing.inverse)
    return packed._replace(data=padded)


@checked
def pack_padded_sequence(
    input: Any, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack a padded batch, [T, N, *] or with batch_first [N, T, *], whose sequence n has lengths[n] steps.

    enforce_sorted: the lengths must be descending; otherwise the sequences are sorted. Raises ValueError for lengths
    that are not, or are outside 1 … T; ShapeError, DTypeError, TypeError.
    """
    what = "pack_padded_sequence"
    x = operand(input, what)
    x = ops.transpose(x, 0, 1) if batch_first else x
    known = _known(lengths)
    if known is None:
        return _packed_later(x, checked_lengths(what, lengths, x), enforce_sorted)
    if known.dtype.kind not in "iu" or known.shape != x.shape[1:2]:
        raise (ShapeError if known.dtype.kind in "iu" else DTypeError)(
            f"{what}: lengths must be integers [N], one for each sequence of {x.spec}, got {shown(lengths)}"
        )
    known = known.astype(np.int64)
    if not len(known) or known.min() < 1 or known.max() > x.shape[0]:
        raise ValueError(f"{what}: lengths must be in 1 … {x.shape[0]}, got {shown(known.tolist())}")
    order = None if enforce_sorted else np.argsort(-known, kind="stable")
    if order is None and np.any(known[1:] > known[:-1]):
        raise ValueError(
            f"{what}: lengths must fall, got {shown(known.tolist())}; sort the sequences or pass enforce_sorted=False"
        )
    falling = known if order is None else known[order]
    packing = _packing(falling, order)
    sizes = np.asarray((falling > np.arange(packing.steps)[:, None]).sum(1), np.int64)
    back = None if order is None else invert_permutation(order)
    return with_data(PackedSequence(None, sizes, order, back), packing, x[: packing.steps])


def _packed_later(x: Any, lengths: Any, is_sorted: bool) -> PackedSequence:
    """The batch unmoved, zeroed after the ends: its lengths are values of a program."""
    there = inside(lengths, x.shape[0])
    data = ops.where(there.reshape((*there.shape, *(1,) * (x.ndim - 2))), x, 0)
    sizes, ranks = there.cast(int64).sum(1), None
    if not is_sorted:  # how many are longer, or as long and earlier
        mine, other, places = lengths.unsqueeze(1), lengths.unsqueeze(0), np.arange(x.shape[1])
        before = ops.logical_and(other == mine, places < places[:, None])
        ranks = ops.logical_or(other > mine, before).cast(int64).sum(1)
    return PackedSequence(data, sizes, None, ranks)


@checked
def pad_packed_sequence(
    sequence: PackedSequence,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Any, Any]:
    """(padded batch, lengths): [T, N, *], or [N, T, *], with padding_value after the ends, and int64 [N].

    T is the longest length, or total_length if given; in a compiled program it is that of the packed batch. Raises
    ValueError for a total_length that is shorter.
    """
    what, packing = "pad_packed_sequence", packing_of(sequence)
    y, steps = padded_data(sequence, packing), packing.steps
    lengths = operand(packing.lengths)
    if total_length is not None and total_length < steps:
        raise ValueError(
            f"{what}: total_length must be at least {steps}, the longest length, got {total_length}"
        )
    if total_length is not None and total_length > steps:
        y = ops.cat([y, np.zeros((total_length - steps, *y.shape[1:]), y.dtype.numpy)], 0)
    if padding_value != 0:
        there = inside(lengths, y.shape[0])
        y = ops.where(there.reshape((*there.shape, *(1,) * (y.ndim - 2))), y, padding_value)
    return (ops.transpose(y, 0, 1) if batch_first else y), lengths


@checked
def pad_sequence(
    sequences: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: Literal["right", "left"] = "right",
) -> Any:
    """Sequences [T_n, *] of any lengths as one batch [T, N, *], or [N, T, *], padded with padding_value."""
    held = [operand(s, "pad_sequence", "sequences") for s in sequences]
    if not held or any(s.ndim < 1 or s.shape[1:] != held[0].shape[1:] for s in held):
        raise ShapeError(
            f"pad_sequence: needs sequences [T_n, *] that differ in length alone, got {[str(s.spec) for s in held]}"
        )
    longest = max(s.shape[0] for s in held)
    rows = []
    for s in held:
        if more := longest - s.shape[0]:
            filled = np.full((more, *s.shape[1:]), padding_value, s.dtype.numpy)
            s = ops.cat([s, filled] if padding_side == "right" else [filled, s], 0)
        rows.append(s)
    return ops.stack(rows, 0 if batch_first else 1)


@checked
def unpad_sequence(padded_sequences: Any, lengths: Any, batch_first: bool = False) -> list[Any]:
    """The sequences [lengths[n], *] of a padded batch, [T, N, *] or with batch_first [N, T, *]."""
    x, known = operand(padded_sequences, "unpad_sequence"), _known(lengths)
    if known is None or known.dtype.kind not in "iu" or known.shape != x.shape[int(not batch_first) :][:1]:
        raise TypeError(f"unpad_sequence: lengths must be {x.spec}'s known lengths, got {shown(lengths)}")
    return [(x[n] if batch_first else x[:, n])[: int(count)] for n, count in enumerate(known)]


@checked
def pack_sequence(sequences: Any, enforce_sorted: bool = True) -> PackedSequence:
    """Sequences [T_n, *] packed; see `pack_padded_sequence`."""
    held = list(sequences)
    return pack_padded_sequence(pad_sequence(held), [len(s) for s in held], enforce_sorted=enforce_sorted)


@checked
def unpack_sequence(packed_sequences: PackedSequence) -> list[Any]:
    """The sequences [T_n, *] of a packed batch."""
    padded, lengths = pad_packed_sequence(packed_sequences)
    return unpad_sequence(padded, lengths)


def invert_permutation(permutation: Any) -> Any:
    """The inverse of a permutation; None for None."""
    if permutation is None:
        return None
    given = np.asarray(_known(permutation))
    found = np.empty_like(given)
    found[given] = np.arange(len(given))
    return found
