"""The backend behind `trainworks run`: one job at once, attached to the terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import trainworks
from tests.fakes import FakeClock, job, processes
from tests.host.test_probe import DividedGpus
from trainworks.agent.launch import take_run
from trainworks.backends.backend import RenderedJob
from trainworks.backends.local.attached import AttachedBackend, stop_supervisor
from trainworks.backends.local.quotas import machine_ledger
from trainworks.errors import EnvironmentProblem, NotOwnerError, UsageError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.ledger import MachineLedger, Share, claim_key
from trainworks.host.probe import num_cores, probe_accelerators, probe_host
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.store import open_store
from trainworks.record.environment import AcceleratorFacts
from trainworks.record.events.log import append_event, read_events
from trainworks.record.processes import Processes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

H100S = tuple(AcceleratorFacts(index=index, name="H100", memory_bytes=80 * 10**9) for index in range(4))


def with_processes(resolved: ResolvedRun, changed: Processes) -> ResolvedRun:
    """The same run with other ranks."""
    return resolved.model_copy(update={"processes": changed})


RUNS = {
    "runs/demo-1": job(),
    "runs/with space/demo-1": with_processes(job(max_restarts=3), processes(2, 4)),
    "runs/task-1": with_processes(job("command"), processes(2).model_copy(update={"starts": "per_node"})),
    "runs/mpi-1": with_processes(job("command"), processes(1, 2).model_copy(update={"starts": "once"})),
}


def rendered(resolved: ResolvedRun, run_dir: RunDir) -> RenderedJob:
    """What `run` would start."""
    return AttachedBackend(resolved).render(spec_of_run(resolved), run_dir)


def start(resolved: ResolvedRun, run_dir: RunDir, clock: Clock | None = None) -> None:
    """Start a run as `trainworks run` does."""
    AttachedBackend(resolved, clock=clock).submit(rendered(resolved, run_dir), run_dir)


def test_a_job_is_rendered_as_its_command_line_and_what_it_starts(golden) -> None:
    texts = [rendered(resolved, RunDir(Path(folder))).text for folder, resolved in RUNS.items()]
    golden("local_attached.txt", "\n".join(texts))


def test_rendering_touches_nothing(run_dir: RunDir) -> None:
    before = sorted(run_dir.path.rglob("*"))
    rendered(job(), run_dir)
    assert sorted(run_dir.path.rglob("*")) == before


def test_a_rendered_job_keeps_its_spec(run_dir: RunDir) -> None:
    assert rendered(job(), run_dir).spec == spec_of_run(job())


def test_a_run_without_a_supervisor_is_not_stopped(run_dir: RunDir) -> None:
    stop_supervisor(run_dir, reason="test")
    assert read_events(run_dir.events_file) == []


def test_a_process_that_got_the_supervisor_s_number_is_left_alone(run_dir: RunDir) -> None:
    """The number is this test's own: a signal would end it."""
    pid, started_at = process.identity()
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at - 60))
    stop_supervisor(run_dir, reason="test")
    assert read_events(run_dir.events_file) == []


def test_a_supervisor_that_runs_is_asked_to_stop(run_dir: RunDir) -> None:
    child = process.spawn(["sleep", "60"], log=run_dir.supervisor_log)
    pid, started_at = process.identity(child.pid)
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    stop_supervisor(run_dir, reason="test")
    assert child.wait(timeout_s=60) == -15
    (event,) = read_events(run_dir.events_file)
    assert (event["kind"], event["reason"], event["t"] <= time.time()) == ("stop_requested", "test", True)


COUNTS_REQUESTS = """
import signal, time
heard = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: heard.append(1))
print("up", flush=True)
while len(heard) < 2:
    time.sleep(0.05)
"""


def test_a_supervisor_that_did_not_run_meanwhile_hears_a_stop_at_once_too(run_dir: RunDir) -> None:
    """The kernel keeps one signal of a number for a process that does not run."""
    child = process.spawn(process.python_program(COUNTS_REQUESTS), log=run_dir.supervisor_log)
    while "up" not in run_dir.supervisor_log.read_text():
        time.sleep(0.01)
    pid, started_at = process.identity(child.pid)
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    child.signal_group(signal.SIGSTOP)
    AttachedBackend(job()).stop(str(run_dir.path), at_once=True)
    child.signal_group(signal.SIGCONT)
    try:
        assert child.wait(timeout_s=60) == 0
    finally:
        child.end(0.0)


