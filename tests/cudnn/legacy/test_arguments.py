"""Every operation hands each of its arguments to the right parameter of its C function.

The C functions are replaced by recorders; arguments are all different, so that none can be mistaken for another.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.cudnn import legacy
from lamina.cudnn.legacy import TensorDescriptor
from lamina.cudnn.legacy.base import checked
from lamina.runtime import Device
from tests.helpers.cudnn.installed import needs_cudnn

pytestmark = needs_cudnn

#: C parameter -> keyword, where the rule (xDesc -> x_desc, dyData -> dy) does not give it.
PARAMETERS = {
    "A": "a",
    "B": "b",
    "C": "c",
    "bnScale": "scale",
    "bnBias": "bias",
    "bnScaleData": "scale",
    "bnBiasData": "bias",
    "normScale": "scale",
    "normBias": "bias",
    "normScaleData": "scale",
    "normBiasData": "bias",
    "estimatedMean": "mean",
    "estimatedVariance": "variance",
    "exponentialAverageFactor": "factor",
    "resultRunningMean": "running_mean",
    "resultRunningVariance": "running_variance",
    "resultSaveMean": "saved_mean",
    "resultSaveInvVariance": "saved_inv_variance",
    "savedInvVariance": "saved_inv_variance",
    "dBnScaleResult": "dscale",
    "dBnBiasResult": "dbias",
    "dBnScaleData": "dscale",
    "dBnBiasData": "dbias",
    "dNormScaleData": "dscale",
    "dNormBiasData": "dbias",
    "bnScaleBiasMeanVarDesc": "derived",
    "dBnScaleBiasDesc": "derived",
    "alphaDataDiff": "alpha",
    "betaDataDiff": "beta",
    "alphaParamDiff": "alpha_param",
    "betaParamDiff": "beta_param",
    "alphaDgrid": "alpha_grid",
    "betaDgrid": "beta_grid",
    "dMeans": "dmeans",
    "dXdMeansDesc": "dx_desc",
    "srcDesc": "x_desc",
    "srcData": "x",
    "destDesc": "y_desc",
    "destData": "y",
    "colBuffer": "columns",
    "filterData": "w",
    "reorderedFilterData": "reordered_w",
    "biasData": "bias",
    "reorderedBiasData": "reordered_bias",
    "valuePtr": "value",
    "hostLabels": "labels",
    "hostLabelLengths": "label_lengths",
    "hostInputLengths": "input_lengths",
    "activationDesc": "activation",
    "xdesc": "x_desc",
    "ydesc": "y_desc",
    "dydesc": "dy_desc",
    "dxdesc": "dx_desc",
    "algo": "algorithm",
    "gradDesc": "dw_desc",
}
#: Parameters that carry the object's own settings, sizes, or the handle.
OWN = re.compile(
    r"handle|.*[mM]ode|.*Ops|convDesc|poolingDesc|opTensorDesc|reduceTensorDesc|transDesc|stDesc|normDesc|dropoutDesc"
    r"|ctcLossDesc|filterDesc|groupCnt|.*SizeInBytes|reorderType|reorderBias|norm(ScaleBias|MeanVar)Desc"
    r"|dNormScaleBiasDesc|requestedAlgoCount"
)


def operations() -> dict[str, tuple[Callable[..., Any], str]]:
    """Operation and the C function that it calls."""
    conv, deconv = legacy.Convolution(), legacy.Deconvolution()
    act, pool, softmax = legacy.Activation(), legacy.Pooling(window=2), legacy.Softmax()
    bn, ex, norm = legacy.BatchNorm(), legacy.BatchNormEx(ops="bn_add_activation"), legacy.Normalization()
    lrn, transform, st = legacy.LRN(), legacy.TensorTransform(), legacy.SpatialTransformer((1, 2, 3, 4))
    drop = legacy.Dropout.empty()
    return {
        "convolution forward": (conv.forward, "cudnnConvolutionForward"),
        "convolution backward_data": (conv.backward_data, "cudnnConvolutionBackwardData"),
        "convolution backward_filter": (conv.backward_filter, "cudnnConvolutionBackwardFilter"),
        "convolution backward_bias": (conv.backward_bias, "cudnnConvolutionBackwardBias"),
        "convolution fused": (conv.bias_activation_forward, "cudnnConvolutionBiasActivationForward"),
        "convolution im2col": (conv.im2col, "cudnnIm2Col"),
        "convolution forward size": (conv.forward_workspace, "cudnnGetConvolutionForwardWorkspaceSize"),
        "convolution data size": (
            conv.backward_data_workspace,
            "cudnnGetConvolutionBackwardDataWorkspaceSize",
        ),
        "convolution filter size": (
            conv.backward_filter_workspace,
            "cudnnGetConvolutionBackwardFilterWorkspaceSize",
        ),
        "deconvolution backward_bias": (deconv.backward_bias, "cudnnConvolutionBackwardBias"),
        "filter reorder": (legacy.FilterDescriptor((2, 3, 4, 5)).reorder, "cudnnReorderFilterAndBias"),
        "activation forward": (act.forward, "cudnnActivationForward"),
        "activation backward": (act.backward, "cudnnActivationBackward"),
        "pooling forward": (pool.forward, "cudnnPoolingForward"),
        "pooling backward": (pool.backward, "cudnnPoolingBackward"),
        "softmax forward": (softmax.forward, "cudnnSoftmaxForward"),
        "softmax backward": (softmax.backward, "cudnnSoftmaxBackward"),
        "batch norm inference": (bn.forward_inference, "cudnnBatchNormalizationForwardInference"),
        "batch norm training": (bn.forward_training, "cudnnBatchNormalizationForwardTraining"),
        "batch norm backward": (bn.backward, "cudnnBatchNormalizationBackward"),
        "batch norm ex inference": (ex.forward_inference, "cudnnBatchNormalizationForwardInference"),
        "batch norm ex training": (ex.forward_training, "cudnnBatchNormalizationForwardTrainingEx"),
        "batch norm ex backward": (ex.backward, "cudnnBatchNormalizationBackwardEx"),
        "batch norm ex forward size": (
            ex.forward_workspace,
            "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
        ),
        "batch norm ex backward size": (
            ex.backward_workspace,
            "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
        ),
        "batch norm ex reserve": (ex.reserve_size, "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"),
        "normalization inference": (norm.forward_inference, "cudnnNormalizationForwardInference"),
        "normalization training": (norm.forward_training, "cudnnNormalizationForwardTraining"),
        "normalization backward": (norm.backward, "cudnnNormalizationBackward"),
        "normalization forward size": (
            norm.forward_workspace,
            "cudnnGetNormalizationForwardTrainingWorkspaceSize",
        ),
        "normalization backward size": (
            norm.backward_workspace,
            "cudnnGetNormalizationBackwardWorkspaceSize",
        ),
        "normalization reserve": (norm.reserve_size, "cudnnGetNormalizationTrainingReserveSpaceSize"),
        "lrn forward": (lrn.forward, "cudnnLRNCrossChannelForward"),
        "lrn backward": (lrn.backward, "cudnnLRNCrossChannelBackward"),
        "divisive forward": (lrn.divisive_forward, "cudnnDivisiveNormalizationForward"),
        "divisive backward": (lrn.divisive_backward, "cudnnDivisiveNormalizationBackward"),
        "dropout forward": (drop.forward, "cudnnDropoutForward"),
        "dropout backward": (drop.backward, "cudnnDropoutBackward"),
        "op tensor": (legacy.OpTensor("add").run, "cudnnOpTensor"),
        "reduce": (legacy.ReduceTensor("max", indices="flattened").run, "cudnnReduceTensor"),
        "reduce indices": (legacy.ReduceTensor("max").indices_size, "cudnnGetReductionIndicesSize"),
        "reduce workspace": (legacy.ReduceTensor("max").workspace, "cudnnGetReductionWorkspaceSize"),
        "transform": (transform.run, "cudnnTransformTensorEx"),
        "transform filter": (transform.run_filter, "cudnnTransformFilter"),
        "transform tensor": (legacy.transform_tensor, "cudnnTransformTensor"),
        "add tensor": (legacy.add_tensor, "cudnnAddTensor"),
        "set tensor": (legacy.set_tensor, "cudnnSetTensor"),
        "scale tensor": (legacy.scale_tensor, "cudnnScaleTensor"),
        "grid forward": (st.grid_forward, "cudnnSpatialTfGridGeneratorForward"),
        "grid backward": (st.grid_backward, "cudnnSpatialTfGridGeneratorBackward"),
        "sampler forward": (st.sampler_forward, "cudnnSpatialTfSamplerForward"),
        "sampler backward": (st.sampler_backward, "cudnnSpatialTfSamplerBackward"),
        "ctc on the host": (legacy.CTCLoss().loss, "cudnnCTCLoss"),
        "ctc on the device": (legacy.CTCLoss(max_label_length=9).loss, "cudnnCTCLoss_v8"),
        "ctc size on the device": (
            legacy.CTCLoss(max_label_length=9).workspace,
            "cudnnGetCTCLossWorkspaceSize_v8",
        ),
        "ctc size on the host": (legacy.CTCLoss().workspace, "cudnnGetCTCLossWorkspaceSize"),
    }


OPERATIONS = operations() if c.library.available() else {}


class Recorder:
    """Replaces C functions of one name; keeps the arguments of the last call by parameter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.signature = inspect.signature(getattr(c, name))
        self.arguments: dict[str, Any] = {}
        monkeypatch.setattr(c, name, self)

    def __call__(self, *arguments: Any) -> int:
        assert not self.arguments, "called twice"
        self.arguments = self.signature.bind(*arguments).arguments
        return 64


