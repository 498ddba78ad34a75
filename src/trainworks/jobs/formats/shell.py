"""The program of one node as a text for bash, with the variables of `job.frameworks`.

The text finds the index of its node in `NODE_RANK` and the address of node 0 in `MASTER_ADDR`. What differs between two
processes is written as arithmetic on these, so that one text serves all nodes.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping

from trainworks.errors import UsageError
from trainworks.jobs.frameworks import Meeting, command_environment
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.record.resolved import Processes

__all__ = ["MASTER_PORT", "SAY_IT", "check_can_leave", "export", "node_program", "watched"]

MASTER_PORT = 29500
"""torchrun's own; no free port can be looked for before there are nodes."""
_HOSTFILE = "/tmp/trainworks-hostfile"  # noqa: S108, on the nodes
SAY_IT = '2>&"$errors" {errors}>&-'
"""Gives a process that is being started the shell's own stderr."""
_WATCH = (
    "set +m",
    f"exec {SAY_IT}",
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
"""Looks at the processes instead of `wait -n`, which may miss one that has ended already."""
_ADDRESS = "<MASTER_ADDR>"
_NODE, _LOCAL = 900_001, 70_003
"""Stand for the indices of a node and of a process on it; no other number of a job is so large."""
_PATIENCE_S = 5
"""For the other ranks to end once one has failed; at a stop they have the ticket's grace."""


def check_can_leave(program: Program, language: str) -> None:
    """Refuse a launcher that another engine does not have.

    Raises:
        UsageError: naming it.
    """
    if program.framework in ("mpi", "slurm"):
        launcher = {"mpi": "mpirun needs a way from node to node", "slurm": "a batch script needs Slurm's srun"}
        raise UsageError(
            f"`framework: {program.framework}` cannot leave as {language}: {launcher[program.framework]}",
            hint="let the ranks be started one by one, with another `framework` or none",
        )


def node_program(program: Program, spec: JobSpec, *, addresses: str | None, known: frozenset[str] = frozenset()) -> str:
    """What bash runs on every node, once `NODE_RANK` and `MASTER_ADDR` are set; setup first.

    Args:
        program: what runs.
        spec: how many nodes there are.
        addresses: bash that prints the address of each node on a line; None where SKYPILOT_NODE_IPS is set already.
        known: variables that the engine has set already; MASTER_PORT may be one of them.
    """
    port = "${MASTER_PORT}" if "MASTER_PORT" in known else str(MASTER_PORT)
    env = {name: value for name, value in _environment(program, spec, port).items() if name not in program.envs}
    per_process = {name: value for name, value in env.items() if _mentions_process(value)}
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
    """A line that sets a variable to this very text."""
    return f"export {name}={shlex.quote(value)}"


def _environment(program: Program, spec: JobSpec, port: str) -> dict[str, str]:
    """Variables and what bash reads as their values."""
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
    meeting = Meeting(address=_ADDRESS, ports=ports, hostfile=_HOSTFILE)
    env = command_environment(program.framework, processes, meeting, node=_NODE, local_rank=_LOCAL)
    unset = {"MASTER_ADDR", "NODE_RANK", "SKYPILOT_NODE_IPS", "TRAINWORKS_ATTEMPT", "JAX_LOCAL_DEVICE_IDS", "TF_CONFIG"}
    if spec.node.cores is None:
        unset.add("OMP_NUM_THREADS")
    written = {name: _as_bash(value, per_node, port) for name, value in env.items() if name not in unset}
    return written | _of_lists(env, processes)


def _as_bash(value: str, per_node: int, port: str) -> str:
    """The value in quotes, its indices as variables, and so the port where it is one."""
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


def _of_lists(env: Mapping[str, str], processes: Processes) -> dict[str, str]:
    """Variables that list something: TensorFlow's workers, and the devices of a process under JAX."""
    found = {}
    if "TF_CONFIG" in env:
        config = json.dumps({"cluster": {"worker": []}, "task": {"type": "worker", "index": 0}})
        before, _, after = config.replace('"index": 0', '"index": ${RANK}').partition("[]")
        quoted = (re.sub('"', r"\"", part) for part in (before, after))
        found["TF_CONFIG"] = '"' + "[${WORKERS%,}]".join(quoted) + '"'
    if "JAX_LOCAL_DEVICE_IDS" in env:
        each = processes.accelerators_per_node // processes.processes_per_node
        ids = (f"$((LOCAL_RANK * {each} + {index}))" for index in range(each))
        found["JAX_LOCAL_DEVICE_IDS"] = f'"{",".join(ids)}"'
    return found


def _mentions_process(value: str) -> bool:
    return re.search(r"\bLOCAL_RANK\b|\bRANK\b", value) is not None


def _preparation(program: Program, spec: JobSpec, port: str) -> list[str]:
    """What the variables of a framework need: a host file, or a list of workers."""
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
    """All processes of the node, each with its children in a group; the first that fails ends the others."""
    count = 1 if program.starts == "per_node" else program.processes_per_node
    settings = [f"export {name}={value}" for name, value in per_process.items() if name != "LOCAL_RANK"]
    return watched(
        [
            f"for ((local_rank = 0; local_rank < {count}; local_rank++)); do",
            "  (",
            *(f"    {line}" for line in (f"exec {SAY_IT}", "trap - TERM", "export LOCAL_RANK=$local_rank", *settings)),
            f"    exec {shlex.join(program.argv)}",
            "  ) &",
            "  groups+=($!)",
            "done",
        ],
        grace_s,
    )


def watched(start: Iterable[str], grace_s: float, patience_s: float = _PATIENCE_S) -> list[str]:
    """Bash that starts processes and waits for them; the first that fails, or a TERM, ends all.

    Args:
        start: puts every process into the background with `SAY_IT`, and its id into `groups`. Bash itself is silent
            meanwhile: it would announce a process that ends before the last one has started.
        grace_s: from a TERM to a KILL.
        patience_s: the same after a failure.
    """
    return [
        f"code=0 patience={math.ceil(patience_s)} groups=()",
        f"trap 'code=143 patience={math.ceil(grace_s)}' TERM",
        "set -m",
        "exec {errors}>&2 2>/dev/null",
        *start,
        *_WATCH,
    ]
