"""Metrics of the health checks of a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainworks.observe.metrics.family import MetricFamily, MetricSample

HEALTH_CODES = {"ok": 0, "warning": 1, "failed": 2, "unknown": 3}
"""Verdict -> exit code of a Nagios plugin; a check that does not apply to the node has no sample."""
HEALTH_STATUS = MetricFamily(
    "trainworks_health_check_status",
    "Verdict of a health check: 0 ok, 1 warning, 2 failed, 3 unknown.",
    labels=("check",),
    source="`trainworks health`",
)
HEALTH_AT = MetricFamily(
    "trainworks_health_timestamp_seconds", "Time of the last health checks.", source="`trainworks health`"
)
HEALTH_FAMILIES = (HEALTH_STATUS, HEALTH_AT)


def health_samples(verdicts: Mapping[str, str], checked_at: float) -> Iterator[MetricSample]:
    """Verdicts by check; those that do not apply are left out."""
    yield HEALTH_AT.of(checked_at)
    for check, verdict in verdicts.items():
        if verdict in HEALTH_CODES:
            yield HEALTH_STATUS.of(HEALTH_CODES[verdict], check)
