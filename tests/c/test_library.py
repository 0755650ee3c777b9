"""The search for a library: order, explicit paths, one copy per process, versions, errors."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from lamina.c import _cudnn, _library, cublaslt, cudnn, dnnl
from lamina.c._library import (
    Library,
    LibraryConflict,
    LibraryError,
    LibraryNotFound,
    MissingSymbol,
    UnsupportedVersion,
    loaded_libraries,
    shared_object,
    wheel_file,
)

WHERE = (
    "import json; from lamina.c.cudnn import library as l; print(json.dumps([l.path, l.version, l.found]))"
)
ATTEMPT = """
import ctypes, json, sys
from lamina.c.cudnn import library
from lamina.c._library import LibraryError
for path in sys.argv[1:]:
    ctypes.CDLL(path)
try:
    print(json.dumps(["opened", library.path, library.found]))
except LibraryError as error:
    print(json.dumps([type(error).__name__, str(error), ""]))
"""


def make(**changes: Any) -> Library:
    tables: dict[str, Any] = {
        "environment": "LAMINA_NOTHING",
        "pattern": r"libnothing\.so",
        "names": ("libnothing.so.9", "libnothing.so"),
        "finders": {},
        "supported": ((9, 0, 0), (10, 0, 0)),
        "header": (9, 28, 0),
        "since": {},
        "signatures": {},
        "enums": {},
    }
    return Library("Nothing", **{**tables, **changes})


@pytest.mark.feature("F002")
def test_not_found_lists_everything_that_was_tried() -> None:
    def broken() -> str:
        raise RuntimeError("no driver here\nsecond line")

    library = make(finders={"a wheel": lambda: None, "a finder": broken})
    with pytest.raises(LibraryNotFound) as caught:
        library.open()
    text = str(caught.value)
    assert "Nothing was not found; tried:" in text
    for line in ("$LAMINA_NOTHING: not set", "a wheel: not installed", "a finder: no driver here"):
        assert f"  - {line}" in text
    assert "libnothing.so.9: " in text
    assert "second line" not in text
    assert not library.available()


@pytest.mark.feature("F002")
def test_explicit_path_that_does_not_open(fresh: Any) -> None:
    kind, text, _ = fresh(ATTEMPT, LAMINA_CUDNN="/nowhere/libcudnn.so.9")
    assert kind == "LibraryNotFound"
    assert "/nowhere/libcudnn.so.9" in text
    assert "LAMINA_CUDNN" in text


@pytest.mark.feature("F002", "F003")
def test_explicit_path_to_another_library(fresh: Any) -> None:
    kind, text, _ = fresh(ATTEMPT, LAMINA_CUDNN=dnnl.library.path)
    assert kind == "LibraryNotFound"
    assert "is not a cuDNN library" in text


@pytest.mark.feature("F002")
def test_platform_names_are_most_exact_first() -> None:
    assert shared_object("cudnn", 9) == ("libcudnn.so.9", "libcudnn.so")


@pytest.mark.feature("F002", "B003")
def test_explicit_path_selects_the_version(fresh: Any, cudnn_928: str) -> None:
    path, version, found = fresh(WHERE, LAMINA_CUDNN=cudnn_928)
    assert (path, version[:2], found) == (cudnn_928, [9, 28], "$LAMINA_CUDNN")


@pytest.mark.feature("B003")
def test_the_one_already_loaded_wins(fresh: Any, cudnn_928: str) -> None:
    outcome, path, found = fresh(ATTEMPT, cudnn_928)
    assert (outcome, path, found) == ("opened", cudnn_928, "already loaded")


@pytest.mark.feature("B003")
def test_loaded_and_explicit_path_may_agree(fresh: Any, cudnn_928: str) -> None:
    outcome, path, _ = fresh(ATTEMPT, cudnn_928, LAMINA_CUDNN=cudnn_928)
    assert (outcome, path) == ("opened", cudnn_928)


@pytest.mark.feature("B003")
def test_a_mix_up_is_refused_with_both_paths(fresh: Any, cudnn_928: str, cudnn_installed: str) -> None:
    kind, text, _ = fresh(ATTEMPT, cudnn_928, LAMINA_CUDNN=cudnn_installed)
    assert kind == "LibraryConflict"
    assert cudnn_928 in text
    assert cudnn_installed in text


@pytest.mark.feature("B003")
def test_two_loaded_copies_are_refused(fresh: Any, cudnn_928: str, cudnn_installed: str) -> None:
    kind, text, _ = fresh(ATTEMPT, cudnn_928, cudnn_installed)
    assert kind == "LibraryConflict"
    assert cudnn_928 in text
    assert cudnn_installed in text


@pytest.mark.feature("B003")
def test_import_opens_nothing(fresh: Any) -> None:
    code = """
