"""Rendered monitoring, judged by Prometheus' and Alertmanager's own programs: it is valid, and every alert fires."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes import FakeClock
from tests.kubernetes.pod_security import violations
from tests.observe.prometheus import judge, program
from trainworks.api.observing import monitor
from trainworks.api.observing.monitor import follow_nodes, render_monitoring, rendered_dashboards
from trainworks.backends.backend import NodeStatus
from trainworks.cli.app import app
from trainworks.errors import ArgumentError, MissingExtraError, UnreachableError, UsageError
from trainworks.host.listening import EXPORTER_ADDRESS, listen_address
from trainworks.host.users import this_host
from trainworks.observe.exporter import FAMILIES
from trainworks.observe.monitoring.dashboards import DASHBOARDS
from trainworks.observe.monitoring.prometheus import MonitoringSetup, target_files
from trainworks.observe.monitoring.rules import ALERTS, RECORDED, AlertRule
from trainworks.observe.monitoring.zabbix import GROUPS, IN_ZABBIX

OURS = {family.name for group in FAMILIES.values() for family in group}
OF_NODE_EXPORTER = {
    *(f"node_filesystem_{name}" for name in ("avail_bytes", "size_bytes", "files", "files_free")),
    *(f"node_disk_{name}_total" for name in ("read_bytes", "written_bytes", "io_time_seconds")),
}
PAGER, TICKETS = "https://pager.example/hook", "http://tickets.example/hook"
RECORDED_NAME = re.compile(r"\b(?:run|node):\w+:\w+")
METRIC = re.compile(r"\b(?:trainworks_|DCGM_|node_[a-z]+_)\w+")


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    """A folder with all files."""
    for name, text in {
        **render_monitoring(MonitoringSetup(page=PAGER, ticket=TICKETS)),
        **target_files(["node1", "10.0.0.2", "fe80::1"]),
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_prometheus_accepts_its_configuration_and_rules(rendered: Path) -> None:
    judge("promtool", "check", "config", rendered / "prometheus.yml")


def test_prometheus_accepts_its_configuration_for_kubernetes_and_slurm(rendered: Path) -> None:
    """Debian's build has no discovery through Kubernetes: all but those keys is checked."""
    config = yaml.safe_load(
        render_monitoring(MonitoringSetup(kubernetes=True, slurmctld="head:6817"))["prometheus.yml"]
    )
    found = [job.pop("kubernetes_sd_configs", None) for job in config["scrape_configs"]]
    assert found[:3] == [[{"role": "node"}], [{"role": "node"}], [{"role": "pod"}]]
    (rendered / "prometheus.yml").write_text(yaml.safe_dump(config))
    judge("promtool", "check", "config", rendered / "prometheus.yml")


def test_the_dcgm_exporter_collects_what_alerts_and_dashboards_read() -> None:
    rows = [
        line.split(", ")
        for line in render_monitoring(MonitoringSetup(kubernetes=True))["dcgm_counters.csv"].splitlines()[1:]
    ]
    panels = [expr for page in DASHBOARDS for panel in page.panels for expr in panel.queries.values()]
    read = {name for expr in [*panels, *(alert.expr for alert in ALERTS)] for name in METRIC.findall(expr)}
    assert {field for field, _, _ in rows} == {name for name in read if name.startswith("DCGM_")}
    assert {kind for _, kind, _ in rows} == {"gauge", "counter"}


def test_every_alert_fires_where_zabbix_tells_people_of_some(rendered: Path) -> None:
    files = render_monitoring(MonitoringSetup(zabbix=True))
    for name in ("alerts.yml", "alerts_test.yml"):
        (rendered / name).write_text(files[name])
    judge("promtool", "test", "rules", rendered / "alerts_test.yml")


