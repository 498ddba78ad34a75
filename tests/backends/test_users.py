"""Several users on one machine: each user's jobs run as that user, and all users know what the others hold."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.lanes import cases
from tests.postgres import postgres_url
from tests.users import User, common_folder, require_root, users
from trainworks.host import process
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.store import JobStore, open_store

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all"), pytest.mark.root]
PATIENCE_S = 240.0

WRITER = """
import sys
from trainworks.jobs import database
from trainworks.jobs.store import open_store

def wait(seconds):
    print("refused", flush=True)
    sys.stdin.readline()

database._MODES_S, database.time.sleep = 600.0, wait
store = open_store(sys.argv[1])
store.drain("node1", "broken", now=1.0)
print(store.drains(), flush=True)
"""
"""Writes to a job store; each time that it would wait, it says so, and continues when it reads a line."""


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder for all users; every process that was started for it ends with the test."""
    require_root()
    with common_folder() as folder:
        yield folder
        while left := process.processes_with({"TRAINWORKS_LEDGER": str(folder / "ledger")}):
            for one in left:
                process.kill(one.pid)
            psutil.wait_procs(left, timeout=5.0)


DATABASES = ("sqlite", "postgresql")
on_every_database = pytest.mark.parametrize("url", DATABASES, indirect=True)


@pytest.fixture(params=cases(DATABASES, at_night=["postgresql"]))
def url(request: pytest.FixtureRequest, common: Path) -> str:
    """A store that every user can write."""
    if request.param == "postgresql":
        return postgres_url(f"shared{common.name}")
    folder = common / "store"
    folder.mkdir()
    folder.chmod(0o777)
    database = f"sqlite:///{folder / 'jobs.db'}"
    open_store(database)
    (folder / "jobs.db").chmod(0o666)
    return database


@pytest.fixture
def shared(common: Path, url: str) -> tuple[User, User]:
    """Root and Ann, with one store."""
    root, ann = users(common, 1, {"TRAINWORKS_STORE": url, "TRAINWORKS_LEDGER": str(common / "ledger")})
    return root, ann


@pytest.fixture
def apart(common: Path) -> tuple[User, User, User]:
    """Root, Ann and Bob, each with a store of their own."""
    root, ann, bob = users(common, 2, {"TRAINWORKS_LEDGER": str(common / "ledger")})
    return root, ann, bob


def submit(user: User, name: str, command: str, **keys: Any) -> str:
    """A job of a user."""
    file = user.home / f"{name}.yaml"
    file.write_text(json.dumps({"name": name, "run": command, "resources": {"cpus": 0.5}} | keys))
    return user.ok("submit", str(file)).strip()


def seen(user: User, run_id: str, url: str | None = None) -> JobRow:
    """A job, as its user's store has it."""
    own = f"sqlite:///{user.home}/.local/share/trainworks/queue/jobs.db"
    job = open_store(url or user.env.get("TRAINWORKS_STORE", own)).find(run_id, uid=user.uid)
    assert job is not None
    return job


def wait_for(user: User, run_id: str, *states: str, url: str | None = None) -> JobRow:
    """Until a job is in one of these states."""
    return until(lambda: seen(user, run_id, url), lambda job: job.state in states)


def until(look: Callable[[], Any], is_there: Callable[[Any], Any]) -> Any:
    """Look until it is as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def busy(user: User, name: str = "busy", **keys: Any) -> str:
    """A job that runs until it is ended, so that its owner's dispatcher is there."""
    run_id = submit(user, name, "sleep 600", **keys)
    wait_for(user, run_id, "RUNNING")
    return run_id


@pytest.mark.lane("test")
@on_every_database
def test_a_job_runs_as_the_user_who_submitted_it(shared: tuple[User, User]) -> None:
    root, ann = shared
    busy(root)
    run_id = submit(ann, "who", "id -u > who")
    assert wait_for(ann, run_id, "SUCCEEDED", "FAILED").end.message is None
    assert (ann.home / "who").read_text().strip() == str(ann.uid)


