"""TW101 to TW107, TW115 to TW118 and TW132 to TW134: how training programs are launched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.readers import tree
from trainworks.review.readers.launch import count_of, nodes_of
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_torchrun_rule = partial(rule, source="https://docs.pytorch.org/docs/main/distributed/elastic/run.html")
_rendezvous_rule = partial(rule, source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py")
_BACKSLASH = "https://www.gnu.org/software/bash/manual/html_node/Escape-Character.html"
_LAUNCHERS = ("torchrun", "srun", "mpirun", "mpiexec", "deepspeed", "accelerate", "python", "python3")

_TORCHRUN_IS_THERE = Releases("torch", since="1.10")
_ELLIPSIS = re.compile(r"\.\.\.|…|\\\s*$")
"""A line that leaves something out, or that is continued with a blank behind its backslash: a rule of its own."""
_INTERPRETER = re.compile(r"#! ?/(?:usr/)?bin/")
_READ_BY_PROGRAMS = re.compile(
    r"[ \t]*((?:OMP|MKL|OPENBLAS)_NUM_THREADS|(?:TORCH_)?NCCL_[A-Z0-9_]+|CUDA_(?:VISIBLE_DEVICES"
    r"|DEVICE_MAX_CONNECTIONS)|PYTORCH_CUDA_ALLOC_CONF|TOKENIZERS_PARALLELISM|GLOO_SOCKET_IFNAME)"
    r"=[^\s;&|]+[ \t]*(?:#.*)?"
)
"""Variables that programs read, and a script itself hardly."""
_PASSED = r"(?:export|declare -\w*x|typeset -x|-x|--env|-e)\s[^\n]*\b{name}\b|\$\{{?{name}\b"
"""A script exports a variable, or uses it itself."""
_TASKS = re.compile(r"\$(?:SLURM_NTASKS_PER_NODE|\{SLURM_NTASKS_PER_NODE(?::[^}]*)?\})")
"""A number that is the tasks of each node."""
_STARTS = re.compile(r"^(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|srun|mpirun|mpiexec)\b")


@rule(
    "TW101",
    "A launch line breaks off",
    why="The shell ends the command at the end of the line and then tries to run the next option as a program. "
    "The launcher starts without its options.",
    fix="End the line with a backslash.",
    source=_BACKSLASH,
    bad="torchrun --nnodes=1\n  --nproc-per-node=8 train.py --lr 1e-4\n",
    good="torchrun --nnodes=1 \\\n  --nproc-per-node=8 train.py --lr 1e-4\n",
)
def missing_backslash(file: ReviewedFile) -> Iterator[Problem]:
    """A command that begins with an option, on the line below a launch."""
    for script in file.scripts:
        launch_line = 0
        for command in script.commands:
            word = command.words[0]
            above = script.lines[launch_line - script.first_line] if launch_line else ""
            is_option = re.match("--[A-Za-z]", word.text)
            if is_option and command.line == launch_line + 1 and not _ELLIPSIS.search(above):
                kept = above.rstrip()
                edit = Edit(launch_line, len(kept) + 1, len(above) - len(kept), " \\")
                yield word.problem(f"`{word.text}` is not part of the launch above", (edit,))
                launch_line = command.last_line
            else:
                launch_line = command.last_line if word.text.rpartition("/")[2] in _LAUNCHERS else 0


@rule(
    "TW102",
    "A blank follows the backslash",
    why="A backslash continues a line only directly before its end. With a blank behind it, the command ends there "
    "and the next line is run as a program.",
    fix="Remove the blanks behind the backslash.",
    source=_BACKSLASH,
    bad="torchrun --nproc-per-node=8 \\ \n  train.py\n",
    good="torchrun --nproc-per-node=8 \\\n  train.py\n",
)
def blank_after_backslash(file: ReviewedFile) -> Iterator[Problem]:
    """An escaped blank, outside of quotes, as the last word of a line."""
    for script in file.scripts:
        for command in script.commands:
            word = command.words[-1]
            line = script.lines[word.line - script.first_line]
            start = word.column - script.indent
            if re.fullmatch(r"\\[ \t]", word.raw) and not line[start:].strip():
                edit = Edit(word.line, word.column + 1, len(line) - start, "")
                yield word.problem("the line does not continue: a blank follows its backslash", (edit,))


@_torchrun_rule(
    "TW103",
    "torch.distributed.launch is deprecated",
    "note",
    why="torchrun replaces it: it restarts failed workers and assigns ranks itself. The old module passes "
    "`--local-rank` to the script, which scripts for torchrun do not accept.",
    fix="Use `torchrun`, and read the environment variable `LOCAL_RANK` in the script.",
    bad="python -m torch.distributed.launch --nproc_per_node=8 train.py\n",
    good="torchrun --nproc-per-node=8 train.py\n",
    holds_for=_TORCHRUN_IS_THERE,
)
def deprecated_launcher(file: ReviewedFile) -> Iterator[Problem]:
    """The module, in a command."""
    for _, launch in file.launches:
        if launch.deprecated:
            word, start = launch.launcher, launch.command.words[len(launch.prefix)]
            same = "use_env" in launch.options and start.line == word.line
            edits = (Edit(word.line, start.column, word.end - start.column, "torchrun"),) if same else ()
            yield word.problem("`torch.distributed.launch` is deprecated", edits)


@_rendezvous_rule(
    "TW104",
    "Several nodes without a meeting point",
    why="Without `--rdzv-endpoint` or `--master-addr`, torchrun takes 127.0.0.1:29500: every node waits for the "
    "others on itself until the rendezvous times out.",
    fix="Add `--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT` with the same host on every node.",
    bad="torchrun --nnodes=4 --nproc-per-node=8 train.py\n",
    good="torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HOST:29500 train.py\n",
    stops=True,
)
def no_rendezvous(file: ReviewedFile) -> Iterator[Problem]:
    """`--nnodes` above 1 without an endpoint, in options or in the variables of torchrun; a text may leave it out."""
    if file.kind == "text":
        return
    for script, launch in file.launches:
        nodes = nodes_of(script, launch)
        if nodes and nodes > 1 and not launch.has_rendezvous and not file.configures_torchrun:
            yield launch.options["nnodes"].problem(f"{nodes} nodes, and neither `--rdzv-endpoint` nor `--master-addr`")


@_rendezvous_rule(
    "TW105",
    "Every node has rank 0",
    why="With `--master-addr` alone torchrun uses the static rendezvous, whose `--node-rank` is 0 by default. "
    "All nodes claim the same ranks and the job never starts.",
    fix="Pass `--node-rank`, or use `--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`, which assigns the ranks.",
    bad="torchrun --nnodes=4 --nproc-per-node=8 --master-addr=10.0.0.1 train.py\n",
    good="torchrun --nnodes=4 --node-rank=$NODE_RANK --nproc-per-node=8 --master-addr=10.0.0.1 train.py\n",
    stops=True,
)
def no_node_rank(file: ReviewedFile) -> Iterator[Problem]:
    """A static rendezvous of several nodes without a node rank."""
    if file.configures_torchrun:
        return
    for script, launch in file.launches:
        nodes = nodes_of(script, launch)
        dynamic = {"rdzv_backend", "rdzv_endpoint", "node_rank", "standalone"} & launch.options.keys()
        if nodes and nodes > 1 and "master_addr" in launch.options and not dynamic and not launch.opaque:
            yield launch.options["nnodes"].problem(f"{nodes} nodes with a static rendezvous and no `--node-rank`")


@rule(
    "TW106",
    "A rank is expanded before srun",
    why="The batch script runs on the first node, and its shell replaces the variable before `srun` starts the "
    "tasks. Every task gets the value of the batch step, which is 0.",
    fix="Let the task expand it: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, in single quotes; or use "
    "`--rdzv-backend=c10d`, which needs no node rank.",
    source="https://man.archlinux.org/man/sbatch.1.en.txt",
    file="train.sbatch",
    bad="#!/bin/bash\n#SBATCH --nodes=4\nsrun torchrun --nnodes=4 --node-rank=$SLURM_NODEID --master-addr=$HEAD "
    "--nproc-per-node=8 train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=4\nsrun bash -c 'torchrun --nnodes=4 --node-rank=$SLURM_NODEID "
    "--master-addr=$HEAD --nproc-per-node=8 train.py'\n",
)
def rank_before_srun(file: ReviewedFile) -> Iterator[Problem]:
    """A rank option in an srun line of a batch script, with a variable of a task outside of single quotes."""
    if file.batch is None or count_of(file.options.get("nodes")) == 1:
        return
    for script in file.scripts:
        task_id = re.compile(r"\$\{?SLURM_(?:NODEID|PROCID)\}?")
        named = (setting.name for setting in script.settings if task_id.fullmatch(setting.value))
        early = "|".join({"SLURM_NODEID", "SLURM_PROCID", *named})
        rank = re.compile(rf"""rank[=\s"]*\$\{{?(?:{early})\b""", re.IGNORECASE)
        for command in script.commands:
            raw = ["" if word.raw.startswith("'") else word.raw for word in command.words]
            pairs = zip(raw, raw[1:], command.words[1:], strict=False)
            found = (word for before, text, word in pairs if text and rank.search(f"{before} {text}"))
            if raw[0] == "srun" and (word := next(found, None)):
                yield word.problem("the rank is expanded once, before the tasks start")


