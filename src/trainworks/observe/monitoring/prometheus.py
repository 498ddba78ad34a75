"""Configuration of Prometheus and Alertmanager: the nodes that they watch, and the exporter on those of Kubernetes.

The keys are those of Prometheus 2.42 and Alertmanager 0.25 (Debian 12); later versions read them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainworks.host.listening import EXPORTER_PORTS, ListenAddress
from trainworks.jobs.formats.manifest import container_security, to_yaml

RULE_FILES = ("recording.yml", "alerts.yml")
OWNER = "notified_by"
"""Label of an alert that another system than Alertmanager tells people about; its value is that system."""
_TARGETS = "{}.targets.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringSetup:
    """What differs from site to site."""

    scrape_interval_s: int = 15
    """Time between two scrapes, and between two looks at the rules."""
    alertmanager: str = "127.0.0.1:9093"
    token_file: str | None = None
    """Path, where Prometheus runs, of the token that the exporters want."""
    ca_file: str | None = None
    """Path, where Prometheus runs, of the authority of the exporters' certificates; None for plain HTTP."""
    page: str | None = None
    """Webhook for critical alerts."""
    ticket: str | None = None
    """Webhook for all other alerts."""
    kubernetes: bool = False
    """Find nodes and DCGM's pods through the API of the cluster that Prometheus runs in, not by files."""
    slurmctld: str | None = None
    """`HOST:PORT` of a Slurm controller of 25.11 or newer, whose own metrics are scraped, too."""
    queue: bool = True
    """An exporter gives a queue, and the runs in it; without one, no rule is about them."""
    zabbix: bool = False
    """Add a template for Zabbix; Alertmanager then sends none of the alerts that the template has."""
    docs: str | None = None
    """Address of the start page of this documentation, where people on duty can read it; without it the runbooks of
    alerts are relative addresses."""
    image: str | None = None
    """With `kubernetes`, image of an exporter that runs on every node of the cluster."""
    teams: Mapping[str, str] = field(default_factory=dict)
    """Webhook by team, the account of Slurm or the queue of Kueue: alerts of its runs go there, too."""


def prometheus_config(setup: MonitoringSetup) -> str:
    """`prometheus.yml`: the nodes of the target files or of Kubernetes, the rules and the Alertmanager."""
    interval = f"{setup.scrape_interval_s}s"
    jobs = [_scrape(job, setup) for job in EXPORTER_PORTS]
    if setup.kubernetes:
        jobs.append(_dcgm_pods())
    if setup.slurmctld is not None:
        # Slurm's own metrics, from 25.11 on. Source: https://slurm.schedmd.com/metrics.html.
        targets = [{"targets": [setup.slurmctld]}]
        jobs += [
            {"job_name": f"slurm-{path}", "metrics_path": f"/metrics/{path}", "static_configs": targets}
            for path in ("jobs", "nodes", "partitions", "scheduler")
        ]
    return to_yaml(
        {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": list(RULE_FILES),
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [setup.alertmanager]}]}]},
            "scrape_configs": jobs,
        }
    )


def _scrape(job: str, setup: MonitoringSetup) -> Mapping[str, object]:
    own: dict[str, object] = {}
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


def _dcgm_pods() -> Mapping[str, object]:
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


def target_files(nodes: Iterable[str], labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Lists of the exporters of these nodes, names or addresses, by file name; Prometheus notices when they change."""
    names = sorted(set(nodes))
    files = {}
    for job, port in EXPORTER_PORTS.items():
        group = {
            "targets": [str(ListenAddress(name, port)) for name in names],
            **({"labels": labels} if labels else {}),
        }
        files[_TARGETS.format(job)] = json.dumps([group], indent=2) + "\n"
    return files


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
                    *(
                        {"matchers": [f'team="{team}"'], "receiver": _team_receiver(team), "continue": True}
                        for team in setup.teams
                    ),
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
                *(_receiver(_team_receiver(team), url) for team, url in setup.teams.items()),
            ],
        }
    )


def _team_receiver(team: str) -> str:
    return f"team-{team}"


def _inhibit(source: str, target: str, equal: str, *only: str) -> Mapping[str, object]:
    return {"source_matchers": [source, *only], "target_matchers": [target, *only], "equal": [equal]}


def _receiver(name: str, url: str | None) -> Mapping[str, object]:
    return {"name": name} | ({} if url is None else {"webhook_configs": [{"url": url, "send_resolved": True}]})


_NAMESPACE = "trainworks-monitoring"
_NAME = "trainworks-exporter"
_TOKEN = "/etc/trainworks"  # noqa: S105, a folder
_SCRATCH = "/tmp"  # noqa: S108, in the container
_USER = 1000
_HEADER = f"""\
# kubectl create namespace {_NAMESPACE}
# kubectl create secret generic {_NAME} --namespace {_NAMESPACE} --from-literal=token="$(openssl rand -hex 32)"
# The pods use the network of their node: the namespace needs the Pod Security standard `privileged`.
# Let Prometheus read that token, and run it under the service account `{_NAMESPACE}/prometheus`.
"""


def exporter_manifest(image: str) -> str:
    """Manifest of the DaemonSet, ready for `kubectl apply`, and of the rights that Prometheus needs.

    The queue and the runs are not here: one exporter beside the queue has them. On nodes with AMD's GPUs the image
    needs `trainworks[amd]`.
    """
    return _HEADER + "---\n".join(to_yaml(document) for document in (_daemon_set(image), *_rights_of_prometheus()))


def _daemon_set(image: str) -> Mapping[str, object]:
    labels = {"app.kubernetes.io/name": _NAME}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _NAME, "namespace": _NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(image)},
        },
    }


def _pod(image: str) -> Mapping[str, object]:
    port = EXPORTER_PORTS["trainworks"]
    arguments = ["--listen", f"0.0.0.0:{port}", "--collect", "gpus,fabric,health", "--token-file", f"{_TOKEN}/token"]
    container = {
        "name": "exporter",
        "image": image,
        "command": ["trainworks", "exporter", *arguments],
        # NVIDIA's runtime gives a container the libraries of the driver, and no GPU is taken from the scheduler.
        "env": [
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "ports": [{"name": "metrics", "containerPort": port}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": container_security() | {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "token", "mountPath": _TOKEN, "readOnly": True},
            {"name": "tmp", "mountPath": _SCRATCH},
        ],
    }
    return {
        "hostNetwork": True,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "token", "secret": {"secretName": _NAME}}, {"name": "tmp", "emptyDir": {}}],
    }


def _rights_of_prometheus() -> list[Mapping[str, object]]:
    """A service account that may list nodes and pods, and nothing else."""
    name, group = "trainworks-prometheus", "rbac.authorization.k8s.io"
    rule = {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus", "namespace": _NAMESPACE}},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": "prometheus", "namespace": _NAMESPACE}],
        },
    ]