def sentinel(name: str, place: int, operation: str) -> Any:
    """A value for a keyword of an operation, different for each place."""
    if name in ("labels", "label_lengths", "input_lengths") and "host" in operation:
        return [place, place + 1]
    if name.endswith("_desc"):
        is_filter = name in ("w_desc", "dw_desc") or operation == "transform filter"
        kind = legacy.FilterDescriptor if is_filter else legacy.TensorDescriptor
        return kind((2, 3, 4, 5 + place))
    if name in ("workspace", "reserve"):
        return (10_000 + place, 500 + place)
    if name == "indices":
        return (20_000 + place, 700 + place)
    if name == "activation":
        return legacy.Activation()
    if name == "derived":
        both = [legacy.TensorDescriptor((n, place, 1, 1)) for n in (1, 2)]
        return legacy.NormTensors(*both) if operation.startswith("normalization") else both[0]
    if name.startswith(("alpha", "beta", "factor", "epsilon", "value")):
        return 0.5 + place
    return 4096 * (place + 1)


def keyword(parameter: str) -> str:
    """dyDesc -> dy_desc, dyData -> dy."""
    if parameter in PARAMETERS:
        return PARAMETERS[parameter]
    return re.sub(r"([A-Z])", r"_\1", parameter.removesuffix("Data")).lower()


