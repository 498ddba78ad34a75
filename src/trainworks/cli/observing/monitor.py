"""`trainworks monitor`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trainworks.cli.admin.file_set import ToFolder, print_or_write
from trainworks.cli.options import OnCluster, option_errors


class MonitorFiles(StrEnum):
    """Files to write."""

    RENDER = "render"
    DASHBOARDS = "dashboards"
    TARGETS = "targets"


def command(
    files: Annotated[MonitorFiles, typer.Argument(metavar="render|dashboards|targets", help="Which files.")],
    to: ToFolder = None,
    cluster: OnCluster = None,
    every_s: Annotated[int, typer.Option("--every", min=1, help="Seconds between two scrapes.")] = 15,
    alertmanager: Annotated[str, typer.Option(metavar="HOST:PORT", help="Alertmanager.")] = "127.0.0.1:9093",
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Token of the exporters, where Prometheus runs.")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Authority of the exporters' certificates.")
    ] = None,
    page: Annotated[str | None, typer.Option(metavar="URL", help="Webhook for critical alerts.")] = None,
    ticket: Annotated[str | None, typer.Option(metavar="URL", help="Webhook for other alerts.")] = None,
) -> None:
    """`render` prints or writes prometheus.yml, recording rules, alerts with unit tests, and alertmanager.yml.

    `dashboards` makes JSON for Grafana. `targets` lists the nodes of a cluster for Prometheus; run it again when
    nodes come or go.
    """
    from trainworks.api.observing.monitor import monitored_nodes, render_monitoring, rendered_dashboards

    with option_errors():
        if files is MonitorFiles.TARGETS:
            print_or_write(monitored_nodes(cluster), to)
            return
        if files is MonitorFiles.DASHBOARDS:
            print_or_write(rendered_dashboards(), to)
            return
        rendered = render_monitoring(
            scrape_interval_s=every_s,
            alertmanager=alertmanager,
            token_file=token_file,
            ca_file=ca_file,
            page=page,
            ticket=ticket,
        )
        print_or_write(rendered, to)
