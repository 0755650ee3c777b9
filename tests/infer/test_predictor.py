"""A predictor gives what the network gives in inference mode: for any structure, dtype and batch size."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Inferer, Predictor, quantize
from lamina.infer.predictor import _first, _repeated
from lamina.ops.core import BatchAxis
from lamina.spec import DTypeError

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass
class Found:
    logits: Any
    loss: Any = None


def test_outputs_in_a_dataclass() -> None:
    class Net(nn.Module):
        def forward(self, x: Any) -> Found:
            return Found(x * 2.0)

    x = floats(3, 2)
    found = Predictor(Net())(x)
    assert isinstance(found, Found)
    assert found.loss is None
    np.testing.assert_array_equal(found.logits, x * 2)


# ---- batches


class Outputs(nn.Module):
    """The first of what a recurrent network returns."""

    def __init__(self, inner: nn.Module) -> None:
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)[0]


MIXING = {
    "time": (lambda: Outputs(nn.LSTM(4, 6, bidirectional=True)), (10, 2, 4), (5, 2, 4)),
    "statistics": (lambda: nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)), (8, 3), (3, 3)),
    "mean": (lambda: Lambda(lambda x: x - ops.mean(x, 0)), (8, 3), (3, 3)),
    "count": (lambda: Lambda(lambda x: x * float(x.shape[0])), (8, 3), (3, 3)),
    "branch": (lambda: Lambda(lambda x: ops.relu(x) if x.shape[0] > 4 else ops.tanh(x)), (8, 3), (3, 3)),
    "first": (lambda: Lambda(lambda x: x - x[-1:]), (8, 3), (3, 3)),
}
FREE = {
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
        ),
        (8, 1, 8, 8),
        (3, 1, 8, 8),
    ),
    "batch second": (lambda: Outputs(nn.LSTM(4, 6, bidirectional=True)), (5, 8, 4), (5, 2, 4)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (6, 5, 8), (1, 5, 8)),
}


class Lambda(nn.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", [*MIXING, *FREE])
def test_a_smaller_batch_is_filled_up_only_where_no_sample_sees_another(name: str, backend: str) -> None:
    make, large, small = {**MIXING, **FREE}[name]
    nn.manual_seed(0)
    net = make()
    predictor = Predictor(net, device="cpu", backend=backend)
    predictor(floats(*large))
    x = floats(*small)
    found = predictor(x)
    expected = net.eval()(lm.tensor(x)).numpy()
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(predictor._programs) == (2 if name in MIXING else 1)


def test_tensors_are_filled_up_too_and_the_smallest_program_is_taken() -> None:
    net = nn.Linear(3, 2)
    predictor = Predictor(net, device="cpu")
    for n in (4, 9, 6):
        predictor(floats(n, 3))
    assert [p.kind.specs[0].shape[0] for p in predictor._programs] == [4, 9]  # 6 is filled up to 9
    x = lm.tensor(floats(3, 3))
    np.testing.assert_allclose(predictor(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)
    used = [u for kind, u in predictor._uses.items() if kind.specs[0].shape[0] == 3]
    assert used[0].program.kind.specs[0].shape[0] == 4


def test_a_backend_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown backend 'nowhere'"):
        Predictor(nn.ReLU(), device="cpu", backend="nowhere")


def test_no_samples_at_all() -> None:
    predictor = Predictor(nn.ReLU(), device="cpu")
    predictor(floats(3, 2))
    assert predictor(floats(0, 2)).shape == (0, 2)


def test_a_batch_is_filled_up_with_its_last_sample() -> None:
    """Zeros might be no valid input: an index that is counted from 1, the length of a text."""
    x = np.array([[1, 2, 3], [4, 5, 6]])
    for given in (x, lm.tensor(x)):
        np.testing.assert_array_equal(_repeated(given, 0, 2), [*x, x[1], x[1]])
        np.testing.assert_array_equal(_repeated(given, 1, 1), np.column_stack([x, x[:, 2]]))
        assert _repeated(given, None, 2) is given


def test_policies_have_their_own_programs() -> None:
    predictor = Predictor(nn.Linear(3, 2), device="cpu")
    predictor(floats(4, 3))
    with lm.policy(algorithm="fallback"):
        predictor(floats(4, 3))
    assert len(predictor._programs) == 2


# ---- structures


class Two(nn.Module):
    def __init__(self) -> None:
        self.a = nn.Linear(2, 3)

    def forward(self, x: Any, z: Any, scale: Any = None) -> Any:
        y = self.a(x + z)
        return {"y": y if scale is None else y * scale, "both": (x, [z, None])}


def test_trees_go_in_and_come_out() -> None:
    net, x, z = Two(), floats(5, 2), floats(5, 2)
    predictor = Predictor(net, device="cpu")
    expected = net(x, z)["y"].numpy()
    for inputs in ((x, z), [x, z], {"x": x, "z": z}, (lm.tensor(x), z)):
        found = predictor(inputs)
        np.testing.assert_allclose(found["y"].numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found["both"][0].numpy(), x)
        np.testing.assert_array_equal(found["both"][1][0].numpy(), z)
        assert found["both"][1][1] is None
    scaled = predictor({"x": x, "z": z, "scale": np.float32(2)})
    np.testing.assert_allclose(scaled["y"].numpy(), 2 * expected, rtol=1e-5, atol=1e-6)
    part = predictor((x[:2], z[:2]))  # filled up, every output cut
    np.testing.assert_allclose(part["y"].numpy(), expected[:2], rtol=1e-5, atol=1e-6)
    assert part["both"][0].shape == (2, 2)


def test_inputs_are_given_one_by_one_or_as_a_tuple() -> None:
    class Masked(nn.Module):
        def forward(self, x: Any, mask: Any) -> Any:
            return ops.where(mask, x, 0.0) * 2.0

    x, mask = floats(3, 4), RNG.random((3, 4)) < 0.5
    predict = Predictor(Masked(), device="cpu")
    np.testing.assert_array_equal(predict(x, mask).numpy(), np.where(mask, x * 2, 0))
    np.testing.assert_array_equal(predict((x, mask)).numpy(), predict(x, mask).numpy())


def test_lists_of_numbers_are_an_array() -> None:
    predictor = Predictor(nn.ReLU(), device="cpu")
    assert predictor([[1.0, -1.0], [2.0, -2.0]]).tolist() == [[1, 0], [2, 0]]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((1.0, 2.0), r"Predictor: \(1.0, 2.0\) may be one array or several; give np.asarray"),
        ([np.zeros(2), 1.0], "may be one array or several"),
        ((), "there is no array in"),
        (None, "there is no array in None"),
        ("text", "Predictor: str is not an array"),
        ((np.zeros(2), object()), "Predictor: object is not an array"),
    ],
)
def test_what_is_unclear_is_refused(inputs: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Predictor(nn.ReLU(), device="cpu")(inputs)


# ---- dtypes


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_integers_stay_integers(dtype: str, precision: str) -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    x = RNG.integers(0, 10, (5, 3)).astype(dtype)
    predictor = Predictor(net, device="cpu", precision=precision)
    np.testing.assert_allclose(predictor(x).numpy(), net(x).numpy(), rtol=3e-2, atol=3e-2)


def test_uint8_images_are_the_networks_to_cast() -> None:
    """The same rule in inference and training."""
    picture = RNG.integers(0, 256, (2, 1, 4, 4)).astype(np.uint8)
    plain = nn.Conv2d(1, 3, 3)
    with pytest.raises(DTypeError, match=r"uint8 is not among .* cast with ops\.cast"):
        Predictor(plain, device="cpu")(picture)
    step = lm.train_step(plain, lambda y, t: ops.mean(y), lm.optim.SGD(lr=0.1), device="cpu")
    with pytest.raises(DTypeError, match=r"uint8 is not among .* cast with ops\.cast"):
        step(picture, np.zeros(2, np.int64))
    net = Casting(plain)
    expected = plain(picture.astype(np.float32) / 255).numpy()
    np.testing.assert_allclose(Predictor(net, device="cpu")(picture).numpy(), expected, rtol=1e-4, atol=1e-5)
    step = lm.train_step(net, lambda y, t: ops.mean(y), lm.optim.SGD(lr=0.0), device="cpu")
    assert step(picture, np.zeros(2, np.int64)).item() == pytest.approx(expected.mean(), rel=1e-4)


class Casting(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x.cast("float32") / 255.0)


def test_integer_outputs_and_float64_inputs() -> None:
    predictor = Predictor(Lambda(lambda x: (ops.argmax(x, 1), x > 0, x)), device="cpu")
    x = RNG.standard_normal((3, 4))
    index, positive, same = predictor(x)
    assert [t.dtype.name for t in (index, positive, same)] == ["int64", "bool", "float32"]
    np.testing.assert_array_equal(index.numpy(), x.argmax(1))


def test_quantized_networks_take_trees_too() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(4, 3)

        def forward(self, x: Any, z: Any) -> Any:
            return {"y": self.a(x + z)}

    net, x, z = Joined(), floats(16, 4), floats(16, 4)
    made = quantize(net, [((x, z), np.zeros(16, np.int64))], device="cpu")
    wanted = net(x, z)["y"].numpy()
    np.testing.assert_allclose(made((x, z))["y"].numpy(), wanted, atol=0.1)
    np.testing.assert_allclose(made((x[:3], z[:3]))["y"].numpy(), wanted[:3], atol=0.1)
    assert len(made._programs) == 1


class Far:
    """A tensor whose memory the host does not see."""

    device = SimpleNamespace(kind="cuda")

    def __init__(self, x: Any) -> None:
        self.x, self.shape = x, x.shape

    def __getitem__(self, key: Any) -> Any:
        return self.x[key]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.x.numpy()


@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_batch_is_filled_up_alike_wherever_it_is(axis: int, more: int) -> None:
    x = floats(2, 3, 4)
    wanted = np.concatenate([x, np.repeat(x.take([-1], axis), more, axis)], axis)
    for given in (x, lm.tensor(x), Far(lm.tensor(x))):
        np.testing.assert_array_equal(_repeated(given, axis, more), wanted)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_first_samples_of_an_output_are_cut_along_its_axis(axis: int, size: int) -> None:
    """A sample may have several indices of it, as heads folded into the batch do."""
    y = floats(6, 6, 6)
    found = _first(lm.tensor(y), BatchAxis(axis, size), 2)
    np.testing.assert_array_equal(found.numpy(), y.take(range(2 * size), axis))
    assert _first(lm.tensor(y), None, 2).shape == (6, 6, 6)


# ---- what is computed in


def test_weights_are_rounded_to_what_is_computed_in() -> None:
    """The difference of 1 + 2⁻⁹ and 1, which bfloat16 does not tell apart."""
    net = nn.Linear(2, 1, bias=False)
    net.weight.copy_(lm.tensor(np.array([[1 + 2**-9, 1]], np.float32)))
    x = np.array([[1, -1]], np.float32)
    for precision, wanted in (("fp32", 2**-9), ("bf16", 0), ("fp64", 2**-9)):
        found = Predictor(net, device="cpu", precision=precision)(x)
        assert found.numpy().tolist() == [[wanted]]
        assert found.dtype.name == ("float64" if precision == "fp64" else "float32")


def test_in_float64_the_floats_of_a_network_are_wide_and_counts_stay_counts() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = {name: x.numpy() for name, x in net.state_dict().items()}
    Predictor(net, device="cpu", precision="fp64")
    for name, x in net.state_dict().items():
        wanted = "float64" if before[name].dtype.kind == "f" else before[name].dtype.name
        assert (x.dtype.name, x.numpy().tolist()) == (wanted, before[name].tolist()), name


def test_a_program_is_made_for_specs() -> None:
    predictor = Predictor(Two(), device="cpu")
    spec = lm.tensor(floats(5, 2)).spec
    found = predictor.program((spec, spec)).graph
    assert [v.spec.shape for v in found.outputs] == [(5, 3), (5, 2), (5, 2)]
    assert len(found.inputs) == 4  # weight, bias, and what the network takes


def test_arrays_of_many_shapes_are_known_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many are kept by their spec; others take the longer way to the same answer."""
    monkeypatch.setattr("lamina.infer.predictor._MOST_KNOWN", 3)
    predictor = Predictor(nn.Linear(2, 3), device="cpu")
    predictor(floats(8, 2))
    for _ in range(2):
        for n in range(1, 8):
            x = floats(n, 2)
            np.testing.assert_allclose(
                predictor(x).numpy(), predictor.net(lm.tensor(x)).numpy(), rtol=1e-5, atol=1e-6
            )
    assert len(predictor._known) == 3


