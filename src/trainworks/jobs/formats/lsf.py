"""The writer of scripts for IBM Spectrum LSF: `bsub < job.lsf`.

The script requests one slot per core and calls blaunch once per node. It writes the program of a node to a file in the
home folder first: blaunch may pass its arguments through a remote shell, and such a path needs no quotes.

Source: LSF 10.1, bsub and blaunch.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from trainworks.errors import UsageError
from trainworks.jobs.dependency import parse_dependency
from trainworks.jobs.formats.shell import TO_STDERR, check_exportable, export, node_program, watched
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program

_LANGUAGE = "an LSF script"
_HEAD_START_S = 10
"""Time for the nodes to end their processes before the job kills them."""
_ADDRESSES = """printf '%s\\n' "$@\""""


def render(spec: JobSpec, program: Program) -> str:
    """Render the script.

    Raises:
        UsageError: the job needs something that LSF cannot do.
    """
    check_exportable(program, _LANGUAGE)
    for name, is_set in (
        ("recover.max_restarts", spec.max_restarts > 0),
        ("job.min_nodes", spec.min_nodes != spec.max_nodes),
    ):
        if is_set:
            raise UsageError(f"{_LANGUAGE} does not support `{name}`", hint=f"remove `{name}`")
    options = "".join(f"#BSUB {option}\n" for option in _options(spec, program))
    return "\n".join(["#!/bin/bash", options + _body(spec, program)])


def _options(spec: JobSpec, program: Program) -> Iterator[str]:
    node = spec.node
    slots = max(1, math.ceil(node.cores or 1))
    yield f"-J {spec.name}"
    yield f"-o {spec.name}.%J.log"
    yield f"-n {slots * spec.max_nodes}"
    yield f'-R "span[ptile={slots}]"'
    if node.accelerators:
        yield f'-gpu "num={node.accelerators}/host:j_exclusive=yes"'
    if node.memory_bytes:
        yield f'-R "rusage[mem={math.ceil(node.memory_bytes / 2**20)}MB/host]"'
    if spec.exclude:
        conditions = " && ".join(f"hname!='{name}'" for name in spec.exclude)
        yield f'-R "select[{conditions}]"'
    if spec.time_limit_s is not None:
        yield f"-W {math.ceil(spec.time_limit_s / 60)}"
        yield f"-wa TERM -wt {math.ceil(spec.grace_s / 60)}"
    if spec.depends_on:
        yield "-w '" + " && ".join(map(_condition, spec.depends_on)) + "'"
    if spec.priority != 50:
        yield f"-sp {max(1, spec.priority)}"
    if spec.hold:
        yield "-H"


def _condition(text: str) -> str:
    """Dependency on a job, by LSF's number or by its name."""
    one = parse_dependency(text)
    job = one.job if one.job.isdecimal() else f'"{one.job}"'
    return f"{'done' if one.needs_success else 'ended'}({job})"


def _body(spec: JobSpec, program: Program) -> str:
    text = "\n".join(_before(program)) + "\n" + node_program(program, spec, addresses=_ADDRESSES)
    end = _unused_word(text)
    start = (
        'for node in "${!hosts[@]}"; do',
        '  blaunch "${hosts[$node]}" /bin/bash "$program" "$node" "${hosts[@]}" ' + f"{TO_STDERR} &",
        "  groups+=($!)",
        "done",
    )
    lines = [
        '# Where there is jsrun instead of blaunch: jsrun --rs_per_host 1 --tasks_per_rs 1 /bin/bash "$program" ...',
        "set -euo pipefail",
        *_references(program),
        """mapfile -t hosts < <(awk '!seen[$1]++ {print $1}' "$LSB_DJOB_HOSTFILE")""",
        'program=$(mktemp "$HOME/.trainworks-$LSB_JOBID-XXXXXX")',
        """trap 'rm -f "$program"' EXIT""",
        f"cat > \"$program\" <<'{end}'",
        f"{text}{end}",
        *watched(start, spec.grace_s + _HEAD_START_S, spec.grace_s + _HEAD_START_S),
    ]
    return "".join(f"{line}\n" for line in lines)


def _before(program: Program) -> list[str]:
    """Lines that every node runs first: its index, the working folder and the variables of the run."""
    return [
        "set -euo pipefail",
        "export NODE_RANK=$1",
        "shift",
        "export MASTER_ADDR=$1",
        *_folder(program),
        *(export(name, value) for name, value in program.envs.items() if value is not None),
    ]


def _folder(program: Program) -> list[str]:
    return [f"cd -- {shlex.quote(program.working_folder)}"] if program.working_folder is not None else []


def _references(program: Program) -> list[str]:
    """Checks of the variables that bsub has to pass on from its shell."""
    missing = [name for name, value in program.envs.items() if value is None]
    return [f': "${{{name}:?is not set where bsub was called}}"' for name in missing]


def _unused_word(text: str) -> str:
    """Delimiter for a here-document that equals none of its lines."""
    lines = set(text.split("\n"))
    word = "END_OF_PROGRAM"
    while word in lines:
        word += "_"
    return word