def test_the_run_of_another_user_is_not_stopped(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    pid, started_at = process.identity()
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    monkeypatch.setattr(os, "getuid", lambda: 61_001)
    with pytest.raises(NotOwnerError, match="cannot stop run demo-1: it belongs to"):
        stop_supervisor(run_dir, reason="test")


def test_a_status_that_names_a_process_of_another_user_ends_nothing(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root would find it in the folder of a user who wants a process of root ended; it is this test's own."""
    pid, started_at = process.identity()
    run_dir.write_status(RunStatus(state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at))
    monkeypatch.setattr("trainworks.host.process.owner", lambda pid: 61_001)
    assert not stop_supervisor(run_dir, reason="test")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineLedger]:
    """A machine of four accelerators, and nothing held."""
    monkeypatch.setenv("TRAINWORKS_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.delenv("TRAINWORKS_RUN_DIR", raising=False)
    monkeypatch.setattr("trainworks.backends.local.attached.probe_accelerators", lambda: H100S)
    return machine_ledger()


def hold(ledger: MachineLedger, cores: float, *devices: int) -> int:
    """Another job takes something."""
    share = Share(run="lm-1", key=claim_key("/runs/lm-1"), cores=cores, devices=devices)
    handle = ledger.claim(lambda claims: share)
    assert handle is not None
    return handle


def probe(resolved: ResolvedRun) -> None:
    """Check that the run could start now."""
    AttachedBackend(resolved).probe(spec_of_run(resolved))


def on_accelerators(ranks: int) -> ResolvedRun:
    """A run of so many ranks with an accelerator each."""
    return with_processes(job(), processes(1, ranks).model_copy(update={"device": "cuda"}))


def test_a_run_takes_the_accelerators_that_are_in_service(
    ledger: MachineLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setattr("trainworks.backends.local.attached.store_url", lambda: url)
    host = probe_host(tmp_path).model_copy(update={"hostname": "box", "accelerators": H100S})
    monkeypatch.setattr("trainworks.backends.local.attached.probe_host", lambda folder: host)
    for name in ("box:1", "other:2"):
        open_store(url).drain(name, "XID 79", now=0.0, uid=os.getuid())
    probe(on_accelerators(3))
    with pytest.raises(EnvironmentProblem, match=r"needs 4 accelerators, and accelerator 1 is drained \(XID 79\)"):
        probe(on_accelerators(4))


def test_a_run_is_refused_while_others_hold_the_accelerators_that_it_needs(ledger: MachineLedger) -> None:
    handle = hold(ledger, 0.0, 1, 2, 3)
    with pytest.raises(
        EnvironmentProblem, match=r"needs 2 accelerators, and 3 of 4 accelerators are held by \w+ \(lm-1\)"
    ):
        probe(on_accelerators(2))
    os.close(handle)
    probe(on_accelerators(2))


def test_the_roles_of_a_run_need_their_sum_of_accelerators(ledger: MachineLedger) -> None:
    one = processes(1, 1).model_copy(update={"device": "cuda", "accelerators_per_node": 1})
    roles = {"trainer": one.model_copy(update={"nodes": 2}), "fetch": processes(4, 1), "server": one}
    resolved = with_processes(job("command"), Processes.of_roles(roles))
    handle = hold(ledger, 0.0, 1, 2)
    with pytest.raises(EnvironmentProblem, match="needs 3 accelerators, and 2 of 4"):
        probe(resolved)
    os.close(handle)
    probe(resolved)


@pytest.mark.parametrize(
    ("nvml", "ranks", "held", "given"),
    [
        (None, 2, (0, 2), [(None, (0, 1)), ("1,3", (1, 3))]),
        (DividedGpus(), 1, (3,), [("MIG-a", (3,)), ("MIG-b", (4,))]),
    ],
    ids=["whole", "parts by MIG"],
)
def test_a_run_takes_the_accelerators_that_are_free(
    ledger: MachineLedger,
    run_dir: RunDir,
    monkeypatch: pytest.MonkeyPatch,
    nvml: DividedGpus | None,
    ranks: int,
    held: tuple[int, ...],
    given: list[tuple[str | None, tuple[int, ...]]],
) -> None:
    started: list[tuple[str | None, tuple[int, ...]]] = []

    def spawn(command: list[str], *, env: dict[str, str], **keys: object) -> object:
        held = {claim.share.run: claim.share.devices for claim in ledger.claims()}
        started.append((env.get("CUDA_VISIBLE_DEVICES"), held["demo-1"]))
        run_dir.write_status(RunStatus(state="STARTING"))
        return SimpleNamespace(exit_code=lambda: 0)

    monkeypatch.setattr("trainworks.host.process.spawn", spawn)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if nvml is not None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr("trainworks.backends.local.attached.probe_accelerators", probe_accelerators)
    start(on_accelerators(ranks), run_dir, FakeClock())
    handle = hold(ledger, 0.0, *held)
    start(on_accelerators(ranks), run_dir, FakeClock())
    assert started == given
    os.close(handle)


def test_a_run_may_start_and_end_between_two_looks_at_it(
    ledger: MachineLedger, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs_to_its_end() -> int:
        run_dir.write_status(RunStatus(state="SUCCEEDED", exit_code=0))
        return 0

    spawned = SimpleNamespace(exit_code=runs_to_its_end, wait=lambda timeout_s: 0)
    monkeypatch.setattr("trainworks.host.process.spawn", lambda command, **keys: spawned)
    start(job(), run_dir, FakeClock())
    assert run_dir.read_status().state == "SUCCEEDED"


def test_a_run_that_shares_cores_says_whose(ledger: MachineLedger) -> None:
    backend = AttachedBackend(with_processes(job(), processes(1, num_cores())))
    assert backend.sharing_note() is None
    handle = hold(ledger, 1.0)
    note = backend.sharing_note()
    assert note is not None and "(lm-1)" in note and f"1 of {num_cores()} cores are held by" in note
    os.close(handle)


def test_a_run_inside_a_run_does_not_meet_what_that_one_holds(
    ledger: MachineLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = hold(ledger, float(num_cores()), 0, 1, 2, 3)
    monkeypatch.setenv("TRAINWORKS_RUN_DIR", "/runs/lm-1")
    probe(on_accelerators(4))
    assert AttachedBackend(on_accelerators(4)).sharing_note() is None
    os.close(handle)


def test_a_run_that_another_supervisor_has_is_refused_and_left_as_it_is(run_dir: RunDir) -> None:
    lock = take_run(run_dir)
    pid, started_at = process.identity()
    append_event(run_dir.events_file, {"kind": "submitted", "nodes": 1, "processes_per_node": 1})
    status = RunStatus(
        state="RUNNING", supervisor_pid=pid, supervisor_started_at=started_at, supervisor_host="node7", updated_at=5.0
    )
    run_dir.write_status(status)
    run_dir.stop_file.touch()
    with pytest.raises(UsageError, match=rf"is already RUNNING: process {pid} on node7 supervises it since \d{{4}}-"):
        start(job(), run_dir)
    assert (run_dir.read_status(), run_dir.stop_file.exists()) == (status, True)
    os.close(lock)


def test_a_supervisor_whose_run_has_ended_has_a_minute_to_leave(
    run_dir: RunDir, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainworks.agent.launch.SystemClock", lambda: clock)
    lock = take_run(run_dir)
    leaving = process.spawn(["sleep", "600"], log=run_dir.supervisor_log, pass_fds=[lock])
    os.close(lock)
    pid, started_at = process.identity(leaving.pid)
    run_dir.write_status(RunStatus(state="SUCCEEDED", supervisor_pid=pid, supervisor_started_at=started_at))
    with pytest.raises(UsageError, match="is already SUCCEEDED"):
        take_run(run_dir)
    clock.after(50.0, lambda: leaving.end(0.0))
    os.close(take_run(run_dir))


def test_a_supervisor_that_the_holder_of_the_lock_has_yet_to_start_is_waited_for(
    run_dir: RunDir, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainworks.agent.launch.SystemClock", lambda: clock)
    lock = take_run(run_dir)
    run_dir.write_status(RunStatus(state="LOST", supervisor_pid=2**22 + 1, supervisor_started_at=1.0, updated_at=5.0))
    pid, started_at = process.identity()
    starting = RunStatus(state="STARTING", supervisor_pid=pid, supervisor_started_at=started_at)
    clock.after(20.0, lambda: run_dir.write_status(starting))
    with pytest.raises(UsageError, match="is already STARTING"):
        take_run(run_dir, handover_s=30.0)
    os.close(lock)


def test_a_run_with_processes_but_no_supervisor_is_refused_in_other_words(run_dir: RunDir) -> None:
    lock = take_run(run_dir)
    run_dir.write_status(RunStatus(state="LOST", supervisor_pid=2**22 + 1, supervisor_started_at=1.0, updated_at=5.0))
    with pytest.raises(EnvironmentProblem, match="still has processes"):
        take_run(run_dir)
    os.close(lock)


def test_a_run_of_the_same_relative_path_elsewhere_takes_no_supervisor_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    started = []
    for folder in folders:
        folder.mkdir()
        monkeypatch.chdir(folder)
        started.append(trainworks.run(["sleep", "60"], name="same", wait=False))
    for folder, run in zip(folders, started, strict=True):
        monkeypatch.chdir(folder)
        run.stop(at_once=True)
        assert run.wait() == "STOPPED"


def test_a_program_ends_without_a_warning_about_the_supervisor_of_its_run(tmp_path: Path) -> None:
    program = "import trainworks; print(trainworks.run(['true']).state)"
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "SUCCEEDED" in done.stdout and "ResourceWarning" not in done.stderr
