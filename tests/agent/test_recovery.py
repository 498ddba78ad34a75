"""A supervisor leaves a bad node out, goes on with fewer, and takes it back."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock, FakeNodes, Life, job, metrics_row, processes
from trainworks.agent.accelerators import MachineShare
from trainworks.agent.node_agents import OwnProcesses, ThisMachine
from trainworks.agent.supervisor import Supervisor
from trainworks.config.layout import ResolvedLayout
from trainworks.jobs.store import open_store
from trainworks.record.events.log import append_event, read_events
from trainworks.record.measured.step_anchor import read_anchor
from trainworks.record.metrics import append_metrics
from trainworks.record.resolved import FewerNodes, Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.step_time import StepTimeGroups

KILLED = -signal.SIGKILL
MET = ("attempt", {"attempt": 1, "world_size": 2, "resumed_from_step": 0})
FINISHED = ("finished", {"step": 300})


def plan(replicas: int, step_s: float) -> Plan:
    ones = dict.fromkeys(("dp_shard", "cp", "tp", "pp", "ep", "micro_batch", "grad_accum_steps"), 1)
    layout = ResolvedLayout.model_validate({"dp_replicate": replicas} | ones)
    step = StepTimeGroups(compute_s=step_s, communication_s=0.0, optimizer_s=0.0, data_s=0.0)
    return Plan.model_construct(layout=layout, num_steps=300, step_time=step, log_every_steps=1)


def elastic(max_restarts: int = 3, **recover: Any) -> ResolvedRun:
    """A run on two nodes that may go on with one."""
    resolved = job(nodes=2, recover={"max_restarts": max_restarts} | recover)
    fewer = FewerNodes.model_construct(processes=processes(1), plan=plan(1, 1.9))
    return resolved.model_copy(update={"plan": plan(2, 1.0), "fewer": (fewer,)})


class ElasticNodes(FakeNodes):
    """Nodes that stop when the stop file is there, as ranks do."""

    def wait(self, timeout_s: float) -> None:
        super().wait(timeout_s)
        if self._run_dir.stop_file.exists() and self.any_running():
            append_event(self._run_dir.events_file, {"kind": "stopped", "step": 100})
            self._end_all(0)


class Job:
    """A job on two fake nodes."""

    def __init__(self, folder: Path, resolved: ResolvedRun, *lives: list[Life]) -> None:
        self.run_dir = RunDir(folder)
        self.clock = FakeClock()
        self.nodes = ElasticNodes(self.run_dir, resolved, self.clock, lives)
        self.supervisor = Supervisor(self.run_dir, resolved, self.nodes, self.clock)

    def run(self) -> list[dict[str, Any]]:
        """Run to the end; the events that tell what was decided."""
        self.supervisor.run()
        told = ("decision", "resized", "straggler")
        return [event for event in read_events(self.run_dir.events_file) if event["kind"] in told]

    @property
    def state(self) -> str:
        return self.run_dir.read_status().state


@pytest.fixture
def start(run_dir: RunDir):
    return lambda resolved, *lives: Job(run_dir.path, resolved, *lives)


def test_a_node_that_is_lost_twice_is_left_out_and_taken_back(start) -> None:
    both = [Life(0, 100.0, says=[MET]), Life(0, 1e6, says=[MET]), Life(0, says=[MET, FINISHED])]
    events = start(elastic(), both, [Life(KILLED), Life(KILLED), Life(0)])
    told = events.run()
    assert [event.get("action") or event["nodes"] for event in told] == [
        "restart in place",
        "continue on fewer nodes",
        1,
        2,
    ]
    assert (events.state, events.nodes.asked.starts) == ("SUCCEEDED", [0, 1, 1, 0, 0, 1])


def test_without_a_plan_for_fewer_nodes_a_lost_node_is_started_as_often_as_restarts_are_left(start) -> None:
    rigid = elastic(max_restarts=2).model_copy(update={"fewer": ()})
    run = start(rigid, [Life(0, 90.0)], [Life(KILLED), Life(KILLED), Life(KILLED)])
    assert [event["action"] for event in run.run()] == ["restart in place", "restart in place", "stop"]
    assert run.state == "FAILED"


def test_a_node_that_is_soon_back_is_waited_for(start) -> None:
    run = start(elastic(repair="5 s"), [Life(0, 30.0)], [Life(KILLED), Life(KILLED), Life(0, says=[MET, FINISHED])])
    assert [event["action"] for event in run.run()] == ["restart in place", "restart in place"]


def test_a_user_who_stops_the_job_meanwhile_stops_it(start) -> None:
    run = start(elastic(), [Life(0, 100.0, says=[MET]), Life(0, 1e6, says=[MET])], [Life(KILLED), Life(KILLED)])
    run.clock.after(12.0, lambda: run.supervisor.ask_to_stop(signal.SIGTERM, None))
    assert [event.get("nodes") for event in run.run() if event["kind"] == "resized"] == [1]
    assert run.state == "STOPPED"


@pytest.mark.parametrize(("replace", "resizes"), [(False, []), (True, [1])])
def test_a_straggler_is_named_and_replaced_only_if_told_to(start, replace: bool, resizes: list[int]) -> None:
    slow = elastic(replace_stragglers=replace)
    small = Life(0, 2.0, says=[MET, FINISHED])
    run = start(slow, [Life(0, 50.0, says=[MET]), small], [Life(0, 50.0), small])
    about = {"rank": 1, "extra_s": 2.0, "extra_data_s": 0.0}
    rows = [metrics_row(step, step_s=3.0, slowest=about) for step in range(1, 9)]
    run.clock.after(5.0, lambda: append_metrics(run.run_dir.metrics_file, rows))
    told = run.run()
    assert [event["rank"] for event in told if event["kind"] == "straggler"] == [1]
    assert [event["nodes"] for event in told if event["kind"] == "resized"] == resizes


def rows(attempt: int, first: int, count: int, step_s: float) -> list[Any]:
    return [metrics_row(step, attempt=attempt, step_s=step_s) for step in range(first, first + count)]


def test_the_plan_of_each_layout_is_anchored_and_a_restart_on_the_same_layout_keeps_the_anchor(start) -> None:
    both = [Life(0, 100.0, says=[MET]), Life(0, 1e6, says=[MET]), Life(0, says=[MET, FINISHED])]
    run = start(elastic(), both, [Life(KILLED, 10.0), Life(KILLED, 10.0), Life(0)])
    seen: list[tuple[int, float | None]] = []

    def look() -> None:
        anchor = read_anchor(run.run_dir.anchor_file)
        assert anchor is not None
        seen.append((anchor.layout.dp_replicate, anchor.found.step_s if anchor.found else None))

    for at, new in ((2.0, rows(1, 1, 20, 1.1)), (13.0, rows(2, 21, 20, 1.5)), (25.0, rows(3, 41, 20, 2.1))):
        run.clock.after(at, lambda new=new: append_metrics(run.run_dir.metrics_file, new))
    for at in (5.0, 16.0, 28.0):
        run.clock.after(at, look)
    run.run()
    one_s, both_s = pytest.approx(2.1), pytest.approx(1.1)
    assert seen == [(2, both_s), (2, both_s), (1, one_s)]
    kept = read_anchor(run.run_dir.anchor_file)
    assert kept is not None and (kept.layout.dp_replicate, kept.found) == (2, None), "all nodes are back"
    assert kept.reason == "the ranks have recorded no step"


def test_a_run_that_cannot_write_its_anchor_goes_on(start) -> None:
    run = start(elastic(), [Life(0, 20.0, says=[MET])], [Life(0, 20.0)])
    run.run_dir.anchor_file.mkdir()
    run.clock.after(19.0, lambda: append_event(run.run_dir.events_file, {"kind": "finished", "step": 300}))
    run.clock.after(2.0, lambda: append_metrics(run.run_dir.metrics_file, rows(1, 1, 20, 1.1)))
    run.run()
    assert run.state == "SUCCEEDED"


def test_a_straggler_is_held_against_the_anchored_step(start) -> None:
    """One second is a quarter of the first quiet steps, and less than a fifth of those that it has made longer."""
    run = start(elastic(), [Life(0, 50.0, says=[MET])], [Life(0, 50.0)])
    slow = {"rank": 1, "extra_s": 1.0, "extra_data_s": 0.0}
    late = [metrics_row(step, step_s=5.1, slowest=slow) for step in range(21, 30)]
    run.clock.after(2.0, lambda: append_metrics(run.run_dir.metrics_file, rows(1, 1, 20, 4.0)))
    run.clock.after(5.0, lambda: append_metrics(run.run_dir.metrics_file, late))
    (told,) = run.run()
    assert told["message"] == "rank 1 works 1 s longer than its peers, 25% of a step"


def fault(step: int, rank: int = 1) -> tuple[str, dict[str, Any]]:
    """The accelerator of a rank, on the node of that number, reports an error."""
    failure = {"cause": "gpu_fault", "rank": rank, "node": rank, "step": step, "exit_code": 74, "message": "ECC error"}
    return "failure", failure | {"fingerprint": "a"}


BEGINS = ("ranks_started", {})
TWICE = [BEGINS, MET, fault(10), BEGINS, fault(15)]
"""What the record has of two starts that the accelerator of rank 1 ended."""


class OtherNodes(OwnProcesses):
    """Nodes of a scheduler that takes no accelerator out of service alone, and gives the job other nodes, or pods."""

    are_here = False
    addresses = ("node7", "node8")

    def __init__(self, *, gets_new_pods: bool) -> None:
        self.gets_new_pods = gets_new_pods
        self.can_be_replaced = not gets_new_pods

    def command(self, node: int, command: list[str]) -> list[str]:
        return ["true"]


class JobOnAccelerators(Job):
    """A job on two fake nodes with an accelerator each: of one machine, from its queue or a terminal, or of others."""

    def __init__(
        self, folder: Path, resolved: ResolvedRun, *lives: list[Life], is_queued: bool = True, others: str = ""
    ) -> None:
        on_gpus = {"device": "cuda", "accelerators_per_node": 0}
        processes = resolved.processes.model_copy(update=on_gpus)
        resolved = resolved.model_copy(update={"processes": processes, "accelerator_check": ("no.such.module",)})
        super().__init__(folder, resolved, *lives)
        self.url = f"sqlite:///{folder / 'jobs.db'}"
        share = MachineShare(store_url=self.url, accelerators=("box:0", "box:1"), is_queued=is_queued)
        here = ThisMachine(2, share.held_by(resolved.processes))
        hosts = OtherNodes(gets_new_pods=others == "pods") if others else here
        self.supervisor = Supervisor(self.run_dir, resolved, self.nodes, self.clock, hosts)

    @property
    def drained(self) -> dict[str, str]:
        with closing(open_store(self.url)) as store:
            return {name: reason for name, (reason, _) in store.drains().items()}


REFUSES = Life(77, 5.0)
"""An agent whose ranks do not start again on their accelerators."""


@pytest.mark.parametrize(
    ("restarts", "is_queued", "state"), [(3, True, "QUEUED"), (3, False, "FAILED"), (0, True, "FAILED")]
)
def test_a_job_leaves_an_accelerator_that_failed_its_rank_twice(
    run_dir: RunDir, restarts: int, is_queued: bool, state: str
) -> None:
    rigid = elastic(max_restarts=restarts).model_copy(update={"fewer": ()})
    first = [Life(0, 90.0, says=TWICE if restarts else [BEGINS, MET, fault(10), BEGINS, fault(15)])]
    run = JobOnAccelerators(run_dir.path, rigid, first, [REFUSES], is_queued=is_queued)
    (decision,) = run.run()
    assert run.drained == {"box:1": "rank 1 failed on it twice in a row, and no other rank: ECC error; run demo-1"}
    status = run.run_dir.read_status()
    assert (run.state, status.cause) == (state, "gpu_fault")
    assert (status.message or "").startswith("accelerator 1 of box is drained (rank 1 failed on it twice in a row")
    assert (status.message or "").endswith("the job waits for another") == (state == "QUEUED")
    moves = state == "QUEUED"
    assert decision["action"] == ("restart without the bad accelerator" if moves else "stop")


def test_a_job_goes_on_without_the_node_of_a_broken_accelerator_until_that_is_back_in_service(run_dir: RunDir) -> None:
    lives = [Life(0, 100.0, says=TWICE), Life(0, 1e6, says=[MET]), Life(0, says=[MET, FINISHED])]
    run = JobOnAccelerators(run_dir.path, elastic(max_restarts=6), lives, [REFUSES, Life(0)], is_queued=True)
    waited: list[int] = []

    def repair() -> None:
        waited.extend(event["nodes"] for event in read_events(run.run_dir.events_file) if event["kind"] == "resized")
        with closing(open_store(run.url)) as store:
            store.undrain("box:1")

    run.clock.after(200.0, repair)
    told = run.run()
    assert [event.get("action") or event["nodes"] for event in told] == ["continue on fewer nodes", 1, 2]
    assert (run.state, waited) == ("SUCCEEDED", [1])


@pytest.mark.parametrize(
    ("restarts", "others", "cause", "action"),
    [
        (3, "nodes", "node_unhealthy", "restart without the bad accelerator"),
        (3, "pods", "gpu_fault", "restart without the bad accelerator"),
        (0, "nodes", "gpu_fault", "stop"),
        (0, "pods", "gpu_fault", "stop"),
    ],
)
def test_a_job_leaves_the_node_of_an_accelerator_that_cannot_be_taken_out_alone(
    run_dir: RunDir, restarts: int, others: str, cause: str, action: str
) -> None:
    rigid = elastic(max_restarts=restarts).model_copy(update={"fewer": ()})
    run = JobOnAccelerators(run_dir.path, rigid, [Life(0, 90.0, says=TWICE)], [Life(74, 5.0)], others=others)
    assert [event["action"] for event in run.run()] == [action]
    assert (run.state, run.run_dir.read_status().cause, run.drained) == ("FAILED", cause, {})
    (left,) = [event for event in read_events(run.run_dir.events_file) if event["kind"] == "nodes_unhealthy"]
    assert left["nodes"] == [1]
    assert "rank 1 failed on it twice in a row, and no other rank: ECC error" in left["message"]


def test_a_job_whose_store_does_not_answer_starts_again_where_it_is(run_dir: RunDir) -> None:
    first, second = [Life(0, 90.0, says=TWICE)], [REFUSES, Life(0, says=[MET, FINISHED])]
    run = JobOnAccelerators(run_dir.path, elastic().model_copy(update={"fewer": ()}), first, second)
    (run_dir.path / "jobs.db").mkdir()
    assert [event["action"] for event in run.run()] == ["restart in place"]
    assert run.state == "SUCCEEDED"


def broken(index: int) -> tuple[str, dict[str, Any]]:
    """The check of `job.health` names an accelerator of the machine."""
    found = [{"index": index, "message": "ECC"}]
    return "node_check", {"node": 0, "host": "box", "message": "gpu-ecc-errors", "hint": "reset", "accelerators": found}


def checked(max_restarts: int) -> ResolvedRun:
    """A run with `job.health`, whose checks at each start pass."""
    return elastic(max_restarts=max_restarts).model_copy(update={"node_check": ("this",)})


def test_a_check_that_names_an_accelerator_costs_no_restart(run_dir: RunDir) -> None:
    rigid = checked(max_restarts=0).model_copy(update={"fewer": ()})
    run = JobOnAccelerators(run_dir.path, rigid, [Life(77, 20.0, says=[MET, broken(0)])], [Life(0, 90.0)])
    assert [event["action"] for event in run.run()] == ["restart without the bad accelerator"]
    assert (run.state, run.run_dir.read_status().cause) == ("QUEUED", "node_unhealthy")
    assert run.drained == {"box:0": "ECC; run demo-1"}


def test_ranks_do_not_start_on_a_broken_accelerator_that_cannot_be_taken_out(run_dir: RunDir) -> None:
    rigid = checked(max_restarts=3).model_copy(update={"fewer": ()})
    run = JobOnAccelerators(run_dir.path, rigid, [Life(77, 20.0, says=[MET, broken(0)])], [Life(0, 90.0)])
    (run_dir.path / "jobs.db").mkdir()
    assert [event["action"] for event in run.run()] == ["stop"]
    assert (run.state, run.run_dir.read_status().cause) == ("FAILED", "node_unhealthy")


def test_an_accelerator_of_a_node_that_is_left_out_does_not_stop_the_others(run_dir: RunDir) -> None:
    lives = [Life(0, 100.0, says=TWICE), Life(77, 5.0, says=[MET, broken(1)]), Life(0, says=[MET, FINISHED])]
    run = JobOnAccelerators(run_dir.path, checked(max_restarts=6), lives, [REFUSES])
    assert [event.get("action") or event["nodes"] for event in run.run()] == [
        "continue on fewer nodes",
        1,
        "restart in place",
    ]
    assert (run.state, list(run.drained)) == ("SUCCEEDED", ["box:1"])


def test_one_failure_of_an_accelerator_takes_none_out(run_dir: RunDir) -> None:
    first, second = [Life(0, 100.0, says=[BEGINS, MET, fault(10)])], [Life(74, 5.0)]
    run = JobOnAccelerators(run_dir.path, elastic(), first, second, is_queued=True)
    assert (run.run(), run.state, run.drained) == ([], "FAILED", {})
