"""The ledger tool reads rows and markers, and says what is wrong with them."""

from pathlib import Path

import pytest

from tools import ledger

TABLE = """
| id | level | feature | where from |
|---|---|---|---|
| F001 | C API | raw functions | P T(ffi) |
| F002 | C API | library search | P |
| B001 | tools | a ledger | – |
"""

TESTS = """
import pytest

pytestmark = [pytest.mark.feature("F001")]


def test_plain():
    pass


@pytest.mark.gpu
@pytest.mark.feature("F002", "B001")
@pytest.mark.parametrize("x", [1, 2])
def test_on_a_gpu(x):
    pass


class TestGroup:
    @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.feature("F002"))])
    def test_inner(self, x):
        pass


def helper():
    pass
"""

RESULTS = """<testsuites><testsuite>
<testcase classname="tests.sub.test_it" name="test_plain"/>
<testcase classname="tests.sub.test_it" name="test_on_a_gpu[1]"/>
<testcase classname="tests.sub.test_it" name="test_on_a_gpu[2]"><failure>no</failure></testcase>
<testcase classname="tests.sub.test_it.TestGroup" name="test_inner[1]"><skipped/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/features.md").write_text(TABLE)
    (tmp_path / "tests/sub").mkdir(parents=True)
    (tmp_path / "tests/sub/test_it.py").write_text(TESTS)
    return tmp_path


def test_rows(project: Path) -> None:
    rows = ledger.read_rows(TABLE)
    assert list(rows) == ["F001", "F002", "B001"]
    assert rows["B001"] == ledger.Row("B001", "tools", "a ledger")
    with pytest.raises(ledger.LedgerError, match="F001 stands twice"):
        ledger.read_rows(TABLE + "| F001 | x | y | z |\n")


def test_markers_are_read_from_module_class_function_and_parameter(project: Path) -> None:
    tests = {t.name: t for t in ledger.read_tests(project / "tests")}
    assert set(tests) == {"test_plain", "test_on_a_gpu", "TestGroup.test_inner"}
    assert tests["test_plain"].rows == ("F001",)
    assert tests["test_on_a_gpu"].rows == ("F001", "F002", "B001")
    assert tests["TestGroup.test_inner"].rows == ("F001", "F002")
    assert [t.gpu for t in tests.values()] == [False, True, False]
    assert tests["TestGroup.test_inner"].id == "tests/sub/test_it.py::TestGroup::test_inner"


def test_results_give_states(project: Path) -> None:
    (project / "results.xml").write_text(RESULTS)
    tests, results = ledger.read_tests(project / "tests"), ledger.read_results(project / "results.xml")
    assert ledger.state("F001", tests, results, gpu=False) == "skipped"  # the worst of its two tests
    assert ledger.state("F002", tests, results, gpu=True) == "failed"
    assert ledger.state("B001", tests, results, gpu=False) == ""
    assert ledger.state("B001", tests, {}, gpu=True) == "not run"


def test_program(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger.main(["--root", str(project)]) == 0
    assert "3 of 3 rows have a test" in capsys.readouterr().out
    written = (project / "docs/ledger.md").read_text()
    assert "| B001 | tools | a ledger |  | `sub/test_it.py::test_on_a_gpu` |" in written
    (project / "results.xml").write_text(RESULTS)
    assert ledger.main(["--root", str(project), "--results", str(project / "results.xml")]) == 1
    assert "row F002: a test of it failed" in capsys.readouterr().err


def test_rows_without_a_test_are_open(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (project / "docs/features.md").open("a") as file:
        file.write("| B044 | training | a step of any program | – |\n")
    assert ledger.main(["--root", str(project)]) == 0
    assert "B044  CPU open      GPU -" in capsys.readouterr().out
    written = (project / "docs/ledger.md").read_text()
    assert "3 of 4 rows have a test. Open: B044." in written
    assert "| B044 | training | a step of any program | open |  |" in written


def test_an_unknown_row_fails(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_more.py").write_text('@pytest.mark.feature("F777")\ndef test_x():\n    pass\n')
    assert ledger.main(["--root", str(project), "--check"]) == 1
    assert "tests/test_more.py::test_x: no row F777 in the ledger" in capsys.readouterr().err
    (project / "tests/test_more.py").write_text("@pytest.mark.feature(ROW)\ndef test_x():\n    pass\n")
    with pytest.raises(ledger.LedgerError, match=r"tests.test_more, line 1: .* plain strings"):
        ledger.main(["--root", str(project)])


def test_the_projects_own_markers_name_rows() -> None:
    rows = ledger.read_rows((ledger.ROOT / "docs/features.md").read_text())
    assert len(rows) == 177
    assert ledger.check(rows, ledger.read_tests(ledger.ROOT / "tests")) == []
