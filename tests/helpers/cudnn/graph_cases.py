"""One small graph for every operation of cuDNN's graph API: built, planned, and (on a GPU) run.

Tensors are [N, C, H, W] with dense channels unless a pattern requires otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lamina.c import cudnn as c
from lamina.cudnn import Graph, Resample, Tensor
from lamina.cudnn.composed import Dropout, Lengths, attention
from lamina.cudnn.composed import attention_grad as steps_grad

N, C, H, W, K = 8, 32, 16, 16, 64
CHANNELS = (1, C, 1, 1)


@dataclass(frozen=True)
class Case:
    """kind: the operation's descriptor; build: adds the operation(s) to a graph.

    refused: a regular expression for cuDNN 9.19's refusal on an H200, "" if it is planned.
    """

    kind: str
    name: str
    build: Callable[[Graph], Any]
    compute: str = "float32"
    refused: str = ""

    def graph(self) -> Graph:
        made = Graph(self.compute)
        self.build(made)
        return made

    @property
    def title(self) -> str:
        return f"{self.kind.removeprefix('OPERATION_').lower()}: {self.name}"


CASES: list[Case] = []


def case(
    kind: str, name: str, compute: str = "float32", refused: str = ""
) -> Callable[[Callable[[Graph], Any]], Any]:
    """Register a function that builds a graph as a case."""

    def add(build: Callable[[Graph], Any]) -> Callable[[Graph], Any]:
        CASES.append(Case(kind, name, build, compute, refused))
        return build

    return add


def image(g: Graph, channels: int = C, kind: str = "float16", size: int = H, **more: Any) -> Tensor:
    return g.packed((N, channels, size, size), kind, channels_last=True, **more)


def channel(g: Graph, kind: str = "float32", **more: Any) -> Tensor:
    return g.packed(CHANNELS, kind, channels_last=True, **more)


def filters(g: Graph, kind: str = "float16") -> Tensor:
    return g.packed((K, C, 3, 3), kind, channels_last=True)


WINDOW: dict[str, Any] = {"stride": (1, 1), "pre": (1, 1)}

#: Engines for fused patterns require a product, a convolution or a pooling in the graph.
ALONE = r"NOT_SUPPORTED: \(mmaNodeCount == 0\)"

# ------------------------------------------------------------------------------------------------ convolution

for _kind in ("float16", "bfloat16", "float32", "float64"):
    _compute = "float64" if _kind == "float64" else "float32"

    @case("OPERATION_CONVOLUTION_FORWARD", _kind, _compute)
    def conv(g: Graph, kind: str = _kind) -> None:
        g.conv(image(g, kind=kind), filters(g, kind), image(g, K, kind), **WINDOW)

    @case("OPERATION_CONVOLUTION_BACKWARD_DATA", _kind, _compute)
    def conv_data(g: Graph, kind: str = _kind) -> None:
        g.conv_data_grad(image(g, K, kind), filters(g, kind), image(g, kind=kind), **WINDOW)

    @case("OPERATION_CONVOLUTION_BACKWARD_FILTER", _kind, _compute)
    def conv_filter(g: Graph, kind: str = _kind) -> None:
        g.conv_filter_grad(image(g, kind=kind), image(g, K, kind), filters(g, kind), **WINDOW)


@case("OPERATION_CONVOLUTION_FORWARD", "int8 to float32", "int32")
def conv_int8(g: Graph) -> None:
    y = image(g, K, "int32", virtual=True)
    g.conv(image(g, kind="int8"), filters(g, "int8"), y, **WINDOW)
    g.pointwise("identity", y, out=image(g, K, "float32"))


@case("OPERATION_CONVOLUTION_FORWARD", "with bias, residual and relu")
def conv_epilogue(g: Graph) -> None:
    y = g.conv(image(g), filters(g), image(g, K, "float32", virtual=True), **WINDOW)
    y = g.pointwise("add", y, g.packed((1, K, 1, 1), "float16", channels_last=True))
    y = g.pointwise("add", y, image(g, K))
    g.pointwise("relu_fwd", y, out=image(g, K))


# ------------------------------------------------------------------------------------------------- products


@case("OPERATION_MATMUL", "float16")
def matmul(g: Graph) -> None:
    g.matmul(
        g.packed((4, 64, 32), "float16"), g.packed((4, 32, 48), "float16"), g.packed((4, 64, 48), "float16")
    )


@case("OPERATION_MATMUL", "with sizes of each matrix")
def matmul_sizes(g: Graph) -> None:
    a, b = g.packed((4, 64, 32), "float16"), g.packed((4, 32, 48), "float16")
    out = g.packed((4, 64, 48), "float16")
    g.matmul(a, b, out, m=g.packed((4, 1, 1), "int32"), padding=0.0)


@case("OPERATION_MOE_GROUPED_MATMUL", "bfloat16")
def grouped(g: Graph) -> None:
    token, weight = g.packed((1, 256, 64), "bfloat16"), g.tensor((8, 64, 128), (64 * 128, 1, 64), "bfloat16")
    g.grouped_matmul(token, weight, g.packed((8, 1, 1), "int32"), g.packed((1, 256, 128), "bfloat16"))


@case("OPERATION_MOE_GROUPED_MATMUL_BWD", "bfloat16", refused="needs cuDNN 9.22")
def grouped_grad(g: Graph) -> None:
    token, dout = g.packed((1, 256, 64), "bfloat16"), g.packed((1, 256, 128), "bfloat16")
    g.grouped_matmul_grad(dout, token, g.packed((8, 1, 1), "int32"), g.packed((8, 64, 128), "bfloat16"))


# ------------------------------------------------------------------------------------------------ pointwise

BINARY = {"add", "add_square", "div", "max", "min", "mod", "mul", "pow", "sub", "atan2", "floor_mod"}


def pointwise_case(mode: str) -> Callable[[Graph], Any]:
    def build(g: Graph) -> None:
        kind = "bool" if mode.startswith("logical") else "float32"
        x = image(g, kind=kind)
        if mode == "binary_select":
            g.pointwise(mode, x, image(g, kind="float32"), image(g, kind="float32"), t=image(g, kind="bool"))
        elif mode == "gen_index":
            g.pointwise(mode, x, out=image(g, kind="int32"), axis=2)
        elif mode.startswith(("cmp", "logical")):
            b = None if mode == "logical_not" else image(g, kind=kind)
            g.pointwise(mode, x, b, image(g, kind="bool"))
        else:
            two = mode in BINARY or mode.endswith("_bwd")
            g.pointwise(mode, x, image(g, kind="float32") if two else None, image(g, kind="float32"))

    return build


for _name in c.cudnnPointwiseMode_t.__members__:
    _mode = _name.removeprefix("CUDNN_POINTWISE_").lower()
    _compute = "bool" if _mode.startswith("logical") else "float32"
    _refused = "needs cuDNN 9.27" if _mode == "floor_mod" else ""
    CASES.append(Case("OPERATION_POINTWISE", _mode, pointwise_case(_mode), _compute, _refused))

# ------------------------------------------------------------------------------------------------ reductions

NO_REDUCTION = {"mul": "Unsupported reduction op"} | dict.fromkeys(
    ("avg", "norm1", "norm2", "mul_no_zeros"), "cudnnBackendFinalize.*CUDNN_STATUS_NOT_SUPPORTED"
)

for _name in c.cudnnReduceTensorOp_t.__members__:
    _mode = _name.removeprefix("CUDNN_REDUCE_TENSOR_").lower()

    @case("OPERATION_REDUCTION", _mode, refused=NO_REDUCTION.get(_mode, ""))
    def reduction(g: Graph, mode: str = _mode) -> None:
        g.reduce(mode, image(g, kind="float32"), channel(g))


@case("OPERATION_REDUCTION", "add, deterministic", refused="COMPILATION_FAILED")
def reduction_deterministic(g: Graph) -> None:
    g.reduce("add", image(g, kind="float32"), channel(g), deterministic=True)


@case("OPERATION_REDUCTION", "add, deterministic, behind a convolution")
def reduction_deterministic_conv(g: Graph) -> None:
    y = g.conv(image(g), filters(g), image(g, K, "float32", virtual=True), **WINDOW)
    g.reduce("add", y, g.packed((1, K, 1, 1), "float32", channels_last=True), deterministic=True)


def behind_product(g: Graph, mode: str, deterministic: bool | None = None, matrices: int = 4) -> None:
    out = g.packed((matrices, 64, 48), "float32", virtual=True)
    g.matmul(g.packed((matrices, 64, 32), "float16"), g.packed((matrices, 32, 48), "float16"), out)
    g.reduce(mode, out, g.packed((matrices, 64, 1), "float32"), deterministic=deterministic)


@case("OPERATION_REDUCTION", "mul, behind a product")
def reduction_product(g: Graph) -> None:
    behind_product(g, "mul")


@case("OPERATION_REDUCTION", "add, deterministic, behind a product", refused="eng1.*: does not end")
def reduction_product_deterministic(g: Graph) -> None:
    behind_product(g, "add", True)


@case("OPERATION_REDUCTION", "add, deterministic, behind a product of one matrix")
def reduction_matrix_deterministic(g: Graph) -> None:
    behind_product(g, "add", True, 1)


# -------------------------------------------------------------------------------------------------- resample


def _pool(mode: str) -> Resample:
    return Resample(mode, window=(2, 2), stride=(2, 2), pre=(0, 0))


for _mode in ("maxpool", "avgpool_include_padding", "avgpool_exclude_padding"):

    @case("OPERATION_RESAMPLE_FWD", _mode)
    def pool(g: Graph, mode: str = _mode) -> None:
        g.pool(_pool(mode), image(g), image(g, size=H // 2))

    @case("OPERATION_RESAMPLE_BWD", _mode)
    def pool_grad(g: Graph, mode: str = _mode) -> None:
        dy, dx = image(g, size=H // 2), image(g)
        index = image(g, size=H // 2, kind="int8") if mode == "maxpool" else None
        g.pool_grad(_pool(mode), dy, dx, index=index)


@case("OPERATION_RESAMPLE_FWD", "maxpool with index")
def pool_index(g: Graph) -> None:
    g.pool(_pool("maxpool"), image(g), image(g, size=H // 2), image(g, size=H // 2, kind="int8"))


HALF = (Fraction(1, 2),) * 2


def doubling(mode: str) -> Resample:
    """Upscaled by two: windows of 2 at every half step."""
    return Resample(mode, window=(2, 2), stride=HALF, pre=HALF, post=(1, 1), padding="edge_val_pad")


NO_ENLARGING = "Unsupported resample mode in the graph"

for _mode in ("nearest", "bilinear"):

    @case("OPERATION_RESAMPLE_FWD", _mode, refused=NO_ENLARGING if _mode == "nearest" else "")
    def enlarge(g: Graph, mode: str = _mode) -> None:
        g.pool(doubling(mode), image(g, kind="float32"), image(g, size=2 * H, kind="float32"))


@case("OPERATION_RESAMPLE_BWD", "nearest", refused="BAD_PARAM")
def nearest_grad(g: Graph) -> None:
    g.pool_grad(doubling("nearest"), image(g, size=2 * H, kind="float32"), image(g, kind="float32"))


@case("OPERATION_RESAMPLE_BWD", "bilinear", refused=NO_ENLARGING)
def bilinear_grad(g: Graph) -> None:
    g.pool_grad(doubling("bilinear"), image(g, size=2 * H, kind="float32"), image(g, kind="float32"))


# ------------------------------------------------------------------------------------------------ statistics


@case("OPERATION_GEN_STATS", "alone", refused=ALONE)
def gen_stats(g: Graph) -> None:
    g.gen_stats(image(g), channel(g), channel(g))


@case("OPERATION_GEN_STATS", "scale, bias, relu, convolution, statistics")
def gen_stats_chain(g: Graph) -> None:
    x = g.pointwise("mul", image(g), channel(g, "float16"))
    x = g.pointwise("add", x, channel(g, "float16"))
    x = g.pointwise("relu_fwd", x)
    y = g.conv(x, filters(g), image(g, K), **WINDOW)
    total, squares = (g.packed((1, K, 1, 1), "float32", channels_last=True) for _ in range(2))
    g.gen_stats(y, total, squares)


for _mode in ("training", "inference"):

    @case("OPERATION_BN_FINALIZE_STATISTICS", _mode, refused=ALONE if _mode == "inference" else "")
    def bn_finalize(g: Graph, mode: str = _mode) -> None:
        names: tuple[str, ...] = ("running_mean", "running_var")
        more = {}
        if mode == "training":
            names += ("next_mean", "next_var", "mean", "inv_std")
            more["momentum"] = g.scalar()
        more |= {name: channel(g) for name in names}
        names = ("scale", "bias", "eq_scale", "eq_bias")
        more |= {name: channel(g) for name in names}
        g.bn_finalize(
            channel(g),
            channel(g),
            epsilon=g.scalar(),
            count=g.scalar(data_type="int64"),
            mode=mode,
            **more,
        )


def bn_weights(g: Graph, dy: Tensor, x: Tensor) -> None:
    names = ("mean", "inv_std", "scale", "dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    g.bn_weight_grad(dy, x, **{name: channel(g) for name in names})


@case("OPERATION_BN_BWD_WEIGHTS", "alone", refused=ALONE)
def bn_weight_grad(g: Graph) -> None:
    bn_weights(g, image(g), image(g))


@case("OPERATION_BN_BWD_WEIGHTS", "data gradient, relu gradient, statistics")
def bn_weight_chain(g: Graph) -> None:
    dx = g.conv_data_grad(image(g, K), filters(g), image(g, virtual=True, kind="float32"), **WINDOW)
    x = image(g)
    centred = g.pointwise("sub", x, channel(g))
    normal = g.pointwise("mul", centred, channel(g))
    scaled = g.pointwise("mul", normal, channel(g))
    shifted = g.pointwise("add", scaled, channel(g))
    dy = g.pointwise("relu_bwd", shifted, dx, image(g))
    bn_weights(g, dy, x)


# ------------------------------------------------------------------------------------------------------ norms

ROWS = (512, 256, 1, 1)
NORMED = (1, 256, 1, 1)
PER_ROW = (512, 1, 1, 1)


def _norm_shapes(mode: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    if mode == "instance":
        return (N, C, H, W), CHANNELS, (N, C, 1, 1)
    if mode == "batch":
        return (N, C, H, W), CHANNELS, CHANNELS
    return ROWS, NORMED, PER_ROW


for _mode in ("layer", "instance", "batch", "rms"):
    for _phase in ("training", "inference"):
        _refused = "matcher_casted == nullptr" if (_mode, _phase) == ("batch", "inference") else ""

        @case("OPERATION_NORM_FORWARD", f"{_mode}, {_phase}", refused=_refused)
        def norm(g: Graph, mode: str = _mode, phase: str = _phase) -> None:
            shape, parameters, statistics = _norm_shapes(mode)
            more: dict[str, Tensor] = {}
            if mode == "batch" and phase == "training":
                names = ("running_mean", "running_var", "next_mean", "next_var")
                more = {name: g.packed(parameters, "float32", channels_last=True) for name in names}
                more["momentum"] = g.scalar()
            if phase == "training" or mode == "batch":
                more["inv_variance"] = g.packed(statistics, "float32", channels_last=True)
                if mode != "rms":
                    more["mean"] = g.packed(statistics, "float32", channels_last=True)
            if mode != "rms":
                more["bias"] = g.packed(parameters, "float32", channels_last=True)
            scale = g.packed(parameters, "float32", channels_last=True)
            x, y = (g.packed(shape, "float16", channels_last=True) for _ in range(2))
            g.norm(mode, x, y, scale=scale, epsilon=g.scalar(), phase=phase, **more)

    @case("OPERATION_NORM_BACKWARD", _mode)
    def norm_grad(g: Graph, mode: str = _mode) -> None:
        shape, parameters, statistics = _norm_shapes(mode)
        dy, x, dx = (g.packed(shape, "float16", channels_last=True) for _ in range(3))
        names = ["scale", "dscale"] + (["dbias"] if mode != "rms" else [])
        more = {name: g.packed(parameters, "float32", channels_last=True) for name in names}
        names = ["inv_variance"] + (["mean"] if mode != "rms" else [])
        more |= {name: g.packed(statistics, "float32", channels_last=True) for name in names}
        g.norm_grad(mode, dy, x, dx, **more)


# ----------------------------------------------------------------------------------------- random and shapes

for _mode, _parameters in {
    "bernoulli": {"probability": 0.5},
    "uniform": {"minimum": 0.0, "maximum": 1.0},
    "normal": {"mean": 0.0, "deviation": 1.0},
}.items():

    @case("OPERATION_RNG", _mode, refused=ALONE)
    def random(g: Graph, mode: str = _mode, parameters: dict[str, Any] = _parameters) -> None:
        g.random(mode, g.packed((4, 8, 64, 64), "float32"), 1234, **parameters)


@case("OPERATION_RNG", "seed and offset in memory", refused=ALONE)
def random_seed(g: Graph) -> None:
    seed, offset = (g.packed((1, 1, 1, 1), "int64") for _ in range(2))
    g.random("bernoulli", g.packed((4, 8, 64, 64), "float32"), seed, offset=offset, probability=0.5)


@case("OPERATION_CONCAT", "along channels", refused=ALONE)
def concatenate(g: Graph) -> None:
    g.concatenate([image(g), image(g)], image(g, 2 * C), 1)


@case("OPERATION_CONCAT", "in place", refused=ALONE)
def concatenate_inplace(g: Graph) -> None:
    shape = (4, 16, 32)
    g.concatenate(
        [g.packed(shape, "float16"), g.packed(shape, "float16")],
        g.packed((8, 16, 32), "float16"),
        0,
        inplace=0,
    )


@case("OPERATION_CONCAT", "before a convolution")
def concatenate_conv(g: Graph) -> None:
    x = g.concatenate([image(g), image(g)], image(g, 2 * C), 1)
    g.conv(x, g.packed((K, 2 * C, 3, 3), "float16", channels_last=True), image(g, K), **WINDOW)


@case("OPERATION_CONCAT", "behind a convolution")
def conv_concatenate(g: Graph) -> None:
    y = g.conv(image(g), filters(g), image(g, K, virtual=True), **WINDOW)
    g.concatenate([y, image(g, K)], image(g, 2 * K), 1, inplace=1)


@case("OPERATION_RESHAPE", "alone", refused=ALONE)
def reshape(g: Graph) -> None:
    g.reshape(g.packed((4, 64, 32), "float16"), g.packed((4, 32, 64), "float16"))


@case("OPERATION_RESHAPE", "before a product", refused="Unsupported node in the graph")
def reshape_product(g: Graph) -> None:
    view = g.packed((4, 64, 32), "float16", virtual=True)
    g.reshape(g.packed((256, 32), "float16"), view)
    g.matmul(view, g.packed((4, 32, 48), "float16"), g.packed((4, 64, 48), "float16"))


@case("OPERATION_TRANSPOSE", "float16", refused="needs cuDNN 9.22")
def transpose(g: Graph) -> None:
    g.transpose(g.packed((4, 64, 32), "float16"), g.packed((4, 32, 64), "float16"), (0, 2, 1))


@case("OPERATION_SLICE", "float16", refused="needs cuDNN 9.22")
def slice_(g: Graph) -> None:
    g.slice(
        g.packed((4, 64, 32), "float16"), g.packed((4, 32, 32), "float16"), (0, 0, 0), (4, 64, 32), (1, 2, 1)
    )


@case("OPERATION_SIGNAL", "set", refused=ALONE)
def signal_set(g: Graph) -> None:
    g.signal("set", g.packed((1, 1, 1, 1), "int32"), 1, x=image(g), y=image(g))


@case("OPERATION_SIGNAL", "wait", refused=ALONE)
def signal_wait(g: Graph) -> None:
    g.signal("wait", g.packed((1, 1, 1, 1), "int32"), 1, x=image(g), y=image(g))


@case("OPERATION_SIGNAL", "behind a convolution", refused="Hopper doesn't support signal")
def signal_conv(g: Graph) -> None:
    y = g.conv(image(g), filters(g), image(g, K, "float32", virtual=True), **WINDOW)
    g.signal("set", g.packed((1, 1, 1, 1), "int32"), 1, x=y, y=image(g, K))


# ------------------------------------------------------------------------------------------------- attention

BATCH, HEADS, LENGTH, FEATURES = 2, 4, 128, 64
QKV = (BATCH, HEADS, LENGTH, FEATURES)
SCORES = (BATCH, HEADS, LENGTH, LENGTH)
ROW = (BATCH, HEADS, LENGTH, 1)


def qkv(g: Graph, count: int) -> list[Tensor]:
    return [g.packed(QKV, "bfloat16") for _ in range(count)]


@case("OPERATION_SDPA_FWD", "inference")
def attention_inference(g: Graph) -> None:
    q, k, v, o = qkv(g, 4)
    g.attention(q, k, v, o, scale=g.scalar())


@case("OPERATION_SDPA_FWD", "training")
def attention_training(g: Graph) -> None:
    q, k, v, o = qkv(g, 4)
    g.attention(q, k, v, o, scale=g.scalar(), stats=g.packed(ROW, "float32"))


@case("OPERATION_SDPA_BWD", "training", refused=r"BAD_PARAM: outputGraph.buildDAG\(\)")
def attention_grad(g: Graph) -> None:
    do, q, k, v, o, dq, dk, dv = qkv(g, 8)
    stats = g.packed(ROW, "float32")
    g.attention_grad(do, q, k, v, o, stats=stats, dq=dq, dk=dk, dv=dv, scale=g.scalar())


@case("OPERATION_SOFTMAX", "float32", refused="needs cuDNN 9.20")
def softmax(g: Graph) -> None:
    g.softmax(g.packed(SCORES, "float32"), g.packed(SCORES, "float32"))


@case("OPERATION_DIAGONAL_BAND_MASK", "float32", refused="needs cuDNN 9.20")
def band_mask(g: Graph) -> None:
    g.band_mask(g.packed(SCORES, "float32"), g.scalar(), g.packed(SCORES, "float32"))


def keys_transposed(g: Graph, virtual: bool = False) -> Tensor:
    sizes, strides = (
        (BATCH, HEADS, FEATURES, LENGTH),
        (HEADS * LENGTH * FEATURES, LENGTH * FEATURES, 1, FEATURES),
    )
    return g.tensor(sizes, strides, "float16", virtual=virtual)


@case("OPERATION_MATMUL", "attention in steps")
def composed_attention(g: Graph) -> None:
    q, v, o = (g.packed(QKV, "float16") for _ in range(3))
    attention(g, q, keys_transposed(g), v, o, scale=g.scalar(), stats=g.packed(ROW, "float32"))


@case("OPERATION_RNG", "dropout in attention")
def dropout_attention(g: Graph) -> None:
    q, v, o = (g.packed(QKV, "float16") for _ in range(3))
    seed, offset = (g.packed((1, 1, 1, 1), "int64") for _ in range(2))
    dropout = Dropout(0.9, seed, offset, g.scalar())
    stats = g.packed(ROW, "float32")
    attention(g, q, keys_transposed(g), v, o, scale=g.scalar(), stats=stats, dropout=dropout)


def attention_gradient(g: Graph, dropout: Dropout | None = None) -> None:
    do, q, o, dq, dk, dv = (g.packed(QKV, "float16") for _ in range(6))
    stats, row_sum = (g.packed(ROW, "float32") for _ in range(2))
    dq_sum, one = g.packed(QKV, "float32"), g.scalar()
    k, v = keys_transposed(g), keys_transposed(g)
    grads = {"dq": dq, "dk": dk, "dv": dv, "row_sum": row_sum, "dq_sum": dq_sum}
    steps_grad(g, do, q, k, v, o, stats=stats, scale=g.scalar(), one=one, dropout=dropout, **grads)


@case("OPERATION_RESHAPE", "transposes in the gradient of attention")
def composed_attention_grad(g: Graph) -> None:
    attention_gradient(g)


@case("OPERATION_RNG", "dropout in the gradient of attention")
def dropout_attention_grad(g: Graph) -> None:
    seed, offset = (g.packed((1, 1, 1, 1), "int64") for _ in range(2))
    attention_gradient(g, Dropout(0.9, seed, offset, g.scalar()))


@case("OPERATION_PAGED_CACHE_LOAD", "keys and values in attention")
def paged_attention(g: Graph) -> None:
    q, o = (g.packed(QKV, "float16") for _ in range(2))
    k, v = keys_transposed(g, virtual=True), g.packed(QKV, "float16", virtual=True)
    length_q, length_kv = (g.packed((BATCH, 1, 1, 1), "int32") for _ in range(2))
    for loaded in (k, v):
        pages, table = g.packed((16, HEADS, 64, FEATURES), "float16"), g.packed((BATCH, 1, 2, 1), "int32")
        g.paged_load(pages, length_kv, table, loaded)
    lengths = Lengths(length_q, length_kv, g.scalar())
    attention(g, q, k, v, o, scale=g.scalar(), stats=g.packed(ROW, "float32"), lengths=lengths)


@case("OPERATION_EXPAND_BAND_MATRIX", "float32", refused=ALONE)
def band_expand(g: Graph) -> None:
    x, y = g.packed((BATCH, HEADS, LENGTH, 8), "float32"), g.packed(SCORES, "float32")
    g.band_expand(x, y, lower=3, upper=4, axis=3, pad=0.0)


@case("OPERATION_CONTRACT_BAND_MATRIX", "float32", refused=ALONE)
def band_contract(g: Graph) -> None:
    x, y = g.packed(SCORES, "float32"), g.packed((BATCH, HEADS, LENGTH, 8), "float32")
    g.band_contract(x, y, lower=3, upper=4, axis=3, pad=0.0)


@case("OPERATION_EXPAND_BAND_MATRIX", "before a product", refused="Unsupported node in the graph")
def band_expand_product(g: Graph) -> None:
    y = g.packed((8, 128, 128), "float16", virtual=True)
    g.band_expand(g.packed((8, 128, 8), "float16"), y, lower=3, upper=4, axis=2, pad=0.0)
    g.matmul(y, g.packed((8, 128, 64), "float16"), g.packed((8, 128, 64), "float16"))


@case("OPERATION_CONTRACT_BAND_MATRIX", "behind a product", refused="Unsupported node in the graph")
def product_band_contract(g: Graph) -> None:
    x = g.packed((8, 128, 128), "float32", virtual=True)
    g.matmul(g.packed((8, 128, 64), "float16"), g.packed((8, 64, 128), "float16"), x)
    g.band_contract(x, g.packed((8, 128, 8), "float32"), lower=3, upper=4, axis=2, pad=0.0)


@case("OPERATION_ROPE_FWD", "bfloat16", refused="needs cuDNN 9.24")
def rope(g: Graph) -> None:
    x, y = qkv(g, 2)
    g.rope(x, g.packed((1, 1, LENGTH, FEATURES), "float32"), y)


@case("OPERATION_ROPE_BWD", "bfloat16", refused="needs cuDNN 9.24")
def rope_grad(g: Graph) -> None:
    dy, dx = qkv(g, 2)
    g.rope_grad(dy, g.packed((1, 1, LENGTH, FEATURES), "float32"), dx)


# ---------------------------------------------------------------------------------------------- block scales


@case("OPERATION_BLOCK_SCALE_QUANTIZE", "float8, blocks of 32", refused=ALONE)
def quantize(g: Graph) -> None:
    x, y = g.packed((1, 256, 128), "float32"), g.packed((1, 256, 128), "float8_e4m3fn")
    scale = g.packed((1, 256, 4), "float8_e8m0fnu", reordering="f8_128x4")
    g.quantize(x, y, scale, block=32)


@case("OPERATION_BLOCK_SCALE_QUANTIZE", "behind an RMS norm", refused="ARCH_MISMATCH: .*isBlockScaleOut")
def norm_quantize(g: Graph) -> None:
    def rows(features: int, kind: str, n: int = 64, **more: Any) -> Tensor:
        return g.packed((n, features, 1, 1), kind, channels_last=True, **more)

    y, scale = rows(256, "float32", virtual=True), rows(256, "bfloat16", 1)
    g.norm("rms", rows(256, "bfloat16"), y, scale=scale, epsilon=g.scalar(), phase="inference")
    g.quantize(y, rows(256, "float8_e4m3fn"), rows(8, "float8_e8m0fnu"), block=32)


@case("OPERATION_BLOCK_SCALE_DEQUANTIZE", "float8, blocks of 32, before a product")
def dequantize(g: Graph) -> None:
    a = g.packed((1, 256, 128), "float8_e4m3fn"), g.packed((1, 256, 4), "float8_e8m0fnu")
    b = (
        g.tensor((1, 128, 256), (128 * 256, 1, 128), "float8_e4m3fn"),
        g.tensor((1, 4, 256), (4 * 256, 1, 4), "float8_e8m0fnu"),
    )
    left = g.dequantize(*a, g.packed((1, 256, 128), "float32", virtual=True), block=(1, 32))
    right = g.dequantize(*b, g.packed((1, 128, 256), "float32", virtual=True), block=(32, 1))
    g.matmul(left, right, g.packed((1, 256, 256), "float32"))


#: Every operation of the backend API.
KINDS = [
    name.removeprefix("CUDNN_BACKEND_").removesuffix("_DESCRIPTOR")
    for name in c.cudnnBackendDescriptorType_t.__members__
    if name.startswith("CUDNN_BACKEND_OPERATION_")
]
