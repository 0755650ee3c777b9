"""The version stands in one place."""

import tomllib

import lamina
from lamina import _version
from tests.helpers import ROOT


def test_the_package_and_its_build_say_the_same() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["version"]
    assert lamina.__version__ is _version.__version__
    assert f'__version__ = "{lamina.__version__}"' in (ROOT / build["path"]).read_text(encoding="utf-8")
