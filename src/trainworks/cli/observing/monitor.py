"""`trainworks monitor`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from trainworks.cli.admin.file_set import ToFolder, print_or_write
from trainworks.cli.options import OnCluster, option_errors, warn
from trainworks.errors import UsageError


class MonitorFiles(StrEnum):
    """Files to write."""

    RENDER = "render"
    DASHBOARDS = "dashboards"
    TARGETS = "targets"


def command(
    files: Annotated[MonitorFiles, typer.Argument(metavar="render|dashboards|targets", help="Which files.")],
    to: ToFolder = None,
    cluster: OnCluster = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="With `targets`: keep running, and rewrite files that change.")
    ] = False,
    every_s: Annotated[int, typer.Option("--every", min=1, help="Seconds between two scrapes, or two looks.")] = 15,
    alertmanager: Annotated[str, typer.Option(metavar="HOST:PORT", help="Alertmanager.")] = "127.0.0.1:9093",
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Token of the exporters, where Prometheus runs.")
    ] = None,
    ca_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Authority of the exporters' certificates.")
    ] = None,
    page: Annotated[str | None, typer.Option(metavar="URL", help="Webhook for critical alerts.")] = None,
    ticket: Annotated[str | None, typer.Option(metavar="URL", help="Webhook for other alerts.")] = None,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="Prometheus runs in Kubernetes and finds nodes through its API.")
    ] = False,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="With --kubernetes: an exporter of this image on every node.")
    ] = None,
    team: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="Webhook for alerts of a team's runs, beside the others."),
    ] = None,
    slurmctld: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Slurm controller 25.11 or newer: scrape its own metrics.")
    ] = None,
    zabbix: Annotated[
        bool, typer.Option("--zabbix", help="Add a template for Zabbix 6.0, which then tells people of its alerts.")
    ] = False,
    docs: Annotated[
        str | None, typer.Option(metavar="URL", help="This documentation, for the runbooks of alerts.")
    ] = None,
) -> None:
    """`render` prints or writes prometheus.yml, recording rules, alerts with unit tests, and alertmanager.yml.

    `dashboards` makes JSON for Grafana. `targets` lists the nodes of a cluster for Prometheus, with `--follow` for
    ever.
    """
    from trainworks.api.observing.monitor import follow_nodes, monitored_nodes, render_monitoring, rendered_dashboards

    if follow and (files is not MonitorFiles.TARGETS or to is None):
        raise UsageError("`--follow` writes target files", hint="trainworks monitor targets --follow --to FOLDER")
    with option_errors():
        if follow and to is not None:
            to.mkdir(parents=True, exist_ok=True)
            follow_nodes(to, cluster, every_s=every_s, notify=warn)
        if files is MonitorFiles.TARGETS:
            print_or_write(monitored_nodes(cluster, notify=warn), to)
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
            kubernetes=kubernetes,
            slurmctld=slurmctld,
            zabbix=zabbix,
            docs=docs,
            image=image,
            teams=dict(_team(text) for text in team or ()),
            notify=warn,
        )
        print_or_write(rendered, to)


def _team(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise UsageError(f"`{text}` is not a team and its webhook", place="--team", hint="write `--team vision=URL`")
    return name, url
