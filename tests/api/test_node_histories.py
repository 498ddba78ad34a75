"""What the job store and the records of runs tell of the hardware of nodes."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.fakes import resolved_command, spec
from trainworks.api.proving.health import health
from trainworks.backends.backend import Backend, NodeStatus
from trainworks.backends.node_histories import avoid_failing_nodes, check_has_histories, with_history
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.jobs.job_row import Attempt, Placement
from trainworks.jobs.job_spec import NodeResources
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.recover.node_history import NodeHistory
from trainworks.units import DAY_S, HOUR_S

NOW = time.time()
SLURM = cast(
    Backend, SimpleNamespace(name="slurm", nodes=lambda: [NodeStatus(name=f"node{n}", state="free") for n in range(4)])
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("TRAINWORKS_STORE", url)
    return open_store(url)


def add(
    store: JobStore, folder: Path, nodes: list[str], *, cause: str | None = None, ago_s: float = DAY_S, **job: Any
) -> RunDir:
    """A job that held nodes for an hour, and the folder of its run."""
    folder.mkdir()
    about = {"owner": "ada", "engine": "slurm", "now": NOW - ago_s} | job
    row = store.add(spec(), run_dir=str(folder), **about)
    placement = tuple(Placement(name, 8.0) for name in nodes)
    start, end = NOW - ago_s, NOW - ago_s + HOUR_S
    state = JobState.FAILED if cause else JobState.SUCCEEDED
    whole = Attempt(job_id=row.id, number=1, started_at=start, end=End(state, cause, at=end), placement=placement)
    store.write_attempts(row.id, [whole])
    return RunDir(folder)


def write(run_dir: RunDir, *events: dict[str, Any], at: float = NOW - DAY_S + 60) -> None:
    run_dir.events_file.write_text("".join(json.dumps({"t": at} | event) + "\n" for event in events))


def histories() -> dict[str, NodeHistory | None]:
    return {node.name: node.history for node in with_history(SLURM)}


def failures() -> dict[str, int]:
    return {name: history.failures for name, history in histories().items() if history is not None}


def test_a_failure_counts_for_the_node_that_its_event_names(store: JobStore, tmp_path: Path) -> None:
    run_dir = add(store, tmp_path / "a-1", ["node1", "node2"])
    write(run_dir, {"kind": "agent_lost", "node": 1, "exit_code": -9}, {"kind": "straggler", "node": 7})
    found = histories()
    assert (found["node0"], found["node3"]) == (None, None)
    fit, failed = found["node1"], found["node2"]
    assert fit is not None and failed is not None
    assert (fit.failures, failed.failures) == (0, 1)
    assert fit.held_s == failed.held_s == pytest.approx(HOUR_S)
    assert fit.score < 1 < failed.score < 2


def test_only_attempts_of_the_same_backend_in_their_own_time_count(store: JobStore, tmp_path: Path) -> None:
    lost = {"kind": "agent_lost", "node": 0, "exit_code": -9}
    write(add(store, tmp_path / "a-1", ["node1"], engine="kubernetes"), lost)
    write(add(store, tmp_path / "b-1", ["node2"], ago_s=300 * DAY_S), lost)
    write(add(store, tmp_path / "c-1", ["node3"]), lost, at=NOW)
    assert failures() == {"node3": 0}


@pytest.mark.parametrize(
    ("nodes", "cause", "counted"),
    [
        (["node1"], "node_lost", {"node1": 1}),
        (["node1"], "user_error", {"node1": 0}),
        (["node1", "node2"], "node_lost", {"node1": 0, "node2": 0}),
    ],
)
def test_the_cause_of_an_attempt_counts_for_its_only_node(
    store: JobStore, tmp_path: Path, nodes: list[str], cause: str, counted: dict[str, int]
) -> None:
    add(store, tmp_path / "a-1", nodes, cause=cause)
    assert failures() == counted


def test_all_nodes_of_a_job_that_share_a_machine_are_that_machine(store: JobStore, tmp_path: Path) -> None:
    write(add(store, tmp_path / "a-1", ["node1"]), {"kind": "agent_lost", "node": 3, "exit_code": -9})
    assert failures() == {"node1": 1}


def test_odd_records_of_other_users_do_not_break_the_list(store: JobStore, tmp_path: Path) -> None:
    odd: list[dict[str, Any]] = [
        {"kind": "nodes_unhealthy", "nodes": ["x"]},
        {"kind": "nodes_unhealthy", "nodes": [-1, 99]},
        {"kind": "nodes_unhealthy", "nodes": 1},
        {"kind": "agent_lost", "node": 0, "exit_code": "x"},
        {"kind": "straggler"},
        {"kind": "straggler", "node": 0, "t": None},
        {},
    ]
    for number, event in enumerate(odd):
        write(add(store, tmp_path / f"a-{number}", ["node1", "node2"]), event)
    assert failures() == {"node1": 0, "node2": 0}


@pytest.mark.parametrize(
    ("engine", "name", "host", "verdict", "problem"),
    [
        ("slurm", "node1", None, "warning", "3 failures in 0.1 days under jobs, score 4.0, last `node_lost` at "),
        ("local", "vm-0", "vm", "warning", "3 failures"),
        ("local", "vm-0", "another", "not applicable", ""),
        ("slurm", "node2", None, "not applicable", ""),
        ("kubernetes", "node1", None, "not applicable", ""),
    ],
)
def test_health_warns_of_a_machine_that_failed_under_jobs(
    store: JobStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    name: str,
    host: str | None,
    verdict: str,
    problem: str,
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    monkeypatch.setenv("TRAINWORKS_HOST", "vm")
    monkeypatch.setattr("trainworks.api.proving.health._HISTORY_TIMEOUT_S", 60.0)
    for number in range(3):
        ago_s = number * HOUR_S + HOUR_S
        add(store, tmp_path / f"a-{number}", [name], cause="node_lost", ago_s=ago_s, engine=engine, host=host)
    found = next(each for each in health().results if each.check == "history")
    assert found.verdict == verdict
    assert "".join(found.problems).startswith(problem)


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/jobs", "no URL"])
def test_a_job_store_that_cannot_be_read_leaves_the_history_unknown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_STORE", url)
    assert [each.check for each in health().with_verdict("unknown") if each.check == "history"] == ["history"]
    assert "history" not in {each.check for each in health(with_history=False).with_verdict("unknown")}


def test_a_job_store_that_hangs_does_not_hold_the_other_checks(
    store: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr("trainworks.backends.node_histories.history_of_machine", lambda *_: answered.wait())
    monkeypatch.setattr("trainworks.api.proving.health._HISTORY_TIMEOUT_S", 0.01)
    found = next(each for each in health().results if each.check == "history")
    answered.set()
    assert (found.verdict, found.figure) == ("unknown", "the job store does not answer within 0.01 s")


def test_a_pipe_in_place_of_a_record_does_not_block_the_list(store: JobStore, tmp_path: Path) -> None:
    os.mkfifo(add(store, tmp_path / "a-1", ["node1"]).events_file)
    assert failures() == {"node1": 0}


def test_what_a_run_writes_later_is_read_too(store: JobStore, tmp_path: Path) -> None:
    run_dir = add(store, tmp_path / "a-1", ["node1"])
    write(run_dir)
    assert failures() == {"node1": 0}
    write(run_dir, {"kind": "nodes_unhealthy", "nodes": [0]})
    assert failures() == {"node1": 1}


@pytest.mark.parametrize(
    ("given", "needed", "avoided"),
    [([], 1, ["node1", "node2"]), ([], 3, ["node1"]), ([], 4, []), (["node0"], 2, ["node1"]), (["node1"], 3, [])],
)
def test_the_worst_nodes_are_avoided_while_enough_others_are_left(
    store: JobStore, tmp_path: Path, given: list[str], needed: int, avoided: list[str]
) -> None:
    for number, ago_s in enumerate((DAY_S, 2 * DAY_S, 3 * DAY_S)):
        add(store, tmp_path / f"a-{number}", ["node1"], cause="node_lost", ago_s=ago_s)
        add(store, tmp_path / f"b-{number}", ["node2"], cause="node_lost", ago_s=ago_s + HOUR_S)
        add(store, tmp_path / f"c-{number}", ["node3"], cause="user_error", ago_s=ago_s)
    said: list[str] = []
    run_file = RunFile.model_validate({"name": "demo", "run": "true", "job": {"exclude": given}})
    request = spec(min_nodes=1, max_nodes=needed, node=NodeResources())
    left = avoid_failing_nodes(resolved_command(run_file=run_file), request, SLURM, notify=said.append)
    assert list(left.run_file.job.exclude) == [*given, *avoided]
    assert [text.split(":")[0] for text in said] == [f"the job avoids {name}" for name in avoided]
    assert all("3 hardware failures, score 3." in text for text in said)


def test_nodes_that_the_job_could_not_have_are_not_counted_as_left(store: JobStore, tmp_path: Path) -> None:
    for number in range(3):
        add(store, tmp_path / f"a-{number}", ["bad"], cause="node_lost", ago_s=(number + 1) * DAY_S)
    bad = NodeStatus(name="bad", state="free", accelerators=8, accelerator="h100")
    others = {
        "none": [],
        "drained": [replace(bad, name="fit", state="drained")],
        "smaller": [replace(bad, name="fit", accelerators=4)],
        "another kind": [replace(bad, name="fit", accelerator="a100")],
        "fit": [replace(bad, name="fit")],
    }
    request = spec(min_nodes=1, max_nodes=1, node=NodeResources(accelerators=8))
    found = {}
    for name, nodes in others.items():
        backend = cast(Backend, SimpleNamespace(name="slurm", nodes=lambda nodes=nodes: [bad, *nodes]))
        left = avoid_failing_nodes(resolved_command(), request, backend, notify=lambda _: None)
        found[name] = left.run_file.job.exclude
    assert found == dict.fromkeys(others, ()) | {"fit": ("bad",)}


def test_a_backend_whose_nodes_have_no_history_refuses_to_avoid_them() -> None:
    check_has_histories(SLURM)
    with pytest.raises(UsageError, match="kubernetes does not support"):
        check_has_histories(cast(Backend, SimpleNamespace(name="kubernetes")))
