"""The commands about jobs, on a queue of real processes."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fakes import spec
from trainworks.api.run_handle import Run
from trainworks.api.run_request import jobs_of, read_request
from trainworks.backends.store_place import store_url
from trainworks.cli.app import app
from trainworks.errors import InfeasibleError, RunFileError, TrainworksError, UnknownRunError, UsageError
from trainworks.host.users import this_host
from trainworks.jobs.job_row import Attempt, Placement
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.units import HOUR_S

DID_NOT_SUCCEED = "a job it depends on did not succeed"


@pytest.fixture(scope="module", autouse=True)
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A queue of these tests' own, on a machine that counts as two nodes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(tmp_path_factory.mktemp("queue")))
        patched.setenv("TRAINWORKS_NODES", "2")
        yield


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where jobs are submitted; none is left in the queue afterwards, and no node drained."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    store = open_store(store_url())
    for job in store.search():
        if not job.state.is_final:
            with suppress(UsageError):  # it has ended meanwhile
                run("stop", job.run_dir, "--now")
    for node in store.drains():
        run("drain", node, "--undo")


def run(*arguments: str) -> str:
    """What a command prints on stdout."""
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, TrainworksError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def submit(command: str, **keys: object) -> str:
    """Submit a command; returns its run."""
    number = len(list(Path.cwd().glob("*.yaml")))
    resources = {"resources": {"cpus": 0.5}}
    path = Path(f"job{number}.yaml")
    path.write_text(json.dumps({"name": f"job{number}", "run": command} | resources | keys))
    return run("submit", str(path)).strip()


def seen(run_id: str) -> dict[str, object]:
    """The job as `ps --json` shows it."""
    return next(job for job in json.loads(run("ps", "--all", "--json")) if job["run_id"] == run_id)


def wait_for(run_id: str, *states: JobState) -> dict[str, object]:
    """Until the job is in one of these states."""
    deadline = time.monotonic() + 240
    while seen(run_id)["state"] not in states:
        assert time.monotonic() < deadline, seen(run_id)
        time.sleep(0.05)
    return seen(run_id)


def wait_for_reason(run_id: str, reason: str) -> None:
    """Until the dispatcher has said why the job waits."""
    deadline = time.monotonic() + 240
    while seen(run_id)["reason"] != reason:
        assert time.monotonic() < deadline, seen(run_id)
        time.sleep(0.05)


def test_a_job_goes_from_the_queue_to_its_end() -> None:
    run_id = submit("echo hello")
    assert wait_for(run_id, JobState.SUCCEEDED)["attempt"] == 1
    assert "hello" in run("logs", run_id)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_every_command_takes_the_name_of_a_run_for_its_last_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Also in another folder than that of the runs, by the job store."""
    first = submit("true", job={"hold": True})
    name, last = first.removesuffix("-1"), run("submit", f"{first.removesuffix('-1')}.yaml", "-y").strip()
    assert (first, last) == (f"{name}-1", f"{name}-2")
    if elsewhere:
        (folder / "elsewhere").mkdir()
        monkeypatch.chdir(folder / "elsewhere")
    assert json.loads(run("describe", name, "--json"))["run_id"] == last
    assert run("edit", name, "--set", "job.priority=60").startswith(f"{last}: ")
    assert run("hold", name) == f"{last} held\n"
    assert run("stop", name) == f"{last} STOPPED\n"
    assert run("retry", name) == f"{last} queued again\n"
    assert run("release", name) == f"{last} released\n"
    assert wait_for(last, JobState.SUCCEEDED)
    run("logs", name)
    assert run("stop", first) == f"{first} STOPPED\n"


