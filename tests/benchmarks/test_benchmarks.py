"""The harness of the comparison: descriptions, limits, results, workers that fail."""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from benchmarks import limits, networks, peer_lamina, serving, suite, workloads
from benchmarks.peer import Prepared
from lamina.runtime import Machine

RATES = Machine("one", "", 1, flops={"bfloat16": 1e12, "float32": 1e9}, bandwidth=1e10)


def workload(name: str) -> workloads.Workload:
    return next(w for group in workloads.SETS.values() for w in group if w.name == name)


def test_names_are_unique() -> None:
    for group in workloads.SETS.values():
        assert len({w.name for w in group}) == len(group)


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_descriptions_end_in_the_classes(network: str) -> None:
    sides = {"alexnet": (1, 224, 224), "overfeat": (3, 231, 231), "dilated": (4, 16)}
    layers = networks.NETWORKS[network](7, dropout=0.0)
    behind = networks._behind(layers, sides.get(network, (3, 224, 224)))
    assert behind == ((7, 16) if network == "dilated" else (7,))


def test_the_work_of_a_convolution() -> None:
    w = workload("tiny-conv")
    work = limits.of_graph(peer_lamina.graph(w, peer_lamina.model(w)), RATES)
    assert work.flops == 2 * 2 * 8 * 8 * 8 * 8 * 9
    assert work.seconds == pytest.approx(work.flops / 1e9)


def test_training_is_about_three_times_inference_and_updates_cost_memory() -> None:
    w = workload("tiny-both")
    net = peer_lamina.model(w).eval()
    back = limits.of_graph(peer_lamina.graph(w, net), RATES)
    infer = workloads.Workload("x", "infer", w.network, w.shape, w.size, w.dtype)
    forward = limits.of_graph(peer_lamina.graph(infer, net), RATES)
    assert 2.5 < back.flops / forward.flops < 3.0  # the first layer needs no gradient of its input
    updated = limits.of_graph(peer_lamina.graph(w, net), RATES, parameters=10**6)
    assert updated.seconds - back.seconds == pytest.approx(16e6 / 1e10)


def test_the_work_of_a_sequence() -> None:
    w = workloads.recurrent("lstm", "both", 50, 8, 512, 3)
    assert limits.of_sequence(w, RATES).flops == 3 * 2 * 50 * 8 * 3 * 4 * 512 * 1024
    encoder = limits.of_sequence(workloads.ENCODER, RATES).flops
    assert encoder == 3 * 6 * (2 * 32 * 512 * 12 * 512**2 + 4 * 32 * 512 * 512 * 512)


@pytest.mark.parametrize("w", workloads.TINY, ids=lambda w: w.name)
def test_every_workload_has_a_limit(w: workloads.Workload) -> None:
    found = peer_lamina.least(w, RATES)
    assert found["flops"] > 0
    assert found["limit_ms"] > 0.999 * 1e3 * found["flops"] / 1e9


