"""The object layer against the real libcudnn: attributes, errors, lifetimes. No GPU is needed."""

import ctypes
import gc
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina
from lamina import cudnn
from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn.engine import engine_refusals
from lamina.runtime import Machine
from tests.c.conftest import cudnn_928  # noqa: F401
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import CUDNN, needs_cudnn, planning_environment
from tests.helpers.resident import growth

pytestmark = needs_cudnn
SOURCE = ROOT / "src"


def tensor(uid: int = 1, virtual: bool = False, shape: tuple[int, ...] = (8, 16, 10, 12)) -> cudnn.Tensor:
    _, k, h, w = shape
    strides = (k * h * w, 1, k * w, k)
    return cudnn.Tensor(dimensions=shape, strides=strides, data_type="bfloat16", uid=uid, virtual=virtual)


def window(**changes: Any) -> cudnn.Convolution:
    return cudnn.Convolution(**{"stride": (1, 1), "pre": (1, 1), "post": (1, 1), **changes})


def operation() -> cudnn.ConvolutionForward:
    return cudnn.ConvolutionForward(
        window(), tensor(1), tensor(2, shape=(32, 16, 3, 3)), tensor(3, shape=(8, 32, 10, 12))
    )


MADE: dict[str, tuple[Callable[[], cudnn.Descriptor], dict[str, Any]]] = {
    "tensor": (
        tensor,
        {
            "dimensions": (8, 16, 10, 12),
            "strides": (1920, 1, 192, 16),
            "uid": 1,
            "alignment": 16,
            "virtual": False,
            "data_type": c.cudnnDataType_t.CUDNN_DATA_BFLOAT16,
        },
    ),
    "virtual tensor": (lambda: tensor(7, virtual=True), {"virtual": True, "uid": 7}),
    "convolution": (
        lambda: window(stride=(2, 3), pre=(0, 1), post=(2, 3), dilation=(1, 2)),
        {
            "stride": (2, 3),
            "pre": (0, 1),
            "post": (2, 3),
            "dilation": (1, 2),
            "spatial": 2,
            "mode": c.cudnnConvolutionMode_t.CUDNN_CROSS_CORRELATION,
        },
    ),
    "flipped convolution": (
        lambda: window(flip=True, compute="float64"),
        {
            "mode": c.cudnnConvolutionMode_t.CUDNN_CONVOLUTION,
            "compute": c.cudnnDataType_t.CUDNN_DATA_DOUBLE,
        },
    ),
    "reduction": (
        lambda: cudnn.Reduction("max"),
        {"operator": c.cudnnReduceTensorOp_t.CUDNN_REDUCE_TENSOR_MAX},
    ),
    "matmul": (lambda: cudnn.Matmul(), {"compute": c.cudnnDataType_t.CUDNN_DATA_FLOAT}),
    "resample": (
        lambda: cudnn.Resample("maxpool", window=(3, 2), stride=(2, 1), pre=(1, 0)),
        {
            "mode": c.cudnnResampleMode_t.CUDNN_RESAMPLE_MAXPOOL,
            "window": (3, 2),
            "stride": (2, 1),
            "pre": (1, 0),
            "post": (1, 0),
        },
    ),
    "knob choice": (lambda: cudnn.KnobChoice(2, 5), {"knob": 2, "value": 5}),
}


@pytest.mark.feature("F008", "F017", "F018", "F020", "F026", "B005")
@pytest.mark.parametrize("name", MADE)
def test_attributes_come_back(name: str) -> None:
    make, expected = MADE[name]
    descriptor = make()
    assert {key: descriptor.get(key) for key in expected} == expected
    assert all(key in repr(descriptor) for key in descriptor._values)


@pytest.mark.feature("B005")
@pytest.mark.parametrize("mode", list(c.cudnnPointwiseMode_t.__members__))
def test_every_pointwise_mode(mode: str) -> None:
    """Every mode is set and read back, by its C name; one that the library is too old for says so."""
    if c.SINCE.get(mode, (9, 0, 0)) > c.library.version:
        with pytest.raises(NotImplementedError, match=f"{mode} needs cuDNN"):
            cudnn.Pointwise(mode)
        return
    made = cudnn.Pointwise(mode)
    assert made.get("mode") == c.cudnnPointwiseMode_t[mode]
    assert made.is_backward == mode.endswith("_BWD")


