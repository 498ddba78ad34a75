"""`trainworks sweep`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.options import AsJson, RunFilePath, RunsOption, read_settings
from trainworks.cli.output import show
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


def sweep_command(
    run_file: RunFilePath,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUES", help="Values `1e-4,3e-4`, or a range `1e-5..1e-2`; repeatable."),
    ] = None,
    random: Annotated[int | None, typer.Option("--random", min=1, help="Draw so many trials at random.")] = None,
    optuna: Annotated[int | None, typer.Option("--optuna", min=1, help="Let Optuna propose so many trials.")] = None,
    prune: Annotated[
        Literal["median", "asha"] | None, typer.Option("--prune", help="End trials early by this rule.")
    ] = None,
    parallel: Annotated[int, typer.Option("--parallel", min=1, help="Most trials in the queue at a time.")] = 4,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws.")] = 0,
    name: Annotated[str | None, typer.Option("--name", help="Name of the sweep. [default: that of the run]")] = None,
    lr_range: Annotated[
        str | None, typer.Option("--lr-range", metavar="LOW,HIGH", help="Test learning rates in one short run instead.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=10, help="Steps of the `--lr-range` test.")] = 100,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Each combination of the values is a run in the queue of its cluster, or so many random or proposed ones.

    The objective is the best evaluation if the run file has `workload.eval`, else the training loss at the end; of a
    command, which gets `--set envs.LR=...`, what `metrics.objective` says. Repeat the command to continue a sweep that
    was killed or interrupted: trials in the queue do not need it, and none is trained twice.
    """
    from trainworks.api.sweeping.lr_range import learning_rate_range

    if lr_range is not None:
        if settings or random or optuna or prune:
            raise UsageError("`--lr-range` is a test of its own", hint="leave the other options out")
        low, high = _ends(lr_range)
        show(learning_rate_range(run_file, low, high, steps=steps, folder=runs), as_json=as_json)
        return
    if random is not None and optuna is not None:
        raise UsageError("`--random` and `--optuna` exclude each other")
    if not settings:
        raise UsageError("a sweep needs settings", hint="write them like `--set optimizer.lr=1e-4,3e-4`")
    result = trainworks.sweep(
        run_file,
        read_settings(settings, example="optimizer.lr=1e-4,3e-4"),
        search="random" if random else "optuna" if optuna else "grid",
        trials=random or optuna,
        seed=seed,
        pruning=prune,
        parallel=parallel,
        name=name,
        folder=runs,
        progress=lambda ended, queued: say(f"trials: {ended} ended, {queued} in the queue", err=True),
    )
    show(result, as_json=as_json)
    say(f"page: {result.path / 'sweep.html'}", err=True)
    if result.best is None:
        raise typer.Exit(1)


def _ends(text: str) -> tuple[float, float]:
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        hint = "write it like `--lr-range 1e-6,1`"
        raise UsageError(f"`{text}` is not two learning rates", place="--lr-range", hint=hint) from None
    return low, high