@_torchrun_rule(
    "TW107",
    "Tasks and processes multiply",
    why="srun starts torchrun once per task, and each torchrun starts its processes: their product shares the GPUs "
    "of a node, and the launchers of a node compete for one port.",
    fix="Set `--ntasks-per-node=1`: torchrun starts the processes of a node.",
    file="train.sbatch",
    bad="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n"
    "srun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n"
    "srun torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py\n",
)
def tasks_times_processes(file: ReviewedFile) -> Iterator[Problem]:
    """Several tasks per node, each of which is a torchrun of several processes."""
    tasks = count_of(file.options.get("ntasks-per-node"))
    for script, launch in file.launches:
        own = re.search(r"(?:^|\s)(?:-n|-N|--ntasks|--nodes)", " ".join(word.text for word in launch.prefix))
        written = launch.values.get("nproc_per_node") or ""
        processes = tasks if _TASKS.fullmatch(written) else script.number(written)
        if tasks and tasks > 1 and processes and processes > 1 and launch.is_under_srun and not own:
            word = launch.options["nproc_per_node"]
            total = f"{tasks} tasks x {processes} processes = {tasks * processes} processes"
            yield word.problem(f"{total} on each node")


@_rendezvous_rule(
    "TW115",
    "The address is not used",
    why="`--master-addr` belongs to the static rendezvous. With `--rdzv-backend=c10d` torchrun ignores it and warns, "
    "and the nodes have no common meeting point.",
    fix="Give the address as `--rdzv-endpoint=HOST:PORT`.",
    bad="torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --master-addr=$HEAD train.py\n",
    good="torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 train.py\n",
)
def unused_address(file: ReviewedFile) -> Iterator[Problem]:
    """`--master-addr` beside a dynamic backend and no endpoint."""
    for _, launch in file.launches:
        dynamic = launch.values.get("rdzv_backend", "static") != "static"
        named = {"rdzv_endpoint", "standalone"} & launch.options.keys()
        if dynamic and "master_addr" in launch.options and not named and not launch.opaque:
            yield launch.options["master_addr"].problem("torchrun ignores `--master-addr` with this backend")


