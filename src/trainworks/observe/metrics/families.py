"""All metric families, for documentation and rules."""

from __future__ import annotations

from trainworks.observe.metrics.fabric import FABRIC_FAMILIES
from trainworks.observe.metrics.family import MetricFamily
from trainworks.observe.metrics.gpus import GPU_FAMILIES
from trainworks.observe.metrics.health import HEALTH_FAMILIES
from trainworks.observe.metrics.queue import QUEUE_FAMILIES
from trainworks.observe.metrics.runs import RUN_FAMILIES

COLLECTOR_SUCCESS = MetricFamily(
    "trainworks_exporter_collector_success",
    "1 if the collector could read everything.",
    labels=("collector",),
    source="the exporter",
)
COLLECTOR_SECONDS = MetricFamily(
    "trainworks_exporter_collector_duration_seconds",
    "Time that the collector took.",
    labels=("collector",),
    source="the exporter",
)
RUNS_UNREADABLE = MetricFamily(
    "trainworks_exporter_runs_unreadable", "Runs whose record could not be read.", source="the exporter"
)
RUNS_LEFT_OUT = MetricFamily(
    "trainworks_exporter_runs_left_out", "Running runs beyond the 200 newest.", source="the exporter"
)
FAMILIES = {
    "Runs": RUN_FAMILIES,
    "Queue": QUEUE_FAMILIES,
    "GPUs": GPU_FAMILIES,
    "Network": FABRIC_FAMILIES,
    "Health checks": HEALTH_FAMILIES,
    "The exporter": (COLLECTOR_SUCCESS, COLLECTOR_SECONDS, RUNS_UNREADABLE, RUNS_LEFT_OUT),
}
"""Families by subject."""
