"""TW122 to TW128: what a batch script leaves its nodes to do, and what the shell makes of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers.launch import count_of
from trainworks.review.readers.shell import Script
from trainworks.review.rule import rule

_batch_rule = partial(rule, file="train.sbatch", source="https://man.archlinux.org/man/sbatch.1.en.txt")
_BASH = "https://www.gnu.org/software/bash/manual/bash.html#Shell-Parameter-Expansion"
_MEETING = re.compile(r"\$\{?((?:MASTER|RDZV|HEAD_NODE)\w*)\}?", re.IGNORECASE)
_STARTS_ELSEWHERE = re.compile(
    r"\b(?:srun|mpirun|mpiexec|orterun|prun|ibrun|jsrun|aprun|pdsh|clush|ssh|ray|horovodrun|deepspeed|accelerate|torchrun"
    r"|torch\.distributed|parallel|dask\w*|spark\w*|nextflow|snakemake|submitit|sbatch|charmrun|NODELIST|hostfile"
    r"|hostlist|machinefile|scontrol|make)\b|\.sh\b|\beval\b"
)
"""Programs that start others on the nodes of a job, or may, and lists of these nodes."""
_PYTHON = re.compile(r"(?:\S*/)?python3?(?:\.\d+)?")


@_batch_rule(
    "TW122",
    "The meeting point is not set",
    why="Nothing sets the variable, so the option has no host or no port: the ranks of the job cannot meet. The first "
    "node of a job is known only when the job runs.",
    fix='Set it in the script: `MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`.',
    bad="#!/bin/bash\n#SBATCH --nodes=2\nsrun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d "
    "--rdzv-endpoint=$MASTER_ADDR:29500 train.py\n",
    good='#!/bin/bash\n#SBATCH --nodes=2\nMASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
    "srun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 train.py\n",
)
def unset_meeting_point(file: ReviewedFile) -> Iterator[Problem]:
    """An address or port of a launch whose name stands in the script only where it is expanded."""
    if file.batch is None or _reads_other_script(file):
        return
    for _, launch in file.launches:
        for option in ("rdzv_endpoint", "master_addr", "master_port"):
            for found in _MEETING.finditer(launch.values.get(option, "")):
                name = found[1]
                if not re.search(rf"(?<![$\w{{]){name}\b", file.text):
                    yield launch.options[option].problem(f"nothing sets `{name}`")


def _reads_other_script(file: ReviewedFile) -> bool:
    """The script reads another file that may set variables; one that activates an environment of Python does not."""
    read = [c.words for c in file.commands if c.words[0].text in ("source", ".", "eval", "read") and len(c.words) > 1]
    return any(not re.search(r"/activate$|conda\.sh$|bashrc$", words[1].text) for words in read)


@_batch_rule(
    "TW123",
    "The other nodes have nothing to do",
    "warning",
    why="Slurm runs a batch script on the first node of the job alone. The other nodes are allocated, and paid for, "
    "and start nothing.",
    fix="Start the program with `srun`, or request one node.",
    bad="#!/bin/bash\n#SBATCH --nodes=2\npython train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
)
def idle_nodes(file: ReviewedFile) -> Iterator[Problem]:
    """Python in a batch script of several nodes that names nothing by which another node could start something."""
    nodes = count_of(file.options.get("nodes"))
    code = "\n".join(line for line in file.lines if not line.lstrip().startswith("#"))
    if nodes is None or nodes < 2 or _STARTS_ELSEWHERE.search(code) or "array" in file.options:
        return
    for command in file.commands:
        word = command.words[0]
        if _PYTHON.fullmatch(word.text) and len(command.words) > 1:
            yield word.problem(f"{nodes} nodes, and the program starts on the first alone")
            return


@rule(
    "TW125",
    "A world size of 0",
    why="The number of ranks is nodes times processes per node. Multiplied by the rank of the node it is 0 on the "
    "first node, and another number on each of the others.",
    fix="Write `WORLD_SIZE=$((NNODES * GPUS_PER_NODE))`.",
    source="https://docs.pytorch.org/docs/main/distributed/elastic/run.html",
    bad="NODE_RANK=$1\nexport WORLD_SIZE=$((4 * NODE_RANK))\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    good="export WORLD_SIZE=$((4 * 8))\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def world_size_of_rank(file: ReviewedFile) -> Iterator[Problem]:
    """`WORLD_SIZE` as a product with the rank of a node."""
    product = r"\*\s*\$?\{?(?:\w*node_?rank|SLURM_NODEID|SLURM_PROCID)\b"
    for setting in file.settings:
        if setting.name == "WORLD_SIZE" and re.search(product, setting.value, re.IGNORECASE):
            yield setting.problem("the number of ranks is a multiple of a rank")


@rule(
    "TW126",
    "The variable has a longer name",
    "warning",
    why="The shell reads as many letters, digits and underscores as follow: `$name_` is another variable, which "
    "nothing sets, and the text lacks its value.",
    fix="Write `${name}_`.",
    source=_BASH,
    bad='name=small\nout="runs/$name_$SEED"\n',
    good='name=small\nout="runs/${name}_$SEED"\n',
)
def longer_name(file: ReviewedFile) -> Iterator[Problem]:
    """`$NAME_` that the shell code never sets, beside a `NAME` that it does."""
    for script in file.scripts if file.kind == "shell" else ():
        for number, line in enumerate(script.lines, start=script.first_line):
            for found in re.finditer(r"(?<!\\)\$(([A-Za-z]\w*?)_+)(?!\w)", line) if "_" in line else ():
                known = _sets(script, found[2]) and not _sets(script, found[1])
                quoted = line[: found.start()].count("'") % 2 == 1
                if known and not quoted and number not in script.comments:
                    column = script.indent + found.start() + 1
                    yield Problem(number, column, f"`${found[1]}` is the variable `{found[1]}`, which nothing sets")


def _sets(script: Script, name: str) -> bool:
    """The script gives a variable a value: by an assignment, a loop, `read`, or an option of its own."""
    return re.search(rf"(?:^|[\s;&(]){name}\+?=|\b(?:for|read|local|export)\b[^\n]*\s{name}\b", script.text) is not None


@rule(
    "TW127",
    "An empty variable deletes everything",
    why="Where the variable is empty the path is `/`, and `rm -rf` deletes the file system as far as it may.",
    fix='Write `"${NAME:?}"/`, which ends the script instead.',
    source="https://www.shellcheck.net/wiki/SC2115",
    bad='while read -r folder; do\n    rm -rf "$folder"/\ndone < list.txt\n',
    good='while read -r folder; do\n    rm -rf "${folder:?}"/\ndone < list.txt\n',
)
def deleted_root(file: ReviewedFile) -> Iterator[Problem]:
    """`rm -rf $NAME/`, where the script reads the name from a file, takes it from an argument, or never sets it."""
    if file.kind != "shell" or re.search(r"^\s*set -\w*u|nounset", file.text, re.MULTILINE):
        return
    for script in file.scripts:
        for command in script.commands:
            words = command.words[1:] if command.words[0].text in ("rm", "sudo") else ()
            flags = "".join(word.text for word in words if word.text.startswith("-"))
            for word in words if "r" in flags.lower() and "f" in flags else ():
                found = re.fullmatch(r"\$\{?(\w+)\}?/\*?", word.text)
                name = found[1] if found else ""
                if name and not re.search(rf"(?:^|[\s;&]){name}=", script.text, re.MULTILINE):
                    read = re.search(rf"\bread\b[^\n]*\s{name}\b", script.text)
                    if read or name.isdigit():
                        yield word.problem(f"`{word.raw}` is `/` where `{name}` is empty")


@_batch_rule(
    "TW606",
    "Every kernel is waited for",
    "warning",
    why="With `CUDA_LAUNCH_BLOCKING=1` the CPU waits for every kernel before it starts the next: nothing overlaps, "
    "and the GPU idles between small kernels. It is for finding the kernel that failed.",
    fix="Remove the variable when the fault is found.",
    source="https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables",
    bad="#!/bin/bash\n#SBATCH --gres=gpu:8\nexport CUDA_LAUNCH_BLOCKING=1\n"
    "torchrun --standalone --nproc-per-node=8 train.py\n",
    good="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def blocking_launches(file: ReviewedFile) -> Iterator[Problem]:
    """The variable in a script that starts a training on several GPUs, without a word of debugging beside it."""
    if file.kind not in ("shell", "yaml") or re.search("debug", file.name, re.IGNORECASE):
        return
    starts = file.launches or any(c.words[0].text in ("srun", "deepspeed", "accelerate") for c in file.commands)
    for setting in file.settings if starts else ():
        if setting.name == "CUDA_LAUNCH_BLOCKING" and setting.value == "1":
            near = "\n".join(file.lines[max(0, setting.line - 3) : setting.line])
            if not re.search(r"debug|trace|error|hang|remove|调试", near, re.IGNORECASE):
                yield setting.problem("`CUDA_LAUNCH_BLOCKING=1` for a training")
