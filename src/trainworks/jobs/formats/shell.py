"""The program of one node as a bash script, and the script for LSF that starts it on all its nodes.

The script reads the index of its node from `NODE_RANK` and the address of node 0 from `MASTER_ADDR`. Values that differ
between processes are arithmetic on these, so that one script serves all nodes.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from trainworks.config.command import split_mig
from trainworks.errors import UsageError
from trainworks.jobs.formats.manifest import ascii_name
from trainworks.jobs.frameworks import Rendezvous, command_environment
from trainworks.jobs.job_spec import JobSpec, parse_dependency
from trainworks.jobs.program import Program
from trainworks.record.processes import Processes

MASTER_PORT = 29500
"""torchrun's default; a free port cannot be chosen before the nodes are known."""
_HOSTFILE = "/tmp/trainworks-hostfile"  # noqa: S108, on the nodes
TO_STDERR = '2>&"$errors" {errors}>&-'
"""Redirections that give a new process the shell's stderr."""
_WATCH = (
    "set +m",
    f"exec {TO_STDERR}",
    'stop() { for group in "${groups[@]}"; do kill -s "$1" -- "-$group" 2>/dev/null || true; done; }',
    'alive() { for group in "${groups[@]}"; do ! kill -0 -- "-$group" 2>/dev/null || return 0; done; return 1; }',
    'ranks=("${groups[@]}")',
    'while [ "${#ranks[@]}" -gt 0 ] && [ "$code" = 0 ]; do',
    "  sleep 0.2 || true",
    '  for index in "${!ranks[@]}"; do',
    '    ! kill -0 "${ranks[$index]}" 2>/dev/null || continue',
    '    wait "${ranks[$index]}" || { code=$?; break; }',
    '    unset "ranks[$index]"',
    "  done",
    "done",
    'if [ "$code" != 0 ]; then',
    "  stop TERM",
    "  for ((tenth = 0; tenth < 10 * patience; tenth++)); do alive || break; sleep 0.1 || true; done",
    "  stop KILL",
    "fi",
    'exit "$code"',
)
"""Polls the processes, because `wait -n` may miss one that has already ended."""
_ADDRESS = "<MASTER_ADDR>"
_NODE, _LOCAL = 900_001, 70_003
"""Placeholders for the index of a node and of a process on it, larger than any other number of a job."""
_PATIENCE_S = 5
"""Grace of the other ranks after one has failed; a stop gives them the grace of the job."""


def check_exportable(program: Program, language: str) -> None:
    """Refuse a framework whose launcher other systems do not provide.

    Raises:
        UsageError: the program uses such a framework.
    """
    if program.framework in ("mpi", "slurm"):
        reason = {"mpi": "mpirun needs remote access between nodes", "slurm": "a batch script needs Slurm's srun"}
        raise UsageError(
            f"cannot write `framework: {program.framework}` as {language}: {reason[program.framework]}",
            hint="use another `framework`, or none, so that each rank is started directly",
        )


def node_program(program: Program, spec: JobSpec, *, addresses: str | None, known: frozenset[str] = frozenset()) -> str:
    """Bash script for every node; it expects `NODE_RANK` and `MASTER_ADDR`, and runs the setup first.

    `addresses` is bash that prints one node address per line; None if SKYPILOT_NODE_IPS is already set. `known`
    variables are already set; MASTER_PORT may be one of them.
    """
    port = "${MASTER_PORT}" if "MASTER_PORT" in known else str(MASTER_PORT)
    env = {name: value for name, value in _environment(program, spec, port).items() if name not in program.envs}
    per_process = {name: value for name, value in env.items() if re.search(r"\bLOCAL_RANK\b|\bRANK\b", value)}
    common = {name: value for name, value in env.items() if name not in per_process}
    return "\n".join(
        [
            *([f'export SKYPILOT_NODE_IPS="$({addresses})"'] if addresses else []),
            *(f"export {name}={value}" for name, value in common.items() if name not in known),
            *_preparation(program, spec, port),
            *_setup(program),
            *_start(program, per_process, spec.grace_s),
            "",
        ]
    )


def export(name: str, value: str) -> str:
    """Line that sets a variable to a literal text."""
    return f"export {name}={shlex.quote(value)}"


