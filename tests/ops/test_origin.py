"""Where ops come from: paths of modules, lines of programs, also behind gradients, passes and files."""

import re
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import graph, nn, ops
from lamina.backends import NoKernel
from lamina.graph.run.html import html_page
from lamina.ops.core import REGISTRY, call
from lamina.ops.custom import CustomOp
from lamina.ops.origin import Origin, current_origin, origin_is
from lamina.spec import ShapeError, Spec
from tests.helpers.own_ops import unregistered
from tests.helpers.planned import H200

X = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


class Block(nn.Module):
    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        y = ops.relu(self.bn1(self.conv1(x)))  # the line of conv1
        return x + self.conv2(y)  # the line of conv2


class Net(nn.Module):
    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Sequential(Block(), Block())])
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Any) -> Any:
        for block in self.layers[0]:
            x = block(x)
        return self.fc(ops.mean(x, (2, 3)))  # the line of fc


def line(mark: str) -> str:
    """The line of this file that ends with a comment, as origins show it."""
    with open(__file__, encoding="utf-8") as file:
        number = next(i for i, text in enumerate(file, 1) if text.rstrip().endswith(f"# the line of {mark}"))
    return f"test_origin.py:{number}"


def network() -> Net:
    lm.manual_seed(0)
    return Net()


@pytest.mark.feature("F102")
def test_nodes_name_module_and_line() -> None:
    traced = lm.trace(network().eval(), X)
    found = {(n.op.name, n.origin.module): n.origin.line for n in traced.nodes}
    assert found["conv", "layers.0.0.conv1"] == found["conv", "layers.0.1.conv1"] == line("conv1")
    assert found["batch_norm_infer", "layers.0.1.bn1"] == line("conv1")
    assert found["conv", "layers.0.1.conv2"] == line("conv2")
    assert found["relu", "layers.0.0"] == line("conv1")
    assert found["matmul", "fc"] == line("fc")
    assert found["reduce", ""] == line("fc")
    assert "  # layers.0.1.conv2" in str(traced)
    assert f"from layers.0.1.conv2, {line('conv2')})" in repr(
        [n for n in traced.nodes if n.op.name == "conv"][-1]
    )


