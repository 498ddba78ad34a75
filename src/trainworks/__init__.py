"""Trainworks: from a training goal to a trained model, with a plan that the run has to answer for.

    >>> import trainworks
    >>> year = trainworks.cost(on="DGX H100")

Each command of the program is a function with its name. Importing the package is fast: a function is imported when it
is first used, and torch never is.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

_PUBLIC = {
    "accuracy": "score",
    "bench": "bench",
    "calibrate": "calibrate",
    "capacity": "capacity",
    "catalog": "catalog",
    "checkpoint_copies": "checkpointing.checkpoints",
    "checkpoints": "checkpointing.checkpoints",
    "compare": "observing.comparing",
    "compare_layout": "plan",
    "copy_checkpoint": "checkpointing.checkpoints",
    "cost": "cost",
    "describe": "jobs",
    "dev": "developing.dev",
    "drain": "nodes",
    "drill": "proving.drill",
    "edit": "resuming.editing",
    "env": "env",
    "find_job": "jobs",
    "find_run": "run_handle",
    "find_runs": "run_handle",
    "fleet_health": "proving.health",
    "goodput": "goodput",
    "hand_over": "plan",
    "health": "proving.health",
    "hold": "jobs",
    "jobs": "jobs",
    "log": "observing.log",
    "logs": "observing.logs",
    "network": "network",
    "nodes": "nodes",
    "plan": "plan",
    "prune_checkpoints": "checkpointing.checkpoints",
    "prune_environments": "env",
    "read_bench": "proving.read_bench",
    "release": "jobs",
    "remove": "retention",
    "repair": "proving.repair",
    "repair_history": "proving.repair",
    "report": "runs",
    "restore_checkpoint": "checkpointing.checkpoints",
    "resume": "runs",
    "retry": "jobs",
    "review": "proving.review",
    "run": "runs",
    "runs": "observing.run_list",
    "score": "score",
    "size": "size",
    "stop": "jobs",
    "storage": "storage",
    "submit": "runs",
    "submit_array": "runs",
    "sweep": "sweeping.sweep",
    "top": "observing.top",
    "track": "observing.track",
    "usage": "observing.job_board",
    "verify_checkpoints": "checkpointing.checkpoints",
    "why": "observing.why",
}
"""Name of a public function -> its module in `trainworks.api`."""

__all__ = [  # noqa: PLE0604
    "__version__",
    *_PUBLIC,
]


class _Package(ModuleType):
    """Imports public functions lazily, and keeps `trainworks.plan` the function.

    Importing a folder of the same name, such as `trainworks/plan`, would otherwise replace it.
    """

    def __getattr__(self, name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module `{self.__name__}` has no attribute `{name}`")
        function = getattr(import_module(f"{self.__name__}.api.{_PUBLIC[name]}"), name)
        setattr(self, name, function)
        return function

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_PUBLIC})


sys.modules[__name__].__class__ = _Package

if os.environ.get("TRAINWORKS_LOG"):  # every process of ours comes by here
    from trainworks.verbosity import inherit_log

    inherit_log()
