"""Handlers of resizing and sampling agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, image
from tests.helpers.onnx_models import agrees, beside_onnxruntime, node_tests, single


@pytest.mark.parametrize("name", node_tests(image))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"mode": "sinc"}, "mode must be nearest, linear or cubic, got 'sinc'"),
        ({"nearest_mode": "odd"}, "nearest_mode must be one of round_prefer_floor, .*, got 'odd'"),
        ({}, "needs scales or sizes"),
    ],
)
def test_words_that_are_unknown_are_refused(attributes: dict[str, str], text: str) -> None:
    given = {"x": np.ones((1, 1, 4, 4), np.float32)}
    if attributes:
        given |= {"roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    graph = single("Resize", {n: a.shape for n, a in given.items()}, **attributes)
    with pytest.raises(OnnxError, match=text):
        graph(given)


def test_twice_the_size_by_nearest_repeats() -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    given = {"x": x, "roi": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 3], np.float32)}
    graph = single(
        "Resize",
        {n: a.shape for n, a in given.items()},
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    np.testing.assert_array_equal(graph(given)["y0"].numpy(), x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 0.6], [1, 1, 1.7, 3]])
def test_tensorflows_half_pixels_are_those_of_onnxruntime(mode: str, scales: list[float]) -> None:
    """Of the versions 11 and 12 of the operators alone."""
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 6)).astype(np.float32)
    given = (x, np.zeros(0, np.float32), np.array(scales, np.float32))
    how = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor", "mode": mode}
    beside_onnxruntime("Resize", given, held=(1, 2), domain="", model_opset=11, **how)


def test_places_between_two_elements_are_rounded_in_float32() -> None:
    """11.5 / 2.3 - 0.5 lies half-way between 4 and 5; in float64, of the scale in float32, a little beyond."""
    x = np.arange(7, dtype=np.float32).reshape(1, 7)
    given = {"x": x, "roi": np.zeros(0, np.float32), "scales": np.array([1, 2.3], np.float32)}
    graph = single("Resize", {n: a.shape for n, a in given.items()})
    assert graph(given)["y0"].numpy()[0, 11] == 4


def test_sizes_are_multiplied_in_float32() -> None:
    """6 to the float32 next to 7 / 6 is 7 in float32, as onnxruntime has it, and 6.9999998 in float64."""
    x = np.arange(6, dtype=np.float32).reshape(1, 6)
    given = {"x": x, "roi": np.zeros(0, np.float32), "scales": np.array([1, 7 / 6], np.float32)}
    graph = single("Resize", {n: a.shape for n, a in given.items()})
    assert graph(given)["y0"].shape == (1, 7)


def test_what_is_cropped_has_the_size_that_the_whole_axis_would_have() -> None:
    """As ONNX's shape inference has it: 8 elements, of which a half is read, to the scale 1.5 are 12."""
    x, roi = np.arange(8, dtype=np.float32).reshape(1, 8), np.array([0, 0.25, 1, 0.75], np.float32)
    scales = np.array([1, 1.5], np.float32)
    given = (x, roi, scales)
    how = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    beside_onnxruntime("Resize", given, held=(1, 2), domain="", **how)
