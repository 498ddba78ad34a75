"""Tasks of the worker, which has the libraries: prepare and verify training data, export a model."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.config.data import Data, Evaluation
from trainworks.config.load import invalid_value, load_run_file
from trainworks.config.run_file import Workload
from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError
from trainworks.host import process
from trainworks.host.corpus import anchored_data, anchored_evaluation, check_sources
from trainworks.record.evaluations import best_evaluation
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir

_RUN_FILES = (".yaml", ".yml")
ByteProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def ask(
    action: str,
    request: dict[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    module: str = "data_command",
) -> dict[str, Any]:
    """The worker's answer to `prepare` or `verify`, or of another of its modules.

    Args:
        action: what to do.
        request: with what, see `trainworks.worker.data_command`.
        progress: called with bytes done and bytes in all.
        module: of the worker, that talks as `data_command` does.

    Raises:
        TrainworksError: the worker reports it.
    """
    command = process.python_module(f"trainworks.worker.{module}", action, json.dumps(request), str(os.getpid()))
    answer: dict[str, Any] = {}
    for line in process.lines(command):
        answer = json.loads(line)
        if "done" in answer:
            progress(answer["done"], answer["total"])
    if "error" in answer:
        raise _error(answer)
    if not answer or "done" in answer:
        raise EnvironmentProblem("the worker ended without an answer", hint="read the error that it printed above")
    return answer


def _error(answer: dict[str, Any]) -> TrainworksError:
    kinds: dict[int, type[TrainworksError]] = {2: UsageError, 3: EnvironmentProblem}
    return kinds.get(answer["exit_code"], TrainworksError)(answer["error"], hint=answer["hint"])


def read_data(target: str, options: Mapping[str, Any], *, images: bool) -> tuple[Data, Evaluation | None]:
    """The data of a run file with its evaluation, or of a source with options.

    Args:
        target: path of a run file, or a source as in `data.source`.
        options: keys of `workload.data` beside the source.
        images: whether the source is a folder of images.

    Raises:
        UsageError: the run file has no data, or an option is not valid.
        MissingExtraError: the libraries of the worker are not installed.
    """
    _require("tokenizers")
    if Path(target).suffix in _RUN_FILES:
        if options or images:
            raise UsageError("options of the data stand in the run file", hint="leave them out of the command")
        run_file, source = load_run_file(Path(target))
        if run_file.workload is None or not run_file.workload.data.sources:
            raise UsageError(f"`{target}` has no `workload.data.source`", place=source.place(("workload", "data")))
        evaluation = run_file.workload.eval
        return anchored_data(run_file.workload.data), anchored_evaluation(evaluation)
    try:
        data = Data.model_validate({"source": target} | dict(options) | ({"image_size": 224} if images else {}))
    except ValidationError as error:
        detail = error.errors()[0]
        message, hint = invalid_value(detail, detail["loc"])
        raise UsageError(message, hint=hint) from None
    return anchored_data(data), None


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")


def prepare_data(
    data: Data,
    evaluation: Evaluation | None = None,
    *,
    to: str | None = None,
    processes: int | None = None,
    progress: ByteProgress,
) -> dict[str, Any]:
    """Write shards with checksums; continues after an interruption. Returns counts, folders and fingerprint.

    Args:
        data: of a workload.
        evaluation: of the same workload; what it holds out is prepared apart.
        to: destination of the shards, which then hold everything: a split of them holds out whole shards.
        processes: that tokenize; as many as there are cores when None.
        progress: receives the bytes done.
    """
    check_sources(data.sources)
    shards_of_images = data.image_size is not None and len(data.sources) == 1
    request = {"data": data.model_dump(mode="json"), "to": to, "processes": processes, "images": shards_of_images}
    if evaluation is not None and to is None and not shards_of_images:
        request["evaluation"] = evaluation.model_dump(mode="json")
    return ask("prepare", request, progress)


def verify_data(data: Data, *, progress: ByteProgress) -> dict[str, Any]:
    """Read shards back; returns how many there are, and the damaged ones."""
    return ask("verify", {"addresses": [source.source for source in data.sources]}, progress)


def export_model(
    run_dir: RunDir,
    to: Path,
    *,
    step: int | None,
    best: bool = False,
    dtype: str,
    merge: bool = False,
    progress: ByteProgress,
) -> dict[str, Any]:
    """Write a checkpoint of a run as a Hugging Face model; returns the step, and what was written.

    Args:
        run_dir: directory of a run of a workload.
        to: new folder.
        step: of the checkpoint; the newest complete one when None.
        best: take the checkpoint with the best evaluation instead.
        dtype: number format of the weights.
        merge: add an adapter to the weights of its checkpoint.
        progress: receives the bytes done.

    Raises:
        UsageError: the run has no model, or no such checkpoint.
        MissingExtraError: the libraries of the worker are not installed.
    """
    if run_dir.read_resolved().plan is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload has a model to export")
    chosen = _step(run_dir, _best_step(run_dir) if best else step)
    _require("torch", "transformers")
    folder = str(to.expanduser().absolute())
    request = {"run": str(run_dir.path.absolute()), "step": chosen, "to": folder, "dtype": dtype, "merge": merge}
    return ask("export", request, progress, module="export") | {"step": chosen, "folder": folder}


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


def prepared_folder(workload: Workload) -> str | None:
    """Folder of the prepared data, which a trial reads; None for a module, which brings its own."""
    if workload.task == "module":
        return None
    return str(ask("prepare", _preparation(workload))["folder"])


def held_out_samples(workload: Workload) -> int | None:
    """Samples that are held out, which are prepared if needed; None unless the run evaluates all of them."""
    if workload.task == "module" or workload.eval is None or workload.eval.steps != "all":
        return None
    return int(ask("prepare", _preparation(workload))["held_out_samples"])


def tokens_in_data(workload: Workload) -> int | None:
    """Size of the tokenized data, which is prepared if needed; None unless the run counts epochs."""
    if workload.train_for.unit != "epochs":
        return None
    return int(ask("prepare", _preparation(workload))["num_tokens"])


def _preparation(workload: Workload) -> dict[str, object]:
    """Request to prepare the data of a workload and what it holds out."""
    evaluation = workload.eval.model_dump(mode="json") if workload.eval else None
    return {"data": workload.data.model_dump(mode="json"), "evaluation": evaluation}
