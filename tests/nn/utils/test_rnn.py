"""Packed and padded sequences: there and back, in recurrent layers, in compiled programs, beside PyTorch."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.nn.utils.rnn import (
    PackedSequence,
    invert_permutation,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)
from lamina.spec import DTypeError, ShapeError
from tests.helpers.second_device import SECOND, known

pytestmark = pytest.mark.feature("B047")

LENGTHS = [2, 5, 1, 5]


def _padded(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def _sequences() -> list[Any]:
    x = _padded(5, 4, 3)
    return [x[:n, i] for i, n in enumerate(LENGTHS)]


def test_packed_as_torch_packs() -> None:
    """All first steps, the longest sequence first, then all second steps, …"""
    parts = _sequences()
    packed = pack_sequence(parts, enforce_sorted=False)
    assert packed.batch_sizes.tolist() == [4, 3, 2, 2, 2]
    assert packed.sorted_indices.tolist() == [1, 3, 0, 2]
    assert packed.unsorted_indices.tolist() == [2, 0, 3, 1]
    wanted = [parts[n][t] for t in range(5) for n in (1, 3, 0, 2) if t < LENGTHS[n]]
    np.testing.assert_array_equal(packed.data.numpy(), wanted)
    for found, part in zip(unpack_sequence(packed), parts, strict=True):
        np.testing.assert_array_equal(found.numpy(), part)


@pytest.mark.parametrize("batch_first", [False, True])
def test_there_and_back(batch_first: bool) -> None:
    padded = pad_sequence(_sequences(), batch_first, padding_value=7.0)
    assert padded.shape == ((4, 5, 3) if batch_first else (5, 4, 3))
    packed = pack_padded_sequence(padded, lm.tensor(LENGTHS), batch_first, enforce_sorted=False)
    back, lengths = pad_packed_sequence(packed, batch_first, padding_value=7.0)
    np.testing.assert_array_equal(back.numpy(), padded.numpy())
    assert lengths.numpy().tolist() == LENGTHS
    longer, _ = pad_packed_sequence(packed, batch_first, 7.0, total_length=8)
    assert longer.shape[int(batch_first)] == 8
    assert (np.moveaxis(longer.numpy(), int(batch_first), 0)[5:] == 7).all()
    for found, part in zip(unpad_sequence(padded, LENGTHS, batch_first), _sequences(), strict=True):
        np.testing.assert_array_equal(found.numpy(), part)


def test_padding_on_the_left() -> None:
    padded = pad_sequence(_sequences(), padding_side="left").numpy()
    assert not padded[:3, 0].any()
    np.testing.assert_array_equal(padded[3:, 0], _sequences()[0])


@pytest.mark.feature("F070")
@pytest.mark.parametrize(("kind", "states"), [("RNN", 1), ("GRU", 1), ("LSTM", 2)])
def test_a_layer_reads_each_sequence_by_itself(kind: str, states: int) -> None:
    """Padded with lengths, packed, and sequence by sequence; what lies behind the ends does not matter."""
    layer = getattr(nn, kind)(3, 4, 2, bidirectional=True, batch_first=True)
    padded = pad_sequence(_sequences(), True, padding_value=np.nan)
    first = [_padded(4, 4, 4), _padded(4, 4, 4) * 2][:states]
    hx = tuple(map(lm.tensor, first)) if states == 2 else lm.tensor(first[0])
    y, last = layer(padded, hx, lengths=LENGTHS)
    packed, again = layer(pack_padded_sequence(padded, LENGTHS, True, False), hx)
    unpacked, _ = pad_packed_sequence(packed, True)
    np.testing.assert_allclose(unpacked.numpy(), y.numpy(), atol=1e-6)
    for n, part in enumerate(_sequences()):
        own = [lm.tensor(s[:, n]) for s in first]
        alone, ends = layer(lm.tensor(part), tuple(own) if states == 2 else own[0])
        np.testing.assert_allclose(y.numpy()[n, : len(part)], alone.numpy(), atol=1e-6)
        assert not y.numpy()[n, len(part) :].any()
        for given in (last, again):
            for found, end in zip(
                given if states == 2 else [given], ends if states == 2 else [ends], strict=True
            ):
                np.testing.assert_allclose(found.numpy()[:, n], end.numpy(), atol=1e-6)


@pytest.mark.gpu
@pytest.mark.feature("F070")
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lengths_on_cuda(kind: str, dtype: str) -> None:
    """Values and gradients are the CPU's."""
    layer, x, found = getattr(nn, kind)(8, 16, 2, bidirectional=True), _padded(7, 4, 8), []
    for device, kept in (("cpu", "float32"), ("cuda", dtype)):
        layer.to(device).to(kept)
        held = lm.tensor(x).to(device).cast(kept)
        lengths = lm.tensor([7, 2, 0, 5]).to(device)

        @lm.jit
        def run(x: Any, lengths: Any) -> Any:
            y, last = layer(x, lengths=lengths)
            outputs = [y, *(last if kind == "LSTM" else [last])]
            total = sum(ops.sum(ops.square(v.cast("float32"))) for v in outputs)
            return outputs, lm.gradients(total, [x, *layer.parameters()])

        found.append([v.cast("float32").numpy() for group in run(held, lengths) for v in group])
    for mine, wanted in zip(*found, strict=True):
        slack = 1e-4 if dtype == "float32" else 0.1
        np.testing.assert_allclose(
            mine, wanted, rtol=slack, atol=slack * max(1.0, float(np.abs(wanted).max()))
        )


