"""Autotuning of graphs on a GPU: right, remembered, within the cap, and never slower than the heuristic's plan."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from lamina import cudnn
from lamina.cudnn import Choice, Graph, Handle, NoPlanError, NumericalNote, PlanStore, autotune, contest
from lamina.runtime import Buffer, Device, copy, from_host, memset, to_host
from tests.helpers import ROOT

pytestmark = pytest.mark.gpu


@pytest.fixture
def handle() -> Iterator[Handle]:
    device = Device("cuda:0")
    made = cudnn.handle_of(device)
    made.use(device.default_stream.handle)
    yield made
    device.synchronize()


@pytest.fixture
def store(tmp_path: Path) -> PlanStore:
    return PlanStore("test", "1", tmp_path)


def convolution(kind: str = "float16", direction: str = "conv", beta: float = 0.0) -> Graph:
    graph = Graph()
    last = kind != "float32"
    x = graph.packed((8, 32, 28, 28), kind, channels_last=last)
    w = graph.packed((64, 32, 3, 3), kind, channels_last=last)
    y = graph.packed((8, 64, 28, 28), kind, channels_last=last)
    window = {"stride": (1, 1), "pre": (1, 1), "beta": beta}
    if direction == "conv":
        graph.conv(x, w, y, **window)
    elif direction == "data":
        graph.conv_data_grad(y, w, x, **window)
    else:
        graph.conv_filter_grad(x, y, w, **window)
    return graph


def no_contest(*arguments: object) -> None:
    raise AssertionError("the choice was in the store: nothing should be timed")


def result(plan: cudnn.ExecutionPlan, handle: Handle, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y of the convolution in float16."""
    device = handle.device
    held = [from_host(a.transpose(0, 2, 3, 1).copy(), device) for a in (x, w)]
    held.append(device.allocate(8 * 64 * 28 * 28 * 2))
    scratch = device.allocate(plan.workspace)
    pack = cudnn.VariantPack({uid: b.pointer for uid, b in enumerate(held, 1)}, scratch.pointer)
    plan.execute(handle, pack)
    device.synchronize()
    return to_host(held[2]).view(np.float16).reshape(8, 28, 28, 64).transpose(0, 3, 1, 2)


@pytest.mark.feature("B009", "B010", "F080", "F086")
@pytest.mark.parametrize("direction", ["conv", "data", "filter"])
def test_the_best_plan_is_remembered(
    handle: Handle, store: PlanStore, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = convolution(direction=direction).autotune(handle, store=store)
    (key,) = store.keys()
    choice = store.get(key)
    assert choice is not None
    assert choice.key == first.config.key  # type: ignore[union-attr]
    assert choice.milliseconds > 0
    monkeypatch.setattr(autotune, "Contest", no_contest)
    again = convolution(direction=direction).autotune(handle, store=PlanStore("test", "1", store.path.parent))
    assert again.config.key == first.config.key  # type: ignore[union-attr]


@pytest.mark.feature("B009")
def test_the_tuned_plan_is_right(handle: Handle, store: PlanStore) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float16) for s in ((8, 32, 28, 28), (64, 32, 3, 3)))
    plan = convolution().autotune(handle, store=store)
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,kcij->nkhw", windows, w.astype(np.float64), optimize=True)
    error = np.linalg.norm(result(plan, handle, x, w) - expected) / np.linalg.norm(expected)
    assert error < 1e-3


SCRIPT = """
from lamina import cudnn
from lamina.runtime import Device
from tests.cudnn.test_gpu_autotune import convolution, no_contest
from lamina.cudnn import autotune
import sys
if sys.argv[1] == "again":
    autotune.Contest = no_contest
print(convolution().autotune(cudnn.handle_of(Device("cuda:0"))).config.key)
"""


@pytest.mark.feature("B010")
def test_another_process_takes_it_from_the_store(tmp_path: Path) -> None:
    environment = {**os.environ, "LAMINA_CACHE": str(tmp_path), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    found = []
    for mode in ("first", "again"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, mode], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.splitlines()[-1])
    assert found[0] == found[1]
    assert len(list((tmp_path / "plans").glob("*.jsonl"))) == 1


@pytest.mark.feature("B011", "F088", "F091")
def test_cap_and_determinism(handle: Handle, store: PlanStore) -> None:
    graph = convolution("float16", "filter")
    for limit in (0, 1 << 20):
        plan = graph.autotune(handle, workspace_limit=limit, deterministic=True, store=store)
        assert plan.workspace <= limit
        notes = plan.config.engine.numerical_notes  # type: ignore[union-attr]
        assert NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC not in notes
    assert len(store.keys()) == 2  # other options, another choice


