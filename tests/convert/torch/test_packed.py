"""Packed sequences in converted networks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def tagger(kind: str, sort: bool, **options: Any) -> Any:
    """Tags for each step, and the last states, of a batch of sequences of these lengths."""
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = getattr(nn, kind)(4, 5, batch_first=True, **options)
            self.head = nn.Linear((2 if options.get("bidirectional") else 1) * options.get("proj_size", 5), 3)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sort)
            y, last = self.rnn(packed)
            y, n = pad_packed_sequence(y, batch_first=True, padding_value=0.5)
            return self.head(y), n, last

    return Net()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("LSTM", {"proj_size": 2}),
        ("GRU", {"bidirectional": True, "bias": False}),
        ("RNN", {}),
    ],
)
def test_results_and_gradients_are_those_of_torch(kind: str, options: dict[str, Any]) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    x, lengths = torch.randn(3, 6, 4), torch.tensor([2, 6, 4])
    net = tagger(kind, False, **options)
    found = check(net, from_torch(net, x, lengths, share=False), x, lengths)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


def test_other_lengths_and_programs_keep_the_number_of_steps() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    torch.manual_seed(0)
    net, x = tagger("LSTM", True), torch.randn(3, 6, 4)
    converted = from_torch(net, x, torch.tensor([6, 4, 2]))
    for network in (converted, lm.jit(converted)):
        lengths = torch.tensor([4, 3, 1])
        y, n, (h, _) = network(lm.tensor(x.numpy()), lm.tensor(lengths.numpy()))
        wanted, _, (last, _) = net(x, lengths)
        assert y.shape == (3, 6, 3)
        torch.testing.assert_close(torch.from_numpy(y.numpy())[:, :4], wanted)
        torch.testing.assert_close(torch.from_numpy(h.numpy()), last)
        assert n.numpy().tolist() == [4, 3, 1]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_any_batch_is_one_graph(kind: str) -> None:
    """Behind a packed sequence too, where the states of another layer are made for the batch."""
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low = getattr(nn, kind)(4, 6, batch_first=True)
            self.high = nn.LSTM(6, 5, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, last = self.low(packed)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.size(1))
            return self.high(y)[0], last

    torch.manual_seed(0)
    net = Net()
    converted = from_torch(net, torch.randn(2, 6, 4), torch.tensor([4, 6]), share=False)
    made = len(converted._graphs)
    for lengths in ([4, 6], [1, 5, 3], [2, 2, 6, 3, 4]):
        given = torch.randn(len(lengths), 6, 4), torch.tensor(lengths)
        found = check(net, converted, *given)
        assert found.output < 1e-5, found
        assert found.gradient < 1e-4, found
    assert len(converted._graphs) == made


def test_lists_of_sequences_and_longer_results() -> None:
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 5)

        def forward(self, x: Any) -> Any:
            return pad_packed_sequence(self.rnn(pack_sequence([x, x[:2]]))[0], total_length=5)

    net, x = Net(), torch.randn(3, 4)
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


def test_what_reads_the_rows_is_refused() -> None:
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(nn.Module):
        def forward(self, x: Any, lengths: Any) -> Any:
            return pack_padded_sequence(x, lengths).data.mean()

    with pytest.raises(TorchConversionError, match="mean reads the rows of a packed sequence.*pad it first"):
        from_torch(Net(), torch.randn(6, 3, 4), torch.tensor([6, 4, 2]), fullgraph=True)


@pytest.mark.parametrize("way", ["l.numpy()", "l.cpu().data.numpy()", "l.tolist()", "list(l)"])
def test_lengths_that_python_has(way: str) -> None:
    """PyTorch makes a tensor of them again."""
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tagger = tagger("LSTM", False)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            return self.tagger(x, own(lengths))[0]

    own = eval(f"lambda l: {way}")
    torch.manual_seed(0)
    net, x, lengths = Net(), torch.randn(3, 6, 4), torch.tensor([2, 6, 4])
    converted = from_torch(net, x, lengths, share=False)
    found = check(net, converted, x, lengths)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    fewer = torch.tensor([6, 3])
    torch.testing.assert_close(
        torch.from_numpy(lm.jit(converted)(x[:2].numpy(), fewer.numpy()).numpy()), net(x[:2], fewer).detach()
    )
