"""Machine code is made once, and kept on disk."""

import builtins
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.backends.cpu.loops import compiler
from tests.helpers.loops import needs_llvm

NOTHING = "define void @kernel(ptr %arguments, i64 %first, i64 %last) #0 {\nret void\n}"


@needs_llvm
def test_code_is_kept_in_memory_and_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    text = NOTHING + "\n; of this test"
    made: list[str] = []
    real = compiler._machine_code
    monkeypatch.setattr(compiler, "_machine_code", lambda *args: made.append(args[-1]) or real(*args))
    assert compiler.compiled(text) is compiler.compiled(text)
    assert len(made) == 1
    del compiler._functions[text]  # as in another process
    compiler.compiled(text)(0, 0, 0)
    assert len(made) == 1
    for file in (tmp_path / "loops").iterdir():
        file.write_bytes(b"damaged")
    del compiler._functions[text]
    compiler.compiled(text)(0, 0, 0)
    assert len(made) == 2


_WITHOUT = """
import sys
sys.modules["llvmlite"] = None
sys.path[:] = sys.path
import numpy as np, lamina as lm
from lamina import ops
from lamina.backends.cpu.loops import compiler
assert not compiler.available()
x = lm.tensor(np.linspace(-3, 3, 9000, dtype=np.float32))
y = lm.jit(lambda x: ops.where(x > 0, x, x * 0.5) + 1)(x)
print(np.abs(y.numpy() - (np.where(x.numpy() > 0, x.numpy(), x.numpy() * 0.5) + 1)).max())
"""


def test_without_llvm_numpy_computes() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1e-6
    assert done.stderr == ""


@needs_llvm
def test_assembly_that_is_wrong_is_an_error() -> None:
    with pytest.raises(builtins.RuntimeError, match="expected"):
        compiler.compiled("this is no assembly")