@pytest.mark.parametrize("zabbix", [False, True])
def test_one_system_alone_tells_people_of_an_alert(rendered: Path, zabbix: bool) -> None:
    files = render_monitoring(MonitoringSetup(zabbix=zabbix, page=PAGER, ticket=TICKETS))
    (rendered / "alertmanager.yml").write_text(files["alertmanager.yml"])
    for rule in yaml.safe_load(files["alerts.yml"])["groups"][0]["rules"]:
        labels = {name: value for name, value in rule["labels"].items() if "{{" not in value}
        by_zabbix = zabbix and rule["alert"] in IN_ZABBIX
        receiver = "zabbix" if by_zabbix else {"critical": "page", "warning": "ticket"}[labels["severity"]]
        options = ["--config.file", rendered / "alertmanager.yml", f"--verify.receivers={receiver}"]
        judge("amtool", "config", "routes", "test", *options, *(f"{name}={value}" for name, value in labels.items()))
    silent = [each["name"] for each in yaml.safe_load(files["alertmanager.yml"])["receivers"] if len(each) == 1]
    assert silent == (["zabbix"] if zabbix else [])


def test_a_trigger_of_zabbix_says_what_the_alert_says() -> None:
    template = yaml.safe_load(render_monitoring(MonitoringSetup(zabbix=True))["zabbix_template.yaml"])["zabbix_export"]
    rules = template["templates"][0]["discovery_rules"]
    triggers = [*template["triggers"], *(each for rule in rules for each in rule["trigger_prototypes"])]
    named = {trigger["name"].partition(":")[0]: trigger for trigger in triggers}
    assert named.keys() == IN_ZABBIX
    for alert in (alert for alert in ALERTS if alert.name in IN_ZABBIX):
        trigger = named[alert.name]
        assert trigger["priority"] == {"critical": "HIGH", "warning": "WARNING"}[alert.severity]
        assert alert.action in trigger["description"]
        assert trigger["url"].endswith(f"#{alert.name.lower()}")


def test_identifiers_of_the_template_are_its_own_and_stay_the_same() -> None:
    first, second = (render_monitoring(MonitoringSetup(zabbix=True))["zabbix_template.yaml"] for _ in range(2))
    found = re.findall(r"uuid: '?(\w+)", first)
    assert first == second
    assert len(set(found)) == len(found)
    assert all(UUID(each).version == 4 for each in found)


def test_zabbix_reads_what_exists() -> None:
    series = [item.series for group in GROUPS.values() for item in group.items]
    series += [group.metric for group in GROUPS.values() if group.metric]
    assert {METRIC.findall(text)[0] for text in series} <= OURS
    for group in GROUPS.values():
        keys = {item.key for item in group.items}
        assert all(set(re.findall(r"{(\w+)}", trigger.expression)) <= keys for trigger in group.triggers)


def test_alertmanager_accepts_its_configuration(rendered: Path) -> None:
    judge("amtool", "check-config", rendered / "alertmanager.yml")


def test_every_alert_fires_in_one_case_and_not_in_the_other(rendered: Path) -> None:
    judge("promtool", "test", "rules", rendered / "alerts_test.yml")


def test_an_alert_that_fires_in_its_quiet_case_is_noticed(rendered: Path) -> None:
    file = rendered / "alerts_test.yml"
    content = yaml.safe_load(file.read_text())
    for fires, quiet in zip(content["tests"][::2], content["tests"][1::2], strict=True):
        quiet["input_series"] = fires["input_series"]
        quiet["alert_rule_test"][0]["eval_time"] = fires["alert_rule_test"][0]["eval_time"]
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run([program("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    failed = set(re.findall(r"alertname: ?(\w+)", done.stdout + done.stderr))
    assert failed == {alert.name for alert in ALERTS}


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["severity=critical", "alertname=NodeDown"], "page"),
        (["severity=warning", "alertname=DiskFilling"], "ticket"),
        (["alertname=OfAnotherTeam"], "ticket"),
    ],
)
def test_severity_chooses_who_is_told(rendered: Path, labels: list[str], receiver: str) -> None:
    options = ["--config.file", rendered / "alertmanager.yml", f"--verify.receivers={receiver}"]
    judge("amtool", "config", "routes", "test", *options, *labels)


