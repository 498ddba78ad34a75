"""`trainworks catalog`."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.table import Table

from trainworks.api.catalog import catalog, lint, show
from trainworks.catalog.catalog import family
from trainworks.catalog.lint import LintFinding
from trainworks.catalog.rows import KINDS, CatalogRow, Figure, Kind
from trainworks.cli.options import AsJson, wide_console
from trainworks.report.rendering.printable import say

__all__ = ["command"]

_SHOWN: dict[Kind, tuple[str, ...]] = {
    "accelerators": ("memory", "memory bandwidth", "peak bf16", "matmul", "scale up", "launched"),
    "nodes": ("accelerators", "accelerator", "nics", "nic", "nic bandwidth", "network", "provider"),
    "systems": ("form", "node", "nodes"),
    "links": ("bandwidth", "network", "latency"),
    "switches": ("ports", "port", "network", "latency"),
    "processors": ("cores", "pcie generation", "memory type", "memory channels", "power", "launched"),
    "storage": ("form", "client", "server read", "server write", "server capacity", "opens", "latency", "survives"),
    "offers": ("on demand", "spot", "provider", "accelerators", "accelerator", "region"),
    "fleets": ("accelerator", "nodes", "failures per 1000 node days", "stands for"),
    "assumptions": ("low", "typical", "high", "unit"),
    "grids": ("intensity",),
    "terms": ("meaning", "write instead"),
}


class CatalogAction(StrEnum):
    """What to do with the catalogue."""

    LIST = "list"
    SHOW = "show"
    LINT = "lint"


def command(
    action: Annotated[CatalogAction, typer.Argument(metavar="list|show|lint", help="What to do.", show_default=False)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[KIND|NAME]", help=f"Kind to list: {', '.join(KINDS)}; or a name.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`list` prints rows, `show` every figure of one with its source; `lint` exits with 1 when figures disagree."""
    name = " ".join(words or [])
    if action is CatalogAction.LIST:
        _list(name, as_json=as_json)
    elif action is CatalogAction.SHOW:
        _show(name, as_json=as_json)
    else:
        _lint(as_json=as_json)


def _list(kind: str, *, as_json: bool) -> None:
    rows = catalog(kind)
    if as_json:
        facts = {known: [_facts(row) for row in each] for known, each in rows.items()}
        typer.echo(json.dumps(facts, indent=2))
        return
    console = wide_console()
    for known, each in rows.items():
        columns = _SHOWN[known]
        table = Table(known, *columns, box=None, padding=(0, 2, 0, 0))
        for row in each:
            written = {figure.name: figure.written for figure in row.figures}
            table.add_row(row.name, *(_short(name, written.get(name, "")) for name in columns))
        console.print(table)
        console.print()


def _short(name: str, written: str) -> str:
    """A figure in a list: of a link its name only."""
    return written.partition(",")[0] if name in ("scale up", "nic") else written


def _facts(row: CatalogRow) -> dict[str, Any]:
    unplannable = {} if row.unplannable is None else {"unplannable": row.unplannable}
    return row.facts() | {"aliases": list(row.aliases)} | unplannable


def _show(name: str, *, as_json: bool) -> None:
    row = show(name)
    if as_json:
        figures = [asdict(figure) for figure in row.figures]
        typer.echo(json.dumps({"kind": row.kind} | _facts(row) | {"note": row.note, "figures": figures}, indent=2))
        return
    for line in _about(row, name):
        say(line)
    console = wide_console()
    console.print(_figure_table(row, _sources(row)))
    for number, source in enumerate(_sources(row), start=1):
        console.print(f"[{number}] {source}", markup=False, highlight=False)
    for rule, why in (row.explained or {}).items():
        console.print(f"breaks the rule {rule}: {why}", markup=False, highlight=False)


def _about(row: CatalogRow, asked: str) -> list[str]:
    """What is to be said of a row before its figures."""
    lines = [f"{row.name} ({row.kind})"]
    others = family(asked) if row.kind == "accelerators" else ()
    if others:
        lines.append(f"`{asked}` means this part, the most common one; others are {', '.join(others)}")
    if row.unplannable:
        lines.append(f"cannot be planned with: {row.unplannable}; use {row.instead}")
    if row.aliases:
        lines.append(f"also called {', '.join(row.aliases)}")
    return [*lines, *([row.note] if row.note else []), ""]


def _sources(row: CatalogRow) -> list[str]:
    return list(dict.fromkeys(figure.source for figure in row.figures))


def _figure_table(row: CatalogRow, sources: list[str]) -> Table:
    table = Table("figure", "value", "confidence", "date", "source", "note", box=None, padding=(0, 2, 0, 0))
    for figure in row.figures:
        table.add_row(*_cells(figure, sources))
    return table


def _cells(figure: Figure, sources: list[str]) -> tuple[str, ...]:
    number = f"[{sources.index(figure.source) + 1}]"
    return figure.name, figure.written, figure.confidence, figure.date, number, figure.note or ""


def _lint(*, as_json: bool) -> None:
    findings = lint()
    open_findings = [finding for finding in findings if finding.explained is None]
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print_findings(findings)
        explained = len(findings) - len(open_findings)
        say(f"{len(open_findings)} finding(s), and {explained} that the data explain")
    if open_findings:
        raise typer.Exit(1)


def _print_findings(findings: list[LintFinding]) -> None:
    table = Table("row", "rule", "value", "limit", "meaning", box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        meaning = f"explained: {finding.explained}" if finding.explained else finding.meaning
        table.add_row(finding.row, finding.rule, finding.value, finding.limit, meaning)
    if findings:
        wide_console().print(table)