def passed(value: Any) -> Any:
    return value.address if isinstance(value, legacy.Descriptor) else value


@pytest.mark.feature("F007", "F006", "F044", "F052", "F053", "F061", "F073", "F074")
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_argument_arrives_at_its_parameter(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, function = OPERATIONS[name]
    recorder = Recorder(monkeypatch, function)
    wanted = [p for p in inspect.signature(operation).parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = {p.name: sentinel(p.name, place, name) for place, p in enumerate(wanted)}
    for choice in ("algorithm", "reorder"):
        if choice in given:
            given[choice] = next(p.default for p in wanted if p.name == choice)
    if "size on the device" in name:
        given = {key: value for key, value in given.items() if not key.endswith(("labels", "lengths"))}
    operation(12345, **given)
    arguments = recorder.arguments
    assert arguments["handle"] == 12345
    used = set()
    for parameter, value in arguments.items():
        key = keyword(parameter)
        if key in ("work_space", "workspace"):
            assert value == given["workspace"][0]
            used.add("workspace")
        elif key == "reserve_space":
            assert value == given["reserve"][0]
            used.add("reserve")
        elif key == "indices":
            assert value == given["indices"][0]
            used.add("indices")
        elif key in ("algorithm", "reorder"):
            used.add("algorithm")
        elif key in given and not OWN.fullmatch(parameter):
            assert value == passed(given[key]), (parameter, key)
            used.add(key)
        else:
            assert OWN.fullmatch(parameter) or name.startswith("activation"), (
                f"{parameter} of {function} got {value!r} from nowhere"
            )
    if isinstance(given.get("derived"), legacy.NormTensors):
        descriptors = [
            v for k, v in arguments.items() if k.lower().endswith(("scalebiasdesc", "meanvardesc"))
        ]
        assert sorted(descriptors) == sorted(one.address for one in given["derived"])
        used.add("derived")
    assert used | {"algorithm", "reorder"} >= set(given)


@pytest.mark.feature("F007")
@pytest.mark.parametrize("name", OPERATIONS)
def test_sizes_arrive_beside_their_memory(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    operation, function = OPERATIONS[name]
    recorder = Recorder(monkeypatch, function)
    wanted = [p for p in inspect.signature(operation).parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = {p.name: sentinel(p.name, place, name) for place, p in enumerate(wanted)}
    for choice in ("algorithm", "reorder"):
        given.pop(choice, None)
    operation(12345, **given)
    sizes = {k.lower(): v for k, v in recorder.arguments.items() if k.endswith("SizeInBytes")}
    wanted_sizes = {
        key: given[name][1]
        for key, name in (
            ("workspacesizeinbytes", "workspace"),
            ("reservespacesizeinbytes", "reserve"),
            ("indicessizeinbytes", "indices"),
        )
        if name in given
    }
    assert sizes == wanted_sizes


@pytest.mark.feature("F021")
@pytest.mark.parametrize(
    ("operation", "function", "swapped"),
    [
        ("forward", "cudnnConvolutionBackwardData", {"dyDesc": "x_desc", "dy": "x", "dxDesc": "y_desc", "dx": "y"}),
        ("backward_data", "cudnnConvolutionForward", {"xDesc": "dy_desc", "x": "dy", "yDesc": "dx_desc", "y": "dx"}),
        (
            "backward_filter",
            "cudnnConvolutionBackwardFilter",
            {"xDesc": "dy_desc", "x": "dy", "dyDesc": "x_desc", "dy": "x", "dwDesc": "dw_desc", "dw": "dw"},
        ),
    ],
)  # fmt: skip
def test_a_deconvolution_runs_the_other_way(
    monkeypatch: pytest.MonkeyPatch, operation: str, function: str, swapped: dict[str, str]
) -> None:
    recorder = Recorder(monkeypatch, function)
    run = getattr(legacy.Deconvolution(), operation)
    names = [p.name for p in inspect.signature(run).parameters.values() if p.kind is p.KEYWORD_ONLY]
    given = {name: sentinel(name, place, False) for place, name in enumerate(names) if name != "algorithm"}
    run(12345, **given)
    assert {k: recorder.arguments[k] for k in swapped} == {k: passed(given[v]) for k, v in swapped.items()}
    assert recorder.arguments["alpha"] == given["alpha"]
    assert recorder.arguments["beta"] == given["beta"]
    assert (recorder.arguments["workSpace"], recorder.arguments["workSpaceSizeInBytes"]) == given["workspace"]


@pytest.mark.feature("F021")
@pytest.mark.parametrize(
    ("size", "function", "operands"),
    [
        ("forward_workspace", "cudnnGetConvolutionBackwardDataWorkspaceSize", "w_desc x_desc y_desc"),
        ("backward_data_workspace", "cudnnGetConvolutionForwardWorkspaceSize", "dy_desc w_desc dx_desc"),
        ("backward_filter_workspace", "cudnnGetConvolutionBackwardFilterWorkspaceSize", "dy_desc x_desc dw_desc"),
    ],
)  # fmt: skip
def test_a_deconvolution_asks_for_the_other_workspace(
    monkeypatch: pytest.MonkeyPatch, size: str, function: str, operands: str
) -> None:
    recorder = Recorder(monkeypatch, function)
    run = getattr(legacy.Deconvolution(), size)
    names = operands.split()
    given = {name: sentinel(name, place, False) for place, name in enumerate(names)}
    assert run(12345, **given) == 64
    found = [v for k, v in recorder.arguments.items() if k.endswith("Desc") and k != "convDesc"]
    assert found == [given[name].address for name in names]


@pytest.mark.feature("F052")
def test_what_is_left_out_is_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused convolution without z gets y with factor 0; sqrt gets its one operand twice; costs alone of CTC."""
    x, w = legacy.TensorDescriptor((2, 3, 9, 9)), legacy.FilterDescriptor((4, 3, 3, 3))
    convolution, bias = legacy.Convolution(), legacy.TensorDescriptor((1, 4, 1, 1))
    y = convolution.output(x, w)
    recorder = Recorder(monkeypatch, "cudnnConvolutionBiasActivationForward")
    convolution.bias_activation_forward(
        1, x_desc=x, x=2, w_desc=w, w=3, bias_desc=bias, bias=4, activation=legacy.Activation(),
        y_desc=y, y=5, workspace=(6, 7),
    )  # fmt: skip
    got = recorder.arguments
    assert (got["alpha1"], got["alpha2"], got["zDesc"], got["z"]) == (1.0, 0.0, y.address, 5)
    recorder = Recorder(monkeypatch, "cudnnOpTensor")
    legacy.OpTensor("sqrt").run(1, a_desc=x, a=2, c_desc=x, c=3)
    assert (recorder.arguments["bDesc"], recorder.arguments["B"]) == (x.address, 2)
    recorder = Recorder(monkeypatch, "cudnnCTCLoss")
    legacy.CTCLoss().loss(
        1, probs_desc=x, probs=2, labels=np.array([1, 2]), label_lengths=(1, 1), input_lengths=[9, 9],
        costs=3, gradients_desc=x, workspace=(4, 5),
    )  # fmt: skip
    got = recorder.arguments
    assert (got["gradientsDesc"], got["gradients"]) == (None, None)
    assert (got["hostLabels"], got["hostLabelLengths"], got["hostInputLengths"]) == ([1, 2], [1, 1], [9, 9])
    with pytest.raises(TypeError, match="labels: without max_label_length"):
        legacy.CTCLoss().loss(
            1, probs_desc=x, probs=2, labels=4096, label_lengths=(1,), input_lengths=(9,), costs=3
        )


def test_memory_without_a_size_is_refused_as_a_workspace() -> None:
    x, w = legacy.TensorDescriptor((2, 3, 9, 9)), legacy.FilterDescriptor((4, 3, 3, 3))
    convolution = legacy.Convolution()
    y = convolution.output(x, w)
    with pytest.raises(TypeError, match=r"workspace: the size of 4096 is unknown; pass \(address, bytes\)"):
        convolution.forward(1, x_desc=x, x=2, w_desc=w, w=3, y_desc=y, y=4, workspace=4096)
    with pytest.raises(ValueError, match="temp and temp2"):
        legacy.LRN().divisive_forward(1, x_desc=x, x=2, y_desc=x, y=3, temp=4)
    with pytest.raises(TypeError, match="temp: .* bytes are needed; pass them"):
        legacy.LRN().divisive_forward(1, x_desc=x, x=2, y_desc=x, y=3)


@pytest.mark.feature("F011", "F007")
def test_memory_is_anything_that_points_to_some(monkeypatch: pytest.MonkeyPatch) -> None:
    x = legacy.TensorDescriptor((2, 3, 9, 9))
    recorder = Recorder(monkeypatch, "cudnnSoftmaxForward")
    array = np.zeros(4, np.float32)
    buffer = Device("cpu").allocate(64)
    legacy.Softmax().forward(1, x_desc=x, x=array, y_desc=x, y=buffer)
    assert recorder.arguments["x"] is array  # the C layer takes its address
    assert recorder.arguments["y"] == buffer.pointer
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        legacy.Softmax().forward(1, x_desc=x, x=array, y_desc=x, y=buffer)


@pytest.mark.parametrize("to", ["int8", "float32", "float16"])
def test_a_conversion_that_cudnn_answers_with_zeros_is_refused(to: str) -> None:
    x, y = (legacy.TensorDescriptor((2, 3, 4, 4), data_type=kind) for kind in ("float64", to))
    with pytest.raises(ValueError, match="x is float64 and y is not .*: cuDNN answers with zeros"):
        legacy.transform_tensor(1, x_desc=x, x=2, y_desc=y, y=3)


def test_a_descriptor_that_may_be_left_out_is_nothing_else() -> None:
    @checked
    def take(one: "TensorDescriptor", other: "TensorDescriptor | None" = None) -> Any:
        return one, other

    with TensorDescriptor((1, 2, 3, 4), data_type="float32") as made:
        assert take(made) == take(made, None) == take(one=made, other=None) == (made, None)
        assert take(made, made) == take(made, other=made) == (made, made)
        for wrong in ({"one": None}, {"one": 3}, {"one": made, "other": 3}, {"one": made, "other": "x"}):
            name, value = list(wrong.items())[-1]
            with pytest.raises(TypeError, match=f"take: {name} must be a TensorDescriptor.*, got {value!r}"):
                take(**wrong)
