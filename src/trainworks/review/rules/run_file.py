"""TW9xx: run files, and SkyPilot tasks, which have the same keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.readers.launch import program_of
from trainworks.review.readers.run_file import RunFileText
from trainworks.review.readers.shell import has_branches
from trainworks.review.rule import rule
from trainworks.units import format_duration, parse_duration

_run_rule = partial(rule, file="run.yaml")
_TORCHRUN = "https://docs.pytorch.org/docs/main/distributed/elastic/run.html"
_OF_A_RANK = ("RANK", "LOCAL_RANK", "GROUP_RANK", "NODE_RANK", "PET_NODE_RANK")
_ANOTHER_FOLDER = re.compile(r"\b(?:cd|pushd|chdir|git|wget|curl|unzip|tar|cp|cat|ln)\b|-D\b")


@_run_rule(
    "TW901",
    "The program is not there",
    why="The command starts in `workdir`, or in the folder that the run is started from. A script that is in neither "
    "ends every rank with exit code 2 before its first step.",
    fix="Correct the path, or set `workdir` to the folder that the path begins in.",
    source="https://docs.python.org/3/using/cmdline.html",
    bad="name: train\nrun: python no/such/train.py\n",
    good="name: train\nrun: python -m timeit\n",
    stops=True,
)
def missing_program(file: ReviewedFile) -> Iterator[Problem]:
    """A relative path of a script that no folder has; where a command changes the folder, or brings files, none."""
    run_file = file.run_file
    if run_file is None or run_file.node("setup") or not _has_these_files(run_file):
        return
    folders = [Path(), *([] if file.folder is None else [file.folder])]
    below = run_file.text("workdir") or ""
    for script in run_file.scripts():
        for command in script.commands:
            program = program_of(command)
            plain = program is not None and re.fullmatch(r"[\w.][\w./-]*\.(?:py|sh)", program.text)
            # Shell code may change the folder, make files, or leave the command out.
            may_have_it = has_branches(script.text) or _ANOTHER_FOLDER.search(script.text)
            if program is None or not plain or "$" in below or may_have_it:
                continue
            if not any(_may_exist(folder / below / program.text) for folder in folders):
                yield Problem(program.line, program.column, f"`{program.text}` does not exist")


@_run_rule(
    "TW902",
    "Checkpoints in memory",
    "warning",
    why="A tmpfs keeps its files in memory: they are lost when the node restarts, which is what a checkpoint is for, "
    "and they take the memory of the ranks.",
    fix="Set `checkpoint.to` to a folder on a disk, of several nodes on a shared one.",
    source="https://docs.kernel.org/filesystems/tmpfs.html",
    bad="name: train\nrun: python -m train\ncheckpoint: {to: /dev/shm/runs}\n",
    good="name: train\nrun: python -m train\ncheckpoint: {to: /lustre/runs}\n",
)
def checkpoints_in_memory(file: ReviewedFile) -> Iterator[Problem]:
    """`checkpoint.to` below a folder that Linux keeps in memory."""
    node = file.run_file.node("checkpoint", "to") if file.run_file else None
    if node is not None and re.match(r"/(?:dev/shm|run/shm|run/user)(?:/|$)", tree.scalar(node) or ""):
        yield Problem(*tree.place(node), f"`{tree.scalar(node)}` is in the memory of the node")


@_run_rule(
    "TW903",
    "Failures come before the checkpoint",
    "warning",
    why="Failures of N nodes are N times as frequent as those of one. At an interval of one mean time to failure, a "
    "job reaches its next checkpoint with a probability of exp(-1) = 37 %, and repeats most of its work.",
    fix="Set `checkpoint.every: auto`, which balances the cost of saving against the work that is lost.",
    source="https://doi.org/10.1016/j.future.2004.11.016 (Daly 2006); node MTTF: https://arxiv.org/abs/2410.21680",
    bad="name: train\nrun: python -m train\ncluster: {engine: slurm, nodes: 2048}\ncheckpoint: {every: 1d}\n",
    good="name: train\nrun: python -m train\ncluster: {engine: slurm, nodes: 2048}\ncheckpoint: {every: 10m}\n",
)
def rare_checkpoints(file: ReviewedFile) -> Iterator[Problem]:
    """A duration above the mean time to a failure of the job, by `recover.node_mttf` or the usual one."""
    node = file.run_file.node("checkpoint", "every") if file.run_file else None
    every_s = _duration(tree.scalar(node))
    if file.run_file is None or node is None or every_s is None:
        return
    from trainworks.plan.reliability.defaults import usual_node_mttf  # noqa: PLC0415  # imports the planner

    nodes = _nodes(file.run_file)
    mttf_s = usual_node_mttf(None, _duration(file.run_file.text("recover", "node_mttf"))).value / nodes
    if every_s >= mttf_s:
        share = 100 * math.exp(-every_s / mttf_s)
        message = (
            f"{nodes} nodes fail every {format_duration(mttf_s)}: {share:.0f} % of the intervals end in a checkpoint"
        )
        yield Problem(*tree.place(node), message)


@_run_rule(
    "TW904",
    "Every rank starts all processes",
    why="`run` starts once per rank. Each torchrun then starts its processes, and their product shares the GPUs of "
    "the node.",
    fix="Remove `processes_per_node`, and set `num_nodes`, with which `run` starts once per node; or start the script "
    "without torchrun.",
    source=_TORCHRUN,
    bad="name: train\nrun: torchrun --nproc-per-node=8 -m train\ncluster: {engine: slurm, processes_per_node: 8}\n",
    good="name: train\nnum_nodes: 1\nrun: torchrun --nproc-per-node=8 -m train\ncluster: {engine: slurm}\n",
)
def launcher_on_each_rank(file: ReviewedFile) -> Iterator[Problem]:
    """A torchrun of several processes in the command of several ranks per node."""
    run_file = file.run_file
    ranks = tree.integer(run_file.node("cluster", "processes_per_node")) if run_file else None
    if run_file is None or not ranks or ranks == 1 or not run_file.starts_on_each_rank:
        return
    for script, launch in file.launches:
        processes = script.number(launch.values.get("nproc_per_node"))
        if processes and processes > 1:
            word = launch.options["nproc_per_node"]
            yield word.problem(f"{ranks} x {processes} = {ranks * processes} processes on each node")


@_run_rule(
    "TW905",
    "Every process gets the same rank",
    why="A variable of `envs` replaces the one that the process gets from its launcher. With one rank for all, the "
    "processes wait for the others until the rendezvous times out; with one LOCAL_RANK they share a GPU.",
    fix="Remove the variable: each process gets its own.",
    source=_TORCHRUN,
    bad="name: train\nnum_nodes: 2\nrun: python -m train\nenvs: {RANK: 0}\n",
    good="name: train\nnum_nodes: 2\nrun: python -m train\nenvs: {SEED: 0}\n",
)
def one_rank_for_all(file: ReviewedFile) -> Iterator[Problem]:
    """A number as a rank in the variables of a job with several nodes or ranks."""
    run_file = file.run_file
    if run_file is None:
        return
    ranks = tree.integer(run_file.node("cluster", "processes_per_node")) or 1
    for setting in run_file.settings():
        if setting.name in _OF_A_RANK and setting.value.isdecimal() and run_file.nodes * ranks > 1:
            yield setting.problem(f"`{setting.name}={setting.value}` in every process")


@_run_rule(
    "TW906",
    "Every rank starts an mpirun",
    why="`run` starts once per rank or node, and each mpirun starts all ranks of the job: they multiply.",
    fix="Set `framework: mpi`, with which `run` starts once and mpirun finds the nodes of the job.",
    source="https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html",
    bad="name: solve\nnum_nodes: 2\nrun: mpirun -np 16 ./solver\n",
    good="name: solve\nnum_nodes: 2\nframework: mpi\nrun: mpirun -np 16 ./solver\n",
)
def mpirun_on_each_rank(file: ReviewedFile) -> Iterator[Problem]:
    """An mpirun as the only command of several ranks, where the framework is none that starts once."""
    run_file = file.run_file
    ranks = tree.integer(run_file.node("cluster", "processes_per_node")) or 1 if run_file else 1
    if run_file is None or run_file.text("framework") in ("mpi", "slurm") or run_file.nodes * ranks == 1:
        return
    for script in run_file.scripts():
        if len(script.commands) == 1 and script.commands[0].words[0].text in ("mpirun", "mpiexec"):
            word = script.commands[0].words[0]
            yield word.problem(f"{run_file.nodes * ranks} times `{word.text}`")


@_run_rule(
    "TW907",
    "fp8 that is not compiled",
    "warning",
    why="Without torch.compile, every fp8 product needs kernels of its own for scales and casts, and Python for each "
    "of them. On an H100, a step of a model with 28 million parameters took four times as long as in bf16.",
    fix="Set `compile: true`, or train in bf16.",
    source="https://github.com/pytorch/ao/blob/main/torchao/float8/README.md",
    bad="workload: {task: causal-lm, precision: fp8}\n",
    good="workload: {task: causal-lm, precision: fp8, compile: true}\n",
)
def eager_fp8(file: ReviewedFile) -> Iterator[Problem]:
    """A workload with `precision: fp8` and without `compile: true`."""
    precision = file.run_file.node("workload", "precision") if file.run_file else None
    compiled = file.run_file.node("workload", "compile") if file.run_file else None
    if precision is not None and tree.scalar(precision) == "fp8" and not tree.is_true(compiled):
        yield Problem(*tree.place(precision), "fp8 without `compile: true` is slower than bf16")


def _may_exist(path: Path) -> bool:
    """The file exists, or its path cannot be one, which is another problem."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return True


def _has_these_files(run_file: RunFileText) -> bool:
    """The job sees the files of this machine: it runs here, or on nodes that share them."""
    engine = run_file.text("cluster") or run_file.text("cluster", "engine") or "local"
    apart = run_file.node("cluster", "slurm", "container") or run_file.node("cluster", "slurm", "login")
    return engine.partition(":")[0] in ("local", "slurm") and not apart and run_file.node("resources") is None


def _duration(text: str | None) -> float | None:
    """Seconds of a duration; None for anything else, such as `auto` and a number of steps."""
    try:
        return parse_duration(text) if text else None
    except TrainworksError:
        return None


def _nodes(run_file: RunFileText) -> int:
    """Nodes of the job: as written, or those of the cluster that it describes."""
    from trainworks.catalog.stack_cluster import read_cluster  # noqa: PLC0415  # reads the catalogue

    described = run_file.text("cluster") or run_file.text("cluster", "of")
    try:
        return read_cluster(described).num_nodes if described else run_file.nodes
    except TrainworksError:
        return run_file.nodes
