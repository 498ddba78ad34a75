"""TW108 to TW114, TW119 and TW120: launches against the nodes, GPUs and ranks of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from math import prod

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.launch import TorchLaunch, count_of, nodes_of, starts_on_every_node
from trainworks.review.readers.shell import Script, Word
from trainworks.review.rule import rule

_batch_rule = partial(rule, file="train.sbatch")
_TORCHRUN = "https://docs.pytorch.org/docs/main/distributed/elastic/run.html"
_TORCHRUN_DEFAULTS = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py"
_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_LOCAL = ("localhost", "127.0.0.1", "::1")
_NEARLY_SLURM = {
    "SLURM_NODE_RANK": "SLURM_NODEID",
    "SLURM_NODE_ID": "SLURM_NODEID",
    "SLURM_LOCAL_RANK": "SLURM_LOCALID",
    "SLURM_LOCAL_ID": "SLURM_LOCALID",
    "SLURM_RANK": "SLURM_PROCID",
    "SLURM_PROC_ID": "SLURM_PROCID",
    "SLURM_GLOBAL_RANK": "SLURM_PROCID",
    "SLURM_WORLD_SIZE": "SLURM_NTASKS",
    "SLURM_NUM_NODES": "SLURM_NNODES",
    "SLURM_NUM_TASKS": "SLURM_NTASKS",
    "SLURM_NODE_LIST": "SLURM_JOB_NODELIST",
    "SLURM_JOB_NODE_LIST": "SLURM_JOB_NODELIST",
    "SLURM_GPUS_PER_NODES": "SLURM_GPUS_PER_NODE",
    "SLURM_JOBNAME": "SLURM_JOB_NAME",
}
"""Names that scripts use, and those that Slurm has."""


@_batch_rule(
    "TW108",
    "Only the first node starts",
    why="Slurm runs a batch script on the first node of the job alone. torchrun waits there for the other nodes, "
    "which nothing starts.",
    fix="Start torchrun on every node: `srun --ntasks-per-node=1 torchrun ...`.",
    source="https://man.archlinux.org/man/sbatch.1.en.txt",
    bad="#!/bin/bash\n#SBATCH --nodes=4\ntorchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$HEAD:29500 train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$HEAD:29500 train.py\n",
)
def one_node_starts(file: ReviewedFile) -> Iterator[Problem]:
    """A launch for several nodes in a batch script that starts nothing elsewhere."""
    if file.batch is None or (count_of(file.options.get("nodes")) or 1) < 2:
        return
    for script, launch in file.launches:
        nodes = nodes_of(script, launch)
        if nodes and nodes > 1 and not launch.prefix and not starts_on_every_node(script):
            yield launch.launcher.problem(f"torchrun for {nodes} nodes starts on one")


@_batch_rule(
    "TW109",
    "More processes than GPUs",
    why="torchrun gives process N the GPU N. A process without a GPU fails with `invalid device ordinal`.",
    fix="Request as many GPUs per node as `--nproc-per-node` starts processes.",
    source=_TORCHRUN,
    bad="#!/bin/bash\n#SBATCH --gres=gpu:4\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    good="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def more_processes_than_gpus(file: ReviewedFile) -> Iterator[Problem]:
    """`--nproc-per-node` above the GPUs of a node, in the request or in CUDA_VISIBLE_DEVICES."""
    for script, launch in file.launches:
        processes = script.number(launch.values.get("nproc_per_node"))
        gpus, source = _gpus(file, launch)
        if processes and gpus is not None and processes > gpus:
            word = launch.options["nproc_per_node"]
            yield word.problem(f"{processes} processes per node, and {source} gives {gpus} GPUs")


@_batch_rule(
    "TW110",
    "More nodes than requested",
    why="torchrun waits for a number of nodes that the job does not have, until the rendezvous times out.",
    fix="Use `--nnodes=$SLURM_NNODES`, which is the number that Slurm allocated.",
    source=_TORCHRUN,
    bad="#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$HEAD:29500 train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nnodes=$SLURM_NNODES --nproc-per-node=8 "
    "--rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py\n",
)
def more_nodes_than_requested(file: ReviewedFile) -> Iterator[Problem]:
    """`--nnodes` above the nodes of the batch script."""
    requested = count_of(file.options.get("nodes"))
    for script, launch in file.launches:
        nodes = nodes_of(script, launch)
        if requested and nodes and nodes > requested:
            yield launch.options["nnodes"].problem(f"torchrun waits for {nodes} nodes; the job has {requested}")


@_batch_rule(
    "TW111",
    "The meeting point is the local host",
    why="Each node connects to itself: rank 0 of the first node is never found by the others.",
    fix='Set it to the first node: `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.',
    source=_TORCHRUN_DEFAULTS,
    bad="#!/bin/bash\n#SBATCH --nodes=4\nexport MASTER_ADDR=localhost\nsrun python train.py\n",
    good='#!/bin/bash\n#SBATCH --nodes=4\nexport MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" '
    "| head -n 1)\nsrun python train.py\n",
)
def local_meeting_point(file: ReviewedFile) -> Iterator[Problem]:
    """MASTER_ADDR of a job on several nodes, or the address of a launch for several, is the local host.

    The launch of the first node alone may name it, because that node is the meeting point.
    """
    settings = [setting for setting in file.settings if setting.name == "MASTER_ADDR"]
    if file.batch and (count_of(file.options.get("nodes")) or 1) > 1:
        for setting in settings:
            if all(each.value in _LOCAL for each in settings):
                yield setting.problem(f"`MASTER_ADDR={setting.value}` on several nodes")
    for script, launch in file.launches:
        for name in ("master_addr", "rdzv_endpoint"):
            host = launch.values.get(name, "").rpartition(":")[0] or launch.values.get(name, "")
            first = launch.values.get("node_rank") == "0"
            if host in _LOCAL and (nodes_of(script, launch) or 1) > 1 and not first:
                yield launch.options[name].problem(f"`{host}` is the meeting point of several nodes")


@rule(
    "TW112",
    "The parallel sizes do not divide the world size",
    why="Megatron needs world size = data x tensor x pipeline x context parallel size, and stops with "
    "`world_size is not divisible` before the first step.",
    fix="Choose sizes whose product divides nodes x processes per node.",
    source="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py",
    bad="torchrun --standalone --nproc-per-node=8 pretrain_gpt.py --tensor-model-parallel-size 8 "
    "--pipeline-model-parallel-size 2\n",
    good="torchrun --standalone --nproc-per-node=8 pretrain_gpt.py --tensor-model-parallel-size 4 "
    "--pipeline-model-parallel-size 2\n",
    stops=True,
)
def indivisible_world_size(file: ReviewedFile) -> Iterator[Problem]:
    """Megatron's sizes against the processes of the launch."""
    for script, launch in file.launches:
        nodes = nodes_of(script, launch) or (1 if "standalone" in launch.options else None)
        processes = script.number(launch.values.get("nproc_per_node"))
        sizes = _sizes(script, launch)
        if nodes and processes and sizes and nodes * processes % prod(sizes.values()):
            word = next(iter(sizes))
            product = " x ".join(map(str, sizes.values()))
            world = f"{nodes} x {processes} = {nodes * processes} ranks"
            total = f"{product} = {prod(sizes.values())}" if len(sizes) > 1 else product
            yield word.problem(f"{total} does not divide {world}")


