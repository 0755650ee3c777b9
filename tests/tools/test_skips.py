"""Tests that are skipped in every run are found."""

from pathlib import Path

import pytest

from tools import skips

RUN = """<testsuites><testsuite name="pytest">
<testcase classname="tests.a" name="test_passed"/>
<testcase classname="tests.a" name="test_sometimes">{sometimes}</testcase>
<testcase classname="tests.a" name="test_never[1]"><skipped type="pytest.skip" message="needs two GPUs"/></testcase>
<testcase classname="" name="tests.c"><skipped type="pytest.skip" message="no torch"/></testcase>
<testcase classname="" name="tests.b"><skipped type="pytest.skip" message="no module cupy"/></testcase>
</testsuite></testsuites>"""
SKIPPED = '<skipped type="pytest.skip" message="no torch"/>'


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    other = '<testsuites><testsuite><testcase classname="tests.c" name="test_it"/></testsuite></testsuites>'
    texts = [RUN.format(sometimes=SKIPPED), RUN.format(sometimes=""), other]
    files = [tmp_path / f"{i}.xml" for i in range(3)]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    return [str(file) for file in files]


def test_only_what_no_run_executed_is_named(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert skips.main(runs) == 1
    assert capsys.readouterr().out.splitlines() == [
        "tests.a::test_never[1] is skipped in every run: needs two GPUs",
        "tests.b is skipped in every run: no module cupy",
        "2 tests are skipped in every run of 3",
    ]
    assert skips.main(runs[:1]) == 1
    out = capsys.readouterr().out
    assert "tests.a::test_sometimes is skipped in every run: no torch" in out
    assert "tests.c is skipped in every run: no torch" in out


def test_runs_without_skips_pass(tmp_path: Path) -> None:
    file = tmp_path / "one.xml"
    file.write_text('<testsuites><testsuite><testcase classname="a" name="b"/></testsuite></testsuites>')
    assert skips.main([str(file)]) == 0
    assert skips.main([]) == 2


def test_what_other_processors_run_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip = f'<skipped type="pytest.skip" message="{skips.PROCESSOR} AVX-512"/>'
    cases = "".join(f'<testcase classname="a" name="{i}">{skip}</testcase>' for i in range(3))
    file = tmp_path / "one.xml"
    file.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert skips.main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 tests are for other machines: the processor has no AVX-512",
        "0 tests are skipped in every run of 1",
    ]
