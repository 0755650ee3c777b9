"""Every pattern that the CUDA backend hands to cuDNN plans for an H200, on a machine without a GPU."""

import json
import subprocess
import sys

import pytest

from lamina.backends.cuda.select.target import target_of
from lamina.cudnn import Graph, engine
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn_919, planning_environment
from tests.helpers.planned import H200

pytestmark = needs_cudnn_919


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A process that finds a libcuda without devices, and NVRTC."""
    return planning_environment(tmp_path_factory.mktemp("libcuda"))


def part(name: str, environment: dict[str, str]) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.helpers.cudnn.deviceless", name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])[name]
    return found


@pytest.mark.feature("B007", "F052", "B011")
def test_convolutions(environment: dict[str, str]) -> None:
    found = part("convolutions", environment)
    refused = {k: v for k, v in found.items() if v.startswith("refused")}
    assert refused == {}
    # The first layer has one channel: own kernels come first for half types.
    own = {k for k, v in found.items() if "cudnn" not in v}
    assert own == {k for k, v in found.items() if " stem " in v}
    assert {"conv1 bf16 forward", "conv1 bf16 bias relu", "conv1 f16 forward"} <= own
    assert all(k.startswith("conv1 ") for k in own)
    assert " stem " in found["conv1 bf16 filter"]
    assert " plain " in found["conv2 bf16 forward"]
    assert " plain " in found["conv1 f32 forward"]


@pytest.mark.feature("B007", "F043")
def test_products(environment: dict[str, str]) -> None:
    found = part("products", environment)
    refused = {k: v for k, v in found.items() if v.startswith("refused")}
    assert refused == {}
    # The database knows the gradients of fc3, which are little too, in bfloat16, and takes the same for float16.
    little = {"batched bf16", *(f"fc3 bf16 gelu grad {form}" for form in ("none", "tanh"))}
    assert {k for k, v in found.items() if v.startswith("kernel matmul") and " small " in v} == little
    assert all("cudnn" in v for k, v in found.items() if k not in little and not k.startswith("batched f32"))
    assert "tiled" in found["batched f32"]  # cuDNN's matmul would round to TF32
    assert "cudnn matmul matmul" in found["batched tf32"]


@pytest.mark.feature("B018")
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_8_bits(kind: str, environment: dict[str, str]) -> None:
    """Tensor cores take AlexNet's layers in int8 and float8, bias and relu in the same plan."""
    found = part(f"eights_{kind}", environment)
    assert len(found) == 13
    assert {name: label for name, label in found.items() if not label.startswith("cudnn quantized_")} == {}
    assert found["conv2"].startswith("cudnn quantized_conv ")
    assert found["conv3 bias relu quantize"].startswith("cudnn quantized_conv+add+relu+div")


@pytest.mark.feature("B008", "B011")
def test_limits(environment: dict[str, str]) -> None:
    found = part("limited", environment)
    assert found["no workspace"].endswith("workspace=0")
    # Why not: the reason that the library notes for each engine.
    assert found["impossible"].startswith("refused: cuda has no plan for conv")
    assert "plain: heuristic fallback: eng" in found["impossible"]
    assert "NOT_SUPPORTED" in found["impossible"]


@pytest.mark.feature("B005", "B007", "F054")
def test_pools(environment: dict[str, str]) -> None:
    found = part("pools", environment)
    assert all("ExecutionPlan" in v for k, v in found.items() if k != "reduce")


def test_statistics(environment: dict[str, str]) -> None:
    """A batch norm's sums ride behind convolutions of both half types, and it takes relu and a residual along; what
    cuDNN puts in front of one, and the gradients of scale and bias behind its gradient, are for float16.
    """
    found = part("statistics", environment)
    assert found.pop("behind bfloat16").startswith("statistics eng3")
    assert found.pop("behind float16").startswith("statistics eng2")
    for name in [name for name in found if "relu" in name]:
        assert found.pop(name).startswith("cudnn eng0")
    assert found == {
        "in front bfloat16": "refused",
        "in front float16": found["in front float16"],
        "weight gradients bfloat16": "refused",
        "weight gradients float16": found["weight gradients float16"],
    }
    assert found["in front float16"].startswith("engines [2")
    assert found["weight gradients float16"].startswith("engines [1")


