"""Descriptors that declare each attribute once: signature, table of attributes, reading, errors."""

import inspect

import pytest

from lamina import cudnn
from lamina.cudnn.attention import BandMatrixContract, DiagonalBandMask, PagedCacheLoad
from lamina.cudnn.descriptor import attribute
from tests.helpers.cudnn.installed import needs_cudnn


def tensor(uid: int, shape: tuple[int, ...], data_type: str = "float16") -> cudnn.Tensor:
    strides = tuple(
        int(n) for n in reversed([1, shape[3], shape[3] * shape[2], shape[3] * shape[2] * shape[1]])
    )
    return cudnn.Tensor(dimensions=shape, strides=strides, data_type=data_type, uid=uid)


def load() -> PagedCacheLoad:
    return PagedCacheLoad(
        tensor(1, (16, 4, 64, 128)),
        tensor(2, (2, 1, 1, 1), "int32"),
        table=tensor(3, (2, 1, 8, 1), "int32"),
        y=tensor(4, (2, 4, 512, 128)),
    )


def test_the_signature_follows_from_the_lines() -> None:
    parameters = inspect.signature(DiagonalBandMask).parameters
    assert list(parameters) == ["x", "b", "y", "left", "right", "length_q", "length_kv", "comparison"]
    assert [p.kind is p.KEYWORD_ONLY for p in parameters.values()] == [False] * 3 + [True] * 5
    assert inspect.signature(BandMatrixContract).parameters["pad"].default == 0.0


def test_c_names_stand_behind_the_descriptors_own_or_for_themselves() -> None:
    table = BandMatrixContract.attributes
    assert table["x"] == attribute("OPERATION_CONTRACT_BAND_MATRIX_XDESC", "BACKEND_DESCRIPTOR")
    assert table["pad"] == attribute("OPERATION_CONTRACT_BAND_MATRIX_PAD_VALUE", "FLOAT")
    assert table["most_tokens"] == attribute("OPERATION_CONTRACT_BAND_MAX_TOKEN_VALUE")


def test_a_wrong_call_names_the_descriptor_and_the_argument() -> None:
    with pytest.raises(TypeError, match="PagedCacheLoad: missing a required argument: 'y'"):
        PagedCacheLoad(1, 2, 3)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="PagedCacheLoad: .* unexpected keyword argument 'pages'"):
        PagedCacheLoad(1, 2, 3, 4, pages=5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ValueError, match="unknown comparison 'above'; known: .*cmp_ge"):
        DiagonalBandMask(1, 2, 3, comparison="above")  # type: ignore[arg-type]


@needs_cudnn
def test_attributes_read_what_was_set_and_cannot_change() -> None:
    made = load()
    assert list(made.values) == ["container", "lengths", "table", "y"]
    assert made.container is made.get("container") is made.values["container"]
    with pytest.raises(AttributeError, match="PagedCacheLoad.table cannot change"):
        made.table = made.y  # type: ignore[misc]
    assert made.table.get("dimensions") == (2, 1, 8, 1)


@needs_cudnn
def test_another_one_of_the_same_class_keeps_the_fields() -> None:
    made = load()
    other = made.remade(lambda name, value: tensor(9, (2, 4, 512, 128)) if name == "y" else value)
    assert (other.container, other.y.get("uid")) == (made.container, 9)