def test_a_job_has_the_environment_and_the_folder_of_whoever_submits(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("COLOUR", "it's $(blue)\nand green")
    run_id = submit('printf "%s" "$COLOUR" > colour; pwd > where')
    wait_for(run_id, JobState.SUCCEEDED)
    assert (folder / "colour").read_text() == "it's $(blue)\nand green"
    assert (folder / "where").read_text().strip() == str(folder)


def test_a_job_has_the_variables_of_the_command_line(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("FROM_SHELL", "s3cret")
    Path("job.yaml").write_text("name: a\nrun: 'echo $SHADE-$SIZE-$FROM_SHELL'\nenvs: {SHADE: dark, SIZE: 1}\n")
    run_id = run("submit", "job.yaml", "-y", "--env", "SHADE=light $(id)", "--env", "FROM_SHELL").strip()
    wait_for(run_id, JobState.SUCCEEDED)
    assert "light $(id)-1-s3cret" in run("logs", run_id)
    assert "s3cret" not in (folder / "runs" / run_id / "resolved.json").read_text()


def test_the_variables_that_are_kept_for_a_job_are_its_owner_s_alone(folder: Path) -> None:
    run_id = submit("true", job={"hold": True})
    assert (folder / "runs" / run_id / ".environment.json").stat().st_mode & 0o777 == 0o600


def test_the_variables_are_gone_when_the_job_has_ended(folder: Path) -> None:
    run_id = submit("true")
    wait_for(run_id, JobState.SUCCEEDED)
    assert not (folder / "runs" / run_id / ".environment.json").exists()


def test_a_job_is_found_by_its_number_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = submit("echo far away")
    number = wait_for(run_id, JobState.SUCCEEDED)["id"]
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert "far away" in run("logs", str(number))


def test_a_job_whose_folder_is_gone_fails_and_the_next_one_runs(folder: Path) -> None:
    lost = submit("true", job={"hold": True})
    shutil.rmtree(folder / "runs" / lost)
    run("release", lost)
    assert wait_for(lost, JobState.FAILED)["cause"] == "launch_failed"
    wait_for(submit("true"), JobState.SUCCEEDED)


def test_a_failed_job_is_described_with_its_rank_and_the_end_of_its_log() -> None:
    run_id = submit("echo working; echo it broke >&2; exit 4")
    wait_for(run_id, JobState.FAILED)
    told = run("describe", run_id)
    assert "user_error: the program failed" in told
    assert "first failure: rank 0" in told
    assert "    it broke" in told


def test_every_life_of_a_job_is_described_also_one_that_began_in_place() -> None:
    run_id = submit("test $TRAINWORKS_ATTEMPT = 2 || exit 4", recover={"max_restarts": 1})
    wait_for(run_id, JobState.SUCCEEDED)
    told = run("describe", run_id)
    assert re.search(r"^2 +1 +\S+ .*ranks started again in place +user_error +rank 0 on node 0", told, re.MULTILINE)
    first, second = json.loads(run("describe", run_id, "--json"))["lives"]
    assert (first["begin"], first["cause"], second["attempt"]) == ("submitted", None, 1)
    assert (second["cause"], second["began_at"] >= first["began_at"]) == ("user_error", True)


def test_a_held_job_waits_until_it_is_released() -> None:
    run_id = submit("true", job={"hold": True})
    wait_for_reason(run_id, "Held")
    assert seen(run_id)["state"] == "QUEUED"
    run("release", run_id)
    wait_for(run_id, JobState.SUCCEEDED)


def test_an_edited_job_starts_without_another_command(folder: Path) -> None:
    held = submit("true", job={"hold": True})
    waiting = submit("true", job={"depends_on": [held]})
    wait_for_reason(waiting, "Dependency")
    told = run("edit", waiting, "--set", "job.depends_on=[]", "--set", "job.priority=90")
    assert told == f'{waiting}: job.depends_on: ["{held}"] -> [], job.priority: 50 -> 90\n'
    assert wait_for(waiting, JobState.SUCCEEDED)["priority"] == 90
    with pytest.raises(UsageError, match=r"cannot edit job .* it is SUCCEEDED"):
        run("edit", waiting, "--set", "job.priority=10")
    for wrong, hint in [("nodes=2", "stop the job and submit it again"), ("job.hold=true", "trainworks hold")]:
        with pytest.raises(UsageError, match=f"`{wrong.partition('=')[0]}` cannot change") as refused:
            run("edit", held, "--set", wrong)
        assert hint in str(refused.value.hint)
    with pytest.raises(RunFileError, match="`priority` must be an integer, got `high`") as invalid:
        run("edit", held, "--set", "job.priority=high")
    assert invalid.value.problems[0].place == "--set job.priority"


def test_every_waiting_job_of_an_array_is_edited() -> None:
    Path("job.yaml").write_text("name: a\nrun: 'true'\njob: {hold: true}\n")
    ids = run("submit", "job.yaml", "--array", "0-2", "-y").split()
    [array] = re.findall(r"array-[a-z]{6}", run("ps", "--name", "a"))
    run("stop", ids[0])
    assert run("edit", array, "--set", "job.priority=7") == "".join(
        f"{run_id}: job.priority: 50 -> 7\n" for run_id in ids[1:]
    )
    assert [seen(run_id)["priority"] for run_id in ids] == [50, 7, 7]


def test_who_submits_an_array_is_warned_once_that_others_can_write_the_store() -> None:
    Path("job.yaml").write_text("name: a\nrun: 'true'\njob: {hold: true}\n")
    open_store(store_url())
    queue = Path(store_url().removeprefix("sqlite:///")).parent
    mode = queue.stat().st_mode
    queue.chmod(0o777)
    try:
        result = CliRunner().invoke(app, ["submit", "job.yaml", "--array", "0-2", "-y"])
    finally:
        queue.chmod(mode)
    assert len(result.stdout.split()) == 3, result.output
    assert result.stderr.count("other users can write this job store") == 1


def test_a_job_that_waits_is_stopped_at_once_and_can_be_retried() -> None:
    run_id = submit("true", job={"hold": True})
    assert run("stop", run_id).strip() == f"{run_id} STOPPED"
    run("retry", run_id)
    run("release", run_id)
    wait_for(run_id, JobState.SUCCEEDED)


def test_a_running_job_is_stopped_with_its_grace(folder: Path) -> None:
    run_id = submit("trap 'echo saved > saved; exit 0' TERM; echo up > up; while true; do sleep 0.1; done")
    wait_for(run_id, JobState.RUNNING)
    while not (folder / "up").exists():
        time.sleep(0.02)
    run("scancel", run_id)
    assert wait_for(run_id, JobState.STOPPED)["exit_code"] == 0
    assert (folder / "saved").exists()


def test_a_job_that_is_over_its_time_limit_fails_with_that_cause() -> None:
    run_id = submit("sleep 60", job={"time_limit": "2s", "grace": "1s"})
    assert wait_for(run_id, JobState.FAILED)["cause"] == "time_limit"


def test_a_job_waits_for_the_one_that_it_depends_on(folder: Path) -> None:
    first = submit("sleep 0.5; echo first >> book")
    second = submit("echo second >> book", job={"depends_on": [first]})
    wait_for(second, JobState.SUCCEEDED)
    assert (folder / "book").read_text().split() == ["first", "second"]


def test_a_job_that_can_never_fit_is_refused_with_what_would(folder: Path) -> None:
    with pytest.raises(InfeasibleError, match="3 nodes"):
        submit("true", num_nodes=3)
    assert not list(folder.glob("runs/*"))


def test_a_command_starts_on_as_many_nodes_as_are_free(folder: Path) -> None:
    nodes = json.loads(run("nodes", "--json"))
    run("drain", nodes[0]["name"], "--reason", "for this test")
    few = submit("echo $SKYPILOT_NUM_NODES >> sizes", num_nodes=2, job={"min_nodes": 1})
    wait_for(few, JobState.SUCCEEDED)
    run("drain", nodes[0]["name"], "--undo")
    many = submit("echo $SKYPILOT_NUM_NODES >> sizes", num_nodes=2, job={"min_nodes": 1})
    wait_for(many, JobState.SUCCEEDED)
    assert (folder / "sizes").read_text().split() == ["1", "2", "2"]


def test_a_job_avoids_the_node_that_failed_under_others(folder: Path) -> None:
    bad, fit = (node["name"] for node in json.loads(run("nodes", "--json")))
    store = open_store(store_url())
    for hours in (1, 2):
        began, run_dir = time.time() - hours * HOUR_S, f"{folder}/lost-{hours}"
        about: dict[str, Any] = {"engine": "local", "columns": {"host": this_host()}}
        ended = End(JobState.FAILED, "node_lost", at=began)
        store.restore(spec(), run_dir=run_dir, owner="ada", submitted_at=began, end=ended, **about)
        job = store.find(run_dir)
        assert job is not None
        held = (Placement(bad, 1.0),)
        store.write_attempts(job.id, [Attempt(job_id=job.id, number=1, started_at=began, placement=held, end=ended)])
    (row,) = (line for line in run("nodes").splitlines() if line.startswith(f"{bad} "))
    assert "2, score 3.0" in row
    run_ids = [submit("sleep 60", job=job) for job in ({}, {"avoid_failing_nodes": True})]
    placed = [wait_for(run_id, JobState.RUNNING)["placement"] for run_id in run_ids]
    assert [share["node"] for (share,) in placed] == [bad, fit]


def test_a_drained_node_says_why_and_its_jobs_too() -> None:
    nodes = json.loads(run("nodes", "--json"))
    for node in nodes:
        run("drain", node["name"], "--reason", "fan broken")
    run_id = submit("true")
    wait_for_reason(run_id, "NodesUnavailable")
    assert "fan broken" in run("describe", run_id)
    run("drain", nodes[0]["name"], "--undo")
    assert wait_for(run_id, JobState.SUCCEEDED)["placement"] == []


def test_what_does_not_exist_is_named() -> None:
    with pytest.raises(UnknownRunError, match="no job `nope-1`"):
        run("describe", "nope-1")
    with pytest.raises(UsageError, match="no node `nope`"):
        run("drain", "nope", "--reason", "x")
    node = json.loads(run("nodes", "--json"))[0]["name"]
    with pytest.raises(UsageError, match=f"`{node}` has no accelerator `0`"):
        run("drain", f"{node}:0", "--reason", "x")
    with pytest.raises(UsageError, match="slurm takes no accelerator out of service alone") as refused:
        run("drain", "gpu1:0", "--reason", "x", "--cluster", "slurm")
    hint = "drain the node: trainworks drain gpu1; once it is drained, an administrator lowers its `Gres` in slurm.conf"
    assert (refused.value.hint or "").startswith(hint)
    with pytest.raises(UsageError, match="no state `NOPE`"):
        run("ps", "--state", "NOPE")


def test_a_job_that_runs_is_not_retried() -> None:
    run_id = submit("true")
    wait_for(run_id, JobState.SUCCEEDED)
    with pytest.raises(UsageError, match="is SUCCEEDED"):
        run("retry", run_id)


def test_a_list_for_people_fits_what_it_says() -> None:
    run_id = submit("true", job={"hold": True})
    wait_for_reason(run_id, "Held")
    heading, row = run("squeue").splitlines()
    assert heading.split() == ["job", "run", "engine", "state", "why", "starts", "nodes", "prio", "time"]
    assert row.split()[1:5] == [run_id, "local", "QUEUED", "Held:"]


def test_the_logs_of_one_start_are_that_starts_alone() -> None:
    command = "echo start $TRAINWORKS_ATTEMPT of $RANK; test $RANK$TRAINWORKS_ATTEMPT = 11 && exit 3; sleep 0.5"
    run_id = submit(command, cluster={"processes_per_node": 2}, recover={"max_restarts": 1})
    wait_for(run_id, JobState.SUCCEEDED)
    assert run("logs", run_id, "--attempt", "2") == "[rank-0] start 2 of 0\n[rank-1] start 2 of 1\n"
    assert run("logs", run_id, "--attempt", "1", "--rank", "1") == "start 1 of 1\n"
    with pytest.raises(UsageError, match="no start number 3 of any rank"):
        run("logs", run_id, "--attempt", "3")


def test_an_array_is_a_job_for_each_index() -> None:
    Path("job.yaml").write_text("name: a\nrun: echo $TRAINWORKS_ARRAY_INDEX of $SLURM_ARRAY_TASK_COUNT\n")
    ids = run("submit", "job.yaml", "--array", "3-5", "-y").split()
    assert ids == ["a-1", "a-2", "a-3"]
    for index, run_id in enumerate(ids, 3):
        wait_for(run_id, JobState.SUCCEEDED)
        assert run("logs", run_id) == f"{index} of 3\n"
    for wrong in ("5-3", "0", "1,,2", "0-9%0", "0-9%", "0-20000", "0-9:0"):
        with pytest.raises(UsageError, match="not an array of 1 to 10,000 jobs"):
            run("submit", "job.yaml", "--array", wrong)


def test_an_array_is_one_line_and_one_name() -> None:
    Path("job.yaml").write_text(
        "name: sweep\nrun: test -e mended -o $TRAINWORKS_ARRAY_INDEX != 1\njob: {team: vision}\n"
    )
    ids = run("submit", "job.yaml", "--array", "0-2", "-y").split()
    states = [JobState.SUCCEEDED, JobState.FAILED, JobState.SUCCEEDED]
    for run_id, state in zip(ids, states, strict=True):
        wait_for(run_id, state)
    listed = run("ps", "--all", "--name", "sweep")
    [array] = re.findall(r"array-[a-z]{6}", listed)
    assert "sweep, 3 jobs" in listed and "1 FAILED, 2 SUCCEEDED" in listed and "vision" in listed
    assert [line.split()[1] for line in run("ps", "--all", "--array", array).splitlines()[1:]] == ids[::-1]
    Path("mended").touch()
    assert run("retry", array) == f"{ids[1]} queued again\n"
    assert run("wait", array) == "".join(f"{run_id} SUCCEEDED\n" for run_id in ids)
    with pytest.raises(UnknownRunError, match="no job of the array `array-bbbbbb`"):
        run("stop", "array-bbbbbb")


def test_usage_is_summed_by_month_user_or_team() -> None:
    Path("job.yaml").write_text("name: billed\nrun: 'true'\njob: {team: billed}\n")
    wait_for(run("submit", "job.yaml", "-y").strip(), JobState.SUCCEEDED)
    by_team = {row["team"]: row for row in json.loads(run("usage", "--by", "team", "--json"))["held"]}
    assert by_team["billed"]["jobs"] == 1 and by_team["billed"]["core_hours"] > 0
    assert by_team["billed"]["month"] == by_team["billed"]["owner"] == ""
    whole = json.loads(run("usage", "--json"))["held"]
    assert {row["team"] for row in whole} == set(by_team) and all(row["month"] and row["owner"] for row in whole)


def test_an_array_runs_as_many_jobs_at_once_as_it_says() -> None:
    keys = "name: a\nresources: {cpus: 0.1}\n"  # all four of them have room
    Path("job.yaml").write_text(f"{keys}run: 'date +%s%N; sleep 1; date +%s%N; exit $SLURM_ARRAY_TASK_ID'\n")
    ids = run("submit", "job.yaml", "--array", "0,2-6:2%2", "-y").split()
    assert len(ids) == 4
    for run_id in ids:
        wait_for(run_id, JobState.FAILED, JobState.SUCCEEDED)
    times = [tuple(map(int, run("logs", run_id).split())) for run_id in ids]
    # Whichever of two ends first makes room for the third.
    assert max(sum(begin <= began < end for begin, end in times) for began, _ in times) <= 2


def test_a_batch_script_with_an_array_is_submitted_as_its_jobs() -> None:
    Path("sweep.sh").write_text("#!/bin/bash\n#SBATCH --array=3,7%1\necho $SLURM_ARRAY_TASK_ID\n")
    with pytest.raises(UsageError, match="`--array=3,7%1` in the script makes several jobs"):
        run("run", "sweep.sh")
    members = jobs_of(read_request("sweep.sh"))
    assert [member.run_file.envs["SLURM_ARRAY_TASK_ID"] for member in members] == ["3", "7"]
    assert [member.run_file.envs["SLURM_ARRAY_TASK_MAX"] for member in members] == ["7", "7"]


def test_a_pipeline_stops_at_the_task_that_fails() -> None:
    fails = "until test -e submitted; do sleep 0.1; done; exit 3"
    tasks = ["name: chain", "name: first\nrun: 'true'", f"name: second\nrun: {fails}", "name: third\nrun: touch ran"]
    Path("chain.yaml").write_text("\n---\n".join(tasks))
    with pytest.raises(UsageError, match="a pipeline makes several jobs"):
        run("run", "chain.yaml")
    with pytest.raises(UsageError, match="have nodes and names of their own"):
        run("submit", "chain.yaml", "--nodes", "2")
    with pytest.raises(UsageError, match="a pipeline cannot be an array"):
        run("submit", "chain.yaml", "--array", "2")
    with pytest.raises(UsageError, match="a pipeline is several jobs, and lsf is one"):
        run("submit", "chain.yaml", "--dry-run", "--as", "lsf")
    first, second, third = run("submit", "chain.yaml", "-y").split()
    Path("submitted").touch()
    wait_for(first, JobState.SUCCEEDED)
    wait_for(second, JobState.FAILED)
    assert wait_for(third, JobState.FAILED)["message"] == f"{DID_NOT_SUCCEED}: {seen(second)['id']} is FAILED"
    assert not Path("ran").exists()


def test_a_pipeline_whose_task_has_failed_before_the_next_is_submitted_has_the_same_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def until_it_has_failed(run_dir: RunDir, _: object) -> None:
        wait_for(run_dir.run_id, JobState.FAILED)
        assert Run(run_dir).wait() is JobState.FAILED

    monkeypatch.setattr("trainworks.api.runs.watch_queue", until_it_has_failed)
    tasks = ["name: chain", "name: first\nrun: exit 3", "name: second\nrun: touch ran", "name: third\nrun: touch ran"]
    Path("chain.yaml").write_text("\n---\n".join(tasks))
    first, second, third = (seen(run_id) for run_id in run("submit", "chain.yaml", "-y").split())
    records = [(job["state"], job["cause"], job["message"]) for job in (second, third)]
    messages = [f"{DID_NOT_SUCCEED}: {job['id']} is FAILED" for job in (first, second)]
    assert records == [("FAILED", "dependency", message) for message in messages]
    assert not Path("ran").exists()
    with pytest.raises(UsageError, match=f"names job `{first['run_id']}`, which is FAILED"):
        submit("true", job={"depends_on": [first["run_id"]]})


def test_whoever_says_no_submits_nothing() -> None:
    Path("job.yaml").write_text("name: a\nrun: 'true'\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("trainworks.cli.launch.typer.confirm", lambda *text, **options: False)
        patched.setattr("trainworks.cli.launch._is_at_a_terminal", lambda console: True)
        assert run("submit", "job.yaml") == ""
    assert not Path("runs").exists()


def test_what_a_job_has_held_is_said_with_its_price() -> None:
    run_id = submit("sleep 0.2", cluster={"usd_per_accelerator_hour": 2.0})
    wait_for(run_id, JobState.SUCCEEDED)
    assert "core hours" in run("describe", run_id)


def test_ps_shows_what_a_job_with_a_price_has_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(folder / "data"))
    store, node = open_store(store_url()), NodeResources(cores=1.0, accelerators=8)
    spec = JobSpec(run_id="lm-1", name="lm", min_nodes=1, max_nodes=1, node=node)
    for number, price in enumerate([{"usd_per_accelerator_hour": 2.0}, {}]):
        ended = f"/runs/lm-{number}"
        job = store.add(spec, run_dir=ended, owner="ada", engine="slurm", now=0.0, cluster=json.dumps(price))
        store.start(job, (Placement("node1", 1.0),), now=0.0)
        store.move(job.id, JobState.FAILED, now=1800.0)
    head, *rows = run("ps", "--all").splitlines()
    assert ("cost so far" in head, [("8.00 USD" in row) for row in rows]) == (True, [False, True])
    for limit, says in ((1, True), (2, False)):
        result = CliRunner().invoke(app, ["ps", "--all", "--limit", str(limit)])
        assert len(result.stdout.splitlines()) == limit + 1
        assert ("only the newest" in result.stderr and "ps --limit 10" in result.stderr) == says


def test_before_a_job_is_submitted_its_cost_is_bounded_and_that_of_an_array_is_the_sum() -> None:
    keys = {
        "name": "lm",
        "run": "python train.py",
        "resources": {"accelerators": "H100:8"},
        "job": {"time_limit": "2h"},
        "cluster": {"engine": "kubernetes", "kubernetes": {"image": "x"}, "usd_per_accelerator_hour": 2.5},
    }
    Path("lm.yaml").write_text(json.dumps(keys))

    def said(*options: str) -> list[str]:
        result = CliRunner().invoke(app, ["submit", "lm.yaml", "--dry-run", *options])
        assert result.exit_code == 0, result.output
        return [line for line in result.stderr.splitlines() if line.startswith("expected cost")]

    of = "8 accelerators for 2h 0m at 2.50 USD an hour"
    assert said() == [f"expected cost: at most 40.0 USD if it starts once: {of}"]
    assert said("--array", "5") == [f"expected cost: at most 200 USD if each starts once: 5 jobs of {of}"]
    Path("lm.yaml").write_text(json.dumps(keys | {"job": {}}))
    assert said() == []


def test_the_line_of_an_array_has_the_cost_of_all_its_jobs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(folder / "data"))
    store, node = open_store(store_url()), NodeResources(accelerators=8)
    for number, array in enumerate(["array-kxbwtq", "array-kxbwtq", "array-zzbwtq", None]):
        spec = JobSpec(run_id=f"lm-{number}", name="lm", min_nodes=1, max_nodes=1, node=node, array=array)
        price = json.dumps({"usd_per_accelerator_hour": 2.0})
        job = store.add(spec, run_dir=f"/runs/{number}", owner="ada", engine="slurm", now=0.0, cluster=price)
        store.start(job, (Placement("node1", 1.0),), now=0.0)
        store.move(job.id, JobState.FAILED, now=1800.0)
    _, alone, other, both = run("ps", "--all").splitlines()
    assert [("8.00 USD" in alone), ("8.00 USD" in other), ("16.0 USD" in both)] == [True] * 3
    of_each = [line for line in run("ps", "--all", "--array", "array-kxbwtq").splitlines() if "8.00 USD" in line]
    assert len(of_each) == 2
