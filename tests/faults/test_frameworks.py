"""Commands in frameworks other than torch: the examples as they are, and how they end when somebody dies."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import threads
from tests.faults.launcher import Program, finished, interrupt, output, wait_until
from tests.ports import free_port
from trainworks.host.network import LOOPBACK
from trainworks.record.runs_folder import create_run_dir

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]

needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun: apt-get install openmpi-bin")
needs_gromacs = pytest.mark.skipif(shutil.which("gmx") is None, reason="NOT TESTED: no gmx: apt-get install gromacs")


def pid_of(program: Program, command: str) -> int:
    """The process whose command line begins like this."""
    return program.find(lambda process: " ".join(process.cmdline()).startswith(command)).pid


def write_waiting(program: Program, framework: str, script: str) -> None:
    """A run file of two ranks that run a script."""
    (program.folder / "wait.py").write_text(script)
    launcher = "mpirun " if framework == "mpi" else ""
    (program.folder / "wait.yaml").write_text(
        f"framework: {framework}\nrun: |\n  {launcher}python wait.py\n  echo over\ncluster: {{processes_per_node: 2}}\n"
    )


JAX_WAITS = "import jax, time; jax.distributed.initialize(); print('up', flush=True); time.sleep(300)"
MPI_WAITS = (
    "import os, time; from mpi4py import MPI; world = MPI.COMM_WORLD; world.Barrier()\n"
    "print(f'up {world.rank} {os.getpid()} .', flush=True)\nwhile True: world.Barrier(); time.sleep(0.05)\n"
)


SCRIPTS = {"digits_ddp.py": [], "cluster/train.py": ["--epochs", "1", "--to", "digits.pt"], "session_loop.py": []}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_the_examples_ends_its_process_group_before_python_ends(examples: Program, script: str) -> None:
    """A gloo thread that releases a tensor while Python ends aborts the process, once in some dozens of busy runs."""
    for package in ("torch", "sklearn"):
        pytest.importorskip(package)
    run = create_run_dir(examples.folder, "loop")
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    alone |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(free_port())}
    ended = subprocess.run(
        [sys.executable, threads.__file__, f"examples/{script}", *SCRIPTS[script]],
        cwd=examples.folder,
        env=examples.env | alone | {"TRAINWORKS_RUN_DIR": str(run.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "0"


@pytest.fixture
def jax_up(program: Program):
    """Two JAX processes that have met and wait, and the command that watches them."""
    pytest.importorskip("jax", reason="no JAX: pip install 'jax[cpu]'")
    write_waiting(program, "jax", JAX_WAITS)
    running = program.start("run", "wait.yaml")
    wait_until(lambda: all("up" in output(program, rank) for rank in (0, 1)))
    return running


@pytest.fixture
def mpi_up(program: Program):
    """Two ranks under mpirun that have met and wait, and the command that watches them."""
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun: apt-get install openmpi-bin")
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install mpi4py")
    write_waiting(program, "mpi", MPI_WAITS)
    running = program.start("run", "wait.yaml")
    wait_until(lambda: output(program).count(" .") == 2)
    return running


def test_jax_finds_its_coordinator_and_trains_on_two_processes(examples: Program) -> None:
    pytest.importorskip("jax", reason="no JAX: pip install 'jax[cpu]'")
    code, _, stderr = examples.run("run", "examples/digits-jax.yaml")
    assert code == 0, stderr
    last = [re.search(r"process (\d) of 2: final loss (.*)", output(examples, rank)) for rank in (0, 1)]
    assert [found and found[1] for found in last] == ["0", "1"]
    assert last[0][2] == last[1][2] and float(last[0][2]) < 0.1


def test_a_killed_jax_process_ends_the_job_with_one_error(program: Program, jax_up) -> None:
    program.find(
        lambda process: process.cmdline()[1:] == ["wait.py"] and process.environ()["JAX_PROCESS_ID"] == "1"
    ).kill()
    code, _, stderr = finished(jax_up)
    assert code == 137
    assert stderr.count("error:") == 1 and "rank 1 on node 0" in stderr
    program.assert_nothing_left()


def test_ctrl_c_twice_ends_jax_at_once(program: Program, jax_up) -> None:
    interrupt(jax_up)
    wait_until(lambda: "SIGTERM caught" in output(program))  # JAX waits for the script to save
    interrupt(jax_up)
    assert finished(jax_up)[0] == 130
    program.assert_nothing_left()


@needs_mpi
def test_ranks_of_mpi_train_as_one_process_does(examples: Program) -> None:
    pytest.importorskip("mpi4py", reason="no mpi4py: pip install mpi4py")
    losses = []
    for nproc in ("1", "2"):
        code, _, stderr = examples.run("run", "examples/digits-mpi.yaml", "--nproc", nproc)
        assert code == 0, stderr
        losses += re.findall(r"final loss (\d\.\d{6})", output(examples))  # a line's end may come late
    assert len(losses) == 3 and len(set(losses)) == 1
    assert sorted(re.findall(r"rank (\d) of 2", output(examples))) == ["0", "1"]


@pytest.mark.lane("test")
def test_a_killed_rank_of_mpi_is_named_by_mpirun(program: Program, mpi_up) -> None:
    rank_1 = int(re.search(r"up 1 (\d+)", output(program))[1])
    next(process for process in program.processes() if process.pid == rank_1).kill()
    code, _, stderr = finished(mpi_up)
    assert code == 137
    assert stderr.count("error:") == 1 and "mpirun noticed that process rank 1" in stderr
    program.assert_nothing_left()


def test_a_killed_mpirun_takes_its_ranks_along(program: Program, mpi_up) -> None:
    launcher = pid_of(program, "mpirun")
    next(process for process in program.processes() if process.pid == launcher).kill()
    assert finished(mpi_up)[0] == 137
    program.assert_nothing_left()


def test_ctrl_c_ends_mpirun_and_its_ranks(program: Program, mpi_up) -> None:
    interrupt(mpi_up)
    assert finished(mpi_up)[0] == 130
    program.assert_nothing_left()


@pytest.mark.lane("test")
def test_every_worker_of_tensorflow_can_listen_where_its_cluster_says(program: Program) -> None:
    script = (
        "import json, os, socket; config = json.loads(os.environ['TF_CONFIG']); index = config['task']['index']\n"
        "host, port = config['cluster']['worker'][index].split(':'); socket.create_server((host, int(port)))\n"
        "print(json.dumps(config))\n"
    )
    (program.folder / "listen.py").write_text(script)
    (program.folder / "listen.yaml").write_text(
        "framework: tensorflow\nrun: python listen.py\ncluster: {nodes: 2, processes_per_node: 2}\n"
    )
    code, _, stderr = program.run("run", "listen.yaml")
    assert code == 0, stderr
    assert [json.loads(output(program, rank))["task"]["index"] for rank in range(4)] == [0, 1, 2, 3]


def test_deepspeed_trains_on_two_ranks(examples: Program) -> None:
    pytest.importorskip("deepspeed", reason="no DeepSpeed, which compiles for minutes: pip install deepspeed")
    code, _, stderr = examples.run("run", "examples/digits-deepspeed.yaml")
    assert code == 0, stderr
    assert "rank 1 of 2: final loss" in output(examples, 1)


def test_a_skypilot_task_runs_as_it_is(examples: Program) -> None:
    code, _, stderr = examples.run("run", "examples/skypilot-task.yaml")
    assert code == 0, stderr + output(examples, rank=1)
    assert "test accuracy 97.2%" in output(examples)
    assert [examples.run_dir.node_log(node).read_text() for node in (0, 1)] == [
        "hello from node 0\n",
        "hello from node 1\n",
    ]


@pytest.mark.lane("test")
def test_a_skypilot_task_runs_in_plain_bash_and_in_its_folder(program: Program) -> None:
    (program.folder / "code").mkdir()
    (program.folder / "task.yaml").write_text(
        "num_nodes: 1\nworkdir: code\nrun: |\n  false\n  echo ${UNSET}here >> done\n"
    )
    code, _, stderr = program.run("run", "task.yaml")
    assert code == 0, stderr
    assert (program.folder / "code" / "done").read_text() == "here\n"
    assert program.run_dir.run_id == "task-1"


@pytest.mark.parametrize(
    ("lines", "message", "place"),
    [
        ("envs: {NO_SUCH_TOKEN: null}", "environment variable `NO_SUCH_TOKEN` has no value", "envs.NO_SUCH_TOKEN"),
        ("workdir: nowhere", "`workdir` (nowhere) is not a folder", "workdir"),
        ("resources: {cpus: 4096+}", "4096 cores requested", "resources.cpus"),
    ],
)
def test_what_a_task_needs_and_is_not_here_is_refused_in_its_place(
    program: Program, lines: str, message: str, place: str
) -> None:
    (program.folder / "task.yaml").write_text(f"run: echo\n{lines}\n")
    code, _, stderr = program.ask("run", "task.yaml")
    assert code == 2
    assert message in stderr and f"--> task.yaml:2  {place}" in stderr
    assert not (program.folder / "runs").exists()


def water_log(program: Program) -> str:
    """The log of mdrun."""
    log = program.run_dir.path / "water.log"
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def checkpoints(program: Program) -> list[int]:
    """Steps of the checkpoints that mdrun has written."""
    return [int(step) for step in re.findall(r"Writing checkpoint, step (\d+)", water_log(program))]


def has_pending(pid: int, signal_: signal.Signals) -> bool:
    """Whether a signal waits for a process that is suspended."""
    pending = re.findall(r"(?:Sig|Shd)Pnd:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) >> (signal_ - 1) & 1 for mask in pending)


@needs_gromacs
def test_a_killed_gromacs_goes_on_from_its_own_checkpoint_to_the_same_step(examples: Program) -> None:
    running = examples.start("run", "examples/gromacs-water.yaml")
    wait_until((examples.run_dir.path / "water.cpt").exists)
    examples.find(lambda process: process.name() == "gmx").kill()
    code, _, stderr = finished(running)
    assert code == 0, stderr
    assert "Restarting from checkpoint" in water_log(examples)
    assert "Statistics over 6001 steps" in water_log(examples)


@needs_gromacs
def test_a_stopped_gromacs_writes_a_last_checkpoint_and_a_resumed_one_ends_at_the_same_step(examples: Program) -> None:
    running = examples.start("run", "examples/gromacs-water.yaml")
    wait_until(lambda: "Started mdrun" in water_log(examples))
    mdrun = examples.find(lambda process: process.name() == "gmx")
    mdrun.suspend()  # its few seconds must not be over before the stop has come
    stopping = examples.start("stop", "--runs", "runs")
    wait_until(lambda: has_pending(mdrun.pid, signal.SIGTERM))
    mdrun.resume()
    assert finished(stopping)[0] == 0
    assert finished(running)[0] == 130
    stopped_at = checkpoints(examples)[-1]
    assert 0 < stopped_at < 6000
    code, _, stderr = examples.run("resume")
    assert code == 0, stderr
    assert f"continuing from step {stopped_at}" in output(examples).replace(",", "")
    assert "Statistics over 6001 steps" in water_log(examples)


DIES_ONCE = """#!/bin/sh
# mdrun of the replica with index 1 is killed after a checkpoint at step 500, the first time.
case "$TRAINWORKS_ARRAY_INDEX $*" in
"1 "*mdrun*) mkdir died 2> /dev/null && { {gmx} "$@" -nsteps 500; kill -9 $$; } ;;
esac
exec {gmx} "$@"
"""


def energies(program: Program, array: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and rows of the table of energies."""
    command = [sys.executable, "examples/gromacs/energies.py", array]
    done = subprocess.run(command, check=False, cwd=program.folder, env=program.env, capture_output=True, text=True)
    return done.returncode, list(csv.DictReader(done.stdout.splitlines()))


