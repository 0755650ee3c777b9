"""autocast: a step of one's own computes what train_step computes in the same precision."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3, 6, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 8)


def network() -> nn.Sequential:
    nn.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
@pytest.mark.feature("B017")
def test_a_step_of_ones_own_equals_train_steps(precision: str) -> None:
    net, twin = network(), network()
    optimizer = optim.SGD(net, lr=0.05, momentum=0.9)

    @lm.jit
    def step(x: Any, y: Any) -> Any:
        def loss(net: Any) -> Any:
            with nn.autocast(precision):
                outputs = net(x)
            assert outputs.dtype.name == "float32"
            return ops.cross_entropy(outputs, y)

        value, grads = lm.value_and_grad(loss)(net)
        optimizer.step(grads)
        return value, grads["0.weight"]

    other = lm.train_step(
        twin, ops.cross_entropy, optim.SGD(lr=0.05, momentum=0.9), device="cpu", precision=precision
    )
    for _ in range(4):
        value, grad = step(X, Y)
        assert grad.dtype.name == "float32"
        assert value.item() == pytest.approx(other(X, Y).item(), rel=1e-5)
    assert ("bf16[8,8,4,4]" in str(step.program(X, Y).graph)) == (precision == "bf16")
    assert net[0].weight.dtype.name == "float32"
    np.testing.assert_allclose(net[0].weight.numpy(), twin[0].weight.numpy(), rtol=1e-4, atol=1e-6)


def test_blocks_nest_and_are_seen_by_compiled_functions() -> None:
    net = network().eval()
    exact = net(X).numpy()
    with nn.autocast("bf16"):
        rounded = net(X).numpy()
        with nn.autocast("fp32"):
            np.testing.assert_array_equal(net(X).numpy(), exact)
    assert 1e-4 < np.abs(rounded - exact).max() < 0.1
    run = lm.jit(net)
    np.testing.assert_allclose(run(X).numpy(), exact, rtol=1e-4, atol=1e-5)
    with nn.autocast("bf16"):
        np.testing.assert_allclose(run(X).numpy(), rounded, atol=0.02)
        assert np.abs(run(X).numpy() - exact).max() > 1e-4
    np.testing.assert_allclose(run(X).numpy(), exact, rtol=1e-4, atol=1e-5)


def test_integers_and_structures_pass_through() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            self.embedding, self.linear = nn.Embedding(5, 4), nn.Linear(4, 4)

        def forward(self, tokens: Any, more: Any, scale: float = 1.0) -> Any:
            assert tokens.dtype.name == "int64"
            assert more["x"].dtype.name == "bfloat16"
            return {"y": self.linear(self.embedding(tokens)) * scale + more["x"], "tokens": tokens}

    with nn.autocast("bf16"):
        found = Both()(np.array([1, 2]), {"x": np.ones((2, 4), np.float32)}, scale=2.0)
    assert found["y"].dtype.name == "float32"
    assert found["tokens"].tolist() == [1, 2]


@pytest.mark.parametrize(("precision", "message"), [("fp16", "train_step"), ("fp64", r"net.to\('float64'\)")])
def test_precisions_that_need_more_are_refused(precision: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"autocast: takes bf16, tf32 or fp32, got {precision}: {message}"):
        nn.autocast(precision).__enter__()


class Mixed(nn.Module):
    """float32 tables and numbers made on the way meet weights in products of all kinds."""

    def __init__(self) -> None:
        nn.manual_seed(0)
        self.time, self.place = nn.Linear(8, 16), nn.Linear(2, 16, bias=False)
        self.conv, self.rnn = nn.Conv1d(16, 16, 3, padding=1), nn.GRU(16, 16, batch_first=True)
        self.mixer = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 4)
        self.register_buffer("table", lm.tensor(RNG.standard_normal((5, 2)).astype(np.float32)))

    def forward(self, x: Any, t: Any) -> Any:
        waves = ops.sin(t[:, None].float() * lm.arange(8, dtype="float32"))
        x = x + self.time(waves)[:, None]  # x [N, 5, 16]
        x = x + self.place(self.table)
        x = ops.matmul(ops.softmax(self.table @ self.table.T, -1), x)
        x = self.conv((x.float() * 0.5).transpose(1, 2)).transpose(1, 2)
        x = self.rnn(x.float())[0]
        x = self.mixer(x.float(), x, x, need_weights=False)[0]
        return self.head(ops.mean(x, 1, dtype="float32"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_float32_values_within_a_network_meet_weights_of_the_half_type(precision: str) -> None:
    x, t = RNG.standard_normal((8, 5, 16)).astype(np.float32), RNG.integers(0, 50, 8)
    losses: dict[str, list[float]] = {}
    for name in ("fp32", precision):
        step = lm.train_step(Mixed(), ops.cross_entropy, optim.SGD(0.1), device="cpu", precision=name)
        losses[name] = [step((x, t), Y).item() for _ in range(3)]
    np.testing.assert_allclose(losses[precision], losses["fp32"], rtol=2e-2)


def test_eager_calls_cast_too_and_only_within_networks() -> None:
    x, t = RNG.standard_normal((8, 5, 16)).astype(np.float32), RNG.integers(0, 50, 8)
    net = Mixed()
    with nn.autocast("bf16"):
        found = net(x, t)
    np.testing.assert_allclose(found.numpy(), net(x, t).numpy(), atol=0.05)
    with (
        nn.autocast("bf16"),
        pytest.raises(lm.DTypeError, match="input 1 is bfloat16 but input 0 is float32"),
    ):
        ops.matmul(lm.zeros(2, 2), lm.zeros(2, 2, dtype="bfloat16"))


def test_a_part_of_a_network_has_a_precision_of_its_own() -> None:
    seen: list[str] = []

    class Part(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            seen.append(f"{x.dtype.name} {self.inner.weight.dtype.name} {y.dtype.name}")
            return y

    class Whole(nn.Module):
        def __init__(self) -> None:
            self.a, self.b = Part(), Part()

        def forward(self, x: Any) -> Any:
            x = self.a(x)
            with nn.autocast("fp32"):
                x = self.b(x)
            seen.append(x.dtype.name)
            return self.a(x)

    step = lm.train_step(Whole(), ops.cross_entropy, optim.SGD(0.1), device="cpu", precision="bf16")
    step(RNG.standard_normal((8, 4)).astype(np.float32), Y)
    half, whole = (f"{d} {d} {d}" for d in ("bfloat16", "float32"))
    assert seen[:4] == [half, whole, "float32", "float32 bfloat16 bfloat16"]


@pytest.mark.parametrize(
    "block",
    [
        lambda: nn.autocast("cpu", lm.bfloat16),
        lambda: nn.autocast("cuda:0"),
        lambda: nn.autocast(device_type="cuda", dtype="bfloat16", enabled=True, cache_enabled=False),
        lambda: nn.autocast(dtype=lm.bfloat16),
    ],
)
def test_blocks_by_torchs_words(block: Any) -> None:
    net, x, seen = nn.Sequential(nn.Linear(3, 2)), lm.ones((4, 3)), list[Any]()
    net[0].register_forward_hook(lambda m, x, y: seen.append(y.dtype))
    with block():
        assert net(x).dtype == lm.float32
        with nn.autocast("cpu", enabled=False):
            net(x)
        with nn.autocast("cpu", lm.float32):
            net(x)
    assert seen == [lm.bfloat16, lm.float32, lm.float32]


def test_blocks_say_what_they_take() -> None:
    for block, error in (
        (lambda: nn.autocast("bf16", lm.bfloat16), "say the same"),
        (lambda: nn.autocast("cuda", lm.float16), r"train_step\(precision='fp16'\) scales"),
        (lambda: nn.autocast(dtype=lm.int32), "dtype must be bfloat16 or float32, got int32"),
    ):
        with pytest.raises(ValueError, match=error), block():
            pass
