"""Lifetimes, queries and errors of the oneDNN objects."""

import gc
import threading
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from lamina import onednn
from lamina.c import dnnl
from lamina.c.errors import DnnlError, DnnlInvalidArguments, DnnlUnimplemented
from lamina.onednn import ARG, Attributes, Engine, Memory, MemoryDesc, Primitive, Stream
from tests.helpers.resident import growth

pytestmark = [
    pytest.mark.feature("B004"),
    pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64"),
]

WINDOW = onednn.SlidingWindow((1, 1), (0, 0), (0, 0), (0, 0))


def relu(desc: MemoryDesc) -> onednn.PrimitiveDesc:
    return onednn.eltwise_forward("relu", desc, desc)


MAKERS: dict[str, Callable[[], Any]] = {
    "engine": Engine,
    "stream": lambda: Stream(Engine()),
    "desc": lambda: MemoryDesc((2, 19, 5, 5), "f32", tag="aBcd16b"),
    "memory": lambda: Memory(MemoryDesc((4,)), np.zeros(4, np.float32).ctypes.data),
    "attributes": lambda: Attributes([onednn.Eltwise("relu")], scales={ARG.SRC: 0}),
    "primitive desc": lambda: relu(MemoryDesc((4,))),
    "primitive": lambda: Primitive(relu(MemoryDesc((4,)))),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_close_is_idempotent_and_use_after_close_raises(kind: str) -> None:
    made = MAKERS[kind]()
    assert not made.closed
    assert made.handle
    assert type(made).__name__ in repr(made)
    made.close()
    made.close()
    assert made.closed
    assert repr(made).endswith("(closed)")
    with pytest.raises(ValueError, match=f"{type(made).__name__} is closed"):
        _ = made.handle
    with MAKERS[kind]() as other:
        assert other.handle
    assert other.closed


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_objects_close_in_any_order_under_a_bound_call(order: tuple[int, ...]) -> None:
    """A bound primitive goes on working when all that it was made from is closed."""
    x, y = np.array([-1, 2, -3, 4], np.float32), np.zeros(4, np.float32)
    desc = MemoryDesc((4,))
    made = relu(desc)
    primitive = Primitive(made)
    stream = Stream()
    memories = {ARG.SRC: Memory(desc, x.ctypes.data), ARG.DST: Memory(desc, y.ctypes.data)}
    run = primitive.bind(memories, stream)
    objects = [desc, made, primitive, stream]
    for i in order:
        objects[i].close()
    for memory in memories.values():
        memory.close()
    del objects, desc, made, primitive, stream, memories
    gc.collect()
    run()
    assert y.tolist() == [0, 2, 0, 4]


@pytest.mark.parametrize("kind", MAKERS)
def test_no_growth_over_ten_thousand_objects(kind: str) -> None:
    make = MAKERS[kind]
    for _ in range(1000):
        make().close()

    def work() -> None:
        for i in range(10_000):
            made = make()
            if i % 2:
                made.close()  # the others are freed with their last reference

    assert growth(work, 1 << 20) <= 1 << 20


def test_descriptor_queries() -> None:
    desc = MemoryDesc((2, 19, 5, 7), "bf16", tag="aBcd16b")
    assert desc.dims == (2, 19, 5, 7)
    assert desc.padded_dims == (2, 32, 5, 7)
    assert desc.strides == (2 * 16 * 35, 16 * 35, 16 * 7, 16)
    assert desc.blocks == ((1, 16),)
    assert desc.tag == "aBcd16b"
    assert desc.data_type == "bf16"
    assert desc.nbytes == 2 * 32 * 35 * 2
    assert desc.is_strided
    assert str(desc) == "bf16[2,19,5,7]:aBcd16b"
    last = MemoryDesc((2, 3, 5, 7), strides=(105, 1, 21, 3))
    assert last == MemoryDesc((2, 3, 5, 7), tag="acdb")
    assert last != MemoryDesc((2, 3, 5, 7))
    assert last.tag == "acdb"
    assert hash(last) == hash(MemoryDesc((2, 3, 5, 7), tag="acdb"))
    left_open = MemoryDesc((2, 3), tag="any")
    assert left_open.is_any
    assert left_open.strides == ()
    assert left_open.tag == "any"
    empty = MemoryDesc()
    assert empty.dims == ()
    assert empty.nbytes == 0
    assert str(empty) == "none"


@pytest.mark.parametrize(
    "layout", [{}, {"strides": (800, 1, 160, 20)}, {"tag": "acdb"}, {"tag": "aBcd16b"}, {"tag": "any"}]
)
def test_what_a_descriptor_was_made_of_is_what_the_library_says(layout: Any) -> None:
    made = MemoryDesc((2, 19, 5, 8), "f32", **layout)
    asked = MemoryDesc.copy_of(made.handle)
    for fact in ("ndim", "dims", "data_type", "format_kind", "blocks", "strides", "tag", "nbytes"):
        assert getattr(made, fact) == getattr(asked, fact), fact


def test_given_layouts_are_kept_and_open_ones_are_asked_for() -> None:
    x, y = (MemoryDesc((2, 8, 6, 6), tag="acdb") for _ in range(2))
    w, b, r = MemoryDesc((8, 8, 1, 1), tag="any"), MemoryDesc((8,)), MemoryDesc((2, 8, 6, 6), tag="acdb")
    attributes = Attributes([onednn.Eltwise("relu"), onednn.Binary("add", r)])
    made = onednn.convolution_forward(x, w, b, y, WINDOW, prop="inference", attributes=attributes)
    added = onednn.post_op_argument(1)
    assert (made.src, made.dst, made.argument(ARG.BIAS), made.argument(added)) == (x, y, b, r)
    assert made.src is x
    assert made.weights.is_strided
    for argument in (ARG.SRC, ARG.DST, ARG.BIAS, ARG.WEIGHTS, added):
        assert made.argument(argument) == made.md(dnnl.dnnl_query_t.dnnl_query_exec_arg_md, argument)
    assert made.argument(onednn.post_op_argument(0)).ndim == made.argument(ARG.MEAN).ndim == 0
    x.close()
    assert made.argument(ARG.SRC).tag == "acdb"


def test_memory_pointer_can_be_moved() -> None:
    x = np.zeros(8, np.float32)
    memory = Memory(MemoryDesc((4,)), x.ctypes.data)
    assert memory.pointer == x.ctypes.data
    memory.pointer = x.ctypes.data + 16
    assert memory.pointer == x.ctypes.data + 16
    assert "f32[4]:a at 0x" in repr(memory)


def test_bad_arguments_are_refused_before_the_library() -> None:
    with pytest.raises(ValueError, match="unknown data type 'f31'; known: f16, bf16, f32"):
        MemoryDesc((2,), "f31")
    with pytest.raises(ValueError, match="no format tag 'zz9'"):
        MemoryDesc((2,), tag="zz9")
    with pytest.raises(ValueError, match="1 strides .* for 2 axes"):
        MemoryDesc((2, 3), strides=(1,))
    with pytest.raises(ValueError, match="fpmath must be one of strict, bf16"):
        Attributes(fpmath="exact")
    with pytest.raises(ValueError, match="no eltwise function 'reluu'"):
        onednn.eltwise_forward("reluu", MemoryDesc((2,)), MemoryDesc((2,)))
    with pytest.raises(ValueError, match="no binary function 'plus'"):
        onednn.binary("plus", MemoryDesc((2,)), MemoryDesc((2,)), MemoryDesc((2,)))


def test_errors_name_the_operation_and_its_operands() -> None:
    a, b = MemoryDesc((2, 3)), MemoryDesc((4, 5))
    with pytest.raises(DnnlInvalidArguments) as caught:
        onednn.matmul(a, b, a)
    text = str(caught.value)
    assert "matmul src=f32[2,3]:ab weights=f32[4,5]:ab dst=f32[2,3]:ab" in text
    assert "dnnl_invalid_arguments (2)" in text
    x, w, y = (MemoryDesc(s, "f64") for s in ((1, 1, 3, 3), (1, 1, 2, 2), (1, 1, 2, 2)))
    with pytest.raises(DnnlUnimplemented, match=r"convolution_forward src=f64\[1,1,3,3\]"):
        onednn.convolution_forward(x, w, None, y, WINDOW)
    assert issubclass(DnnlUnimplemented, DnnlError)


def test_failed_execution_names_the_operation() -> None:
    desc = MemoryDesc((4,))
    x = np.zeros(4, np.float32)
    run = Primitive(relu(desc)).bind({ARG.SRC: Memory(desc, x.ctypes.data)})  # no destination
    with pytest.raises(DnnlError, match="dnnl_primitive_execute.*eltwise_forward relu"):
        run()


def test_implementations_can_be_walked_through() -> None:
    w = MemoryDesc((8, 8, 3, 3), tag="any")
    x, y = MemoryDesc((1, 8, 8, 8)), MemoryDesc((1, 8, 6, 6))
    made = onednn.convolution_forward(x, w, None, y, WINDOW)
    names = [made.implementation]
    while made.next_implementation():
        names.append(made.implementation)
    assert len(set(names)) > 1
    assert not made.next_implementation()
    assert made.implementation == names[-1]


def test_one_primitive_serves_many_threads() -> None:
    desc = MemoryDesc((1000,))
    primitive = Primitive(relu(desc))
    rng = np.random.default_rng(0)
    wrong: list[int] = []

    def work(seed: np.ndarray) -> None:
        x, y = seed.astype(np.float32), np.empty(1000, np.float32)
        run = primitive.bind({ARG.SRC: Memory(desc, x.ctypes.data), ARG.DST: Memory(desc, y.ctypes.data)})
        for _ in range(200):
            y.fill(np.nan)
            run()
            wrong.append(int((y != np.maximum(x, 0)).sum()))

    threads = [threading.Thread(target=work, args=(rng.standard_normal(1000),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 800
    assert sum(wrong) == 0
