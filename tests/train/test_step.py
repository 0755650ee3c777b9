"""The compiled training step: it does what a loop of eager calls does, in every precision, on shared state."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.tensors import array_spec
from tests.helpers.steps import BACKENDS, IMAGES, LABELS, make, regression, small_net, weights


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "optimizer", [optim.SGD(0.1, 0.9, weight_decay=0.01), optim.AdamW(0.01)], ids=["sgd", "adamw"]
)
def test_equals_a_loop_of_eager_calls(backend: str, optimizer: optim.Optimizer) -> None:
    net, eager = small_net(), small_net()
    step = make(net, optimizer, backend=backend)
    names = [n for n, _ in eager.named_parameters()]
    params: list[Any] = list(eager.parameters())
    states = [optimizer.init(p) for p in params]

    def loss(*values: Any) -> Any:
        outputs = nn.functional_call(eager, dict(zip(names, values, strict=True)), IMAGES)
        return ops.cross_entropy(outputs, LABELS)

    for number in range(3):
        expected, grads = lm.value_and_grad(loss, range(len(params)))(*params)
        rate = np.float32(optimizer.rate(number))
        pairs = [optimizer.update(*a, rate) for a in zip(params, grads, states, strict=True)]
        params, states = [p for p, _ in pairs], [s for _, s in pairs]
        found = step(IMAGES, LABELS)
        assert found.shape == ()
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for name, p in zip(names, params, strict=True):
        np.testing.assert_allclose(weights(net)[name], p.numpy(), rtol=1e-4, atol=1e-6)
    assert step.number == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp64", "bf16", "fp16"])
@pytest.mark.feature("B017")
def test_loss_falls_in_every_precision(backend: str, precision: str) -> None:
    net = small_net(0.1)
    step = make(net, optim.SGD(0.05, 0.9), backend=backend, precision=precision)
    losses = [step(IMAGES, LABELS).item() for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    assert step.correct is not None
    assert step.correct.item() >= 7
    master = "float64" if precision == "fp64" else "float32"
    assert {p.dtype.name for p in net.parameters()} == {master}
    text = str(step.executable.graph)
    short = {"bf16": "bf16[", "fp16": "f16["}.get(precision)
    assert short is None or f"{short}8,4,6,6]" in text


@pytest.mark.parametrize(("precision", "kept"), [(None, "float64"), ("fp64", "float64"), ("fp32", "float32")])
def test_a_network_in_float64_stays_so_unless_another_precision_is_asked_for(
    precision: Any, kept: str
) -> None:
    net = small_net().double()
    step = make(net, optim.SGD(0.1, 0.9), precision=precision)
    assert step(IMAGES, LABELS).dtype.name == kept
    assert {p.dtype.name for p in net.parameters()} == {kept}
    assert str(make(small_net(), optim.SGD(0.1)).precision) == "fp32"


@pytest.mark.feature("B017")
def test_precisions_agree_about_the_first_loss() -> None:
    losses = {
        p: make(small_net(), optim.SGD(0.1), precision=p)(IMAGES, LABELS).item() for p in lm.spec.PRECISIONS
    }
    assert losses["fp32"] == pytest.approx(losses["fp64"], rel=1e-6)
    for name, tolerance in {"tf32": 1e-2, "bf16": 2e-2, "fp16": 2e-3}.items():
        assert losses[name] == pytest.approx(losses["fp64"], rel=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_loss_of_the_samples_that_a_mask_selects(precision: str) -> None:
    """A program for each number of samples; a step that is recorded for no batch has no number."""

    def loss(outputs: Any, targets: Any) -> Any:
        labels, mask = targets
        return ops.cross_entropy(outputs[mask], labels[mask])

    step = lm.train_step(small_net(), loss, optim.SGD(0.1), precision=precision)
    alone = lm.train_step(small_net(), ops.cross_entropy, optim.SGD(0.1), precision=precision)
    mask = np.ones(len(LABELS), bool)
    for kept in ([0, 2, 3], [1, 2, 4], [5], [0, 1, 2, 3, 4, 5]):
        mask[:] = False
        mask[kept] = True
        assert step(IMAGES, (LABELS, mask)).item() == pytest.approx(
            alone(IMAGES[mask], LABELS[mask]).item(), rel=1e-4 if precision == "fp32" else 1e-2
        )
    assert len(step._programs) == 3
    with pytest.raises(TypeError, match="the shape of the result depends on the numbers in the mask"):
        lm.train_step(small_net(), loss, optim.SGD(0.1)).program(
            array_spec(IMAGES), (array_spec(LABELS), array_spec(mask))
        )


def test_one_program_per_shape_on_one_state() -> None:
    net, other = small_net(), small_net()
    step, split = make(net, optim.SGD(0.1, 0.9), backend="cpu"), make(other, optim.SGD(0.1, 0.9))
    with pytest.raises(RuntimeError, match="nothing is compiled yet"):
        _ = step.executable
    for size in (8, 4, 8, 4):
        step(IMAGES[:size], LABELS[:size])
        split(IMAGES[:size], LABELS[:size])
    assert len(step._programs) == 2
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(other)[name], rtol=1e-4, atol=1e-6)


def test_masks_differ_from_step_to_step_and_repeat_with_the_seed() -> None:
    def run(backend: str) -> list[float]:
        net = small_net(0.5)
        step = make(net, optim.SGD(0.0), backend=backend)
        return [step(IMAGES, LABELS).item() for _ in range(4)]

    first = run("reference")
    assert len(set(first)) == 4  # the weights stand still, the masks do not
    assert run("reference") == first
    np.testing.assert_allclose(run("cpu"), first, rtol=1e-5)  # the same masks on every backend


def test_the_schedule_needs_no_second_program() -> None:
    step = make(small_net(), optim.SGD(optim.schedule.step(0.1, 1, gamma=0.0)))
    step(IMAGES, LABELS)
    before = weights(step.net)
    step(IMAGES, LABELS)  # rate 0
    assert len(step._programs) == 1
    for name, value in weights(step.net).items():
        np.testing.assert_array_equal(value, before[name])


def test_buffers_are_updated_in_place() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            self.inner = nn.Linear(2, 2)
            self.register_buffer("steps", np.zeros((), np.float32))
            self.register_buffer("fixed", np.ones(2, np.float32))

        def forward(self, x: Any) -> Any:
            self.steps = self.steps + 1.0
            return self.inner(x) * self.fixed

    net = Counting()
    step = make(net, optim.SGD(0.1), backend="cpu")
    for _ in range(3):
        step(np.ones((2, 2), np.float32), np.array([0, 1]))
    assert net.steps.item() == 3.0
    assert net.fixed.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("make_step", "error", "message"),
    [
        (lambda: make(nn.ReLU(), optim.SGD(0.1)), ValueError, "ReLU has no parameters"),
        (lambda: make(nn.LazyLinear(3), optim.SGD(0.1)), ValueError, "no parameters yet: call it once"),
        (
            lambda: make(small_net(), optim.SGD(0.1), precision="fp8"),
            ValueError,
            "precision must be one of fp64",
        ),
        (lambda: make(small_net(), optim.SGD(0.1), clip_norm=0.0), ValueError, "clip_norm must be positive"),
        (lambda: make(small_net(), optim.SGD(0.1), device="tpu"), ValueError, "device: expected 'cpu'"),
        (lambda: make(small_net(), optim.SGD(0.1))(IMAGES, LABELS[:4]), lm.ShapeError, "cross_entropy"),
        (lambda: make(small_net(), optim.SGD(0.1))(IMAGES[:, 0, 0], LABELS), lm.ShapeError, "conv2d"),
    ],
)
def test_bad_arguments_are_named(make_step: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_step()


def test_the_mode_of_the_modules_is_left_alone() -> None:
    net = small_net(0.5).eval()
    make(net, optim.SGD(0.0))(IMAGES, LABELS)
    assert not any(m.training for m in net.modules())


def test_module_modes_belong_to_steps() -> None:
    """A batch norm in eval() keeps its statistics; switched on, the step learns of it."""
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    net[0].eval()
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(lr=0.0), device="cpu")
    x, y = 5 + np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32), np.zeros(8, np.int64)
    step(x, y)
    assert net[0].running_mean.tolist() == [0, 0, 0]
    net[0].train()
    step(x, y)
    assert min(net[0].running_mean.tolist()) > 0.2


@pytest.mark.parametrize("name", ["net", "loss_fn", "optimizer"])
def test_what_a_step_is_compiled_with_cannot_be_set(name: str) -> None:
    step = make(regression(), optim.SGD(0.1))
    held = getattr(step, name)
    with pytest.raises(
        AttributeError, match=f"{name} is compiled into the step and cannot be set; make a new step"
    ):
        setattr(step, name, regression())
    assert getattr(step, name) is held


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Any, labels: Any) -> Any:
        return {"loss": ops.cross_entropy(self.layer(x), labels)}


def test_a_network_that_gives_its_own_loss_takes_no_targets() -> None:
    lm.manual_seed(0)
    net = OwnLoss()
    batches = [{"x": np.eye(3, dtype=np.float32), "labels": np.array([0, 1, 1])}] * 4
    step = lm.train_step(net, lambda outputs, targets: outputs["loss"], optim.SGD(0.5))
    losses = [step(batch).item() for batch in batches] + [step(batches[0], None).item()]
    assert losses == sorted(losses, reverse=True)
    history = lm.fit(step, batches, 2, validation=batches, progress=False)
    assert history.epochs[-1].loss < losses[-1]
    assert history.epochs[-1].validation.loss < history.epochs[-1].loss
    with pytest.raises(ValueError, match="and no targets have no accuracy"):
        lm.evaluate(net, batches)


def test_a_step_opens_its_backend_when_it_is_made() -> None:
    """Not in the first step."""
    with pytest.raises(ValueError, match="unknown backend 'nowhere'"):
        make(nn.Linear(2, 2), optim.SGD(0.1), backend="nowhere")


class Picture(nn.Module):
    """Its parameter is what is looked for."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(lm.ones(1, 3))

    def forward(self) -> Any:
        return self.weight


@pytest.mark.parametrize("inputs", [(), {}])
def test_a_network_without_inputs(inputs: Any) -> None:
    target = np.array([[1.0, 2.0, 3.0]], np.float32)
    step = lm.train_step(Picture(), ops.mse_loss, optim.SGD(1.5), device="cpu")
    assert [step(inputs, target).item() for _ in range(2)] == pytest.approx([5 / 3, 0])
    alone = lm.train_step(Picture(), lambda y, _: ops.mean(y * y), optim.SGD(0.75), device="cpu")
    assert [alone(inputs).item() for _ in range(2)] == pytest.approx([1, 0.25])
    assert lm.fit(step, [(inputs, target)], 1, progress=False).epochs[-1].loss < 1e-6
    with pytest.raises(TypeError, match="train_step: inputs: there is no array in None"):
        step(None)