@pytest.mark.feature("B005")
def test_activation_parameters() -> None:
    made = cudnn.Pointwise("relu_fwd", relu_lower=0.5, relu_upper=6.0, relu_slope=0.25)
    assert (made.get("relu_lower"), made.get("relu_upper"), made.get("relu_slope")) == (0.5, 6.0, 0.25)
    assert cudnn.Pointwise("elu_fwd", elu_alpha=0.75).get("elu_alpha") == 0.75
    assert cudnn.Pointwise("gen_index", axis=1).get("axis") == 1


@pytest.mark.feature("B005")
def test_operations_take_the_same_window() -> None:
    x, w, y = tensor(1), tensor(2, shape=(32, 16, 3, 3)), tensor(3, shape=(8, 32, 10, 12))
    shared = window()
    forward = cudnn.ConvolutionForward(shared, x, w, y, alpha=0.5, beta=1.0)
    assert (forward.get("alpha"), forward.get("beta")) == (0.5, 1.0)
    assert forward.get("convolution") is shared
    cudnn.ConvolutionBackwardData(shared, y, w, x)
    cudnn.ConvolutionBackwardFilter(shared, x, y, w)
    double = cudnn.Convolution(stride=(1, 1), pre=(1, 1), compute="float64")
    cudnn.ConvolutionForward(double, x, w, y, alpha=0.1)  # a double where the sums are doubles


@pytest.mark.feature("B005")
def test_pointwise_reduction_matmul_and_pool_operations() -> None:
    x, y, b = tensor(1), tensor(2), tensor(3, shape=(1, 16, 1, 1))
    add = cudnn.PointwiseOperation(cudnn.Pointwise("add"), x=x, b=b, y=y, alpha1=2.0)
    assert add.get("alpha1") == 2.0
    cudnn.PointwiseOperation(cudnn.Pointwise("relu_bwd"), x=x, dy=y, dx=tensor(4))
    cudnn.ReductionOperation(cudnn.Reduction("add"), x, b)
    pool = cudnn.Resample("maxpool", window=(2, 2), stride=(2, 2), pre=(0, 0))
    small = tensor(5, shape=(8, 16, 5, 6))
    cudnn.ResampleForward(pool, x, small)
    cudnn.ResampleBackward(pool, small, x, x=y, y=tensor(6, shape=(8, 16, 5, 6)))
    a, m = (
        cudnn.Tensor(dimensions=(2, r, s), strides=(r * s, s, 1), data_type="float16", uid=u)
        for r, s, u in ((4, 8, 1), (8, 16, 2))
    )
    out = cudnn.Tensor(dimensions=(2, 4, 16), strides=(64, 16, 1), data_type="float16", uid=3)
    assert cudnn.MatmulOperation(cudnn.Matmul(), a, m, out).get("a") is a


@pytest.mark.feature("F004")
def test_errors_say_why() -> None:
    with pytest.raises(CudnnError, match="cudnnBackendFinalize") as raised:
        cudnn.Tensor(dimensions=(1, -2, 3, 4), strides=(24, 12, 4, 1), data_type="float32", uid=1)
    assert raised.value.code.startswith("CUDNN_STATUS_BAD_PARAM")
    with pytest.raises(ValueError, match="4 dimensions but 3 strides"):
        cudnn.Tensor(dimensions=(1, 2, 3, 4), strides=(12, 4, 1), data_type="float32", uid=1)
    with pytest.raises(ValueError, match=r"unknown pointwise mode 'ad'; known: add,"):
        cudnn.Pointwise("ad")
    with pytest.raises(ValueError, match="unknown data type 'floaty'"):
        cudnn.Matmul(compute="floaty")
    with pytest.raises(AttributeError, match="Tensor has no attribute 'dims'; it has uid, data_type"):
        tensor().get("dims")
    with pytest.raises(ValueError, match="give config, or the json"):
        cudnn.ExecutionPlan()
    with pytest.raises(CudnnError):
        cudnn.DeviceProperties(json='{"deviceVer": 900}')


