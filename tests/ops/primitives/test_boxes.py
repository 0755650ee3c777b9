"""Boxes: overlaps, features in them and which are kept, by their definitions; gradients, programs, errors."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

RNG = np.random.default_rng(0)


def _boxes(count: int, high: float = 20.0) -> np.ndarray:
    low = RNG.uniform(0, high, (count, 2))
    return np.concatenate([low, low + RNG.uniform(0.5, high / 2, (count, 2))], 1)


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    both = max(w, 0.0) * max(h, 0.0)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


def test_overlaps() -> None:
    a, b = _boxes(7), _boxes(5)
    wanted = [[_iou(p, q) for q in b] for p in a]
    np.testing.assert_allclose(ops.box_iou(a, b).numpy(), wanted, rtol=1e-12)
    assert ops.box_iou(np.array([[0, 0, 2, 2]]), np.array([[1, 1, 3, 3]])).numpy().tolist() == [
        [np.float32(1 / 7)]
    ]
    assert ops.box_iou(a[:0], b).shape == (0, 5)


def test_gradient_of_overlaps() -> None:
    a, b, step = np.array([[0.0, 0, 2, 3]]), np.array([[1.0, 1, 4, 5], [7, 7, 8, 8]]), 1e-6
    found = lm.grad(lambda v: (ops.box_iou(v, b) ** 2).sum())(lm.tensor(a)).numpy()
    for k in range(4):
        moved = [a.copy(), a.copy()]
        moved[0][0, k] -= step
        moved[1][0, k] += step
        low, high = ((ops.box_iou(m, b).numpy() ** 2).sum() for m in moved)
        np.testing.assert_allclose(found[0, k], (high - low) / (2 * step), rtol=1e-6, atol=1e-9)


def _bilinear(image: np.ndarray, y: float, x: float) -> np.ndarray:
    """The definition: 0 more than 1 outside, else between four elements."""
    h, w = image.shape[1:]
    if not (-1 <= y <= h and -1 <= x <= w):
        return np.zeros(len(image))
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    i, j = int(y), int(x)
    k, m, a, b = min(i + 1, h - 1), min(j + 1, w - 1), y - i, x - j
    top = image[:, i, j] * (1 - b) + image[:, i, m] * b
    return top * (1 - a) + (image[:, k, j] * (1 - b) + image[:, k, m] * b) * a


def _features(
    x: np.ndarray, boxes: np.ndarray, size: tuple[int, int], scale: float, ratio: int, aligned: bool
) -> np.ndarray:
    found = np.zeros((len(boxes), x.shape[1], *size))
    for k, (image, *corners) in enumerate(boxes):
        x1, y1, x2, y2 = (v * scale - (0.5 if aligned else 0) for v in corners)
        w, h = x2 - x1, y2 - y1
        if not aligned:
            w, h = max(w, 1), max(h, 1)
        rows, columns = (
            ratio if ratio > 0 else int(np.ceil(n / s)) for n, s in zip((h, w), size, strict=True)
        )
        for i, j in np.ndindex(*size):
            places = [
                (y1 + (i + (r + 0.5) / rows) * h / size[0], x1 + (j + (c + 0.5) / columns) * w / size[1])
                for r in range(rows)
                for c in range(columns)
            ]
            samples = [_bilinear(x[int(image)], *place) for place in places]
            found[k, :, i, j] = np.mean(samples, 0) if samples else 0
    return found


@pytest.mark.feature("F112")
@pytest.mark.parametrize("scale", [1.0, 0.4])
@pytest.mark.parametrize("ratio", [-1, 1, 3])
@pytest.mark.parametrize("aligned", [False, True])
def test_roi_align_is_its_definition(scale: float, ratio: int, aligned: bool) -> None:
    x = RNG.standard_normal((2, 3, 9, 11))
    boxes = np.concatenate([RNG.integers(0, 2, (6, 1)), _boxes(6, 12.0)], 1)
    boxes[0, 1:3] -= 4
    found = ops.roi_align(x, boxes, (2, 3), scale, ratio, aligned).numpy()
    np.testing.assert_allclose(
        found, _features(x, boxes, (2, 3), scale, ratio, aligned), rtol=1e-10, atol=1e-12
    )
    lists = [boxes[boxes[:, 0] == i, 1:] for i in range(2)]
    order = np.argsort(boxes[:, 0], kind="stable")
    listed = ops.roi_align(x, lists, (2, 3), scale, ratio, aligned).numpy()
    np.testing.assert_allclose(listed, found[order], rtol=1e-12)


def test_roi_align_spreads_nan_to_what_reads_it_alone() -> None:
    """By its definition, and back: a bin whose gradient is NaN is in the elements that it reads."""
    x = RNG.standard_normal((1, 2, 9, 11))
    boxes = np.array([[0, 0, 0, 4, 4], [0, 3.2, 1.5, 9, 8]], np.float64)
    whole = ops.roi_align(x, boxes, (3, 2), sampling_ratio=2).numpy()
    x[0, 1, 2, 2] = np.nan
    found = ops.roi_align(x, boxes, (3, 2), sampling_ratio=2).numpy()
    np.testing.assert_allclose(found, _features(x, boxes, (3, 2), 1.0, 2, False), rtol=1e-10)
    assert 0 < np.isnan(found).sum() < 6
    np.testing.assert_allclose(found[~np.isnan(found)], whole[~np.isnan(found)], rtol=1e-12)
    x[0, 1, 2, 2] = 0
    given = np.zeros((2, 2, 3, 2))
    given[1, 0, 2, 1] = np.nan
    (slope,) = lm.vjp(lambda x: ops.roi_align(x, boxes, (3, 2), sampling_ratio=2), lm.tensor(x))[1](given)
    lost = np.isnan(slope.numpy())
    assert lost[0, 0, 6:8, 6:9].all()
    assert not lost[0, 1].any()
    assert lost.sum() < 20


def test_roi_align_without_boxes_and_through_a_graph() -> None:
    x = RNG.standard_normal((2, 3, 5, 6)).astype(np.float32)
    assert ops.roi_align(x, [np.zeros((0, 4)), np.zeros((0, 4))], 2).shape == (0, 3, 2, 2)
    boxes = np.array([[0, 0, 0, 5, 4], [1, 1, 1, 3, 4]], np.float32)
    eager = ops.roi_align(x, boxes, 2, aligned=True).numpy()
    program = lm.jit(lambda v, b: ops.roi_align(v, b, 2, aligned=True))
    np.testing.assert_allclose(program(x, boxes).numpy(), eager, rtol=1e-6)
    grad = lm.grad(lambda v: ops.roi_align(v, boxes, 2, aligned=True).sum())(lm.tensor(x)).numpy()
    assert grad.sum() == pytest.approx(
        24, rel=1e-5
    )  # each of 2 * 3 * 4 bins gives its weights, which add up to 1


def _kept(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    left, found = [int(i) for i in np.argsort(-scores, kind="stable")], []
    while left:
        best = left.pop(0)
        found.append(best)
        left = [i for i in left if not _iou(boxes[best], boxes[i]) > threshold]
    return found


@pytest.mark.feature("F112")
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7])
def test_nms_is_its_definition(threshold: float) -> None:
    boxes, scores = _boxes(80), RNG.random(80).round(1)  # with equal scores: the first one counts as higher
    found = ops.nms(boxes, scores, threshold)
    assert found.dtype == lm.int64
    assert found.numpy().tolist() == _kept(boxes, scores, threshold)
    mask = ops.nms_mask(boxes, scores, threshold).numpy()
    assert np.flatnonzero(mask).tolist() == sorted(found.numpy().tolist())
    traced = lm.jit(lambda b, s: ops.nms_mask(b, s, threshold))(boxes, scores)
    np.testing.assert_array_equal(traced.numpy(), mask)


def test_nms_of_several_classes() -> None:
    boxes, scores, classes = _boxes(60), RNG.random(60), RNG.integers(0, 3, 60)
    found = ops.batched_nms(boxes, scores, classes, 0.3).numpy().tolist()
    kept: list[int] = []
    for c in range(3):
        own = np.flatnonzero(classes == c)
        kept += [int(own[i]) for i in _kept(boxes[own], scores[own], 0.3)]
    assert sorted(found) == sorted(kept)
    assert found == sorted(found, key=lambda i: -scores[i])
    assert ops.batched_nms(boxes[:0], scores[:0], classes[:0], 0.3).shape == (0,)


def test_errors() -> None:
    x, boxes = lm.ones((2, 3, 5, 6)), lm.ones((4, 5))
    with pytest.raises(lm.ShapeError, match=r"roi_align: needs images \[N, C, H, W\] and boxes \[K, 5\]"):
        ops.roi_align(x, lm.ones((4, 4)), 2)
    with pytest.raises(lm.ShapeError, match="roi_align: boxes must be one tensor for each image"):
        ops.roi_align(x, [lm.ones((4, 4))], 2)
    with pytest.raises(lm.ShapeError, match="roi_align: output_size"):
        ops.roi_align(x, boxes, 0)
    with pytest.raises(ValueError, match="roi_align: spatial_scale must be > 0"):
        ops.roi_align(x, boxes, 2, -1.0)
    with pytest.raises(IndexError, match="a box names image 2.0, but there are 2"):
        ops.roi_align(x, boxes * 2.0, 2)
    with pytest.raises(lm.ShapeError, match=r"nms: boxes must be \[N, 4\]"):
        ops.nms(boxes, lm.ones(4), 0.5)
    with pytest.raises(lm.ShapeError, match="nms: scores .* must be one for each box"):
        ops.nms(boxes[:, 1:], lm.ones(3), 0.5)
    with pytest.raises(TypeError, match="nms: the shape of the result depends on the numbers in the mask"):
        lm.trace(lambda b, s: ops.nms(b, s, 0.5), np.ones((3, 4)), np.ones(3))


def test_compiled_programs_are_of_one_number_of_kept_boxes() -> None:
    compiled = lm.jit(lambda boxes, scores: ops.nms(boxes, scores, 0.5))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        corner, scores = rng.random((9, 2)), rng.random(9)
        boxes = np.concatenate([corner, corner + 0.5], 1)
        np.testing.assert_array_equal(compiled(boxes, scores).numpy(), ops.nms(boxes, scores, 0.5).numpy())


def test_types() -> None:
    found: Any = ops.box_iou(np.array([[0, 0, 1, 1]], np.int64), np.array([[0, 0, 1, 1]], np.int64))
    assert (found.dtype, found.numpy().tolist()) == (lm.float32, [[1]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_of_boxes_with_equal_scores_the_first_is_kept(dtype: type[np.floating[Any]]) -> None:
    """So many of two scores that a sort which is not stable would change their order."""
    boxes, scores = _boxes(400).astype(dtype), RNG.choice(np.array([0.25, 0.5], dtype), 400)
    assert ops.nms(boxes, scores, 0.3).numpy().tolist() == _kept(boxes, scores, 0.3)