def test_a_sequence_of_no_steps_ends_as_it_begins() -> None:
    layer, h, c = nn.LSTM(3, 4), _padded(1, 2, 4), _padded(1, 2, 4) + 1
    y, (hn, cn) = layer(lm.tensor(_padded(5, 2, 3)), (lm.tensor(h), lm.tensor(c)), lengths=[0, 5])
    assert not y.numpy()[:, 0].any()
    np.testing.assert_array_equal(hn.numpy()[:, 0], h[:, 0])
    np.testing.assert_array_equal(cn.numpy()[:, 0], c[:, 0])


def test_a_state_that_grows_stays_behind_the_end() -> None:
    """A relu network whose state would be infinite after 300 steps: values and gradients are finite."""
    layer = nn.RNN(2, 2, nonlinearity="relu")
    weights = [np.eye(2), 2 * np.eye(2), np.zeros(2), np.ones(2)]
    layer.load_state_dict(dict(zip(layer.names, weights, strict=True)))

    @lm.jit
    def run(x: Any, lengths: Any) -> Any:
        y, _ = layer(x, lengths=lengths)
        return lm.gradients(ops.sum(y), [x, *layer.parameters()])

    for slope in run(lm.ones((300, 2, 2)), lm.tensor([3, 1])):
        assert np.isfinite(slope.numpy()).all()


@pytest.mark.feature("F070")
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_one_program_for_all_lengths(enforce_sorted: bool) -> None:
    """In a compiled function lengths come with the call, through pack, layer and pad as written for torch."""
    layer, traced = nn.GRU(3, 4, bidirectional=True), []

    @lm.jit
    def run(x: Any, lengths: Any) -> Any:
        traced.append(1)
        packed = pack_padded_sequence(x, lengths, enforce_sorted=enforce_sorted)
        packed = PackedSequence(ops.tanh(packed.data), *packed[1:])
        y, h = layer(packed)
        padded, again = pad_packed_sequence(y, padding_value=-1.0)
        return padded, h, again

    x = _padded(5, 4, 3)
    for lengths in ([5, 4, 4, 1], [5, 5, 2, 2]) if enforce_sorted else (LENGTHS, [1, 1, 5, 3]):
        found, h, again = run(lm.tensor(x), lm.tensor(lengths))
        y, wanted = layer(pack_padded_sequence(np.tanh(x), lengths, enforce_sorted=enforce_sorted))
        np.testing.assert_allclose(h.numpy(), wanted.numpy(), atol=1e-6)
        np.testing.assert_allclose(
            found.numpy(), pad_packed_sequence(y, padding_value=-1.0)[0].numpy(), atol=1e-6
        )
        assert again.numpy().tolist() == lengths
    assert len(traced) == 1


def test_lengths_of_numbers_in_a_compiled_function() -> None:
    run = lm.jit(lambda x: pad_packed_sequence(pack_padded_sequence(x, [3, 2]))[0])
    x = _padded(4, 2, 3)
    wanted = x[:3].copy()
    wanted[2, 1] = 0
    np.testing.assert_array_equal(run(lm.tensor(x)).numpy(), wanted)


def test_lengths_come_from_the_host_as_in_torch() -> None:
    """As arrays, lists and tensors of the host, whatever device the sequences are on."""
    x, layer = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32), nn.GRU(5, 2)
    lengths = [4, 2, 3]
    wanted = layer(x, lengths=lengths)[0].numpy()
    logs = np.log(np.full((4, 3, 5), 0.2, np.float32))
    with known():
        layer.to(SECOND)
        there = lm.tensor(x, device=SECOND)
        for given in (lengths, np.array(lengths), lm.tensor(lengths), lm.tensor(lengths, device=SECOND)):
            packed = pack_padded_sequence(there, given, enforce_sorted=False)
            y = pad_packed_sequence(layer(packed)[0])[0]
            for found in (y, layer(there, lengths=given)[0]):
                assert found.device is SECOND
                np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
            labels = lm.tensor([[1], [2], [3]], device=SECOND)
            loss = ops.ctc_loss(lm.tensor(logs, device=SECOND), labels, given, lm.tensor([1, 1, 1]))
            assert loss.device is SECOND


