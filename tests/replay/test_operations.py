"""Ops are looked up where plans are made; what is no op is refused."""

import pytest

from lamina.graph.ir.serialize import GraphFileError
from lamina.replay.operations import operation
from lamina.runtime import Device

SPEC = [[2], "float32"]


def test_kinds() -> None:
    assert callable(operation(Device("cpu"), "numpy", ["relu", {}, [SPEC], [SPEC], [0], [0]]))
    assert callable(operation(Device("cpu"), "anew", ["cpu", ["reorder"], [SPEC], [SPEC], 0, [[0], [0], 0]]))
    with pytest.raises(GraphFileError, match="unknown op"):
        operation(Device("cpu"), "numpy", ["os.system", {}, [SPEC], [SPEC], [0], [0]])
    with pytest.raises(ValueError, match="unknown backend"):
        operation(Device("cpu"), "anew", ["os", ["reorder"], [SPEC], [SPEC], 0, [[0], [0], 0]])
