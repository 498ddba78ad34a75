"""One bad accelerator is taken out of service alone, with its evidence, and the job goes on without it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainworks
from tests.gpus.machine import GpuMachine
from trainworks.api.nodes import undrain
from trainworks.api.run_handle import Run
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events
from trainworks.recover.restarts import lives_of

PATIENCE_S = 120.0
ECC = "gpu-ecc-errors: GPU 0 has 3 uncorrected errors"
FAILS = 'echo "RuntimeError: CUDA error: uncorrectable ECC error encountered"; exit 1'


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    """A machine of two GPUs, with a queue of this test's own."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRAINWORKS_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.chdir(tmp_path)
    return GpuMachine(tmp_path / "gpus", 2, monkeypatch)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts runs on one GPU, or puts them into the queue; none is left behind."""
    runs: list[Run] = []

    def start(script: str, *, restarts: int = 1, gpus: int = 1, queued: bool = False, **keys: Any) -> Run:
        target = {"name": "t", "run": f"echo ${{CUDA_VISIBLE_DEVICES:-0}} >> {tmp_path}/book; {script}"}
        target |= {"resources": {"accelerators": f"gpu:{gpus}"}, "recover": {"max_restarts": restarts}, **keys}
        begin = trainworks.submit if queued else trainworks.run
        runs.append(begin(target, folder=tmp_path / "runs", **({} if queued else {"wait": False})))
        return runs[-1]

    yield start
    for run in runs:
        if not JobState(run.state).is_final:
            run.stop(at_once=True)
            run.wait()


def seen(tmp_path: Path) -> list[str]:
    """The GPUs of every start of the command."""
    return (tmp_path / "book").read_text().split()


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [dict(event) for event in read_events(run.run_dir.events_file) if event["kind"] == kind]


def drained() -> str | None:
    """What the queue says of its node."""
    (node,) = trainworks.nodes()
    return node.reason


def why_waiting(run: Run) -> str:
    """What the queue says of a job that waits."""
    (row,) = [one for one in trainworks.jobs() if one.run_id == run.id]
    return f"{row.row.reason}: {row.row.detail}"


def breaks_the_first(machine: GpuMachine) -> str:
    """A script whose GPU 0 breaks; it succeeds on another."""
    return f'test "${{CUDA_VISIBLE_DEVICES:-0}}" = 0 || exit 0; {machine.breaking(0, 2)}; {FAILS}'


def until(holds: Callable[[], bool], tell: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, tell()
        time.sleep(0.1)


def test_a_run_takes_another_accelerator_of_the_machine_in_place_of_one_that_broke(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started(breaks_the_first(machine))
    assert run.wait() is JobState.SUCCEEDED
    assert seen(tmp_path) == ["0", "1"]
    (out,) = events(run, "accelerator_drained")
    assert (out["node"], out["accelerator"].rpartition(":")[2], out["message"]) == (0, "0", ECC)
    assert [one["action"] for one in events(run, "decision")] == ["restart without the bad accelerator"]
    assert drained() == f"accelerator 0 is drained ({ECC}; run t-1)"
    second = lives_of(read_events(run.run_dir.events_file))[-1]
    name = out["accelerator"]
    assert (second.cause, second.part) == ("gpu_fault", f"accelerator {name}")
    assert second.message == f"accelerator 0 of {name.rpartition(':')[0]} is drained ({ECC})"


def test_a_run_without_another_accelerator_ends_and_says_which_one_broke(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started(f"{machine.breaking(0, 2)}; {FAILS}", gpus=2)
    assert run.wait() is JobState.FAILED
    name = events(run, "accelerator_drained")[0]["accelerator"]
    node = name.rpartition(":")[0]
    assert (run.status.cause, run.status.message) == ("gpu_fault", f"accelerator 0 of {node} is drained ({ECC})")
    assert run.status.hint == f"once it is repaired: trainworks drain {name} --undo"
    with pytest.raises(
        EnvironmentProblem, match=r"needs 2 accelerators, and .*accelerator 0 is drained \(gpu-ecc-errors"
    ):
        started("true", gpus=2)


def test_a_command_without_restarts_ends_and_its_broken_accelerator_is_out_for_the_next_one(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    assert started(breaks_the_first(machine), restarts=0).wait() is JobState.FAILED
    assert started("true").wait() is JobState.SUCCEEDED
    assert seen(tmp_path) == ["0", "1"]


@pytest.mark.parametrize("evidence", ["none", "of an application", "of a GPU that the run does not hold", "old"])
def test_without_clear_evidence_a_failure_takes_nothing_out(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path, evidence: str
) -> None:
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    lines = {"of an application": (0.0, "01", 13), "of a GPU that the run does not hold": (0.0, "02", 48)}
    before_s, place, code = lines.get(evidence, (60.0, "01", 48))
    if evidence != "none":
        machine.log.write_text(
            f"[{uptime_s - before_s + 60 * (before_s == 0):.6f}] NVRM: Xid (PCI:0000:{place}:00): {code}, x\n"
        )
    run = started(FAILS)
    assert run.wait() is JobState.FAILED
    assert (drained(), events(run, "accelerator_drained"), len(events(run, "restart"))) == (None, [], 1)
    assert seen(tmp_path) == ["0", "0"]


def test_an_xid_of_its_gpu_since_the_run_began_is_clear(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    xid = f'echo "[$(cut -d" " -f1 /proc/uptime)0000] NVRM: Xid (PCI:0000:01:00): 48, pid=9" >> {machine.log}'
    run = started(f'test "${{CUDA_VISIBLE_DEVICES:-0}}" = 0 || exit 0; {xid}; {FAILS}')
    assert run.wait() is JobState.SUCCEEDED
    (out,) = events(run, "accelerator_drained")
    assert out["message"] == "xid: GPU 0000:01:00 had XID 48: double-bit ECC error"


def test_a_queued_job_gets_another_accelerator_or_waits_for_one(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    run = started(breaks_the_first(machine), queued=True)
    assert run.wait() is JobState.SUCCEEDED
    assert seen(tmp_path) == ["0", "1"]
    second = started("true", queued=True, gpus=2)
    until(lambda: ECC in why_waiting(second), lambda: why_waiting(second))
    undrain(events(run, "accelerator_drained")[0]["accelerator"])
    assert second.wait() is JobState.SUCCEEDED


def test_a_check_before_the_job_takes_a_broken_accelerator_out_without_a_restart(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    machine.describe({"uncorrected": 3}, {})
    for queued in (False, True):
        undrain(f"{socket.gethostname()}:0")
        run = started("true", restarts=0, queued=queued, job={"health": True})
        assert run.wait() is JobState.SUCCEEDED, run.status
    assert seen(tmp_path) == ["1", "1"]


def test_all_parts_of_a_broken_gpu_are_taken_out(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path
) -> None:
    machine.describe({"slices": ["MIG-a", "MIG-b"], "uncorrected": 3}, {})
    run = started("true", restarts=0, queued=True, job={"health": True})
    assert run.wait() is JobState.SUCCEEDED, run.status
    assert [event["accelerator"].rpartition(":")[2] for event in events(run, "accelerator_drained")] == ["2", "3"]
    assert seen(tmp_path) == ["1"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("0", [0]), ("GPU-00000000-test", [0]), ("MIG-b", [10]), ("1", [9, 10]), ("GPU-10000000-test", [9, 10])],
)
def test_an_accelerator_is_named_by_number_or_uuid_and_a_divided_gpu_stands_for_all_of_its_parts(
    machine: GpuMachine, started: Callable[..., Run], tmp_path: Path, name: str, parts: list[int]
) -> None:
    machine.describe({}, {"slices": ["MIG-a", "MIG-b"]})
    trainworks.drain(f"{socket.gethostname()}:{name}", "by hand")
    assert drained() == ", ".join(f"accelerator {part} is drained (by hand)" for part in parts)
    with pytest.raises(EnvironmentProblem, match=f"accelerator {parts[0]} is drained"):
        started("true", gpus=3)
    with pytest.raises(UsageError, match="has no accelerator `MIG-c`"):
        trainworks.drain(f"{socket.gethostname()}:MIG-c", "by hand")
    undrain(f"{socket.gethostname()}:{name}")
    assert not drained()


def test_an_accelerator_that_its_driver_lost_can_be_back_in_service(machine: GpuMachine) -> None:
    name = f"{socket.gethostname()}:0"
    trainworks.drain(name, "XID 79")
    machine.describe({"lost": True}, {})
    (node,) = trainworks.nodes()
    assert (node.accelerators, node.reason) == (1, None), "the other one is there"
    undrain(name)
    machine.describe({}, {})
    assert drained() is None
