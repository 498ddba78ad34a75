"""The model card of an exported checkpoint: `README.md` with the front matter that the Hugging Face Hub reads.

Every sentence is from the record. Paths of this machine and secrets stay out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainworks.config.run_file import Workload
from trainworks.masking import masked
from trainworks.record.metrics import EvaluationResult, named_figures
from trainworks.record.resolved import ResolvedRun
from trainworks.report.runs.part import MISSING, format_amount, format_relative, printable
from trainworks.report.runs.summary import Report
from trainworks.report.wording import comparison_rows
from trainworks.units import format_count

_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_AUTO = {
    "causal-lm": "CausalLM",
    "masked-lm": "MaskedLM",
    "image-classification": "ImageClassification",
    "reward": "SequenceClassification",
}
_PIPELINES = {
    "causal-lm": "text-generation",
    "reward": "text-classification",
    "masked-lm": "fill-mask",
    "image-classification": "image-classification",
}


def model_card(
    report: Report, resolved: ResolvedRun, step: int, held_out: EvaluationResult | None, *, dtype: str, merged: bool
) -> str:
    """Text of the card of the checkpoint of a step.

    `held_out` is the evaluation after that step, `dtype` the number format of the weights. `merged`: an adapter is in
    them.
    """
    workload = resolved.run_file.workload
    assert workload is not None
    with_adapter = workload.adapter is not None and not merged
    sections = [
        _front_matter(workload, resolved.run_file.name, held_out, with_adapter=with_adapter),
        f"# {_cell(resolved.run_file.name)}",
        f"The weights after step {step:,} of run `{resolved.run_id}`, in {dtype}, "
        f"trained by Trainworks {resolved.trainworks}.",
        *_loading(workload, with_adapter=with_adapter),
        "## Training",
        _table(("", ""), _training_rows(report, resolved, workload)),
        *_evaluation(workload, held_out, step),
        *_planned(report),
    ]
    return masked("\n\n".join(sections)) + "\n"


def checked_card(card: str, sentence: str) -> str:
    """The card with what a check of the exported files has found."""
    return f"{card}\n## Check of the files\n\n{sentence}\n"


def hub_id(address: str) -> str | None:
    """The id on the Hub that an address names; None for a file, a folder or another store.

    >>> hub_id("hf://datasets/allenai/c4"), hub_id("Qwen/Qwen3-0.6B"), hub_id("/data/mine")
    ('allenai/c4', 'Qwen/Qwen3-0.6B', None)
    """
    name = address.removeprefix("hf://").removeprefix("datasets/")
    return name if _ID.fullmatch(name) and not Path(name).exists() else None


def _sources(workload: Workload) -> list[str]:
    """Data sets by name: an id of the Hub, or the last part of an address."""
    if workload.task == "module":
        return []
    found = [source.source for source in workload.data.sources]
    return [hub_id(each) or each.rstrip("/").rpartition("/")[2] for each in found]


def _front_matter(workload: Workload, name: str, held_out: EvaluationResult | None, *, with_adapter: bool) -> str:
    from huggingface_hub import EvalResult, ModelCardData  # noqa: PLC0415  # half a second that only few need

    pipeline, base = _PIPELINES.get("reward" if workload.trains_reward else workload.task), workload.model.hf
    on_hub = [
        each.source.removeprefix("hf://").removeprefix("datasets/")
        for each in (workload.data.sources if workload.task != "module" else ())
        if each.source.startswith("hf://")
    ]
    results = None
    if held_out is not None and pipeline is not None:
        results = [
            EvalResult(pipeline, "held-out", "held-out data of the run", metric, value)
            for metric, value in _metrics(workload, held_out).items()
        ]
    started_from = base if base is not None and workload.model.weights == "pretrained" else None
    data = ModelCardData(
        base_model=hub_id(started_from) if started_from else None,
        datasets=on_hub or None,
        eval_results=results,
        library_name="peft" if with_adapter else "transformers" if pipeline else None,
        model_name=name,
        pipeline_tag=pipeline,
        tags=["trainworks"],
    )
    return f"---\n{data.to_yaml()}\n---"


def _loading(workload: Workload, *, with_adapter: bool) -> list[str]:
    kind = _AUTO.get("reward" if workload.trains_reward else workload.task)
    if kind is None:
        return ["The files hold a state dict, for `load_state_dict` of the module that was trained."]
    names = f"AutoModelFor{kind}"
    library = "peft" if with_adapter else "transformers"
    if with_adapter:
        names = f"AutoPeftModelFor{kind}"
    code = f'from {library} import {names}\n\nmodel = {names}.from_pretrained("FOLDER_OR_REPOSITORY")'
    return ["## Loading", f"```python\n{code}\n```"]


def _training_rows(report: Report, resolved: ResolvedRun, workload: Workload) -> list[Sequence[str]]:
    trained, adapter, optimizer = report.training, workload.adapter, workload.optimizer
    assert trained is not None
    amounts = f"{trained.steps_done:,} of {trained.num_steps or trained.steps_done:,}"
    rows = [
        ("started from", _base(workload)),
        ("parameters", format_count(trained.num_parameters) if trained.num_parameters else MISSING),
        ("data", " + ".join(_sources(workload)) or MISSING),
        ("sequence length", str(workload.data.sequence_length) if workload.unit == "tokens" else MISSING),
        ("steps of the run", amounts),
        (f"{workload.unit} of the run", f"{trained.tokens:,}"),
        ("global batch", f"{workload.global_batch:,}"),
        ("precision", workload.precision),
        ("adapter", f"{adapter.title}, alpha {adapter.alpha:g}" if adapter else MISSING),
        ("optimizer", f"{optimizer.name}, learning rate {optimizer.lr:g}, {optimizer.schedule}"),
        ("weight decay", f"{optimizer.weight_decay:g}"),
        ("seed", str(workload.seed)),
        ("layout", trained.layout),
        ("hardware", _hardware(resolved)),
        ("last training loss", f"{trained.loss_last.loss:.4f}, step {trained.loss_last.step:,}")
        if trained.loss_last
        else ("last training loss", MISSING),
        *((name, version) for name, version in sorted(resolved.host.packages.items())),
    ]
    return [row for row in rows if row[1] != MISSING]


def _base(workload: Workload) -> str:
    model = workload.model
    if model.weights != "pretrained" or model.hf is None:
        return "random weights"
    return hub_id(model.hf) or f"the checkpoint `{Path(model.hf).name}`"


def _hardware(resolved: ResolvedRun) -> str:
    host, processes = resolved.host, resolved.processes
    names = [f"{count}x {name}" for name, count in Counter(each.name for each in host.accelerators).items()]
    node = ", ".join(names) or f"{host.num_cores} cores of {host.processor}"
    return f"{processes.world_size} ranks on {processes.nodes} node(s); the first has {node}"


def _evaluation(workload: Workload, held_out: EvaluationResult | None, step: int) -> list[str]:
    if held_out is None:
        return []
    figures = [(name, f"{value:.4f}") for name, value in _metrics(workload, held_out).items()]
    return ["## Evaluation", _table((f"held-out data, step {step:,}", ""), figures)]


def _metrics(workload: Workload, held_out: EvaluationResult) -> dict[str, float]:
    """Loss, perplexity and accuracy, as far as the task has them."""
    found = {"loss": held_out["loss"]}
    if workload.has_perplexity:
        found["perplexity"] = math.exp(min(held_out["loss"], 700.0))
    found |= {"accuracy": held_out["accuracy"]} if "accuracy" in held_out else {}
    return found | named_figures(held_out)


def _planned(report: Report) -> list[str]:
    if report.comparison is None:
        return []
    rows = [
        (
            each.name,
            *(format_amount(amount, each.unit) for amount in (each.planned, each.measured)),
            format_relative(each.relative),
        )
        for each, is_term in comparison_rows(report.comparison)
        if not is_term
    ]
    known = [row for row in rows if row[2] != MISSING]
    return ["## Planned and measured", _table(("", "planned", "measured", "difference"), known)] if known else []


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return printable(text).replace("\n", " ").replace("|", "\\|")
