"""Hooks around compiled networks: of modules, and those by which DistributedDataParallel reduces gradients."""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def test_hooks_of_modules() -> None:
    """Those that change what goes forward and backward, and those that only look."""
    import torch
    from torch import nn

    from tests.helpers.torch_training import ConvNet, compiled, images

    def hooked(model: Any, seen: list[Any]) -> Any:
        model.first.register_forward_hook(lambda module, given, result: result * 0.5)
        model.head.register_forward_pre_hook(lambda module, given: (given[0] + 1,))
        model.head.register_full_backward_pre_hook(lambda module, grads: (3 * grads[0],))
        model.register_forward_hook(lambda module, given, result: seen.append(result.shape))

        def doubled(module: Any, grads: Any, _: Any) -> Any:
            seen.append(grads[0].shape)
            return (2 * grads[0],)

        model.second.register_full_backward_hook(doubled)
        return model

    torch.manual_seed(0)
    model, (x, labels) = ConvNet(), images(0)
    twin, seen, wanted = copy.deepcopy(model), [], []  # type: ignore[var-annotated]
    hooked(model, wanted)
    run = compiled(hooked(twin, seen))
    nn.functional.cross_entropy(model(x), labels).backward()
    nn.functional.cross_entropy(run(x), labels).backward()
    assert seen == wanted == [(4, 5), (4, 8, 8, 8)]
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, atol=1e-5, rtol=1e-4)


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wide() -> Any:
    """Parameters of several buckets."""
    import torch
    from torch import nn

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head, self.norm = nn.Linear(6, 600), nn.Linear(600, 5), nn.BatchNorm1d(600)
            self.middle = nn.ModuleList(nn.Linear(600, 600) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x.flatten(1)[:, :6])
            for layer in self.middle:
                x = torch.relu(self.norm(layer(x))) + x
            return self.head(x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    return Wide()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"find_unused_parameters": True}])
def test_data_parallel_training(inside: bool, options: dict[str, bool]) -> None:
    """The compiled module within it, and around it, where Dynamo cuts the graph at the ends of buckets."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from lamina.convert.torch.backend import lamina
    from tests.helpers.torch_training import images, trained

    graphs: list[Any] = []
    buckets: list[int] = []

    @wraps(lamina)
    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return lamina(graph, inputs)

    def reduced(_: Any, bucket: Any) -> Any:
        buckets.append(bucket.buffer().numel())
        made = torch.futures.Future()  # type: ignore[var-annotated]
        made.set_result(bucket.buffer())
        return made

    def wrapped(model: Any) -> Any:
        parallel = DistributedDataParallel(model, bucket_cap_mb=2, **options)
        parallel.register_comm_hook(
            None, lambda state, bucket: reduced(state, bucket)
        )  # asks for annotations
        return parallel

    def small(p: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(p, lr=0.01)

    model = wide()
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    run = (
        wrapped(torch.compile(twin, backend=backend))
        if inside
        else torch.compile(wrapped(twin), backend=backend)
    )
    eager = trained(model, model, images, steps=3, optimizer=small)
    ours = trained(twin, run, images, steps=3, optimizer=small)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(eager), atol=1e-4, rtol=1e-4)
    assert len(graphs) > 1
    assert sum(buckets) == 3 * sum(p.numel() for p in twin.parameters())


_RANK = """
    import copy, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from tests.helpers.torch_training import ConvNet, compiled, images

    rank = int(sys.argv[1])
    dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
    torch.manual_seed(0)
    model = ConvNet().eval()  # statistics would be each rank's
    twin = copy.deepcopy(model)
    run = compiled(DistributedDataParallel(twin))
    rules = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for step in range(3):
        x, labels = images(step)
        for rule in rules:
            rule.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        part = slice(rank * 2, rank * 2 + 2)
        torch.nn.functional.cross_entropy(run(x[part]), labels[part]).backward()
        for rule in rules:
            rule.step()
    for p, q in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(q, p, atol=1e-5, rtol=1e-4)
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_RANK)]
    ranks = [
        subprocess.Popen([*command, str(r), str(tmp_path / "store")], cwd=ROOT, stderr=subprocess.PIPE)
        for r in range(2)
    ]
    said = [rank.communicate(timeout=120)[1].decode()[-2000:] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
