"""Questions to the worker's own commands, which have torch and the libraries of the ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.host import process


def ask(
    action: str,
    request: dict[str, Any],
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    module: str = "data.command",
    python: str | None = None,
) -> dict[str, Any]:
    """The worker's answer to `prepare` or `verify`, or of another of its modules.

    Args:
        action: what to do.
        request: with what, see `trainworks.worker.data.command`.
        progress: called with bytes done and bytes in all.
        module: of the worker, that talks as `data.command` does.
        python: interpreter of the ranks; Trainworks' own when None.

    Raises:
        TrainworksError: the worker reports it.
    """
    command = process.python_module(
        f"trainworks.worker.{module}", action, json.dumps(request), str(os.getpid()), python=python
    )
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
