"""8-bit inference: as accurate as float32, from weights as they are, on 8-bit kernels."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.backends.cpu.quantize import adds_in_32_bits
from lamina.infer import Predictor, quantize
from lamina.train import evaluate

Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, list[Batch], list[Batch]]:
    """LeNet after three epochs of digits, batches to calibrate with, and those of the validation split."""
    nn.manual_seed(0)
    net, train = nn.LeNet(), data.digits(32, 28, "train", seed=0, shift=0.5)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.02, 0.9), device="cpu")
    for epoch in range(3):
        for images, labels in train.epoch(epoch):
            step(images, labels)
    seen = [batch for batch, _ in zip(train.epoch(9), range(4), strict=False)]
    return net, seen, list(data.digits(64, 28, "validation").epoch(0))


@pytest.mark.feature("B018")
@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("options", [{}, {"percentile": 99.99}, {"per_channel": False}], ids=str)
@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_within_a_point_of_float32(trained: Any, precision: str, options: Any, backend: str | None) -> None:
    net, seen, validation = trained
    plain = evaluate(net, validation, device="cpu")
    assert plain.accuracy > 0.88
    found = quantize(net, seen, precision=precision, device="cpu", backend=backend, **options)
    assert abs(evaluate(found, validation).accuracy - plain.accuracy) <= 0.01
    assert len(found.ranges) == 5  # two convolutions, three linear layers
    assert min(found.ranges) > 0


@pytest.mark.feature("B018")
def test_layers_run_in_8_bits(trained: Any) -> None:
    net, seen, validation = trained
    images = validation[0][0]
    program = quantize(net, seen, device="cpu").program(lm.tensor(images).spec)
    heads = [str(n.op) for n in program.graph.nodes if "quantized" in str(n.op)]
    assert len(heads) == 5
    assert not any(" conv(" in h or h.startswith(("conv(", "matmul(")) for h in map(str, program.graph.nodes))
    in_8_bits = sum(h.startswith("fused(quantized_matmul") and "quantize(" in h for h in heads)
    assert in_8_bits == (2 if adds_in_32_bits() else 0)


def test_larger_numbers_than_a_percentile_saturate(trained: Any) -> None:
    net, seen, _ = trained
    whole = quantize(net, seen, device="cpu")
    most = quantize(net, [images for images, _ in seen], percentile=90, device="cpu")
    assert all(a < b for a, b in zip(most.ranges, whole.ranges, strict=True))


def test_batch_norms_are_folded_and_nets_stay_as_they_were() -> None:
    nn.manual_seed(2)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, groups=2),
        nn.Flatten(),
    )
    rng = np.random.default_rng(0)
    images = rng.standard_normal((4, 3, 8, 8)).astype(np.float32)
    lm.train_step(net, lambda y, t: ops.mean(ops.square(y)), optim.SGD(0.01), device="cpu")(
        images, np.zeros(4)
    )
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    wanted = Predictor(net, device="cpu")(images).numpy()
    for precision, error in (("int8", 0.02), ("fp8", 0.08)):
        made = quantize(net, [images], precision=precision, device="cpu")
        found = made(images).numpy()
        assert np.abs(found - wanted).max() < error * np.abs(wanted).max()
        heads = [str(n.op) for n in made.program(lm.tensor(images).spec).graph.nodes]
        assert not any("batch_norm" in h for h in heads)
        assert sum("quantized_conv" in h for h in heads) == 2  # that before the norm, too
        np.testing.assert_array_equal(made(images[:3]).numpy(), found[:3])  # a part of a batch
    for name, x in net.state_dict().items():
        np.testing.assert_array_equal(x.numpy(), before[name])


def test_weights_of_any_size_behind_a_norm_are_rounded() -> None:
    net = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.BatchNorm2d(128)).eval()
    made = quantize(net, [np.ones((1, 64, 4, 4), np.float32)], device="cpu")
    graph = made.program(lm.ones((1, 64, 4, 4)).spec).graph
    assert [n for n in graph.nodes if "quantized_conv" in str(n.op)]
    others = [str(n.op) for n in graph.nodes if "quant" not in str(n.op)]
    assert others == ([] if adds_in_32_bits() else ["add()"])  # the bias, where no kernel has it fused
    assert graph.unchanging() == set(graph.constants)  # nothing is folded when it runs


def test_what_cannot_be_quantized_is_said(trained: Any) -> None:
    net, seen, _ = trained
    with pytest.raises(ValueError, match="precision must be one of int8, fp8, got 'int4'"):
        quantize(net, seen, precision="int4", device="cpu")
    with pytest.raises(ValueError, match="percentile must be above 0"):
        quantize(net, seen, percentile=0, device="cpu")
    with pytest.raises(ValueError, match="no batches"):
        quantize(net, [], device="cpu")
    with pytest.raises(ValueError, match="Sequential has no layer that can be quantized"):
        quantize(nn.Sequential(nn.ReLU()), [np.ones((2, 3), np.float32)], device="cpu")


@pytest.mark.parametrize("percentile", [None, 50.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_no_ranges(percentile: float | None, bad: float) -> None:
    """They would leave the layer behind them without a scale."""
    good = np.ones((2, 3), np.float32)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"of batch 1, layer 0 of 2 reads (nan|inf); calibrate"):
        quantize(net, [good, good * bad], percentile=percentile, device="cpu")
    net[0].weight.copy_(np.full((4, 3), 3e38, np.float32))
    with pytest.raises(ValueError, match=r"of batch 0, layer 1 of 2 reads inf"):
        quantize(net, [good], device="cpu")


def test_what_it_says_of_itself() -> None:
    x = np.ones((2, 3), np.float32)
    made = quantize(nn.Linear(3, 4), [x], device="cpu")
    made(x)
    head, program = repr(made).split("\n")
    assert head == "QuantizedPredictor(Linear, int8 on cpu)"
    assert "f32[2,3]" in program


@pytest.mark.gpu
@pytest.mark.feature("B018")
@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_on_a_gpu(precision: str) -> None:
    """Every layer runs in 8 bits on tensor cores, near float32."""
    nn.manual_seed(3)
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 9, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    images = np.random.default_rng(1).standard_normal((32, 3, 8, 8)).astype(np.float32)
    wanted = Predictor(net, device="cpu")(images).numpy()
    made = quantize(net, [images], precision=precision, device="cuda")
    found = made(images).numpy()
    assert len(made.ranges) == 5
    labels = [s.plan.label for s in made.program(lm.tensor(images).spec).program.steps]
    assert sum("cudnn" in label and "quantized" in label for label in labels) == 5, labels
    assert np.abs(found - wanted).max() < (0.03 if precision == "int8" else 0.1) * np.abs(wanted).max()
