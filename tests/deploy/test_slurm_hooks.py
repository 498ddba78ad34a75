"""The scripts for a node that fails its check, run with a `scontrol` and a `logger` that write down their arguments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainworks.deploy.slurm_hooks import NodeCheck, health_check, prolog, slurm_conf_lines

ALL = NodeCheck(accelerators=8, free_gb={"/tmp": 1, "/scratch disk": 20}, mounted=("/shared",))


@pytest.fixture
def run(tmp_path: Path):
    """A function that runs a script: its exit code, and what Slurm was told."""

    def run(script: str) -> tuple[int, str]:
        told = tmp_path / "told"
        for program in ("scontrol", "logger"):
            (tmp_path / program).write_text(f'#!/bin/sh\nprintf "%s|" {program} "$@" >> {told}\n')
            (tmp_path / program).chmod(0o755)
        script = script.replace("export PATH=", f"export PATH={tmp_path}:")
        done = subprocess.run(["bash", "-c", script], env={"SLURMD_NODENAME": "node1"}, check=False)
        return done.returncode, told.read_text() if told.exists() else ""

    return run


def test_the_scripts_and_what_slurm_is_told_of_them(golden) -> None:
    golden("slurm_hooks.sh", "\n".join([prolog(ALL), health_check(ALL), slurm_conf_lines("/etc/slurm/hooks")]))


def test_a_good_node_gets_its_job(run) -> None:
    assert run(prolog(NodeCheck(free_gb={"/": 0}))) == (0, "")


def test_a_prolog_fails_on_a_bad_node_and_calls_no_program_of_slurm(run) -> None:
    told = "logger|--tag|trainworks-prolog|--|node1: /nope is not mounted|"
    assert run(prolog(NodeCheck(mounted=("/nope",)))) == (1, told)


def test_a_health_check_drains_and_fails_nothing(run) -> None:
    code, told = run(health_check(NodeCheck(free_gb={"/": 10**9})))
    assert (code, "Reason=trainworks: / has less than 1000000000 GiB free" in told) == (0, True)


def test_a_folder_is_only_a_name(run, tmp_path: Path) -> None:
    run(prolog(NodeCheck(mounted=(f"/a'; touch {tmp_path}/hacked; '",))))
    assert not (tmp_path / "hacked").exists()


def test_a_check_that_hangs_drains_the_node(run, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    code, told = run(health_check(NodeCheck(accelerators=8, timeout_s=1)))
    assert (code, "Reason=trainworks: no answer within 1 s" in told) == (0, True)
    assert run(prolog(NodeCheck(accelerators=8, timeout_s=1)))[0] == 1
