"""Recomputation: graphs fit into the memory that is given to them, and give the same bits as with all of it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.cli import main
from lamina.graph import Executable, MemoryLimitError, compile, gradients, trace
from lamina.graph.planning import rematerialize
from lamina.graph.planning.rematerialize import as_bytes
from lamina.runtime import Device, Machine
from lamina.spec import Spec, float32, int64, policy
from tests.helpers import slow_from
from tests.helpers.planned import H200


def deep(seed: int, depth: int = 12) -> tuple[Any, list[Any]]:
    """A random chain with skips, its loss, gradients and updated weights: (function, example inputs)."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 4, depth)
    back = [int(rng.integers(0, i + 1)) for i in range(depth)]
    arrays = [rng.standard_normal((32, 16)).astype(np.float32)]
    arrays += [rng.standard_normal((16, 16)).astype(np.float32) / 4 for _ in range(depth)]

    def program(x: Any, state: Any, *weights: Any) -> list[Any]:
        values = [x]
        for w, kind, i in zip(weights, kinds, back, strict=True):
            y = ops.matmul(values[-1], w)
            if kind == 0:
                y = ops.reshape(ops.tanh(ops.reshape(y, (-1,))), (32, 16))
            elif kind == 1:
                y, _, state = ops.dropout(y, 0.3, state=state)
            elif kind == 2:
                y = ops.relu(y) + values[i]
            else:
                y = ops.sigmoid(y) * values[i]
            values.append(y)
        loss = ops.mean(ops.square(values[-1]))
        found = gradients(loss, weights)
        return [state, *(w - 0.1 * g for w, g in zip(weights, found, strict=True)), loss]

    return program, [arrays[0], np.array([seed, 5], np.int64), *arrays[1:]]


def run_deep(seed: int, limit: int | None) -> tuple[Executable, list[Any]]:
    """The compiled chain and, after two runs on dead memory that is poisoned, its state and last loss."""
    program, arrays = deep(seed)
    graph = trace(program, *arrays)
    donate = {i + 1: i for i in range(len(arrays) - 1)}
    made = compile(graph, "cpu", donate=donate, poison=True, memory_limit=limit)
    state = {i: lm.tensor(arrays[i]) for i in donate}
    made.load(state)
    losses = [made(arrays[0])[0].numpy() for _ in range(2)]
    return made, [*losses, *(x.numpy() for x in state.values())]


