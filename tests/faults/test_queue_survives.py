"""kill -9 of whoever submits and of whoever dispatches, at any moment: no job is lost, and none runs twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.fakes import processes, resolved_command
from tests.lanes import amount
from tests.locks import has_locked
from tests.postgres import PostgresServer, postgres_url, require_postgres
from trainworks.agent.launch import run_mark
from trainworks.api.run_handle import Run
from trainworks.backends.backend import RenderedJob
from trainworks.backends.local.backend import LocalBackend
from trainworks.backends.local.wake import wake
from trainworks.backends.store_place import dispatcher_log, store_url
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem
from trainworks.host import forking, process
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir
from trainworks.recover.restarts import restarts_used

KILLS = JOBS = amount(test=8, test_all=40, nightly=200)
PATIENCE_S = 240.0
"""Nothing is measured by it: a dispatcher, a supervisor and an agent start one after the other on a busy machine."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A queue of this test's own; nothing of it is left afterwards."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for found in of_queue(Path(os.environ["TRAINWORKS_DATA"])):
        process.kill(found.pid)  # one may end with another


def of_queue(data: Path, named: str = "") -> list[psutil.Process]:
    """Everything that was started with this test's data folder and has this in its name."""
    mine = []
    for found in psutil.process_iter():
        try:
            if found.pid != os.getpid() and found.environ().get("TRAINWORKS_DATA") == str(data):
                mine += [found] if named in found.name() else []
        except psutil.Error:
            continue
    return mine


def dispatchers(folder: Path) -> list[psutil.Process]:
    """Those alone that dispatch, and not their copies, one of which may be a supervisor by the time it is killed."""
    return [found for found in of_queue(folder / "data") if has_locked(found.pid, "dispatcher.lock")]


def script_of(folder: Path, number: int) -> tuple[RenderedJob, RunDir]:
    """A job that writes a line when it begins, and another one when it ends."""
    run_dir = create_run_dir(folder / "runs", "job")
    command = f"echo begin {number} >> {folder}/book; sleep 0.02; echo end {number} >> {folder}/book"
    run_file = RunFile.model_validate({"name": "job", "run": command})
    resolved = resolved_command(run_file=run_file, run_id=run_dir.run_id, command=None, working_folder=str(folder))
    run_dir.write_resolved(resolved)
    node = NodeResources(cores=1.0)
    return RenderedJob(JobSpec(run_id=run_dir.run_id, name="job", min_nodes=1, max_nodes=1, node=node), ""), run_dir


def submit_in_a_process(folder: Path, number: int) -> forking.Forked:
    """A command line that submits, and may be killed meanwhile."""
    rendered, run_dir = script_of(folder, number)

    def submit() -> int:
        LocalBackend().submit(rendered, run_dir)
        return 0

    return forking.fork(submit, log=folder / "submit.log")


def wait_for_all() -> list[JobRow]:
    """Every job, once all have ended; whoever looks sees to it that somebody dispatches."""
    store = open_store(store_url())
    deadline = time.monotonic() + PATIENCE_S
    while not all(job.state.is_final for job in store.search()):
        assert time.monotonic() < deadline, store.counts()
        wake()
        time.sleep(0.2)
    return store.search()


def book(folder: Path) -> Counter[str]:
    """How often each job began and ended."""
    path = folder / "book"
    return Counter(path.read_text().splitlines() if path.exists() else [])


