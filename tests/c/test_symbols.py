"""Every function of the header, against the installed cuDNN (9.19) and against 9.28."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.c import cudnn, dnnl
from tests.helpers import ROOT

pytestmark = pytest.mark.feature("B001", "F001")

RESOLVE = """
import json
from lamina.c import cudnn
from lamina.c._library import MissingSymbol
wrong, missing = [], []
for name in cudnn.SIGNATURES:
    since = cudnn.SINCE.get(name, (9, 0, 0))
    try:
        getattr(cudnn.library.symbols, name)
        if since > cudnn.library.version:
            wrong.append(f"{name} is there, but since says {since}")
    except MissingSymbol as error:
        missing.append(name)
        if since <= cudnn.library.version or "needs cuDNN 9." not in str(error):
            wrong.append(f"{name}: since {since}: {error}")
print(json.dumps([cudnn.library.version, len(cudnn.SIGNATURES), missing, wrong]))
"""
SWEEP = (ROOT / "tests" / "helpers" / "c_sweep.py").read_text()


@pytest.fixture(params=["installed", "9.28"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "installed":
        return {}
    return {"LAMINA_CUDNN": request.getfixturevalue("cudnn_928")}


def test_every_symbol_resolves_or_is_refused_by_version(fresh: Any, environment: dict[str, str]) -> None:
    version, total, missing, wrong = fresh(RESOLVE, **environment)
    assert wrong == []
    assert total == 239
    assert len(missing) == (0 if version >= [9, 28] else 19)


def test_every_function_can_be_called_without_a_gpu(fresh: Any, environment: dict[str, str]) -> None:
    outcomes = fresh(SWEEP, **environment)
    assert len(outcomes) == 239
    known = ("returned", "CUDNN_STATUS_")
    odd = {name: said for name, said in outcomes.items() if not said.startswith(known)}
    assert {n for n, said in odd.items() if "needs cuDNN" not in said} == set(), odd
    assert set(odd) == {n for n, since in cudnn.SINCE.items() if since > (9, 19, 0)} & set(odd)
    returned = sum(said == "returned" for said in outcomes.values())
    assert returned >= 50


@pytest.mark.feature("B004")
def test_every_dnnl_symbol_binds() -> None:
    assert len(dnnl.SIGNATURES) == 210
    for name in dnnl.SIGNATURES:
        assert callable(getattr(dnnl.library.symbols, name))
