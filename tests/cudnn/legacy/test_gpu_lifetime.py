"""Lifetime on a GPU: every class 100,000 times, every order of closing, an end with everything open."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lamina import cudnn
from lamina.cudnn import legacy
from lamina.runtime import Device
from tests.cudnn.legacy.test_lifetime import finished, started
from tests.helpers import ROOT
from tests.helpers.legacy import lifetime

pytestmark = pytest.mark.gpu
COUNT, PARTS = 100_000, 6
LIMIT = 1 << 20


@pytest.mark.feature("F029", "F013")
def test_a_hundred_thousand_of_each_class_leave_nothing() -> None:
    """What needs a GPU as often as `lifetime.SECONDS` allow (a handle takes milliseconds), and how often is said."""
    parts = [started(str(COUNT), "cpu", str(part), str(PARTS)) for part in range(PARTS)]
    host: dict[str, list[float]] = {}
    for process in parts:
        host |= finished(process, 500)
    device = finished(started(str(COUNT), "cuda:0"), 500)  # after the others, whose contexts take memory too
    for name, (made, growth, lost, took) in {**host, **device}.items():
        print(f"{name:24} {made:7} {1e6 * took / made:9.1f} us {growth:9} bytes {lost:9} on the device")
    assert set(host) == {*lifetime.LEGACY, *lifetime.graph_makers()}
    assert {made for made, *_ in host.values()} == {COUNT}
    assert set(device) >= lifetime.PLANNED | {"Handle", "legacy handle", "dropout"}
    assert all(made >= 256 for made, *_ in device.values())
    # cudnnCreate and cudnnDestroy themselves leave tens of kilobytes behind: handles are held to what these leave.
    made, growth, *_ = device.pop("bare handle")
    handles = [device.pop(name) for name in ("Handle", "legacy handle")]
    assert all(row[1] <= 1.5 * growth / made * row[0] + LIMIT for row in handles)
    assert {name: row for name, row in (host | device).items() if row[1] >= LIMIT} == {}
    assert {name: row for name, row in device.items() if row[2] > 0} == {}


def imperative(device: Device) -> list[legacy.Descriptor | legacy.Handle]:
    """A program's objects, with work of theirs queued."""
    handle = legacy.Handle(device)
    x_desc = legacy.TensorDescriptor((2, 4, 8, 8))
    w_desc = legacy.FilterDescriptor((4, 4, 3, 3))
    convolution = legacy.Convolution(pad=1)
    y_desc = convolution.output(x_desc, w_desc)
    x, w, y = (device.allocate(4 * 2 * 4 * 8 * 8) for _ in range(3))
    convolution.forward(handle, x_desc=x_desc, x=x, w_desc=w_desc, w=w, y_desc=y_desc, y=y)
    return [handle, x_desc, w_desc, convolution, y_desc]


def planned(device: Device) -> list[cudnn.Descriptor | cudnn.Handle]:
    """A graph's objects, the plan queued."""
    handle, graph = cudnn.Handle(device), cudnn.Graph()
    shapes = ((8, 32, 16, 16), (32, 32, 3, 3), (8, 32, 16, 16))
    x, w, y = (graph.packed(shape, "float16", channels_last=True) for shape in shapes)
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    plan = next(iter(graph.plans(handle, forbid=["runtime_compilation"])))
    assert plan.config is not None
    built = graph.build(handle)
    memory = {t.uid: device.allocate(2 * 8 * 32 * 16 * 16).pointer for t in (x, w, y)}
    workspace = device.allocate(plan.workspace)
    pack = cudnn.VariantPack(memory, workspace.pointer)
    plan.bind(handle, pack, 0)()
    return [handle, plan, pack, built, plan.config, graph.operations[0]]


def orders(kind: str) -> Iterator[None]:
    """A program per order of closing."""
    device = Device("cuda:0")
    make = {"imperative": imperative, "planned": planned}[kind]
    for order in itertools.permutations(range(len(make(device)))):
        objects = make(device)
        for place in order:
            objects[place].close()
        assert all(one.closed for one in objects)
        yield


ORDERS = """
import sys
from tests.cudnn.legacy import test_gpu_lifetime
print(sum(1 for _ in test_gpu_lifetime.orders(sys.argv[1])))
"""

ENDING = """
import threading
from lamina.cudnn import legacy
from lamina.runtime import Device, Worker
from tests.helpers.legacy.lifetime import LEGACY, graph_makers
from tests.cudnn.legacy.test_gpu_lifetime import imperative, planned

device = Device("cuda:0")
stream, worker = device.stream(), Worker(device)
left = [make() for make in (*LEGACY.values(), *graph_makers().values()) for _ in range(3)]
left += imperative(device) + planned(device) + [stream, worker]
left += [legacy.Handle(worker=worker), legacy.Handle(device, stream=stream), legacy.handle_for(device)]
left.append(legacy.Dropout(left[-1], rate=0.5))
left += [stream.record(), device.allocate(1 << 20), device.stream()]
with stream.capture() as graph:
    pass
left.append(graph)
thread = threading.Thread(target=lambda: left.append(legacy.handle_for(device)))
thread.start()
thread.join()
left[0].again = left  # a cycle that only the collector finds
print("open", len(left))
"""


def ended(program: str, *arguments: str) -> str:
    """What a program prints; it must end well, without a word on stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-X", "faulthandler", "-c", program, *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.feature("F029")
@pytest.mark.parametrize(("kind", "count"), [("imperative", 120), ("planned", 720)])
def test_every_order_of_closing(kind: str, count: int) -> None:
    assert ended(ORDERS, kind) == f"{count}\n"


@pytest.mark.feature("F029")
def test_a_process_ends_well_with_everything_open() -> None:
    assert ended(ENDING).startswith("open ")
