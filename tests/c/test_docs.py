"""The programs on the page about the C layer run as they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helpers import ROOT

PAGE = ROOT / "docs" / "c-layer.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.feature("F001", "F004")
def test_the_programs_of_the_page_run(fresh: Any) -> None:
    assert len(BLOCKS) == 3
    assert fresh("\n".join(BLOCKS) + "\nprint(1)") == 1
