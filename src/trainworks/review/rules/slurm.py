"""TW3xx: batch scripts and configuration files of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial
from pathlib import PurePath

from trainworks.config.slurm.sbatch_amounts import expand_nodes, parse_slurm_time
from trainworks.config.slurm.sbatch_options import KNOWN_OPTIONS
from trainworks.errors import QuantityError
from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Edit, Problem
from trainworks.review.rule import rule
from trainworks.review.versions import Releases

_SBATCH = "https://man.archlinux.org/man/sbatch.1.en.txt"
_batch_rule = partial(rule, file="train.sbatch", source=_SBATCH)
_CHANGES = "https://github.com/SchedMD/slurm/blob/master/CHANGELOG/slurm-23.11.md"
_EXCLUSIVE = (("mem", "mem-per-cpu", "mem-per-gpu"), ("cpus-per-task", "cpus-per-gpu"))
_REMOVING = Releases("slurm", since="23.11")
_REMOVED = ("cgroupautomount", "allowedkmemspace", "constrainkmemspace", "maxkmempercent", "minkmemspace")


@_batch_rule(
    "TW301",
    "#SBATCH behind the first command",
    why="sbatch stops reading options at the first line that is neither blank nor a comment. The option has no effect.",
    fix="Move the line above the first command.",
    bad="#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda\n#SBATCH --gres=gpu:8\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:8\nmodule load cuda\nsrun python train.py\n",
)
def late_option(file: ReviewedFile) -> Iterator[Problem]:
    """Every such line."""
    for number in file.batch.late if file.batch else ():
        option = file.lines[number - 1].removeprefix("#SBATCH").strip()
        yield Problem(number, 1, f"sbatch ignores `{option}`: a command precedes it")


@_batch_rule(
    "TW302",
    "sbatch refuses the line",
    why="sbatch does not submit a script with an option that it does not know or cannot read.",
    fix="Correct the option; `sbatch --help` lists all.",
    bad="#!/bin/bash\n#SBATCH --node=2 --gpu-per-node=8\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8\nsrun python train.py\n",
)
def refused_option(file: ReviewedFile) -> Iterator[Problem]:
    """An unknown option, an open quote, or a value that is missing or superfluous."""
    for problem in file.batch.problems if file.batch else ():
        # plugins of Slurm add options, such as pyxis' containers: an unknown one that is no slip of a known one
        found = re.match(r"`(.*)` is not an option of sbatch", problem.message)
        name = found[1].lstrip("-").partition("=")[0] if found else ""
        near = get_close_matches(name, KNOWN_OPTIONS, n=1, cutoff=0.85)
        if found is not None and (not found[1].startswith("--") or not near or "container" in name):
            continue
        line = int((problem.place or ":1").rpartition(":")[2])
        hint = f": {problem.hint}" if problem.hint else ""
        yield Problem(line, 1, f"{problem.message}{hint}")


@_batch_rule(
    "TW303",
    "A variable in an #SBATCH line",
    why="sbatch reads these lines itself, before a shell runs: a variable is taken literally.",
    fix="Write the value, use a pattern of sbatch such as `%x` or `%j`, or give the option on the command line.",
    bad="#!/bin/bash\n#SBATCH --output=$HOME/logs/train.out\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --output=logs/%x-%j.out\nsrun python train.py\n",
)
def variable_in_option(file: ReviewedFile) -> Iterator[Problem]:
    """A value with `$NAME`, `${NAME}` or `$(...)`."""
    for option in file.batch.options if file.batch else ():
        if re.search(r"\$(?:[A-Za-z_{(])", option.text):
            yield Problem(option.line, 1, f"`{option}` is taken literally")


@_batch_rule(
    "TW304",
    "sbatch refuses the script",
    why="A batch script begins with `#!` and the shell, and its lines end as on Unix: sbatch checks both.",
    fix="Write `#!/bin/bash` on the first line; convert the ends of lines with `sed -i 's/\\r$//'`.",
    bad="#SBATCH --nodes=2\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n",
)
def refused_script(file: ReviewedFile) -> Iterator[Problem]:
    """A script for sbatch, by its suffix, without a first line for the shell; or one with ends as on Windows."""
    if file.batch is None:
        return
    if "\r\n" in file.text:
        yield Problem(1, 1, "the lines end with a carriage return, as on Windows")
    elif not file.text.startswith("#!") and PurePath(file.name).suffix in (".sbatch", ".slurm"):
        yield Problem(1, 1, "the first line does not begin with `#!`")


@_batch_rule(
    "TW305",
    "Options that exclude each other",
    why="Slurm takes memory per node, per CPU or per GPU, and CPUs per task or per GPU. It refuses two of them, or "
    "ignores one.",
    fix="Keep one of them.",
    source=_CHANGES,
    bad="#!/bin/bash\n#SBATCH --cpus-per-task=8\n#SBATCH --cpus-per-gpu=8\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --cpus-per-gpu=8\nsrun python train.py\n",
)
def exclusive_options(file: ReviewedFile) -> Iterator[Problem]:
    """Two options of one group."""
    options = {option.name: option for option in (file.batch.options if file.batch else ())}
    for group in _EXCLUSIVE:
        written = [options[name] for name in group if name in options]
        if len(written) > 1:
            yield Problem(written[1].line, 1, f"`{written[0]}` and `{written[1]}` exclude each other")


@rule(
    "TW306",
    "Slurm does not manage the GPUs",
    why="No generic resource is enabled by default. Without `GresTypes=gpu` Slurm refuses the `Gres` of the nodes, and "
    "jobs cannot request GPUs.",
    fix="Add `GresTypes=gpu` to slurm.conf, and a gres.conf with `AutoDetect=nvml` on the nodes.",
    source="https://slurm.schedmd.com/gres.html",
    file="slurm.conf",
    bad="NodeName=gpu[1-8] CPUs=128 Gres=gpu:8\n",
    good="GresTypes=gpu\nNodeName=gpu[1-8] CPUs=128 Gres=gpu:8\n",
)
def missing_gres_types(file: ReviewedFile) -> Iterator[Problem]:
    """A slurm.conf that includes no other file, with GPUs and without the type."""
    includes = re.search(r"^[ \t]*include\s", file.text, re.IGNORECASE | re.MULTILINE)
    if not file.is_slurm_conf or includes:
        return
    types = [found.value for line in file.conf if (found := line.get("grestypes"))]
    edits = () if types else (Edit(1, 1, 0, "GresTypes=gpu\n"),)
    for line in file.conf:
        gres = line.get("gres")
        if gres and line.parameters[0].name == "nodename" and gres.value.startswith("gpu") and "gpu" not in str(types):
            yield Problem(gres.line, gres.column, f"`Gres={gres.value}` without `GresTypes=gpu`", edits)
            edits = ()


@rule(
    "TW307",
    "A plugin that Slurm removed",
    why="Slurm 23.11 removed `select/cons_res`; its daemons do not start with it.",
    fix="Use `SelectType=select/cons_tres`, which allocates GPUs as well.",
    source=_CHANGES,
    file="slurm.conf",
    bad="SelectType=select/cons_res\n",
    good="SelectType=select/cons_tres\n",
    holds_for=_REMOVING,
)
def removed_plugin(file: ReviewedFile) -> Iterator[Problem]:
    """`SelectType=select/cons_res`."""
    for line in file.conf:
        found = line.get("selecttype")
        if found and found.value.lower() == "select/cons_res":
            edits = file.edit(found.line, found.column, found.value, "select/cons_tres")
            yield Problem(found.line, found.column, "`select/cons_res` was removed in Slurm 23.11", edits)


@rule(
    "TW308",
    "A parameter that Slurm removed",
    why="Slurm 23.11 removed these parameters of cgroup.conf; an unknown parameter is an error.",
    fix="Remove the line.",
    source=_CHANGES,
    file="cgroup.conf",
    bad="CgroupAutomount=yes\nConstrainDevices=yes\n",
    good="ConstrainDevices=yes\n",
    holds_for=_REMOVING,
)
def removed_parameter(file: ReviewedFile) -> Iterator[Problem]:
    """Parameters of a cgroup.conf that Slurm 23.11 does not know."""
    if PurePath(file.name).name == "cgroup.conf":
        for line in file.conf:
            for found in line.parameters:
                if found.name in _REMOVED:
                    only = len(line.parameters) == 1 and "#" not in (whole := file.lines[found.line - 1])
                    edits = (Edit(found.line, 1, len(whole), ""),) if only else ()
                    yield Problem(found.line, found.column, f"`{found.written}` was removed in Slurm 23.11", edits)


@rule(
    "TW312",
    "Jobs see every GPU",
    "warning",
    why="Slurm hides the devices that a job did not request only with `ConstrainDevices=yes`, whose default is no. "
    "Without it two jobs on a node take the same GPU.",
    fix="Set `ConstrainDevices=yes`, and `TaskPlugin=task/cgroup` in slurm.conf.",
    source="https://slurm.schedmd.com/cgroup.conf.html",
    file="cgroup.conf",
    bad="ConstrainCores=yes\nConstrainDevices=no\n",
    good="ConstrainCores=yes\nConstrainDevices=yes\n",
)
def unconstrained_devices(file: ReviewedFile) -> Iterator[Problem]:
    """A cgroup.conf with `ConstrainDevices=no`, or without it beside a slurm.conf or gres.conf with GPUs."""
    if PurePath(file.name).name != "cgroup.conf":
        return
    set_ = [found for line in file.conf if (found := line.get("constraindevices"))]
    beside = "".join(file.read_near(name) or "" for name in ("gres.conf", "slurm.conf"))
    gpus = re.search(r"^[^#\n]*(?:Name=gpu|Gres=gpu)", beside, re.IGNORECASE | re.MULTILINE)
    if set_ and set_[-1].value.lower() == "no":
        yield Problem(set_[-1].line, set_[-1].column, "`ConstrainDevices=no`: every job sees every GPU of its nodes")
    elif not set_ and gpus and file.conf:
        yield Problem(1, 1, "no `ConstrainDevices=yes`: every job sees every GPU of its nodes")


@rule(
    "TW313",
    "A partition has nodes that are not defined",
    why="Slurm's daemons do not start with a partition of nodes without a line `NodeName`.",
    fix="Define the nodes, or correct the list of the partition.",
    source="https://slurm.schedmd.com/slurm.conf.html",
    file="slurm.conf",
    bad="GresTypes=gpu\nNodeName=gpu[1-8] Gres=gpu:8\nPartitionName=train Nodes=gpu[1-16]\n",
    good="GresTypes=gpu\nNodeName=gpu[1-8] Gres=gpu:8\nPartitionName=train Nodes=gpu[1-8]\n",
)
def undefined_nodes(file: ReviewedFile) -> Iterator[Problem]:
    """Plain lists of a slurm.conf that has nodes itself, includes no file, and has no sets or dynamic nodes."""
    other = re.search(r"^[ \t]*(?:include\s|nodeset=)|MaxNodeCount|@|\{\{|\$", file.text, re.IGNORECASE | re.MULTILINE)
    if not file.is_slurm_conf or other:
        return
    defined: set[str] = set()
    for line in file.conf:
        if line.parameters[0].name == "nodename":
            defined |= set(_nodes(line.parameters[0].value))
    for line in file.conf:
        nodes = line.get("nodes") if line.parameters[0].name == "partitionname" else None
        missing = [name for name in _nodes(nodes.value) if name not in defined] if nodes and defined else []
        if nodes and missing:
            named = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
            yield Problem(nodes.line, nodes.column, f"no line defines {named}")


def _nodes(text: str) -> list[str]:
    """Names of a list; none of one that cannot be read, of all nodes, or of a default."""
    try:
        return [] if text.upper() in ("ALL", "DEFAULT", "") else list(expand_nodes(text))
    except QuantityError:
        return []


@_batch_rule(
    "TW309",
    "An option that sbatch removed",
    why="Slurm 23.11 removed `--export-file`: sbatch does not submit a script with it.",
    fix="Set the variables with `--export=NAME=VALUE`, or in the script.",
    source=_CHANGES,
    bad="#!/bin/bash\n#SBATCH --export-file=env.txt\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --export=ALL,SEED=1\nsrun python train.py\n",
    holds_for=_REMOVING,
)
def removed_option(file: ReviewedFile) -> Iterator[Problem]:
    """`--export-file`."""
    for option in file.batch.options if file.batch else ():
        if option.name == "export-file":
            yield Problem(option.line, 1, "sbatch removed `--export-file` in Slurm 23.11")


@_batch_rule(
    "TW310",
    "sbatch cannot read the time",
    why="sbatch knows minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and "
    "days-hours:minutes:seconds, and refuses everything else.",
    fix="Write it like `90`, `24:00:00` or `2-00`.",
    bad="#!/bin/bash\n#SBATCH --time=24h\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --time=24:00:00\nsrun python train.py\n",
)
def unreadable_time(file: ReviewedFile) -> Iterator[Problem]:
    """A time limit in another form; a variable in it is found by another rule."""
    for option in file.batch.options if file.batch else ():
        if option.name in ("time", "time-min") and re.fullmatch(r"\w[\w:.-]*", option.text):
            try:
                parse_slurm_time(option.text)
            except QuantityError:
                yield Problem(option.line, 1, f"`{option}` is not a time of Slurm")


@_batch_rule(
    "TW311",
    "sbatch cannot read the list of nodes",
    why="A list of nodes is `node[1-3,7]`, with its brackets closed and the smaller number first.",
    fix="Write it like `node[1-3,7],gpu05`.",
    bad="#!/bin/bash\n#SBATCH --exclude=node[3-1]\nsrun python train.py\n",
    good="#!/bin/bash\n#SBATCH --exclude=node[1-3]\nsrun python train.py\n",
)
def unreadable_nodes(file: ReviewedFile) -> Iterator[Problem]:
    """Brackets that are open or hold a range from the larger number down; the name of a file is left out."""
    for option in file.batch.options if file.batch else ():
        if option.name in ("nodelist", "exclude") and re.fullmatch(r"[\w.,\[\]-]+", option.text):
            try:
                expand_nodes(option.text)
            except QuantityError:
                yield Problem(option.line, 1, f"`{option}` is not a list of nodes")
