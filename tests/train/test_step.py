"""The compiled training step: it does what a loop of eager calls does, in every precision, on shared state."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Predictor
from lamina.runtime import NoGpuError
from lamina.spec import Spec, float32
from lamina.train import Step
from lamina.train.scaling import START
from tests.helpers.planned import H200

BACKENDS = ["reference", "cpu"]
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 8)


def small_net(dropout: float = 0.0) -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(36, 4),
    )


def make(net: nn.Module, optimizer: optim.Optimizer, **kwargs: Any) -> Step:
    kwargs = {"device": "cpu", "backend": "reference", **kwargs}
    return lm.train_step(net, ops.cross_entropy, optimizer, **kwargs)


def weights(net: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {k: v.numpy().copy() for k, v in net.state_dict().items()}


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
@pytest.mark.parametrize("name", list(lm.spec.PRECISIONS))
def test_activations_are_of_the_precisions_type_and_products_round_to_tf32_in_it_alone(name: str) -> None:
    step = make(small_net(), optim.SGD(0.1), precision=name)
    step(IMAGES, LABELS)
    nodes = step.executable.graph.nodes
    (pooled,) = (n.inputs[0] for n in nodes if n.op.name == "max_pool")
    short = {"fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}.get(name, "float32")
    assert pooled.dtype.name == short
    assert {n.policy.tf32 for n in nodes} == {name == "tf32"}
    assert bool(step.state.scale) == (name == "fp16")


@pytest.mark.feature("B017")
def test_precisions_agree_about_the_first_loss() -> None:
    losses = {
        p: make(small_net(), optim.SGD(0.1), precision=p)(IMAGES, LABELS).item() for p in lm.spec.PRECISIONS
    }
    assert losses["fp32"] == pytest.approx(losses["fp64"], rel=1e-6)
    for name, tolerance in {"tf32": 1e-2, "bf16": 2e-2, "fp16": 2e-3}.items():
        assert losses[name] == pytest.approx(losses["fp64"], rel=tolerance)


@pytest.mark.feature("B017")
def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    net = small_net()
    step = make(net, optim.SGD(0.1, 0.9), precision="fp16")
    step(IMAGES, LABELS)
    before, states = weights(net), {k: v.numpy().copy() for k, v in step.state.optimizer.items()}
    scale, good = step.state.scale["scale"].numpy()
    assert (scale, good) == (START, 1.0)
    step(IMAGES * 1e7, LABELS)  # overflows float16
    assert step.state.scale["scale"].tolist() == [START / 2, 0.0]
    for name, value in before.items():
        np.testing.assert_array_equal(weights(net)[name], value)
    for name, value in states.items():
        np.testing.assert_array_equal(step.state.optimizer[name].numpy(), value)
    assert np.isfinite(step(IMAGES, LABELS).item())
    assert not np.array_equal(weights(net)["0.weight"], before["0.weight"])


def test_the_scale_grows_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.train.scaling.INTERVAL", 3)
    step = make(small_net(), optim.SGD(0.01), precision="fp16")
    for _ in range(4):
        step(IMAGES, LABELS)
    assert step.state.scale["scale"].tolist() == [2 * START, 1.0]


def test_the_parameters_keep_their_identity() -> None:
    net = small_net()
    held = dict(net.named_parameters())
    step = make(net, optim.SGD(0.1), backend="cpu")
    step(IMAGES, LABELS)
    assert all(p is held[n] for n, p in net.named_parameters())
    assert net(IMAGES).shape == (8, 4)  # eager calls see the trained values, whatever their layout


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


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clipping_bounds_the_common_norm(limit: float) -> None:
    net, plain = small_net(), small_net()
    before = weights(net)
    make(net, optim.SGD(1.0), clip_norm=limit)(IMAGES, LABELS)
    make(plain, optim.SGD(1.0))(IMAGES, LABELS)
    moved = {k: before[k] - v for k, v in weights(net).items()}
    free = {k: before[k] - v for k, v in weights(plain).items()}
    norm = np.sqrt(sum(float((v**2).sum()) for v in moved.values()))
    whole = np.sqrt(sum(float((v**2).sum()) for v in free.values()))
    assert norm == pytest.approx(min(limit, whole), rel=1e-3)
    for name in moved:  # the direction stays
        np.testing.assert_allclose(moved[name] * whole, free[name] * norm, rtol=1e-2, atol=1e-4 * norm)


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


def test_other_losses_and_labels() -> None:
    net = nn.Linear(3, 2)
    step = lm.train_step(net, nn.MSELoss(), optim.SGD(0.1), device="cpu", backend="reference")
    x, target = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    losses = [step(x, target).item() for _ in range(5)]
    assert losses[-1] < losses[0]
    assert step.correct is None


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


def test_a_loss_that_is_no_scalar_is_named() -> None:
    step = lm.train_step(small_net(), lambda y, t: y, optim.SGD(0.1), device="cpu", backend="reference")
    with pytest.raises(ValueError, match=r"loss_fn must give a scalar, it gave shape \(8, 4\)"):
        step(IMAGES, LABELS)


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


class Two(nn.Module):
    """Two inputs of one shape, and a tuple and a dict as outputs."""

    def __init__(self) -> None:
        self.a = nn.Linear(2, 1)

    def forward(self, x: Any, z: Any) -> Any:
        return self.a(x + 2.0 * z), {"x": x}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_several_inputs_outputs_and_targets(backend: str, kind: Any) -> None:
    nn.manual_seed(0)
    x, z, t = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 2), (3, 2), (3, 1)))

    def loss(outputs: Any, targets: Any) -> Any:
        y, extra = outputs
        return ops.mean(ops.square(y - targets["y"])) + ops.mean(extra["x"] * targets["more"][0])

    net = Two()
    weight, bias = (p.numpy().copy() for p in net.parameters())
    step = lm.train_step(net, loss, optim.SGD(0.1), device="cpu", backend=backend)
    found = step({"x": x, "z": z} if kind is dict else kind((x, z)), {"y": t, "more": [x]}).item()
    expected = np.square((x + 2 * z) @ weight.T + bias - t).mean() + np.square(x).mean()
    assert found == pytest.approx(expected, rel=1e-5)
    assert step.correct is None
    names = [v.name for v in step.executable.graph.inputs]
    assert ("inputs['x']" if kind is dict else "inputs[0]") in names
    assert "targets['more'][0]" in names


def test_integers_reach_the_network_as_they_are() -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    step = make(net, optim.SGD(0.1), backend="cpu", precision="bf16")
    assert np.isfinite(step(RNG.integers(0, 10, (5, 3)), RNG.integers(0, 3, 5)).item())


def test_what_may_be_one_array_or_several_is_refused() -> None:
    step = make(nn.Linear(2, 3), optim.SGD(0.1))
    assert np.isfinite(step([[1.0, 2.0], [3.0, 4.0]], [0, 1]).item())  # nested lists of numbers are arrays
    with pytest.raises(TypeError, match=r"train_step: targets: \(0, 1\) may be one array or several"):
        step(np.ones((2, 2), np.float32), (0, 1))


def test_a_state_is_pickled_and_copied_and_a_step_says_why_not() -> None:
    step = make(small_net(0.1), optim.SGD(0.1, 0.9), backend="cpu")
    step(IMAGES, LABELS)
    expected = {name: x.numpy().copy() for name, x in step.state.named().items()}
    for state in (copy.deepcopy(step.state), pickle.loads(pickle.dumps(step.state))):
        assert state.random["0"] is not step.state.random["0"]
        for name, x in state.named().items():
            np.testing.assert_array_equal(x.numpy(), expected[name], strict=True)
    for compiled in (step, step.executable, Predictor(step.net, device="cpu")):
        with pytest.raises(TypeError, match="cannot be pickled or copied; pickle"):
            pickle.dumps(compiled)
        with pytest.raises(TypeError, match="cannot be pickled or copied; pickle"):
            copy.deepcopy(compiled)


def test_null_backend_plans_without_running() -> None:
    step = make(nn.AlexNet(), optim.SGD(0.1, 0.9), backend="null")
    program = step.program(lm.Spec((1024, 1, 224, 224), lm.float32), lm.Spec((1024,), lm.int64))
    assert 0 < program.executable.peak_bytes < program.executable.unplanned_bytes


def regression() -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


POINTS = RNG.standard_normal((8, 3)).astype(np.float32)
WANTED = RNG.standard_normal((8, 2)).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.feature("B028")
def test_accumulation_updates_by_the_mean_of_the_group(backend: str, precision: str) -> None:
    net, whole = regression(), regression()
    options: dict[str, Any] = {"device": "cpu", "backend": backend, "precision": precision}
    rate = lambda step: 0.2 / (step + 1)  # noqa: E731
    step = lm.train_step(net, ops.mse_loss, optim.SGD(rate, 0.9), accumulate=2, clip_norm=0.5, **options)
    other = lm.train_step(whole, ops.mse_loss, optim.SGD(rate, 0.9), clip_norm=0.5, **options)
    for _ in range(2):
        before = weights(net)
        step(POINTS[:4], WANTED[:4])
        assert step.waiting == 1
        for name, value in before.items():
            np.testing.assert_array_equal(weights(net)[name], value)
        step(POINTS[4:], WANTED[4:])
        other(POINTS, WANTED)
        assert (step.waiting, step.number) == (0, other.number)
    step(POINTS[:4], WANTED[:4], update=True)  # a short group
    other(POINTS[:4], WANTED[:4])
    assert (step.waiting, step.number) == (0, 3)
    tolerance = 1e-5 if precision == "fp32" else 5e-3
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(whole)[name], rtol=tolerance, atol=tolerance)
    assert len(step._programs) == 2


@pytest.mark.feature("B028")
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_of_a_group_leave_the_state_where_it_lies(backend: str) -> None:
    """The one that gathers does not touch the optimizer's state, which lies as the one that updates wants it."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.Flatten()
    )
    step = lm.train_step(
        net,
        lambda y, _: ops.mean(ops.square(y)),
        optim.Adam(1e-3),
        accumulate=2,
        device="cpu",
        backend=backend,
    )
    x, labels = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32), np.zeros(2, np.int64)
    lies: list[dict[str, int]] = []
    for _ in range(8):
        step(x, labels)
        lies.append({name: id(value.buffer) for name, value in step.state.named().items()})
        for executable in (program.executable for program in step._programs):
            held = [executable._shared.get(slot) for slot in executable.program.inputs]
            assert {id(b) for b in held if b is not None} <= {
                *lies[-1].values()
            }  # not where state lay before
    assert len(step._programs) == 2
    assert lies[2:] == [lies[1]] * 6


