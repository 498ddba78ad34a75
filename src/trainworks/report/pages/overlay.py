"""Any number of runs over each other: one curve of each, their key figures, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainworks.report import wording
from trainworks.report.pages.seed_chart import NUM_COLOURS, metric_chart, seed_blocks
from trainworks.report.rendering.document import Block, Cell, Document, Section, Styled, Table, Text, left
from trainworks.report.rendering.plots import LiveChart
from trainworks.report.rendering.renderer import build_document, to_json
from trainworks.report.runs.part import MISSING
from trainworks.report.runs.seeds import group_by_seed
from trainworks.report.runs.summary import Report
from trainworks.results import Result

METRICS: Mapping[str, str] = {
    "loss": "Loss",
    "eval_loss": "Held-out loss",
    "accuracy": "Accuracy",
    "eval_accuracy": "Held-out accuracy",
    "tokens_per_s": "Throughput",
    "grad_norm": "Gradient norm",
    "lr": "Learning rate",
    "step_s": "Step time",
    "memory_peak_bytes": "Peak memory",
}
"""Curve that can be laid over those of other runs -> its title."""


@dataclass(frozen=True, slots=True)
class OverlaidRun:
    """One of the runs."""

    name: str
    """The run in addresses of the site; empty where no site shows it."""
    report: Report
    settings: Mapping[str, str]
    curve: Sequence[tuple[float, float]]
    """Step and value of the metric, thin enough to draw."""


@dataclass(frozen=True, slots=True)
class RunOverlay(Result):
    """Three runs or more over each other."""

    runs: tuple[OverlaidRun, ...]
    metric: str = "loss"


@build_document.register
def _(overlay: RunOverlay) -> Document:
    return overlay_document(overlay.runs, overlay.metric)


@to_json.register
def _(overlay: RunOverlay) -> Mapping[str, object]:
    groups = group_by_seed([run.settings for run in overlay.runs], [run.curve for run in overlay.runs])
    names = [run.report.run_id for run in overlay.runs]
    return {
        "metric": overlay.metric,
        "runs": [
            {"run": name, "state": run.report.state, "settings": dict(run.settings), "curve": list(run.curve)}
            for name, run in zip(names, overlay.runs, strict=True)
        ],
        "groups": [
            {"runs": [names[index] for index in group.runs], "mean": group.mean, "low": group.low, "high": group.high}
            for group in groups
        ],
    }


def overlay_document(runs: Sequence[OverlaidRun], metric: str) -> Document:
    """The curves, a row of figures per run, and a column of settings per run."""
    return Document(
        f"{len(runs)} runs" if len(runs) > 2 else " and ".join(run.report.run_id for run in runs),
        "comparison",
        [
            overlay_section(runs, metric),
            seed_section(runs, metric),
            Section("Figures", [_figures_table(runs)]),
            Section("Settings that differ", [_settings_table(runs)]),
        ],
    )


def overlay_section(runs: Sequence[OverlaidRun], metric: str) -> Section:
    """The curve of each run that has recorded the metric."""
    drawn = [(number, run) for number, run in enumerate(runs) if run.curve]
    missing = [run.report.run_id for run in runs if not run.curve]
    blocks: list[Block] = []
    if missing:
        blocks.append(Text(f"Not recorded by {', '.join(missing)}.", "dim"))
    if drawn:
        lines = [(f"curve-{number % NUM_COLOURS}", run.report.run_id, run.curve) for number, run in drawn]
        blocks.append(LiveChart(metric_chart(METRICS[metric], lines), [run.name for _, run in drawn], metric))
    return Section(METRICS[metric], blocks)


def seed_section(runs: Sequence[OverlaidRun], metric: str) -> Section:
    """Mean and spread of the runs that differ by their seed alone; without blocks where none do."""
    groups = group_by_seed([run.settings for run in runs], [run.curve for run in runs])
    names = [run.report.run_id for run in runs]
    return Section(f"{METRICS[metric]}, mean over seeds", seed_blocks(groups, names, METRICS[metric]))


def _figures_table(runs: Sequence[OverlaidRun]) -> Table:
    """Runs below each other, so that many of them stay readable."""
    figures = [{label: value for label, value, _ in wording.key_figures(run.report)} for run in runs]
    labels = list(dict.fromkeys(label for each in figures for label in each))
    rows: list[list[Cell]] = [
        [
            Styled(run.report.run_id, href=f"/runs/{run.name}" if run.name else ""),
            run.report.state,
            *(each.get(label, MISSING) for label in labels),
        ]
        for run, each in zip(runs, figures, strict=True)
    ]
    return Table(left("run", "state", *labels), rows)


def _settings_table(runs: Sequence[OverlaidRun]) -> Block:
    names = dict.fromkeys(name for run in runs for name in run.settings)
    differing = [name for name in names if len({run.settings.get(name) for run in runs}) > 1]
    if not differing:
        return Text("none", "dim")
    rows = [[name, *(run.settings.get(name, MISSING) for run in runs)] for name in differing]
    return Table(left("setting", *(run.report.run_id for run in runs), wrap=True), rows)