@pytest.mark.feature("B011")
def test_no_memory_beyond_the_cap(handle: Handle, store: PlanStore) -> None:
    """What is taken at most: copies of the operands (cache size, twice the result), the cap, guards, rounded up."""
    device, cap = handle.device, 4 << 20
    device.empty_cache()
    before = device.statistics().in_use
    device.reset_peak()
    convolution("float32").autotune(handle, workspace_limit=cap, store=store)
    operands = 4 * (8 * 32 * 28 * 28 + 64 * 32 * 9 + 8 * 64 * 28 * 28)
    taken = device.statistics().peak - before
    assert taken <= 1.25 * (5 * operands + cap + 64 * contest.GUARD)
    device.empty_cache()


@pytest.mark.feature("B017", "F093")
def test_float32_rounds_to_tf32_only_where_allowed(handle: Handle, store: PlanStore) -> None:
    plan = convolution("float32").autotune(handle, store=store)
    notes = plan.config.engine.numerical_notes  # type: ignore[union-attr]
    assert NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE not in notes
    assert convolution("float32").autotune(handle, tf32=True, store=store).workspace >= 0


@pytest.mark.feature("B009")
def test_a_plain_computation_of_the_caller_decides(handle: Handle, store: PlanStore) -> None:
    """One that gives zeros refuses every engine; one that runs an engine accepts."""
    device = handle.device
    graph = convolution()
    size = 8 * 64 * 28 * 28 * 2

    def zeros(places: Mapping[int, int], stream: int) -> None:
        memset(Buffer.borrow(places[3], size, device), 0, device.default_stream)

    with pytest.raises(NoPlanError, match="wrong: relative error"):
        graph.autotune(handle, plain=zeros, store=store)
    assert store.keys() == []
    first = graph.plan(handle)
    scratch = device.allocate(first.workspace)

    def right(places: Mapping[int, int], stream: int) -> None:
        first.execute(handle, cudnn.VariantPack(places, scratch.pointer))

    assert graph.autotune(handle, plain=right, store=store).workspace >= 0


def test_own_data_is_read_and_not_written(handle: Handle, store: PlanStore) -> None:
    device = handle.device
    x = from_host(np.full(8 * 32 * 28 * 28, 0.5, np.float16), device)
    y = from_host(np.full(8 * 64 * 28 * 28, 7, np.float16), device)
    convolution().autotune(handle, pointers={1: x.pointer, 3: y.pointer}, store=store)
    assert (to_host(x).view(np.float16) == 0.5).all()
    assert (to_host(y).view(np.float16) == 7).all()


def test_a_result_that_is_added_to(handle: Handle, store: PlanStore) -> None:
    assert convolution(beta=1.0).autotune(handle, store=store).config is not None


@pytest.mark.feature("B010")
def test_a_choice_that_does_not_build_is_made_anew(handle: Handle, store: PlanStore) -> None:
    convolution().autotune(handle, store=store)
    (key,) = store.keys()
    store.put(key, Choice("graph", 9999, ((1, 2),)))
    convolution().autotune(handle, store=store)
    found = store.get(key)
    assert found is not None
    assert found.engine != 9999


def test_a_fused_graph_with_a_number(handle: Handle, store: PlanStore) -> None:
    """y = relu(0.5 conv(x, w)): the factor lies on the host."""
    graph = Graph()
    x = graph.packed((8, 32, 28, 28), "float16", channels_last=True)
    w = graph.packed((64, 32, 3, 3), "float16", channels_last=True)
    y = graph.packed((8, 64, 28, 28), "float16", channels_last=True)
    factor = graph.scalar()
    product = graph.conv(x, w, graph.like(y), stride=(1, 1), pre=(1, 1))
    graph.pointwise("relu_fwd", graph.pointwise("mul", product, factor), out=y)
    with pytest.raises(ValueError, match=r"tensors \[4\] are numbers on the host"):
        graph.autotune(handle, store=store)
    number = np.full(1, 0.5, np.float32)
    plan = graph.autotune(handle, pointers={4: number.ctypes.data}, store=store)
    assert plan.config is not None


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_check_kernels_on_the_gpu(handle: Handle, name: str) -> None:
    """Random operands are finite and differ; a copy is equal; one changed element is seen."""
    memory = contest.OperandMemory(5000 * contest.ITEM_SIZES[name], name)
    made = contest.Contest(handle.device, [memory, memory], [], 1.0)
    a, b = (buffer.pointer for buffer in made.inputs)
    apart, size, bad, odd = made._ask(memory, a, b)
    assert apart > 0
    assert size > 0
    assert (bad, odd) == (0, 0)
    copy(made.inputs[1], made.inputs[0])
    assert made._ask(memory, a, b)[0] == 0