@rule(
    "TW113",
    "srun sets no RANK",
    why="srun sets SLURM_PROCID and SLURM_LOCALID, and not RANK, LOCAL_RANK, WORLD_SIZE or MASTER_ADDR. "
    'A script that reads `os.environ["LOCAL_RANK"]` stops with a KeyError.',
    fix="Start it with torchrun: `srun --ntasks-per-node=1 torchrun --nproc-per-node=8 ...`; or export the variables "
    "from those of Slurm.",
    source=_TORCHRUN,
    file="train.md",
    bad="```sh\nsrun -N4 -n32 python train.py\n```\nThe script: `device = int(os.environ['LOCAL_RANK'])`\n",
    good="```sh\nsrun -N4 --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$HEAD:29500 train.py\n```\nThe script: `device = int(os.environ['LOCAL_RANK'])`\n",
)
def no_rank_from_srun(file: ReviewedFile) -> Iterator[Problem]:
    """`srun python SCRIPT`, where the script requires LOCAL_RANK and nothing sets it."""
    for command in file.commands:
        words = command.words
        index = next((i for i, word in enumerate(words) if re.fullmatch(r"python3?", word.text)), 0)
        if words[0].text != "srun" or not index or index + 1 >= len(words):
            continue
        if "LOCAL_RANK" not in file.values and _requires_rank(file, words[index + 1].text):
            yield Problem(command.line, words[0].column, f"`{words[index + 1].text}` needs LOCAL_RANK")