def test_an_order_is_undone() -> None:
    assert invert_permutation(lm.tensor([2, 0, 1])).tolist() == [1, 2, 0]
    assert invert_permutation(None) is None


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda x: pack_padded_sequence(x, [1, 2]),
            ValueError,
            "lengths must fall, got .*enforce_sorted=False",
        ),
        (lambda x: pack_padded_sequence(x, [4, 0]), ValueError, r"lengths must be in 1 … 4, got \[4, 0\]"),
        (lambda x: pack_padded_sequence(x, [5, 1]), ValueError, "lengths must be in 1 … 4"),
        (lambda x: pack_padded_sequence(x, [4]), ShapeError, "one for each sequence"),
        (lambda x: pack_padded_sequence(x, [4.0, 1.0]), DTypeError, "lengths must be integers"),
        (
            lambda x: pad_packed_sequence(pack_padded_sequence(x, [4, 2]), total_length=3),
            ValueError,
            "at least 4",
        ),
        (lambda x: pad_sequence([]), ShapeError, "pad_sequence: needs sequences"),
        (lambda x: pad_sequence([x, x], padding_side="top"), ValueError, "one of 'right', 'left', got 'top'"),
        (lambda x: unpad_sequence(x, [4]), TypeError, "unpad_sequence: lengths"),
        (lambda x: nn.GRU(3, 2)(x, lengths=[4, 9]), IndexError, "rnn: lengths: index 9"),
        (lambda x: nn.GRU(3, 2)(x, lengths=[4.0, 9.0]), DTypeError, "lengths must be integers"),
        (lambda x: nn.GRU(3, 2)(x, lengths=[4]), ShapeError, r"lengths must be \[N\]"),
        (
            lambda x: nn.GRU(3, 2)(pack_padded_sequence(x, [4, 2]), lengths=[4, 2]),
            ValueError,
            "has its lengths",
        ),
        (lambda x: nn.GRU(3, 2)(PackedSequence(x[:, 0], [2, 1])), ShapeError, "must have 3 rows"),
        (lambda x: nn.GRU(3, 2)(PackedSequence(x[:, 0], [1, 3])), ValueError, "batch_sizes must be"),
        (
            lambda x: lm.jit(nn.GRU(3, 2))(PackedSequence(x[:3, 0], lm.tensor([2, 1]))),
            TypeError,
            "cannot be an argument of a compiled function",
        ),
    ],
)
def test_errors(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(lm.tensor(_padded(4, 2, 3)))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 3, "bidirectional": True}]
)
def test_as_torch(kind: str, options: dict[str, Any]) -> None:
    """Values and gradients of PyTorch's packed sequences."""
    torch = pytest.importorskip("torch")
    if "proj_size" in options and kind != "LSTM":
        return
    theirs, mine = getattr(torch.nn, kind)(6, 5, **options), getattr(nn, kind)(6, 5, **options)
    mine.load_state_dict({k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    x, lengths = _padded(9, 5, 6), np.array([4, 9, 1, 7, 7])
    tx = torch.tensor(x, requires_grad=True)
    packed, last = theirs(
        torch.nn.utils.rnn.pack_padded_sequence(tx, torch.tensor(lengths), enforce_sorted=False)
    )
    wanted = [torch.nn.utils.rnn.pad_packed_sequence(packed)[0], *(last if kind == "LSTM" else [last])]
    scales = [np.cos(np.arange(y.numel())).reshape(y.shape).astype(np.float32) for y in wanted]
    sum((y * torch.tensor(s)).sum() for y, s in zip(wanted, scales, strict=True)).backward()

    @lm.jit
    def run(x: Any, lengths: Any) -> Any:
        packed, last = mine(pack_padded_sequence(x, lengths, enforce_sorted=False))
        outputs = [pad_packed_sequence(packed)[0], *(last if kind == "LSTM" else [last])]
        total = sum(ops.sum(y * s) for y, s in zip(outputs, scales, strict=True))
        return outputs, lm.gradients(total, [x, *mine.parameters()])

    outputs, slopes = run(lm.tensor(x), lm.tensor(lengths))
    for found, y in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), y.detach().numpy(), atol=1e-5)
    for found, slope in zip(slopes, [tx.grad, *(p.grad for p in theirs.parameters())], strict=True):
        np.testing.assert_allclose(found.numpy(), slope.numpy(), rtol=1e-4, atol=1e-4)
