"""Files for Prometheus and Alertmanager: configuration, rules with their tests, and the nodes of a cluster."""

from __future__ import annotations

from urllib.parse import urlsplit

from trainworks.api.jobs import nodes
from trainworks.errors import ArgumentError
from trainworks.observe.monitoring.dashboards import DASHBOARDS, dashboard_json
from trainworks.observe.monitoring.prometheus import (
    MonitoringSetup,
    alertmanager_config,
    prometheus_config,
    target_files,
)
from trainworks.observe.monitoring.rules import alert_rules, alert_tests, recording_rules


def render_monitoring(
    *,
    scrape_interval_s: int = 15,
    alertmanager: str = "127.0.0.1:9093",
    token_file: str | None = None,
    ca_file: str | None = None,
    page: str | None = None,
    ticket: str | None = None,
) -> dict[str, str]:
    """Text of every file by its name; paths in them are relative to their folder.

    Args:
        scrape_interval_s: time between two scrapes, and between two looks at the rules.
        alertmanager: its address, `HOST:PORT`.
        token_file: path, where Prometheus runs, of the token that the exporters want.
        ca_file: path, where Prometheus runs, of the authority of the exporters' certificates; None for plain HTTP.
        page: webhook for critical alerts.
        ticket: webhook for all other alerts.

    Raises:
        ArgumentError: a webhook is not an HTTP address.
    """
    setup = MonitoringSetup(
        scrape_interval_s=scrape_interval_s,
        alertmanager=alertmanager,
        token_file=token_file,
        ca_file=ca_file,
        page=page,
        ticket=ticket,
    )
    for argument, url in {"page": page, "ticket": ticket}.items():
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise ArgumentError(f"`{url}` is not an HTTP address", argument=argument, hint="write `https://...`")
    return {
        "prometheus.yml": prometheus_config(setup),
        "recording.yml": recording_rules(),
        "alerts.yml": alert_rules(),
        "alerts_test.yml": alert_tests("alerts.yml"),
        "alertmanager.yml": alertmanager_config(setup),
    }


def rendered_dashboards() -> dict[str, str]:
    """Grafana's JSON of every dashboard, by file name.

    Raises:
        MissingExtraError: `grafana-foundation-sdk` is not installed.
    """
    return {f"trainworks-{dashboard.name}.json": dashboard_json(dashboard) for dashboard in DASHBOARDS}


def monitored_nodes(cluster: str | None = None) -> dict[str, str]:
    """Target files of the nodes of a cluster, by name.

    Args:
        cluster: this machine when None; else a backend such as `slurm`, or a run file.

    Raises:
        UsageError: no such backend.
        UnreachableError: it does not answer.
    """
    return target_files(node.name for node in nodes(cluster))