@rule(
    "TW121",
    "A variable that Slurm does not set",
    why="The variable is empty, so the option that takes it is as well: every node gets the same rank or none, or the "
    "program does not start.",
    fix="Use the variable that the message names.",
    source="https://slurm.schedmd.com/srun.html",
    file="train.sbatch",
    bad="#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c 'torchrun --node-rank=$SLURM_NODE_RANK train.py'\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c 'torchrun --node-rank=$SLURM_NODEID train.py'\n",
)
def unknown_slurm_variable(file: ReviewedFile) -> Iterator[Problem]:
    """A name that reads like one of Slurm, without a default, in shell code that does not set it."""
    for number, line in enumerate(file.lines if file.kind == "shell" else (), start=1):
        code = line.split(" #")[0] if not line.lstrip().startswith("#") else ""
        for found in re.finditer(r"\$(?:\{(?=\w+\}))?(SLURM_\w+)", code):
            right = _NEARLY_SLURM.get(found[1])
            if right and not re.search(rf"(?:\b|-v ){found[1]}=|unset {found[1]}", file.text):
                yield Problem(number, found.start() + 1, f"Slurm sets `{right}`, and no `{found[1]}`")


@_batch_rule(
    "TW114",
    "An MPI plugin of one version",
    "note",
    why="`pmix_v3` exists only where Slurm was built with PMIx 3; elsewhere the step fails to start. Training over "
    "NCCL needs no MPI plugin.",
    fix="Use `--mpi=pmix`, the newest that the cluster has, or leave it out for a program without MPI.",
    source="https://slurm.schedmd.com/mpi_guide.html (read in part: that another version fails is an assumption)",
    bad="#!/bin/bash\n#SBATCH --nodes=4\nsrun --mpi=pmix_v3 ./solver\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nsrun --mpi=pmix ./solver\n",
)
def versioned_mpi_plugin(file: ReviewedFile) -> Iterator[Problem]:
    """`--mpi=pmix_vN` of an srun."""
    for command in file.commands:
        for word in command.words:
            if command.words[0].text == "srun" and re.fullmatch(r"--mpi=pmix_v\d", word.text):
                edits = file.edit(word.line, word.column, word.text, "--mpi=pmix")
                yield word.problem(f"`{word.text}` names one version of the plugin", edits)