@pytest.mark.parametrize(
    ("labels", "receivers"),
    [
        (["severity=critical", "team=vision"], "team-vision,page"),
        (["severity=warning", "team=vision"], "team-vision,ticket"),
        (["severity=warning", "team=speech"], "ticket"),
        (["severity=critical"], "page"),
    ],
)
def test_a_team_hears_of_its_runs_and_others_hear_of_them_as_before(
    tmp_path: Path, labels: list[str], receivers: str
) -> None:
    teams = {"vision": "https://chat.example/vision"}
    files = render_monitoring(MonitoringSetup(page=PAGER, ticket=TICKETS, teams=teams))
    (tmp_path / "alertmanager.yml").write_text(files["alertmanager.yml"])
    judge("amtool", "check-config", tmp_path / "alertmanager.yml")
    options = ["--config.file", tmp_path / "alertmanager.yml", f"--verify.receivers={receivers}"]
    judge("amtool", "config", "routes", "test", *options, *labels)


def test_an_alert_of_a_run_has_the_team_that_the_queue_knows(rendered: Path) -> None:
    series = {f'trainworks_run_state{{run="{run}",state="FAILED"}}': "1+0x5" for run in ("a", "b")}
    series['trainworks_job_node_info{run="a",team="vision",node="node1"}'] = "1 stale"
    (alert,) = (alert for alert in ALERTS if alert.name == "RunFailed")
    alerts = [
        {
            "exp_labels": {"severity": "critical", "run": run, **team},
            "exp_annotations": {**alert.annotations(None), "summary": f"Run {run} has failed."},
        }
        for run, team in (("a", {"team": "vision"}), ("b", {}))
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": "3m", "alertname": "RunFailed", "exp_alerts": alerts}],
    }
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (rendered / "team_test.yml").write_text(yaml.safe_dump(content))
    judge("promtool", "test", "rules", rendered / "team_test.yml")


def test_kubernetes_takes_the_exporter_of_its_nodes(golden) -> None:
    text = render_monitoring(MonitoringSetup(kubernetes=True, image="registry.example/trainworks:1"))["exporter.yaml"]
    golden("monitor_exporter.yaml", text)
    found = {document["kind"]: document for document in yaml.safe_load_all(text)}
    for document in found.values():
        kubernetes_validate.validate(document, "1.34", strict=True)
    pod = found["DaemonSet"]["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[:2] == ["trainworks", "exporter"]
    help_text = CliRunner().invoke(app, ["exporter", "--help"]).output
    assert all(word in help_text for word in command if word.startswith("--"))
    assert violations(pod) == ["host network: hostNetwork=true"] or len(violations(pod)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"teams": {"a b": "https://x.example"}}, "`a b` is not the name of a team"),
        ({"teams": {"a": "x.example"}}, "`x.example` is not an HTTP address"),
        ({"image": "x"}, "an image is for nodes of Kubernetes"),
    ],
)
def test_what_is_not_a_team_or_an_exporter_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        render_monitoring(MonitoringSetup(**arguments))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_names_what_exists(alert: AlertRule) -> None:
    used = set(METRIC.findall(alert.expr))
    assert used <= OURS | OF_NODE_EXPORTER
    assert used or "up{" in alert.expr
    assert set(re.findall(r"\$labels\.(\w+)", alert.summary)) <= set(alert.fires.labels)


def test_a_recorded_series_reads_what_exists() -> None:
    expressions = " ".join(expr for expr, _ in RECORDED.values())
    assert set(METRIC.findall(RECORDED_NAME.sub("", expressions))) <= OURS
    assert set(RECORDED_NAME.findall(expressions)) <= RECORDED.keys()


