"""Hand a model over: a checkpoint as a Hugging Face folder with its model card, checked, as ONNX, and on a hub."""

from __future__ import annotations

import importlib.util
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.files import write_atomic
from trainworks.masking import masked
from trainworks.measure.worker_tasks import ByteProgress, ask, require_packages
from trainworks.record.evaluations import best_evaluation, evaluation_after
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.metrics import EvaluationResult
from trainworks.record.run_dir import RunDir
from trainworks.report.model_card import checked_card, hub_id, model_card
from trainworks.report.runs.summary import build_report

_ROUNDOFF = {"fp32": 1e-5, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
"""Relative error of a rounded number. In fp32 that of sums in another order, which is larger than one rounding."""
_CARD = "README.md"


class LossCheck(TypedDict):
    """The loss of the exported files beside that of the run, on the same held-out samples."""

    loss: float
    recorded: float
    tolerance: float
    """Largest difference that rounding explains: the loss times the roundoff of the coarser of the two formats."""
    samples: int
    tokens: int


class ExportedModel(TypedDict):
    """What was written, and from which step."""

    step: int
    folder: str
    tensors: int
    bytes: int
    files: int
    dtype: str
    check: NotRequired[LossCheck]
    onnx_difference: NotRequired[float]
    """Largest difference of a logit between onnxruntime and transformers, over the largest logit."""
    pushed: NotRequired[str]
    """Address of the repository."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """What follows the files of an export."""

    check: bool = False
    """Compare the loss of the files, opened by transformers, with that of the run."""
    onnx: bool = False
    """Write `onnx/model.onnx`, too."""
    push: str | None = None
    """Repository on the Hub to upload to, `owner/name`."""
    public: bool = False
    """Let everybody read a repository that the upload creates."""


def export_model(
    run_dir: RunDir,
    to: Path,
    *,
    step: int | None,
    best: bool = False,
    dtype: str,
    merge: bool = False,
    then: HandOver = HandOver(),
    progress: ByteProgress,
) -> ExportedModel:
    """Write a checkpoint of a run as a Hugging Face model; returns the step, and what was written.

    Args:
        run_dir: directory of a run of a workload.
        to: new folder.
        step: of the checkpoint; the newest complete one when None.
        best: take the checkpoint with the best evaluation instead.
        dtype: number format of the weights.
        merge: add an adapter to the weights of its checkpoint.
        then: what follows. All that cannot be done is refused before the export begins.
        progress: receives the bytes done.

    Raises:
        UsageError: the run has no model, no such checkpoint, or not what `then` needs.
        MissingExtraError: the libraries of the worker, or of `--onnx`, are not installed.
        EnvironmentProblem: the upload failed; the folder stays.
        TrainworksError: the loss of the files is not that of the run; the folder stays, and nothing is uploaded.
    """
    resolved = run_dir.read_resolved()
    workload = resolved.run_file.workload
    if resolved.plan is None or workload is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload has a model to export")
    chosen = _step(run_dir, _best_step(run_dir) if best else step)
    require_packages("torch", "transformers")
    held_out = evaluation_after(run_dir, chosen)
    _check_possible(workload, then, held_out, step=chosen, merge=merge)
    card = model_card(build_report(run_dir, time.time()), resolved, chosen, held_out, dtype=dtype, merged=merge)
    folder = str(to.expanduser().absolute())
    request = {
        "run": str(run_dir.path.absolute()),
        "step": chosen,
        "to": folder,
        "dtype": dtype,
        "merge": merge,
        "card": card,
    }
    made: ExportedModel = ask("export", request, progress, module="export") | {"step": chosen, "folder": folder}
    if then.onnx:
        written = ask("onnx", {"folder": folder}, module="exported_model")
        made["onnx_difference"] = written["difference"]
    if then.check and held_out is not None:
        made["check"] = _checked(run_dir, made, workload, held_out, card)
    if then.push is not None:
        made["pushed"] = push(Path(folder), then.push, public=then.public)
    return made


def _check_possible(
    workload: Workload, then: HandOver, held_out: EvaluationResult | None, *, step: int, merge: bool
) -> None:
    """Refuse what cannot be done, before anything is written."""
    separate = workload.adapter is not None and not merge
    if (then.check or then.onnx) and (workload.task != "causal-lm" or workload.preference is not None):
        raise UsageError("`--check` and `--onnx` are for models of the next token", hint="leave them out")
    if then.onnx and separate:
        raise UsageError("`--onnx` writes whole models, and this is an adapter", hint="add `--merge`")
    if then.onnx:
        require_packages("onnxscript", "onnxruntime", extra="onnx")
    if then.check and (held_out is None or "samples" not in held_out):
        raise UsageError(
            f"the run was not evaluated after step {step:,}: a check needs the loss of an evaluation",
            hint="take a checkpoint of an evaluated step, such as that of `--best`",
        )
    if then.check and separate:
        _check_opens(workload)
    if then.push is not None and separate and hub_id(workload.model.hf or "") is None:
        raise UsageError(
            "the adapter belongs to a checkpoint in a folder of this machine, which others cannot open",
            hint="push the whole model with `--merge`",
        )


def _check_opens(workload: Workload) -> None:
    """Check that transformers can open an adapter as it was trained."""
    if workload.adapter is not None and workload.adapter.base == "nf4":
        raise UsageError("the adapter was trained beside weights in 4 bits", hint="check it with `--merge`")
    if importlib.util.find_spec("peft") is None:
        raise EnvironmentProblem("`peft` is not installed, and opens adapters", hint="pip install peft")


def _checked(
    run_dir: RunDir, made: ExportedModel, workload: Workload, held_out: EvaluationResult, card: str
) -> LossCheck:
    """Compare the losses, and write the result into the card."""
    request = {
        "run": str(run_dir.path.absolute()),
        "step": made["step"],
        "folder": made["folder"],
        "samples": held_out["samples"],
    }
    found, recorded = ask("check", request, module="exported_model"), held_out["loss"]
    tolerance = abs(recorded) * max(_ROUNDOFF[workload.precision], _ROUNDOFF[made["dtype"]])
    agrees = abs(found["loss"] - recorded) <= tolerance
    sentence = (
        f"transformers computes a loss of {found['loss']:.6f} on the held-out data, the run recorded {recorded:.6f}; "
        f"rounding explains a difference of up to {tolerance:.2g}"
    )
    verdict = "The files have the loss of the run" if agrees else "The files do not have the loss of the run"
    write_atomic(Path(made["folder"]) / _CARD, checked_card(card, f"{verdict}: {sentence}."))
    if not agrees:
        raise TrainworksError(
            f"the exported files do not have the loss of the run: {sentence}",
            place=made["folder"],
            hint="do not hand this folder over; report the model and the layout of the run",
        )
    result: LossCheck = found | {"recorded": recorded, "tolerance": tolerance}
    return result


def _best_step(run_dir: RunDir) -> int:
    best = best_evaluation(run_dir)
    if best is None:
        raise UsageError(f"run {run_dir.run_id} has no evaluation yet", hint="set `workload.eval` in the run file")
    return best.step


def _step(run_dir: RunDir, wanted: int | None) -> int:
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir)]
    if not steps:
        raise UsageError(f"run {run_dir.run_id} has no complete checkpoint yet", hint="wait for the first one")
    if wanted is not None and wanted not in steps:
        known = ", ".join(f"{step:,}" for step in steps)
        raise UsageError(f"run {run_dir.run_id} has no checkpoint of step {wanted:,}", hint=f"there are: {known}")
    return steps[-1] if wanted is None else wanted


def push(folder: Path, repository: str, *, public: bool = False) -> str:
    """Upload a folder in one commit; returns its address. The token is that of `HF_TOKEN` or `hf auth login`.

    A repository that is not there is created, for its owner alone unless `public` is set; one that is there stays as
    visible as it is.

    Raises:
        EnvironmentProblem: the server refuses it, or does not answer; the folder stays.
    """
    import httpx  # noqa: PLC0415  # of huggingface_hub
    from huggingface_hub import HfApi  # noqa: PLC0415  # half a second that only few need
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        hub.create_repo(repository, private=not public, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload the model of a run")
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        reason = masked(" ".join(str(error).split()))
        raise EnvironmentProblem(
            f"cannot upload to `{repository}`: {reason}; the export is complete",
            place=str(folder),
            hint=f"check HF_TOKEN and the name, then: hf upload {repository} {folder}",
        ) from None
    return f"{hub.endpoint}/{repository}"
