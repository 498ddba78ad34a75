"""Grafana dashboards: panels as data, and their JSON by Grafana's own builders (extra `dashboards`)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from trainworks.config.source import read_package_data
from trainworks.config.spec import Frozen
from trainworks.errors import MissingExtraError


class DashboardPanel(Frozen):
    """One plot over time."""

    title: str
    unit: str
    """Unit of Grafana: `s`, `bytes`, `percentunit`, `short`, `currencyUSD`, `dateTimeAsIso` ..."""
    queries: Mapping[str, str]
    """Legend -> expression; `{{label}}` in a legend stands for a label."""


class MetricsDashboard(Frozen):
    """One page of panels."""

    name: str
    title: str
    panels: tuple[DashboardPanel, ...]
    variable: str = ""
    """Label whose value the reader chooses; empty for a page without one."""
    values_of: str = ""
    """Metric that has all values of that label."""


DASHBOARDS = tuple(MetricsDashboard(**row) for row in read_package_data(__package__, "dashboards"))
_WIDTH, _HEIGHT = 12, 8
"""Half of Grafana's grid, which is 24 wide."""


def dashboard_json(dashboard: MetricsDashboard) -> str:
    """The dashboard for Grafana's import or its provisioning folder, in Grafana's classic form.

    Raises:
        MissingExtraError: `grafana-foundation-sdk` is not installed.
    """
    build = _sdk("builders.dashboard")
    page = build.Dashboard(dashboard.title).uid(f"trainworks-{dashboard.name}").tags(["trainworks"]).refresh("30s")
    page = page.time("now-6h", "now").readonly()
    page = page.with_variable(build.DatasourceVariable("datasource").label("source").type("prometheus"))
    if dashboard.variable:
        query = f"label_values({dashboard.values_of}, {dashboard.variable})"
        choice = build.QueryVariable(dashboard.variable).query(query).datasource(_source())
        page = page.with_variable(choice.refresh(_sdk("models.dashboard").VariableRefresh.ON_TIME_RANGE_CHANGED))
    for panel in dashboard.panels:
        page = page.with_panel(_panel(panel))
    text: str = _sdk("cog.encoder").JSONEncoder(sort_keys=True, indent=2).encode(page.build())
    return text + "\n"


def _sdk(module: str) -> Any:
    """A module of Grafana's builders, without their advice to leave the classic form of a dashboard."""
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            return import_module(f"grafana_foundation_sdk.{module}")
    except ImportError:
        raise MissingExtraError("grafana-foundation-sdk", "dashboards") from None


def _source() -> Any:
    return _sdk("models.dashboard").DataSourceRef(type_val="prometheus", uid="${datasource}")


def _panel(panel: DashboardPanel) -> Any:
    legend = _sdk("builders.common").VizLegendOptions().show_legend(True)
    built = _sdk("builders.timeseries").Panel().title(panel.title).unit(panel.unit).datasource(_source()).legend(legend)
    built = built.height(_HEIGHT).span(_WIDTH)
    for number, (name, expr) in enumerate(panel.queries.items()):
        query = _sdk("builders.prometheus").Dataquery().expr(expr).legend_format(name)
        built = built.with_target(query.ref_id(chr(ord("A") + number)))
    return built
