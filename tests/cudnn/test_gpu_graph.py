"""Graphs run on a GPU against NumPy; plans by CUDA graph, kernel cache, JSON, engine and multiprocessor count."""

import sys
from collections.abc import Iterator
from threading import Thread
from typing import Any

import numpy as np
import pytest

from lamina import cudnn
from lamina.cudnn import ExecutionPlan, Graph, Handle, Tensor, VariantPack, handle_of
from lamina.runtime import Buffer, Device, DeviceError, from_host, memset, to_host
from tests.helpers.cudnn.graph_run import in_process_of_its_own
from tests.helpers.cudnn.graph_values import NUMPY, SCENARIOS, Array, Scenario, conv3x3, images

pytestmark = pytest.mark.gpu


def ready(device: Device) -> Handle:
    """The device's handle, on its default stream."""
    made = handle_of(device)
    made.use(device.default_stream.handle)
    return made


@pytest.fixture
def handle() -> Iterator[Handle]:
    device = Device("cuda:0")
    yield ready(device)
    device.synchronize()


# --------------------------------------------------------------------------------------------------- to memory


def strided(memory: Array, tensor: Tensor) -> Array:
    """A view of flat memory with the tensor's dimensions."""
    steps = [step * memory.itemsize for step in tensor.strides]
    return np.lib.stride_tricks.as_strided(memory, tensor.dimensions, steps)


def extent(tensor: Tensor) -> int:
    return 1 + sum((n - 1) * step for n, step in zip(tensor.dimensions, tensor.strides, strict=True))


class Memory:
    """Buffers for the tensors of a scenario."""

    def __init__(self, work: Scenario, device: Device) -> None:
        self.work, self.device = work, device
        self.held: list[object] = []
        self.pointers: dict[int, int] = {}
        self.results: dict[Tensor, Buffer] = {}
        for tensor, array in work.inputs.items():
            flat = np.zeros(extent(tensor), array.dtype)
            strided(flat, tensor)[...] = array
            held: Any = flat if tensor.by_value else from_host(flat, device)
            self.held.append(held)
            self.pointers[tensor.uid] = flat.ctypes.data if tensor.by_value else held.pointer
            if tensor in work.outputs:  # written in part
                self.results[tensor] = held
        for tensor in work.outputs.keys() - work.inputs.keys():
            size = extent(tensor) * np.dtype(NUMPY[tensor.data_type]).itemsize
            self.results[tensor] = device.allocate(size)
            self.pointers[tensor.uid] = self.results[tensor].pointer
        self.clear()

    def clear(self) -> None:
        for tensor in self.results.keys() - self.work.inputs.keys():
            memset(self.results[tensor], 0xFF, self.device.default_stream)

    def pack(self, plan: ExecutionPlan) -> VariantPack:
        scratch = self.device.allocate(plan.workspace)
        self.held.append(scratch)
        return VariantPack(self.pointers, scratch.pointer)

    def check(self) -> None:
        self.device.synchronize()
        for tensor, (expected, tolerance) in self.work.outputs.items():
            found = strided(to_host(self.results[tensor]).view(NUMPY[tensor.data_type]), tensor)
            error = np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected)
            assert error <= tolerance, f"tensor {tensor.uid}: relative error {error:.2e}"


def run(work: Scenario, plan: ExecutionPlan, handle: Handle) -> None:
    memory = Memory(work, handle.device)
    plan.execute(handle, memory.pack(plan))
    memory.check()


def plain(size: int = 16) -> Scenario:
    """A convolution."""
    s = Scenario(Graph())
    (x,), (w,), (y,) = (
        images(s.graph, 1, t) for t in ((8, 32, size, size), (64, 32, 3, 3), (8, 64, size, size))
    )
    s.graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    s.expect(y, conv3x3(s.random(x), s.random(w, -0.1, 0.1)))
    return s


# ------------------------------------------------------------------------------------------------------ values