@pytest.mark.feature("B020")
@pytest.mark.parametrize("seed", slow_from(3, range(6)))
def test_random_chains_give_the_same_bits_in_less_memory(seed: int) -> None:
    whole, expected = run_deep(seed, None)
    with pytest.raises(MemoryLimitError) as error:
        run_deep(seed, 256)
    least = error.value.least
    assert least < 0.75 * whole.peak_bytes
    for limit in (least, (least + whole.peak_bytes) // 2):
        made, found = run_deep(seed, limit)
        assert made.peak_bytes <= limit
        assert len(made.graph.nodes) > len(whole.graph.nodes)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def small_net() -> nn.Sequential:
    nn.manual_seed(4)
    layers: list[nn.Module] = []
    for i in range(5):
        layers += [nn.Conv2d(8 if i else 1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 64, 4))


def train(precision: str, device: str, limit: int | None) -> tuple[int, list[Any]]:
    """The arena's bytes, then the losses of three steps and all state after them."""
    rng = np.random.default_rng(3)
    images = rng.standard_normal((16, 1, 16, 16)).astype(np.float32)
    labels = rng.integers(0, 4, 16)
    step = lm.train_step(
        small_net(),
        ops.cross_entropy,
        optim.SGD(0.05, 0.9),
        device=device,
        precision=precision,
        memory_limit=limit,
    )
    losses = [step(images, labels).item() for _ in range(3)]
    return step.executable.peak_bytes, [*losses, *(x.numpy().copy() for x in step.state.named().values())]


@pytest.mark.feature("B020")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_goes_the_same_way_in_half_the_memory(precision: str) -> None:
    peak, expected = train(precision, "cpu", None)
    less, found = train(precision, "cpu", peak * 6 // 10)
    assert less <= peak * 6 // 10
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_goes_the_same_way_on_a_gpu(precision: str) -> None:
    peak, expected = train(precision, "cuda", None)
    less, found = train(precision, "cuda", peak * 8 // 10)
    assert less <= peak * 8 // 10
    near = {"rtol": 1e-3, "atol": 1e-4} if precision == "fp32" else {"rtol": 3e-2, "atol": 3e-2}
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **near)


def planned(net: nn.Module, images: Spec, limit: int | str | None, backend: str = "null") -> Executable:
    step = lm.train_step(
        net, ops.cross_entropy, optim.SGD(0.1, 0.9), device="cpu", backend=backend, memory_limit=limit
    )
    with policy(workspace_limit=16 << 20):
        return step.program(images, Spec((images.shape[0],), int64)).executable


@pytest.mark.feature("B020")
def test_resnet_is_planned_in_a_third_of_its_memory() -> None:
    net, images = nn.resnet50(10), Spec((32, 3, 224, 224), float32)
    whole = planned(net, images, None)
    third = planned(net, images, whole.peak_bytes // 3)
    assert third.peak_bytes <= whole.peak_bytes // 3
    assert third.program.placement.bound <= third.peak_bytes
    assert whole.recomputed == 0 < third.recomputed
    work = [sum(n.op.flops(*(v.spec for v in n.inputs)) for n in x.graph.nodes) for x in (whole, third)]
    assert work[0] < work[1] < 4 / 3 * work[0]  # less than the forward pass once more


@pytest.mark.feature("B020")
def test_alexnet_fits_into_less() -> None:
    net, images = nn.AlexNet(), Spec((128, 1, 224, 224), float32)
    whole = planned(net, images, None)
    limit = int(0.9 * whole.peak_bytes)
    assert planned(net, images, limit).peak_bytes <= limit


def test_nothing_is_computed_again_without_need() -> None:
    program, arrays = deep(0)
    graph = trace(program, *arrays)
    free, roomy = compile(graph, "cpu"), compile(graph, "cpu", memory_limit="1 GiB")
    assert len(free.graph.nodes) == len(roomy.graph.nodes)
    assert free.peak_bytes == roomy.peak_bytes


def test_a_limit_out_of_reach_is_an_error_with_numbers() -> None:
    program, arrays = deep(0)
    graph = trace(program, *arrays)
    whole = compile(graph, "cpu").peak_bytes
    with pytest.raises(
        MemoryLimitError, match=f"in 1000 bytes .*takes {whole} bytes .*at least [0-9]+ bytes"
    ):
        compile(graph, "cpu", memory_limit=1000)


def test_sizes_have_units() -> None:
    assert [as_bytes(s) for s in ("8 GiB", "1.5MiB", "2 GB", "1000", 77)] == [
        8 << 30, 3 << 19, 2 * 10**9, 1000, 77,
    ]  # fmt: skip
    for wrong in ("8 gigs", "many", "-1", 0):
        with pytest.raises(ValueError, match="memory_limit"):
            as_bytes(wrong)


@pytest.mark.feature("B020")
@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("", 1),
        ("b", 1),
        ("KB", 10**3),
        ("mb", 10**6),
        ("GB", 10**9),
        ("KiB", 2**10),
        ("mib", 2**20),
        ("GiB", 2**30),
    ],
)
def test_every_unit_is_so_many_bytes(unit: str, factor: int) -> None:
    assert as_bytes(f"3 {unit}") == 3 * factor
    assert as_bytes(f"2.5{unit}") == int(2.5 * factor)


def test_choices_on_a_cpu_depend_on_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on a GPU on what is known of it."""
    asked: list[Machine] = []

    def first(graph: Any, program: Any, donate: Any, machine: Machine) -> Any:
        asked.append(machine)
        return SimpleNamespace(shrunk=lambda: None)

    monkeypatch.setattr(rematerialize, "_Round", first)
    graph = trace(lambda x: ops.softmax(ops.relu(x), 1), Spec((64, 64), float32))
    for device in (Device("cpu"), H200):
        with pytest.raises(MemoryLimitError):
            compile(graph, device, memory_limit=1)
    assert asked == [rematerialize._USUAL, H200.machine]


def test_the_program_takes_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "resnet18", "--train", "--backend", "null", "--batch-size", "16", "--memory-limit"]
    assert main([*arguments, "240 MiB"]) == 0
    assert "nodes run again to save memory" in capsys.readouterr().out
    assert main([*arguments, "10 MiB"]) == 5
    assert "with recomputation" in capsys.readouterr().err
    assert main([*arguments[:2], "--memory-limit", "1 GiB"]) == 1
    assert "--train" in capsys.readouterr().err
