"""Look up accelerators, nodes and links, with the source of every figure."""

from __future__ import annotations

from datetime import UTC, date, datetime

from trainworks.catalog import age
from trainworks.catalog.catalog import find_row, load_catalog
from trainworks.catalog.lint import LintFinding
from trainworks.catalog.lint import lint as lint_catalog
from trainworks.catalog.models import find_preset, preset_names
from trainworks.catalog.rows import KINDS, CatalogRow, Kind, read_rows
from trainworks.errors import UsageError
from trainworks.host.clock import SystemClock

__all__ = ["KINDS", "catalog", "lint", "old_rows", "preset_names", "show"]


def catalog(kind: str = "") -> dict[Kind, list[CatalogRow]]:
    """List the rows of the catalogue.

    Args:
        kind: such as `accelerators`; all kinds when empty.

    Raises:
        UsageError: the kind is unknown.

    >>> [row.name for row in catalog("systems")["systems"]][:1]
    ['GB200 NVL72']
    """
    if kind and kind not in KINDS:
        raise UsageError(f"no kind `{kind}` in the catalogue", hint=f"there are {', '.join(KINDS)}")
    return {known: list(read_rows(known).values()) for known in KINDS if kind in ("", known)}


def show(name: str) -> CatalogRow:
    """Look up a row of any kind by its name or alias.

    Raises:
        UsageError: no row has this name; the hint has the nearest.

    >>> show("A100-SXM-80GB").kind
    'accelerators'
    """
    if not name:
        raise UsageError("`show` needs a name", hint="trainworks catalog show A100-SXM-80GB")
    try:
        return find_row(name)
    except UsageError:
        model = find_preset(name)
        if model is None:
            raise
        hint = f"plan it with `model: {{preset: {model}}}`"
        raise UsageError(f"`{name}` is a model, and the catalogue shows hardware and prices", hint=hint) from None


def lint() -> list[LintFinding]:
    """Find figures of the catalogue that contradict each other."""
    return lint_catalog(load_catalog())


def old_rows() -> list[age.OldRow]:
    """Rows of the catalogue that are older today than their kind allows."""
    return age.old_rows(today())


def today() -> date:
    """The day by the clock of this machine, in UTC."""
    return datetime.fromtimestamp(SystemClock().now(), UTC).date()