@pytest.mark.slow
@pytest.mark.timeout(amount(test=600, test_all=600, nightly=3600))
def test_no_job_is_lost_and_none_runs_twice_whoever_is_killed(folder: Path) -> None:
    chance = random.Random(7)
    kills = submitted = 0
    children: dict[int, forking.Forked] = {}
    while kills < KILLS or submitted < JOBS:
        if submitted < JOBS:
            children[submitted] = submit_in_a_process(folder, submitted)
            submitted += 1
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.0, 0.03))
                process.kill(children[submitted - 1].pid)
                kills += 1
        time.sleep(chance.uniform(0.0, 0.25))
        wake()
        for found in dispatchers(folder):
            process.kill(found.pid)
            kills += 1
    said_yes = {number for number, child in children.items() if child.wait(PATIENCE_S) == 0}
    jobs = wait_for_all()
    written = book(folder)
    assert [(job.id, job.end.cause, job.end.message) for job in jobs if job.state is not JobState.SUCCEEDED] == []
    assert [line for line, count in written.items() if count > 1] == []
    assert len(jobs) == len([line for line in written if line.startswith("begin")]) == len(written) / 2
    assert all(written[f"end {number}"] == 1 for number in said_yes), "a job that was accepted is lost"
    assert kills >= KILLS and said_yes


@pytest.mark.slow
def test_a_supervisor_that_is_killed_takes_its_ranks_with_it_and_its_job_starts_again(folder: Path) -> None:
    rendered, run_dir = script_of(folder, 0)
    marker = folder / "once"
    command = f"echo begin 0 >> {folder}/book; if mkdir {marker}; then sleep 300; fi; echo end 0 >> {folder}/book"
    resolved = run_dir.read_resolved()
    run_file = resolved.run_file.model_copy(update={"run": command})
    run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    LocalBackend().submit(replace(rendered, spec=replace(rendered.spec, max_restarts=1)), run_dir)
    wait_until(marker.is_dir)
    pid = run_dir.read_status().supervisor_pid
    assert pid is not None
    process.kill(pid)
    assert Run(run_dir).wait() is JobState.SUCCEEDED
    (job,) = wait_for_all()
    assert (job.state, job.restarts, job.attempt) == (JobState.SUCCEEDED, 1, 2)
    assert book(folder) == {"begin 0": 2, "end 0": 1}
    wait_until(lambda: not of_queue(folder / "data", "sleep"))


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_a_job_whose_supervisor_is_killed_by_its_own_stop_is_stopped(folder: Path) -> None:
    submitted, run_dir = script_of(folder, 0)
    command = f"touch {folder}/begun; sleep 300"
    resolved = run_dir.read_resolved()
    run_dir.write_resolved(
        resolved.model_copy(update={"run_file": resolved.run_file.model_copy(update={"run": command})})
    )
    number = LocalBackend().submit(submitted, run_dir)
    wait_until(folder.joinpath("begun").exists)
    pid = run_dir.read_status().supervisor_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as one that has not come to its signal handlers
    LocalBackend().stop(number, at_once=True)
    process.kill(pid)
    assert Run(run_dir).wait() is JobState.STOPPED
    (job,) = wait_for_all()
    assert job.state is JobState.STOPPED
    assert run_dir.read_status().state == "STOPPED"


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_a_database_server_that_is_killed_delays_the_queue_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_postgres()
    server = PostgresServer()
    monkeypatch.setenv("TRAINWORKS_STORE", postgres_url("queue", server))
    first, second = slow_script(folder, 0), script_of(folder, 1)
    LocalBackend().submit(*first)
    LocalBackend().submit(replace(second[0], spec=replace(second[0].spec, depends_on=("1",))), second[1])
    wait_until(lambda: book(folder)["begin 0"] == 1)
    server.kill()
    with pytest.raises(EnvironmentProblem, match="cannot open the job store"):
        open_store(store_url())
    (folder / "go").touch()
    wait_until(lambda: book(folder)["end 0"] == 1)
    wait_until(lambda: "connection" in dispatcher_log().read_text())
    server.start()
    wait_until(lambda: book(folder)["end 1"] == 1)
    jobs = wait_for_all()
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.SUCCEEDED, 1)] * 2
    assert set(book(folder).values()) == {1}


