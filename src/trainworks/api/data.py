"""Training data, prepared and verified before a run by the worker, which has the libraries."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from trainworks.api.anchor import anchored_workload
from trainworks.api.inputs import load_run
from trainworks.config.data import Data, Evaluation, Reencoding
from trainworks.config.load import invalid_value
from trainworks.config.run_description import is_run_description
from trainworks.errors import UsageError
from trainworks.host.corpus import anchored_data
from trainworks.measure.worker_tasks import prepare_data, require_packages, verify_data

__all__ = ["prepare_data", "read_data", "read_reencoding", "verify_data"]


def read_data(target: str, options: Mapping[str, object], *, images: bool) -> tuple[Data, Evaluation | None]:
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
    if is_run_description(target):
        if options or images:
            raise UsageError("options of the data stand in the run file", hint="leave them out of the command")
        run_file, source = load_run(target)
        if run_file.workload is None or not run_file.workload.data.sources:
            place = source.place(("workload", "data")) if source else None
            raise UsageError(f"`{target}` has no `workload.data.source`", place=place)
        workload = anchored_workload(run_file.workload, source)
        return workload.data, workload.eval
    try:
        data = Data.model_validate({"source": target} | dict(options) | ({"image_size": 224} if images else {}))
    except ValidationError as error:
        raise _refusal(error) from None
    return anchored_data(data), None


def read_reencoding(options: Mapping[str, object], *, images: bool) -> Reencoding | None:
    """How images are encoded anew; None without options, where they keep their bytes.

    Args:
        options: `format`, `quality` and `size` that are set.
        images: whether the source is a folder of images.

    Raises:
        UsageError: the options lack a format, the source is none of images, or a value is not valid.
    """
    if not options:
        return None
    if not images:
        raise UsageError("only images are encoded anew", hint="add `--images`")
    if "format" not in options:
        raise UsageError("quality and size belong to a format", hint="add `--format webp` or `--format jpeg`")
    try:
        return Reencoding.model_validate(dict(options))
    except ValidationError as error:
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> UsageError:
    detail = error.errors()[0]
    message, hint = invalid_value(detail, detail["loc"])
    return UsageError(message, hint=hint)