def test_names_within_a_module_are_asked_for_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again by each of its layers, which would go through all those before it."""
    asked = list[type]()
    named = nn.Module.named_modules

    def watched(module: nn.Module) -> Any:
        asked.append(type(module))
        return named(module)

    net = nn.Sequential(*(nn.ReLU() for _ in range(20)))
    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "named_modules", watched)
        found = graph.trace(net, Spec((2, 3), lm.float32))
    assert [node.origin.module for node in found.nodes] == [str(i) for i in range(20)]
    assert asked == [nn.Sequential]


def test_gradients_name_what_they_are_of() -> None:
    net = network().eval()
    nodes = lm.trace(lambda x: lm.gradients(ops.sum(net(x)), [x]), X).nodes
    back = {n.origin.module for n in nodes if n.op.name == "conv_data_grad"}
    assert back == {f"layers.0.{i}.conv{k}" for i in (0, 1) for k in (1, 2)}
    assert all(n.origin.gradient for n in nodes if n.op.name == "conv_data_grad")
    assert str(next(n for n in nodes if n.op.name == "conv_data_grad").origin).startswith(
        "gradient of layers.0.1.conv2"
    )


def test_they_survive_the_passes_of_a_compiler() -> None:
    net = network()
    step = lm.train_step(net, ops.cross_entropy, lm.optim.SGD(lr=0.1), device="cpu")
    step(X, np.array([0, 1]))
    executable = step.program(Spec(X.shape, lm.float32), Spec((2,), lm.int64)).executable
    for node in executable.graph.nodes:
        if node.op.effect == "pure":
            assert node.origin.line, node
    rows = graph.profile(executable, rounds=0).rows
    fused = [r for r in rows if r.op.startswith("fused(conv")]
    assert fused
    assert all(re.match(r"layers\.0\.\d\.conv\d", r.origin) for r in fused)
    assert {r.origin for r in rows if r.op.startswith("sgd_update")} >= {"update of layers.0.0.conv1.weight"}


@pytest.mark.feature("F102")
def test_the_plan_and_its_page_show_them() -> None:
    executable = lm.jit(network().eval()).program(lm.tensor(X))
    shown = graph.profile(executable, rounds=0)
    assert re.search(
        r"fused\(conv.* layers\.0\.1\.conv2( \+ layers\.0\.1)?, test_origin\.py:\d+", shown.text()
    )
    page = html_page(shown, "net")
    assert "<th>from</th>" in page
    assert "layers.0.1.conv2" in page
    assert all("origin" in row for row in shown.record["kernels"])


def test_for_a_gpu_too() -> None:
    executable = lm.compile(lm.trace(network().eval(), X), H200)
    assert all(r.origin for r in graph.profile(executable, rounds=0).rows if r.op != "reorder")


def test_files_keep_the_paths_and_not_the_lines(tmp_path: Any) -> None:
    path = tmp_path / "net.safetensors"
    graph.save(lm.trace(network().eval(), X), path)
    loaded = graph.load(path)
    assert {n.origin.module for n in loaded.nodes} >= {"layers.0.0.conv1", "fc"}
    assert {n.origin.line for n in loaded.nodes} == {""}


def test_recomputed_nodes_keep_them() -> None:
    net = network().eval()
    traced = lm.trace(lambda x: lm.gradients(ops.mean(net(x) ** 2), [x]), X)
    full = lm.compile(traced, "cpu").peak_bytes
    small = lm.compile(traced, "cpu", memory_limit=int(0.9 * full))
    assert small.recomputed
    assert all(n.origin.line for n in small.graph.nodes)


@pytest.mark.feature("F106")
def test_errors_within_a_network_name_the_module_and_the_line() -> None:
    with pytest.raises(ShapeError, match="has 4 channels") as caught:
        network()(np.ones((2, 4, 8, 8), np.float32))
    (note,) = caught.value.__notes__
    assert note == f"in the module layers.0.0.conv1 (Conv2d), {__file__}:{line('conv1').split(':')[1]}"
    with pytest.raises(ShapeError) as caught:
        nn.Linear(3, 2)(np.ones((2, 4), np.float32))
    assert caught.value.__notes__[0].startswith("in the module Linear, ")
    with pytest.raises(ShapeError) as caught:
        lm.jit(network())(np.ones((2, 4, 8, 8), np.float32))
    assert "layers.0.0.conv1 (Conv2d)" in caught.value.__notes__[0]


def test_what_has_no_kernel_names_where_it_stands() -> None:
    with unregistered():

        class Nowhere(CustomOp):
            def infer(self, x: Spec) -> tuple[Spec]:
                return (x.open,)

            def reference(self, x: Any) -> tuple[Any]:
                return (x,)

        class Layer(nn.Module):
            def forward(self, x: Any) -> Any:
                return call(Nowhere(), x)

        with pytest.raises(NoKernel, match="give the class Nowhere a method expression") as caught:
            lm.compile(lm.trace(nn.Sequential(nn.ReLU(), Layer()), X), H200)
    assert caught.value.__notes__ == [f"in 1, test_origin.py:{Layer.forward.__code__.co_firstlineno + 1}"]
    assert "nowhere" not in REGISTRY


def test_refused_fusions_name_the_module() -> None:
    net = network().eval()
    planned = lm.compile(lm.trace(lambda x: lm.gradients(ops.sum(net(x)), [x]), X), "cpu")
    assert any(" in layers.0." in reason for reason in planned.refusals)


def test_modules_outside_of_the_network_and_other_threads() -> None:
    other = nn.ReLU()

    class Outer(nn.Module):
        def forward(self, x: Any) -> Any:
            return other(x)

    nodes = lm.trace(nn.Sequential(Outer()), X).nodes
    assert [n.origin.module for n in nodes] == ["ReLU"]
    found: list[Origin] = []

    class Looks(nn.Module):
        def forward(self, x: Any) -> Any:
            thread = threading.Thread(target=lambda: found.append(current_origin()))
            thread.start()
            thread.join()
            found.append(current_origin())
            return x

    nn.Sequential(Looks())(X)
    assert [o.module for o in found] == ["", "0"]


def test_origins_are_joined_and_given() -> None:
    a, b = Origin("conv1", "/x/net.py", 3), Origin("bn1", "/x/net.py", 4)
    assert str(a.joined(b)) == "conv1 + bn1, net.py:3"
    assert a.joined(b).parts == (a, b)
    assert a.joined(a).module == "conv1"
    assert str(a.joined(Origin())) == "conv1, net.py:3"
    assert str(Origin()) == ""
    with origin_is(b):
        assert current_origin() == b
    assert current_origin().file == __file__


def test_what_runs_a_module_is_no_line_of_the_user() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lamina", "plan", "lenet"], capture_output=True, text=True, check=True
    )
    assert "conv.0" in done.stdout
    assert "<frozen" not in done.stdout
