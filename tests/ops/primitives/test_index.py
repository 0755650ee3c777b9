"""x[key], x.at[key] and x[key] = v against NumPy's."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops.primitives.index import At
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import grad

A = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
PAIR = np.array([[0, 2], [-1, 1]])
MASK = A % 7 > 3
KEYS: dict[str, Any] = {
    "int": 1,
    "slices": (slice(1, None), slice(None, None, 2)),
    "backwards": (slice(None, None, -2), Ellipsis, slice(3, 0, -2)),
    "new axes": (None, Ellipsis, None),
    "a list": [0, 2, 2],
    "nothing": [],
    "an array": PAIR,
    "a tuple among others": (slice(None), (0, 3, 3)),
    "a tuple alone": ((2, 0),),
    "behind a slice": (slice(None), PAIR),
    "at the end": (Ellipsis, PAIR),
    "two arrays": (PAIR, PAIR),
    "two arrays apart": (PAIR, slice(None), PAIR),
    "broadcast arrays": (np.array([[0], [1]]), slice(0, 4, 3), np.array([1, 4])),
    "three arrays": (PAIR, PAIR, PAIR),
    "a new axis before": (None, slice(1, 3), [3, 1], slice(None, None, 2)),
    "a mask": MASK,
    "a mask of two axes": MASK[..., 0],
    "a mask behind": (slice(None), MASK[0]),
    "a mask and an array": (MASK[:, 0, 0], [0]),
    "true": True,
    "false": False,
    "bytes": np.array([2, 0], np.uint8),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_getitem(key: Any) -> None:
    np.testing.assert_array_equal(lm.tensor(A)[key].numpy(), A[key])


def test_tensors_as_indices() -> None:
    x = lm.tensor(A)
    np.testing.assert_array_equal(x[lm.tensor(PAIR)].numpy(), A[PAIR])
    np.testing.assert_array_equal(x[lm.tensor(PAIR), :, lm.tensor(PAIR)].numpy(), A[PAIR, :, PAIR])
    np.testing.assert_array_equal(x[lm.tensor(MASK)].numpy(), A[MASK])
    np.testing.assert_array_equal(x[:, lm.tensor(2)].numpy(), A[:, 2])
    np.testing.assert_array_equal(x[0, :, [1, 2]].numpy(), A[0][:, [1, 2]])  # an int comes first, as in torch


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_at(key: Any, mode: str) -> None:
    function = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}.get(mode)
    values = np.random.default_rng(0).standard_normal(A[key].shape).astype(np.float32) * 30
    for given in (values, np.float32(3), values[..., :1]) if values.ndim else (values,):
        wanted = A.copy()
        if function is None:
            wanted[key] = given
        else:
            function.at(wanted, key, given)
        x = lm.tensor(A)
        found = getattr(x.at[key], mode)(given if given.ndim else 3)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)
        np.testing.assert_array_equal(x.numpy(), A)


def test_assignment_overwrites_a_tensor() -> None:
    x, wanted = lm.tensor(A), A.copy()
    x[1:, [0, 2]] = 5.0
    wanted[1:, [0, 2]] = 5.0
    x[x > 50] = 0
    wanted[wanted > 50] = 0
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_in_a_graph() -> None:
    """Indices may be traced; a number onto a traced mask keeps the shape."""
    index, mask = lm.tensor(PAIR), lm.tensor(MASK)
    found = lm.jit(lambda x, i, m: x.at[i].add(1.0).at[m].set(-1.0)[:, i, 0])(lm.tensor(A), index, mask)
    wanted = A.copy()
    np.add.at(wanted, PAIR, 1)
    wanted[MASK] = -1
    np.testing.assert_array_equal(found.numpy(), wanted[:, PAIR, 0])


def test_gradients() -> None:
    x = A.astype(np.float64)
    (found,) = grad(lambda x: ops.getitem(x, (slice(None), [1, 1])), x)
    assert (found[:, 1].min(), found.sum()) == (2.0, 30.0)
    dx, dv = grad(lambda x, v: At(x)[:, [1, 1]].set(v), x, np.ones((3, 2, 5)))
    assert (dx.sum(), dx[:, 1].any(), dv[:, 0].any(), dv[:, 1].min()) == (45.0, False, False, 1.0)
    dx, dv = grad(lambda x, v: At(x)[1:, ::2].add(v), x, np.ones((2, 2, 5)))
    assert (dx.min(), dx.max(), dv.min(), dv.max()) == (1.0, 1.0, 1.0, 1.0)


def test_index_put() -> None:
    found = ops.index_put(lm.zeros(3), (lm.tensor([0, 0, 2]),), lm.tensor([1.0, 2.0, 3.0]), accumulate=True)
    assert found.numpy().tolist() == [3.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("key", "error", "match"),
    [
        (3, IndexError, "getitem: index 3 is outside axis 0"),
        ((0, -5), ShapeError, "getitem: index -5 is outside axis 1"),
        ([3], IndexError, "getitem: index"),
        (lm.tensor([-4]), IndexError, r"index -4 at position .* is outside -3 … 2"),
        ((0, 0, 0, 0), ShapeError, "too many entries"),
        (np.ones((2, 4), bool), ShapeError, "a mask of 2 along an axis of 3"),
        (lm.ones(2), DTypeError, "an index must be of integers or booleans"),
        ("a", TypeError, "an index must be an int"),
        (slice("a"), TypeError, "is no slice"),
        ((PAIR, [0, 1, 2]), ShapeError, "getitem"),
    ],
)
def test_errors(key: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        _ = lm.tensor(A)[key]


def test_a_loop_over_what_takes_its_elements_from_a_tensor_ends() -> None:
    class Rows:
        def __init__(self) -> None:
            self.rows = lm.tensor(A)

        def __getitem__(self, index: int) -> Any:
            return self.rows[index]

    assert sum(1 for _ in Rows()) == len(A)  # type: ignore[attr-defined,misc]


def test_values_that_do_not_fit() -> None:
    with pytest.raises(ShapeError, match="expand"):
        lm.tensor(A).at[0].set(lm.ones(3))


ROWS, BOTH = np.array([True, False, True]), A[:, :, 0] % 3 == 0
#: A key with one mask, and values that say nothing of how many elements it names.
MASKED: list[tuple[Any, Any]] = [
    (ROWS, A[1] * 2),
    (ROWS, A[:1] * 2),
    (BOTH, np.arange(5.0, dtype=np.float32)),
    (BOTH, np.arange(5.0, dtype=np.float32)[None]),
    (A > 20, np.array([7], np.float32)),
    ((ROWS, 1), 3.0),
    ((ROWS, slice(0, 2)), A[0, :2] + 1),
    ((Ellipsis, np.array([True, False, True, True, False])), A[:, :, :1] + 1),
    ((slice(1, None), slice(None, None, 2), np.array([False, True, True, True, False])), np.float32(4)),
    ((0, Ellipsis, np.array([True, False, True, True, False])), 5.0),
    ((np.zeros(3, bool), slice(None, None, -1)), np.ones(5, np.float32)),
]


@pytest.mark.parametrize(("key", "values"), MASKED)
@pytest.mark.parametrize("mode", ["set", "add"])
def test_values_that_are_the_same_wherever_a_mask_is_true(key: Any, values: Any, mode: str) -> None:
    """At once, and where the mask's numbers are not known yet."""
    wanted = A.copy()
    wanted[key] = values if mode == "set" else wanted[key] + values
    (mask,) = [k for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, np.ndarray)]

    def changed(x: Any, mask: Any) -> Any:
        traced = (
            tuple(mask if isinstance(k, np.ndarray) else k for k in key) if isinstance(key, tuple) else mask
        )
        return getattr(x.at[traced], mode)(values)

    for function in (changed, lm.jit(changed)):
        np.testing.assert_array_equal(function(lm.tensor(A), lm.tensor(mask)).numpy(), wanted)
    np.testing.assert_array_equal(changed(lm.tensor(A), mask).numpy(), wanted)


