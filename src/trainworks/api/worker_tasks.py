"""Training data, prepared and verified by the worker, which has the libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.api.anchor import anchored_workload
from trainworks.api.notices import Notify
from trainworks.api.worker_answer import ask
from trainworks.config.data import Data, Evaluation
from trainworks.config.load import invalid_value
from trainworks.config.manifests.load import load_run_description
from trainworks.config.run_file import Workload
from trainworks.errors import MissingExtraError, UsageError
from trainworks.host.corpus import anchored_data, check_sources
from trainworks.report.data import tokenizing_line

ByteProgress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def read_data(target: str, options: Mapping[str, Any], *, images: bool) -> tuple[Data, Evaluation | None]:
    """The data of a run file with its evaluation as the run uses them, or of a source with options.

    Args:
        target: path of a run file, or a source as in `data.source`.
        options: keys of `workload.data` beside the source.
        images: whether the source is a folder of images.

    Raises:
        UsageError: the run file has no data, or an option is not valid.
        MissingExtraError: the libraries of the worker are not installed.
    """
    require_packages("tokenizers")
    if target.endswith((".yaml", ".yml")):
        if options or images:
            raise UsageError("options of the data stand in the run file", hint="leave them out of the command")
        run_file, source = load_run_description(Path(target))
        if run_file.workload is None or not run_file.workload.data.sources:
            raise UsageError(f"`{target}` has no `workload.data.source`", place=source.place(("workload", "data")))
        workload = anchored_workload(run_file.workload, source)
        return workload.data, workload.eval
    try:
        data = Data.model_validate({"source": target} | dict(options) | ({"image_size": 224} if images else {}))
    except ValidationError as error:
        detail = error.errors()[0]
        message, hint = invalid_value(detail, detail["loc"])
        raise UsageError(message, hint=hint) from None
    return anchored_data(data), None


def require_packages(*packages: str) -> None:
    """Check that libraries of the worker are installed.

    Raises:
        MissingExtraError: one is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")


def prepare_data(
    data: Data,
    evaluation: Evaluation | None = None,
    *,
    to: str | None = None,
    processes: int | None = None,
    images: bool = False,
    progress: ByteProgress,
) -> dict[str, Any]:
    """Write shards with checksums; continues after an interruption. Returns counts, folders and fingerprint.

    Args:
        data: of a workload.
        evaluation: of the same workload; what it holds out is prepared apart.
        to: destination of the shards, which then hold everything: a split of them holds out whole shards.
        processes: that tokenize; as many as there are cores when None.
        images: pack a folder of images into shards; a run reads the folder itself.
        progress: receives the bytes done.
    """
    check_sources(data.sources)
    shards_of_images = images or (data.image_size is not None and to is not None)
    request = {"data": data.model_dump(mode="json"), "to": to, "processes": processes, "images": shards_of_images}
    if evaluation is not None and to is None and not shards_of_images:
        request["evaluation"] = evaluation.model_dump(mode="json")
    return ask("prepare", request, progress)


def verify_data(data: Data, *, progress: ByteProgress) -> dict[str, Any]:
    """Read shards back; returns how many there are, and the damaged ones."""
    return ask("verify", {"addresses": [source.source for source in data.sources]}, progress)


def prepared_folder(workload: Workload, announce: Notify) -> str | None:
    """Folder of the prepared data, which a trial reads; None for a module, which brings its own."""
    if workload.task == "module":
        return None
    return str(_prepared(workload, announce)["folder"])


def held_out_samples(workload: Workload, announce: Notify) -> int | None:
    """Samples that are held out, which are prepared if needed; None unless the run evaluates all of them."""
    if workload.task == "module" or workload.eval is None or workload.eval.steps != "all":
        return None
    return int(_prepared(workload, announce)["held_out_samples"])


def tokens_in_data(workload: Workload, announce: Notify) -> int | None:
    """Size of the tokenized data, which is prepared if needed; None unless the run counts epochs."""
    if workload.train_for.unit != "epochs":
        return None
    return int(_prepared(workload, announce)["num_tokens"])


def _prepared(workload: Workload, announce: Notify) -> dict[str, Any]:
    """Prepare the data of a workload and what it holds out; `announce` receives a line if they have to be made."""
    evaluation = workload.eval.model_dump(mode="json") if workload.eval else None
    is_announced = False

    def progress(done: int, total: int) -> None:
        nonlocal is_announced
        if not is_announced:
            announce(tokenizing_line(total))
        is_announced = True

    return ask("prepare", {"data": workload.data.model_dump(mode="json"), "evaluation": evaluation}, progress)
