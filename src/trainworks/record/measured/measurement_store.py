"""Measurements on disk: one file of JSON lines per kind of cluster of any size."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from trainworks.catalog.cluster import ClusterDescription
from trainworks.files import append_text
from trainworks.record.measured.measurement import ClusterMeasurement, cluster_key, node_key


def append_measurement(folder: Path, measurement: ClusterMeasurement) -> Path:
    """Add one measurement to those of its kind of cluster; returns the file.

    Raises:
        DiskFullError: no space left; earlier measurements stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = measurement_file(folder, measurement.cluster)
    append_text(path, measurement.model_dump_json() + "\n")
    return path


def read_measurements(folder: Path, cluster: ClusterDescription) -> list[ClusterMeasurement]:
    """All measurements of this kind of cluster, and those of one such node on any network, oldest first.

    Torn or foreign lines are skipped.
    """
    own, found = measurement_file(folder, cluster), list[ClusterMeasurement]()
    for path in sorted(folder.glob(f"{node_key(cluster)}-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValidationError):
                one = ClusterMeasurement.model_validate_json(line)
                if path == own or one.cluster.num_nodes == 1:
                    found.append(one)
    return sorted(found, key=lambda one: one.created_at)


def measurement_file(folder: Path, cluster: ClusterDescription) -> Path:
    """File of a kind of cluster."""
    return folder / f"{cluster_key(cluster)}.jsonl"
