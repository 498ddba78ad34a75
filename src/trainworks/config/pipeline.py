"""A pipeline of SkyPilot: a file of several tasks, of which each starts when the one before it has succeeded.

Source: the task YAML of SkyPilot 0.14; the first document may be a header with the name of the pipeline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainworks.config.load import parse_run_file
from trainworks.config.manifests.load import is_manifest, parse_run_description
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source, read_text, split_documents
from trainworks.errors import RunFileError, TrainworksError, UsageError

_HEADER = ("name", "execution", "primary_tasks", "termination_delay")
"""Keys of a first document that names the pipeline."""


def load_tasks(path: Path) -> list[tuple[RunFile, Source]]:
    """Read and check a run file or a manifest of Kubernetes, which are one task, or a pipeline.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: every problem in it, each with its line; or its tasks run at the same time.
    """
    return parse_tasks(read_text(path), name=str(path))


def parse_tasks(text: str, *, name: str) -> list[tuple[RunFile, Source]]:
    """Check the text of a run file, of a manifest or of a pipeline; its tasks are in the order of the file.

    Raises:
        RunFileError: every problem in it, each with its line; or its tasks run at the same time.
    """
    parts = [] if is_manifest(text) else list(split_documents(text))
    if len(parts) < 2:
        return [parse_run_description(text, name=name)]
    sources = [Source(name, part) for part in parts]
    documents = [(source, found) for source in sources if (found := source.parse()) is not None]
    header = documents[0] if len(documents) > 1 and _is_header(documents[0][1]) else None
    tasks = [source for source, _ in documents[1 if header else 0 :]]
    if header is not None:
        _check_order(*header, len(tasks))
    read, problems = list[tuple[RunFile, Source]](), list[TrainworksError]()
    for source in tasks or sources[:1]:
        try:
            read.append(parse_run_file(source.text, name=name))
        except RunFileError as error:
            problems += error.problems
    if problems:
        raise RunFileError(problems)
    if any(run_file.run is None for run_file, _ in read) and len(read) > 1:
        raise RunFileError([UsageError("the tasks of a pipeline are commands", place=name, hint="give each a `run`")])
    if header is not None:
        places = [header[0].place((key,)) for key in header[1]]
        read[0][1].unused += [f"{place} has no effect: each task is a job with a name of its own" for place in places]
    return read


def _is_header(document: Any) -> bool:
    return isinstance(document, dict) and document.keys() <= set(_HEADER)


def _check_order(source: Source, header: dict[str, Any], tasks: int) -> None:
    """Refuse a job group, and keys of one.

    Raises:
        RunFileError: the tasks do not run one after the other.
    """
    if others := [key for key in header if key not in ("name", "execution")]:
        message = f"`{others[0]}` is for a job group, whose tasks run at the same time and find each other by name"
    elif header.get("execution", "serial") != "serial":
        others = ["execution"]
        message = f"`execution: {header['execution']}` makes {tasks} tasks a job group; a pipeline runs them in order"
    else:
        return
    hint = "submit each task as a job of its own, and give it the addresses of the others"
    raise RunFileError([UsageError(message, place=source.place((others[0],)), hint=hint)])
