"""A template for Zabbix 6.0 that reads the exporter: items, discovery of GPUs, runs and health checks, and triggers.

Zabbix scrapes `/metrics` itself, so a node needs no agent. Of one scrape everything else is cut out.
Source: https://www.zabbix.com/documentation/6.0/en/manual/xml_export_import/templates
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Literal
from uuid import UUID

from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen
from trainworks.host.listening import EXPORTER_ADDRESS
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.monitoring.rules import AlertRule, with_labels

Discovered = Literal["", "GPU", "RUN", "CHECK"]
"""What a trigger or an item exists for: the node, or each GPU, run or health check that a scrape names."""


class ZabbixItem(Frozen):
    """A value that Zabbix keeps: one series of a scrape."""

    key: str
    series: str
    """Pattern of Prometheus; `{#GPU}` and the like stand for what was discovered."""
    name: str
    units: str = ""
    absent: int | None = None
    """Value when the scrape does not have the series; None keeps the last one."""
    count: bool = False
    """True if the value is the number of series that match."""


class ZabbixTrigger(Frozen):
    """An alert in Zabbix' language."""

    alert: str
    expression: str
    """`{key}` stands for an item with its host."""
    after: tuple[str, ...] = ()
    """Alerts that mute it, of the same thing or of the node."""


class ZabbixGroup(Frozen):
    """Items and triggers of the node, or of each thing that a discovery finds."""

    title: str = ""
    """Title of the discovery; empty for the node, as the next two."""
    metric: str = ""
    """Metric of a scrape that has a series for each of the things."""
    label: str = ""
    """Label of that metric with the name of the thing."""
    items: tuple[ZabbixItem, ...]
    triggers: tuple[ZabbixTrigger, ...]


GROUPS: dict[Discovered, ZabbixGroup] = {
    kind: ZabbixGroup(**content) for kind, content in read_package_data(__package__, "zabbix").items()
}
IN_ZABBIX = frozenset(trigger.alert for group in GROUPS.values() for trigger in group.triggers)
"""Alerts that the template has."""

_TEMPLATE = "Trainworks"
_SCRAPE = "trainworks.metrics"
_SEVERITIES = {"critical": "HIGH", "warning": "WARNING"}
_LABELS = {"node": "{HOST.NAME}", "gpu": "{#GPU}", "run": "{#RUN}", "check": "{#CHECK}"}
"""Label of an alert -> macro of Zabbix."""
_REFERENCE = re.compile(r"{(\w+)}")


def zabbix_template(alerts: Mapping[str, AlertRule], *, scrape_interval_s: int, docs: str | None = None) -> str:
    """The template as YAML, for `Configuration > Templates > Import`.

    The alerts that it has take their texts from `alerts`, by name. `docs` is the start page of the documentation.
    """
    content = {
        "uuid": _uuid(_TEMPLATE),
        "template": _TEMPLATE,
        "name": _TEMPLATE,
        "groups": [{"name": "Templates/Applications"}],
        "items": [_scrape(scrape_interval_s), *(_item(item, "") for item in GROUPS[""].items)],
        "discovery_rules": [_discovery(kind, alerts, docs) for kind in GROUPS if kind],
        "macros": [
            {"macro": "{$TRAINWORKS.TOKEN}", "type": "SECRET_TEXT", "description": "Token of the exporter."},
            {"macro": "{$TRAINWORKS.URL}", "value": f"http://{{HOST.CONN}}:{EXPORTER_ADDRESS.port}/metrics"},
        ],
    }
    export = {
        "version": "6.0",
        "groups": [{"uuid": _uuid("group"), "name": "Templates/Applications"}],
        "templates": [content],
        "triggers": [_trigger(trigger, "", alerts, docs) for trigger in GROUPS[""].triggers],
    }
    return to_yaml({"zabbix_export": export})


def _scrape(interval_s: int) -> Mapping[str, object]:
    return {
        "uuid": _uuid(_SCRAPE),
        "name": "Metrics",
        "type": "HTTP_AGENT",
        "key": _SCRAPE,
        "delay": f"{interval_s}s",
        "history": "0",
        "trends": "0",
        "value_type": "TEXT",
        "url": "{$TRAINWORKS.URL}",
        "timeout": "30s",
        "headers": [{"name": "Authorization", "value": "Bearer {$TRAINWORKS.TOKEN}"}],
    }


def _item(item: ZabbixItem, kind: Discovered) -> Mapping[str, object]:
    missing = {"error_handler": "DISCARD_VALUE"}
    if item.absent is not None:
        missing = {"error_handler": "CUSTOM_VALUE", "error_handler_params": str(item.absent)}
    how = ["function", "count"] if item.count else ["value", ""]
    key = _key(item.key, kind)
    return {
        "uuid": _uuid(key),
        "name": f"{item.name} of {_macro(kind)}" if kind else item.name,
        "type": "DEPENDENT",
        "key": key,
        "delay": "0",
        "value_type": "FLOAT",
        **({"units": item.units} if item.units else {}),
        "preprocessing": [{"type": "PROMETHEUS_PATTERN", "parameters": [item.series, *how], **missing}],
        "master_item": {"key": _SCRAPE},
    }


def _discovery(kind: Discovered, alerts: Mapping[str, AlertRule], docs: str | None) -> Mapping[str, object]:
    group = GROUPS[kind]
    key = f"trainworks.{kind.lower()}.discovery"
    return {
        "uuid": _uuid(key),
        "name": group.title,
        "type": "DEPENDENT",
        "key": key,
        "delay": "0",
        "lifetime": "1d",
        "item_prototypes": [_item(item, kind) for item in group.items],
        "trigger_prototypes": [_trigger(trigger, kind, alerts, docs) for trigger in group.triggers],
        "master_item": {"key": _SCRAPE},
        "lld_macro_paths": [{"lld_macro": _macro(kind), "path": f"$.labels['{group.label}']"}],
        "preprocessing": [{"type": "PROMETHEUS_TO_JSON", "parameters": [group.metric]}],
    }


def _trigger(
    trigger: ZabbixTrigger, kind: Discovered, alerts: Mapping[str, AlertRule], docs: str | None
) -> Mapping[str, object]:
    alert = alerts[trigger.alert]
    content = {
        "uuid": _uuid(trigger.alert),
        "expression": _expression(trigger, kind),
        "name": _name(alert),
        "url": alert.runbook_url(docs),
        "priority": _SEVERITIES[alert.severity],
        "description": f"{alert.action}. Threshold: {alert.threshold}.",
        "tags": [{"tag": "alert", "value": alert.name}],
    }
    if trigger.after:
        found = {each.alert: (each, place) for place in ("", kind) for each in GROUPS[place].triggers}
        content["dependencies"] = [
            {"name": _name(alerts[name]), "expression": _expression(*found[name])} for name in trigger.after
        ]
    return content


def _name(alert: AlertRule) -> str:
    return f"{alert.name}: {with_labels(alert.summary, _LABELS)}"


def _expression(trigger: ZabbixTrigger, kind: Discovered) -> str:
    return _REFERENCE.sub(lambda match: f"/{_TEMPLATE}/{_key(match[1], kind)}", trigger.expression)


def _key(name: str, kind: Discovered) -> str:
    return f"trainworks.{kind.lower()}.{name}[{_macro(kind)}]" if kind else f"trainworks.{name}"


def _macro(kind: Discovered) -> str:
    return f"{{#{kind}}}"


def _uuid(name: str) -> str:
    """The same identifier of version 4 in every rendering, so that a new template updates the old one."""
    return UUID(bytes=hashlib.sha256(f"trainworks/{name}".encode()).digest()[:16], version=4).hex