def test_gradients_of_values_under_a_mask() -> None:
    dx, dv = grad(lambda x, v: At(x)[lm.tensor(ROWS)].set(v), A.astype(np.float64), np.ones((4, 5)))
    np.testing.assert_array_equal(dx, np.ones(A.shape) * ~ROWS[:, None, None])
    np.testing.assert_array_equal(dv, np.full((4, 5), 2.0))


def test_a_mask_of_another_size_and_values_of_its_number() -> None:
    with pytest.raises(ShapeError, match=r"a mask of shape \(2,\) along axes of \(3,\) of f32\[3,4,5\]"):
        lm.tensor(A).at[np.ones(2, bool)].set(1.0)
    changed = lm.jit(lambda x, m, v: x.at[m].set(v))(A, ROWS, A[:2])
    np.testing.assert_array_equal(changed.numpy()[[0, 2]], A[:2])
    np.testing.assert_array_equal(lm.tensor(A).at[ROWS].set(A[:2]).numpy()[[0, 2]], A[:2])


def test_keys_that_are_equal_are_not_the_same() -> None:
    """What is known of a key is found by its kinds too: 1, True, 1.0 and an array of it mean different things."""
    x = lm.tensor(A)
    for _ in range(2):
        np.testing.assert_array_equal(x[1].numpy(), A[1])
        np.testing.assert_array_equal(x[True].numpy(), A[True])
        np.testing.assert_array_equal(x[np.int64(1)].numpy(), A[1])
        np.testing.assert_array_equal(x[1:2].numpy(), A[1:2])
        np.testing.assert_array_equal(x[(1, 2)].numpy(), A[1, 2])
        np.testing.assert_array_equal(x[[1, 2]].numpy(), A[[1, 2]])
        np.testing.assert_array_equal(x[1, None, 2:].numpy(), A[1, None, 2:])
        with pytest.raises(TypeError, match="an index must be an int"):
            x[1.0]
        with pytest.raises(IndexError, match="index 3 is outside axis 0 of f32"):
            x[3]
        with pytest.raises(TypeError, match="is no slice of f32"):
            x[1.0:]
    wider = lm.tensor(np.concatenate([A, A]))
    np.testing.assert_array_equal(wider[3].numpy(), A[0])
    np.testing.assert_array_equal(wider[-1].numpy(), A[2])


def test_a_list_with_slices_has_an_index_an_axis() -> None:
    x = lm.tensor(np.arange(12.0).reshape(3, 4))
    assert x[[slice(1, None), slice(None, -1)]].tolist() == x[1:, :-1].tolist()
    assert x[[2, None]].tolist() == x[2, None].tolist()