@pytest.mark.feature("B006", "F087")
def test_round_trip(environment: dict[str, str]) -> None:
    found = part("round_trip", environment)
    first, again, rebuilt = json.loads(found["workspace"].replace("(", "[").replace(")", "]"))
    assert first == again == rebuilt
    assert found["same key"] == found["json"] == found["distinct"] == found["knobs"] == "True"
    assert int(found["engines"]) > 20
    assert "TENSOR_CORE" in found["notes"]


@pytest.mark.feature("B006")
def test_compiled_plans_are_kept_on_disk(environment: dict[str, str]) -> None:
    found = part("kept", environment)
    assert int(found["files"]) >= 2
    assert found["again"] == f"(True, True, {found['known']})"
    assert found["loaded"] == found["anew"] == found["healed"] == "True"
    assert found["dynamic"] == found["files"]


@pytest.mark.feature("B007")
def test_plans_made_in_several_threads(environment: dict[str, str]) -> None:
    found = part("threads", environment)
    assert found["keys"] == "True"
    assert int(found["plans"]) > 10
    assert found["over the limit"] == "True"
    assert "compiled at run time, as 0 before it" in found["compiled"]


@pytest.mark.feature("F082", "F085")
def test_plans_by_name(environment: dict[str, str]) -> None:
    found = part("choices", environment)
    assert found["by name"] == found["first"]
    assert found["own kernel"].startswith("kernel conv direct")
    assert found["fused by name"].startswith("kernel conv+add+relu split")
    assert "refused" in found["no such engine"]
    assert "not 'plain eng9999'" in found["no such engine"]
    assert "the formulations are plain, turned, relaid, wide, direct" in found["no such way"]
    assert found["product by name"].startswith("cudnn matmul")
    assert found["own gradient"].startswith("kernel conv_data_grad direct")


@pytest.mark.feature("F083")
def test_one_choice_for_all_sizes(environment: dict[str, str]) -> None:
    """Each size has its own plan, or all have that of the first one, whichever that is."""
    found = {name: label.split(" workspace")[0] for name, label in part("choices", environment).items()}
    assert found["small"] != found["large"]
    assert found["small once"] == found["large once"] == found["small"]
    assert found["large first"] == found["large"]


@pytest.mark.parametrize("flip", [False, True])
def test_engines_that_are_known_to_be_wrong_are_passed_over(flip: bool, environment: dict[str, str]) -> None:
    """The heuristics name them first for this window; a plan of the op is another engine's."""
    found = json.loads(part("faults", environment)[f"flip={flip}"])
    assert found["every"][0] == 1
    assert 20 in found["every"]
    assert len(found["taken"]) > 3
    assert not {1, 18, 20, 70} & set(found["taken"])
    assert sum("gives wrong filter gradients" in reason for reason in found["refusals"]) >= 2
    assert found["op"].startswith("cudnn conv_filter_grad plain eng0 ")


@pytest.mark.feature("F089")
def test_half_types_as_float32(environment: dict[str, str]) -> None:
    """By name, and where no engine takes the half type."""
    found = part("choices", environment)
    assert found["wide"].startswith("cudnn conv wide eng0 ")
    assert found["half refused"].startswith("cudnn conv wide eng")


@pytest.mark.feature("B012")
def test_formulations(environment: dict[str, str]) -> None:
    """A forward convolution of 49 taps has Hopper's kernels (with clusters, knob 27) as a data gradient only."""
    found = part("forms", environment)
    graphs = {key: label for key, label in found.items() if not key.endswith(("relaid", "wide", "direct"))}
    assert [key for key, label in graphs.items() if label == "refused"] == []
    assert "27:" not in found["7x7 conv plain"]
    assert "27:" in found["7x7 conv turned"]
    assert found["7x7 conv turned"].startswith("turned eng")
    for direction in ("conv", "conv_data_grad", "conv_filter_grad"):
        assert found[f"1x1 {direction} product"].startswith("product eng")
        assert found[f"1x1 by 2 {direction} product"].startswith("product eng")
        assert found[f"depthwise {direction} depthwise"] == "depthwise"
        assert found[f"depthwise {direction} plain"].startswith("plain eng")
        assert found[f"groups {direction} plain"].startswith("plain eng")
        for name in ("groups", "groups of 24", "groups of 24 by 2"):
            assert found[f"{name} {direction} merged"].startswith("merged eng")
            assert found[f"{name} {direction} dense"].startswith("dense eng")
        assert found[f"dilated {direction} undilated"].startswith("undilated eng")
    assert found["groups of 24 steps merged"].startswith("merged eng")
    assert found["groups of 24 steps dense"].startswith("dense eng")
    assert found["dilated steps undilated"].startswith("undilated eng")