import json, sys
import lamina.c.cudnn, lamina.c.dnnl, lamina.c.compat
from lamina.c._library import loaded_libraries
slow = [m for m in ("cuda", "torch", "clang") if m in sys.modules]
print(json.dumps([loaded_libraries(r"lib(cudnn|dnnl|cuda|cudart|nvrtc).*"), slow]))
"""
    assert fresh(code) == [[], []]


@pytest.mark.feature("F003")
def test_versions_agree() -> None:
    major, minor, patch = cudnn.library.version
    assert cudnn.cudnnGetVersion() == major * 10000 + minor * 100 + patch
    kinds = (cudnn.MAJOR_VERSION, cudnn.MINOR_VERSION, cudnn.PATCH_LEVEL)
    assert tuple(map(cudnn.cudnnGetProperty, kinds)) == (major, minor, patch)
    assert cudnn.library.header == (9, 28, 0)
    assert cudnn.CUDNN_VERSION == 92800
    for check in (cudnn.cudnnGraphVersionCheck, cudnn.cudnnOpsVersionCheck, cudnn.cudnnCnnVersionCheck):
        check()
    cudnn.cudnnAdvVersionCheck()


@pytest.mark.feature("F003")
def test_a_version_outside_the_range_is_refused() -> None:
    class Old(Library):
        def read_version(self, library: ctypes.CDLL) -> tuple[int, int, int]:
            return (8, 9, 7)

    path = dnnl.library.path
    library = make(finders={"test": lambda: path})
    library.__class__ = Old
    with pytest.raises(
        UnsupportedVersion, match=r"8\.9\.7 .* must be 9\.0\.0 or newer, and older than 10\.0\.0"
    ):
        library.open()


@pytest.mark.feature("B001", "F003")
def test_missing_symbol_names_both_versions() -> None:
    if cudnn.library.version >= (9, 22, 0):
        pytest.fail("the test environment pins cuDNN 9.19; this one is newer")
    with pytest.raises(
        MissingSymbol, match=r"cudnnCausalConv1dForward needs cuDNN 9\.22, this is 9\.19"
    ) as caught:
        cudnn.cudnnCausalConv1dForward(0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0)
    error = caught.value
    assert isinstance(error, LibraryError)
    assert isinstance(error, NotImplementedError)
    assert (error.symbol, error.needs) == ("cudnnCausalConv1dForward", (9, 22, 0))
    assert error.path == cudnn.library.path
    assert not cudnn.library.has("cudnnCausalConv1dForward")


def test_loaded_libraries_sees_this_process() -> None:
    cudnn.library.open()
    assert loaded_libraries(r"libcudnn\.so(\.9)?") == [cudnn.library.path]
    assert loaded_libraries(r"libthere_is_no_such\.so") == []


def test_conflict_is_a_library_error() -> None:
    assert issubclass(LibraryConflict, LibraryError)
    assert issubclass(LibraryError, RuntimeError)


@pytest.mark.parametrize("holder", [cublaslt, _cudnn])
def test_wheels_for_two_versions_of_cuda_are_looked_at(monkeypatch: pytest.MonkeyPatch, holder: Any) -> None:
    """The newer one first, the one before where that is not installed."""
    for installed in (0, 1, 2):
        asked: list[str] = []

        def wheel_file(name: str, _: str, asked: list[str] = asked, installed: int = installed) -> str | None:
            asked.append(name)
            return name if len(asked) > installed else None

        monkeypatch.setattr(holder, "wheel_file", wheel_file)
        assert holder._wheel() == (asked[-1] if installed < 2 else None)
        assert len(asked) == min(installed + 1, 2)
    assert asked[1] == asked[0].removesuffix("-cu13") + "-cu12"


def test_a_platform_name_is_found_at_the_path_that_the_loader_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or keeps its name, where nobody tells what was loaded."""
    opened: list[str] = []

    def load(name: str) -> object:
        opened.append(name)
        if name == "libnothing.so.9":
            raise OSError("no such file")
        return "the library"

    monkeypatch.setattr(_library.ctypes, "CDLL", load)
    for loaded, path in (([], "libnothing.so"), (["/lib/libnothing.so"], "/lib/libnothing.so")):
        monkeypatch.setattr(_library, "loaded_libraries", lambda pattern, found=loaded: found)
        found = make()._first_that_opens()
        assert found == ("the library", path, "platform name libnothing.so")
    assert opened == ["libnothing.so.9", "libnothing.so"] * 2


