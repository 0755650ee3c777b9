"""Maps along axes and samples as PyTorch's functions."""

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import image
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong(ops_of(image)) == []


def called(monkeypatch: pytest.MonkeyPatch, maps: tuple[Any, ...], shape: tuple[int, ...]) -> list[str]:
    """The functions of torch.nn.functional that maps of an array are written with; they give what the maps mean."""
    import torch
    from torch.nn import functional

    from lamina.backends.reference import run_reference
    from lamina.ops.primitives.map_axes import MapAxes
    from lamina.spec import float64
    from tests.helpers.written_functions import step_of

    found: list[str] = []
    for name in ("pad", "interpolate"):
        own = getattr(functional, name)

        def record(*args: Any, name: str = name, own: Any = own, **options: Any) -> Any:
            found.append(name)
            return own(*args, **options)

        monkeypatch.setattr(functional, name, record)
    op, x = MapAxes(maps), np.random.default_rng(0).standard_normal(shape)
    (y,) = step_of(op, [x]).written([torch.from_numpy(x)])
    monkeypatch.undo()
    np.testing.assert_allclose(y.numpy(), run_reference(op, [x], float64)[0], rtol=1e-9, atol=1e-9)
    return found


@pytest.mark.parametrize("kind", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    ("sizes", "widths"),
    [
        ((5,), [(2, 3)]), ((5,), [(4, 1)]), ((5,), [(5, 1)]), ((5,), [(1, 5)]), ((5,), [(1, 6)]), ((3,), [(4, 0)]),
        ((4, 7), [(1, 2), (3, 6)]), ((4, 7), [(3, 3), (7, 6)]), ((4, 7), [(4, 3), (1, 1)]),
        ((4, 7), [(1, 5), (0, 1)]), ((7, 4), [(5, 6), (3, 2)]), ((7, 4), [(5, 1), (3, 5)]),
        ((7, 4), [(0, 0), (0, 3)]), ((3, 4, 5), [(1, 2), (3, 2), (4, 3)]), ((3, 4, 5), [(3, 1), (1, 1), (1, 1)]),
        ((5, 4, 3), [(4, 3), (2, 3), (2, 1)]), ((5, 4, 3), [(1, 1), (1, 1), (1, 4)]),
    ],
)  # fmt: skip
def test_padding_is_pytorchs_wherever_it_takes_the_widths(
    monkeypatch: pytest.MonkeyPatch, kind: str, sizes: tuple[int, ...], widths: list[tuple[int, int]]
) -> None:
    """Each side of each axis has a bound of its own; beyond it elements are taken one by one."""
    import torch

    from lamina.ops.primitives.axis_map import AxisMap

    maps = (AxisMap(kind, n, low + n + high, (low,)) for n, (low, high) in zip(sizes, widths, strict=True))
    sides = [side for pair in reversed(widths) for side in pair]
    try:
        torch.nn.functional.pad(torch.zeros(1, 1, *sizes), sides, mode=kind)
    except RuntimeError:
        wanted = []
    else:
        wanted = ["pad"]
    assert called(monkeypatch, (None, None, *maps), (2, 3, *sizes)) == wanted


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["nearest", "nearest-exact", "linear", "aligned", "cubic", "area"])
def test_resizing_is_pytorchs_where_the_sizes_say_its_scale(
    monkeypatch: pytest.MonkeyPatch, kind: str, rank: int
) -> None:
    from lamina.ops.primitives.axis_map import AxisMap

    sizes, outs = (4, 7, 5)[:rank], (9, 3, 6)[:rank]
    known = kind != "cubic" or rank == 2  # of its cubic functions PyTorch has that of images alone

    def resized(stretch: float) -> tuple[AxisMap, ...]:
        if kind == "area":
            return tuple(AxisMap(kind, n, m) for n, m in zip(sizes, outs, strict=True))
        if kind == "aligned":
            return tuple(
                AxisMap("linear", n, m, ((n - 1) / (m - 1), 1)) for n, m in zip(sizes, outs, strict=True)
            )
        more = (0,) if kind in ("linear", "cubic") else ()
        return tuple(AxisMap(kind, n, m, (stretch * n / m, *more)) for n, m in zip(sizes, outs, strict=True))

    shape = (2, 3, *sizes)
    assert called(monkeypatch, (None, None, *resized(1.0)), shape) == ["interpolate"] * known
    if kind not in ("aligned", "area"):
        assert "interpolate" not in called(monkeypatch, (None, None, *resized(0.9)), shape)
    if rank > 1:  # along some of the axes alone
        assert "interpolate" not in called(monkeypatch, (None, None, None, *resized(1.0)[1:]), shape)


def test_corners_of_one_axis_alone_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    from lamina.ops.primitives.axis_map import AxisMap

    maps = (AxisMap("linear", 4, 9, (3 / 8, 1)), AxisMap("linear", 7, 3, (7 / 3, 0)))
    assert called(monkeypatch, (None, None, *maps), (1, 2, 4, 7)) == []
    assert called(monkeypatch, (None, None, *maps[::-1]), (1, 2, 7, 4)) == []


@pytest.mark.parametrize("axis", range(4))
def test_places_out_of_an_array_are_zero(monkeypatch: pytest.MonkeyPatch, axis: int) -> None:
    """Of patches, whose padding is read from a zero behind the last element."""
    from lamina.ops.primitives.axis_map import AxisMap

    shape = (5, 6, 7, 8)
    maps: list[AxisMap | None] = [None] * 4
    n = shape[axis]
    maps[axis] = AxisMap("patches", n, 3 * n, (3, 1, 1, 1))
    assert called(monkeypatch, tuple(maps), shape) == ["pad"]
