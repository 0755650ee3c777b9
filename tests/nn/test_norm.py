"""Normalization layers against PyTorch's over two training steps: values, gradients, states, keys, text."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import value_and_grad
from lamina.train import train_step
from tests.helpers.nn import GOLDEN_FILES
from tests.helpers.nn.make_golden_norm import NORMS

GOLDEN = np.load(GOLDEN_FILES / "golden_norm.npz")
IDS = [f"{name}{args}{options}".replace(" ", "") for name, args, options, _ in NORMS]
CLOSE = {"rtol": 3e-5, "atol": 5e-6}


def stored(prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): GOLDEN[k] for k in GOLDEN.files if k.startswith(prefix)}


def layer_at(index: int) -> nn.Module:
    name, args, options, _ = NORMS[index]
    layer = getattr(nn, name)(*args, **options)
    layer.load_state_dict(stored(f"{index}/before/"))  # strict: the keys are torch's
    return layer


@pytest.mark.feature("F059", "F060", "F095")
@pytest.mark.parametrize("index", range(len(NORMS)), ids=IDS)
def test_two_training_steps_and_inference(index: int) -> None:
    layer = layer_at(index)
    for step in range(2):
        np.testing.assert_allclose(
            layer(GOLDEN[f"{index}/{step}/x"]).numpy(), GOLDEN[f"{index}/{step}/y"], **CLOSE
        )
    state = layer.state_dict()
    for key, value in stored(f"{index}/after/").items():
        np.testing.assert_allclose(state[key].numpy(), value, err_msg=key, **CLOSE)
        assert state[key].dtype.name == str(value.dtype)
    y = layer.eval()(GOLDEN[f"{index}/1/x"])
    np.testing.assert_allclose(y.numpy(), GOLDEN[f"{index}/inference"], **CLOSE)


@pytest.mark.feature("F059", "F060", "F095")
@pytest.mark.parametrize("index", range(len(NORMS)), ids=IDS)
def test_gradients(index: int) -> None:
    layer, x, g = layer_at(index), GOLDEN[f"{index}/0/x"], GOLDEN[f"{index}/0/g"]
    names = [n for n, _ in layer.named_parameters()]
    states = dict(layer.named_buffers())

    def loss(x: Any, *parameters: Any) -> Any:
        given = {**dict(zip(names, parameters, strict=True)), **states}
        return ops.sum(nn.functional_call(layer, given, x) * g)

    values = [p for _, p in layer.named_parameters()]
    _, found = value_and_grad(loss, range(1 + len(names)))(x, *values)
    for name, gradient in zip(["x", *names], found, strict=True):
        np.testing.assert_allclose(gradient.numpy(), GOLDEN[f"{index}/0/grad/{name}"], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("index", range(len(NORMS)), ids=IDS)
def test_prints_like_torch(index: int) -> None:
    assert repr(layer_at(index)) == str(GOLDEN[f"{index}/repr"])


def network() -> nn.Module:
    nn.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def batches() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(5)
    return [(rng.standard_normal((6, 1, 8, 8)).astype(np.float32), rng.integers(0, 4, 6)) for _ in range(3)]


@pytest.mark.feature("F060")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_compiled_step_keeps_running_statistics(precision: str) -> None:
    """They are updated in place by the step, in float32 whatever the step computes in, as eager calls update them."""
    net, plain = network(), network()
    step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.0), device="cpu", precision=precision)
    held = net[1].state_dict()["running_mean"]
    for images, labels in batches():
        step(images, labels)
        plain(images)
    assert held is net[1].state_dict()["running_mean"]
    assert int(net[1].num_batches_tracked.numpy()) == 3
    tolerance = 1e-5 if precision == "fp32" else 2e-2
    for name in ("running_mean", "running_var"):
        found, wanted = (getattr(n[1], name) for n in (net, plain))
        assert found.dtype.name == "float32"
        assert np.abs(wanted.numpy() - (name == "running_var")).max() > 1e-3
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=tolerance, atol=tolerance)
    dtypes = {
        str(v.dtype) for n in step.executable.graph.nodes if n.op.name == "batch_norm" for v in n.inputs[1:5]
    }
    assert dtypes == {"float32"}


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.InstanceNorm1d])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_no_gradient_goes_through_running_statistics(kind: Any, momentum: float | None) -> None:
    """As in torch, which moves them outside of autograd: also what reads them right after they have moved."""

    class Net(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(lm.ones((3, 1)))
            self.norm = kind(3, affine=False, track_running_stats=True, momentum=momentum)

        def forward(self, x: Any) -> Any:
            self.norm(x * self.scale)
            return ops.sum(self.norm.running_mean) + ops.sum(self.norm.running_var) + 0 * ops.sum(self.scale)

    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    _, grads = value_and_grad(lambda net: net(x))(Net())
    assert (grads["scale"].numpy() == 0).all()


def test_no_gradient_goes_through_statistics_that_a_function_overwrites() -> None:
    def loss(x: Any, mean: Any, var: Any) -> Any:
        return ops.sum(ops.batch_norm(x, mean, var, training=True)) * 0 + ops.sum(mean) + ops.sum(var)

    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    mean, var = lm.zeros((3,)), lm.ones((3,))
    _, gradient = value_and_grad(lambda x: loss(x, mean, var))(lm.tensor(x))
    assert (gradient.numpy() == 0).all()


def test_training_learns_and_inference_uses_the_running_statistics() -> None:
    net = network()
    step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.1), device="cpu")
    images, labels = batches()[0]
    losses = [step(images, labels).item() for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]
    single = net.eval()(images[:1]).numpy()
    np.testing.assert_allclose(single, net(images).numpy()[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.feature("F060", "F061", "F062")
def test_modes_relu_and_residual() -> None:
    rng = np.random.default_rng(8)
    x, z = (rng.standard_normal((4, 3, 2, 5)).astype(np.float32) for _ in range(2))
    w, b = (rng.standard_normal((3, 2, 5)).astype(np.float32) for _ in range(2))
    y, mean, var = ops.batch_norm_with_statistics(
        x, np.zeros((3, 2, 5), np.float32), np.ones((3, 2, 5), np.float32), w, b, True, mode="per_activation"
    )
    apart = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)
    np.testing.assert_allclose(y.numpy(), apart * w + b, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.numpy(), 0.1 * x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-5)
    plain = ops.batch_norm_with_statistics(x, None, None, training=True)[0].numpy()
    fused = ops.batch_norm_with_statistics(
        x, None, None, training=True, relu=True, residual=z, mode="spatial_persistent"
    )[0]
    np.testing.assert_allclose(fused.numpy(), np.maximum(plain + z, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: nn.BatchNorm2d(4)(x),
            r"BatchNorm2d: needs an input of rank 4 with 4 channels, got f32\[2,3,5\]",
        ),
        (
            lambda x: ops.batch_norm_with_statistics(x, None, None),
            "inference needs running_mean and running_var",
        ),
        (
            lambda x: ops.batch_norm_with_statistics(x, None, None, training=True, mode="channel"),
            "mode must be one of 'spatial'",
        ),
        (
            lambda x: ops.batch_norm_with_statistics(x[:1, :, :1], None, None, training=True),
            "more than one value per channel",
        ),
        (lambda x: nn.GroupNorm(2, 3), "num_groups=2 must divide num_channels=3"),
        (
            lambda x: ops.layer_norm(x, 4),
            r"normalized_shape \(4,\) must be the last sizes of input f32\[2,3,5\]",
        ),
        (lambda x: ops.group_norm(x, 2), "C a multiple of groups=2"),
        (lambda x: nn.InstanceNorm1d(3)(x[:, :, :1]), "more than one spatial element"),
        (lambda x: nn.LocalResponseNorm(0), "size must be at least 1"),
        (lambda x: nn.BatchNorm1d(0), "num_features must be at least 1"),
    ],
)
def test_errors_name_what_is_wrong(make: Any, message: str) -> None:
    with pytest.raises((ValueError, lm.ShapeError), match=message):
        make(lm.tensor(np.zeros((2, 3, 5), np.float32)))


def test_without_a_batch_axis() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    layer = nn.InstanceNorm2d(3)
    np.testing.assert_array_equal(layer(x).numpy(), layer(x[None]).numpy()[0])


@pytest.mark.torch
def test_tracking_is_switched_as_in_torch() -> None:
    import torch

    x = np.random.default_rng(2).standard_normal((6, 3)).astype(np.float32)
    for made_with, then in ((True, False), (False, True)):
        ours, theirs = nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
        if not made_with:
            ours = nn.BatchNorm1d(3, track_running_stats=False)
            theirs = torch.nn.BatchNorm1d(3, track_running_stats=False)
        ours(x), theirs(torch.from_numpy(x))
        ours.track_running_stats = theirs.track_running_stats = then
        run = lm.jit(lambda x, net=ours: net(x))
        for training in (True, False, True, False):
            ours.train(training), theirs.train(training)
            wanted = theirs(torch.from_numpy(x * 3)).detach().numpy()
            np.testing.assert_allclose(ours(x * 3).numpy(), wanted, 1e-5, 1e-5)
            np.testing.assert_allclose(run(x * 3).numpy(), wanted, 1e-5, 1e-5)
        for name, held in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[name].numpy(), held.numpy(), 1e-5)


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"bias": False}, {"track_running_stats": False}])
def test_batch_norm_is_reset(options: dict[str, Any]) -> None:
    net = nn.BatchNorm1d(3, **options)
    new = {name: x.numpy().copy() for name, x in net.state_dict().items()}
    held = dict(net.named_parameters()) | dict(net.named_buffers())
    for reset in (net.reset_running_stats, net.reset_parameters):
        net(np.random.default_rng(3).standard_normal((6, 3)).astype(np.float32))
        for p in net.parameters():
            p.fill_(5)
        reset()
        for name, x in net.named_buffers():
            np.testing.assert_array_equal(x.numpy(), new[name])
    for name, x in net.state_dict().items():
        np.testing.assert_array_equal(x.numpy(), new[name])
    assert all(x is held[name] for name, x in (*net.named_parameters(), *net.named_buffers()))


@pytest.mark.parametrize("make", [lambda: nn.LayerNorm(3), lambda: nn.GroupNorm(1, 3), lambda: nn.RMSNorm(3)])
def test_norms_without_statistics_are_reset(make: Any) -> None:
    net = make()
    for p in net.parameters():
        p.fill_(5)
    net.reset_parameters()
    for name, x in net.named_parameters():
        assert x.tolist() == [float(name == "weight")] * 3


def test_batch_norm_over_devices_is_batch_norm_on_one() -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5, 5)).astype(np.float32)
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.BatchNorm2d(3)))
    wanted = net(x).numpy()
    own = net[1][0]  # type: ignore[index]
    assert nn.SyncBatchNorm.convert_sync_batchnorm(net) is net
    made = net[1][0]  # type: ignore[index]
    assert (type(made), made.weight is own.weight) == (nn.SyncBatchNorm, True)
    np.testing.assert_array_equal(net(x).numpy(), wanted)
    assert made.num_batches_tracked.item() == 2
    assert nn.SyncBatchNorm(3)(x[:, :, 0, 0]).shape == (4, 3)
    with pytest.raises(TypeError, match="SyncBatchNorm: process_group must be"):
        nn.SyncBatchNorm(3, process_group="world")  # type: ignore[arg-type]


def test_cross_map_lrn_keeps_the_first_channel() -> None:
    x = np.array([1.0, 2, 3, 4, 5]).reshape(1, 5, 1, 1)
    found = nn.CrossMapLRN2d(3, alpha=3.0, beta=1.0, k=1.0)(x).numpy().ravel()
    sums = [1 + 4, 1 + 4 + 9, 1 + 4 + 9 + 16, 1 + 9 + 16 + 25, 1 + 16 + 25]
    np.testing.assert_allclose(
        found, [v / (1 + s) for v, s in zip([1, 2, 3, 4, 5], sums, strict=True)], rtol=1e-12
    )
    with pytest.raises(lm.ShapeError, match=r"CrossMapLRN2d: needs an input \[N, C, H, W\], got f32\[2,3\]"):
        nn.CrossMapLRN2d(3)(lm.ones((2, 3)))


@pytest.mark.torch
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_cross_map_lrn_as_torch(size: int) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 7, 3, 4)).astype(np.float32)
    wanted = torch.nn.CrossMapLRN2d(size, 0.5, 0.6, 2.0)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(nn.CrossMapLRN2d(size, 0.5, 0.6, 2.0)(x).numpy(), wanted, rtol=1e-5)


def test_instance_norm_that_keeps_nothing_takes_any_channels() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5, 7)).astype(np.float32)
    np.testing.assert_array_equal(nn.InstanceNorm1d(3)(x).numpy(), nn.InstanceNorm1d(5)(x).numpy())
    for options in ({"affine": True}, {"track_running_stats": True}):
        with pytest.raises(lm.ShapeError, match="InstanceNorm1d: needs an input of rank 3 with 3 channels"):
            nn.InstanceNorm1d(3, **options)(x)


RANKS: dict[str, tuple[int, ...]] = {
    "BatchNorm1d": (2, 3), "BatchNorm2d": (4,), "BatchNorm3d": (5,), "SyncBatchNorm": (2, 3, 4, 5),
    "InstanceNorm1d": (2, 3), "InstanceNorm2d": (3, 4), "InstanceNorm3d": (4, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_each_layer_takes_inputs_of_its_ranks_alone(name: str) -> None:
    """The statistics of a batch are over all but the channels, those of an instance over the rest of each channel."""
    for rank in range(1, 7):
        layer = getattr(nn, name)(3)
        x = np.random.default_rng(rank).standard_normal((4, 3, 2, 2, 2, 2)[:rank])
        batched = "Batch" in name or rank == RANKS[name][-1]
        x = (x if batched or rank == 1 else x[:3]).astype(np.float32)
        if rank not in RANKS[name]:
            with pytest.raises(lm.ShapeError, match=f"{name}: needs an input of rank .* with 3 channels"):
                layer(x)
            continue
        first = 2 if batched else 1
        axes = (*((0,) if "Batch" in name else ()), *range(first, rank))
        wide = x.astype(np.float64)
        wanted = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
        np.testing.assert_allclose(layer(x).numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 4, 4), (2, 3, 0)])
def test_batches_without_elements_leave_running_statistics(shape: tuple[int, ...]) -> None:
    """As in PyTorch: nothing comes out, parameters get no gradient, the batch counts."""
    layer = nn.BatchNorm2d(3) if len(shape) == 4 else nn.BatchNorm1d(3)
    layer.running_mean.fill_(2)
    x = np.zeros(shape, np.float32)
    loss = lm.value_and_grad(lambda layer, x: ops.sum(layer(x)))
    for count, way in enumerate((loss, lm.jit(loss)), 1):
        value, grads = way(layer, x)
        assert value.item() == 0
        assert all((g.numpy() == 0).all() for g in grads.values())
        assert layer(lm.tensor(x)).shape == shape
        np.testing.assert_array_equal(layer.running_mean.numpy(), 2)
        np.testing.assert_array_equal(layer.running_var.numpy(), 1)
        assert layer.num_batches_tracked.item() == 2 * count