@pytest.mark.feature("B005", "F052")
@pytest.mark.parametrize("name", SCENARIOS)
def test_values(name: str, handle: Handle) -> None:
    if (
        "concatenation" in name
    ):  # its kernel waits for itself, or takes the context with it, where memory is missing
        in_process_of_its_own("tests.cudnn.test_gpu_graph", name)
    else:
        work = SCENARIOS[name]()
        run(work, work.graph.plan(handle), handle)


@pytest.mark.feature("B005")
def test_max_pooling_by_index(handle: Handle) -> None:
    """The gradient goes where the index of the forward pass says that the maximum was."""
    device = handle.device
    how = cudnn.Resample("maxpool", window=(2, 2), stride=(2, 2), pre=(0, 0))
    forward, backward = Graph(), Graph()
    (x,), (y,), (index,) = (
        images(forward, 1, shape, kind)
        for shape, kind in (((8, 32, 16, 16), "float16"), ((8, 32, 8, 8), "float16"), ((8, 32, 8, 8), "int8"))
    )
    forward.pool(how, x, y, index)
    (dy,), (dx,), (where,) = (
        images(backward, 1, shape, kind)
        for shape, kind in (((8, 32, 8, 8), "float16"), ((8, 32, 16, 16), "float16"), ((8, 32, 8, 8), "int8"))
    )
    backward.pool_grad(how, dy, dx, index=where)
    first, second = Scenario(forward), Scenario(backward)
    xs, dys = first.random(x), second.random(dy)
    blocks = xs.reshape(8, 32, 8, 2, 8, 2)
    first.expect(y, blocks.max((3, 5)))
    places = blocks == blocks.max((3, 5), keepdims=True)
    assert (places.sum((3, 5)) == 1).mean() > 0.99
    share = dys[:, :, :, None, :, None] * places / places.sum((3, 5), keepdims=True)
    second.expect(dx, share.reshape(xs.shape), 0.1)  # of equal values one gets all
    indices = device.allocate(8 * 32 * 8 * 8)
    for work, tensor, graph in ((first, index, forward), (second, where, backward)):
        memory = Memory(work, device)
        memory.pointers[tensor.uid] = indices.pointer
        plan = graph.plan(handle)
        plan.execute(handle, memory.pack(plan))
        memory.check()


# ------------------------------------------------------------------------------------------------------- plans


@pytest.mark.feature("B006")
def test_a_plan_from_json_computes_the_same(handle: Handle) -> None:
    work = plain()
    text = work.graph.plan(handle).json
    run(work, ExecutionPlan(json=text, target=handle), handle)


@pytest.mark.feature("B006", "B007")
def test_every_engine_computes_the_same(handle: Handle) -> None:
    work = plain()
    engines: dict[int, ExecutionPlan] = {}
    for plan in work.graph.plans(handle, ("a", "b", "fallback"), forbid=["reduced_precision_reduction"]):
        assert plan.config is not None
        engines.setdefault(plan.config.engine.index, plan)
    assert len(engines) > 3
    for plan in engines.values():
        run(work, plan, handle)


@pytest.mark.feature("B007")
def test_properties_of_this_device_plan_for_it(handle: Handle) -> None:
    work = plain()
    described = cudnn.DeviceProperties(handle=handle)
    assert cudnn.DeviceProperties(json=described.json).json == described.json
    plan = work.graph.plan(described)
    run(work, ExecutionPlan(json=plan.json, target=handle), handle)


@pytest.mark.feature("B006")
def test_part_of_the_multiprocessors(handle: Handle) -> None:
    work = plain()
    plans = list(work.graph.plans(handle, ("a",), sm_count=64))
    for plan in plans[:3]:
        run(work, plan, handle)
    assert plans or work.graph.candidates(handle, ("a",), sm_count=64).refusals


