"""A template for Zabbix 6.0 that reads the exporter: items, discovery of GPUs, runs and health checks, and triggers.

Zabbix scrapes `/metrics` itself, so a node needs no agent. Of one scrape everything else is cut out.
Source: https://www.zabbix.com/documentation/6.0/en/manual/xml_export_import/templates
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from trainworks.host.listening import EXPORTER_ADDRESS
from trainworks.jobs.formats.manifest import to_yaml
from trainworks.observe.monitoring.alert import AlertRule, with_labels
from trainworks.observe.monitoring.zabbix_triggers import (
    DISCOVERIES,
    ITEMS,
    TRIGGERS,
    Discovered,
    ZabbixItem,
    ZabbixTrigger,
)

_TEMPLATE = "Trainworks"
_SCRAPE = "trainworks.metrics"
_SEVERITIES = {"critical": "HIGH", "warning": "WARNING"}
_LABELS = {"node": "{HOST.NAME}", "gpu": "{#GPU}", "run": "{#RUN}", "check": "{#CHECK}"}
"""Label of an alert -> macro of Zabbix."""
_REFERENCE = re.compile(r"{(\w+)}")


def zabbix_template(alerts: Mapping[str, AlertRule], *, scrape_interval_s: int, docs: str | None = None) -> str:
    """The template as YAML, for `Configuration > Templates > Import`.

    Args:
        alerts: by name; those that the template has take their texts from here.
        scrape_interval_s: time between two scrapes.
        docs: address of the start page of the documentation.
    """
    content = {
        "uuid": _uuid(_TEMPLATE),
        "template": _TEMPLATE,
        "name": _TEMPLATE,
        "groups": [{"name": "Templates/Applications"}],
        "items": [_scrape(scrape_interval_s), *(_item(item, "") for item in ITEMS[""])],
        "discovery_rules": [_discovery(kind, alerts, docs) for kind in DISCOVERIES],
        "macros": [
            {"macro": "{$TRAINWORKS.TOKEN}", "type": "SECRET_TEXT", "description": "Token of the exporter."},
            {"macro": "{$TRAINWORKS.URL}", "value": f"http://{{HOST.CONN}}:{EXPORTER_ADDRESS.port}/metrics"},
        ],
    }
    export = {
        "version": "6.0",
        "groups": [{"uuid": _uuid("group"), "name": "Templates/Applications"}],
        "templates": [content],
        "triggers": [_trigger(trigger, "", alerts, docs) for trigger in TRIGGERS[""]],
    }
    return to_yaml({"zabbix_export": export})


def _scrape(interval_s: int) -> dict[str, Any]:
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


def _item(item: ZabbixItem, kind: Discovered) -> dict[str, Any]:
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


def _discovery(kind: Discovered, alerts: Mapping[str, AlertRule], docs: str | None) -> dict[str, Any]:
    title, metric, label = DISCOVERIES[kind]
    key = f"trainworks.{kind.lower()}.discovery"
    return {
        "uuid": _uuid(key),
        "name": title,
        "type": "DEPENDENT",
        "key": key,
        "delay": "0",
        "lifetime": "1d",
        "item_prototypes": [_item(item, kind) for item in ITEMS[kind]],
        "trigger_prototypes": [_trigger(trigger, kind, alerts, docs) for trigger in TRIGGERS[kind]],
        "master_item": {"key": _SCRAPE},
        "lld_macro_paths": [{"lld_macro": _macro(kind), "path": f"$.labels['{label}']"}],
        "preprocessing": [{"type": "PROMETHEUS_TO_JSON", "parameters": [metric]}],
    }


def _trigger(
    trigger: ZabbixTrigger, kind: Discovered, alerts: Mapping[str, AlertRule], docs: str | None
) -> dict[str, Any]:
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
        content["dependencies"] = [_dependency(name, kind, alerts) for name in trigger.after]
    return content


def _dependency(name: str, kind: Discovered, alerts: Mapping[str, AlertRule]) -> dict[str, str]:
    found = {each.alert: (each, place) for place in ("", kind) for each in TRIGGERS[place]}
    return {"name": _name(alerts[name]), "expression": _expression(*found[name])}


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
    digest = hashlib.sha256(f"trainworks/{name}".encode()).digest()
    return UUID(bytes=digest[:16], version=4).hex