class Described(nn.Module):
    """Gives a flag, a number and a text beside its output."""

    def __init__(self, text: str | None = None) -> None:
        self.inner, self.text = nn.Linear(3, 2), text

    def forward(self, x: Any) -> Any:
        return {"y": self.inner(x), "flag": True, "count": 3, "text": self.text}


def test_outputs_that_are_no_tensors() -> None:
    x = np.ones((4, 3), np.float32)
    found = Predictor(Described(), device="cpu")(x)
    assert found["flag"] is True
    assert found["text"] is None
    assert found["count"].item() == 3
    with pytest.raises(TypeError, match=r"forward: its output\['text'\] must be a tensor, .*got 'abc'"):
        Predictor(Described("abc"), device="cpu")(x)
    with pytest.raises(TypeError, match=r"forward: its output\['text'\] must be a tensor, .*got 'abc'"):
        lm.train_step(Described("abc"), lambda y, t: y["y"].mean(), optim.SGD(lr=0.1), device="cpu")(x)


def test_a_network_in_float64_is_computed_in_it() -> None:
    """As long as all of its parameters are, and nothing else is asked for."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = np.linspace(-1, 1, 6).reshape(2, 3)
    wanted = net(lm.tensor(x)).numpy()
    for call in (Predictor(net, device="cpu"), Inferer(net, device="cpu")):
        assert call(x).dtype == lm.float64
        np.testing.assert_allclose(call(x).numpy(), wanted, rtol=1e-12)
    assert lm.predict(net, x, device="cpu").dtype == lm.float64
    assert Predictor(deepcopy(net), device="cpu", precision="fp32")(x).dtype == lm.float32
    mixed = nn.Sequential(nn.Linear(3, 2))
    mixed.scale = nn.Parameter(np.ones(2))
    assert Predictor(mixed, device="cpu")(x.astype(np.float32)).dtype == lm.float32


class Masked(nn.Module):
    """Writes over what it computes."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        y = self.inner(x).clone()
        y[:, 0] = 0.0
        y[:, 1:3] += 1
        return y.mul_(2)