@pytest.mark.feature("B005")
def test_what_a_concatenation_would_compute_wrongly_is_refused() -> None:
    g = cudnn.Graph()
    a, b = (g.packed((2, 8, 4, 4), "float16", channels_last=True, virtual=v) for v in (False, True))
    y, hidden = (g.packed((2, 16, 4, 4), "float16", channels_last=True, virtual=v) for v in (False, True))
    with pytest.raises(ValueError, match="y must be stored in memory, got the virtual Tensor"):
        g.concatenate([a, a], hidden, 1)
    with pytest.raises(ValueError, match=r"got inputs \[1\] in memory and inplace=None"):
        g.concatenate([b, a], y, 1)
    assert g.concatenate([b, a], y, 1, inplace=1) is y


@pytest.mark.feature("B008")
def test_refusals_of_engines_are_read() -> None:
    text = (
        '{"engineId":4,"knobChoices":{}}\n'
        "Warning: CUDNN_STATUS_NOT_SUPPORTED_LAYOUT; Reason: strides are odd\n"
        "Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: finalize_internal()\n\n"
        '{"engineId":4,"knobChoices":{}}\n'
        "Warning: CUDNN_STATUS_NOT_SUPPORTED_LAYOUT; Reason: strides are odd\n"
        '{"engineId":11}\nWarning: CUDNN_STATUS_NOT_SUPPORTED; Reason: no\n'
    )
    assert engine_refusals(text) == [
        "eng4: NOT_SUPPORTED_LAYOUT: strides are odd",
        "eng11: NOT_SUPPORTED: no",
    ]
    assert engine_refusals("") == []
    error = cudnn.NoPlanError("conv on x", ["eng1: too large"])
    assert "conv on x" in str(error)
    assert "eng1: too large" in str(error)


@pytest.mark.feature("F029")
def test_close_is_final_and_idempotent() -> None:
    made = tensor()
    made.close()
    made.close()
    assert made.closed
    assert "closed" in repr(made)
    for use in (lambda: made.get("uid"), lambda: made.address):
        with pytest.raises(ValueError, match="this Tensor was closed"):
            use()
    with tensor() as inside:
        assert inside.get("uid") == 1
    assert inside.closed


@pytest.mark.feature("F029")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_closing_order(order: tuple[int, ...]) -> None:
    """Parts may be closed before the whole; the whole keeps working on what it needs."""
    shared, x, w, y = window(), tensor(1), tensor(2, shape=(32, 16, 3, 3)), tensor(3, shape=(8, 32, 10, 12))
    made = [cudnn.ConvolutionForward(shared, x, w, y), shared, x, y]
    for place in order:
        made[place].close()
    del shared, x, y
    gc.collect()
    assert w.get("uid") == 2


@pytest.mark.feature("F029")
def test_a_closed_part_is_refused() -> None:
    gone = tensor()
    gone.close()
    with pytest.raises(ValueError, match="this Tensor was closed"):
        cudnn.ConvolutionForward(window(), gone, tensor(2), tensor(3))


@pytest.mark.feature("F029")
def test_nothing_leaks() -> None:
    def cycle(count: int) -> None:
        for number in range(count):
            with cudnn.Tensor(dimensions=(4, 4), strides=(4, 1), data_type="float32", uid=1) as made:
                made.get("dimensions")
            if number % 10 == 0:
                operation()
                with pytest.raises(ValueError, match="was closed"):
                    made.get("uid")

    cycle(2000)
    assert growth(lambda: cycle(20_000), 1 << 20) <= 1 << 20


