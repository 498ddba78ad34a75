"""The log of what the program does: its levels, what it never shows, and who inherits it."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainworks.agent.launch import take_environment
from trainworks.errors import UsageError
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.host.ledger import MachineLedger
from trainworks.jobs.environment import FORWARDED_VARIABLES
from trainworks.jobs.migrations import VERSION
from trainworks.jobs.state import JobState
from trainworks.jobs.store import open_store
from trainworks.masking import masked, masked_command
from trainworks.record.events.job import DecisionEvent
from trainworks.record.events.log import append_event
from trainworks.record.run_dir import RunDir
from trainworks.recover.decisions import Action
from trainworks.verbosity import VARIABLE, be_verbose, configure_log, inherit_log, parse_levels


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends without a configured log."""
    monkeypatch.setenv(VARIABLE, "")
    yield
    os.environ[VARIABLE] = ""
    configure_log()


def program(*arguments: str, log: str = "", folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, VARIABLE: log, "COLUMNS": "80"}
    command = [sys.executable, "-m", "trainworks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=folder)


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {}),
        (" , ", {}),
        ("info", {"trainworks": "info"}),
        ("Debug", {"trainworks": "debug"}),
        ("trainworks=error,info", {"trainworks": "info"}),
        (" trainworks.agent = debug , warning", {"trainworks.agent": "debug", "trainworks": "warning"}),
        ("trainworks.host.process=info,kubernetes.client=debug", None),
    ],
)
def test_a_variable_has_levels_by_logger(text: str, levels: dict[str, str] | None) -> None:
    wanted = {"trainworks.host.process": "info", "kubernetes.client": "debug"} if levels is None else levels
    assert parse_levels(text) == wanted


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("debgu", "no log level `debgu`", "did you mean `debug`?"),
        ("info,", None, None),
        ("trainworks.agent=", "no log level ``", "one of debug, info, warning, error"),
        ("7", "no log level `7`", "one of debug, info, warning, error"),
        ("trainworks.agnet=info", "no module `trainworks.agnet`", "name a folder or a file"),
        ("trainworks.agnet.supervisor=info", "no module `trainworks.agnet.supervisor`", "name a folder or a file"),
    ],
)
def test_a_level_or_a_module_that_does_not_exist_is_an_error_with_a_hint(
    text: str, message: str | None, hint: str | None
) -> None:
    if message is None:
        assert parse_levels(text) == {"trainworks": "info"}
        return
    with pytest.raises(UsageError) as refused:
        parse_levels(text)
    assert (refused.value.message, refused.value.place) == (message, VARIABLE)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(hint or "")


def test_the_program_refuses_a_variable_that_cannot_be_read_and_other_processes_leave_it_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = program("schema", log="lots")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: no log level `lots`\n  --> {VARIABLE}\n")
    monkeypatch.setenv(VARIABLE, "lots")
    inherit_log()
    assert logging.getLogger("trainworks").level == logging.NOTSET


@pytest.mark.parametrize(
    ("before", "count", "after", "level"),
    [
        ("", 0, "", logging.NOTSET),
        ("", 1, "info", logging.INFO),
        ("", 2, "debug", logging.DEBUG),
        ("", 3, "debug", logging.DEBUG),
        ("warning", 1, "warning,info", logging.INFO),
        ("trainworks.agent=debug", 1, "trainworks.agent=debug,info", logging.INFO),
    ],
)
def test_verbose_raises_the_level_of_the_variable_that_later_processes_inherit(
    monkeypatch: pytest.MonkeyPatch, before: str, count: int, after: str, level: int
) -> None:
    monkeypatch.setenv(VARIABLE, before)
    be_verbose(count)
    assert (os.environ[VARIABLE], logging.getLogger("trainworks").level) == (after, level)


def test_a_configuration_replaces_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("debug,kubernetes=info", "trainworks.agent=info"):
        monkeypatch.setenv(VARIABLE, text)
        configure_log()
    names = ("trainworks", "trainworks.agent", "kubernetes")
    found = [(logging.getLogger(name).level, len(logging.getLogger(name).handlers)) for name in names]
    assert found == [(logging.NOTSET, 1), (logging.INFO, 0), (logging.NOTSET, 0)]


