"""Modules that the ranks of a run need. The process that ranks are forked from imports them once, for all attempts.

This module imports neither torch nor the trainer, so that the node agent and the planner can use it.
"""

from __future__ import annotations

from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import Workload


def rank_modules(workload: Workload, layout: ResolvedLayout) -> tuple[str, ...]:
    """Modules that every rank of this run would import itself, in the order of their import."""
    modules = ["torch._dynamo"]  # DDP and torch's optimizers import it at their first use
    if layout.pp > 1:
        modules.append("trainworks.worker.parallel.pipeline")
    if workload.task in ("masked-lm", "image-classification"):
        modules.append("trainworks.worker.tasks.transformer_tasks")
    elif workload.task == "causal-lm" and workload.model.hf is not None:
        modules += ["trainworks.worker.models.transformer", "transformers.modeling_utils"]
    return (*modules, "trainworks.worker.preloaded")