def test_a_user_is_told_whose_job_it_is_and_does_not_change_it(shared: tuple[User, User]) -> None:
    root, ann = shared
    run_id = busy(root)
    number = str(seen(ann, run_id).id)
    edit = ["edit", number, "--set", "job.priority=90"]
    for arguments in (["stop", number], ["stop", number, "--now"], ["hold", number], ["release", number], edit):
        done = ann.trainworks(*arguments)
        assert (done.returncode, "belongs to root" in done.stderr) == (2, True), done
    assert seen(root, run_id).state == "RUNNING"


@on_every_database
def test_a_stop_in_the_name_of_another_user_is_not_obeyed(shared: tuple[User, User], url: str) -> None:
    root, ann = shared
    run_id = busy(root)
    store = open_store(url)
    job = store.find(run_id)
    assert job is not None and store.change(job.id, asked_to_end="kill", asked_by=ann.uid)
    submit(root, "next", "true")
    wait_for(root, "next-1", "SUCCEEDED")  # the dispatcher has looked since
    assert seen(root, run_id).state == "RUNNING"


@on_every_database
def test_root_may_stop_the_job_of_a_user(shared: tuple[User, User]) -> None:
    root, ann = shared
    runs, waits = busy(ann), submit(ann, "waits", "true", job={"hold": True})
    for run_id in (runs, waits):
        answer = root.ok("stop", str(seen(ann, run_id).id))
        assert f"asked {run_id} to stop" in answer or f"{run_id} STOPPED" in answer  # where the dispatcher was quicker
        wait_for(ann, run_id, "STOPPED")
    until((ann.home / "runs" / waits / ".environment.json").exists, lambda there: not there)


def test_root_may_retry_the_job_of_a_user_who_stays_its_owner(shared: tuple[User, User]) -> None:
    root, ann = shared
    run_id = submit(ann, "who", "id -u > who", job={"hold": True})
    ann.ok("stop", run_id)
    busy(ann)
    number = str(seen(ann, run_id).id)
    root.ok("retry", number)
    root.ok("release", number)
    wait_for(ann, run_id, "SUCCEEDED")
    assert (ann.home / "who").read_text().strip() == str(ann.uid)


def forge(store: JobStore, job: str, *, uid: int, run_dir: Path, host: str) -> int:
    """A row that says it is a job of another user."""
    row = store.find(job)
    assert row is not None
    spec = replace(row.spec, hold=False)
    forged = store.add(spec, run_dir=str(run_dir), owner="root", uid=uid, host=host, engine="local", now=time.time())
    return forged.id


@pytest.mark.parametrize("way", ["folder", "link"])
def test_a_row_does_not_make_a_dispatcher_execute_the_run_of_another_user(
    shared: tuple[User, User], url: str, way: str
) -> None:
    root, ann = shared
    busy(root)
    run_id = submit(ann, "forged", f"touch {ann.home}/ran", job={"hold": True})
    row = seen(ann, run_id)
    folder = ann.home / "runs" / run_id
    copy = ann.home / "copy"
    ann.run(["cp", "-r", str(folder), str(copy)]) if way == "folder" else ann.run(["ln", "-s", str(folder), str(copy)])
    forged = forge(open_store(url), run_id, uid=0, run_dir=copy, host=row.host)
    job = wait_for(root, str(forged), "FAILED")
    assert f"belongs to uid {ann.uid}" in (job.end.message or "")
    assert not (ann.home / "ran").exists()


def test_a_folder_that_others_can_write_is_not_executed(apart: tuple[User, ...]) -> None:
    _, ann, _ = apart
    run_id = submit(ann, "open", "true", job={"hold": True})
    (ann.home / "runs" / run_id).chmod(0o777)
    ann.ok("release", run_id)
    assert "other users can write" in wait_for(ann, run_id, "FAILED").end.message


