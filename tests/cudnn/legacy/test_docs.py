"""The programs on the page about the imperative API run as they stand, and its table names what there is."""

import re

import pytest

from lamina.cudnn import legacy
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.legacy.gpu import Gpu

PAGE = (ROOT / "docs" / "imperative.md").read_text()
BLOCKS = re.findall(r"```python( gpu)?\n(.*?)```", PAGE, re.S)
pytestmark = needs_cudnn


@pytest.mark.feature("F017", "F018")
def test_the_programs_that_need_no_gpu_run() -> None:
    assert len(BLOCKS) == 3
    exec("\n".join(block for on_gpu, block in BLOCKS if not on_gpu), {})


@pytest.mark.gpu
@pytest.mark.feature("F045", "F080")
def test_all_programs_run(gpu: Gpu) -> None:
    memory = {name: gpu.zeros(2 * size) for name, size in (("x", 64 * 112**2 * 128), ("w", 128 * 49 * 128))}
    memory["y"] = gpu.zeros(2 * 64 * 112**2 * 128)
    exec("\n".join(block for _, block in BLOCKS), memory)


@pytest.mark.gpu
@pytest.mark.feature("F077")
def test_the_program_on_arrays_runs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    (program,) = re.findall(r"```python arrays\n(.*?)```", PAGE, re.S)
    image, filters = torch.ones(2, 4, 8, 8).cuda(), torch.ones(4, 4, 3, 3).cuda()
    out = torch.ones(2, 4, 8, 8).cuda()
    exec(program, {"legacy": legacy, "image": image, "filters": filters, "out": out})
    assert out[0, 0, 4, 4].item() == 37.0  # 1 + 4 channels of 3 x 3 ones


def test_the_table_names_what_there_is() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", PAGE, re.M)
    assert len(rows) >= 10
    for names, operations in rows:
        there = [getattr(legacy, name) for name in re.findall(r"`(\w+)`", names)]
        for operation in set(re.findall(r"[a-z0-9]+(?:_[a-z0-9]+)+", operations)) - {"output_padding"}:
            assert any(hasattr(one, operation) for one in there), operation