def test_an_overflow_is_left_out_of_the_group() -> None:
    net, alone = regression(), regression()
    options: dict[str, Any] = {"device": "cpu", "precision": "fp16"}
    step = lm.train_step(net, ops.mse_loss, optim.SGD(0.1), accumulate=2, **options)
    other = lm.train_step(alone, ops.mse_loss, optim.SGD(0.1), **options)
    step(POINTS[:4] * 1e8, WANTED[:4])
    step(POINTS[4:], WANTED[4:])
    other(POINTS[4:], WANTED[4:])
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(alone)[name], rtol=1e-2, atol=1e-3)


def test_a_group_that_was_begun_is_in_the_checkpoint(tmp_path: Any) -> None:
    def make_step() -> tuple[nn.Module, Step]:
        net = regression()
        return net, lm.train_step(net, ops.mse_loss, optim.SGD(0.1), accumulate=3, device="cpu")

    first, step = make_step()
    for part in (POINTS[:2], POINTS[2:4]):
        step(part, WANTED[:2])
    lm.train.save_checkpoint(tmp_path / "c", step)
    second, again = make_step()
    lm.train.load_checkpoint(tmp_path / "c", again)
    assert again.waiting == 2
    for each in (step, again):
        each(POINTS[4:6], WANTED[:2])
        assert each.number == 1
    for name, value in weights(first).items():
        np.testing.assert_array_equal(value, weights(second)[name])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.feature("B028")
