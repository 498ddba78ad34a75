"""The programs of Slurm's power saving, run with a `scontrol` that only writes down what it is told."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trainworks.config.autoscale import Autoscale
from trainworks.deploy.slurm_power import resume_program, slurm_power_files, suspend_program
from trainworks.errors import UsageError

SLURM: dict[str, Any] = {
    "nodes": "cloud[1-16]",
    "node": {"cores": 96, "memory": "1900 GB", "accelerators": "h100:8", "features": ["spot"]},
    "start": "aws ec2 start-instances --instance-ids \"$(cat '/etc/ids/'$NODE)\" && getent hosts $NODE | cut -d' ' -f1",
    "stop": "aws ec2 stop-instances --instance-ids \"$(cat '/etc/ids/'$NODE)\"",
}


def autoscale(**changes: Any) -> Autoscale:
    words = {"down_after": "10m", "keep": 2, "start_timeout": "15m", "stop_timeout": "3m"}
    return Autoscale.model_validate(words | {"slurm": SLURM | changes})


@pytest.fixture
def run(tmp_path: Path):
    """A function that runs a program for some nodes: exit code, what Slurm was told, and the log."""

    def run(program: str, nodes: str = "cloud[1-2]") -> tuple[int, list[str], str]:
        told = tmp_path / "told"
        script = f"""#!/bin/bash
if [[ $1 == show ]]; then [[ $3 == bad* ]] && exit 1; echo cloud1; echo cloud2; exit; fi
line=$(printf '%s|' "$@"); echo "$line" >> {told}
[[ $* != *NodeAddr=bad* ]]
"""
        (tmp_path / "scontrol").write_text(script)
        (tmp_path / "scontrol").chmod(0o755)
        program = program.replace("export PATH=", f"export PATH={tmp_path}:")
        done = subprocess.run(["bash", "-c", program, "resume.sh", nodes], env={}, check=False)
        log = tmp_path / "power.log"
        lines = sorted(told.read_text().splitlines()) if told.exists() else []
        return done.returncode, lines, log.read_text() if log.exists() else ""

    return run


@pytest.fixture
def with_command(tmp_path: Path):
    """A function that makes a program with a command, and a log in this test's folder."""

    def make(start: str, stop: str = "true", **words: Any) -> Autoscale:
        changed = autoscale(start=start, stop=stop, log=str(tmp_path / "power.log"))
        return changed.model_copy(update=words)

    return make


def test_the_programs_and_what_slurm_is_told_of_them(golden) -> None:
    files = slurm_power_files(autoscale(keep_nodes="cloud16"))
    golden("slurm_power.txt", "\n".join(f"--- {name}\n{text}" for name, text in files.items()))


def test_the_command_runs_once_for_every_node(run, with_command, tmp_path: Path) -> None:
    code, told, log = run(resume_program(with_command(f'touch "{tmp_path}/$NODE"')))
    assert (code, told) == (0, [])
    assert (tmp_path / "cloud1").exists() and (tmp_path / "cloud2").exists()
    assert log.count("start done") == 2


def test_slurm_is_told_the_address_that_the_command_prints_last(run, with_command) -> None:
    _, told, _ = run(resume_program(with_command("echo starting; echo 10.0.0.${NODE#cloud}")))
    assert told == [f"update|NodeName=cloud{n}|NodeAddr=10.0.0.{n}|" for n in (1, 2)]


def test_a_node_that_does_not_start_is_reported_and_the_others_are_started(run, with_command, tmp_path: Path) -> None:
    _, told, log = run(resume_program(with_command("[ $NODE = cloud2 ] || { echo no quota >&2; exit 7; }")))
    reason = f"Reason=trainworks: start ended with code 7, see {tmp_path}/power.log"
    assert told == [f"update|NodeName=cloud1|State=DOWN|{reason}|"]
    assert "no quota" in log and "cloud2 start done" in log


def test_a_node_that_does_not_stop_is_reported(run, with_command, tmp_path: Path) -> None:
    _, told, _ = run(suspend_program(with_command("true", "[ $NODE = cloud1 ]")))
    assert told == [
        f"update|NodeName=cloud2|State=DOWN|Reason=trainworks: stop ended with code 1, see {tmp_path}/power.log|"
    ]


def test_a_command_that_hangs_is_ended_with_the_time_that_slurm_waits(run, with_command) -> None:
    _, told, _ = run(resume_program(with_command("sleep 60", start_timeout=1.0)))
    assert len(told) == 2 and all("start ended with code 124" in line for line in told)


def test_an_address_that_slurm_does_not_take_is_reported(run, with_command) -> None:
    _, told, _ = run(resume_program(with_command("echo 'bad $(reboot)'")))
    assert [line for line in told if "State=DOWN" in line and "bad $(reboot)" in line]


def test_a_list_that_slurm_does_not_expand_starts_nothing(run, with_command, tmp_path: Path) -> None:
    code, told, log = run(resume_program(with_command(f"touch {tmp_path}/started")), "bad[")
    assert (code, told, "no list of nodes: bad[" in log) == (1, [], True)
    assert not (tmp_path / "started").exists()


def test_a_log_that_cannot_be_written_keeps_no_node_from_starting(run, with_command, tmp_path: Path) -> None:
    program = resume_program(with_command(f'touch "{tmp_path}/$NODE"')).replace(f"{tmp_path}/power.log", "/nope/x")
    assert run(program)[0] == 0 and (tmp_path / "cloud1").exists()


def test_the_command_is_only_a_text(run, with_command, tmp_path: Path) -> None:
    run(resume_program(with_command("echo 'it'\"'\"'s'; true # \" $(")))
    assert run(resume_program(with_command(f"cat <<< \"'\" > '{tmp_path}/quote'")))[0] == 0
    assert (tmp_path / "quote").read_text() == "'\n"


def test_without_words_for_slurm_it_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"cluster\.autoscale\.slurm") as refused:
        slurm_power_files(Autoscale())
    assert "start: ..., stop: ..." in (refused.value.hint or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": "cloud[1-4] State=DOWN"},
        {"nodes": "cloud1\nSlurmUser=root"},
        {"start": "true\nreboot"},
        {"start": " "},
        {"folder": "relative"},
        {"log": "/var/log/a b"},
        {"partition": "a Default=YES"},
        {"node": {"cores": 1, "memory": "1 GB", "accelerators": "h100"}},
    ],
)
def test_nothing_else_gets_into_slurms_configuration(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        autoscale(**changes)
