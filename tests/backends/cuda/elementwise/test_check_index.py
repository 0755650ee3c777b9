"""Labels out of range on a GPU: free without the policy, a kernel that stops the program with it."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launches
from lamina.ops.core import Array
from lamina.ops.primitives import CheckIndex
from lamina.spec import Policy, Spec, as_dtype, int64
from tests.helpers.emulator import Memory, run_launch
from tests.helpers.planned import H200

CUDA = backend(H200)


def test_free_unless_asked_for() -> None:
    plan = CUDA.plan(CheckIndex("one_hot", 10), [Spec((5,), int64)], Policy())
    assert plan.view


@pytest.mark.parametrize("ignore", [None, -100])
def test_the_kernel_compiles_and_names_what_it_checks(ignore: int | None) -> None:
    plan = CUDA.plan(CheckIndex("one_hot", 10, ignore), [Spec((5, 7), int64)], Policy(check_indices=True))
    assert isinstance(plan.make, Launches)
    (program,) = plan.make.programs
    assert '#define WHAT "one_hot"' in program.source
    assert program.cubin("sm_90")


def run_on_host(op: CheckIndex, index: Array) -> Array:
    """The kernel in the emulator, where what stops a GPU's program ends the process."""
    plan = CUDA.plan(op, [Spec(index.shape, as_dtype(index.dtype))], Policy(check_indices=True))
    (launch,) = plan.make.steps
    program = replace(launch.program, text=f"#define __trap() exit(86)\n{launch.program.text}")
    given, found = Memory(index.nbytes), Memory(index.nbytes)
    given.bytes[:] = index.reshape(-1).view(np.uint8)
    run_launch(replace(launch, program=program), Call((given.pointer,), (found.pointer,)))
    return found.bytes.view(index.dtype).reshape(index.shape)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_indices_in_range_pass() -> None:
    for dtype, values in ((np.int64, [3, 0, -100, 9]), (np.uint8, [0, 1, 9, 3])):
        index = np.array(values * 100, dtype)
        np.testing.assert_array_equal(run_on_host(CheckIndex("nll_loss", 10, -100), index), index)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_an_index_out_of_range_is_printed_and_stops_the_program() -> None:
    script = (
        "import numpy as np\n"
        "from lamina.ops.primitives import CheckIndex\n"
        "from tests.backends.cuda.elementwise.test_check_index import run_on_host\n"
        "run_on_host(CheckIndex('embedding', 7), np.array([0, 6, 7, 1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (86, "embedding: index 7 at element 2 is outside 0 ... 6\n")