@pytest.mark.parametrize(
    "name", ["tiny-conv", "tiny-infer", "tiny-lstm", "tiny-both", "tiny-unet", "tiny-conformer"]
)
def test_every_run_computes_everything(name: str) -> None:
    w = workload(name)
    executable, run = peer_lamina._resident(w, "cpu")
    heavy = [
        s for s in executable.program.prologue if s.node and s.node.op.flops(*(i.spec for i in s.inputs))
    ]
    assert not heavy
    first, second = (run()[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(executable.program.steps) > 0


@pytest.mark.slow
def test_lamina_against_itself(tmp_path: Path) -> None:
    arguments = [
        "--set",
        "tiny",
        "--peers",
        "lamina",
        "--seconds",
        "0.01",
        "--policy",
        "heuristic",
        "--out",
        str(tmp_path),
    ]
    assert suite.main(arguments) == 0
    record = json.loads(next(tmp_path.glob("suite_tiny-*.json")).read_text())
    assert [c["name"] for c in record["cases"]] == [w.name for w in workloads.TINY]
    for case in record["cases"]:
        result = case["results"]["lamina"]
        assert result["rounds_ms"] == [result["median_ms"]]
        assert result["first_step_s"] > 0
    assert record["versions"]["lamina"] == lm.__version__


def test_vision_transformers_are_given_the_weight_that_meets_the_images() -> None:
    w = workload("vit_s_16-infer-1")
    with lm.nn.init.skipped():
        net = peer_lamina.model(w).eval()
    count = len([*net.parameters(), *net.buffers()])
    traced = peer_lamina.graph(replace(w, dtype="fp32"), net)
    assert traced.inputs[peer_lamina._handed_over(traced, count)].shape == (384, 3, 16, 16)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["tiny-unet", "tiny-dilated", "tiny-conformer", "tiny-gpt2"])
def test_torch_computes_the_same_on_the_same_weights(name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import peer_torch

    w = workload(name)
    ours, theirs = peer_lamina.model(w).eval(), peer_torch.model(w).eval()
    there = dict(theirs.named_parameters())
    if w.network == "dilated":  # made of a description, in the same order
        there = dict(zip(dict(ours.named_parameters()), there.values(), strict=True))
    for key, weight in ours.named_parameters():
        value = weight.numpy()
        there.pop(key).data = torch.tensor(value.T if ".c_" in key and value.ndim == 2 else value)
    assert not there
    x = peer_lamina.inputs(w)[0]
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(ours(x).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("name", sorted({w.name for w in workloads.MODERN if w.is_image}))
def test_torch_builds_networks_of_the_same_size(name: str) -> None:
    pytest.importorskip("torch")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    import tests.helpers.vision  # noqa: F401  torchvision beside torch's CPU wheel
    from benchmarks import peer_torch

    w = workload(name)
    with lm.nn.init.skipped():
        ours = peer_lamina.model(w)
    theirs = peer_torch.model(w)
    assert sorted(p.shape for p in ours.parameters()) == sorted(tuple(p.shape) for p in theirs.parameters())


@pytest.mark.slow
@pytest.mark.torch
def test_torch_in_its_modes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    arguments = ["--set", "tiny", "--only", "tiny-conv", "tiny-lstm", "--seconds", "0.01", "--isolate"]
    assert (
        suite.main([*arguments, "--peers", "torch eager", "torch eager-amp-nchw", "--out", str(tmp_path)])
        == 0
    )
    record = json.loads(next(tmp_path.glob("suite_tiny-*.json")).read_text())
    for case in record["cases"]:
        assert case["best_peer"] in case["results"]
        assert all(r["median_ms"] > 0 for r in case["results"].values())


@pytest.mark.feature("B051")
def test_cases_are_prepared_beside_each_other(tmp_path: Path) -> None:
    arguments = ["--set", "tiny", "--only", "tiny-gru", "--seconds", "0.01", "--ahead", "2"]
    arguments += ["--caches", str(tmp_path / "caches"), "--out", str(tmp_path)]
    assert suite.main([*arguments, "--peers", "lamina", "lamina fastest"]) == 0
    case = json.loads(next(tmp_path.glob("suite_tiny-*.json")).read_text())["cases"][0]
    for result in case["results"].values():
        assert result["beside"] == 1
        assert result["median_ms"] > 0
        assert result["first_step_s"] > 0
    assert case["regret"] == pytest.approx(
        case["results"]["lamina"]["median_ms"] / case["results"]["lamina fastest"]["median_ms"]
    )
    with pytest.raises(SystemExit):
        suite.main([*arguments, "--first-step"])


def test_lamina_knows_nothing_of_what_another_policy_timed(tmp_path: Path) -> None:
    pool = suite.Pool(options(caches=tmp_path, ahead=2), "cpu")
    folders = [pool._environment(peer)["LAMINA_CACHE"] for peer in ("lamina", "lamina fastest")]
    assert folders == [str(tmp_path / "lamina"), str(tmp_path / "lamina" / "suite-fastest")]


@pytest.mark.feature("B051")
def test_first_steps_from_empty_and_from_warm_caches(tmp_path: Path) -> None:
    arguments = ["--set", "tiny", "--only", "tiny-conv", "--peers", "lamina", "--seconds", "0.01"]
    assert suite.main([*arguments, "--first-step", "--policy", "heuristic", "--out", str(tmp_path)]) == 0
    record = json.loads(next(tmp_path.glob("suite_tiny_start-*.json")).read_text())
    result = record["cases"][0]["results"]["lamina"]
    assert result["cold_first_step_s"] > 0
    assert result["first_step_s"] > 0


def test_a_library_that_is_absent_or_slow_is_reported(tmp_path: Path) -> None:
    arguments = ["--set", "tiny", "--only", "tiny-conv", "--out", str(tmp_path), "--seconds", "0.01"]
    assert suite.main([*arguments, "--peers", "nothing"]) == 0
    assert suite.main([*arguments, "--peers", "lamina", "--policy", "unheard of"]) == 1
    record = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert "ValueError" in record["cases"][0]["results"]["lamina"]["error"]
    worker = suite.Worker("lamina", "cpu", sys.executable, {})
    assert worker.ask({}, 0.0) == {"error": "no answer within 0 s"}
    assert not worker.alive


def options(**changes: Any) -> argparse.Namespace:
    chosen = {
        "set": "tiny",
        "first_step": False,
        "isolate": False,
        "out": None,
        "threads": 2,
        "policy": "x",
        "seconds": 0.01,
        "settle": 1.0,
        "merge": None,
        "ahead": 0,
        "caches": None,
        "python": [],
    }
    return argparse.Namespace(**chosen | changes)


@pytest.fixture
def prepare() -> Iterator[Callable[..., Prepared]]:
    """Prepares workloads; the last one's policy ends with the test."""
    yield peer_lamina.prepare
    peer_lamina.end()


@pytest.mark.parametrize("policy", ["auto", pytest.param("heuristic", marks=pytest.mark.slow)])
def test_training_is_timed_when_no_plan_is_open(
    policy: str, prepare: Callable[..., Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU nothing ever is; no fewer steps are taken than percentiles need."""
    monkeypatch.setattr(peer_lamina, "_LEAST", 20)
    ready = prepare(workload("tiny-train"), "tuned", "cpu", policy)
    found = ready.settle(60.0)
    assert found["tuning"].startswith("0 open")
    assert found["settle_p99_ms"] >= found["settle_p50_ms"] > 0
    assert found["settle_s"] >= peer_lamina._LEAST * found["settle_p50_ms"] / 2e3
    assert prepare(workload("tiny-train"), "lamina", "cpu", policy).settle(60.0) == {}


@pytest.mark.feature("B051")
def test_a_record_goes_on_from_another(tmp_path: Path) -> None:
    w = workload("tiny-conv")
    first = suite.Record(options(out=tmp_path), "cpu")
    first.add(w, "lamina", {"median_ms": 4.0, "limit_ms": 1.0})
    first.add(w, "lamina", {"median_ms": 2.0, "limit_ms": 1.0})
    first.add(w, "jax", {"error": "out of memory"})
    path = first.write({})
    second = suite.Record(options(out=tmp_path, merge=path), "cpu")
    second.add(w, "jax", {"median_ms": 6.0})
    second.add(w, "torch eager", {"median_ms": 9.0})
    case = second.cases[w.name]
    assert case["results"]["lamina"]["rounds_ms"] == [4.0, 2.0]
    assert (case["best_peer"], case["speedup"]) == ("jax", 2.0)
    assert case["fraction_of_limit"] == pytest.approx(1 / 3)
    second.add(w, "lamina", {"median_ms": 1.0, "limit_ms": 1.0})
    assert case["results"]["lamina"]["rounds_ms"] == [1.0]
    second.add(w, "lamina fastest", {"median_ms": 0.5})
    assert (case["regret"], case["speedup"], case["speedup_tuned"]) == (2.0, 6.0, 12.0)
    second.add(w, "lamina tuned", {"median_ms": 0.75})
    assert case["speedup_settled"] == 8.0
    assert case["best_peer"] == "jax"
    record = json.loads(second.write({}).read_text())
    assert (record["regret"], record["geometric_mean_tuned"]) == (2.0, 12.0)


def test_nothing_is_measured_without_a_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--set", "tiny", "--budget", "0", "--out", str(tmp_path)]) == 0
    assert "left out: the budget is spent" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_curves_start_from_the_same_weights_and_count_in_points() -> None:
    torch = pytest.importorskip("torch")
    from benchmarks import curves

    lm.nn.manual_seed(0)  # roundings grow with some weights
    net = lm.nn.resnet18(10, 1)
    theirs = curves.Torch(net, networks.resnet18(10), (1, 64, 64), "cpu", "fp32")
    x = np.random.default_rng(0).standard_normal((4, 1, 64, 64)).astype(np.float32)
    labels = np.arange(4)
    ours = curves.Lamina(net, lambda step: 0.02, "cpu", "fp32")
    for tolerance in (1e-5, 1e-2):  # the second loss has been through an update
        assert ours.train(x, labels).item() == pytest.approx(
            theirs.train(x, labels, 0.02).item(), rel=tolerance
        )
    np.testing.assert_array_equal(ours.predictor()(x).shape, theirs.predictor()(x).shape)
    with pytest.raises(ValueError, match="shapes of their weights"):
        curves.load(torch.nn.Linear(2, 3), net)
    runs = [
        {"network": "alexnet", "precision": "bf16", "accuracy": {"lamina": a, "torch": b}}
        for a, b in ((0.98, 0.97), (0.97, 0.97))
    ]
    (row,) = curves.means(runs)
    assert row["difference"] == pytest.approx(0.5)


@pytest.mark.slow
def test_serving_on_a_cpu(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--network", "lenet", "--threads", "2", "--seconds", "0.05"]
    assert serving.main([*arguments, "--requests", "40", "--runs", "1", "--out", str(tmp_path)]) == 0
    record = json.loads(next(tmp_path.glob("serving-*.json")).read_text())
    for name in ("one thread", "threads", "threads, batches"):
        assert record[name]["per_second"] > 0
        assert record[name]["other_bits"] == 0
    assert len(record["host_us"]) == 7
    assert all(0 < row["least"] <= row["median"] for row in record["host_us"].values())
    for row, in_flight in zip(record["stand-in"], (0, 4), strict=True):
        assert row["in_flight"] == in_flight
        assert 0 < row["of_the_runs_alone"] <= 1
        assert row["sleeps"] > 0
    counts = record["cancelled"]
    assert counts["answered"] + counts["cancelled"] == counts["requests"] == 40
    for name in ("saved plan", "saved plan, portable"):
        assert record[name]["same_bits"]
        assert record[name]["first_answer_s"]["median"] > 0


def test_serving_names_what_must_not_be() -> None:
    counts = {"lost": 0, "wrong": 1, "told_twice": 2, "never_told": 0}
    record = {"threads": {"other_bits": 3}, "saved plan": {"error": "x"}, "cancelled": counts}
    assert serving.failures(record) == ["threads", "saved plan", "wrong", "told_twice"]
