"""Networks of the user's own, which commands are told by FILE.py:NAME."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lamina.cli import main, networks
from lamina.cli.status import ExitStatus
from lamina.nn.models import registry
from tests.cli.test_folders import colours

NETS = """
from beside_the_networks import CHANNELS
from lamina import nn
from lamina.nn.models.registry import network

@network("an unpublished one", size=20)
def small_net(num_classes: int = 7) -> nn.Module:
    layers = nn.Conv2d(3, CHANNELS, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, num_classes)
    return nn.Sequential(*layers)

def bare_net(in_channels: int = 3, num_classes: int = 5) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_channels, num_classes))

def lenet(num_classes: int = 5) -> nn.Module:
    return nn.Identity()

def grey_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))

def wide_net(width: int, depth: int = 2, *, num_classes: int) -> nn.Module:
    return nn.Linear(width, num_classes)

made = grey_net()

SIZE = 3
"""


@pytest.fixture
def nets(tmp_path: Path) -> Iterator[Path]:
    """A file with networks, which imports a module that lies beside it; what is known is as before afterwards."""
    (tmp_path / "beside_the_networks.py").write_text("CHANNELS = 4\n")
    (tmp_path / "nets.py").write_text(NETS)
    tables: list[dict[str, object]] = [networks.NETWORKS, registry._builders]  # type: ignore[list-item]
    before, path = [dict(t) for t in tables], list(sys.path)
    yield tmp_path / "nets.py"
    for table, held in zip(tables, before, strict=True):
        table.clear()
        table.update(held)
    sys.path[:] = path
    sys.modules.pop("beside_the_networks", None)


def refused(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a network's name that is none."""
    with pytest.raises(SystemExit) as ended:
        main(["summary", name])
    assert ended.value.code == ExitStatus.USAGE
    return capsys.readouterr().err


def test_a_summary_of_one_with_a_decorator_and_of_one_without(
    nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", f"{nets}:small_net"]) == 0
    assert "inputs: f32[1,3,20,20]" in capsys.readouterr().out
    assert main(["summary", f"{nets}:bare_net", "--size", "8", "--batch-size", "2"]) == 0
    found = capsys.readouterr().out
    assert "inputs: f32[2,3,8,8]" in found
    assert "f32[2,5]" in found


def test_trained_predicted_and_exported(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, weights, name = colours(tmp_path / "images", 4), tmp_path / "w.safetensors", f"{nets}:small_net"
    options = [
        "--device",
        "cpu",
        "--epochs",
        "1",
        "--batch-size",
        "8",
        "--no-bar",
        "--size",
        "20",
        "--workers",
        "1",
    ]
    assert main(["train", name, "--data", str(root), "--weights", str(weights), *options]) == 0
    networks.NETWORKS.pop("small-net")
    picture = str(root / "red" / "03.png")
    capsys.readouterr()
    assert main(["predict", picture, "--weights", str(weights), "--device", "cpu"]) == ExitStatus.FAILED
    assert "is of small-net, which is not known here" in capsys.readouterr().err
    assert main(["predict", picture, "--weights", str(weights), "--device", "cpu", "--network", name]) == 0
    assert "red" in capsys.readouterr().out
    networks.NETWORKS.pop("small-net")
    assert main(["export", name, str(tmp_path / "net.onnx"), "--weights", str(weights)]) == 0
    networks.NETWORKS.pop("small-net")
    assert main(["plan", name, "--device", "cpu", "--batch-size", "2"]) == 0


def test_one_without_arguments_is_taken_as_it_is(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It takes the channels and gives the classes that it has, whatever the data are; others it refuses itself."""
    options = ["--data", "digits", "--device", "cpu", "--size", "8", "--max-steps", "2", "--no-bar"]
    assert main(["train", f"{nets}:grey_net", *options]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["train", f"{nets}:small_net", *options]) == ExitStatus.FAILED
    assert "small-net takes images of 3 channels, the data has 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SIZE", "has no function or class 'SIZE' that makes a network"),
        ("nothing", "has no function or class 'nothing' that makes a network"),
        ("lenet", "'lenet' is another network's name; give it one of its own"),
        ("made", "has no function or class 'made' that makes a network"),
        (
            "wide_net",
            "wide_net needs width; a command says num_classes, in_channels, image_size, give others a",
        ),
    ],
)
def test_names_that_are_none(nets: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(f"{nets}:{name}", capsys)


def test_the_nearest_names_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no network is called 'alexnt'; the nearest: alexnet" in refused("alexnt", capsys)


def test_a_file_that_is_missing_or_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "FileNotFoundError" in refused(f"{tmp_path}/none.py:net", capsys)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert "broken.py: ZeroDivisionError: division by zero" in refused(f"{tmp_path}/broken.py:net", capsys)