def test_the_queue_says_whose_power_it_is(rendered: Path) -> None:
    """Two exporters see the same GPUs, and two see the same queue; nothing counts twice."""
    series = [
        *(
            {"series": f'DCGM_FI_DEV_POWER_USAGE{{node="{node}",UUID="GPU-{gpu}",job="{job}"}}', "values": "500 500"}
            for node, gpu in (("node1", 1), ("node1", 2), ("node2", 3), ("node3", 4))
            for job in ("trainworks", "dcgm")
        ),
        *(
            {
                "series": f'trainworks_job_node_info{{node="{node}",run="{run}",team="vision",instance="{instance}"}}',
                "values": "1 1",
            }
            for run, node in (("a", "node1"), ("a", "node2"), ("b", "node2"))
            for instance in ("login1", "login2")
        ),
    ]
    name = "run:trainworks_gpu_power:watts"
    wanted = [
        {"labels": f'{name}{{run="{run}",team="vision"}}', "value": watts} for run, watts in (("a", 1500), ("b", 500))
    ]
    test = {"interval": "1m", "input_series": series}
    test["promql_expr_test"] = [{"expr": name, "eval_time": "1m", "exp_samples": wanted}]
    content = {"rule_files": ["recording.yml"], "evaluation_interval": "1m", "tests": [test]}
    (rendered / "recording_test.yml").write_text(yaml.safe_dump(content))
    judge("promtool", "test", "rules", rendered / "recording_test.yml")


def test_an_alert_has_a_name_of_its_own() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize("name", ["prometheus.yml", "alertmanager.yml", "recording.yml"])
def test_files_read_like_this(name: str, golden) -> None:
    files = render_monitoring(
        MonitoringSetup(token_file="/etc/prometheus/token", ca_file="/etc/prometheus/ca.pem", page=PAGER)
    )
    golden(f"monitor_{name}", files[name])


def test_prometheus_finds_nodes_through_kubernetes_and_reads_slurm_like_this(golden) -> None:
    files = render_monitoring(MonitoringSetup(kubernetes=True, slurmctld="head:6817"))
    golden("monitor_prometheus_kubernetes.yml", files["prometheus.yml"])


def test_a_webhook_that_is_no_address_is_refused() -> None:
    with pytest.raises(ArgumentError, match="is not an HTTP address"):
        render_monitoring(MonitoringSetup(page="ops@example.org"))


def test_runbooks_are_pages_of_the_documentation_that_is_named() -> None:
    for docs, start in {None: "", "https://docs.site/tw/": "https://docs.site/tw/"}.items():
        files = render_monitoring(MonitoringSetup(docs=docs, zabbix=True))
        assert f"runbook_url: '{start}reference/alerts.html#nodedown'" in files["alerts.yml"]
        assert f"{start}reference/alerts.html#" in files["zabbix_template.yaml"]
        assert ".example" not in files["alerts.yml"]


def test_a_token_over_plain_http_is_warned_of() -> None:
    said: list[str] = []
    render_monitoring(MonitoringSetup(token_file="/etc/token"), notify=said.append)
    render_monitoring(MonitoringSetup(token_file="/etc/token", ca_file="/etc/ca.pem"), notify=said.append)
    assert [text.startswith("Prometheus sends the token to the exporters over plain HTTP") for text in said] == [True]


def test_targets_are_the_nodes_of_the_cluster(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["monitor", "targets", "--to", str(tmp_path)])
    assert done.exit_code == 0
    (group,) = json.loads((tmp_path / "trainworks.targets.json").read_text())
    assert group["labels"] == {"node": this_host()}


def test_the_exporter_of_this_machine_listens_where_its_target_says(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["monitor", "targets", "--to", str(tmp_path)]).exit_code == 0
    (group,) = json.loads((tmp_path / "trainworks.targets.json").read_text())
    (target,) = group["targets"]
    assert listen_address(target, None, hint="") == EXPORTER_ADDRESS
    assert f"default: {target}" in CliRunner().invoke(app, ["exporter", "--help"]).output


