"""Batches as PyTorch's: loops as its users write them, with types, dtypes, shapes and values of its DataLoader."""

import mmap
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.data import transforms

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("B030")]

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((23, 2, 3)).astype(np.float32), RNG.integers(0, 4, 23)


class Pair(NamedTuple):
    x: Any
    y: Any


#: Samples by their number, of every kind that torch joins.
KINDS: dict[str, Any] = {
    "tuple": lambda i: (X[i], int(Y[i])),
    "list": lambda i: [X[i], [i, float(i)]],
    "dict": lambda i: {"image": X[i], "label": Y[i], "name": f"image {i}"},
    "ordered dict": lambda i: OrderedDict(a=i, b=(X[i], i)),
    "named tuple": lambda i: Pair(X[i], {"label": i}),
    "array": lambda i: X[i],
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "text": lambda i: f"text {i}",
    "bytes": lambda i: b"x" * i,
    "numbers of NumPy": lambda i: (np.float32(i), np.float64(i), np.int32(i), np.bool_(i % 2)),
    "array without axes": lambda i: np.array(i, np.int16),
    "half": lambda i: X[i].astype(np.float16),
    "bytes of images": lambda i: (X[i] * 9).astype(np.uint8),
    "view": lambda i: X[i].transpose(1, 0)[::2],
}


class Samples:
    """Samples of a kind; `wrap` makes tensors of the arrays in them."""

    def __init__(self, kind: str, wrap: Any = None) -> None:
        self.kind, self.wrap = kind, wrap

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> Any:
        sample = KINDS[self.kind](i)
        return sample if self.wrap is None else _mapped(sample, self.wrap)


class Stream(data.IterableDataset[Any]):
    """The same one after the other."""

    def __init__(self, kind: str) -> None:
        self.samples = Samples(kind)

    def __iter__(self) -> Iterator[Any]:
        return (self.samples[i] for i in range(len(self.samples)))


def _mapped(tree: Any, wrap: Any) -> Any:
    """The arrays of a sample as tensors of a library."""
    if isinstance(tree, np.ndarray):
        return wrap(np.array(tree))
    if isinstance(tree, dict):
        return type(tree)((k, _mapped(x, wrap)) for k, x in tree.items())
    if isinstance(tree, tuple | list):
        inside = [_mapped(x, wrap) for x in tree]
        return type(tree)(*inside) if hasattr(tree, "_fields") else type(tree)(inside)
    return tree