def test_a_job_of_another_machine_is_left_to_it(shared: tuple[User, User]) -> None:
    root, _ = shared
    busy(root)
    file = root.home / "there.yaml"
    file.write_text(json.dumps({"name": "there", "run": "true", "resources": {"cpus": 0.5}}))
    root.ok("submit", str(file), TRAINWORKS_HOST="elsewhere", TRAINWORKS_DATA=str(root.home / "data"))
    wait_for(root, "there-1", "SUCCEEDED")
    done = root.trainworks("retry", "there-1")
    assert "belongs to the queue of elsewhere" in done.stderr
    assert "elsewhere, whose queue starts the job" in root.ok("describe", "there-1")


def test_ps_tells_whose_jobs_they_are_where_there_are_several_users(shared: tuple[User, User]) -> None:
    root, ann = shared
    busy(root, "of-root")
    busy(ann, "of-ann")
    assert f"uid {ann.uid}" in root.ok("ps")
    assert [job["name"] for job in json.loads(ann.ok("ps", "--mine", "--json"))] == ["of-ann"]


def test_a_second_store_in_one_home_starts_its_jobs(apart: tuple[User, ...]) -> None:
    _, ann, _ = apart
    busy(ann)
    other = f"sqlite:///{ann.home}/other.db"
    (ann.home / "second.yaml").write_text(json.dumps({"name": "second", "run": "true", "resources": {"cpus": 0.5}}))
    run_id = ann.ok("submit", "second.yaml", TRAINWORKS_STORE=other).strip()
    wait_for(ann, run_id, "SUCCEEDED", url=other)


def test_a_store_with_a_relative_path_is_one_of_the_current_folder(apart: tuple[User, ...]) -> None:
    _, ann, _ = apart
    (ann.home / "job.yaml").write_text(json.dumps({"name": "job", "run": "true"}))
    ann.ok("submit", "job.yaml", TRAINWORKS_STORE="sqlite:///mine.db")
    wait_for(ann, "job-1", "SUCCEEDED", url=f"sqlite:///{ann.home}/mine.db")


def test_a_job_waits_for_the_cores_that_another_user_holds_and_says_whose(apart: tuple[User, ...]) -> None:
    _, ann, bob = apart
    cores = os.cpu_count() or 1
    first = busy(ann, resources={"cpus": cores})
    second = submit(bob, "second", "true", resources={"cpus": cores})
    job = until(lambda: seen(bob, second), lambda job: job.reason == "Resources")
    assert f"cores are held by uid {ann.uid} ({first})" in job.detail
    assert f"uid {ann.uid} ({first})" in bob.ok("nodes")
    ann.ok("stop", first, "--now")
    wait_for(bob, second, "SUCCEEDED")


def test_what_a_user_held_is_free_when_everything_of_the_job_was_killed(apart: tuple[User, ...]) -> None:
    _, ann, bob = apart
    cores = os.cpu_count() or 1
    busy(ann, resources={"cpus": cores})
    second = submit(bob, "second", "true", resources={"cpus": cores})
    until(lambda: seen(bob, second), lambda job: job.reason == "Resources")
    for one in process.processes_with({"HOME": str(ann.home)}):
        process.kill(one.pid)
    wait_for(bob, second, "SUCCEEDED")


def test_run_warns_when_it_shares_the_cores_of_another_user(apart: tuple[User, ...]) -> None:
    _, ann, bob = apart
    first = busy(ann, resources={"cpus": os.cpu_count() or 1})
    done = bob.trainworks("run", "--", "true")
    assert done.returncode == 0
    assert f"held by uid {ann.uid} ({first})" in done.stderr


def test_a_run_outside_the_queue_is_in_the_ledger(apart: tuple[User, ...]) -> None:
    _, ann, bob = apart
    with ann.start("run", "--name", "outside", "--", "sleep", "600") as running:
        text = until(lambda: bob.ok("nodes"), lambda text: "outside-1" in text)
        running.send_signal(signal.SIGTERM)
    assert f"uid {ann.uid} (outside-1)" in text
    assert "outside-1" not in bob.ok("nodes")


