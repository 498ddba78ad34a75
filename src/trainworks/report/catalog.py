"""Rows of the catalogue, one row with its sources, and the findings of the lint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from trainworks.catalog.age import OldRow
from trainworks.catalog.catalog import family
from trainworks.catalog.lint import LintFinding
from trainworks.catalog.rows import CatalogRow, Kind, RowChange
from trainworks.report.rendering.document import Document, Section, Table, Text, left

_SHOWN: dict[Kind, tuple[str, ...]] = {
    "accelerators": ("memory", "memory bandwidth", "peak bf16", "matmul", "scale up", "launched"),
    "nodes": ("accelerators", "accelerator", "nics", "nic", "nic bandwidth", "network", "provider"),
    "systems": ("form", "node", "nodes"),
    "kernels": ("kernel", "accelerator", "head dim"),
    "links": ("bandwidth", "network", "latency"),
    "switches": ("ports", "port", "network", "latency"),
    "processors": ("cores", "pcie generation", "memory type", "memory channels", "power", "launched"),
    "storage": ("form", "client", "server read", "server write", "server capacity", "opens", "latency", "survives"),
    "offers": ("on demand", "spot", "provider", "accelerators", "accelerator", "region"),
    "fleets": ("accelerator", "nodes", "failures per 1000 node days", "stands for"),
    "runs": ("mfu", "bits", "experts"),
    "assumptions": ("low", "typical", "high", "unit"),
    "grids": ("intensity",),
    "software": ("component", "ends", "first driver", "last driver", "first cuda", "last cuda", "builds"),
    "xids": ("action", "meaning"),
    "anchors": ("kind", "quantity", "cluster", "bandwidth", "rate", "conditions"),
    "terms": ("meaning", "write instead"),
}
"""Figures in the list of each kind."""


def list_document(rows: Mapping[Kind, Sequence[CatalogRow]]) -> Document:
    """A table per kind."""
    own = [row for each in rows.values() for row in each if row.place]
    lines = [Text(f"`{row.name}` is a row of {row.place}") for row in own]
    tables = [Section("", [_list(kind, each)]) for kind, each in rows.items()]
    return Document("Catalogue", "catalog", [*tables, *([Section("", lines)] if lines else [])])


def _list(kind: Kind, rows: Sequence[CatalogRow]) -> Table:
    cells = []
    for row in rows:
        written = {figure.name: figure.written for figure in row.figures}
        # The name of a link is enough in a list.
        written |= {name: written.get(name, "").partition(",")[0] for name in ("scale up", "nic")}
        cells.append([row.name, *(written.get(name, "") for name in _SHOWN[kind])])
    return Table(left(kind, *_SHOWN[kind], wrap=True), cells)


def list_facts(rows: Mapping[Kind, Sequence[CatalogRow]]) -> Mapping[str, object]:
    """The rows of each kind, for JSON."""
    return {kind: [_facts(row) for row in each] for kind, each in rows.items()}


def _facts(row: CatalogRow) -> dict[str, object]:
    unplannable = {} if row.unplannable is None else {"unplannable": row.unplannable}
    place = {"place": row.place} if row.place else {}
    return {**row.facts(), "aliases": list(row.aliases), **unplannable, **place}


def row_document(row: CatalogRow, requested: str) -> Document:
    """Every figure of a row, with its source; the requested name may stand for a family of parts."""
    sources = list(dict.fromkeys(figure.source for figure in row.figures))
    rows = [
        (each.name, each.written, each.confidence, each.date, f"[{sources.index(each.source) + 1}]", each.note or "")
        for each in row.figures
    ]
    table = Table(left("figure", "value", "confidence", "date", "source", "note", wrap=True), rows)
    lines = [f"[{number}] {source}" for number, source in enumerate(sources, start=1)]
    lines += [f"breaks the rule {rule}: {why}" for rule, why in (row.explained or {}).items()]
    about = Section("", [Text(line) for line in _about(row, requested)])
    return Document(row.name, "catalog", [about, Section("", [table, *map(Text, lines)])])


def _about(row: CatalogRow, requested: str) -> list[str]:
    lines = [f"{row.name} ({row.kind})" + (f", a row of {row.place}" if row.place else "")]
    others = family(requested) if row.kind == "accelerators" else ()
    if others:
        lines.append(f"`{requested}` means this part, the most common one; others are {', '.join(others)}")
    if row.unplannable:
        lines.append(f"cannot be planned with: {row.unplannable}; use {row.instead}")
    if row.aliases:
        lines.append(f"{'also for' if row.kind == 'terms' else 'also called'} {', '.join(row.aliases)}")
    return [*lines, *([row.note] if row.note else [])]


def row_facts(row: CatalogRow) -> Mapping[str, object]:
    """A row with its figures and their sources, for JSON."""
    return {"kind": row.kind, **_facts(row), "note": row.note, "figures": [asdict(figure) for figure in row.figures]}


def lint_document(findings: Sequence[LintFinding], old: Sequence[OldRow] = ()) -> Document:
    """Figures that contradict each other, those that the data explain, and rows that are too old."""
    rows = []
    for each in findings:
        meaning = f"explained: {each.explained}" if each.explained else each.meaning
        rows.append((each.row, each.rule, each.value, each.limit, meaning))
    tables = [Table(left("row", "rule", "value", "limit", "meaning", wrap=True), rows)] if rows else []
    explained = sum(each.explained is not None for each in findings)
    count = Text(f"{len(findings) - explained} finding(s), and {explained} that the data explain")
    aged = [(each.place, each.row, each.figure, each.date, f"{each.days} d", f"{each.most_days} d") for each in old]
    columns = left("place", "row", "figure", "of", "age", "limit", wrap=True)
    warning = [Table(columns, aged), Text(f"{len(old)} row(s) are too old: read them anew at their source")]
    return Document("Catalogue", "catalog", [Section("", warning if aged else []), Section("", [*tables, count])])


def lint_facts(findings: Sequence[LintFinding], old: Sequence[OldRow] = ()) -> Mapping[str, object]:
    """The findings and the old rows, for JSON."""
    return {"findings": [asdict(finding) for finding in findings], "old": [asdict(row) for row in old]}


def update_document(changes: Sequence[RowChange]) -> Document:
    """What an update of the catalogue adds, changes and removes."""
    rows = [(_SIGNS[bool(each.old), bool(each.new)], each.row, each.figure, each.old, each.new) for each in changes]
    table = [Table(left("", "row", "figure", "old", "new", wrap=True), rows)] if rows else []
    added, removed = (sum(not each.figure and not getattr(each, end) for each in changes) for end in ("old", "new"))
    changed = len({(each.kind, each.row) for each in changes if each.figure})
    count = Text(f"{added} row(s) added, {changed} changed, {removed} removed")
    return Document("Catalogue", "catalog", [Section("", [*table, count])])


_SIGNS = {(False, True): "+", (True, True): "~", (True, False): "-", (False, False): ""}


def update_facts(changes: Sequence[RowChange]) -> Mapping[str, object]:
    """The changes, for JSON."""
    return {"changes": [asdict(change) for change in changes]}
