"""Measuring a list of problems: processes that die or hang, limited time, going on where a call ended."""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from benchmarks import plan_contests, plan_problems
from benchmarks.plan_contests import Campaign, Worker, choices, lines_of, outcome_record
from benchmarks.plan_problems import Request
from lamina.backends.cuda.select.formulations import ContestOutcome, Problem
from lamina.cudnn import Choice
from lamina.ops.primitives import Relu
from lamina.spec import Policy, Spec, float32


def request(number: int) -> Request:
    return Request(Relu(), (Spec((number + 1,), float32),))


def serve(role: str, connection: Connection, place: str, turn: Path, known: Sequence[Any]) -> None:
    """As plan_contests.serve; requests of certain sizes break the process."""
    while (asked := connection.recv()) is not None:
        number = asked.specs[0].shape[0] - 1
        if number == 1 and role == "build":
            os._exit(3)
        if number == 2 and role == "contest":
            os._exit(4)
        if number == 3 and role == "contest":
            time.sleep(600)
        error = {"error": "no kernel"} if number == 4 and role == "build" else {}
        connection.send(error or ({"plan": place} if role == "contest" else {}))


def campaign(count: int, deadline: float) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    roles = ("build", "build", "contest", "contest")
    workers = [Worker(role, "here", Path("turn"), serve=serve) for role in roles]
    requests = [request(n) for n in range(count)]
    run = Campaign(requests, workers[:2], workers[2:], lambda n, line: found.update({n: line}))
    try:
        run.run(time.monotonic() + deadline)
    finally:
        for worker in workers:
            worker.close()
    return found


@pytest.mark.slow
@pytest.mark.feature("B009")
def test_a_process_that_breaks_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plan_contests.LIMITS, "contest", 20.0)
    found = campaign(8, 120)
    errors = {n: line.get("error", "") for n, line in found.items()}
    assert errors == {
        **dict.fromkeys((0, 5, 6, 7), ""),
        1: "build: the process died (3)",
        2: "contest: the process died (4)",
        3: "contest: took too long",
        4: "no kernel",
    }
    assert found[7] == {"request": request(7).record, "plan": "here"}


@pytest.mark.slow
def test_a_call_ends_in_time() -> None:
    began = time.monotonic()
    assert 3 not in campaign(4, 3)
    assert time.monotonic() - began < 20


def keep_turn(turn: Path, dies: bool, connection: Connection) -> None:
    """Say when the turn is there; keep it until something is said, or die with it."""
    with plan_contests.alone(turn):
        connection.send("mine")
        connection.recv()
        if dies:
            os._exit(5)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_one_process_at_a_time_has_its_turn_and_one_that_dies_gives_it_back(
    tmp_path: Path, dies: bool
) -> None:
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(2)]
    processes = [
        context.Process(target=keep_turn, args=(tmp_path / "turn", dies, theirs), daemon=True)
        for _, theirs in ends
    ]
    first, second = (ours for ours, _ in ends)
    processes[0].start()
    assert first.poll(60)
    assert first.recv() == "mine"
    processes[1].start()
    assert not second.poll(3)
    first.send("go on")
    assert second.poll(60)
    assert second.recv() == "mine"
    second.send("go on")
    for process in processes:
        process.join(60)
        assert process.exitcode == (5 if dies else 0)


def test_outcomes_are_written_with_each_candidate_once_and_winners_read() -> None:
    spec = Spec((4,), float32).fixed
    problem = Problem("p", "p", (spec,), (spec,), (), 5.0)
    slow, fast = Choice("plain", 3, ((1, 2),)), Choice("direct")
    best = Choice("direct", milliseconds=0.25, heuristic=1.0)
    times = ((slow, 1.0), (fast, 0.3), (fast, 0.25))
    line = outcome_record(ContestOutcome(problem, Policy(), "key", slow, best, times, ("x" * 500,) * 9))
    assert line["times"] == [["direct", -1, [], 0.25], ["plain", 3, [[1, 2]], 1.0]]
    assert (line["first"], line["best"]) == (["plain", 3, [[1, 2]]], ["direct", -1, [], 0.25])
    assert (line["refusals"], len(line["reasons"]), len(line["reasons"][0])) == (9, 6, 200)
    assert choices([{"contests": [line]}, {"error": "no"}]) == [("key", best)]


def test_lines_that_were_cut_off_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "contests.jsonl"
    assert lines_of(file) == []
    file.write_text('{"a": 1}\n{"a"')
    assert lines_of(file) == [{"a": 1}]


def test_requests_that_are_done_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        def __init__(self, role: str, place: str, turn: Path, known: Sequence[Any] = ()) -> None:
            self.busy = None

        def close(self) -> None:
            pass

    asked: list[Request] = []
    monkeypatch.setattr(plan_contests, "Worker", Idle)
    monkeypatch.setattr(plan_contests, "about", lambda device: {"device": "none"})
    monkeypatch.setattr(plan_contests, "read", lambda file: [request(n) for n in range(4)])
    monkeypatch.setattr(Campaign, "run", lambda self, deadline: asked.extend(self.requests))
    out, before = tmp_path / "out", tmp_path / "before.jsonl"
    before.write_text(json.dumps({"request": request(1).record}) + "\n")
    out.mkdir()
    (out / "contests.jsonl").write_text(json.dumps({"request": request(2).record}) + "\n")
    options = argparse.Namespace(
        out=out, seconds=1.0, after=[before], list=Path(), sampled=False, device="cpu", workers=1
    )
    assert plan_contests.measure(options) == 2
    assert asked == [request(0), request(3)]
    assert json.loads((out / "about.json").read_text()) == {"device": "none"}


def test_a_sample_takes_all_ops_in_turn() -> None:
    requests = plan_problems.read(plan_problems.LIST)
    found = plan_contests.sampled(requests)
    ops = {r.op.name for r in requests}
    assert {r.op.name for r in found[: len(ops)]} == ops
    assert sorted(r.name for r in found) == sorted(r.name for r in requests)
    assert found == plan_contests.sampled(requests)