def test_a_run_inside_a_job_uses_what_the_job_holds(apart: tuple[User, ...]) -> None:
    _, ann, _ = apart
    inner = shlex.join([*ann.program, "run", "--", "true"])
    run_id = submit(ann, "outer", f"{inner} 2> said", resources={"cpus": os.cpu_count() or 1})
    wait_for(ann, run_id, "SUCCEEDED")
    assert "shares" not in (ann.home / "said").read_text()


def test_a_user_without_account_and_home_gets_one_error(apart: tuple[User, ...]) -> None:
    _, ann, _ = apart
    done = ann.run(["env", "-u", "HOME", *ann.program, "ps"])
    assert (done.returncode, "Traceback" in done.stderr, "set HOME" in done.stderr) == (3, False, True)


def test_users_of_a_team_share_its_quota_and_none_can_raise_it(apart: tuple[User, ...], common: Path) -> None:
    _, ann, bob = apart
    policy = common / "queue.yaml"
    policy.write_text(json.dumps({"teams": {"vision": {"members": [ann.uid, bob.uid], "max_cores": 1}}}))
    policy.chmod(0o644)
    env = {"TRAINWORKS_QUEUE_POLICY": str(policy)}
    ann, bob = (replace(user, env={**user.env, **env}) for user in (ann, bob))
    first = busy(ann, resources={"cpus": 1})
    second = submit(bob, "second", "true", resources={"cpus": 0.5})
    job = until(lambda: seen(bob, second), lambda job: job.reason == "Quota")
    assert job.detail == f"needs 0.5 cores; team vision holds 1 of its 1 core, by uid {ann.uid} ({first})"
    assert f"by uid {ann.uid} ({first})" in bob.ok("describe", second)
    refused = bob.trainworks("run", str(bob.home / "second.yaml"))
    assert (refused.returncode, "team vision holds 1 of its 1 core" in refused.stderr) == (3, True), refused.stderr
    ann.ok("stop", first, "--now")
    wait_for(bob, second, "SUCCEEDED")


def test_a_user_who_has_used_less_goes_before_an_older_job_of_another_one(
    apart: tuple[User, ...], common: Path
) -> None:
    _, ann, bob = apart
    policy = common / "queue.yaml"
    policy.write_text("fair_share: {half_life: 1h}\n")
    policy.chmod(0o644)
    env = {"TRAINWORKS_QUEUE_POLICY": str(policy)}
    ann, bob = (replace(user, env={**user.env, **env}) for user in (ann, bob))
    whole = {"cpus": os.cpu_count() or 1}
    first = busy(ann, resources=whole)
    older = submit(ann, "older", "true", resources=whole)
    younger = submit(bob, "younger", "sleep 600", resources=whole)
    behind = (
        f"behind uid {bob.uid}'s job {younger} (priority 50): user uid {ann.uid} has 50% of the shares and made 100%"
    )
    until(lambda: ann.ok("describe", older), lambda text: behind in text)
    ann.ok("stop", first, "--now")
    wait_for(bob, younger, "RUNNING")
    assert seen(ann, older).state == "QUEUED"


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_log_that_a_killed_process_left_closed_to_others_is_written_after_its_owners_next_command(
    common: Path, suffix: str
) -> None:
    folder = common / "store"
    folder.mkdir()
    folder.chmod(0o777)
    url = f"sqlite:///{folder / 'jobs.db'}"
    open_store(url)
    (folder / "jobs.db").chmod(0o666)
    _, ann, bob = users(common, 2, {"TRAINWORKS_STORE": url})
    closed = folder / f"jobs.db{suffix}"
    closed.touch(mode=0o644)
    os.chown(closed, ann.uid, ann.uid)
    command = [*bob.program[:-1], WRITER, url]
    with bob.popen_program(command) as writing:
        assert writing.stdout is not None and writing.stdin is not None
        assert writing.stdout.readline() == "refused\n"
        ann.ok("ps")
        printed, complaints = writing.communicate("\n", timeout=120)
    assert "'node1': ('broken', " in printed, complaints