def test_groups_in_a_step(backend: str) -> None:
    net, twin = regression(), regression()
    groups: list[dict[str, Any]] = [
        {"params": "0.weight", "frozen": True},
        {"params": lambda name, p: p.ndim < 2, "lr": lambda step: 0.5 / (step + 1), "momentum": 0.0},
    ]
    optimizer = optim.SGD(lr=0.1, momentum=0.9).over(net, groups)
    eager = optim.SGD(lr=0.1, momentum=0.9).over(twin, groups)
    step = lm.train_step(net, ops.mse_loss, optimizer, device="cpu", backend=backend, keep_grads=True)
    for _ in range(3):
        step(POINTS, WANTED)
        grads = lm.grad(lambda net: ops.mse_loss(net(POINTS), WANTED))(twin)
        eager.step(grads)
        assert step.grads is not None
        assert list(step.grads) == ["0.bias", "2.weight", "2.bias"]
        for name, g in step.grads.items():
            np.testing.assert_allclose(g.numpy(), grads[name].numpy(), rtol=1e-4, atol=1e-6)
    for name, value in weights(net).items():
        np.testing.assert_allclose(value, weights(twin)[name], rtol=1e-5, atol=1e-6)
    assert "0.weight.momentum" not in step.state.optimizer
    assert optimizer.bound.number == step.number == 3
    net.requires_grad_(True)
    step(POINTS, WANTED)
    assert "0.weight.momentum" in step.state.optimizer
    assert not np.array_equal(weights(net)["0.weight"], weights(twin)["0.weight"])