@rule(
    "TW119",
    "mpirun and torchrun multiply",
    why="mpirun starts torchrun once per rank, and each torchrun starts its processes: their product shares the GPUs, "
    "and the launchers compete for one port.",
    fix="Start torchrun alone on one node, or one per node with `mpirun -N 1`.",
    source=_TORCHRUN,
    bad="mpirun -np 8 torchrun --nproc-per-node=8 train.py\n",
    good="torchrun --nproc-per-node=8 train.py\n",
)
def ranks_times_processes(file: ReviewedFile) -> Iterator[Problem]:
    """`mpirun -np N` without hosts or a mapping, before a torchrun of several processes on one node."""
    for script, launch in file.launches:
        prefix = [word.text for word in launch.prefix]
        mapped = any(re.match(r"-N|-H|--?(?:npernode|ppr|map-by|host|hostfile|machinefile)", text) for text in prefix)
        at = next((index for index, text in enumerate(prefix) if text in ("-np", "-n", "--np")), len(prefix))
        ranks = script.number(prefix[at + 1]) if at + 1 < len(prefix) else None
        processes = script.number(launch.values.get("nproc_per_node"))
        if prefix[:1] == ["mpirun"] and not mapped and ranks and ranks > 1 and processes and processes > 1:
            word = launch.options["nproc_per_node"]
            yield word.problem(f"{ranks} x {processes} = {ranks * processes} processes on one node")


@_batch_rule(
    "TW120",
    "Every node trains alone",
    "warning",
    why="Without `--nnodes` torchrun takes 1: each node of the step trains a model of its own on all of the "
    "data, and the nodes write the same files.",
    fix="Add `--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`.",
    source=_TORCHRUN_DEFAULTS,
    bad="#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nproc-per-node=8 train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$HEAD:29500 train.py\n",
)
def nodes_apart(file: ReviewedFile) -> Iterator[Problem]:
    """A plain `srun torchrun` in a batch script of several nodes, without a number of nodes in any form."""
    if (count_of(file.options.get("nodes")) or 1) < 2 or file.configures_torchrun:
        return
    for _, launch in file.launches:
        own = any(re.match(r"-[NnwZ]|--(?:nodes|ntasks|nodelist|relative)\b", word.text) for word in launch.prefix)
        if launch.is_under_srun and not own and "nnodes" not in launch.options and not launch.opaque:
            word = launch.launcher
            nodes = count_of(file.options.get("nodes"))
            yield word.problem(f"{nodes} nodes, and each torchrun is for one")


def _gpus(file: ReviewedFile, launch: TorchLaunch) -> tuple[int | None, str]:
    """GPUs of a node, and where the number is from."""
    visible = {each.value for each in launch.command.settings if each.name == "CUDA_VISIBLE_DEVICES"}
    settings = [each for each in file.settings if each.name == "CUDA_VISIBLE_DEVICES" and file.kind != "text"]
    if not visible and len(settings) == 1:
        visible = {file.values["CUDA_VISIBLE_DEVICES"]}
    for devices in visible:
        if re.fullmatch(r"\d+(?:,\d+)*", devices):
            return devices.count(",") + 1, f"`CUDA_VISIBLE_DEVICES={devices}`"
    for name in ("gpus-per-node", "gres"):
        found = re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)", file.options.get(name, ""))
        if found and (name != "gres" or file.options[name].startswith("gpu")):
            return int(found[1]), f"`--{name}={file.options[name]}`"
    return None, ""


def _sizes(script: Script, launch: TorchLaunch) -> dict[Word, int]:
    """Megatron's parallel sizes above 1, by the word that sets each; empty if one is unknown."""
    sizes: dict[Word, int] = {}
    words = launch.arguments
    for index, word in enumerate(words):
        name, equals, value = word.text.lstrip("-").replace("-", "_").partition("=")
        if word.text.startswith("--") and name in _SIZES:
            text = value if equals else words[index + 1].text if index + 1 < len(words) else ""
            size = script.number(text)
            if not size:
                return {}
            sizes[word] = size
    return sizes


def _requires_rank(file: ReviewedFile, name: str) -> bool:
    """A script beside the file, or code in the same text, reads LOCAL_RANK and has no other way to get it."""
    text = file.text if file.kind == "text" else file.read_near(name) or ""
    optional = re.search(
        r"""SLURM_(?:LOCAL|PROC)ID|(['"])LOCAL_RANK\1\s*(?:not )?in\b|get(?:env)?\(['"]LOCAL_RANK""", text
    )
    return optional is None and re.search(r"""os\.environ\[(['"])LOCAL_RANK\1\]""", text) is not None
