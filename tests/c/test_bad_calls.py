"""Wrong arguments end in typed errors, never in a crash: descriptors know their C type."""

import json
import os
import subprocess
import sys
from ctypes import c_void_p
from pathlib import Path

import pytest

from lamina.c import cudnn as c
from lamina.c import dnnl
from lamina.cudnn import legacy

ROOT = Path(__file__).parents[2]


@pytest.mark.feature("B039", "F007")
@pytest.mark.parametrize("module", ["lamina.c.cudnn", "lamina.c.dnnl", "lamina.cudnn.legacy"])
def test_random_calls(module: str) -> None:
    """How to see one again: python -m tests.helpers.bad_calls MODULE 1 1500; the last line names the call."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.helpers.bad_calls", module, "1", "1500"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    *calls, last = done.stdout.splitlines()
    assert done.returncode == 0, f"{(calls or [''])[-1]}\n{last}\n{done.stderr[-2000:]}"
    answers = json.loads(last)
    assert sum(answers.values()) == len(calls) == 1500
    assert [what for what in answers if what.startswith("WRONG")] == []
    assert answers["TypeError"] > 500


def test_a_descriptor_of_another_type_is_refused() -> None:
    tensor = c.cudnnCreateTensorDescriptor()
    with pytest.raises(TypeError, match="`filterDesc`=cudnnTensorDescriptor_t.*: a cudnnFilterDescriptor_t"):
        c.cudnnDestroyFilterDescriptor(tensor)
    with pytest.raises(
        TypeError, match=r"`tensorDesc`=7: .*; `cudnnTensorDescriptor_t\(7\)` for a raw address"
    ):
        c.cudnnDestroyTensorDescriptor(7)
    with pytest.raises(TypeError, match="`tensorDesc`='abc': a cudnnTensorDescriptor_t is wanted$"):
        c.cudnnDestroyTensorDescriptor("abc")
    c.cudnnSetTensor4dDescriptor(c_void_p(tensor), 0, 0, 1, 2, 3, 4)
    c.cudnnDestroyTensorDescriptor(c.cudnnTensorDescriptor_t(int(tensor)))


def test_null_is_refused_where_the_library_reads_without_looking() -> None:
    with pytest.raises(TypeError, match="cudnnDeriveBNTensorDescriptor: `xDesc`=None"):
        c.cudnnDeriveBNTensorDescriptor(c.cudnnCreateTensorDescriptor(), None, c.CUDNN_BATCHNORM_SPATIAL)
    with pytest.raises(TypeError, match="dnnl_memory_desc_clone: `existing_memory_desc`=None"):
        dnnl.dnnl_memory_desc_clone(None)


def test_memory_is_no_text() -> None:
    with pytest.raises(TypeError, match="`x`='abc': a pointer is wanted, not builtins.str"):
        c.cudnnSoftmaxForward(None, 0, 0, 0.0, None, "abc", 0.0, None, None)


@pytest.mark.feature("B039")
def test_objects_name_the_parameter() -> None:
    x = legacy.TensorDescriptor((1, 2, 3, 4))
    pooling = legacy.Pooling("max", window=2)
    with pytest.raises(TypeError, match=r"Pooling.output_dims: x_desc must be a TensorDescriptor, got 7"):
        pooling.output_dims(7)
    with pytest.raises(
        TypeError, match=r"Dropout.reserve_size: x_desc must be a TensorDescriptor, got Pooling"
    ):
        legacy.Dropout.reserve_size(pooling)
    with pytest.raises(ValueError, match="spatial: there are 1 to 6 spatial axes, got 2147483648"):
        legacy.Pooling("max", window=2, spatial=2**31)
    assert pooling.output_dims(x) == (1, 2, 1, 2)