def test_a_frozen_network_costs_no_gradient() -> None:
    def kernels(freeze: bool) -> int:
        net = small_net()
        net[0].requires_grad_(not freeze)
        step = make(net, optim.SGD(0.1), backend="cpu")
        step(IMAGES, LABELS)
        text = str(step.executable.graph)
        assert ("conv_filter_grad" in text) != freeze
        return step.executable.kernels

    assert kernels(True) < kernels(False)


@pytest.mark.feature("B028")
def test_clipping_by_value() -> None:
    net = regression()
    step = lm.train_step(
        net, ops.mse_loss, optim.SGD(1.0), clip_value=0.01, keep_grads=True, device="cpu", backend="cpu"
    )
    before = weights(net)
    step(POINTS, WANTED)
    assert step.grads is not None
    for name, g in step.grads.items():
        assert np.abs(g.numpy()).max() <= np.float32(0.01)
        np.testing.assert_allclose(weights(net)[name], before[name] - g.numpy(), rtol=1e-5, atol=1e-7)
    assert max(np.abs(g.numpy()).max() for g in step.grads.values()) == np.float32(0.01)


@pytest.mark.parametrize("name", ["net", "loss_fn", "optimizer"])
def test_what_a_step_is_compiled_with_cannot_be_set(name: str) -> None:
    step = make(regression(), optim.SGD(0.1))
    held = getattr(step, name)
    with pytest.raises(
        AttributeError, match=f"{name} is compiled into the step and cannot be set; make a new step"
    ):
        setattr(step, name, regression())
    assert getattr(step, name) is held


def test_a_parameter_that_became_another_type_is_named() -> None:
    net = regression()
    step = make(net, optim.SGD(0.1))
    step(POINTS, WANTED)
    net.double()
    for points, wanted in ((POINTS, WANTED), (POINTS[:2], WANTED[:2])):
        with pytest.raises(
            RuntimeError, match=r"0.weight of Sequential is float64, .* fp32, keeps it in float32"
        ):
            step(points, wanted)
    net.float()
    step(POINTS, WANTED)


def test_what_a_step_cannot_train_is_named() -> None:
    net = regression()
    with pytest.raises(ValueError, match="the optimizer trains weight, bias, which Sequential does not have"):
        make(net, optim.SGD(0.1).over(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="accumulate must be an int of at least 1, got 0"):
        make(net, optim.SGD(0.1), accumulate=0)
    step = lm.train_step(net.requires_grad_(False), ops.mse_loss, optim.SGD(0.1), device="cpu")
    with pytest.raises(
        ValueError, match="Sequential has no parameter to train: those of the optimizer are frozen"
    ):
        step(POINTS, WANTED)


def test_a_dict_of_inputs_is_one_argument_where_forward_takes_one() -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(2, 1)

        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"y": self.linear(batch["x"]) * batch["weight"]}

    net = Batched()
    net.linear.weight.fill_(1)
    net.linear.bias.zero_()
    batch = {"x": np.float32([[1, 2]]), "weight": np.float32([[2]])}
    step = lm.train_step(net, lambda y, t: (y["y"] - t["y"]).square().sum(), optim.SGD(0.0), device="cpu")
    assert float(step(batch, {"y": np.float32([[1]])})) == 25
    assert Predictor(net)(batch)["y"].tolist() == [[6]]


# ---- what the loss does not depend on


class Heads(nn.Module):
    """Two heads, of which `task` says the one that is used."""

    task = "first"

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        return self.first(x) if self.task == "first" else self.second(x)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"keep_grads": True}, {"precision": "fp16"}])
def test_a_head_that_is_not_used_is_not_updated(options: Any) -> None:
    lm.manual_seed(0)
    net = Heads()
    step = lm.train_step(net, ops.mse_loss, optim.AdamW(lr=0.1, weight_decay=0.5), **options)
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    for task, other in (("first", net.second), ("second", net.first), ("first", net.second)):
        net.task = task
        kept, used = other.weight.numpy().copy(), getattr(net, task).weight.numpy().copy()
        for _ in range(2):
            step(x, y)
        np.testing.assert_array_equal(other.weight.numpy(), kept)
        assert np.abs(getattr(net, task).weight.numpy() - used).max() > 0


