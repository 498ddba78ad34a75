"""`trainworks exporter` and `monitor`: metrics for Prometheus, and the files that read them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainworks.cli.files import ToFolder, print_or_write
from trainworks.cli.options import OnCluster, RunsOption, option_errors, runs_folder, warn
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

_LISTEN = "127.0.0.1:9855"
"""`EXPORTER_ADDRESS` of `trainworks.host.listening`, which the help does not import."""


def exporter_command(
    runs: RunsOption = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|RUN_FILE", help="The queue of a cluster, `slurm`, and the runs of all its users."),
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help=f"[default: {_LISTEN}]")] = None,
    textfile: Annotated[
        Path | None, typer.Option(metavar="FILE.prom", help="Write a file for node_exporter instead of listening.")
    ] = None,
    every_s: Annotated[int, typer.Option("--every", min=1, help="With --textfile: seconds between two writes.")] = 30,
    once: Annotated[bool, typer.Option("--once", help="Print the metrics, or write the file once.")] = False,
    collect: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Some of `runs,queue,gpus,fabric,health`. [default: all; with --textfile all but `fabric`]",
        ),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Token that every request must have.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate, as PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate, as PEM.")] = None,
) -> None:
    """Reads records of runs and never asks a worker. A run has metrics while it runs, and for ten minutes after.

    Only this machine can connect, unless `--listen` says otherwise; then `--token-file` must be given.
    """
    from trainworks.api.observing.exporter import COLLECTORS, NodeMetrics, metrics_server, write_metrics

    if textfile and (listen or token_file or tls_cert or tls_key):
        raise UsageError("`--textfile` does not listen", hint="start two, or leave out `--listen` and its options")
    with option_errors():
        usual = COLLECTORS if textfile is None else [name for name in COLLECTORS if name != "fabric"]
        wanted = usual if collect is None else [name.strip() for name in collect.split(",")]
        metrics = NodeMetrics(wanted, runs_folder(runs), cluster=cluster, notify=warn)
        if textfile is not None:
            with option_errors("--textfile", textfile):
                write_metrics(metrics, textfile, every_s=None if once else every_s)
            return
        if once:
            typer.echo(metrics.text(), nl=False)
            return
        server = metrics_server(metrics, listen or _LISTEN, token_file=token_file, tls_cert=tls_cert, tls_key=tls_key)
    if token_file and not tls_cert:
        warn("the token travels unencrypted: add `--tls-cert`")
    host = (listen or _LISTEN).rpartition(":")[0] or "localhost"
    say(f"metrics at http{'s' if tls_cert else ''}://{host}:{server.port}/metrics", err=True)
    server.serve_forever()


def monitor_command(
    files: Annotated[
        Literal["render", "dashboards", "targets"],
        typer.Argument(metavar="render|dashboards|targets", help="Which files."),
    ],
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
    from trainworks.api.observing.monitor import (
        MonitoringSetup,
        follow_nodes,
        monitored_nodes,
        render_monitoring,
        rendered_dashboards,
    )

    if follow and (files != "targets" or to is None):
        raise UsageError("`--follow` writes target files", hint="trainworks monitor targets --follow --to FOLDER")
    with option_errors():
        if follow and to is not None:
            to.mkdir(parents=True, exist_ok=True)
            follow_nodes(to, cluster, every_s=every_s, notify=warn)
        if files == "targets":
            print_or_write(monitored_nodes(cluster, notify=warn), to)
            return
        if files == "dashboards":
            print_or_write(rendered_dashboards(), to)
            return
        setup = MonitoringSetup(
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
        )
        print_or_write(render_monitoring(setup, notify=warn), to)


def _team(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals:
        raise UsageError(f"`{text}` is not a team and its webhook", place="--team", hint="write `--team vision=URL`")
    return name, url
