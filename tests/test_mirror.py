"""The tests lie where the source lies, and helpers in a place of their own."""

from pathlib import Path

from tests.helpers import ROOT

TESTS, PACKAGE = ROOT / "tests", ROOT / "src" / "lamina"
#: Folders beside the package that have tests under their own name.
BESIDE = ("benchmarks", "codegen", "docs", "examples", "tools")
#: Folders of tests that no folder of the source answers to, and what they are for.
OTHERS = {
    "helpers": "what several test files share, with the tests of that",
    "judges": "Lamina measured by the test suites of other libraries",
    "programs": "networks as users write them, run by Lamina and by PyTorch",
    "typing": "programs of users that the type checkers read",
}
#: Modules without a test of their name; most are tested through others. The list may only shrink.
WITHOUT = (TESTS / "without_test.txt").read_text(encoding="utf-8").split()


def source_folders() -> set[Path]:
    packages = {f.parent.relative_to(PACKAGE) for f in PACKAGE.rglob("*.py")}
    return packages | {Path(name) for name in BESIDE if (ROOT / name).is_dir()}


def files_of_tests() -> list[Path]:
    return sorted(f.relative_to(TESTS) for f in TESTS.rglob("test_*.py"))


def subjects(folder: Path) -> set[str]:
    """What the test files of a folder are named after: test_conv.py and test_gpu_conv.py are conv's."""
    names = {f.stem.removeprefix("test_") for f in (TESTS / folder).glob("test_*.py")}
    return names | {name.removeprefix("gpu_") for name in names}


def untested_modules() -> list[str]:
    """Modules that hold code (not only a package's list of names) and have no test of their name."""
    modules = (
        f.relative_to(PACKAGE) for f in PACKAGE.rglob("*.py") if f.name not in ("__init__.py", "__main__.py")
    )
    return sorted(str(m) for m in modules if m.stem.lstrip("_") not in subjects(m.parent))


def test_a_test_lies_in_the_folder_of_what_it_tests() -> None:
    mirrored = [file for file in files_of_tests() if file.parts[0] not in OTHERS]
    folders = source_folders()
    assert [str(file) for file in mirrored if file.parent not in folders] == [], "no folder of src/lamina"


def test_only_tests_lie_among_the_tests() -> None:
    files = (f.relative_to(TESTS) for f in TESTS.rglob("*.py"))
    allowed = ("__init__.py", "conftest.py")
    helpers = [f for f in files if f.parts[0] not in OTHERS and f.name not in allowed]
    assert [str(f) for f in helpers if not f.name.startswith("test_")] == [], (
        "helpers belong into tests/helpers"
    )


def test_modules_without_a_test_of_their_name_only_get_fewer() -> None:
    found = set(untested_modules())
    assert sorted(found - set(WITHOUT)) == [], "write tests/<same path>/test_<same name>.py"
    assert sorted(set(WITHOUT) - found) == [], "these have a test by now, or are gone: take them off the list"