@_rendezvous_rule(
    "TW116",
    "Standalone on several nodes",
    why="`--standalone` sets the meeting point to the local host: each node waits for the others on itself.",
    fix="Replace it by `--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`.",
    bad="torchrun --standalone --nnodes=2 --nproc-per-node=8 train.py\n",
    good="torchrun --standalone --nnodes=1 --nproc-per-node=8 train.py\n",
    stops=True,
)
def standalone_on_nodes(file: ReviewedFile) -> Iterator[Problem]:
    """`--standalone` beside `--nnodes` above 1."""
    for script, launch in file.launches:
        nodes = nodes_of(script, launch)
        if nodes and nodes > 1 and "standalone" in launch.options:
            yield launch.options["standalone"].problem(f"`--standalone` on {nodes} nodes")


@_torchrun_rule(
    "TW117",
    "An option without effect",
    "note",
    why="torchrun always sets the environment variables; `--use-env` belongs to `torch.distributed.launch` and is "
    "deprecated.",
    fix="Remove `--use-env`.",
    bad="torchrun --use_env --nproc-per-node=8 train.py\n",
    good="torchrun --nproc-per-node=8 train.py\n",
    holds_for=_TORCHRUN_IS_THERE,
)
def needless_option(file: ReviewedFile) -> Iterator[Problem]:
    """`--use-env` of torchrun."""
    for _, launch in file.launches:
        word = launch.options.get("use_env")
        if word and not launch.deprecated:
            edits = file.edit(word.line, word.column - 1, f" {word.raw}", "")
            yield word.problem("torchrun needs no `--use-env`", edits)