def test_target_files_follow_the_nodes_and_stay_while_the_backend_is_away(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, said = tmp_path / "node.targets.json", list[str]()
    answers: list[list[str] | None] = [["node1"], ["node1", "node2"], None, None, ["node2"]]
    seen: list[list[str]] = []

    def nodes() -> list[NodeStatus]:
        if path.exists():
            seen.append(json.loads(path.read_text())[0]["targets"])
        if not answers:
            raise StopIteration
        names = answers.pop(0)
        if names is None:
            raise UnreachableError("slurm does not answer")
        return [NodeStatus(name=name, state="free") for name in names]

    monkeypatch.setattr(monitor, "backend_on", lambda cluster: SimpleNamespace(nodes=nodes))
    with pytest.raises(StopIteration):
        follow_nodes(tmp_path, every_s=15, clock=clock, notify=said.append)
    both = ["node1:9100", "node2:9100"]
    assert seen == [["node1:9100"], both, both, both, ["node2:9100"]]
    assert said[0].startswith("the exporter listens on 127.0.0.1:9855 by default, where other machines cannot read it")
    assert said[1:] == ["slurm does not answer; the target files stay as they are"]


@pytest.mark.parametrize("arguments", [["render", "--follow", "--to", "x"], ["targets", "--follow"]])
def test_following_needs_a_folder_for_target_files(arguments: list[str]) -> None:
    assert isinstance(CliRunner().invoke(app, ["monitor", *arguments]).exception, UsageError)


def test_the_command_writes_the_template_of_zabbix(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["monitor", "render", "--zabbix", "--to", str(tmp_path)]).exit_code == 0
    assert (tmp_path / "zabbix_template.yaml").read_text().startswith("zabbix_export:")


def test_addresses_of_version_6_get_brackets() -> None:
    (group,) = json.loads(target_files(["fe80::1"])["node.targets.json"])
    assert group["targets"] == ["[fe80::1]:9100"]


@pytest.fixture
def dashboards() -> dict[str, dict[str, Any]]:
    """What Grafana gets, by file name."""
    pytest.importorskip("grafana_foundation_sdk")
    return {name: json.loads(text) for name, text in rendered_dashboards().items()}


def queries(dashboards: Mapping[str, dict[str, Any]]) -> list[str]:
    """Every expression, with values for the variables."""
    expressions = [
        target["expr"] for page in dashboards.values() for panel in page["panels"] for target in panel["targets"]
    ]
    return [expr.replace("$run", "stdlib-lm-1").replace("$node", "127.0.0.1") for expr in expressions]


def test_a_panel_asks_for_what_exists(dashboards: dict[str, dict[str, Any]]) -> None:
    named = {name for expr in queries(dashboards) for name in METRIC.findall(RECORDED_NAME.sub("", expr))}
    recorded = {name for expr in queries(dashboards) for name in RECORDED_NAME.findall(expr)}
    assert named <= OURS | OF_NODE_EXPORTER
    assert recorded <= RECORDED.keys()


def test_prometheus_can_parse_every_panel(dashboards: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(queries(dashboards))]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    judge("promtool", "check", "rules", tmp_path / "panels.yml")


def test_a_dashboard_is_complete(dashboards: dict[str, dict[str, Any]]) -> None:
    for name, page in dashboards.items():
        assert name == f"{page['uid']}.json"
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in page["panels"])
        assert all(
            len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) for panel in page["panels"]
        )
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in page["panels"]]
        assert len(set(places)) == len(places)


def test_dashboards_without_their_extra_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk.builders.dashboard", None)
    with pytest.raises(MissingExtraError) as caught:
        rendered_dashboards()
    assert caught.value.hint == "pip install 'trainworks[dashboards]'"
