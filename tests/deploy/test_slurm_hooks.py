"""The scripts for a node that fails its check, run with a `scontrol` and a `logger` that write down their arguments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainworks.deploy.slurm_hooks import NodeCheck, epilog, health_check, prolog, slurm_conf_lines, task_prolog

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


def test_a_user_gets_the_home_that_a_node_lacks(run) -> None:
    script = prolog(NodeCheck(free_gb={"/": 0}), makes_homes=True).replace("/usr/sbin/mkhomedir_helper", "logger")
    script = script.replace('"$SLURM_JOB_USER"', "ada")
    assert run('getent() { echo "ada:x:7:7::/tmp:"; }\n' + script) == (0, "")
    assert run('getent() { echo "ada:x:7:7::/nope:"; }\n' + script) == (0, "logger|ada|0077|")


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


EPILOG = {"SLURMD_NODENAME": "node1", "SLURM_JOB_ID": "12", "SLURM_JOB_UID": "999999", "SLURM_JOB_GPUS": "0"}


def epilog_of(tmp_path: Path, check: NodeCheck, *, nvidia_smi: str = "true", job: str = "12") -> tuple[int, str]:
    """Exit code of an epilog, and what it logged."""
    logged = tmp_path / "logged"
    programs = {"nvidia-smi": nvidia_smi, "logger": f'printf "%s|" "$@" > {logged}', "sleep": "true"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    script = epilog(check, scratch=str(tmp_path / "scratch")).replace("export PATH=", f"export PATH={tmp_path}:")
    environment = EPILOG | {"SLURM_JOB_ID": job}
    done = subprocess.run(["bash", "-c", script], env=environment, check=False)
    return done.returncode, logged.read_text() if logged.exists() else ""


def test_an_epilog_removes_the_scratch_of_its_job_alone(tmp_path: Path) -> None:
    for job in ("12", "13"):
        (tmp_path / "scratch/jobs" / job).mkdir(parents=True)
    assert epilog_of(tmp_path, NodeCheck()) == (0, "")
    assert [folder.name for folder in (tmp_path / "scratch/jobs").iterdir()] == ["13"]


def test_an_epilog_without_the_number_of_a_job_removes_nothing(tmp_path: Path) -> None:
    (tmp_path / "scratch/jobs/12").mkdir(parents=True)
    assert epilog_of(tmp_path, NodeCheck(), job="../..") == (0, "")
    assert (tmp_path / "scratch/jobs/12").exists()


def test_a_gpu_that_is_free_keeps_its_node_and_one_in_use_drains_it(tmp_path: Path) -> None:
    assert epilog_of(tmp_path, NodeCheck(accelerators=8)) == (0, "")
    busy = epilog_of(tmp_path, NodeCheck(accelerators=8), nvidia_smi="echo 4711")
    assert busy == (1, "--tag|trainworks-epilog|--|node1: GPUs 0 are in use after job 12|")


def test_a_job_on_a_good_node_gets_a_folder_of_scratch_for_its_temporary_files(tmp_path: Path) -> None:
    environment = {"SLURM_JOB_ID": "12", "SLURM_JOB_UID": str(os.getuid()), "PATH": os.environ["PATH"]}
    scratch = str(tmp_path / "local scratch")
    printed = []
    for script in (prolog(NodeCheck(), scratch=scratch), task_prolog(scratch)):
        done = subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, text=True)
        printed.append(done.stdout)
    assert (Path(scratch) / "jobs/12").stat().st_mode & 0o777 == 0o700
    assert printed == ["", f"export TMPDIR={scratch}/jobs/12\n"]
