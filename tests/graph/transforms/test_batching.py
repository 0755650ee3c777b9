"""vmap: what it gives is what the function gives for each sample, for every op and within every transformation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph.transforms import batching
from lamina.ops.core import REGISTRY, Sample, bind
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.spec import ShapeError, float64
from tests.helpers import slow_from

RNG = np.random.default_rng(5)
#: All but updates, and what only the passes of a compiler make.
PURE = sorted(
    name
    for name, op in REGISTRY.items()
    if op.effect == "pure" and op.__module__.startswith("lamina.ops.") and op not in (FusedElementwise, Fused)
)
SIZE = 3


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def each(fn: Any, *stacks: np.ndarray) -> list[np.ndarray]:
    """fn on one sample after the other, the results stacked."""
    found = [fn(*(lm.tensor(np.asarray(x[i])) for x in stacks)) for i in range(len(stacks[0]))]
    found = [y if isinstance(y, tuple) else (y,) for y in found]
    return [np.stack([y[k].numpy() for y in found]) for k in range(len(found[0]))]


def check(fn: Any, *stacks: np.ndarray, tolerance: float = 1e-5) -> None:
    made = lm.vmap(fn)(*stacks)
    for y, wanted in zip(made if isinstance(made, tuple) else (made,), each(fn, *stacks), strict=True):
        assert y.shape == wanted.shape
        np.testing.assert_allclose(y.numpy(), wanted, tolerance, tolerance)


# ------------------------------------------------------------------------------------------------------------ each op


def _stacks(sample: Sample, dtype: Any) -> list[np.ndarray]:
    """Three draws of each input; what is fixed is the same in all."""
    rng = np.random.default_rng(3)
    drawn = [sample.draw(rng, dtype) for _ in range(SIZE)]
    return [np.stack(xs) for xs in zip(*drawn, strict=True)]


#: How many of the ways in which samples may be batched are computed at once; of other ops all are.
AT_ONCE = {
    "attention_grad": 0, "bag_max": 0, "bag_spread": 0, "bag_sum": 0, "batch_norm": 0, "batch_norm_grad": 0,
    "batch_norm_infer": 2, "check_index": 3, "cross_entropy_grad": 0, "ctc_loss_grad": 0, "dequantize": 4,
    "embedding": 4, "embedding_grad": 0, "embedding_sum": 4, "expand": 2, "grid_sample_grid_grad": 0, "group_norm": 4,
    "group_norm_grad": 0, "labelled_mean": 0, "layer_norm": 4, "layer_norm_grad": 0, "linear_solve": 10,
    "local_response_norm_grad": 0, "nll_loss": 6, "nll_loss_grad": 0, "quantized_conv": 4,
    "quantized_matmul": 4, "rms_norm": 4, "rms_norm_grad": 0, "rnn": 0, "rnn_grad": 0, "roi_align": 0,
    "roi_align_grad": 0, "search_sorted": 0, "short_time_spectra": 4, "singular_values": 0,
    "symmetric_eigen": 0, "take_rows": 0, "triangular_solve": 10,
}  # fmt: skip


@pytest.mark.feature("F105")
@pytest.mark.parametrize("name", PURE)
def test_every_op(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All operands batched, and each one alone while the others are the same for all samples."""
    one_by_one, single = batching._Batcher.one_by_one, list[str]()
    monkeypatch.setattr(
        batching._Batcher,
        "one_by_one",
        lambda self, op, *rest: single.append(op.name) or one_by_one(self, op, *rest),
    )
    ways = at_once = 0
    op_class = REGISTRY[name]
    samples = list(op_class.samples())
    for sample in samples[:: max(1, len(samples) // 4)][:4]:
        dtypes = sample.dtypes or op_class.dtypes
        stacks = _stacks(sample, float64 if float64 in dtypes else dtypes[0])
        free = [i for i, a in enumerate(sample.args) if a.value is None]
        for way in [free, *([i] for i in free if len(free) > 1)] if free else []:
            single.clear()
            _check_way(sample, stacks, way)
            ways, at_once = ways + 1, at_once + (not single)
    assert at_once == AT_ONCE.get(name, ways)


def _check_way(sample: Sample, stacks: list[np.ndarray], way: Sequence[int]) -> None:
    given = [x if i in way else np.asarray(x[0]) for i, x in enumerate(stacks)]
    axes = tuple(0 if i in way else None for i in range(len(stacks)))
    made = lm.vmap(lambda *xs: bind(sample.op, *xs), axes)(*given)
    single = [
        bind(sample.op, *(lm.tensor(np.asarray(x[j]) if i in way else x) for i, x in enumerate(given)))
        for j in range(SIZE)
    ]
    for k, y in enumerate(made):
        wanted = np.stack([s[k].numpy() for s in single])
        if sample.op.name == "dropout":  # each sample draws for itself
            assert y.shape == wanted.shape
            continue
        right = wanted.astype(np.float64)
        size = np.abs(right[np.isfinite(right)]).max(initial=1.0)  # sums may be taken in another order
        np.testing.assert_allclose(
            y.numpy().astype(np.float64), right, 1e-6, 1e-6 * size, err_msg=f"{sample} {way}"
        )


@pytest.mark.feature("F105")
@pytest.mark.parametrize(
    "name",
    [name for name in PURE if REGISTRY[name].differentiable and name != "dropout"],  # each draws for itself
)
@pytest.mark.parametrize("which", slow_from(1, [slice(0, 1), slice(1, 3)]), ids=["first", "others"])
def test_gradients_of_every_op(name: str, which: slice) -> None:
    """Of the samples' sum, in what is batched and in what is the same for all of them."""
    op_class = REGISTRY[name]
    samples = list(op_class.samples())
    for sample in samples[:: max(1, len(samples) // 3)][which]:
        if float64 not in (sample.dtypes or op_class.dtypes):
            continue
        stacks = _stacks(sample, float64)
        free = [i for i, a in enumerate(sample.args) if a.value is None]
        for way in [free, *([i] for i in free if len(free) > 1)] if free else []:
            _check_slopes(sample, stacks, way)


def _check_slopes(sample: Sample, stacks: list[np.ndarray], way: Sequence[int]) -> None:
    given = [lm.tensor(x if i in way else np.asarray(x[0])) for i, x in enumerate(stacks)]
    axes = tuple(0 if i in way else None for i in range(len(stacks)))
    floats = [i for i, x in enumerate(given) if x.dtype.is_float]

    def outputs(*xs: Any) -> tuple[Any, ...]:
        return tuple(y for y in bind(sample.op, *xs) if y.dtype.is_float)

    shapes = [y.shape for y in lm.vmap(outputs, axes)(*given)]
    rng = np.random.default_rng(8)
    weights = [lm.tensor(rng.standard_normal(shape)) for shape in shapes]

    def total(found: Sequence[Any], scales: Sequence[Any]) -> Any:
        return sum((ops.sum(y * w) for y, w in zip(found, scales, strict=True)), lm.tensor(np.float64(0)))

    through = lm.grad(lambda *xs: total(lm.vmap(outputs, axes)(*xs), weights), floats)(*given)

    def one_by_one(*xs: Any) -> Any:
        every = (
            total(outputs(*(x[j] if i in way else x for i, x in enumerate(xs))), [w[j] for w in weights])
            for j in range(SIZE)
        )
        return sum(every, lm.tensor(np.float64(0)))

    wanted = lm.grad(one_by_one, floats)(*given)
    for i, found, slope in zip(floats, through, wanted, strict=True):
        np.testing.assert_allclose(
            found.numpy(), slope.numpy(), 1e-6, 1e-6, err_msg=f"{sample} {way}, input {i}"
        )


# -------------------------------------------------------------------------------------------------------------- axes


def test_axes_of_arguments_and_results() -> None:
    a, b = normal(2, 5, 4), normal(4, 3)
    made = lm.vmap(lambda a, b: (a @ b, b.sum()), (1, None), (2, None))(a, b)
    np.testing.assert_allclose(made[0].numpy(), np.einsum("isk,kn->ins", a, b), 1e-5, 1e-5)
    assert made[1].shape == ()
    shared = lm.vmap(lambda a, b: b * 2, (0, None), -1)(a, b)
    assert shared.shape == (4, 3, 2)
    turned = lm.vmap(lambda a: a, -1, 1)(a)
    np.testing.assert_array_equal(turned.numpy(), a.transpose(0, 2, 1))


def test_trees_and_what_is_no_array() -> None:
    given = {"x": normal(4, 2), "pair": (normal(4, 3), normal(3))}

    def fn(tree: Any, scale: float, how: str, *, shift: float) -> Any:
        assert how == "sum"
        return {"y": tree["x"].sum() * scale + shift, "z": [tree["pair"][0] * tree["pair"][1], "kept"]}

    made = lm.vmap(fn, ({"x": 0, "pair": (0, None)}, None, None))(given, 2.0, "sum", shift=1.0)
    np.testing.assert_allclose(made["y"].numpy(), 2 * given["x"].sum(1) + 1, 1e-5)
    np.testing.assert_allclose(made["z"][0].numpy(), given["pair"][0] * given["pair"][1], 1e-6)
    assert made["z"][1] == "kept"


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda f: lm.vmap(f)(normal(2, 3), normal(4, 3)), ValueError, r"args\[0\] 2, args\[1\] 4"),
        (lambda f: lm.vmap(f, None)(normal(2), normal(2)), ValueError, "no argument has an axis of samples"),
        (lambda f: lm.vmap(f, (0, 3))(normal(2), normal(2, 3)), ShapeError, r"args\[1\] is .*, which has no axis"),
        (lambda f: lm.vmap(f, (0,))(normal(2), normal(2)), ValueError, r"in_dims \(0,\) does not fit the structure"),
        (lambda f: lm.vmap(f, "0")(normal(2), normal(2)), TypeError, "in_dims must be an int, None, or a tuple"),
        (lambda f: lm.vmap(f)(normal(0, 3), normal(0, 3)), ValueError, r"args\[0\] has no samples along in_dims 0"),
        (lambda f: lm.vmap(f, 0, None)(normal(2), normal(2)), ValueError, r"out_dims is None for a result f32\[2\]"),
        (lambda f: lm.vmap(f, 0, 2)(normal(2), normal(2)), ShapeError, "out_dims: a result is .* no axis 2"),
        (lambda f: lm.vmap(3), TypeError, "vmap: takes a function, got 3"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call(lambda x, y: x * y)


def test_updates_are_refused_by_name() -> None:
    norm = nn.BatchNorm1d(3)
    with pytest.raises(
        TypeError, match=r"updates a tensor f32\[3\].* with what .* gives for each sample.*eval\(\)"
    ):
        lm.vmap(norm)(normal(4, 5, 3))
    parameter, gradient, momentum = (lm.tensor(normal(3)) for _ in range(3))
    with pytest.raises(
        TypeError, match="vmap: sgd_update updates state, which has one value for all samples"
    ):
        lm.vmap(lambda g: ops.sgd_update(parameter, g, momentum, lm.tensor(0.1)), 0)(normal(4, 3))
    assert gradient.shape == (3,)
    with pytest.raises(TypeError, match="no truth value"):
        lm.vmap(lambda x: x if x.sum() > 0 else -x)(normal(4, 3))


def test_numbers_among_the_results_are_there_for_each_sample() -> None:
    x = lm.ones(4, 2)
    assert lm.vmap(lambda x: 3.0)(x).tolist() == [3.0] * 4
    y, count, text = lm.vmap(lambda x: (x + 1, 2, "sum"))(x)
    assert (y.shape, count.tolist(), count.dtype, text) == ((4, 2), [2] * 4, lm.int64, "sum")
    assert lm.vmap(lambda x: (x, 3.0), out_dims=(0, None))(x)[1] == 3.0
    assert lm.jit(lm.vmap(lm.vmap(lambda x: 3.0)))(x).tolist() == [[3.0] * 2] * 4


def test_what_is_the_same_for_all_may_be_updated() -> None:
    count = lm.zeros(1)

    def fn(x: Any) -> Any:
        count.copy_(count + 1)
        return x * 2

    lm.vmap(fn)(normal(4, 3))
    assert count.tolist() == [1]


# --------------------------------------------------------------------------------------------- other transformations


def network() -> nn.Module:
    lm.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(0),
        nn.Linear(16, 5),
        nn.LogSoftmax(0),
    )


@pytest.mark.feature("F105")
def test_a_gradient_for_each_sample() -> None:
    net = network()
    images, labels = normal(6, 2, 4, 4), np.arange(6) % 5

    def loss(net: nn.Module, x: Any, y: Any) -> Any:
        return ops.cross_entropy(net(x), y)

    found = lm.vmap(lm.grad(loss), (None, 0, 0))(net, images, labels)
    assert set(found) == dict(net.named_parameters()).keys()
    for i in range(6):
        single = lm.grad(loss)(net, images[i], labels[i])
        for name, g in single.items():
            np.testing.assert_allclose(found[name].numpy()[i], g.numpy(), 1e-4, 1e-5, err_msg=name)


def test_a_gradient_through_it() -> None:
    w, x = normal(3, 4), normal(5, 3)
    through = lm.grad(lambda w: lm.vmap(lambda v: ops.tanh(v @ w).sum(), 0)(lm.tensor(x)).sum())(w)
    plain = lm.grad(lambda w: ops.tanh(lm.tensor(x) @ w).sum())(w)
    np.testing.assert_allclose(through.numpy(), plain.numpy(), 1e-5, 1e-6)


def test_nested_and_with_other_transformations() -> None:
    a, b = normal(2, 4), normal(3, 4)
    table = lm.vmap(lambda x: lm.vmap(lambda y: ops.exp(x * y).sum())(lm.tensor(b)))(a)
    np.testing.assert_allclose(table.numpy(), np.exp(a[:, None] * b).sum(2), 1e-5)
    eye = np.eye(4, dtype=np.float32)

    def f(x: Any) -> Any:
        return ops.stack([x.sum() ** 2, (x * x * x).sum()])

    jacobian = lm.vmap(lambda t: lm.jvp(f, (lm.tensor(a[0]),), (t,))[1], 0, 1)(eye)
    np.testing.assert_allclose(jacobian.numpy(), [[2 * a[0].sum()] * 4, 3 * a[0] ** 2], 1e-5)
    hessian = lm.vmap(lambda t: lm.hvp(lambda x: f(x)[1], (lm.tensor(a[0]),), (t,))[1][0])(eye)
    np.testing.assert_allclose(hessian.numpy(), np.diag(6 * a[0]), 1e-5, 1e-6)


def test_compiled() -> None:
    net = network()
    images = normal(6, 2, 4, 4)
    np.testing.assert_allclose(lm.jit(lm.vmap(net))(images).numpy(), lm.vmap(net)(images).numpy(), 1e-6, 1e-6)
    batched = lm.vmap(lm.jit(lambda x: net(x) * 2))(images)
    np.testing.assert_allclose(batched.numpy(), 2 * lm.vmap(net)(images).numpy(), 1e-6)
    traced = lm.trace(lm.vmap(lambda x: ops.softmax(x, 0)), images)
    np.testing.assert_allclose(
        lm.compile(traced, "cpu")(images)[0].numpy(), ops.softmax(images, 1).numpy(), 1e-6, 1e-7
    )


DRAWN = {
    "rand_like": ops.rand_like,
    "randn_like": ops.randn_like,
    "randint_like": lambda x: ops.randint_like(x, 1 << 20),
    "bernoulli": lambda x: ops.bernoulli(x * 0 + 0.5),
    "bernoulli of one probability": lambda x: ops.bernoulli(x, 0.5),
    "multinomial": lambda x: ops.multinomial(ops.ones_like(x), 16),
    "multinomial again": lambda x: ops.multinomial(ops.ones_like(x), 16, True),
    "multinomial of rows": lambda x: ops.multinomial(ops.ones_like(x).reshape(4, -1), 4),
    "normal": lambda x: ops.normal(x, 1.0),
    "gumbel_softmax": ops.gumbel_softmax,
    "alpha_dropout": lambda x: ops.alpha_dropout(x, 0.5, True),
    "channels": lambda x: ops.dropout1d(x.reshape(-1, 1), 0.5),
    "layer of channels": lambda x: nn.Dropout2d()(x.reshape(1, -1, 1, 1)),
    "rrelu": lambda x: nn.RReLU()(-x),
    "attention": lambda x: ops.attention(
        *[x.reshape(1, 1, 8, -1)] * 2, lm.tensor(np.eye(8, dtype=np.float32)[None, None]), dropout_p=0.5
    ),
    "compiled": lm.jit(lambda x: ops.rand_like(x)),
    "gradient": lm.grad(lambda x: (x * ops.rand_like(x)).sum()),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_sample_draws_what_is_drawn_for_it(name: str) -> None:
    x = lm.ones(8, 64)
    shape = DRAWN[name](x[0]).shape
    for run in (lm.vmap(DRAWN[name]), lm.jit(lambda x: lm.vmap(DRAWN[name])(x))):
        found = [run(x).numpy() for _ in range(2)]
        assert found[0].shape == (8, *shape)
        assert len({tuple(y.ravel().tolist()) for both in found for y in both}) == 16
    twice = lm.vmap(lm.vmap(DRAWN[name]))(lm.ones(2, 3, 64)).numpy()
    assert len({tuple(y.ravel().tolist()) for both in twice for y in both}) == 6


def test_what_is_drawn_for_no_sample_is_the_same_for_all() -> None:
    def run(x: Any, same: Any) -> Any:
        return x + ops.rand(16), x + ops.rand_like(same), x + ops.rand_like(x), x + ops.rand(16)

    found = lm.vmap(run, (0, None))(lm.zeros(4, 16), lm.zeros(16))
    assert [len({tuple(row) for row in y.tolist()}) for y in found] == [1, 1, 4, 1]


def test_each_sample_draws_its_own_dropout() -> None:
    lm.manual_seed(0)
    drop = nn.Dropout(0.5)
    first = lm.vmap(drop)(np.ones((4, 64), np.float32)).numpy()
    assert len({row.tobytes() for row in first}) == 4
    second = lm.vmap(drop)(np.ones((4, 64), np.float32)).numpy()
    assert (first != second).any()


@pytest.mark.torch
@pytest.mark.feature("F105")
def test_against_torch() -> None:
    import torch

    w, x, y = normal(7, 5), normal(6, 7), normal(6, 5)

    def loss(lib: Any) -> Any:
        return lambda w, x, y: ((lib.tanh(x @ w) - y) ** 2).mean()

    ours = lm.vmap(lm.grad(loss(ops)), (None, 0, 0))(w, x, y)
    theirs = torch.func.vmap(torch.func.grad(loss(torch)), (None, 0, 0))(*map(torch.from_numpy, (w, x, y)))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-4, 1e-6)
    images, filters = normal(3, 2, 4, 6, 6), normal(3, 5, 4, 3, 3)
    ours = lm.vmap(lambda x, w: ops.conv2d(x, w, padding=1))(images, filters)
    theirs = torch.func.vmap(lambda x, w: torch.nn.functional.conv2d(x, w, padding=1))(
        torch.from_numpy(images), torch.from_numpy(filters)
    )
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), 1e-4, 1e-4)


def test_a_tensor_that_the_function_makes_is_filled_for_each_sample() -> None:
    def filled(x: Any) -> Any:
        out = lm.zeros(3)
        out[1:] = x[:2] * 2
        return out

    x = lm.tensor([[1.0, 2, 3], [4, 5, 6]])
    assert lm.vmap(filled)(x).tolist() == [[0, 2, 4], [0, 8, 10]]
    assert lm.vmap(lm.grad(lambda x: (filled(x) * x).sum()))(x).tolist() == [[4, 8, 4], [10, 20, 10]]


def test_a_program_around_it_follows_settings_and_modes() -> None:
    """What is changed on a network that vmap calls is noticed as without it."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale, self.drop = 1.0, nn.Dropout(0.999)

        def forward(self, x: Any) -> Any:
            return self.drop(x) * self.scale

    net, x = Scaled(), lm.tensor(normal(SIZE, 4))
    for call in (
        lm.jit(lm.vmap(lambda row: net(row))),
        lm.jit(lambda x: lm.vmap(lm.vmap(lambda v: net(v)))(x)),
    ):
        net.train()
        net.scale = 1.0
        call(x)
        net.eval()
        np.testing.assert_array_equal(call(x).numpy(), x.numpy())
        net.scale = 2.0
        np.testing.assert_array_equal(call(x).numpy(), 2 * x.numpy())
        assert len(call._programs) == 3


@dataclass
class Sampled:
    """A user's own class of arguments."""

    x: Any
    rate: float = 2.0


def test_dataclasses_among_arguments() -> None:
    x = normal(SIZE, 2)
    found = lm.vmap(lambda given: ops.sum(given.x) * given.rate)(Sampled(lm.tensor(x)))
    np.testing.assert_allclose(found.numpy(), 2 * x.sum(1), rtol=1e-6)
