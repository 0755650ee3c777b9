"""oneDNN by the same generator: handles, typed queries, primitives, errors."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina.c import dnnl as d
from lamina.c import errors

pytestmark = pytest.mark.feature("B004")


@pytest.fixture(scope="module")
def engine() -> Iterator[int]:
    engine = d.dnnl_engine_create(d.dnnl_cpu, 0)
    yield engine
    d.dnnl_engine_destroy(engine)


@pytest.fixture(scope="module")
def stream(engine: int) -> Iterator[int]:
    stream = d.dnnl_stream_create(engine, d.dnnl_stream_default_flags)
    yield stream
    d.dnnl_stream_destroy(stream)


def desc(shape: tuple[int, ...], tag: int, kind: int = d.dnnl_f32) -> int:
    return d.dnnl_memory_desc_create_with_tag(len(shape), shape, kind, tag)


@pytest.fixture
def conv(engine: int) -> Iterator[int]:
    """Descriptor of a 3x3 forward convolution 3 -> 16 channels on 2x3x8x8, padding 1, layouts left open."""
    shapes = ((2, 3, 8, 8), (16, 3, 3, 3), (2, 16, 8, 8))
    x, w, y = (desc(shape, d.dnnl_format_tag_any) for shape in shapes)
    found = d.dnnl_convolution_forward_primitive_desc_create(
        engine, d.dnnl_forward, d.dnnl_convolution_auto, x, w, None, y, (1, 1), (0, 0), (1, 1), (1, 1), None
    )
    yield found
    d.dnnl_primitive_desc_destroy(found)


def test_version_and_engines(engine: int) -> None:
    version = d.dnnl_version()
    assert (version.major, version.minor) == (3, 2) == d.library.version[:2]
    assert d.dnnl_engine_get_count(d.dnnl_cpu) == 1
    assert d.dnnl_engine_get_count(d.dnnl_gpu) == 0
    assert isinstance(engine, int)
    assert d.dnnl_engine_get_kind(engine) is d.dnnl_cpu


def test_memory_descriptor_queries_are_typed() -> None:
    md, query = desc((2, 3, 8, 8), d.dnnl_nchw), d.dnnl_memory_desc_query
    assert query(md, d.dnnl_query_ndims_s32) == 4
    assert query(md, d.dnnl_query_dims) == [2, 3, 8, 8]
    assert query(md, d.dnnl_query_strides) == [192, 64, 8, 1]
    assert query(md, d.dnnl_query_padded_dims) == [2, 3, 8, 8]
    assert query(md, d.dnnl_query_data_type) is d.dnnl_f32
    assert query(md, d.dnnl_query_format_kind) is d.dnnl_blocked
    assert query(md, d.dnnl_query_inner_blks) == []
    assert query(md, d.dnnl_query_submemory_offset_s64) == 0
    assert d.dnnl_memory_desc_get_size(md) == 2 * 3 * 64 * 4
    twin = d.dnnl_memory_desc_clone(md)
    assert d.dnnl_memory_desc_equal(md, twin) == 1
    d.dnnl_memory_desc_destroy(twin)


def test_blocked_layout_tells_its_blocks() -> None:
    md = desc((1, 20, 4, 4), d.dnnl_nChw16c)
    assert d.dnnl_memory_desc_query(md, d.dnnl_query_inner_blks) == [16]
    assert d.dnnl_memory_desc_query(md, d.dnnl_query_inner_idxs) == [1]
    assert d.dnnl_memory_desc_query(md, d.dnnl_query_padded_dims) == [1, 32, 4, 4]


def test_primitive_descriptor_queries_are_typed(engine: int, conv: int) -> None:
    def query(what: int, index: int = 0) -> object:
        return d.dnnl_primitive_desc_query(conv, what, index)

    assert query(d.dnnl_query_engine) == engine
    assert query(d.dnnl_query_primitive_kind) is d.dnnl_convolution
    assert query(d.dnnl_query_prop_kind) is d.dnnl_forward
    assert query(d.dnnl_query_num_of_inputs_s32) == 2
    assert query(d.dnnl_query_strides) == [1, 1]
    assert query(d.dnnl_query_padding_l) == [1, 1]
    assert isinstance(query(d.dnnl_query_impl_info_str), str)
    weights = d.dnnl_primitive_desc_query_md(conv, d.dnnl_query_weights_md, 0)
    assert weights == query(d.dnnl_query_weights_md)
    assert d.dnnl_memory_desc_query(weights, d.dnnl_query_dims) == [16, 3, 3, 3]
    with pytest.raises(errors.DnnlUnimplemented, match=r"what=dnnl_query_epsilon_f32"):
        query(d.dnnl_query_epsilon_f32)
    with pytest.raises(ValueError, match="no result that can be returned"):
        query(d.dnnl_query_undef)


def test_what_a_primitive_is_cached_by_is_as_long_as_the_library_says(conv: int) -> None:
    """Of a CPU's primitives it is empty; here the answers are those that a GPU's could give."""
    assert d.dnnl_primitive_desc_query(conv, d.dnnl_query_cache_blob_id, 0) == b""
    held = ctypes.create_string_buffer(b"\1\0\2more")
    answers = {
        d.dnnl_query_cache_blob_id_size_s64: 3,
        d.dnnl_query_cache_blob_id: ctypes.addressof(held),
    }

    def call(what: int, slot: Any) -> None:
        slot.value = answers[d.dnnl_query_t(what)]

    assert d.library.query_primitive_desc(call, d.dnnl_query_cache_blob_id, conv) == b"\1\0\2"


def test_a_reorder_runs_with_dict_list_and_prepared_arguments(engine: int, stream: int) -> None:
    source = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    target = np.zeros((2, 4, 4, 3), np.float32)
    from_desc, to_desc = desc((2, 3, 4, 4), d.dnnl_nchw), desc((2, 3, 4, 4), d.dnnl_nhwc)
    primitive = d.dnnl_primitive_create(
        d.dnnl_reorder_primitive_desc_create(from_desc, engine, to_desc, engine, None)
    )
    x = d.dnnl_memory_create(from_desc, engine, source)
    y = d.dnnl_memory_create(to_desc, engine, target)
    assert d.dnnl_memory_get_data_handle(x) == source.ctypes.data
    pairs = {d.DNNL_ARG_FROM: x, d.DNNL_ARG_TO: y}
    for arguments in (pairs, list(pairs.items()), (d.dnnl_exec_arg_t * 2)(*pairs.items())):
        target[:] = 0
        d.dnnl_primitive_execute(primitive, stream, 2, arguments)
        d.dnnl_stream_wait(stream)
        np.testing.assert_array_equal(target, source.transpose(0, 2, 3, 1))
    d.dnnl_primitive_destroy(primitive)


def test_post_ops_come_back_as_named_tuples() -> None:
    ops = d.dnnl_post_ops_create()
    d.dnnl_post_ops_append_eltwise(ops, d.dnnl_eltwise_relu, 0.5, 0.0)
    d.dnnl_post_ops_append_sum(ops, 2.0, 0, d.dnnl_f32)
    assert d.dnnl_post_ops_len(ops) == 2
    assert d.dnnl_post_ops_get_kind(ops, 0) is d.dnnl_eltwise
    relu = d.dnnl_post_ops_get_params_eltwise(ops, 0)
    assert (relu.alg_kind, relu.alpha) == (d.dnnl_eltwise_relu, 0.5)
    assert d.dnnl_post_ops_get_params_sum(ops, 1) == (2.0, 0, d.dnnl_f32)
    attributes = d.dnnl_primitive_attr_create()
    d.dnnl_primitive_attr_set_post_ops(attributes, ops)
    d.dnnl_post_ops_destroy(ops)
    assert d.dnnl_post_ops_len(d.dnnl_primitive_attr_get_post_ops(attributes)) == 2
    d.dnnl_primitive_attr_set_rnn_weights_qparams(attributes, 2, 1, [0.5, 0.25])
    got = d.dnnl_primitive_attr_get_rnn_weights_qparams(attributes)
    assert (got.mask, got.scales) == (1, [0.5, 0.25])
    d.dnnl_primitive_attr_destroy(attributes)


def test_sum_takes_arrays_of_floats_and_of_handles(engine: int, stream: int) -> None:
    md = desc((4,), d.dnnl_a)
    pd = d.dnnl_sum_primitive_desc_create(engine, md, 2, [1.0, 10.0], [md, md], None)
    left, right, out = np.arange(4, dtype=np.float32), np.ones(4, np.float32), np.zeros(4, np.float32)
    memories = [d.dnnl_memory_create(md, engine, array) for array in (left, right, out)]
    names = (d.DNNL_ARG_MULTIPLE_SRC, d.DNNL_ARG_MULTIPLE_SRC + 1, d.DNNL_ARG_DST)
    d.dnnl_primitive_execute(d.dnnl_primitive_create(pd), stream, 3, dict(zip(names, memories, strict=True)))
    d.dnnl_stream_wait(stream)
    assert out.tolist() == [10.0, 11.0, 12.0, 13.0]


def test_memory_can_be_allocated_by_the_library(engine: int) -> None:
    memory = d.dnnl_memory_create(desc((8,), d.dnnl_a), engine, d.DNNL_MEMORY_ALLOCATE)
    assert d.dnnl_memory_get_data_handle(memory) != 0
    empty = d.dnnl_memory_create(desc((8,), d.dnnl_a), engine, d.DNNL_MEMORY_NONE)
    assert d.dnnl_memory_get_data_handle(empty) == 0


def test_matrix_product_takes_characters_and_arrays() -> None:
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    b = np.arange(12, dtype=np.float32).reshape(3, 4)
    c = np.zeros((2, 4), np.float32)
    d.dnnl_sgemm("N", b"N", 2, 4, 3, 1.0, a, 3, b, 4, 0.0, c, 4)
    np.testing.assert_array_equal(c, a @ b)


@pytest.mark.feature("F004", "F005")
def test_errors_by_status() -> None:
    with pytest.raises(errors.DnnlInvalidArguments) as caught:
        desc((2, 3, -8, 4), d.dnnl_nchw)
    error = caught.value
    assert (error.status, error.code) == (2, "dnnl_invalid_arguments")
    assert "dnnl_memory_desc_create_with_tag(ndims=4, dims=(2, 3, -8, 4)" in str(error)
    with pytest.raises(errors.DnnlInvalidArguments):
        d.dnnl_engine_create(d.dnnl_gpu, 0)
    with pytest.raises(ValueError, match="`dims`"):
        d.dnnl_memory_desc_create_with_tag(4, (2, 3), d.dnnl_f32, d.dnnl_nchw)


@pytest.mark.feature("F008")
def test_names_of_values() -> None:
    assert d.dnnl_dt2str(d.dnnl_bf16) == "bf16"
    assert d.dnnl_status2str(d.dnnl_out_of_memory) == "out_of_memory"
    assert d.dnnl_fmt_tag2str(d.dnnl_nhwc) == "acdb"
    assert d.dnnl_format_tag_t["dnnl_nhwc"] is d.dnnl_nhwc


def test_macros() -> None:
    assert (d.DNNL_ARG_SRC, d.DNNL_ARG_DST, d.DNNL_ARG_WEIGHTS, d.DNNL_MAX_NDIMS) == (1, 17, 33, 12)
    assert d.DNNL_RUNTIME_DIM_VAL == -(2**63)
    assert d.DNNL_RUNTIME_F32_VAL != d.DNNL_RUNTIME_F32_VAL
    assert d.DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) == 2 * d.DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE


def test_graph_api_compiles_and_runs_a_relu(engine: int, stream: int) -> None:
    strided, undef = d.dnnl_graph_layout_type_strided, d.dnnl_graph_tensor_property_undef
    init = d.dnnl_graph_logical_tensor_init_with_dims
    x, y = (init(i, d.dnnl_f32, 2, (2, 3), strided, undef) for i in (0, 1))
    assert d.dnnl_graph_logical_tensor_get_mem_size(x) == 24
    op = d.dnnl_graph_op_create(7, d.dnnl_graph_op_relu, "relu")
    d.dnnl_graph_op_add_input(op, x)
    d.dnnl_graph_op_add_output(op, y)
    assert d.dnnl_graph_op_get_kind(op) is d.dnnl_graph_op_relu
    graph = d.dnnl_graph_graph_create(d.dnnl_cpu)
    d.dnnl_graph_add_op(graph, op)
    d.dnnl_graph_graph_finalize(graph)
    d.dnnl_graph_graph_filter(graph, d.dnnl_graph_partition_policy_fusion)
    assert d.dnnl_graph_graph_get_partition_num(graph) == 1
    (partition,) = d.dnnl_graph_graph_get_partitions(graph, 1)
    assert d.dnnl_graph_partition_get_ops(partition, 1) == [7]
    assert [t.id for t in d.dnnl_graph_partition_get_input_ports(partition, 1)] == [0]
    compiled = d.dnnl_graph_compiled_partition_create(partition)
    d.dnnl_graph_partition_compile(partition, compiled, 1, [x], 1, [y], engine)
    assert d.dnnl_graph_compiled_partition_query_logical_tensor(compiled, 1).id == 1
    assert isinstance(d.dnnl_graph_compiled_partition_get_inplace_ports(compiled), list)
    source = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)
    target = np.zeros_like(source)
    tensors = [d.dnnl_graph_tensor_create(t, engine, array) for t, array in ((x, source), (y, target))]
    d.dnnl_graph_compiled_partition_execute(compiled, stream, 1, tensors[:1], 1, tensors[1:])
    d.dnnl_stream_wait(stream)
    np.testing.assert_array_equal(target, np.maximum(source, 0))


def test_structures_show_their_fields() -> None:
    tensor = d.dnnl_graph_logical_tensor_t(id=3, ndims=1, data_type=int(d.dnnl_f32))
    assert "dnnl_graph_logical_tensor_t(id=3, ndims=1" in repr(tensor)
    assert "data_type=dnnl_f32" in repr(tensor)
    assert ctypes.sizeof(tensor) == 224
