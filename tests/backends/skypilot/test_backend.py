"""What the backend asks of `sky`, and what it makes of its answers, as SkyPilot 0.14.1 gave them."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import FakeClock, spec
from trainworks.backends.skypilot.backend import SkyPilotBackend, job_name
from trainworks.backends.skypilot.client import SkyPilotClient, SkyPilotRefusedError
from trainworks.config.engines import SkyPilot
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host.process import Output
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.record.run_dir import RunDir

NO_JOBS = Output(1, "", "sky.exceptions.ClusterNotUpError: No in-progress managed jobs.\n")
STARTS_ITS_SERVER = (
    "\x1b[2mFailed to connect to SkyPilot API server at http://127.0.0.1:46580. Starting a local server.\x1b[0m\n"
    "\x1b[0m\x1b[32m✓ SkyPilot API server started. \x1b[0m\x1b[0m\n"
)
LAUNCHED = """YAML to run: t.yaml
\x1b[33mLaunching managed job 'demo-1'...\x1b[0m

📋 Useful Commands
Managed Job ID: 17
├── To cancel the job:		sky jobs cancel 17
"""
AWAY = (
    "sky.exceptions.ApiServerConnectionError: Could not connect to SkyPilot API server at http://127.0.0.1:9. "
    "Please ensure that the server is running. Try: curl http://127.0.0.1:9/api/health\n"
)
LOGS = [
    "\x1b[36m(head, rank=0, pid=412)\x1b[0m step 1\n",
    "\x1b[36m(worker1, rank=1, pid=408, ip=10.0.0.2)\x1b[0m step 1 (of 2)\n",
    "\x1b[36m(worker1, rank=1, pid=408, ip=10.0.0.2)\x1b[0m \n",
    "├── Job finished (status: SUCCEEDED).\n",
]


class FakeSky:
    """`sky`, as `host.process.run` and `lines` would run it; an answer is as FakeSlurm's, by the verb of `sky jobs`."""

    def __init__(self, **answers: Any) -> None:
        self._answers = {"queue": "[]", "launch": LAUNCHED, "logs": LOGS} | answers
        self.calls: list[list[str]] = []
        self.tasks: list[dict[str, Any]] = []
        self.modes: list[int] = []
        self.env: dict[str, str] = {}

    def __call__(self, command: Sequence[str], *, timeout_s: float, env: dict[str, str]) -> Output:
        """One call."""
        assert list(command[:2]) == ["sky", "jobs"] and timeout_s >= 60
        self.calls.append(list(command[2:]))
        self.env = env
        if command[2] == "launch":
            task = Path(command[-1])
            self.modes.append(stat.S_IMODE(task.stat().st_mode))
            self.tasks.append(yaml.safe_load(task.read_text(encoding="utf-8")))
        answer = self._answers.get(command[2], "")
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Output) else Output(0, answer, "")

    def lines(self, command: Sequence[str]) -> Iterator[str]:
        """What a call prints."""
        self.calls.append(list(command))
        return iter(self._answers["logs"])

    def asked(self, verb: str) -> list[list[str]]:
        """The calls of one verb."""
        return [call for call in self.calls if call[0] == verb]


def backend_of(
    fake: FakeSky, *, clock: FakeClock | None = None, env: dict[str, str] | None = None, **program: Any
) -> SkyPilotBackend:
    client = SkyPilotClient(run=fake, lines=fake.lines, env=env or {"PATH": "/bin"})
    runs = Program(**({"script": "python train.py", "starts": "per_node"} | program))
    return SkyPilotBackend(SkyPilot(), program=runs, client=client, clock=clock)


def submitted(one: SkyPilotBackend, run_dir: RunDir) -> str:
    return one.submit(one.render(spec(), run_dir), run_dir)


def job(number: int, name: str, status: str = "RUNNING") -> dict[str, Any]:
    return {"job_id": number, "job_name": name, "status": status}


def queue(*jobs: dict[str, Any]) -> str:
    return json.dumps(list(jobs), indent=2)


def test_a_task_is_handed_over_in_a_file_of_its_owner_that_is_gone_afterwards(run_dir: RunDir) -> None:
    fake = FakeSky()
    one = backend_of(fake)
    assert submitted(one, run_dir) == "17"
    [launch] = fake.asked("launch")
    assert launch[1:3] == ["--yes", "--detach-run"] and not Path(launch[-1]).exists()
    assert fake.modes == [0o600] and fake.tasks == [yaml.safe_load(one.render(spec(), run_dir).text)]


def test_the_code_that_was_kept_is_uploaded_instead_of_the_working_directory(run_dir: RunDir) -> None:
    one = backend_of(FakeSky(), working_folder="/home/ada/code")
    kept = spec(working_folder=str(run_dir.code_folder), keep_code=True)
    workdirs = [yaml.safe_load(one.render(job, run_dir).text)["workdir"] for job in (spec(), kept)]
    assert workdirs == ["/home/ada/code", str(run_dir.code_folder)]
    cloned = SkyPilot(task={"workdir": {"url": "https://example.com/code.git"}})
    with pytest.raises(UsageError, match="SkyPilot clones `workdir`"):
        SkyPilotBackend(cloned, program=Program(script="true")).check(kept)


def test_a_secret_is_named_and_never_written(run_dir: RunDir) -> None:
    fake = FakeSky()
    one = backend_of(fake, env={"HF_TOKEN": "s3cret"}, envs={"HF_TOKEN": None, "A": "1"})
    script = one.render(spec(), run_dir)
    one.submit(script, run_dir)
    assert fake.asked("launch")[0][3:5] == ["--secret", "HF_TOKEN"]
    assert fake.env["HF_TOKEN"] == "s3cret"
    assert "s3cret" not in script.text + json.dumps(fake.tasks) + json.dumps(fake.calls)
    assert (fake.tasks[0]["secrets"], fake.tasks[0]["envs"]) == ({"HF_TOKEN": None}, {"A": "1"})


def test_a_secret_that_is_not_set_is_missed_before_anything_is_submitted() -> None:
    fake = FakeSky()
    with pytest.raises(UsageError, match=r"`envs\.HF_TOKEN` has no value"):
        backend_of(fake, envs={"HF_TOKEN": None}).check(spec())
    assert fake.calls == []


def test_a_run_that_waits_already_is_not_submitted_again(run_dir: RunDir) -> None:
    mark = job_name(run_dir)
    fake = FakeSky(queue=queue(job(9, "other"), job(8, mark, "PENDING"), job(7, mark, "FAILED")))
    assert submitted(backend_of(fake), run_dir) == "8" and fake.asked("launch") == []


def test_a_run_that_has_ended_is_submitted_anew(run_dir: RunDir) -> None:
    fake = FakeSky(queue=queue(job(7, job_name(run_dir), "FAILED")))
    assert submitted(backend_of(fake), run_dir) == "17"


def test_a_job_whose_answer_was_lost_is_found_by_its_name(run_dir: RunDir, clock: FakeClock) -> None:
    later = ["[]", "[]", Output(1, "", AWAY), queue(job(18, job_name(run_dir), "PENDING"))]
    fake = FakeSky(launch=EnvironmentProblem("`sky` took longer than 1800 s"), queue=later)
    assert submitted(backend_of(fake, clock=clock), run_dir) == "18" and len(fake.asked("launch")) == 1


def test_a_submission_that_nobody_answers_is_an_error(run_dir: RunDir, clock: FakeClock) -> None:
    fake = FakeSky(launch=EnvironmentProblem("`sky` took longer than 1800 s"))
    with pytest.raises(UnreachableError, match="took longer than 1800 s"):
        submitted(backend_of(fake, clock=clock), run_dir)


def test_a_refusal_is_passed_on_in_skypilot_s_words(run_dir: RunDir) -> None:
    words = "sky.exceptions.InvalidSkyPilotConfigError: Invalid task YAML: Instead of 'nmae', did you mean 'name'?\n"
    with pytest.raises(
        SkyPilotRefusedError, match=r"^SkyPilot: Invalid task YAML: Instead of 'nmae', did you mean 'name'\?$"
    ):
        submitted(backend_of(FakeSky(launch=Output(1, "YAML to run: t.yaml\n", words))), run_dir)


def test_a_refused_option_is_passed_on_without_the_usage(run_dir: RunDir) -> None:
    words = "Usage: sky jobs launch [OPTIONS] ENTRYPOINT...\n\nError: TOK is not set in local environment.\n"
    with pytest.raises(SkyPilotRefusedError, match=r"^SkyPilot: TOK is not set in local environment\.$"):
        submitted(backend_of(FakeSky(launch=Output(2, "", words))), run_dir)


def test_a_catalogue_that_cannot_be_fetched_is_no_mistake_of_the_user(run_dir: RunDir) -> None:
    words = "sky.exceptions.CloudError: requests error (ConnectionError): Max retries exceeded\n"
    with pytest.raises(EnvironmentProblem, match="SkyPilot cannot run jobs: requests error") as found:
        submitted(backend_of(FakeSky(launch=Output(1, "", words))), run_dir)
    assert not isinstance(found.value, UnreachableError)


def test_one_question_for_all_jobs() -> None:
    fake = FakeSky(queue=queue(job(2, "b", "RECOVERING"), job(1, "a", "FAILED_NO_RESOURCE"), job(3, "c")))
    seen = backend_of(fake).poll(["1", "2", "9"])
    assert {handle: one.state for handle, one in seen.items()} == {"1": JobState.FAILED, "2": JobState.RECOVERING}
    assert fake.calls == [["queue", "--output", "json", "--verbose", "--all"]]


def test_nobody_is_asked_about_no_job() -> None:
    fake = FakeSky()
    assert (backend_of(fake).poll([]), fake.calls) == ({}, [])


def test_what_is_said_before_the_answer_is_no_part_of_it() -> None:
    seen = backend_of(FakeSky(queue=STARTS_ITS_SERVER + queue(job(1, "a")))).poll(["1"])
    assert seen["1"].state is JobState.RUNNING
    assert backend_of(FakeSky(queue=STARTS_ITS_SERVER + "[]\n")).poll(["1"]) == {}


def test_a_queue_that_was_given_up_knows_of_no_job() -> None:
    assert backend_of(FakeSky(queue=NO_JOBS)).poll(["1"]) == {}


def test_an_api_server_that_does_not_answer_says_nothing_of_any_job() -> None:
    with pytest.raises(UnreachableError, match="SkyPilot does not answer: Could not connect to SkyPilot API server"):
        backend_of(FakeSky(queue=Output(1, "", AWAY))).poll(["1"])


def test_a_call_that_takes_too_long_says_nothing_of_any_job() -> None:
    with pytest.raises(UnreachableError, match="took longer"):
        backend_of(FakeSky(queue=EnvironmentProblem("`sky jobs queue ...` took longer than 180 s"))).poll(["1"])


def test_an_answer_of_another_version_is_shown() -> None:
    with pytest.raises(EnvironmentProblem, match="printed no JSON list: 'No such option: --output'") as found:
        backend_of(FakeSky(queue="No such option: --output\n")).poll(["1"])
    assert found.value.hint == "set `cluster.skypilot.program` to SkyPilot 0.14 or newer"


def test_without_skypilot_the_hint_says_where_to_put_it() -> None:
    with pytest.raises(EnvironmentProblem, match="cannot start `sky`: No such file or directory") as found:
        backend_of(FakeSky(queue=FileNotFoundError(2, "No such file or directory"))).poll(["1"])
    assert "cluster.skypilot.program" in (found.value.hint or "")


def test_a_job_is_cancelled_by_its_number() -> None:
    fake = FakeSky()
    backend_of(fake).stop("17")
    assert fake.calls == [["cancel", "--yes", "17"]]


@pytest.mark.parametrize(
    "answer", ["Job 17 is already in terminal state SUCCEEDED. Skipped.\nNo job to cancel.\n", NO_JOBS]
)
def test_a_job_that_has_ended_is_left_alone(answer: Any) -> None:
    backend_of(FakeSky(cancel=answer)).stop("17", at_once=True)


def test_what_this_python_needs_is_not_put_into_skypilot_s() -> None:
    fake = FakeSky()
    backend_of(fake, env={"PYTHONPATH": "/x", "PYTHONHOME": "/y", "HOME": "/home/ada"}).poll(["1"])
    assert fake.env == {"HOME": "/home/ada"}


def test_what_the_nodes_have_written() -> None:
    fake = FakeSky()
    one = backend_of(fake)
    assert list(one.output("17"))[:2] == [
        "(head, rank=0, pid=412) step 1",
        "(worker1, rank=1, pid=408, ip=10.0.0.2) step 1 (of 2)",
    ]
    assert fake.calls[0][-7:] == ["sky", "jobs", "logs", "--no-follow", "--tail", "0", "17"]
    assert list(one.output("17", node=1, follow=True)) == ["step 1 (of 2)", ""]
    assert "--follow" in fake.calls[1]


def test_the_only_node_has_no_rank_in_its_lines() -> None:
    lines = ["(demo-1, pid=412) step 1\n"]
    assert list(backend_of(FakeSky(logs=lines)).output("17", node=0)) == ["step 1"]


@pytest.mark.parametrize(
    ("changes", "wish"),
    [
        ({"hold": True}, "hold"),
        ({"exclude": ("node7",)}, "exclude"),
        ({"depends_on": ("7",)}, "depends_on"),
        ({"min_nodes": 2}, "min_nodes"),
        ({"time_limit_s": 3600.0}, "time_limit"),
    ],
)
def test_what_skypilot_does_not_do_is_refused(changes: dict[str, Any], wish: str) -> None:
    with pytest.raises(UsageError, match=f"skypilot does not support `{wish}`"):
        backend_of(FakeSky()).check(spec(**changes))


def test_nothing_is_held_or_drained() -> None:
    one = backend_of(FakeSky())
    for wish in (
        lambda: one.hold("1"),
        lambda: one.release("1"),
        lambda: one.drain("a", "b"),
        lambda: one.undrain("a"),
    ):
        with pytest.raises(UsageError, match="skypilot does not support"):
            wish()
    assert one.nodes() == []


def test_the_home_folder_may_be_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    seen: list[str] = []

    def run(command: Sequence[str], **named: Any) -> Output:
        seen.append(command[0])
        return Output(0, "[]", "")

    SkyPilotClient("~/sky/bin/sky", run=run, env={}).queue()
    assert seen == ["/home/ada/sky/bin/sky"]