def same(found: Any, expected: Any) -> None:
    """Assert that a batch is what torch's loader makes: containers, dtypes, shapes, values."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, lm.Tensor)
        assert (str(found.dtype), found.device.kind) == (str(expected.dtype).removeprefix("torch."), "cpu")
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
        assert found.shape == tuple(expected.shape)
    elif isinstance(expected, dict):
        assert type(found) is type(expected)
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, tuple | list):
        if hasattr(expected, "_fields"):
            assert type(found) is type(expected)
        else:  # torch leaves texts within samples in a tuple
            assert isinstance(found, list)
        for x, y in zip(found, expected, strict=True):
            same(x, y)
    else:
        assert type(found) is type(expected)
        assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_torchs(kind: str, workers: int) -> None:
    expected = list(torch.utils.data.DataLoader(Samples(kind), 5))
    for dataset in (Samples(kind), Stream(kind)):
        same(list(data.DataLoader(dataset, 5, num_workers=workers)), expected)
    same(data.default_collate([Samples(kind)[i] for i in range(5)]), expected[0])


@pytest.mark.parametrize("kind", ["tuple", "dict", "named tuple", "half"])
def test_samples_of_tensors_are_stacked(kind: str) -> None:
    expected = list(torch.utils.data.DataLoader(Samples(kind, torch.from_numpy), 5))
    for wrap in (lm.tensor, torch.from_numpy):
        same(list(data.DataLoader(Samples(kind, wrap), 5)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_single_samples_are_torchs(kind: str) -> None:
    expected = list(torch.utils.data.DataLoader(Samples(kind), batch_size=None))
    same(list(data.DataLoader(Samples(kind), batch_size=None)), expected)
    same(list(data.DataLoader(Stream(kind), batch_size=None, num_workers=1)), expected)
    same(data.default_convert(Samples(kind)[3]), torch.utils.data.default_convert(Samples(kind)[3]))


def test_processes_give_the_same_batches_in_shared_memory() -> None:
    expected = list(torch.utils.data.DataLoader(Samples("dict"), 5))
    for collate_fn in (None, data.default_collate):
        loader = data.DataLoader(
            Samples("dict"), 5, num_workers=2, processes=True, persistent_workers=True, collate_fn=collate_fn
        )
        try:
            for _ in range(2):
                found = list(loader)
                same(found, expected)
        finally:
            loader.close()
        memory = found[0]["image"].numpy()
        while isinstance(memory, np.ndarray | memoryview):
            memory = memory.base if isinstance(memory, np.ndarray) else memory.obj
        assert isinstance(memory, mmap.mmap)
        assert not found[0]["image"].read_only


def test_batches_keep_their_values_while_others_are_made() -> None:
    """No batch's memory is used again while its tensor is there, and it may be written."""
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "processes": True}):
        loader = data.DataLoader(data.TensorDataset(X, Y), 5, **options)
        first = iter(loader)
        x, y = next(first)
        x += 1.0
        rest = list(first)
        loader.close()
        np.testing.assert_array_equal(x, X[:5] + 1)
        np.testing.assert_array_equal(np.concatenate([y, *(b for _, b in rest)]), Y)
        np.testing.assert_array_equal(np.concatenate([a for a, _ in rest]), X[5:])


def test_arrays_are_not_copied() -> None:
    sample = {"x": X[0], "y": (Y, "text")}
    found = data.default_convert(sample)
    assert np.shares_memory(found["x"].numpy(), X)
    assert np.shares_memory(found["y"][0].numpy(), Y)
    assert data.default_convert(x := lm.tensor(X)) is x


def test_arrays_that_no_tensor_holds_stay_arrays() -> None:
    for array in (np.arange(3, dtype=np.uint16), np.array(["a", "b", "c"]), np.array([{}, 1, None])):
        assert data.default_convert(array) is array
    batch = data.default_collate([(np.uint16(i), np.complex64(1j), i) for i in range(3)])
    assert [type(x) for x in batch] == [np.ndarray, np.ndarray, lm.Tensor]
    assert batch[0].dtype == np.uint16
    with pytest.raises(TypeError, match="a batch is of arrays and numbers, or of texts"):
        data.default_collate([object()])


@pytest.mark.parametrize("given", ["tensors", "arrays", "torch"])
def test_tensor_datasets_give_what_they_were_given(given: str) -> None:
    wrap = {"tensors": lm.tensor, "arrays": np.asarray, "torch": torch.from_numpy}[given]
    dataset = data.TensorDataset(wrap(X), wrap(Y))
    expected = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    kind = (np.ndarray, np.generic) if given == "arrays" else lm.Tensor
    for i in (0, -1, 7):
        sample = dataset[i]
        assert all(isinstance(x, kind) for x in sample)
        for x, y in zip(sample, expected[i], strict=True):
            np.testing.assert_array_equal(x, y)
    halves = data.random_split(dataset, [0.5, 0.5], seed=1)
    for part in (dataset, *halves, data.ConcatDataset(halves), data.StackDataset(a=dataset)):
        same(list(data.DataLoader(part, 4)), list(torch.utils.data.DataLoader(_Torchs(part), 4)))
    lists = data.DataLoader(dataset, 4, collate_fn=list)
    assert all(isinstance(x, kind) for batch in lists for sample in batch for x in sample)


