"""TW122 to TW131, TW317 and TW318: what a batch script gives its nodes to do, and what the shell makes of it."""

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
    r"|torch\.distributed|parallel|dask\w*|spark\w*|nextflow|snakemake|submitit|sbatch|charmrun|\w*NODELIST|hostfile"
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
    read = [c.words for c in file.commands if c.words[0].text in ("source", ".", "eval", "read") and len(c.words) > 1]
    if file.batch is None or any(not re.search(r"/activate$|conda\.sh$|bashrc$", words[1].text) for words in read):
        return  # another file may set it; one that activates an environment of Python does not
    for _, launch in file.launches:
        for option in ("rdzv_endpoint", "master_addr", "master_port"):
            for found in _MEETING.finditer(launch.values.get(option, "")):
                name = found[1]
                if not re.search(rf"(?<![$\w{{]){name}\b", file.text):
                    yield launch.options[option].problem(f"nothing sets `{name}`")


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


@_batch_rule(
    "TW124",
    "The folder of the output is made too late",
    why="Slurm opens the file of `--output` before the script starts, and the script makes the folder. Where it is not "
    "there yet, the job fails at once and leaves no output.",
    fix="Make the folder before `sbatch`, or write the output into a folder that exists.",
    bad="#!/bin/bash\n#SBATCH --output=logs/%j.out\nmkdir -p logs\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --output=%j.out\nmkdir -p logs\nsrun python train.py\n",
)
def late_folder(file: ReviewedFile) -> Iterator[Problem]:
    """The script itself makes the folder that holds its output."""
    made = {
        word.text.rstrip("/").removeprefix("./")
        for c in file.commands
        if c.words[0].text == "mkdir"
        for word in c.words
    }
    for option in file.batch.options if file.batch else ():
        folder = option.text.rpartition("/")[0].removeprefix("./")
        if option.name == "output" and folder and folder in made:
            yield Problem(option.line, 1, f"the script makes `{folder}`, and Slurm opens `{option.text}` before it")


@rule(
    "TW128",
    "The variable is expanded on the other host",
    why="In single quotes the shell of the other host expands the variable, and there it is not set: the option has no "
    "value.",
    fix="Use double quotes around the remote command.",
    source=_BASH,
    bad="head=node1\nssh node2 'torchrun --nnodes=2 --node-rank=1 --master-addr=$head --nproc-per-node=8 train.py'\n",
    good='head=node1\nssh node2 "torchrun --nnodes=2 --node-rank=1 --master-addr=$head --nproc-per-node=8 train.py"\n',
)
def expanded_elsewhere(file: ReviewedFile) -> Iterator[Problem]:
    """A variable of the script, in the quoted command of an ssh, which does not set it."""
    for script in file.scripts if file.kind == "shell" else ():
        own = {setting.name for setting in script.settings}
        for command in script.commands:
            for word in command.words[1:] if command.words[0].text == "ssh" else ():
                for found in re.finditer(r"\$\{?(\w+)", word.text) if word.raw.startswith("'") else ():
                    if found[1] in own and not re.search(rf"\b{found[1]}=|\b(?:for|read) {found[1]}\b", word.text):
                        yield word.problem(f"`{found[1]}` is set here, and not on the other host")
                        break


@_batch_rule(
    "TW129",
    "Slurm sends no signal to the script",
    "warning",
    why="At the time limit Slurm sends SIGTERM, and SIGKILL soon after. It sends another signal, and some time before, "
    "only for `--signal`; the trap of the script never runs.",
    fix="Add `#SBATCH --signal=B:USR1@300`, and start the program with `&` and `wait`.",
    bad="#!/bin/bash\n#SBATCH --time=24:00:00\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\n"
    "srun python train.py &\nwait\n",
    good="#!/bin/bash\n#SBATCH --time=24:00:00 --signal=B:USR1@300\n"
    "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py &\nwait\n",
)
def unsent_signal(file: ReviewedFile) -> Iterator[Problem]:
    """A trap for a signal of users, in a batch script without `--signal` that sends none itself."""
    if file.batch is None or "signal" in file.options or re.search(r"\bkill\b|scancel|--signal|\btimeout -", file.text):
        return
    for command in file.commands:
        if command.words[0].text == "trap" and re.fullmatch(r"(?:SIG)?USR[12]", command.words[-1].text):
            yield command.words[0].problem(f"nothing asks Slurm for {command.words[-1].text}")