def _environment(program: Program, spec: JobSpec, port: str) -> dict[str, str]:
    """Variables, with their values as bash expressions."""
    per_node = 1 if program.starts == "per_node" else program.processes_per_node
    processes = Processes(
        nodes=spec.max_nodes,
        processes_per_node=per_node,
        threads_per_process=max(1, int((spec.node.cores or 0) // per_node)),
        device="cuda" if spec.node.accelerators else "cpu",
        accelerators_per_node=spec.node.accelerators,
        starts=program.starts,
    )
    ports = tuple(range(MASTER_PORT, MASTER_PORT + processes.world_size))
    rendezvous = Rendezvous(address=_ADDRESS, ports=ports, hostfile=_HOSTFILE)
    env = command_environment(program.framework, processes, rendezvous, node=_NODE, local_rank=_LOCAL)
    unset = {"MASTER_ADDR", "NODE_RANK", "SKYPILOT_NODE_IPS", "TRAINWORKS_ATTEMPT", "JAX_LOCAL_DEVICE_IDS", "TF_CONFIG"}
    if spec.node.cores is None:
        unset.add("OMP_NUM_THREADS")
    written = {name: _quote(value, per_node, port) for name, value in env.items() if name not in unset}
    lists = {}
    if "TF_CONFIG" in env:
        config = json.dumps({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}})
        before, _, after = config.replace('"index": 0', '"index": ${RANK}').partition("[]")
        quoted = (re.sub('"', r"\"", part) for part in (before, after))
        lists["TF_CONFIG"] = '"' + "[${WORKERS%,}]".join(quoted) + '"'
    if "JAX_LOCAL_DEVICE_IDS" in env:
        each = processes.accelerators_per_node // processes.processes_per_node
        ids = (f"$((LOCAL_RANK * {each} + {index}))" for index in range(each))
        lists["JAX_LOCAL_DEVICE_IDS"] = f'"{",".join(ids)}"'
    return written | lists


def _quote(value: str, per_node: int, port: str) -> str:
    """Quoted value in which indices, addresses and a variable port become variables."""
    variables = {
        str(_NODE * per_node + _LOCAL): "${RANK}",
        str(_NODE): "${NODE_RANK}",
        str(_LOCAL): "${LOCAL_RANK}",
        _ADDRESS: "${MASTER_ADDR}",
        **({str(MASTER_PORT): port} if port != str(MASTER_PORT) else {}),
    }
    if value == str(_NODE * per_node + _LOCAL):
        return f"$((NODE_RANK * {per_node} + LOCAL_RANK))"
    pieces = re.split(f"({'|'.join(map(re.escape, variables))})", value)
    if len(pieces) == 1:
        return shlex.quote(value)
    quoted = (variables.get(piece) or re.sub(r'([\\"$`])', r"\\\1", piece) for piece in pieces)
    return f'"{"".join(quoted)}"'


def _preparation(program: Program, spec: JobSpec, port: str) -> list[str]:
    """Lines that prepare what a framework's variables refer to: a host file, or a list of workers."""
    per_node = program.processes_per_node
    if program.framework == "deepspeed":
        slots = spec.node.accelerators or per_node
        lines = f"printf 'node-%s slots={slots}\\n' $(seq 0 {spec.max_nodes - 1})"
        return [f"{lines} > {_HOSTFILE}"]
    if program.framework == "tensorflow":
        first = MASTER_PORT if port == str(MASTER_PORT) else None
        ports = " ".join(str(first + index) if first else f"$((MASTER_PORT + {index}))" for index in range(per_node))
        return [
            'WORKERS=""',
            f"for address in $SKYPILOT_NODE_IPS; do for port in {ports}; do",
            '  WORKERS+="\\"$address:$port\\","',
            "done; done",
        ]
    return []


def _setup(program: Program) -> list[str]:
    if program.setup is None:
        return []
    names = ("NODE_RANK", "NODE_IPS", "NUM_GPUS_PER_NODE")
    variables = " ".join(f'SKYPILOT_SETUP_{name}="${{SKYPILOT_{name}-}}"' for name in names)
    strict = "" if program.starts == "per_node" else "-euo pipefail "
    return [f"{variables} /bin/bash {strict}-c {shlex.quote(program.setup)}"]


def _start(program: Program, per_process: Mapping[str, str], grace_s: float) -> list[str]:
    """Start all processes of the node, each in its own process group; the first failure ends the others."""
    count = 1 if program.starts == "per_node" else program.processes_per_node
    settings = [f"export {name}={value}" for name, value in per_process.items() if name != "LOCAL_RANK"]
    return watched(
        [
            f"for ((local_rank = 0; local_rank < {count}; local_rank++)); do",
            "  (",
            *(
                f"    {line}"
                for line in (f"exec {TO_STDERR}", "trap - TERM", "export LOCAL_RANK=$local_rank", *settings)
            ),
            f"    exec {shlex.join(program.argv)}",
            "  ) &",
            "  groups+=($!)",
            "done",
        ],
        grace_s,
    )


def watched(start: Iterable[str], grace_s: float, patience_s: float = _PATIENCE_S) -> list[str]:
    """Bash that starts processes and waits for them; the first failure, or a TERM, ends all.

    The lines of `start` start every process in the background with `TO_STDERR`, and append its id to `groups`. Bash is
    silent meanwhile: it would report a process that ends before the last one has started. From TERM to KILL a stop
    leaves `grace_s`, and a failure `patience_s`.
    """
    return [
        f"code=0 patience={math.ceil(patience_s)} groups=()",
        f"trap 'code=143 patience={math.ceil(grace_s)}' TERM",
        "set -m",
        "exec {errors}>&2 2>/dev/null",
        *start,
        *_WATCH,
    ]


_LSF = "an LSF script"
_HEAD_START_S = 10
"""Time for the nodes to end their processes before the job kills them."""
_LSF_ADDRESSES = """printf '%s\\n' "$@\""""


def render_lsf(spec: JobSpec, program: Program, *, elastic: bool = False) -> str:
    """Render a script for LSF's bsub, which starts the program on all nodes; `elastic` asks for nodes that come and go.

    Raises:
        UsageError: the job needs something that LSF cannot do.
    """
    check_exportable(program, _LSF)
    if elastic:
        hint = "leave `cluster.autoscale` out; LSF's resource connector has a file of its own"
        raise UsageError("LSF jobs cannot start or stop hosts", hint=hint)
    for name, is_set in (
        ("recover.max_restarts", spec.max_restarts > 0),
        ("job.min_nodes", spec.min_nodes != spec.max_nodes),
    ):
        if is_set:
            raise UsageError(f"{_LSF} does not support `{name}`", hint=f"remove `{name}`")
    options = "".join(f"#BSUB {option}\n" for option in _lsf_options(spec, program))
    text = "\n".join(_preamble(program)) + "\n" + node_program(program, spec, addresses=_LSF_ADDRESSES)
    end = "END_OF_PROGRAM"
    while end in text.split("\n"):
        end += "_"
    start = (
        'for node in "${!hosts[@]}"; do',
        '  blaunch "${hosts[$node]}" /bin/bash "$program" "$node" "${hosts[@]}" ' + f"{TO_STDERR} &",
        "  groups+=($!)",
        "done",
    )
    kind = split_mig(spec.node.accelerator or "")[0] if spec.node.accelerators else ""
    any_kind = f"# any accelerator is accepted: add `:gmodel=` and LSF's name of {kind} to `-gpu` to require it"
    lines = [
        *([any_kind] if kind else []),
        '# Where there is jsrun instead of blaunch: jsrun --rs_per_host 1 --tasks_per_rs 1 /bin/bash "$program" ...',
        "set -euo pipefail",
        *(
            f': "${{{name}:?is not set where bsub was called}}"'
            for name, value in program.envs.items()
            if value is None
        ),
        """mapfile -t hosts < <(awk '!seen[$1]++ {print $1}' "$LSB_DJOB_HOSTFILE")""",
        'program=$(mktemp "$HOME/.trainworks-$LSB_JOBID-XXXXXX")',
        """trap 'rm -f "$program"' EXIT""",
        f"cat > \"$program\" <<'{end}'",
        f"{text}{end}",
        *watched(start, spec.grace_s + _HEAD_START_S, spec.grace_s + _HEAD_START_S),
    ]
    return "\n".join(["#!/bin/bash", options + "".join(f"{line}\n" for line in lines)])


def _lsf_options(spec: JobSpec, program: Program) -> Iterator[str]:
    node = spec.node
    slots = max(1, math.ceil(node.cores or 1))
    yield f"-J {ascii_name(spec.name)}"
    yield f"-o {ascii_name(spec.name)}.%J.log"
    yield f"-n {slots * spec.max_nodes}"
    yield f'-R "span[ptile={slots}]"'
    if node.accelerators:
        yield f'-gpu "num={node.accelerators}/host:{_lsf_part(node.accelerator)}"'
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


def _lsf_part(accelerator: str | None) -> str:
    """What of an accelerator a job has to itself: the whole, or slices by MIG, of compute where they are fewer.

    Source: `mig=GI_SIZE[/CI_SIZE]` of bsub's `-gpu`, which says nothing of the memory.
    """
    part = split_mig(accelerator or "")[1]
    sizes = re.findall(r"(\d+)[cg]\.", part or "")  # of `1c.3g.20gb` compute comes first
    return f"mig={'/'.join(reversed(sizes))}" if sizes else "j_exclusive=yes"


def _condition(text: str) -> str:
    """Dependency on a job, by LSF's number or by its name."""
    one = parse_dependency(text)
    job = one.job if one.job.isdecimal() else f'"{one.job}"'
    return f"{'done' if one.needs_success else 'ended'}({job})"


def _preamble(program: Program) -> list[str]:
    """Lines that every node runs first: its index, the working folder and the variables of the run."""
    return [
        "set -euo pipefail",
        "export NODE_RANK=$1",
        "shift",
        "export MASTER_ADDR=$1",
        *([f"cd -- {shlex.quote(program.working_folder)}"] if program.working_folder is not None else []),
        *(export(name, value) for name, value in program.envs.items() if value is not None),
    ]