class _Torchs:
    """A data set's samples with torch's tensors."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        sample = self.dataset[i]
        pair = sample["a"] if isinstance(sample, dict) else sample
        made = tuple(torch.from_numpy(np.asarray(x)) for x in pair)
        return {"a": made} if isinstance(sample, dict) else made


def test_samples_of_subclasses_are_their_own() -> None:
    class Doubled(data.TensorDataset):
        def __getitem__(self, index: int) -> Any:
            (x,) = super().__getitem__(index)
            return x * 2, index

    class Shifted(data.Subset):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)[0] + 1

        def sample(self, index: int, rng: np.random.Generator) -> Any:
            return self[index]

    whole = Doubled(lm.tensor(X))
    for dataset in (whole, data.Subset(whole, range(8))):
        for collate_fn in (None, data.default_collate):
            x, i = next(iter(data.DataLoader(dataset, 4, collate_fn=collate_fn)))
            np.testing.assert_array_equal(x, 2 * X[:4])
            assert i.tolist() == [0, 1, 2, 3]
    (y,) = data.DataLoader(Shifted(whole, [3, 1]), 2)
    np.testing.assert_array_equal(y, 2 * X[[3, 1]] + 1)


def test_a_custom_collate_gives_what_it_gives() -> None:
    def collate(samples: list[Any]) -> Any:
        return np.stack([x for x, _ in samples]), tuple(y for _, y in samples)

    x, y = next(iter(data.DataLoader(Samples("tuple"), 4, collate_fn=collate)))
    assert (type(x), type(y), type(y[0])) == (np.ndarray, tuple, int)
    found = data.DataLoader(
        data.TensorDataset(lm.tensor(X)), 4, collate_fn=lambda s: ops.stack([x for (x,) in s])
    )
    np.testing.assert_array_equal(next(iter(found)), X[:4])


def test_transforms_of_batches_take_arrays_and_tensors() -> None:
    images = RNG.standard_normal((12, 3, 4, 4)).astype(np.float32)
    dataset = data.TensorDataset(images, np.arange(12) % 3)
    for mixing in (transforms.MixUp(3), transforms.CutMix(3)):
        batches = [
            next(iter(data.DataLoader(dataset, 4, batch_transform=mixing, collate_fn=collate)))
            for collate in (None, data.default_collate)
        ]
        for x, p in batches:
            assert isinstance(x, lm.Tensor)
            assert isinstance(p, lm.Tensor)
            assert (x.shape, p.shape, x.dtype, p.dtype) == ((4, 3, 4, 4), (4, 3), lm.float32, lm.float32)
        for a, b in zip(*batches, strict=True):
            np.testing.assert_array_equal(a, b)


def test_weights_of_padded_batches_are_tensors_too() -> None:
    *_, (x, (y, weights)) = data.DataLoader(data.TensorDataset(X, Y), 4, pad_last=True)
    assert (x.shape, y.shape, weights.size(), weights.dtype) == ((4, 2, 3), (4,), (4,), lm.float32)
    assert isinstance(weights, lm.Tensor)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "persistent_workers": True, "pin_memory": True},
        {"sampler": data.WeightedRandomSampler([1.0] * 8 + [0.0] * 15, 16)},
    ],
)
def test_a_loop_as_users_of_torch_write_it(options: dict[str, Any]) -> None:
    device = lm.device("cpu")
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
    optimizer = optim.Adam(net.parameters(), lr=0.02)

    def loss_and_outputs(net: nn.Module, x: lm.Tensor, y: lm.Tensor) -> Any:
        out = net(x)
        return criterion(out, y), out

    both = lm.value_and_grad(loss_and_outputs, has_aux=True)

    loader = data.DataLoader(data.TensorDataset(lm.tensor(X), lm.tensor(Y)), batch_size=8, seed=1, **options)
    criterion = nn.CrossEntropyLoss()
    rates = []
    for _ in range(40):
        correct = total = 0
        for x, y in loader:
            x, y = x.to(device), y.to(device, non_blocking=True)
            (_, out), grads = both(net, x.view(x.size(0), -1), y)
            optimizer.step(grads)
            total += y.size(0)
            correct += (out.argmax(1) == y).sum().item()
        rates.append(correct / total)
    assert rates[-1] > 0.9 > rates[0]