@needs_gromacs
def test_a_failed_replica_of_an_array_is_retried_from_its_checkpoint_and_all_energies_are_in_one_table(
    examples: Program,
) -> None:
    (shim := examples.folder / "bin" / "gmx").parent.mkdir()
    shim.write_text(DIES_ONCE.replace("{gmx}", str(shutil.which("gmx"))))
    shim.chmod(0o755)
    examples.env["PATH"] = f"{shim.parent}{os.pathsep}{examples.env['PATH']}"
    code, stdout, stderr = examples.run("submit", "examples/gromacs-replicas.yaml", "--array", "0-3%2", "-y")
    assert code == 0, stderr
    replicas = stdout.split()
    [array] = set(re.findall(r"array-[a-z]{6}", examples.run("ps", "--all")[1]))
    assert examples.run("wait", array)[0] == 137
    code, table = energies(examples, array)
    assert code == 1 and [row["state"] for row in table] == ["SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert table[1]["potential_kj_per_mol"] == ""
    assert examples.run("retry", array)[1] == f"{replicas[1]} queued again\n"
    assert examples.run("wait", array)[0] == 0
    code, table = energies(examples, array)
    assert code == 0 and [row["run"] for row in table] == replicas
    assert len({row["potential_kj_per_mol"] for row in table}) == 4
    assert all(-10_500 < float(row["potential_kj_per_mol"]) < -9_000 for row in table)  # 213 SPC/E waters
    log = (examples.folder / "runs" / replicas[1] / "water.log").read_text()
    assert "Restarting from checkpoint" in log and "Statistics over 1001 steps" in log
