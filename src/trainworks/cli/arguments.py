"""Arguments whose words a shell completes: runs, clusters, rows of the catalogue, and presets of models.

Words are computed when Tab is pressed. A folder or catalogue that cannot be read completes none: an error would stand
in the middle of the line that is being typed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from trainworks.errors import TrainworksError

_PRESET_KEYS = ("model.preset", "workload.model.preset")
_CLUSTER_KINDS = ("nodes", "systems", "accelerators")


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the runs below `--runs`, the newest first."""
    with suppress(TrainworksError, OSError):
        import trainworks

        found = trainworks.runs(Path(ctx.params.get("runs") or "runs"))
        return [run.id for run in reversed(found) if run.id.startswith(incomplete)]
    return []


def complete_row(ctx: typer.Context, incomplete: str) -> list[str]:
    """Kinds of rows after `catalog list`, names of rows after `catalog show`, else nothing."""
    from trainworks.api.catalog import KINDS

    action = ctx.params.get("action")
    known = list(KINDS) if action == "list" else _names(*KINDS) if action == "show" else []
    return _matching(known, incomplete)


def complete_cluster(incomplete: str) -> list[str]:
    """Nodes, systems and accelerators for the last word of a cluster: `4x p5` becomes `4x p5.48xlarge`."""
    before, space, word = incomplete.rpartition(" ")
    return [f"{before}{space}{name}" for name in _matching(_names(*_CLUSTER_KINDS), word)]


def complete_setting(incomplete: str) -> list[str]:
    """Presets of models for the value of `model.preset`."""
    key, equals, value = incomplete.partition("=")
    if not equals:
        return [f"{known}=" for known in _PRESET_KEYS if known.startswith(key)]
    from trainworks.api.catalog import preset_names

    return [f"{key}={name}" for name in _matching(preset_names(), value)] if key in _PRESET_KEYS else []


def _names(*kinds: str) -> list[str]:
    """Names of the catalogue's rows of these kinds; none where rows of the user's own cannot be read."""
    with suppress(TrainworksError, OSError):
        import trainworks

        return [row.name for kind in kinds for rows in trainworks.catalog(kind).values() for row in rows]
    return []


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    """Names that begin so; a shell would take the words of one with a blank for several."""
    return [name for name in names if " " not in name and name.startswith(incomplete)]


OptionalRun = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Id, name or path. [default: the newest run]", autocompletion=complete_run),
]
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...", help="Ids, names or folders. [default: the newest run]", autocompletion=complete_run
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="Run id, name of a run (its last one) or folder.", autocompletion=complete_run),
]
JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Number, id or folder, or a name for its last run.", autocompletion=complete_run
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="CLUSTER",
        help="Plan for this cluster, e.g. `4x p4d.24xlarge`.",
        autocompletion=complete_cluster,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Another value of the run file, repeatable: `optimizer.lr=1e-4`.",
        autocompletion=complete_setting,
    ),
]