@pytest.mark.feature("B012", "B011")
def test_a_convolution_by_fast_fir(environment: dict[str, str]) -> None:
    """Each part is a plan of its own; room is for what lies between them."""
    found = part("halves", environment)
    for name in ("conv", "conv_data_grad"):
        assert found.pop(name) == f"kernel {name} halved"
        assert found.pop(f"{name} room") == "True"
    assert [key.partition(" ")[2] for key in found] == [
        "0 (128, 128, 4, 7)", "1 (128, 128, 3, 7)", "2 (128, 128, 4, 7)",
    ] * 2  # fmt: skip
    assert all(label.startswith("cudnn conv plain eng") for label in found.values()), found


@pytest.mark.feature("B012")
def test_configurations_that_no_heuristic_names(environment: dict[str, str]) -> None:
    found = part("variants", environment)
    assert int(found["near"]) >= 10
    assert found["one knob"] == "True"
    assert int(found["plans"]) >= int(found["near"]) // 2
    assert not set(json.loads(found["beyond"])) & set(json.loads(found["named"]))


@pytest.mark.feature("B022", "B011")
def test_a_layer_of_an_encoder(environment: dict[str, str]) -> None:
    """Elementwise steps run within the products, attention on the joint projection; nothing is copied about."""
    found = part("sequences", environment)
    names = [key.split()[1] for key in found]
    counted = {name: names.count(name) for name in set(names)}
    assert counted == {
        "fused": 7, "matmul": 5, "joint_attention": 1, "joint_attention_grad": 1, "layer_norm": 2,
        "layer_norm_grad": 2, "reduce": 4,
    }  # fmt: skip
    labels = {key.split()[1]: label for key, label in found.items()}
    assert labels["joint_attention"].startswith("cudnn joint_attention sdpa eng9")
    assert labels["joint_attention_grad"].startswith("cudnn joint_attention_grad steps eng6")
    sums = 32 * 8 * 512 * (64 + 1) * 4  # of dq in float32, and one number for each row
    assert int(labels["joint_attention_grad"].rpartition("=")[2]) <= sums + 4096


def convolution() -> Graph:
    graph = Graph()
    x = graph.tensor((8, 64, 28, 28), (50176, 1, 1792, 64), "bfloat16")
    w = graph.tensor((64, 64, 3, 3), (576, 1, 192, 64), "bfloat16")
    y = graph.tensor((8, 64, 28, 28), (50176, 1, 1792, 64), "bfloat16")
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1), post=(1, 1))
    return graph


def test_all_knobs_are_read_however_few_are_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(H200)
    keys = [config.key for config in convolution().build(target).heuristic("a")]
    assert max(len(knobs) for _, knobs in keys) > 1
    monkeypatch.setattr(engine, "_USUAL_KNOBS", 1)
    assert [config.key for config in convolution().build(target).heuristic("a")] == keys


def test_a_heuristic_is_asked_when_those_before_it_are_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    target, asked = target_of(H200), list[str | int]()
    heuristic = engine.OperationGraph.heuristic

    def noted(
        self: engine.OperationGraph, mode: str | int, *, sm_count: int | None = None
    ) -> list[engine.EngineConfig]:
        asked.append(mode)
        return heuristic(self, mode, sm_count=sm_count)

    monkeypatch.setattr(engine.OperationGraph, "heuristic", noted)
    first = next(convolution().build(target).ranked(("a", "fallback"), []))
    assert asked == ["a"]
    everything = convolution().candidates(target, ("a", "fallback"))
    assert asked == ["a", "a", "fallback"]
    assert next(iter(everything)).key == first.key
    assert len({config.key for config in everything}) == len(everything)
