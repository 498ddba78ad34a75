"""The counters that NVIDIA's DCGM exporter has to collect for our alerts and dashboards."""

from __future__ import annotations

import re

from trainworks.observe.metrics.gpus import GPU_FAMILIES
from trainworks.observe.monitoring.dashboards import DASHBOARDS
from trainworks.observe.monitoring.rules import ALERTS, RECORDED

_DCGM = re.compile(r"\bDCGM_FI_\w+")


def dcgm_counters() -> str:
    """The file for its option `--collectors`: field, type of Prometheus, text.

    Source: https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv
    """
    panels = (panel for dashboard in DASHBOARDS for panel in dashboard.panels)
    queries = [expr for panel in panels for expr in panel.queries.values()]
    texts = [*queries, *(alert.expr for alert in ALERTS), *(expr for expr, _ in RECORDED.values())]
    wanted = set(_DCGM.findall(" ".join(texts)))
    rows = [
        f"{family.name}, {family.kind}, {family.help.replace(',', ';')}"
        for family in GPU_FAMILIES
        if family.name in wanted
    ]
    return "\n".join(["# Field, type, text: what the alerts and dashboards of Trainworks read", *rows]) + "\n"
