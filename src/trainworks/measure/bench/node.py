"""The program of a benchmark on every node of its job: `python -m trainworks.measure.bench.node REQUEST_JSON`.

What one node can measure alone comes first, on all nodes at once; then all of them measure together. A part that the
record has is not measured again. The record is in the run directory; where that is lost with the job, it is printed.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.host import process
from trainworks.host.network import LOOPBACK
from trainworks.host.other_load import OtherLoad
from trainworks.host.probe import probe_host
from trainworks.host.processor import processors
from trainworks.measure.bench import node_record
from trainworks.measure.bench.host_programs import measure_host_link, measure_mpi, measure_triad
from trainworks.measure.bench.measurement import Measurement
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output
from trainworks.measure.bench.storage import measure_storage
from trainworks.record.measured.bench import BenchRequest

_DEVICES = "trainworks.worker.bench.devices"
_RANKS = "trainworks.worker.bench.ranks"
_TOOLS = ("cc", "fio", "ib_write_bw", "iperf3", "mpirun")
_VERSION_TIMEOUT_S = 20.0


class NodeBench:
    """The measurements of one node, and its record.

    `record` has what is known before, and what to measure; `save` keeps it after every part. `env` has the variables of
    the job: addresses and ranks.
    """

    def __init__(
        self, record: node_record.NodeRecord, save: Callable[[node_record.NodeRecord], None], env: Mapping[str, str]
    ) -> None:
        self._request, self._save, self._env = record.request, save, env
        self.record = record

    def measure(self) -> node_record.NodeRecord:
        """Measure what is missing; returns the complete record."""
        if self.record.node == 0 or "/" not in self.record.name:
            load, before = OtherLoad(), self.record.parts
            self._alone()
            if self.record.parts != before:
                self._keep(replace(self.record, others_share=load.share()))
        addresses = self._env.get("SKYPILOT_NODE_IPS", "").split() or [LOOPBACK]
        if self.record.node == 0 and "mpi" in self._request.kinds:
            of = self._request
            self._part("mpi", lambda: measure_mpi(addresses, full=of.full, built_in=of.built_in))
        if {"collectives", "network"} & set(self._request.kinds):
            known = {"done": tuple(part for part in self.record.parts if "@" in part), "group": self.record.nodes}
            place = (self._env.get("MASTER_ADDR", LOOPBACK), self._env.get("MASTER_PORT", "0"))
            arguments = (str(self.record.node), str(len(addresses)), self.record.name, *place)
            self._worker(_RANKS, self._request.model_copy(update=known), *arguments)
        self._keep(replace(self.record, is_complete=True))
        return self.record

    def _alone(self) -> None:
        request = self._request
        if "memory" in request.kinds and not request.built_in and shutil.which("nvbandwidth"):
            self._part("memory/host-link", measure_host_link, is_needed=False)
        if {"compute", "memory"} & set(request.kinds):
            done = set(self.record.parts) | ({"memory/host-torch"} if shutil.which("cc") else set())
            self._worker(_DEVICES, request.model_copy(update={"done": tuple(done)}))
        if "memory" in request.kinds:
            self._part("memory/host", lambda: measure_triad(full=request.full))
        for path in request.paths if "storage" in request.kinds else ():
            self._part(
                f"{node_record.STORAGE}{path}",
                partial(measure_storage, Path(path), full=request.full, built_in=request.built_in),
            )

    def _part(self, name: str, measure: Callable[[], list[Measurement]], *, is_needed: bool = True) -> None:
        """Add a part; one that is not needed, because another program measures it then, is left out if it fails."""
        if name in self.record.parts:
            return
        try:
            self._add(name, node_record.BenchPart(tuple(measure())))
        except TrainworksError as error:
            if is_needed:
                self._add(name, node_record.BenchPart(skipped=error.message))

    def _worker(self, module: str, request: BenchRequest, *arguments: str) -> None:
        """Add the parts that a program with torch prints."""
        name = module.rpartition(".")[2]
        if "torch" not in self.record.host.packages:
            self._add(name, node_record.BenchPart(skipped="torch is not installed on this node"))
            return
        for line in process.lines(process.python_module(module, request.model_dump_json(), *arguments)):
            found: dict[str, Any] = json.loads(line)
            if "nodes" in found:
                self._keep(replace(self.record, nodes=tuple(found["nodes"])))
            elif "part" in found:
                self._add(found["part"], read_part(found))
            else:
                return
        raise EnvironmentProblem(f"the measurement of the {name} of {self.record.name} ended too early")

    def _add(self, name: str, part: node_record.BenchPart) -> None:
        print(f"{self.record.name}: {name}: {part.skipped or 'measured'}", flush=True)  # noqa: T201, for the log
        self._keep(replace(self.record, parts={**self.record.parts, name: part}))

    def _keep(self, record: node_record.NodeRecord) -> None:
        self.record = record
        self._save(record)


def main(request_json: str) -> None:
    """Measure this node's share of a benchmark; the ranks' variables and TRAINWORKS_RUN_DIR are in the environment."""
    request, folder = BenchRequest.model_validate_json(request_json), Path(os.environ["TRAINWORKS_RUN_DIR"])
    node = int(os.environ.get("NODE_RANK", "0"))
    path = node_record.record_path(folder, node)
    before, name = node_record.read_record(path), node_name(node, os.environ)
    found = {}
    for tool in filter(shutil.which, _TOOLS):
        lines = process.run([tool, "--version"], timeout_s=_VERSION_TIMEOUT_S).stdout.splitlines()
        found[tool] = lines[0] if lines else "unknown"
    record = node_record.NodeRecord(node, name, probe_host(Path.cwd()), processors(), found, request, (name,))
    if before is not None and (before.name, before.request) == (name, request):
        record = replace(record, nodes=before.nodes, parts=before.parts, others_share=before.others_share)
    record = NodeBench(record, partial(node_record.write_record, path), os.environ).measure()
    if request.prints_record:
        print(f"{node_record.OUTPUT_PREFIX}{record.to_json()}", flush=True)  # noqa: T201, the only way from there


def node_name(node: int, env: Mapping[str, str]) -> str:
    """The scheduler's name of a node, else the host's; with `/NODE` where several nodes are one machine."""
    if name := env.get("SLURMD_NODENAME") or env.get("NODE_NAME"):
        return name
    addresses = env.get("SKYPILOT_NODE_IPS", "").split()
    return f"{socket.gethostname()}/{node}" if len(set(addresses)) < len(addresses) else socket.gethostname()


def read_part(printed: Mapping[str, Any]) -> node_record.BenchPart:
    """A part as the worker prints it; without figures where the output of another program cannot be read."""
    items = printed["figures"]
    plain = node_record.PART.validate_python(
        {"figures": [each for each in items if "output" not in each], "skipped": ""}
    )
    try:
        read = [figure for each in items if "output" in each for figure in _read_output(each)]
    except UsageError as error:
        return node_record.BenchPart(skipped=error.message)
    return node_record.BenchPart((*read, *plain.figures), str(printed["skipped"]))


def _read_output(item: Mapping[str, Any]) -> list[Measurement]:
    """Figures of an output, of the subject and conditions that the rank knows."""
    return [
        replace(
            each,
            subject=item["subject"],
            tool=f"{each.tool} {item['version']}".strip(),
            conditions={**each.conditions, **item["conditions"]},
        )
        for each in read_output(ToolOutput(f"output of {item['subject']}", item["output"]))
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