@_batch_rule(
    "TW130",
    "GPUs of the job have no process",
    "warning",
    why="torchrun starts fewer processes than the job has GPUs on each node: the others are allocated, and idle.",
    fix="Request as many GPUs as `--nproc-per-node` starts processes.",
    bad="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=4 train.py\n",
    good="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def idle_gpus(file: ReviewedFile) -> Iterator[Problem]:
    """The only launch of a batch script has fewer processes than `--gres` or `--gpus-per-node` gives."""
    asked = [file.options.get(name, "") for name in ("gpus-per-node", "gres")]
    found = next((m for text in asked if (m := re.fullmatch(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)", text))), None)
    alone = len(file.launches) == 1 and not re.search("CUDA_VISIBLE_DEVICES|vllm|& *$", file.text, re.MULTILINE)
    for script, launch in file.launches if found and alone else ():
        processes = script.number(launch.values.get("nproc_per_node"))
        gpus = int(found[1]) if found else 0
        if processes and processes < gpus and not launch.prefix[1:]:
            yield launch.options["nproc_per_node"].problem(f"{processes} processes, and {gpus} GPUs on each node")


@_batch_rule(
    "TW317",
    "An option with two values",
    "warning",
    why="sbatch takes the last of two values and says nothing: the other line has no effect, and one of them is wrong.",
    fix="Keep one of the lines.",
    bad="#!/bin/bash\n#SBATCH --time=1\n#SBATCH --time=00:10:00\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --time=00:10:00\nsrun python train.py\n",
)
def two_values(file: ReviewedFile) -> Iterator[Problem]:
    """Two lines with one option and different values; an option that adds to itself may come twice."""
    seen: dict[str, str] = {}
    for option in file.batch.options if file.batch else ():
        if option.name in ("time", "nodes", "ntasks", "ntasks-per-node", "mem", "cpus-per-task", "partition", "gres"):
            first = seen.setdefault(option.name, option.text)
            if first != option.text:
                yield Problem(option.line, 1, f"`{option}` replaces the value `{first}`")


_SET_BY = {
    "SLURM_GPUS": ("gpus",),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node",),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task",),
}
"""Variables that Slurm sets only where the option is given."""


@_batch_rule(
    "TW318",
    "The variable is not set for this job",
    why="Slurm sets this variable only for the option of its name. The script requests its resources in another way, "
    "so the variable is empty.",
    fix="Give the option, or a default: `${SLURM_CPUS_PER_TASK:-1}`; `SLURM_GPUS_ON_NODE` is always set.",
    bad="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=$SLURM_GPUS train.py\n",
    good="#!/bin/bash\n#SBATCH --gres=gpu:8\ntorchrun --standalone --nproc-per-node=$SLURM_GPUS_ON_NODE train.py\n",
)
def unset_for_this_job(file: ReviewedFile) -> Iterator[Problem]:
    """Such a variable without a default, in a script that has options and not this one, and that does not set it."""
    for number, line in enumerate(file.lines if file.batch else (), start=1):
        for found in re.finditer(r"\$\{?(SLURM_\w+)(?![\w:])", "" if line.lstrip().startswith("#") else line):
            needs = _SET_BY.get(found[1], ())
            asks = found[1].endswith("CPUS_PER_TASK") or any("gpu" in f"{k}={v}" for k, v in file.options.items())
            asks = asks or (found[1] == "SLURM_NTASKS_PER_NODE" and "ntasks" in file.options)
            handled = re.search(rf"{found[1]}(?:=|:[-=?])|-[zn] [^\n]*{found[1]}", file.text.replace(line, ""))
            if needs and asks and not any(name in file.options for name in needs) and not handled:
                yield Problem(number, found.start() + 1, f"`{found[1]}` is set for `--{needs[0]}` alone")
                return


@rule(
    "TW131",
    "A range of letters that is none",
    why="In the order of characters `Z` precedes `a`: grep and sed refuse the range with `Invalid range end`, and "
    "other locales take other letters.",
    fix="Write `[a-zA-Z]`.",
    source="https://www.gnu.org/software/grep/manual/grep.html#Character-Classes-and-Bracket-Expressions",
    bad="scontrol show node | grep -o 'State=[a-Z]*'\n",
    good="scontrol show node | grep -o 'State=[a-zA-Z]*'\n",
)
def reversed_range(file: ReviewedFile) -> Iterator[Problem]:
    """`[a-Z` in the words of grep, sed or awk."""
    for command in file.commands if file.kind in ("shell", "dockerfile") else ():
        for word in command.words[1:] if command.words[0].text in ("grep", "egrep", "sed", "awk", "tr") else ():
            if re.search(r"\[[^\]\s]*a-Z", word.text):
                yield word.problem("`a-Z` is not a range")
