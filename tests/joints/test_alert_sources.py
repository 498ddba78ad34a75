"""Every alert that a deployed cluster is given has a source there: a metric of an exporter that runs and is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from trainworks.api.deploying import render_stack
from trainworks.api.observing.exporter import COLLECTORS
from trainworks.observe.exporter import FAMILIES
from trainworks.observe.monitoring.rules import ALERTS, NODE_ALERTS

STACK = Path("examples/cluster/stack.yaml")
MONITORING = "roles/monitoring/files"
NODE_EXPORTER = {
    "node_filesystem_avail_bytes",
    "node_infiniband_state_id",
    "node_infiniband_link_downed_total",
}
"""Metrics of collectors that Debian's and Ubuntu's node_exporter has on. Source: its README."""
SUBJECTS = dict(zip(("runs", "queue", "gpus", "fabric", "health"), FAMILIES, strict=False))
METRIC = re.compile(r"(?<![\w:\"$])(?:DCGM_FI|trainworks|node|run)(?:_|:)[\w:]+")


@pytest.fixture(scope="module", params=["stack.yaml", "stack-two-boxes.yaml"], ids=["Slurm", "no scheduler"])
def files(request: pytest.FixtureRequest) -> dict[str, str]:
    return render_stack(STACK.with_name(request.param))


def sources(files: dict[str, str]) -> Iterator[str]:
    """Names of all metrics that Prometheus reads from the nodes, and the names that it records from them."""
    scraped = {
        each["job_name"]: each for each in yaml.safe_load(files[f"{MONITORING}/prometheus.yml"])["scrape_configs"]
    }
    variables = yaml.safe_load(files["group_vars/all.yaml"])
    for job in scraped:
        ((targets,),) = [[group["targets"] for group in json.loads(files[f"{MONITORING}/{job}.targets.json"])]]
        assert targets
        if job == "node":
            yield from NODE_EXPORTER
            continue
        hosts = {target.partition(":")[0] for target in targets}
        assert hosts == set(variables["exporters"])
        collected = {name for each in variables["exporters"].values() for name in each["options"].split()[1].split(",")}
        assert collected <= set(COLLECTORS)
        for name in collected:
            yield from (family.name for family in FAMILIES[SUBJECTS[name]])
        yield from (family.name for family in FAMILIES["The exporter"])
    for group in yaml.safe_load(files[f"{MONITORING}/recording.yml"])["groups"]:
        yield from (rule["record"] for rule in group["rules"])


def test_every_metric_of_an_alert_is_read_from_a_node(files: dict[str, str]) -> None:
    known = set(sources(files))
    rules = [rule for group in yaml.safe_load(files[f"{MONITORING}/alerts.yml"])["groups"] for rule in group["rules"]]
    given = ALERTS if "roles/scheduler/files/slurm.conf" in files else NODE_ALERTS
    assert {rule["alert"] for rule in rules} == {alert.name for alert in given}
    # without a scheduler no node saves power, and the series that would be taken away is missing
    power = "unless on (node) trainworks_node_powered_down"
    assert given is NODE_ALERTS or "trainworks_node_powered_down" in known
    read = {rule["alert"]: set(METRIC.findall(rule["expr"].replace(power, ""))) for rule in rules}
    assert {name: missing for name, found in read.items() if (missing := found - known)} == {}
    assert sorted(name for name, found in read.items() if not found) == ["ExporterDown", "NodeDown"]  # of `up`


def test_the_token_of_the_exporters_is_the_one_that_prometheus_sends(files: dict[str, str]) -> None:
    scrape = yaml.safe_load(files[f"{MONITORING}/prometheus.yml"])["scrape_configs"][0]
    assert scrape["authorization"]["credentials_file"] == "exporter.token"
    tasks = files["roles/monitoring/tasks/main.yaml"] + files["roles/monitoring/tasks/exporter.yaml"]
    assert tasks.count("{{ exporter_token }}") == 2
    own = yaml.safe_load(files["roles/monitoring/tasks/exporter.yaml"])
    (token,) = [task["ansible.builtin.copy"] for task in own if task["name"] == "Give it its token"]
    assert token["mode"] == "0600"  # the exporter refuses one that others can read
    assert (
        "--token-file /etc/trainworks/exporter.token"
        in files["roles/monitoring/templates/trainworks-exporter.service.j2"]
    )


def test_no_server_of_the_monitoring_listens_to_other_machines_without_a_token(files: dict[str, str]) -> None:
    tasks = files["roles/monitoring/tasks/main.yaml"]
    assert "--web.listen-address=127.0.0.1:" in tasks and "--cluster.listen-address=" in tasks
    assert "GF_SERVER_HTTP_ADDR=127.0.0.1" in files["roles/monitoring/tasks/grafana.yaml"]


def test_grafana_gets_all_dashboards_and_the_prometheus_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="the extra `dashboards` is not installed")
    text = STACK.read_text().replace('hook"}', 'hook", grafana: true}')
    (tmp_path / "stack.yaml").write_text(text)
    files = render_stack(tmp_path / "stack.yaml")
    given = yaml.safe_load(files["group_vars/all.yaml"])["grafana_files"]
    assert len([name for name in given if name.endswith(".json")]) == 7
    source = yaml.safe_load(files[f"{MONITORING}/grafana/provisioning/datasources/trainworks.yaml"])
    assert source["datasources"][0]["url"] == "http://127.0.0.1:9090"
