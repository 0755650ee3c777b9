"""Each primitive against NumPy. Integers, where sums are exact, must be equal."""

from typing import Any

import numpy as np
import pytest

from lamina import onednn
from lamina.c import dnnl
from lamina.onednn import ARG, Attributes, Binary, Eltwise, Memory, MemoryDesc, Primitive, PrimitiveDesc, Sum

pytestmark = [
    pytest.mark.feature("B004"),
    pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64"),
]

Array = np.ndarray[Any, Any]


def ints(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def run(made: PrimitiveDesc, given: dict[int, Array], wanted: dict[int, Array]) -> None:
    """Execute with row-major arrays, reordered to what the primitive asks for and back into `wanted`."""
    held: list[Array] = []

    def memory(desc: MemoryDesc) -> Memory:
        held.append(np.zeros(desc.nbytes, np.uint8))
        return Memory(desc, held[-1].ctypes.data, keep=held[-1])

    def plain(array: Array) -> Memory:
        kind = {"float32": "f32", "uint8": "u8"}[array.dtype.name]
        return Memory(MemoryDesc(array.shape, kind), array.ctypes.data, keep=array)

    def move(source: Memory, target: Memory) -> None:
        if source.desc.dims == target.desc.dims:
            reorder = Primitive(onednn.reorder(source.desc, target.desc))
            reorder.execute({ARG.SRC: source, ARG.DST: target})

    operands = {}
    for argument, array in (given | wanted).items():
        desc = made.argument(argument)
        operands[argument] = memory(desc) if desc.ndim else plain(array)
        if desc.ndim and argument in given:
            move(plain(array), operands[argument])
    if made.scratchpad.nbytes:
        operands[ARG.SCRATCHPAD] = memory(made.scratchpad)
    Primitive(made).execute(operands)
    for argument, array in wanted.items():
        if made.argument(argument).ndim:
            move(operands[argument], plain(array))


def any_(*shape: int) -> MemoryDesc:
    return MemoryDesc(shape, tag="any")


def patches(x: Array, k: int, stride: int, pad: int) -> Array:
    """[N, C, O, O, k, k]"""
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    return np.lib.stride_tricks.sliding_window_view(padded, (k, k), (2, 3))[:, :, ::stride, ::stride]


def test_convolution_in_three_directions() -> None:
    x, w, g, b = ints(2, 5, 9, 9), ints(7, 5, 3, 3, seed=1), ints(2, 7, 5, 5, seed=2), ints(7, seed=3)
    window = onednn.SlidingWindow((2, 2), (0, 0), (1, 1), (1, 1))
    forward = onednn.convolution_forward(
        any_(*x.shape), any_(*w.shape), MemoryDesc((7,)), any_(*g.shape), window
    )
    y = np.empty_like(g)
    run(forward, {ARG.SRC: x, ARG.WEIGHTS: w, ARG.BIAS: b}, {ARG.DST: y})
    parts = patches(x, 3, 2, 1)
    assert np.array_equal(y, np.einsum("ncopij,kcij->nkop", parts, w) + b[:, None, None])

    weights = onednn.convolution_backward_weights(
        any_(*x.shape), any_(*w.shape), MemoryDesc((7,)), any_(*g.shape), window, hint=forward
    )
    dw, db = np.empty_like(w), np.empty_like(b)
    run(weights, {ARG.SRC: x, ARG.DIFF_DST: g}, {ARG.DIFF_WEIGHTS: dw, ARG.DIFF_BIAS: db})
    assert np.array_equal(dw, np.einsum("ncopij,nkop->kcij", parts, g))
    assert np.array_equal(db, g.sum((0, 2, 3)))

    data = onednn.convolution_backward_data(
        any_(*x.shape), any_(*w.shape), any_(*g.shape), window, hint=forward
    )
    dx = np.empty_like(x)
    run(data, {ARG.DIFF_DST: g, ARG.WEIGHTS: w}, {ARG.DIFF_SRC: dx})
    assert np.vdot(dx, x) == np.vdot(g, y - b[:, None, None])  # the adjoint


@pytest.mark.parametrize(("channels", "filters", "size"), [(3, 48, 64), (4, 16, 16), (1, 6, 16), (9, 16, 16)])
def test_filter_gradients_of_few_channels_stay_within_their_scratchpad(
    channels: int, filters: int, size: int
) -> None:
    """oneDNN's kernel for 1x1 convolutions with a stride wrote up to 20 KB behind it: other memory of the process."""
    window = onednn.SlidingWindow((2, 2), (0, 0), (0, 0), (0, 0))
    x = MemoryDesc((2, channels, size, size), tag="acdb")
    g = MemoryDesc((2, filters, size // 2, size // 2), tag="acdb")
    w = any_(filters, channels, 1, 1)
    hint = onednn.convolution_forward(x, w, None, g, window)
    made = onednn.convolution_backward_weights(x, w, None, g, window, hint=hint)
    behind = 1 << 16
    held = {
        a: np.ones((d.nbytes + behind) // 4, np.float32)
        for a, d in {
            ARG.SRC: made.src,
            ARG.DIFF_DST: made.diff_dst,
            ARG.DIFF_WEIGHTS: made.diff_weights,
            ARG.SCRATCHPAD: made.scratchpad,
        }.items()
        if d.nbytes
    }
    descs = {ARG.SRC: made.src, ARG.DIFF_DST: made.diff_dst, ARG.DIFF_WEIGHTS: made.diff_weights}
    for values in held.values():
        values[-behind // 4 :] = 7
    Primitive(made).execute(
        {a: Memory(descs.get(a, made.scratchpad), v.ctypes.data, keep=v) for a, v in held.items()}
    )
    for argument, values in held.items():
        assert (values[-behind // 4 :] == 7).all(), (argument, made.implementation)


def test_post_ops_scales_and_sum() -> None:
    x, w, other = ints(2, 4, 6, 6), ints(8, 4, 3, 3, seed=1), ints(2, 8, 4, 4, seed=2)
    window = onednn.SlidingWindow((1, 1), (0, 0), (0, 0), (0, 0))
    channel = ints(1, 8, 1, 1, seed=3)
    shape = other.shape
    attributes = Attributes(
        [Eltwise("relu", 0.5), Binary("add", MemoryDesc(shape)), Binary("mul", MemoryDesc((1, 8, 1, 1)))]
    )
    made = onednn.convolution_forward(
        MemoryDesc(x.shape), any_(*w.shape), None, MemoryDesc(shape), window, attributes=attributes
    )
    y = np.empty(shape, np.float32)
    extra = {onednn.post_op_argument(1): other, onednn.post_op_argument(2): channel}
    run(made, {ARG.SRC: x, ARG.WEIGHTS: w, **extra}, {ARG.DST: y})
    plain = np.einsum("ncopij,kcij->nkop", patches(x, 3, 1, 0), w)
    assert np.array_equal(y, (np.where(plain > 0, plain, plain * 0.5) + other) * channel)

    desc = MemoryDesc((33,))
    a, b, kept = ints(33), ints(33, seed=1), ints(33, seed=2)
    scaled = Attributes([Sum(2.0)], scales={ARG.SRC_0: 0, ARG.SRC_1: 0})
    made = onednn.binary("add", desc, desc, desc, attributes=scaled)
    s, t = np.array([4], np.float32), np.array([-1], np.float32)
    c = kept.copy()
    run(
        made,
        {
            ARG.SRC_0: a,
            ARG.SRC_1: b,
            onednn.scale_argument(ARG.SRC_0): s,
            onednn.scale_argument(ARG.SRC_1): t,
            ARG.DST: c,
        },
        {ARG.DST: c},
    )
    assert np.array_equal(c, 4 * a - b + 2 * kept)


@pytest.mark.parametrize("given", [{}, {"user_scratchpad": True}, {"user_scratchpad": False}])
def test_scratch_memory_is_the_callers_unless_it_is_the_librarys(given: dict[str, bool]) -> None:
    """Calls of one primitive at the same time have each their own."""
    mode = dnnl.dnnl_primitive_attr_get_scratchpad_mode(Attributes(**given).handle)
    modes = dnnl.dnnl_scratchpad_mode_t
    assert mode == (
        modes.dnnl_scratchpad_mode_user
        if given.get("user_scratchpad", True)
        else modes.dnnl_scratchpad_mode_library
    )


def test_only_binary_post_ops_take_an_operand() -> None:
    desc = MemoryDesc((4, 4))
    made = onednn.matmul(desc, desc, desc, attributes=Attributes([Eltwise("relu"), Binary("add", desc)]))
    found = [made.argument(onednn.post_op_argument(i)).dims for i in range(4)]
    assert found == [(), (4, 4), (), ()]


def test_max_pooling_workspace_is_the_offset_of_the_first_maximum() -> None:
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 8, 8)).astype(np.float32)  # many ties
    desc, out = MemoryDesc(x.shape), MemoryDesc((2, 3, 4, 4))
    window = onednn.SlidingWindow((2, 2), (0, 0), (1, 1), (0, 0))
    made = onednn.pooling_forward("max", desc, out, (3, 3), window)
    y, index = np.empty((2, 3, 4, 4), np.float32), np.empty((2, 3, 4, 4), np.uint8)
    run(made, {ARG.SRC: x}, {ARG.DST: y, ARG.WORKSPACE: index})
    padded = np.pad(x, ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=-1)
    parts = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    flat = parts.reshape(2, 3, 4, 4, 9)
    assert np.array_equal(y, flat.max(-1))
    assert np.array_equal(index, flat.argmax(-1))

    g = ints(2, 3, 4, 4)
    back = onednn.pooling_backward("max", desc, out, (3, 3), window, hint=made)
    dx = np.empty_like(x)
    run(back, {ARG.DIFF_DST: g, ARG.WORKSPACE: index}, {ARG.DIFF_SRC: dx})
    assert np.vdot(dx, x) == np.vdot(g, y)


@pytest.mark.parametrize("kind", ["avg_include_padding", "avg_exclude_padding"])
def test_average_pooling(kind: str) -> None:
    x = ints(2, 16, 6, 6)
    desc, out = MemoryDesc(x.shape, tag="acdb"), MemoryDesc((2, 16, 4, 4), tag="acdb")
    window = onednn.SlidingWindow((2, 2), (0, 0), (1, 1), (1, 1))
    made = onednn.pooling_forward(kind, desc, out, (2, 2), window, prop="inference")
    y = np.empty((2, 16, 4, 4), np.float32)
    run(made, {ARG.SRC: x}, {ARG.DST: y})
    count = patches(np.ones((1, 1, 6, 6)), 2, 2, 1).sum((-1, -2)) if "exclude" in kind else 4
    assert np.allclose(y, patches(x, 2, 2, 1).sum((-1, -2)) / count, rtol=1e-6)


def test_products() -> None:
    a, b, bias = ints(3, 5, 7), ints(3, 7, 4, seed=1), ints(1, 1, 4, seed=2)
    y = np.empty((3, 5, 4), np.float32)
    made = onednn.matmul(MemoryDesc(a.shape), any_(*b.shape), MemoryDesc(y.shape), bias=MemoryDesc((1, 1, 4)))
    run(made, {ARG.SRC: a, ARG.WEIGHTS: b, ARG.BIAS: bias}, {ARG.DST: y})
    assert np.array_equal(y, a @ b + bias)

    x, w, g = ints(6, 10), ints(9, 10, seed=1), ints(6, 9, seed=2)
    forward = onednn.inner_product_forward(
        MemoryDesc((6, 10)), any_(9, 10), MemoryDesc((9,)), MemoryDesc((6, 9))
    )
    out, row = np.empty((6, 9), np.float32), ints(9, seed=3)
    run(forward, {ARG.SRC: x, ARG.WEIGHTS: w, ARG.BIAS: row}, {ARG.DST: out})
    assert np.array_equal(out, x @ w.T + row)
    data = onednn.inner_product_backward_data(
        MemoryDesc((6, 10)), any_(9, 10), MemoryDesc((6, 9)), hint=forward
    )
    dx = np.empty_like(x)
    run(data, {ARG.DIFF_DST: g, ARG.WEIGHTS: w}, {ARG.DIFF_SRC: dx})
    assert np.array_equal(dx, g @ w)
    weights = onednn.inner_product_backward_weights(
        MemoryDesc((6, 10)), any_(9, 10), MemoryDesc((9,)), MemoryDesc((6, 9)), hint=forward
    )
    dw, db = np.empty_like(w), np.empty(9, np.float32)
    run(weights, {ARG.SRC: x, ARG.DIFF_DST: g}, {ARG.DIFF_WEIGHTS: dw, ARG.DIFF_BIAS: db})
    assert np.array_equal(dw, g.T @ x)
    assert np.array_equal(db, g.sum(0))


def test_elementwise_reduction_softmax_sum_concat() -> None:
    x, g = ints(4, 6), ints(4, 6, seed=1)
    desc = MemoryDesc((4, 6))
    y = np.empty_like(x)
    forward = onednn.eltwise_forward("relu", desc, desc)
    run(forward, {ARG.SRC: x}, {ARG.DST: y})
    assert np.array_equal(y, np.maximum(x, 0))
    back = onednn.eltwise_backward("relu_use_dst_for_bwd", desc, desc, desc, hint=forward)
    dx = np.empty_like(x)
    run(back, {ARG.DST: y, ARG.DIFF_DST: g}, {ARG.DIFF_SRC: dx})
    assert np.array_equal(dx, np.where(y > 0, g, 0))

    total = np.empty((4, 1), np.float32)
    run(onednn.reduction("sum", desc, MemoryDesc((4, 1))), {ARG.SRC: x}, {ARG.DST: total})
    assert np.array_equal(total, x.sum(1, keepdims=True))

    p = np.empty_like(x)
    soft = onednn.softmax_forward(desc, desc, 1)
    run(soft, {ARG.SRC: x}, {ARG.DST: p})
    e = np.exp(x - x.max(1, keepdims=True))
    assert np.allclose(p, e / e.sum(1, keepdims=True), rtol=1e-5)
    dx = np.empty_like(x)
    run(
        onednn.softmax_backward(desc, desc, desc, 1, hint=soft),
        {ARG.DST: p, ARG.DIFF_DST: g},
        {ARG.DIFF_SRC: dx},
    )
    assert np.allclose(dx, p * (g - (p * g).sum(1, keepdims=True)), atol=1e-5)

    both = np.empty_like(x)
    made = onednn.weighted_sum((2.0, -3.0), (desc, desc))
    run(made, {ARG.MULTIPLE_SRC: x, ARG.MULTIPLE_SRC + 1: g}, {ARG.DST: both})
    assert np.array_equal(both, 2 * x - 3 * g)

    joined = np.empty((4, 12), np.float32)
    made = onednn.concat(1, (desc, desc), MemoryDesc((4, 12)))
    run(made, {ARG.MULTIPLE_SRC: x, ARG.MULTIPLE_SRC + 1: g}, {ARG.DST: joined})
    assert np.array_equal(joined, np.concatenate([x, g], 1))


def test_batch_normalization() -> None:
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((4, 16, 3, 3)).astype(np.float32) for _ in range(2))
    scale, shift = (rng.standard_normal(16).astype(np.float32) for _ in range(2))
    desc = MemoryDesc(x.shape, tag="acdb")
    forward = onednn.batch_normalization_forward(desc, desc, epsilon=1e-5)
    y, mean, variance = np.empty_like(x), np.empty(16, np.float32), np.empty(16, np.float32)
    run(
        forward,
        {ARG.SRC: x, ARG.SCALE: scale, ARG.SHIFT: shift},
        {ARG.DST: y, ARG.MEAN: mean, ARG.VARIANCE: variance},
    )
    axes = (0, 2, 3)
    normal = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    wide = (None, slice(None), None, None)
    assert np.allclose(mean, x.mean(axes), atol=1e-6)
    assert np.allclose(variance, x.var(axes), rtol=1e-5)
    assert np.allclose(y, normal * scale[wide] + shift[wide], atol=1e-5)

    back = onednn.batch_normalization_backward(desc, desc, desc, epsilon=1e-5, hint=forward)
    dx, ds, db = np.empty_like(x), np.empty(16, np.float32), np.empty(16, np.float32)
    run(
        back,
        {ARG.SRC: x, ARG.MEAN: mean, ARG.VARIANCE: variance, ARG.DIFF_DST: g, ARG.SCALE: scale},
        {ARG.DIFF_SRC: dx, ARG.DIFF_SCALE: ds, ARG.DIFF_SHIFT: db},
    )
    assert np.allclose(db, g.sum(axes), atol=1e-4)
    assert np.allclose(ds, (g * normal).sum(axes), atol=1e-4)
    apart = g - g.mean(axes, keepdims=True) - normal * (g * normal).mean(axes, keepdims=True)
    assert np.allclose(dx, apart * scale[wide] / np.sqrt(x.var(axes, keepdims=True) + 1e-5), atol=1e-4)


@pytest.mark.parametrize("tag", ["aBcd16b", "acdb", "abcd", "aBcd8b"])
def test_reorder_there_and_back(tag: str) -> None:
    x = ints(2, 19, 3, 5)
    made = onednn.reorder(MemoryDesc(x.shape), MemoryDesc(x.shape, tag=tag))
    y = np.full(made.dst.nbytes // 4, np.nan, np.float32)
    source = Memory(MemoryDesc(x.shape), x.ctypes.data)
    target = Memory(MemoryDesc(x.shape, tag=tag), y.ctypes.data)
    Primitive(made).execute({ARG.SRC: source, ARG.DST: target})
    assert np.isfinite(y).all()  # padding is zero
    assert y.sum() == x.sum()
    again = np.empty_like(x)
    back = Primitive(onednn.reorder(target.desc, source.desc))
    back.execute({ARG.SRC: target, ARG.DST: Memory(source.desc, again.ctypes.data)})
    assert np.array_equal(again, x)