@pytest.mark.feature("F029")
def test_exit_with_live_and_cyclic_descriptors() -> None:
    """The interpreter ends in peace whatever is still alive."""
    program = (
        "from lamina import cudnn\n"
        "x = cudnn.Tensor(dimensions=(2, 2), strides=(2, 1), data_type='float32', uid=1)\n"
        "y = cudnn.Tensor(dimensions=(2, 2), strides=(2, 1), data_type='float32', uid=2)\n"
        "x.other, y.other = y, x\n"
        "op = cudnn.PointwiseOperation(cudnn.Pointwise('exp'), x=x, y=y)\n"
        "x.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.feature("B006")
def test_variant_packs() -> None:
    pack = cudnn.VariantPack({3: 0x1000, 1: 0x2000}, workspace=0x3000)
    assert (pack.get("uids"), pack.get("pointers"), pack.get("workspace")) == (
        (3, 1),
        (0x1000, 0x2000),
        0x3000,
    )
    assert "workspace" not in repr(cudnn.VariantPack({1: 16}))


SIZES = {1: ((1, 256, 64), (16384, 64, 1)), 3: ((1, 256, 96), (24576, 96, 1))}


@pytest.mark.skipif(CUDNN >= (9, 21), reason="this cuDNN takes other sizes when a plan runs")
def test_other_sizes_name_the_version_that_takes_them() -> None:
    with pytest.raises(NotImplementedError, match=r"needs cuDNN 9\.21, this is 9\."):
        cudnn.VariantPack({1: 4096, 2: 8192, 3: 12288}, sizes=SIZES)
    a, b, y = (tensor(uid, shape=(8, 16, 8, 8)) for uid in (1, 2, 3))
    add = cudnn.PointwiseOperation(cudnn.Pointwise("add"), x=a, b=b, y=y)
    with pytest.raises(NotImplementedError, match=r"OVERRIDE_SHAPE_ENABLED needs cuDNN 9\.21, this is 9\."):
        cudnn.OperationGraph([add], cudnn.device_properties(Machine.named()), override=True)
    for name in ("revision", "count"):
        with pytest.raises(NotImplementedError, match=r"needs cuDNN 9\.27, this is 9\."):
            getattr(cudnn.KernelCache.empty(), name)


def test_other_sizes_reach_the_newest_library(tmp_path: Path, cudnn_928: str) -> None:  # noqa: F811
    """It counts the lists that a pack gives it, so it reads them as they are laid out here."""
    code = f"""
import json
from lamina.c.errors import CudnnBadParam
from lamina.cudnn import VariantPack
pack = VariantPack({{1: 4096, 2: 8192, 3: 12288}}, sizes={SIZES})
class Uneven(VariantPack):
    def __init__(self, **lists):
        super(VariantPack, self).__init__(pointers=(4096,), uids=(1,), **lists)
texts = []
for dimensions, strides in ((((2, 3),) * 2, ((3, 1),)), (((2, 3),), ((3, 1),) * 3)):
    try:
        Uneven(override_uids=(1,), dimensions=dimensions, strides=strides)
    except CudnnBadParam as error:
        texts.append(error.message)
print(json.dumps([pack.get("override_uids"), pack.get("dimensions"), texts]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=planning_environment(tmp_path) | {"LAMINA_CUDNN": cudnn_928},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    uids, dimensions, texts = json.loads(done.stdout)
    assert (uids, dimensions) == ([1, 3], [[1, 256, 64], [1, 256, 96]])
    assert ["override_shapes.size()" in texts[0], "override_strides.size()" in texts[1]] == [True, True]


@pytest.mark.feature("B006")
def test_graph_names_what_it_is() -> None:
    graph = cudnn.Graph()
    x = graph.tensor((8, 16, 10, 12), (1920, 1, 192, 16), "bfloat16")
    w = graph.tensor((32, 16, 3, 3), (144, 1, 48, 16), "bfloat16")
    y = graph.tensor((8, 32, 10, 12), (3840, 1, 384, 32), "float32", virtual=True)
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    out = graph.tensor(y.dimensions, y.strides, "bfloat16")
    assert graph.pointwise("relu_fwd", y, out=out) is out
    assert [t.uid for t in graph.tensors] == [1, 2, 3, 4]
    assert str(graph) == (
        "conv -> relu_fwd on bfloat16[8, 16, 10, 12], bfloat16[32, 16, 3, 3], bfloat16[8, 32, 10, 12]"
    )


@pytest.mark.feature("B006", "B008")
def test_keys_as_text() -> None:
    assert cudnn.key_text((62, ((2, 0), (13, 1)))) == "eng62{2:0,13:1}"
    assert cudnn.key_text((1, ())) == "eng1"


@pytest.mark.feature("B005")
@pytest.mark.parametrize(
    ("make", "name", "data", "value"),
    [
        (tensor, "dimensions", b"", ()),
        (tensor, "dimensions", (2).to_bytes(8, "little") + (3).to_bytes(8, "little"), (2, 3)),
        (tensor, "uid", (7).to_bytes(8, "little"), 7),
        (cudnn.DeviceProperties.empty, "json", b"", ""),
        (cudnn.DeviceProperties.empty, "json", b"{}\0\0", "{}"),
    ],
)
def test_values_are_read_as_many_as_the_library_has(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], cudnn.Descriptor], name: str, data: bytes, value: Any
) -> None:
    """Without any element a tuple is empty, and so is a text, which ends before its zeros."""

    def fill(descriptor: Any, attribute: Any, kind: Any, count: int, array: Any) -> int:
        if array is None:
            return len(data) if name == "json" else len(data) // 8
        ctypes.memmove(array, data, len(data))
        return count

    descriptor = make()
    monkeypatch.setattr(c, "cudnnBackendGetAttribute", fill)
    assert descriptor.get(name) == value


@pytest.mark.feature("B005")
def test_descriptors_that_the_library_fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are offered, as many as it wrote are given back, and each keeps the one that was asked."""
    offered: list[int] = []

    def fill(descriptor: Any, attribute: Any, kind: Any, count: int, array: Any) -> int:
        offered.extend(array[:count])
        return min(count, 2)

    asked = tensor()
    monkeypatch.setattr(c, "cudnnBackendGetAttribute", fill)
    found = asked._get_descriptors("dimensions", cudnn.Tensor, 3)
    assert len(offered) == len(set(offered)) == 3
    assert [one.address for one in found] == offered[:2]
    assert all(one.native.kept == [asked.native] for one in found)
    assert asked._get_descriptors("dimensions", cudnn.Tensor, 0) == []


@pytest.mark.feature("B005")
def test_an_operation_keeps_its_parts() -> None:
    """Not the objects, which may be closed, but what the library has of them."""
    x, w, y, shared = tensor(1), tensor(2, shape=(32, 16, 3, 3)), tensor(3, shape=(8, 32, 10, 12)), window()
    natives = {id(one.native) for one in (x, w, y, shared)}
    made = cudnn.ConvolutionForward(shared, x, w, y)
    assert {id(one) for one in made.native.kept} == natives


@pytest.mark.feature("B005")
def test_fractions_come_back() -> None:
    """Steps of a pool that enlarges."""
    third, tenths = Fraction(1, 3), Fraction(3, 10)
    made = cudnn.Resample("bilinear", window=(2, 2), stride=(third, tenths), pre=(-third, Fraction(1, 2)))
    assert made.get("stride") == (third, tenths)
    assert made.get("pre") == (-third, Fraction(1, 2))


# ------------------------------------------------------------------------------------------------ wrong values


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no descriptor": (
        lambda: cudnn.ConvolutionForward(window(), 3, tensor(2), tensor(3)),  # type: ignore[arg-type]
        TypeError,
        "ConvolutionForward: x must be a Tensor, got 3",
    ),
    "nothing": (
        lambda: cudnn.ConvolutionForward(window(), tensor(1), None, tensor(3)),  # type: ignore[arg-type]
        TypeError,
        "ConvolutionForward: w must be a Tensor, got None",
    ),
    "another kind": (  # for which the library aborts the process
        lambda: cudnn.ConvolutionForward(window(), tensor(1), tensor(2), window()),  # type: ignore[arg-type]
        TypeError,
        r"ConvolutionForward: y must be a Tensor, got Convolution\(",
    ),
    "no window": (
        lambda: cudnn.ConvolutionForward(tensor(4), tensor(1), tensor(2), tensor(3)),  # type: ignore[arg-type]
        TypeError,
        r"ConvolutionForward: convolution must be a convolution descriptor, got Tensor\(",
    ),
    "nothing in a declared one": (
        lambda: cudnn.Graph().attention(tensor(1), tensor(2), tensor(3), None),  # type: ignore[arg-type]
        TypeError,
        "AttentionForward: o is required, got None",
    ),
    "one input": (
        lambda: cudnn.Graph().concatenate(tensor(1), tensor(2), 0),  # type: ignore[arg-type]
        TypeError,
        r"Concatenate: inputs must be a sequence of Tensors, got Tensor\(",
    ),
    "a size beyond 64 bits": (
        lambda: tensor(1, shape=(3 + (1 << 64), 1, 1, 1)),
        OverflowError,
        "Tensor: dimensions does not fit into 64 bits, got 18446744073709551619",
    ),
    "a fraction": (
        lambda: tensor(1, shape=(2.5, 1, 1, 1)),  # type: ignore[arg-type]
        TypeError,
        r"Tensor: (dimensions|strides) must be a sequence of whole numbers, got \(",
    ),
    "one number": (
        lambda: window(stride=1),
        TypeError,
        "Convolution: stride must be a sequence of whole numbers, got 1",
    ),
    "another rank": (
        lambda: window(pre=(1, 1, 1)),
        ValueError,
        r"Convolution: pre \(1, 1, 1\) and stride \(1, 1\) differ in length",
    ),
    "text for a number": (
        lambda: cudnn.Graph().packed((1, 4), "float32", alignment="x"),
        TypeError,
        "Tensor: alignment must be a whole number, got 'x'",
    ),
    "no type": (
        lambda: cudnn.Graph().packed((1, 4), None),  # type: ignore[arg-type]
        TypeError,
        "data type must be a name or a cudnnDataType_t, got None",
    ),
    "a member of another enum": (
        lambda: cudnn.Graph().packed((1, 4), c.CUDNN_TENSOR_NHWC),
        TypeError,
        "data type must be a name or a cudnnDataType_t, got <cudnnTensorFormat_t",
    ),
    "no mode": (
        lambda: cudnn.Graph().pointwise(2.5, tensor()),  # type: ignore[arg-type]
        TypeError,
        "pointwise mode must be a name or a cudnnPointwiseMode_t, got 2.5",
    ),
    "no target": (
        lambda: cudnn.OperationGraph([operation()], "h200"),  # type: ignore[arg-type]
        TypeError,
        "target must be a Handle .* or DeviceProperties, got 'h200'",
    ),
    "no device to tune on": (
        lambda: cudnn.Graph().autotune(None),  # type: ignore[arg-type]
        TypeError,
        "autotune: candidates run on a GPU; handle must be a Handle, got None",
    ),
    "a limit below zero": (
        lambda: cudnn.Graph().plan(None, workspace_limit=-1),  # type: ignore[arg-type]
        ValueError,
        "plan: workspace_limit must be between 0",
    ),
    "half a key": (
        lambda: cudnn.Graph().rebuild(None, (1,)),  # type: ignore[arg-type]
        ValueError,
        r"rebuild: key must be \(engine, \(\(knob, value\), …\)\), as EngineConfig.key; got \(1,\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_c_would_misread_is_refused_by_name(case: str) -> None:
    call, error, text = REFUSED[case]
    with pytest.raises(error, match=text):
        call()


def test_element_types_are_also_dtypes() -> None:
    kinds = [
        cudnn.Graph().packed((1, 4), kind).data_type  # type: ignore[arg-type]
        for kind in ("float16", np.float16, np.dtype("float16"), lamina.float16, c.CUDNN_DATA_HALF)
    ]
    assert set(kinds) == {c.cudnnDataType_t.CUDNN_DATA_HALF}
    assert cudnn.data_type(ml_dtypes.bfloat16) == c.CUDNN_DATA_BFLOAT16  # type: ignore[arg-type]


def test_a_graph_takes_each_number_for_one_tensor() -> None:
    graph, other = cudnn.Graph(), cudnn.Graph()
    x, y = graph.packed((1, 4), "float32"), graph.packed((1, 4), "float32")
    stray = other.packed((1, 4), "float32")
    graph.pointwise("relu_fwd", x, out=y)
    with pytest.raises(ValueError, match="add: two tensors have the uid 1, Tensor.*; make them by one graph"):
        graph.pointwise("add", y, stray)


def test_what_the_library_refuses_is_described() -> None:
    with pytest.raises(CudnnError) as caught:
        tensor(1, shape=(-8, 16, 10, 12))
    (note,) = caught.value.__notes__
    assert note.startswith("of Tensor(uid=1, data_type=CUDNN_DATA_BFLOAT16, dimensions=(-8, 16, 10, 12)")
