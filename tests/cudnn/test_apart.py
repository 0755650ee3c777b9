"""Plans that another process makes, on a machine without a GPU."""

from pathlib import Path

import pytest

from tests.cudnn.test_deviceless import part
from tests.helpers.cudnn.installed import needs_cudnn_919, planning_environment

pytestmark = needs_cudnn_919


@pytest.mark.feature("B051")
def test_a_plan_of_another_process_is_the_one_that_is_made_here(tmp_path: Path) -> None:
    found = part("apart", planning_environment(tmp_path))
    assert found["same"] == "(True, True)"
    assert found["refused"].startswith("CudnnNotSupported: ")
    assert "cudnnBackend" in found["refused"]
