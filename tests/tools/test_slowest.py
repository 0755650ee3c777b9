"""The slowest tests of a report, cases of one together."""

from pathlib import Path

from tools.figures import slowest_tests
from tools.slowest import slowest

REPORT = """<testsuites><testsuite time='9.5'>
<testcase classname='tests.nn.test_conv' name='test_a[1]' time='1.5'/>
<testcase classname='tests.nn.test_conv' name='test_a[2-[x]]' time='2.5'/>
<testcase classname='tests.test_tiny' name='test_b' time='3.0'/>
<testcase classname='tests.test_tiny' name='test_c' time='0.25'/>
</testsuite></testsuites>"""


def test_cases_count_together(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    report.write_text(REPORT)
    found = slowest(report, 2)
    assert (found["tests"], found["seconds"], found["run_seconds"]) == (4, 7.2, 9.5)
    assert found["rows"] == [
        {"test": "nn/test_conv.py::test_a", "cases": 2, "seconds": 4.0, "longest": 2.5},
        {"test": "test_tiny.py::test_b", "cases": 1, "seconds": 3.0, "longest": 3.0},
    ]
    text = slowest_tests({"date": "2026-01-01", "processor": "a machine", "note": "", **found})
    assert "| `nn/test_conv.py::test_a` | 2 | 4.0 | 2.5 | 56 % |" in text
    assert text.endswith("4 tests, 7 s of all processes, 10 s for the run. Measured 2026-01-01; a machine.\n")
