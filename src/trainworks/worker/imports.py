"""Modules that the ranks of a run need. The process that ranks are forked from imports them once, for all attempts.

This module imports neither torch nor the trainer, so that the node agent and the planner can use it.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable
from contextlib import suppress

from trainworks.config.run_file import Workload


def rank_modules(workload: Workload, *, pp: int = 1) -> tuple[str, ...]:
    """Modules that every rank of this run would import itself, in the order of their import."""
    modules = ["torch._dynamo"]  # DDP and torch's optimizers import it at their first use
    if pp > 1:
        modules.append("trainworks.worker.parallel.pipeline")
    if workload.task in ("masked-lm", "image-classification"):
        modules.append("trainworks.worker.tasks.transformer_tasks")
    elif workload.task == "causal-lm" and workload.model.hf is not None:
        modules += ["trainworks.worker.models.transformer", "transformers.modeling_utils"]
    return (*modules, "trainworks.worker.preloaded")


def import_all(modules: Iterable[str]) -> None:
    """Import modules; a missing one is not an error here, because the rank that needs it says so.

    Half a million objects stay, and Python's collector would look through them again and again. It does so rarely here,
    which saves a quarter of the processor time of importing torch and the trainer.
    """
    usual = gc.get_threshold()
    gc.set_threshold(20_000, 10, 1_000)
    try:
        for module in modules:
            with suppress(ImportError):
                importlib.import_module(module)
    finally:
        gc.set_threshold(*usual)