@pytest.mark.parametrize(
    "loss", [lambda o, t: ops.mse_loss(o.detach(), t), lambda o, t: lm.tensor(1.0), lambda o, t: ops.mean(t)]
)
def test_a_loss_that_depends_on_no_parameter_is_an_error(loss: Any) -> None:
    step = lm.train_step(nn.Linear(3, 2), loss, optim.SGD(0.1))
    with pytest.raises(ValueError, match="the loss depends on none of the parameters that are trained"):
        step(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32))


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


class _Branches(nn.Module):
    """One of two layers, as the call has one input or two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Any, other: Any = None) -> Any:
        return self.first(x) if other is None else self.second(other)


def test_what_a_groups_losses_do_not_depend_on_is_left_alone() -> None:
    """Gathered gradients of other calls count, those of groups before do not: as PyTorch's None."""
    net = _Branches()
    optimizer = optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5)
    step = lm.train_step(net, ops.mse_loss, optimizer, accumulate=2, device="cpu")
    x, y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    one, other = x, {"x": x, "other": x}
    for calls, wanted in (
        ((one, one), (True, False)),
        ((other, other), (False, True)),
        ((other, one), (True, True)),
        ((one, other), (True, True)),
        ((one, one), (True, False)),
    ):
        before = [layer.weight.numpy().copy() for layer in (net.first, net.second)]
        for inputs in calls:
            step(inputs, y)
        after = [layer.weight.numpy() for layer in (net.first, net.second)]
        assert tuple(bool(np.any(a != b)) for a, b in zip(after, before, strict=True)) == wanted
    assert len(step._programs) == 6  # each way to gather, and to update with and without the other layer


def test_a_step_opens_its_backend_when_it_is_made() -> None:
    """Not in the first step."""
    with pytest.raises(ValueError, match="unknown backend 'nowhere'"):
        make(nn.Linear(2, 2), optim.SGD(0.1), backend="nowhere")


def test_gradients_of_formulas_that_one_op_computes_are_that_ops() -> None:
    """An RMS norm that is written out trains as the layer does, by its gradient in one op."""

    class Written(nn.Module):
        def __init__(self, *, steps: bool) -> None:
            super().__init__()
            nn.manual_seed(1)
            self.inner, self.outer = nn.Linear(8, 16), nn.Linear(16, 4)
            self.norm, self.steps = nn.RMSNorm(16, eps=1e-6), steps

        def forward(self, x: Any) -> Any:
            x = self.inner(x)
            if not self.steps:
                return self.outer(self.norm(x))
            unit = x * ops.rsqrt(ops.mean(x * x, -1, keepdim=True) + 1e-6)
            return self.outer(self.norm.weight * unit)

    images, losses = RNG.standard_normal((8, 8)).astype(np.float32), []
    for steps in (True, False):
        step = make(Written(steps=steps), optim.SGD(0.1, 0.9))
        losses.append([step(images, LABELS).item() for _ in range(4)])
        found = {node.op.name for node in step.executable.graph.nodes}
        assert {"rms_norm", "rms_norm_grad"} <= found
        assert "rsqrt" not in found
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_step_is_planned_for_a_gpu_that_is_not_there(precision: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    step = lm.train_step(
        net, ops.mse_loss, optim.Adam(lr=0.1), device=H200, precision=precision, accumulate=2
    )
    spec = Spec((3, 4), float32)
    assert step.program(spec, spec).executable.kernels > 0
    assert all(x.device.kind == "cpu" for x in step.state.named().values())
    with pytest.raises(NoGpuError, match="stands for a GPU that is not there"):
        step(np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32))


class Doubling(nn.Module):
    """Branches on a flag among its arguments."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Any, twice: bool = False) -> Any:
        return self.inner(x) * (2.0 if twice else 1.0)


def test_flags_among_inputs_are_pythons_own() -> None:
    net, x = Doubling(), np.ones((4, 3), np.float32)
    step = lm.train_step(net, lambda y, t: ops.mean(y), optim.SGD(lr=0.0), device="cpu")
    found = [step(inputs).item() for inputs in ((x, True), {"x": x, "twice": False}, (x, False), x)]
    np.testing.assert_allclose(found, [2 * found[3], found[3], found[3], found[3]], rtol=1e-6)
    predictor = Predictor(net, device="cpu")
    np.testing.assert_allclose(predictor((x, True)).numpy(), net(x, True).numpy(), rtol=1e-6)
    scores = lm.evaluate(net, [((x, True), np.zeros(4, np.int64))], ops.cross_entropy, device="cpu")
    assert scores.loss == pytest.approx(
        ops.cross_entropy(net(x, True), np.zeros(4, np.int64)).item(), rel=1e-5
    )
