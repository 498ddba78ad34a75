"""TW72x: configuration and rules of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import yaml

from trainworks.review.files import ReviewedFile
from trainworks.review.finding import Problem
from trainworks.review.readers import tree
from trainworks.review.rule import rule

_CONFIG = "https://github.com/prometheus/prometheus/blob/main/config/config.go"
_alert_rule = partial(
    rule, file="alerts.yml", source="https://github.com/prometheus/prometheus/blob/main/model/rulefmt/rulefmt.go"
)
_DURATION = re.compile(r"(?=\d)(?:\d+y)?(?:\d+w)?(?:\d+d)?(?:\d+h)?(?:\d+m(?!s))?(?:\d+s)?(?:\d+ms)?|0")
_LARGEST = {
    r"DCGM_FI_PROF_\w+_(?:ACTIVE|OCCUPANCY)": 1.0,
    r"DCGM_FI_DEV_(?:GPU|MEM_COPY|ENC|DEC)_UTIL": 100.0,
    r"up": 1.0,
}
"""Largest value of metrics with a range."""
_COMPARISON = re.compile(
    r"(?:^|[(\s])(?:(?:avg|min|max)(?:_over_time)?\s*(?:(?:by|without)\s*\([^)]*\)\s*)?\(\s*)*"
    rf"(?P<metric>{'|'.join(_LARGEST)})(?:\{{[^}}]*\}})?(?:\[\w+\])?[\s)]*(?:(?:by|without)\s*\([^)]*\)\s*)?"
    r"(?P<sign>[<>])=?\s*(?P<value>\d+(?:\.\d+)?)(?![\w.*/])"
)
_SECONDS = {"y": 31_536_000.0, "w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATIONS = ("for", "keep_firing_for", "interval", "scrape_interval", "scrape_timeout", "evaluation_interval")
_VARIABLES = frozenset({"labels", "externalLabels", "externalURL", "value"})


@rule(
    "TW721",
    "Prometheus cannot read the duration",
    why="A duration is a number with a unit, or several from the largest unit down: `5m`, `1h30m`. Prometheus refuses "
    "the whole file for another form, and keeps the rules that it had.",
    fix="Write it like `30s`, `5m` or `1h30m`.",
    source=_CONFIG,
    file="alerts.yml",
    bad="groups:\n- name: gpu\n  rules:\n  - alert: GpuHot\n    expr: temperature > 85\n    for: 5 minutes\n",
    good="groups:\n- name: gpu\n  rules:\n  - alert: GpuHot\n    expr: temperature > 85\n    for: 5m\n",
)
def unreadable_duration(file: ReviewedFile) -> Iterator[Problem]:
    """A plain word or number that Prometheus cannot read as a duration, in a rule, a group or a scrape."""
    for mapping in (*_groups(file), *_alert_rules(file), *_scrapes(file)):
        for name in _DURATIONS:
            node = tree.get(mapping, name)
            text = tree.scalar(node) or ""
            if node is not None and re.fullmatch(r"[\w .]+", text) and not _DURATION.fullmatch(text):
                yield Problem(*tree.place(node), f"`{name}: {text}` is not a duration of Prometheus")


@rule(
    "TW722",
    "The timeout is above the interval",
    why="A scrape has to end before the next one begins: Prometheus does not start with this configuration.",
    fix="Set `scrape_timeout` to the interval or below.",
    source=_CONFIG,
    file="prometheus.yml",
    bad="scrape_configs:\n- job_name: gpu\n  scrape_interval: 5s\n  scrape_timeout: 10s\n",
    good="scrape_configs:\n- job_name: gpu\n  scrape_interval: 15s\n  scrape_timeout: 10s\n",
)
def late_timeout(file: ReviewedFile) -> Iterator[Problem]:
    """Both written in the same place, with the timeout above."""
    for mapping in _scrapes(file):
        timeout, interval = tree.get(mapping, "scrape_timeout"), tree.get(mapping, "scrape_interval")
        limits = _seconds(tree.scalar(timeout)), _seconds(tree.scalar(interval))
        if timeout is not None and limits[0] is not None and limits[1] is not None and limits[0] > limits[1]:
            message = f"a timeout of {tree.scalar(timeout)} in an interval of {tree.scalar(interval)}"
            yield Problem(*tree.place(timeout), message)


@_alert_rule(
    "TW723",
    "An unknown variable in a template",
    why="A template of an alert has `$labels`, `$externalLabels`, `$externalURL` and `$value`. Prometheus refuses the "
    "file for any other name.",
    fix="Write `$labels.NAME` for a label, and `$value` for the value.",
    bad="groups:\n- name: gpu\n  rules:\n  - alert: GpuHot\n    expr: temperature > 85\n    annotations:\n"
    '      summary: "GPU {{ $label.gpu }} is hot"\n',
    good="groups:\n- name: gpu\n  rules:\n  - alert: GpuHot\n    expr: temperature > 85\n    annotations:\n"
    '      summary: "GPU {{ $labels.gpu }} is hot"\n',
)
def unknown_variable(file: ReviewedFile) -> Iterator[Problem]:
    """A variable that neither Prometheus nor the text defines, in a file without templates of Helm."""
    if re.search(r"\{\{-?\s*(?:\.Values|\.Release|include|\$\.|`)", file.text):
        return
    for alert in _alert_rules(file):
        for key in ("labels", "annotations"):
            for _, node in tree.entries(tree.get(alert, key)).values():
                text = tree.scalar(node) or ""
                own = {name for pair in re.findall(r"\$(\w+)\s*(?:,\s*\$(\w+)\s*)?:=", text) for name in pair}
                used = {name for block in re.findall(r"\{\{(.*?)\}\}", text) for name in re.findall(r"\$(\w+)", block)}
                for name in sorted(used - own - _VARIABLES):
                    yield Problem(*tree.place(node), f"`${name}` is not a variable of alerts")


@_alert_rule(
    "TW724",
    "Prometheus refuses the rule",
    why="A rule has an expression, and either `alert` or `record`; a recording rule has neither `for` nor annotations. "
    "Prometheus refuses the whole file for one such rule, and keeps the rules that it had.",
    fix="Add or remove the key that the message names.",
    bad="groups:\n- name: gpu\n  rules:\n  - record: gpu:use:mean\n    expr: avg(use)\n    for: 5m\n",
    good="groups:\n- name: gpu\n  rules:\n  - record: gpu:use:mean\n    expr: avg(use)\n",
)
def refused_rule(file: ReviewedFile) -> Iterator[Problem]:
    """A missing or superfluous key."""
    for mapping in _alert_rules(file):
        keys = tree.entries(mapping).keys()
        wrong = [key for key in ("for", "keep_firing_for", "annotations") if key in keys and "record" in keys]
        said = (
            "the rule has `alert` and `record`"
            if {"alert", "record"} <= keys
            else "the rule has neither `alert` nor `record`"
            if not {"alert", "record"} & keys
            else "the rule has no `expr`"
            if "expr" not in keys
            else f"a recording rule has no `{wrong[0]}`"
            if wrong
            else ""
        )
        if said:
            yield Problem(*tree.place(mapping), said)


@_alert_rule(
    "TW725",
    "A threshold outside the range of its metric",
    "warning",
    why="The metric never reaches the threshold, or is always below it: the alert never fires, or always. DCGM's "
    "profiling metrics are ratios from 0 to 1, its utilisations percentages.",
    fix="Write the threshold in the unit of the metric.",
    source="https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv",
    bad="groups:\n- name: gpu\n  rules:\n  - alert: GpuIdle\n    expr: DCGM_FI_PROF_GR_ENGINE_ACTIVE < 20\n",
    good="groups:\n- name: gpu\n  rules:\n  - alert: GpuIdle\n    expr: DCGM_FI_PROF_GR_ENGINE_ACTIVE < 0.2\n",
)
def threshold_out_of_range(file: ReviewedFile) -> Iterator[Problem]:
    """A comparison of a metric, or of its average or extreme, with a number above its largest value."""
    for alert in _alert_rules(file):
        node = tree.get(alert, "expr")
        for found in _COMPARISON.finditer(tree.scalar(node) or ""):
            most = next(limit for name, limit in _LARGEST.items() if re.fullmatch(name, found["metric"]))
            value = float(found["value"])
            before = (tree.scalar(node) or "")[: found.start("metric")]
            if re.search(r"sum|count|increase|delta|rate|timestamp|changes|resets|[-+*/]\s*$", before):
                continue  # of another quantity than the metric
            if node is not None and (value > most or (value == most and found["sign"] == ">")):
                message = f"`{found['metric']}` is at most {most:g}, and is compared with {found['value']}"
                yield Problem(*tree.place(node), message)


@_alert_rule(
    "TW726",
    "A rate of a value that rises and falls",
    "warning",
    why="`rate` and `increase` are for counters: they take every fall of the value for a restart and add what comes "
    "after it. Of a temperature, a share or the number of the last XID error they mean nothing.",
    fix="Use `avg_over_time`, `max_over_time` or `delta`; of XID errors `changes(...) > 0`.",
    source="https://prometheus.io/docs/prometheus/latest/querying/functions/#rate",
    bad="groups:\n- name: gpu\n  rules:\n  - alert: Xid\n    expr: increase(DCGM_FI_DEV_XID_ERRORS[5m]) > 0\n",
    good="groups:\n- name: gpu\n  rules:\n  - alert: Xid\n    expr: changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0\n",
)
def rate_of_gauge(file: ReviewedFile) -> Iterator[Problem]:
    """`rate`, `irate` or `increase` of a metric of DCGM that is a gauge."""
    gauges = (
        r"DCGM_FI_DEV_(?:XID_ERRORS|GPU_UTIL|GPU_TEMP|MEMORY_TEMP|POWER_USAGE|FB_USED|FB_FREE|SM_CLOCK|MEM_COPY_UTIL)"
    )
    for alert in _alert_rules(file):
        node = tree.get(alert, "expr")
        found = re.search(rf"\b(i?rate|increase)\(\s*({gauges})\b", tree.scalar(node) or "")
        if node is not None and found:
            yield Problem(*tree.place(node), f"`{found[1]}` of `{found[2]}`, which is a gauge")


def _groups(file: ReviewedFile) -> Iterator[yaml.Node]:
    """Groups of rules, in a file of rules or a PrometheusRule."""
    for document in file.documents:
        for root in (document, tree.get(document, "spec")):
            for group in tree.items(tree.get(root, "groups")):
                if {"name", "rules"} <= tree.entries(group).keys():
                    yield group


def _alert_rules(file: ReviewedFile) -> Iterator[yaml.Node]:
    """Rules of groups in which at least one is a rule of Prometheus."""
    for group in _groups(file):
        rules = tree.items(tree.get(group, "rules"))
        if any({"expr"} < tree.entries(rule).keys() & {"expr", "alert", "record"} for rule in rules):
            yield from (rule for rule in rules if isinstance(rule, yaml.MappingNode))


def _scrapes(file: ReviewedFile) -> Iterator[yaml.Node]:
    """Global settings and scrapes of a configuration of Prometheus."""
    for document in file.documents:
        if "scrape_configs" in tree.entries(document):
            settings = tree.get(document, "global")
            yield from (settings,) if settings is not None else ()
            yield from tree.items(tree.get(document, "scrape_configs"))


def _seconds(text: str | None) -> float | None:
    if not text or not _DURATION.fullmatch(text):
        return None
    return sum(int(count) * _SECONDS[unit] for count, unit in re.findall(r"(\d+)(ms|[ywdhms])", text))


_AGE = re.compile(r"\btime\(\)\s*-\s*(?:\w+\s*(?:by\s*\([^)]*\)\s*)?\(\s*)*(?P<metric>[a-zA-Z_:][\w:]*)\s*[{\[)]")
_A_TIME = re.compile(
    "time|stamp|start|boot|last|created|seen|epoch|since|modified|expir|updat|success|_at$|heartbeat|complet|finish|date|eta",
    re.IGNORECASE,
)


@_alert_rule(
    "TW727",
    "The age of a value that does not tell a time",
    why="`time()` is seconds since 1970. Less the value of another metric than a time it stays about 1.7e9: the alert "
    "always fires.",
    fix="Take `timestamp(METRIC)`, which is the time of the sample, or `changes(METRIC[5m]) == 0` for a value that no "
    "longer changes.",
    source="https://prometheus.io/docs/prometheus/latest/querying/functions/#timestamp",
    bad="groups:\n- name: gpu\n  rules:\n  - alert: Stalled\n    expr: time() - max(tokens_per_second{job='a'}) > 9\n",
    good="groups:\n- name: gpu\n  rules:\n  - alert: Stalled\n    expr: changes(tokens_per_second{job='a'}[5m]) == 0\n",
)
def age_of_no_time(file: ReviewedFile) -> Iterator[Problem]:
    """`time()` less a metric whose name has no word for a time."""
    for alert in _alert_rules(file):
        node = tree.get(alert, "expr")
        found = _AGE.search(tree.scalar(node) or "")
        if node is not None and found and not _A_TIME.search(found["metric"]) and "timestamp(" not in found[0]:
            yield Problem(*tree.place(node), f"`{found['metric']}` does not tell a time")


@rule(
    "TW728",
    "Alerts without an Alertmanager",
    "warning",
    why="Prometheus evaluates the rules of its files, and sends their alerts to the Alertmanagers that `alerting` "
    "names. Without one they show on its own page alone.",
    fix="Add `alerting: {alertmanagers: [{static_configs: [{targets: ['alertmanager:9093']}]}]}`.",
    source="https://prometheus.io/docs/prometheus/latest/configuration/configuration/#alertmanager_config",
    file="prometheus.yml",
    bad="rule_files: [alerts.yml]\nscrape_configs:\n- job_name: gpu\n",
    good="rule_files: [alerts.yml]\nalerting: {alertmanagers: [{static_configs: [{targets: ['a:9093']}]}]}\n"
    "scrape_configs:\n- job_name: gpu\n",
)
def unsent_alerts(file: ReviewedFile) -> Iterator[Problem]:
    """A configuration with files of alerts, by their names or their contents, and no Alertmanager."""
    for document in file.documents:
        files = tree.items(tree.get(document, "rule_files"))
        named = [tree.scalar(one) or "" for one in files]
        alerts = [name for name in named if "alert" in name or "alert:" in (file.read_near(Path(name).name) or "")]
        if alerts and tree.get(document, "scrape_configs") is not None and tree.get(document, "alerting") is None:
            yield Problem(*tree.place(files[0]), f"`{alerts[0]}` and no Alertmanager")
