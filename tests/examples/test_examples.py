"""Each example runs by itself, without a warning, and prints what its docstring says."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lamina
from tests.helpers import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: What the output of each example must match.
EXPECTED = {
    "01_tensor.py": r"\[\[3\.5, 3\.5\], \[7\.5, 7\.5\]\]\n\[0\.0, 7\.0, 0\.0\]\nTensor\(\[\[1\..*f32\[2,2\], cpu\)",
    "02_conv.py": r"valid -> \(1, 1, 4, 4\)\nhalf  -> \(1, 1, 6, 6\)\nfull  -> \(1, 1, 8, 8\)\nsum 56\.0\n\[\[28\.",
    "03_graph.py": r"program\(\n.*relu_grad.*\d+ kernels on cpu.*loss 5\.2812, gradient \[\[1\.625\], \[9\.75\]\]",
    "04_train_digits.py": r"(epoch \d: loss \d\.\d+, validation \d.*% \(\d+ of 359\)\n){4}test digits: 9\d\.\d+ % ",
    "05_timing.py": r"512 x 512 x 512 on (cpu|cuda): \d+\.\d+ ms, \d+ GFLOP/s",
    "06_images.py": r"decoded    u8\[240,320,3\]\nscaled     u8\[64,64,3\]\nnormalised f32\[1,3,64,64\]\nthumb",
    "07_serving.py": r"64 of 64 answers are the same in.*class \d\nthe saved plan gives the same bits",
    "08_own_op.py": r"snake    \[0\.0, 1.*gradient \[1\.0, 1\.9093.*distances \[\[0\.0, 5.*loss \d+\.\d+ before, 0\.",
    "09_detect_boxes.py": r"(step \d+: loss \d\.\d+\n){3}(19|2[0-3]) of 23 squares, (19|2\d) boxes",
    "10_generate_text.py": r"(step \d+: loss \d\.\d+\n){3}the quick brown fox jumps over.*\npack my box with five",
    "11_spell_speech.py": r"(step \d+: loss \d\.\d+\n){3}1?\d\.\d % of the letters",
}


def test_every_example_is_expected() -> None:
    assert [e.name for e in EXAMPLES] == list(EXPECTED)


@pytest.mark.feature("F012")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_example(example: Path) -> None:
    source = example.read_text(encoding="utf-8")
    assert "Prints" in (ast.get_docstring(ast.parse(source)) or "")
    source_folder = str(Path(lamina.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": source_folder},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.match(EXPECTED[example.name], done.stdout, re.DOTALL), done.stdout
