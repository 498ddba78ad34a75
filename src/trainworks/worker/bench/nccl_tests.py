"""Collectives by nccl-tests, where it is installed: one process for a node, MPI for several nodes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from trainworks.catalog.bounds import Operation
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.mpirun import mpirun
from trainworks.host.network import node_addresses
from trainworks.record.measured.bench import BenchRequest, BenchSetting
from trainworks.worker.bench.output import print_part, program_output

_PROGRAMS: Mapping[Operation, str] = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
}
_SIZES = ("-b", "8", "-e", "16M", "-f", "8")
_FULL_SIZES = ("-b", "8", "-e", "16G", "-f", "2")
"""The programs take less themselves where the memory of an accelerator does not suffice."""
_TIMEOUT_S = 3600.0
_FIRST_RANK = re.compile(r"^#?\s*Rank\s+0\s", re.MULTILINE)


def measure_with_nccl_tests(request: BenchRequest, nodes: Sequence[str], ranks_per_node: int) -> BenchRequest:
    """Measure on the first node what nccl-tests can, one part for each operation and setting.

    Returns:
        The request without these parts. A program that is missing or fails leaves its part, and says why in the log.
    """
    done = []
    for setting in request.settings:
        for operation, program in _PROGRAMS.items():
            part = f"collectives/{operation}@{setting.name}"
            if not request.wants("collectives", part) or shutil.which(program) is None:
                continue
            try:
                text = _output(program, setting, len(nodes), ranks_per_node, full=request.full)
            except EnvironmentProblem as error:
                sys.stderr.write(f"{part}: {error.message}; measured without {program}\n")
                continue
            ranks = ranks_per_node * len(nodes)
            subject = f"{len(nodes)} nodes" if len(nodes) > 1 else f"{nodes[0]}, {ranks} ranks"
            about: dict[str, str | float] = {"operation": operation, "ranks": ranks, "nodes": len(nodes)}
            about |= {"transport": "nccl", "setting": setting.name}
            print_part(part, [program_output(text, subject, conditions=about)])
            done.append(part)
    return request.model_copy(update={"done": (*request.done, *done)})


def _output(program: str, setting: BenchSetting, nodes: int, ranks_per_node: int, *, full: bool) -> str:
    command = [program, *(_FULL_SIZES if full else _SIZES)]
    if nodes > 1:
        text = mpirun([*command, "-g", "1"], node_addresses(), ranks_per_node, setting.env)
        if len(_FIRST_RANK.findall(text)) > 1:
            raise EnvironmentProblem(f"{program} is built without MPI: its ranks measured alone")
        return text
    env = {**os.environ, **setting.env}
    done = process.run([*command, "-g", str(ranks_per_node)], env=env, timeout_s=_TIMEOUT_S)
    if done.exit_code:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EnvironmentProblem(f"{program} failed: {lines[-1] if lines else f'exit code {done.exit_code}'}")
    return done.stdout