@pytest.mark.slow
@pytest.mark.lane("test-all")
def test_a_full_disk_below_the_store_refuses_a_job_and_loses_none(
    folder: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("8m")
    monkeypatch.setenv("TRAINWORKS_DATA", str(disk / "data"))
    first, second = slow_script(folder, 0), script_of(folder, 1)
    LocalBackend().submit(*first)
    wait_until(lambda: book(folder)["begin 0"] == 1)
    rest = disk / "rest"
    with pytest.raises(OSError, match="No space left"), rest.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))
    with pytest.raises(EnvironmentProblem, match="full"):
        LocalBackend().submit(*second)
    (folder / "go").touch()
    wait_until(lambda: book(folder)["end 0"] == 1)
    rest.unlink()
    LocalBackend().submit(*second)
    jobs = wait_for_all()
    assert [(job.state, job.attempt) for job in jobs] == [(JobState.SUCCEEDED, 1)] * 2
    assert book(folder) == {"begin 0": 1, "end 0": 1, "begin 1": 1, "end 1": 1}
    for found in of_queue(disk / "data"):  # before the disk goes
        process.kill(found.pid)


def slow_script(folder: Path, number: int) -> tuple[RenderedJob, RunDir]:
    """A job that ends once there is a file `go`."""
    rendered, run_dir = script_of(folder, number)
    resolved = run_dir.read_resolved()
    run = (resolved.run_file.run or "").replace("sleep 0.02", f"while [ ! -e {folder}/go ]; do sleep 0.02; done")
    run_file = resolved.run_file.model_copy(update={"run": run})
    run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    return rendered, run_dir


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, dispatcher_log().read_text()
        time.sleep(0.02)


MAX_RESTARTS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(amount(test=1, test_all=3, nightly=30)))
def test_a_job_has_one_life_more_than_restarts_whoever_is_killed(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    run_dir = endless_job(folder)
    store = open_store(store_url())
    killed: Counter[str] = Counter()
    wait_until(lambda: bool(book(folder)))  # on a slow machine no later life may come as far as this one
    while not (job := store.search()[0]).state.is_final:
        assert sum(killed.values()) < 100, (job, killed)
        time.sleep(chance.uniform(0.1, 0.6))
        role = chance.choice(("rank", "agent", "supervisor", "dispatcher"))
        killed[role] += sum(process.kill(pid) is None for pid in pids_of(role, folder, run_dir))
        wake()
    events = read_events(run_dir.events_file)
    assert (job.state, restarts_used(events), job.restarts) == (JobState.FAILED, MAX_RESTARTS, MAX_RESTARTS)
    assert 1 <= max(book(folder).values()) <= 1 + MAX_RESTARTS
    wait_until(lambda: process.processes_with(run_mark(run_dir)) == [])


def endless_job(folder: Path) -> RunDir:
    """Two nodes of one rank each, which never end by themselves."""
    run_dir = create_run_dir(folder / "runs", "job")
    run_file = RunFile.model_validate(
        {
            "name": "job",
            "run": f"echo $RANK >> {folder}/book; sleep 600",
            "recover": {"max_restarts": MAX_RESTARTS},
            "cluster": {"nodes": 2, "processes_per_node": 1},
        }
    )
    ranks = processes(2, 1)
    resolved = resolved_command(
        run_file=run_file, run_id=run_dir.run_id, command=None, working_folder=str(folder), processes=ranks
    )
    run_dir.write_resolved(resolved)
    spec = JobSpec(
        run_id=run_dir.run_id,
        name="job",
        min_nodes=1,
        max_nodes=1,
        node=NodeResources(cores=1.0),
        max_restarts=MAX_RESTARTS,
    )
    LocalBackend().submit(RenderedJob(spec, ""), run_dir)
    return run_dir


def pids_of(role: str, folder: Path, run_dir: RunDir) -> list[int]:
    """One process of that role, if there is one."""
    supervisor = run_dir.read_status().supervisor_pid
    if role == "dispatcher":
        return [one.pid for one in dispatchers(folder)]
    if role == "rank":
        return [one.pid for one in process.processes_with(run_mark(run_dir) | {"RANK": "1"})]
    if supervisor is None:
        return []
    try:
        agents = [one.pid for one in psutil.Process(supervisor).children()]
    except psutil.NoSuchProcess:
        return []
    return [supervisor] if role == "supervisor" else agents[-1:]