@_torchrun_rule(
    "TW118",
    "A rendezvous backend in maintenance",
    "note",
    why="`etcd` is in maintenance mode and will be removed; `etcd-v2` does the same with a revised implementation.",
    fix="Use `c10d`, which needs no server, or `etcd-v2`.",
    bad="torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=etcd --rdzv-endpoint=$HOST:2379 train.py\n",
    good="torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HOST:29500 train.py\n",
    holds_for=_TORCHRUN_IS_THERE,
)
def old_backend(file: ReviewedFile) -> Iterator[Problem]:
    """`--rdzv-backend=etcd`."""
    for _, launch in file.launches:
        if launch.values.get("rdzv_backend") == "etcd":
            yield launch.options["rdzv_backend"].problem("the backend `etcd` will be removed")


@rule(
    "TW132",
    "The interpreter is not named on the first line",
    "warning",
    why="The kernel reads `#!` only as the first two characters of a file. Slurm cannot start a prolog or a job whose "
    "comment comes before it, and other callers take a shell of their own.",
    fix="Move the line `#!` to the top of the file.",
    source="https://man7.org/linux/man-pages/man2/execve.2.html",
    file="prolog.sh",
    bad="# health check before each job\n#!/bin/bash\nnvidia-smi || exit 1\n",
    good="#!/bin/bash\n# health check before each job\nnvidia-smi || exit 1\n",
)
def late_interpreter(file: ReviewedFile) -> Iterator[Problem]:
    """A line `#!` behind comments and blank lines; a batch script is refused for it, and has a rule of its own."""
    if file.kind != "shell" or "#SBATCH" in file.text:
        return
    for number, line in enumerate(file.lines, start=1):
        if line.strip() and not line.startswith("#"):
            return
        if number > 1 and _INTERPRETER.match(line):
            yield Problem(number, 1, f"`{line.strip()}` is line {number}")


@rule(
    "TW133",
    "The variable is not exported",
    "warning",
    why="A shell passes only exported variables to the programs that it starts. On a line of its own the assignment "
    "stays in the shell, and the program runs with its default.",
    fix="Write `export` before it.",
    source="https://www.gnu.org/software/bash/manual/html_node/Environment.html",
    bad="OMP_NUM_THREADS=8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    good="export OMP_NUM_THREADS=8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
)
def unexported(file: ReviewedFile) -> Iterator[Problem]:
    """A variable that only programs read, alone on a line of a script that starts one, and not used in the script."""
    if file.kind != "shell" or re.search(r"^\s*set -\w*a|\bset -o allexport", file.text, re.MULTILINE):
        return
    programs = [command.line for command in file.commands if _STARTS.search(" ".join(command.texts[:4]))]
    for number, line in enumerate(file.lines, start=1):
        found = _READ_BY_PROGRAMS.fullmatch(line)
        passed = found and re.search(_PASSED.format(name=found[1]), file.text)
        if found and any(at > number for at in programs) and not passed:
            yield Problem(number, found.start(1) + 1, f"`{found[1]}` stays in the shell")


@rule(
    "TW134",
    "Fewer processes than machines",
    why="`num_processes` of accelerate counts the processes of all machines. A number that the machines do not divide "
    "leaves some without a process, and the launch stops or waits.",
    fix="Write machines times GPUs of each.",
    source="https://huggingface.co/docs/accelerate/package_reference/cli",
    file="accelerate.yaml",
    bad="compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 1\n",
    good="compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 16\n",
)
def machines_without_process(file: ReviewedFile) -> Iterator[Problem]:
    """A configuration of accelerate whose machines do not divide its processes."""
    for document in file.documents:
        processes = tree.get(document, "num_processes")
        machines, count = tree.integer(tree.get(document, "num_machines")), tree.integer(processes)
        known = tree.get(document, "distributed_type") is not None
        if known and processes is not None and machines and count and count % machines:
            yield Problem(*tree.place(processes), f"{count} processes for {machines} machines")
