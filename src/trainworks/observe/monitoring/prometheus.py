"""Configuration of Prometheus and Alertmanager, and the lists of nodes that Prometheus reads.

The keys are those of Prometheus 2.42 and Alertmanager 0.25 (Debian 12); later versions read them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainworks.host.listening import EXPORTER_ADDRESS, ListenAddress
from trainworks.jobs.formats.manifest import to_yaml

RULE_FILES = ("recording.yml", "alerts.yml")
EXPORTER_PORTS = {"trainworks": EXPORTER_ADDRESS.port, "node": 9100}
"""Scrape job -> port of its exporter on every node."""
OWNER = "notified_by"
"""Label of an alert that another system than Alertmanager tells people about; its value is that system."""
_TARGETS = "{}.targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringSetup:
    """What differs from site to site; `api.observing.monitor.render_monitoring` explains each."""

    scrape_interval_s: int
    alertmanager: str
    token_file: str | None
    ca_file: str | None
    page: str | None
    ticket: str | None
    kubernetes: bool = False
    slurmctld: str | None = None
    zabbix: bool = False
    teams: Mapping[str, str] = field(default_factory=dict)


def prometheus_config(setup: MonitoringSetup) -> str:
    """`prometheus.yml`: the nodes of the target files or of Kubernetes, the rules and the Alertmanager."""
    interval = f"{setup.scrape_interval_s}s"
    jobs = [_scrape(job, setup) for job in EXPORTER_PORTS]
    if setup.kubernetes:
        jobs.append(_dcgm_pods())
    if setup.slurmctld is not None:
        jobs += [_slurm(path, setup.slurmctld) for path in ("jobs", "nodes", "partitions", "scheduler")]
    return to_yaml(
        {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": list(RULE_FILES),
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [setup.alertmanager]}]}]},
            "scrape_configs": jobs,
        }
    )


def _scrape(job: str, setup: MonitoringSetup) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if job == "trainworks":
        own["honor_labels"] = True  # the queue says on which node a job is, which is not the node of the exporter
        if setup.token_file is not None:
            own["authorization"] = {"type": "Bearer", "credentials_file": setup.token_file}
        if setup.ca_file is not None:
            own |= {"scheme": "https", "tls_config": {"ca_file": setup.ca_file}}
    if setup.kubernetes:
        address = {"source_labels": ["__address__"], "regex": r"(.+):\d+", "target_label": "__address__"}
        return {
            "job_name": job,
            **own,
            "kubernetes_sd_configs": [{"role": "node"}],
            "relabel_configs": [
                address | {"replacement": f"${{1}}:{EXPORTER_PORTS[job]}"},
                {"source_labels": ["__meta_kubernetes_node_name"], "target_label": "node"},
            ],
        }
    return {
        "job_name": job,
        **own,
        "file_sd_configs": [{"files": [_TARGETS.format(job)]}],
        # a target that has the label already keeps it: its address is not its name
        "relabel_configs": [
            {"source_labels": ["node", "__address__"], "regex": r";\[?(.+?)\]?:\d+", "target_label": "node"}
        ],
    }


def _dcgm_pods() -> dict[str, Any]:
    """The pods of NVIDIA's DCGM exporter, as its Helm chart and the GPU operator label them."""
    labels = ["__meta_kubernetes_pod_label_app", "__meta_kubernetes_pod_label_app_kubernetes_io_name"]
    return {
        "job_name": "dcgm",
        "kubernetes_sd_configs": [{"role": "pod"}],
        "relabel_configs": [
            {"source_labels": labels, "regex": ".*dcgm-exporter.*", "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_container_port_number"], "regex": "9400", "action": "keep"},
            {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"},
        ],
    }


def _slurm(path: str, address: str) -> dict[str, Any]:
    """Slurm's own metrics, from 25.11 on. Source: https://slurm.schedmd.com/metrics.html."""
    targets = [{"targets": [address]}]
    return {"job_name": f"slurm-{path}", "metrics_path": f"/metrics/{path}", "static_configs": targets}


def target_files(nodes: Iterable[str]) -> dict[str, str]:
    """Lists of the exporters of these nodes, by file name; Prometheus notices when they change."""
    names = sorted(set(nodes))
    return {
        _TARGETS.format(job): json.dumps([{"targets": [str(ListenAddress(name, port)) for name in names]}], indent=2)
        + "\n"
        for job, port in EXPORTER_PORTS.items()
    }


def target_files_of_this_machine(name: str) -> dict[str, str]:
    """Lists of the exporters of this machine alone, at the address where they listen by default, under its name."""
    return {
        _TARGETS.format(job): json.dumps(
            [{"targets": [str(ListenAddress(EXPORTER_ADDRESS.host, port))], "labels": {"node": name}}], indent=2
        )
        + "\n"
        for job, port in EXPORTER_PORTS.items()
    }


def alertmanager_config(setup: MonitoringSetup) -> str:
    """`alertmanager.yml`: critical alerts page, others make a ticket, and a cause mutes its consequences.

    A team hears of its runs, too: its route continues to those of everybody.
    """
    page = {"matchers": ['severity="critical"'], "receiver": "page", "repeat_interval": "4h"}
    # Without a last route for all, that of a team would be the only one of a warning.
    severities = [page, {"receiver": "ticket"}] if setup.teams else [page]
    return to_yaml(
        {
            "route": {
                "receiver": "ticket",
                "group_by": ["node", "run"],
                "group_wait": "30s",
                "group_interval": "5m",
                "repeat_interval": "12h",
                "routes": [
                    *([{"matchers": [f'{OWNER}="zabbix"'], "receiver": "zabbix"}] if setup.zabbix else []),
                    *map(_route_of_team, setup.teams),
                    *severities,
                ],
            },
            "inhibit_rules": [
                _inhibit('alertname="NodeDown"', 'alertname!="NodeDown"', "node"),
                _inhibit('severity="critical"', 'severity="warning"', "node", 'node!=""'),
                _inhibit('alertname="RunFailed"', 'alertname!="RunFailed"', "run"),
                _inhibit('alertname="RunStalled"', 'alertname!~"RunFailed|RunStalled"', "run"),
            ],
            "receivers": [
                _receiver("page", setup.page),
                _receiver("ticket", setup.ticket),
                *([_receiver("zabbix", None)] if setup.zabbix else []),
                *(_receiver(_of_team(team), url) for team, url in setup.teams.items()),
            ],
        }
    )


def _route_of_team(team: str) -> dict[str, Any]:
    return {"matchers": [f'team="{team}"'], "receiver": _of_team(team), "continue": True}


def _of_team(team: str) -> str:
    return f"team-{team}"


def _inhibit(source: str, target: str, equal: str, *only: str) -> dict[str, Any]:
    return {"source_matchers": [source, *only], "target_matchers": [target, *only], "equal": [equal]}


def _receiver(name: str, url: str | None) -> dict[str, Any]:
    return {"name": name} | ({} if url is None else {"webhook_configs": [{"url": url, "send_resolved": True}]})
