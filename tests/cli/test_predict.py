"""lamina train on a folder of images, and lamina predict with what it wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import lamina as lm
from lamina import nn
from lamina.cli import main
from lamina.cli.folders import Sight, inputs_of
from lamina.cli.status import ExitStatus
from tests.cli.test_folders import colours

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of coloured pictures, and the weights of a network that tells them apart."""
    place = tmp_path_factory.mktemp("colours")
    root, weights = colours(place / "images", 12), place / "weights.safetensors"
    options = ["--device", "cpu", "--epochs", "6", "--batch-size", "8", "--lr", "0.01", "--optimizer", "adam"]
    options += ["--no-bar", "--size", "28", "--workers", "1"]
    assert main(["train", "lenet", "--data", str(root), "--weights", str(weights), *options]) == 0
    return root, weights


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["predict", *words, "--device", "cpu"]) == 0
    return capsys.readouterr().out.splitlines()


def test_one_image_and_a_folder(trained: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    root, weights = trained
    file = root / "red" / "03.png"
    (line,) = lines_of(capsys, str(file), "--weights", str(weights), "--top", "2")
    path, _, rest = line.partition(": ")
    assert path == str(file)
    assert rest.startswith("red ")
    assert len(rest.split(", ")) == 2
    assert rest.split(", ")[0].endswith(" %")
    found = [
        json.loads(x)
        for x in lines_of(capsys, str(root), "--weights", str(weights), "--json", "--batch-size", "5")
    ]
    assert len(found) == 36
    hits = sum(Path(f["file"]).parent.name == f["classes"][0]["class"] for f in found)
    assert hits >= 33
    for f in found:
        assert sum(c["probability"] for c in f["classes"]) == pytest.approx(1)
        assert [c["probability"] for c in f["classes"]] == sorted(
            (c["probability"] for c in f["classes"]), reverse=True
        )


def test_other_names_and_plain_weights(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, weights = trained
    names = tmp_path / "names.txt"
    names.write_text("sky\ngrass\nblood\n")
    (line,) = lines_of(
        capsys, str(root / "red" / "00.png"), "--weights", str(weights), "--classes", str(names)
    )
    assert ": blood " in line
    plain = tmp_path / "plain.safetensors"
    nn.manual_seed(0)
    lm.save_safetensors(nn.LeNet(1, 10), plain)
    file = str(root / "red" / "00.png")
    (line,) = lines_of(capsys, file, "--weights", str(plain), "--network", "lenet")
    assert line.count("%") == 5


def test_what_is_missing_is_named(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, weights = trained
    plain, names = tmp_path / "plain.safetensors", tmp_path / "names.txt"
    lm.save_safetensors(nn.LeNet(1, 10), plain)
    names.write_text("a\nb\n")
    image = str(root / "red" / "00.png")
    for words, message in (
        ([image, "--weights", str(plain)], "does not say of which network it is; name it"),
        ([image, "--weights", str(weights), "--network", "resnet18"], "is of lenet, not of resnet18"),
        ([image, "--weights", str(weights), "--classes", str(names)], "2 names for 3 classes"),
        ([str(tmp_path), "--weights", str(weights)], "there is no image"),
    ):
        assert main(["predict", *words, "--device", "cpu"]) == ExitStatus.FAILED
        assert message in capsys.readouterr().err


def test_an_exported_model_sees_as_its_network(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, weights = trained
    model = tmp_path / "colours.onnx"
    assert main(["export", "lenet", str(model), "--weights", str(weights), "--no-check"]) == 0
    words = [str(root), "--json", "--batch-size", "7", "--weights"]
    ours, theirs = ([json.loads(x) for x in lines_of(capsys, *words, str(f))] for f in (weights, model))
    assert [f["file"] for f in ours] == [f["file"] for f in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert [c["class"] for c in a["classes"]] == [c["class"] for c in b["classes"]]
        assert [c["probability"] for c in a["classes"]] == pytest.approx(
            [c["probability"] for c in b["classes"]], abs=1e-5
        )


def model_of(path: Path, *shape: int | str, softmax: bool = False) -> Path:
    """The means of an image's channels as scores of classes."""
    steps = [helper.make_node("GlobalAveragePool", ["x"], ["mean"])]
    steps += [
        helper.make_node(
            "Softmax" if softmax else "Identity", ["mean"], ["y"], **{"axis": 1} if softmax else {}
        )
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(steps, "net", [info("x", 1, list(shape))], [info("y", 1, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("batch", ["N", 5])
def test_any_model_of_images(
    batch: int | str, softmax: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scores may be probabilities, and its batch may be fixed: seven images in batches of five."""
    root = colours(tmp_path / "images", 7)
    model = model_of(tmp_path / "net.onnx", batch, 3, 8, 8, softmax=softmax)
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\nblue\n")
    words = [str(root / "red"), "--weights", str(model), "--json"]
    found = [json.loads(x) for x in lines_of(capsys, *words, "--classes", str(names))]
    assert len(found) == 7
    for f in found:
        assert f["classes"][0]["class"] == "red"
        assert sum(c["probability"] for c in f["classes"]) == pytest.approx(1)
    assert json.loads(lines_of(capsys, *words)[0])["classes"][0]["class"] == "0"


def test_models_that_see_no_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, names = colours(tmp_path / "images", 1), tmp_path / "names.txt"
    names.write_text("a\nb\n")
    image = str(root / "red" / "00.png")
    fixed, flat, odd = (
        str(model_of(tmp_path / f"{i}.onnx", *shape))
        for i, shape in enumerate(((1, 3, 8, 8), (1, 3, 8), ("N", 3, 8, 9)))
    )
    for words, message in (
        ([fixed, "--network", "lenet"], "is a model of its own"),
        ([fixed, "--size", "9"], "takes images of 8 pixels on a side, not 9"),
        ([fixed, "--classes", str(names)], "2 names for 3 scores of an image"),
        ([flat], "not square images"),
        ([odd], "not square images"),
    ):
        assert main(["predict", image, "--weights", *words, "--device", "cpu"]) == ExitStatus.FAILED
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sides", "words", "size"),
    [
        (("H", "H"), [], 224),
        (("H", "H"), ["--size", "30"], 30),
        ((8, 8), [], 8),
        ((8, 8), ["--size", "8"], 8),
    ],
)
def test_images_are_of_the_size_that_the_model_or_the_caller_says(
    sides: tuple[int | str, int | str],
    words: list[str],
    size: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one channel or three, as many at a time as are asked for."""
    root, seen = colours(tmp_path / "images", 5), list[Array]()

    def kept(images: Sequence[Array], sight: Sight) -> Array:
        seen.append(inputs_of(images, sight))
        return seen[-1]

    monkeypatch.setattr("lamina.cli.predict.inputs_of", kept)
    for channels in (1, 3):
        model = model_of(tmp_path / f"{channels}.onnx", "N", channels, *sides)
        seen.clear()
        command = [
            "predict",
            str(root / "red"),
            "--weights",
            str(model),
            "--device",
            "cpu",
            "--batch-size",
            "3",
        ]
        assert main([*command, *words]) == 0
        assert [x.shape for x in seen] == [(n, channels, size, size) for n in (3, 2)]


@pytest.mark.parametrize(
    "shape", [("N", 2, 8, 8), ("N", 3, 8, 9), ("N", 3, "H", 8), ("N", 3, 8), ("N", 3, 8, 8, 8)]
)
def test_other_inputs_are_no_images(
    shape: tuple[int | str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(colours(tmp_path / "images", 1) / "red" / "00.png")
    model = str(model_of(tmp_path / "net.onnx", *shape))
    assert main(["predict", image, "--weights", model, "--device", "cpu"]) == ExitStatus.FAILED
    assert "not square images [N, 1 or 3, S, S] of floats (0: any)" in capsys.readouterr().err