class Counting(nn.Module):
    """Has a state that each call writes: in place, or as an attribute."""

    def __init__(self, in_place: bool) -> None:
        self.in_place = in_place
        self.register_buffer("calls", lm.zeros(3))

    def forward(self, x: Any) -> Any:
        if self.in_place:
            self.calls.add_(1.0)
        else:
            self.calls = self.calls + 1.0
        return x + self.calls


def test_a_network_may_write_over_what_it_computes() -> None:
    net, x = Masked().eval(), floats(5, 3)
    wanted = net(lm.tensor(x)).numpy()
    for call in (
        Predictor(net, device="cpu"),
        Inferer(net, device="cpu"),
        Inferer(net, device="cpu", max_batch=8),
    ):
        np.testing.assert_allclose(call(x).numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize("precision", [None, "bf16"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_state_is_not_kept_from_call_to_call(in_place: bool, precision: str | None) -> None:
    """So that a network with one is refused: it would give each call the first one's answer."""
    predictor = Predictor(Counting(in_place), device="cpu", precision=precision)
    with pytest.raises(TypeError, match=r"Counting: forward writes to 'calls'|is its caller's.*\(calls\)"):
        predictor(floats(2, 3))


class Noisy(nn.Module):
    """Draws from the default generator, from one of its own, or from both."""

    def __init__(self, *generators: nn.Generator | None) -> None:
        self.layer, self.generators = nn.Linear(3, 4), generators

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        for generator in self.generators:
            y = y + ops.randn(*y.shape, generator=generator)
        return y


@pytest.mark.parametrize("make", [Predictor, Inferer, lambda net, **more: Inferer(net, max_batch=4, **more)])
def test_a_network_that_draws_numbers_moves_its_generators_on(make: Any) -> None:
    """By the same numbers as without compilation, in every call; batches of other sizes are not padded."""
    own = nn.Generator(7)
    net = Noisy(None, own, own).eval()
    inputs = [floats(n, 3) for n in (4, 2, 4)]

    def restart() -> None:
        nn.manual_seed(5)
        own.manual_seed(7)

    restart()
    wanted = [net(lm.tensor(x)).numpy() for x in inputs]
    after = own.counter, lm.get_rng_state().tolist()
    call = make(net, device="cpu")
    for _ in range(2):
        restart()
        for x, y in zip(inputs, wanted, strict=True):
            np.testing.assert_allclose(call(x).numpy(), y, atol=1e-6)
        assert (own.counter, lm.get_rng_state().tolist()) == after


def test_calls_of_several_threads_draw_different_numbers() -> None:
    call, x = Predictor(Noisy(nn.Generator(1)), device="cpu"), floats(2, 3)
    call(x)
    with ThreadPoolExecutor(4) as pool:
        found = [y.numpy().tobytes() for y in pool.map(lambda _: call(x), range(64))]
    assert len(set(found)) == 64


def test_what_draws_numbers_has_no_saved_plan(tmp_path: Path) -> None:
    with Inferer(Noisy(None), device="cpu") as inferer:
        inferer(floats(2, 3))
        with pytest.raises(ValueError, match="Noisy draws random numbers, and a saved plan has no generator"):
            inferer.save(tmp_path / "plan")


def test_networks_that_need_the_numbers_of_a_call_are_computed_op_by_op() -> None:
    class Selecting(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(4, 3)

        def forward(self, x: lm.Tensor) -> tuple[lm.Tensor, lm.Tensor]:
            chosen = x[x[:, 0] > 0]
            return self.layer(chosen), ops.rand(2)

    net = Selecting()
    predictor = Predictor(net, device="cpu", precision="bf16")
    drawn = []
    for count in (3, 0, 5):
        x = np.where(np.arange(6)[:, None] < count, 1, -1) * np.ones((6, 4), np.float32)
        if not drawn:
            with pytest.warns(UserWarning, match="Predictor of Selecting: computed op by op in each call"):
                y, numbers = predictor(x)
        else:
            y, numbers = predictor(x)
        assert y.shape == (count, 3)
        np.testing.assert_allclose(y.numpy(), net(lm.ones((6, 4)))[0].numpy()[:count], rtol=0.02, atol=0.02)
        drawn.append(numbers.numpy().tolist())
    assert len({tuple(numbers) for numbers in drawn}) == 3  # its generator goes on
    assert len(predictor._programs) == 0