@pytest.mark.feature("B006")
def test_a_kernel_cache_serves_the_next_size(handle: Handle) -> None:
    cache = None
    for rows in (128, 256):
        s = Scenario(Graph(dynamic=True))
        a, b = s.graph.packed((1, rows, 64), "float16"), s.graph.packed((1, 64, 96), "float16")
        out = s.graph.packed((1, rows, 96), "float16")
        s.graph.matmul(a, b, out)
        s.expect(out, s.random(a) @ s.random(b))
        cache = cache or cudnn.KernelCache(s.graph.build(handle))
        run(s, s.graph.plan(handle, require=["runtime_compilation"], kernel_cache=cache), handle)
    assert cache is not None
    assert len(cache.json) > 2


@pytest.mark.feature("B006")
def test_native_cuda_graph_and_update(handle: Handle) -> None:
    """The plan writes itself into a CUDA graph; update gives the graph other addresses."""
    driver = pytest.importorskip("cuda.bindings.driver")
    work = plain()
    plan = work.graph.plan(handle, ("a", "fallback"), require=["supports_cuda_graph_native_api"])
    assert plan.has_native_graph
    error, graph = driver.cuGraphCreate(0)
    assert error == driver.CUresult.CUDA_SUCCESS
    first, second = Memory(work, handle.device), Memory(work, handle.device)
    stream = handle.device.default_stream
    for memory, write in ((first, plan.populate), (second, plan.update)):
        write(handle, memory.pack(plan), int(graph))
        error, executable = driver.cuGraphInstantiate(graph, 0)
        assert error == driver.CUresult.CUDA_SUCCESS
        assert driver.cuGraphLaunch(executable, stream.handle)[0] == driver.CUresult.CUDA_SUCCESS
        memory.check()
        driver.cuGraphExecDestroy(executable)
    driver.cuGraphDestroy(graph)


@pytest.mark.feature("B006")
def test_a_recorded_plan_runs_again_on_any_stream_and_thread(handle: Handle) -> None:
    """It keeps the plan alive, leaves the handle's stream as it was, and needs the handle no more."""
    work, device = plain(), handle.device
    memory = Memory(work, device)
    plan = work.graph.plan(handle)
    plan.execute(handle, memory.pack(plan))
    before = handle.stream
    recorded = plan.record(handle, memory.pack(plan))
    assert handle.stream == before == device.default_stream.handle
    plan.close()
    other = device.stream()
    run = recorded.bind()
    for launch in (run, recorded.launch, recorded.bind(other)):
        memory.clear()
        device.synchronize()
        launch()
        memory.check()
    memory.clear()
    device.synchronize()
    threads = [Thread(target=lambda: [run() for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.check()
    recorded.close()
    with pytest.raises(DeviceError, match="closed"):
        run()
    with pytest.raises(DeviceError, match="closed"):
        recorded.bind()


@pytest.mark.feature("B006")
def test_a_bound_plan_follows_its_stream_and_its_handle(handle: Handle) -> None:
    work, device = plain(), handle.device
    memory, side = Memory(work, device), device.stream()
    with Handle(device) as own:
        plan = work.graph.plan(own)
        run = plan.bind(own, memory.pack(plan), device.default_stream.handle)
        own.use(side.handle)
        run()
        assert own.stream == device.default_stream.handle
        memory.check()
    with pytest.raises(ValueError, match="this Handle was closed"):
        run()


@pytest.mark.feature("B008")
def test_the_rewrite_that_explain_names_has_plans(handle: Handle) -> None:
    graph = Graph()
    (x,), (w,), (y,) = (images(graph, 1, t) for t in ((8, 35, 16, 16), (64, 35, 3, 3), (8, 64, 16, 16)))
    (scale,) = images(graph, 1, (1, 35, 1, 1))
    graph.conv(graph.pointwise("relu_fwd", graph.pointwise("mul", x, scale)), w, y, stride=(1, 1), pre=(1, 1))
    total, squares = images(graph, 2, (1, 64, 1, 1), "float32")
    graph.gen_stats(y, total, squares)
    found = graph.explain(handle)
    assert found.supported or found.rewrite is not None, str(found)


if __name__ == "__main__":  # one scenario by its name
    named = SCENARIOS[sys.argv[1]]()
    used = ready(Device("cuda:0"))
    run(named, named.graph.plan(used), used)
