"""Layouts that the worker can train a model of `transformers` under, asked before anything starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from trainworks import __version__
from trainworks.api.hf_config import hf_config
from trainworks.api.worker_answer import ask
from trainworks.config.layout import Layout, ModelSupport
from trainworks.config.run_file import Workload
from trainworks.host.folders import cache_folder
from trainworks.measure.cache import remembered

_CUTS = ("tp", "pp", "cp", "ep")


def model_support(workload: Workload, packages: Mapping[str, str], *, python: str | None = None) -> ModelSupport:
    """The worker's answer, which is kept for each config and version of the libraries.

    Args:
        workload: of the run file.
        packages: versions of the libraries of the ranks.
        python: interpreter of the ranks; Trainworks' own when None.

    Raises:
        EnvironmentProblem: the config cannot be loaded.
        UsageError: the run file has a balance loss, and the model does not.
    """
    model = workload.model
    if workload.task != "causal-lm" or model.hf is None:
        return ModelSupport(balance_loss=model.written_balance_loss if model.architecture == "mixtral" else 0.0)
    request = {"model": model.model_dump(mode="json"), "adapted": workload.adapter is not None}
    facts = [__version__, request, hf_config(model.hf), dict(packages)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
    return remembered(
        cache_folder("models") / f"{key}.json",
        ModelSupport,
        lambda: ModelSupport.model_validate(ask("support", request, module="models.command", python=python)),
        again=False,
    )


def check_support_early(workload: Workload, layout: Layout | None, packages: Mapping[str, str]) -> None:
    """Check a written layout of a job that is planned on its nodes; they check a model that this machine does not have.

    Raises:
        LayoutError: the worker cannot train the model under it.
    """
    hf = workload.model.hf
    if layout is None or hf is None or "transformers" not in packages or not Path(hf).expanduser().is_dir():
        return
    if any(getattr(layout, axis) > 1 for axis in _CUTS):
        model_support(workload, packages).check(layout)