RECORD = """
nothing/lib/libnothing_extra.so.9,sha256=a,1
nothing/lib/libnothing.so.9.1.2,sha256=b,2
nothing/lib/libnothing.so.9,"sha256=c",3
nothing/lib/libnothing.so,,
nothing/libnothing.so.9.py,,
"""


def test_the_file_of_a_wheel_is_read_off_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest name that matches and is there; folders in the order of sys.path."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "nothing/lib").mkdir(parents=True)
        (folder / "a_wheel-9.1.2.dist-info").mkdir()
        (folder / "a_wheel-9.1.2.dist-info/RECORD").write_text(RECORD.lstrip())
    monkeypatch.setattr("sys.path", [str(tmp_path / "absent"), str(first), str(second)])
    pattern = r"libnothing\.so(\.\d+)+"
    assert wheel_file("a-wheel", pattern) is None
    here = {}
    for name, folder in (("libnothing_extra.so.9", first), ("libnothing.so", first),
                         ("libnothing.so.9", second), ("libnothing.so.9.1.2", first)):  # fmt: skip
        here[name] = folder / "nothing/lib" / name
        here[name].touch()
    assert wheel_file("a-wheel", pattern) == str(here["libnothing.so.9.1.2"])
    (first / "nothing/lib/libnothing.so.9").symlink_to("libnothing.so")
    assert wheel_file("a-wheel", pattern) == str(here["libnothing.so"])  # what the link leads to
    assert wheel_file("a", pattern) is None
    assert wheel_file("another-wheel", pattern) is None
    monkeypatch.setattr("sys.path", [str(second), str(first)])
    assert wheel_file("a_wheel", pattern) == str(here["libnothing.so.9"])


MAPS = """
7f00-7f10 r-xp 00000000 08:01 1 /a/libnothing.so.9
7f10-7f20 rw-p 00001000 08:01 1 /a/libnothing.so.9
7f20-7f30 r-xp 00000000 08:01 2 /b c/libnothing.so (deleted)
7f30-7f40 r-xp 00000000 08:01 3 /a/libnothing_extra.so
7f40-7f50 rw-p 00000000 00:00 0 [heap]
7f50-7f60 rw-p 00000000 00:00 0
"""


def test_loaded_libraries_are_read_off_the_process_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file once, one that was deleted since too; none where there is no map."""
    monkeypatch.setattr(Path, "read_text", lambda path: MAPS.lstrip())
    assert loaded_libraries(r"libnothing\.so(\.9)?") == ["/a/libnothing.so.9", "/b c/libnothing.so"]

    def missing(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert loaded_libraries(r"libnothing\.so(\.9)?") == []


@pytest.mark.parametrize(
    ("version", "fits"),
    [((8, 9, 9), False), ((9, 0, 0), True), ((9, 99, 9), True), ((10, 0, 0), False), ((10, 0, 1), False)],
)
def test_the_lowest_version_is_supported_and_the_bound_is_not(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], fits: bool
) -> None:
    library = make()
    monkeypatch.setattr(library, "read_version", lambda opened: version)
    opened = ctypes.CDLL(None)
    if fits:
        assert library._check(opened, "/a/libnothing.so") == version
        return
    with pytest.raises(UnsupportedVersion, match=r"it must be 9\.0\.0 or newer, and older than 10\.0\.0"):
        library._check(opened, "/a/libnothing.so")


@pytest.mark.parametrize(
    ("platform", "names"),
    [
        ("linux", ("libcudnn.so.9", "libcudnn.so")),
        ("darwin", ("libcudnn.9.dylib", "libcudnn.dylib")),
        ("win32", ("cudnn64_9.dll", "cudnn.dll")),
    ],
)
def test_names_of_every_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    assert shared_object("cudnn", 9) == names