def test_a_command_is_logged_with_its_exit_code_and_time_and_its_output_in_detail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for level in ("warning", "info", "debug"):
        monkeypatch.setenv(VARIABLE, level)
        configure_log()
        process.run(["sh", "-c", "echo said; exit 3"])
    first, second, output = capsys.readouterr().err.splitlines()
    for line in (first, second):
        about = rf" INFO trainworks\.host\.process\[{os.getpid()}\]: exit code 3 after \d+\.\d\d s: "
        assert re.search(about + re.escape("sh -c 'echo said; exit 3'") + "$", line)
    assert output.endswith(f" DEBUG trainworks.host.process[{os.getpid()}]: stdout: said")


SECRET = "s3cr3t-v4lue"


@pytest.mark.parametrize(
    "command",
    [
        ["sky", "launch", "--env", f"HF_TOKEN={SECRET}"],
        ["sky", "launch", "--env", f"HF_TOKEN=two {SECRET} words"],
        ["sky", "launch", "--secret", f"OTHER={SECRET}"],
        ["login", "--password", SECRET],
        ["login", f"--api-key={SECRET}"],
        ["curl", "-H", f"Authorization: Bearer {SECRET}", "https://host/"],
        ["psql", f"postgresql://me:{SECRET}@host/jobs"],
        ["sh", "-c", f"export WANDB_API_KEY='{SECRET}'; train"],
        ["sh", "-c", f'export DB_PASSWORD="{SECRET}" && train'],
        ["python", "-m", "worker", json.dumps({"access_key": SECRET})],
    ],
)
def test_no_secret_of_a_command_reaches_the_log(command: list[str]) -> None:
    assert SECRET not in masked_command(command)


@pytest.mark.parametrize(
    "text",
    [
        "GET https://me:{}@host/api",
        "Authorization: Bearer {}",
        "cannot start with HF_TOKEN={}, giving up",
        "refused: {{'access_key': '{}'}}",
    ],
)
def test_no_secret_of_another_message_reaches_the_log(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "info")
    configure_log()
    logging.getLogger("trainworks.any").info("%s", text.format(SECRET))
    shown = capsys.readouterr().err
    assert " INFO trainworks.any[" in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    "text",
    ["MAX_TOKENS=512", "TOKENIZERS_PARALLELISM=false", "https://host:8080/path", "step 7: loss=2.5, monkeys=3"],
)
def test_what_is_not_secret_stays(text: str) -> None:
    assert masked(text) == text
    assert masked_command(["echo", "-n", "a b", "--layout=tp=2"]) == "echo -n 'a b' --layout=tp=2"


def test_events_locks_claims_and_the_job_store_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trainworks")
    decision = DecisionEvent(kind="decision", node=1, action=Action.ELSEWHERE, message="the node is unfit")
    (tmp_path / "demo-1").mkdir()
    append_event(tmp_path / "demo-1" / "events.jsonl", decision)
    lock = take_lock(tmp_path / "lock")
    assert lock is not None
    assert take_lock(tmp_path / "lock") is None
    os.close(lock)
    MachineLedger(tmp_path).claim(lambda claims: None)
    open_store(f"sqlite:///{tmp_path}/jobs.db").move(7, JobState.RUNNING, now=1.0)
    assert [record.getMessage() for record in caplog.records] == [
        f"event of demo-1: {json.dumps(decision)}",
        f"locked {tmp_path}/lock",
        f"another process has locked {tmp_path}/lock",
        f"claim in {tmp_path}: none is free",
        f"migrating the job store from nothing to {VERSION}",
        "job 7 is not RUNNING: another process changed it first",
    ]


def test_processes_inherit_the_log_by_environment_by_the_saved_one_and_by_a_bridge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_verbose(1)
    done = process.run(process.python_program("from trainworks.host import process; process.run(['true'])"))
    assert " INFO trainworks.host.process[" in done.stderr
    assert done.stderr.endswith(" s: true\n")

    run_dir = RunDir(tmp_path)
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)  # it is replaced, and put back at the end
    run_dir.environment_file.write_text(json.dumps({**os.environ, VARIABLE: "debug"}))
    take_environment(run_dir, {})
    assert logging.getLogger("trainworks").level == logging.DEBUG
    assert VARIABLE in FORWARDED_VARIABLES


def test_the_agents_of_a_run_log_into_its_record_what_the_command_line_asks_for(tmp_path: Path) -> None:
    done = program("-v", "run", "--name", "demo", "--", "true", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " INFO trainworks.host.process[" in done.stderr
    logs = "".join(path.read_text() for path in (tmp_path / "runs" / "demo-1").rglob("*.log"))
    assert " INFO trainworks." in logs


def test_a_process_without_the_variable_configures_no_log() -> None:
    source = "import sys, trainworks; print('trainworks.verbosity' in sys.modules, 'logging' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "False False\n"
