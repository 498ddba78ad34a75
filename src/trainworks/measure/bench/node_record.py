"""What a benchmark measured on one node: a file that is replaced atomically after every part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from trainworks.errors import EnvironmentProblem
from trainworks.files import write_atomic
from trainworks.host.processor import Processors
from trainworks.measure.bench.measurement import Measurement
from trainworks.record.environment import HostFacts
from trainworks.record.measured.bench import BenchRequest
from trainworks.record.usage import QUIET_SHARE

FOLDER = "bench"
"""Folder of the records in a run directory."""
STORAGE = "storage/"
"""Begins the name of a part; a path follows."""
OUTPUT_PREFIX = "trainworks-bench "
"""Begins the line with the record of a node that does not share the run directory."""


@dataclass(frozen=True)
class BenchPart:
    """What can be measured, and repeated, by itself."""

    figures: tuple[Measurement, ...] = ()
    skipped: str = ""
    """Why nothing was measured."""


@dataclass(frozen=True)
class NodeRecord:
    """Figures of one node with the versions that they were measured with; those of all nodes are with the first."""

    node: int
    name: str
    host: HostFacts
    processors: Processors
    tools: Mapping[str, str]
    """Versions of the programs that may measure."""
    request: BenchRequest
    nodes: tuple[str, ...]
    """Names of all nodes, in order; transfers between others are measured anew."""
    parts: Mapping[str, BenchPart] = field(default_factory=dict)
    others_share: float | None = None
    """Share of the cores that other programs used while this node measured alone; None where it is unknown."""
    is_complete: bool = False

    @property
    def is_busy(self) -> bool:
        """Whether other programs used more cores than a figure of the hardware allows."""
        return self.others_share is not None and self.others_share > QUIET_SHARE

    def to_json(self) -> str:
        """The record as one line."""
        return _RECORD.dump_json(self, warnings=False).decode()


PART = TypeAdapter(BenchPart)
_RECORD = TypeAdapter(NodeRecord)


def record_path(run_folder: Path, node: int) -> Path:
    """File of a node's record in a run directory."""
    return run_folder / FOLDER / f"node-{node}.json"


def write_record(path: Path, record: NodeRecord) -> None:
    """Replace the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, record.to_json())


def read_record(path: Path) -> NodeRecord | None:
    """The record of a file; None where there is none, or one of another version."""
    try:
        return _RECORD.validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def read_records(run_folder: Path) -> list[NodeRecord]:
    """Records of all nodes of a benchmark, in order.

    Raises:
        EnvironmentProblem: a file is not a record.
    """
    found = []
    for path in (run_folder / FOLDER).glob("node-*.json"):
        record = read_record(path)
        if record is None:
            raise EnvironmentProblem(
                f"`{path}` is not the record of a node", hint="remove it, and resume the benchmark"
            )
        found.append(record)
    return sorted(found, key=lambda record: record.node)


def records_in(lines: Iterable[str]) -> list[NodeRecord]:
    """Records that nodes printed, the last of each, in order."""
    texts = (line.partition(OUTPUT_PREFIX)[2] for line in lines if OUTPUT_PREFIX in line)
    found = {record.node: record for record in map(_RECORD.validate_json, texts)}
    return [found[node] for node in sorted(found)]
