"""Files for Prometheus, Alertmanager and Zabbix: configuration, rules with their tests, and the nodes of a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from trainworks.api.nodes import backend_on
from trainworks.api.notices import Notify, silent, warn
from trainworks.backends.local.backend import LocalBackend
from trainworks.errors import ArgumentError, EnvironmentProblem
from trainworks.files import write_atomic
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.listening import EXPORTER_ADDRESS
from trainworks.host.users import this_host
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.monitoring import prometheus
from trainworks.observe.monitoring.dashboards import DASHBOARDS, dashboard_json
from trainworks.observe.monitoring.prometheus import MonitoringSetup
from trainworks.observe.monitoring.rules import (
    ALERTS,
    NODE_ALERTS,
    alert_rules,
    alert_tests,
    dcgm_counters,
    recording_rules,
)
from trainworks.observe.monitoring.zabbix import IN_ZABBIX, zabbix_template

__all__ = [
    "MonitoringSetup",
    "follow_nodes",
    "grafana_files",
    "monitored_nodes",
    "render_monitoring",
    "rendered_dashboards",
]


def render_monitoring(setup: MonitoringSetup, *, notify: Notify = warn) -> dict[str, str]:
    """Text of every file by its name; paths in them are relative to their folder.

    `notify` receives a warning if the token would travel unencrypted.

    Raises:
        ArgumentError: a webhook or `docs` is not an HTTP address, or a team has no plain name.
    """
    of_zabbix, judged = IN_ZABBIX if setup.zabbix else (), ALERTS if setup.queue else NODE_ALERTS
    _check(setup)
    if setup.token_file is not None and setup.ca_file is None:
        notify("Prometheus sends the token to the exporters over plain HTTP; use TLS, and name their `--ca-file`")
    files = {
        "prometheus.yml": prometheus.prometheus_config(setup),
        "recording.yml": recording_rules(),
        "alerts.yml": alert_rules(of_zabbix, setup.docs, judged),
        "alerts_test.yml": alert_tests("alerts.yml", of_zabbix, setup.docs, judged),
        "alertmanager.yml": prometheus.alertmanager_config(setup),
    }
    if setup.kubernetes:
        files["dcgm_counters.csv"] = dcgm_counters()
    if setup.image is not None:
        files["exporter.yaml"] = prometheus.exporter_manifest(setup.image)
    if setup.zabbix:
        alerts = {alert.name: alert for alert in ALERTS}
        interval_s = setup.scrape_interval_s
        files["zabbix_template.yaml"] = zabbix_template(alerts, scrape_interval_s=interval_s, docs=setup.docs)
    return files


def _check(setup: MonitoringSetup) -> None:
    addresses = [("page", setup.page), ("ticket", setup.ticket), ("docs", setup.docs)]
    for argument, url in (*addresses, *(("team", url) for url in setup.teams.values())):
        if url is not None and urlsplit(url).scheme not in ("http", "https"):
            raise ArgumentError(f"`{url}` is not an HTTP address", argument=argument, hint="write `https://...`")
    if wrong := [team for team in setup.teams if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", team)]:
        hint = "write `--team vision=https://...`"
        raise ArgumentError(f"`{wrong[0]}` is not the name of a team", argument="team", hint=hint)
    if setup.image is not None and not setup.kubernetes:
        raise ArgumentError("an image is for nodes of Kubernetes", argument="image", hint="add `--kubernetes`")


def rendered_dashboards() -> dict[str, str]:
    """Grafana's JSON of every dashboard, by file name.

    Raises:
        MissingExtraError: `grafana-foundation-sdk` is not installed.
    """
    return {f"trainworks-{dashboard.name}.json": dashboard_json(dashboard) for dashboard in DASHBOARDS}


def grafana_files() -> dict[str, str]:
    """Dashboards, and the files by which Grafana finds them and Prometheus, by their paths below `grafana/`.

    Raises: as `rendered_dashboards`.
    """
    source = {"name": "Prometheus", "type": "prometheus", "url": "http://127.0.0.1:9090", "isDefault": True}
    folder = {"name": "Trainworks", "type": "file", "options": {"path": "/etc/grafana/dashboards"}}
    provisioning = "grafana/provisioning"
    return {
        f"{provisioning}/datasources/trainworks.yaml": to_yaml({"apiVersion": 1, "datasources": [source]}),
        f"{provisioning}/dashboards/trainworks.yaml": to_yaml({"apiVersion": 1, "providers": [folder]}),
        **{f"grafana/dashboards/{name}": text for name, text in rendered_dashboards().items()},
    }


def monitored_nodes(cluster: str | None = None, *, notify: Notify = warn) -> dict[str, str]:
    """Target files of the nodes of a cluster, by name.

    Those of this machine have the address where the exporter listens by default. Those of a cluster have the names of
    its nodes, where Prometheus reaches an exporter that listens beyond loopback. `cluster` is this machine when None,
    else a backend such as `slurm`, or a run file. `notify` receives how exporters of other nodes have to listen.

    Raises:
        UsageError: no such backend.
        UnreachableError: it does not answer.
    """
    backend = backend_on(cluster)
    if isinstance(backend, LocalBackend):
        return prometheus.target_files([EXPORTER_ADDRESS.host], {"node": this_host()})
    files = prometheus.target_files(node.name for node in backend.nodes())
    notify(
        f"the exporter listens on {EXPORTER_ADDRESS} by default, where other machines cannot read it: start those of "
        f"these nodes with `--listen 0.0.0.0:{EXPORTER_ADDRESS.port} --token-file FILE`"
    )
    return files


def follow_nodes(
    folder: Path,
    cluster: str | None = None,
    *,
    every_s: float,
    clock: Clock | None = None,
    notify: Notify = warn,
) -> None:
    """Keep the target files of a folder up to date; does not return.

    A file is replaced in one step, and only when its content changes. While the backend does not answer, the last files
    stay: nodes that Prometheus forgot could not be reported as down. `cluster` is as for `monitored_nodes`. `notify`
    receives a warning when the backend stops answering.

    Raises:
        UsageError: no such backend.
    """
    clock = clock or SystemClock()
    written, said = dict[str, str](), ""
    while True:
        try:
            files, problem = monitored_nodes(cluster, notify=silent if written else notify), ""
        except EnvironmentProblem as error:
            files, problem = written, str(error)
        for name in [name for name, text in files.items() if written.get(name) != text]:
            write_atomic(folder / name, files[name])
        if problem and problem != said:
            notify(f"{problem}; the target files stay as they are")
        written, said = files, problem
        clock.sleep(every_s)
