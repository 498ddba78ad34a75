"""The config of a model: where it is found, its shape for the planner, and the layouts that the worker can train."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainworks import __version__
from trainworks.catalog.models import find_preset
from trainworks.config.layout import Layout, ModelSupport
from trainworks.config.run_file import Workload
from trainworks.config.spec import Spec
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.host.folders import cache_folder
from trainworks.measure.calibrate import remembered
from trainworks.measure.worker_tasks import ask
from trainworks.plan.parameters import reward_shape
from trainworks.plan.shapes.conv_net import ConvNetShape, conv_net_of_hf_config
from trainworks.plan.shapes.presets import check_task, default_vocabulary
from trainworks.plan.shapes.transformer import PLANNED_TYPES, shape_of_hf_config, shape_of_model, towers_note
from trainworks.record.model_shape import ModelShape

_Answer = TypeVar("_Answer", bound=Spec)

_DOWNLOAD = """
import sys
import huggingface_hub as hub
try:
    hub.get_hf_file_metadata(hub.hf_hub_url(sys.argv[1], "config.json"))
    path = hub.hf_hub_download(sys.argv[1], "config.json")
except Exception:
    path = hub.try_to_load_from_cache(sys.argv[1], "config.json")
    if not isinstance(path, str):
        raise
print(path)
"""
"""Downloads a config, or finds it in the cache. The request for its metadata fails at once without a network; the
download alone would try again for half a minute."""


def hf_config(checkpoint: str) -> dict[str, Any]:
    """The config.json of a local folder, of the Hub's cache, or of the Hub."""
    folder = Path(checkpoint).expanduser()
    path = folder / "config.json" if folder.is_dir() else _from_hub(checkpoint)
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"cannot read the config of `{checkpoint}`: {error}") from None
    if not isinstance(config, dict):
        raise EnvironmentProblem(f"cannot read the config of `{checkpoint}`: it is not a JSON object")
    return config


def _from_hub(checkpoint: str) -> Path:
    env = {"HF_HUB_ETAG_TIMEOUT": "5"} | os.environ
    output = process.run([*process.python_program(_DOWNLOAD), checkpoint], timeout_s=120, env=env)
    if output.exit_code != 0:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        known = find_preset(Path(checkpoint).name)
        instead = f"; `model: {{preset: {known}}}` plans the published model without them" if known else ""
        raise EnvironmentProblem(
            f"cannot load the config of `{checkpoint}`: no such folder, and the Hub returned: {reason}",
            hint=f"name a folder with config.json, or check the id and the network{instead}",
        )
    return Path(output.stdout.strip().splitlines()[-1])


_CUTS = ("tp", "pp", "cp", "ep")


def model_support(workload: Workload, packages: Mapping[str, str], *, python: str | None = None) -> ModelSupport:
    """The worker's answer, which is kept for each config and version of the libraries.

    `packages` are those of the ranks, whose interpreter is `python`; Trainworks' own when None.

    Raises:
        EnvironmentProblem: the config cannot be loaded.
        UsageError: the run file has a balance loss, and the model does not.
    """
    model = workload.model
    if workload.task != "causal-lm" or model.hf is None:
        return ModelSupport(balance_loss=model.written_balance_loss if model.architecture == "mixtral" else 0.0)
    request = {"model": model.model_dump(mode="json"), "adapted": workload.adapter is not None}
    return _answer(ModelSupport, "support", request, [hf_config(model.hf), dict(packages)], python)


class ParameterNames(Spec):
    """Names of the parameters that a run trains."""

    names: tuple[str, ...]


def check_groups(
    workload: Workload, shape: ModelShape, packages: Mapping[str, str], *, python: str | None = None
) -> None:
    """Check that every group of `optimizer.groups` has parameters, by the worker's names of them.

    Args are those of `model_support`, and the shape of the model.

    Raises:
        UsageError: one has none.
    """
    if not workload.optimizer.groups:
        return
    model, adapter = workload.model, workload.adapter
    request = {
        "model": model.model_dump(mode="json"),
        "shape": shape.model_dump(mode="json"),
        "adapter": adapter and adapter.model_dump(mode="json"),
    }
    facts = [model.hf and hf_config(model.hf), dict(packages)]
    workload.optimizer.check_groups(_answer(ParameterNames, "names", request, facts, python).names)


def _answer(
    kind: type[_Answer], action: str, request: Mapping[str, object], facts: Sequence[object], python: str | None
) -> _Answer:
    """The worker's answer, which is kept for each request and these facts."""
    known = json.dumps([__version__, request, *facts], sort_keys=True)
    return remembered(
        cache_folder("models") / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.json",
        kind,
        lambda: kind.model_validate(ask(action, request, module="models.command", python=python)),
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
    if cuts_layers(layout):
        model_support(workload, packages).check(layout)


def cuts_layers(layout: Layout | None) -> bool:
    """Whether a written layout cuts the layers of a model, or its list of them."""
    return layout is not None and any(getattr(layout, axis) > 1 for axis in _CUTS)


def model_shape(workload: Workload) -> ModelShape:
    """The shape of a model given by dimensions or by a Hugging Face config.

    Raises:
        UsageError: a sequence is longer than the model has positions for.
        EnvironmentProblem: the config cannot be loaded.
    """
    return shape_and_note(workload)[0]


def shape_and_note(workload: Workload) -> tuple[ModelShape, str | None]:
    """The shape, and a sentence on the vocabulary that the run file leaves out, or on a tower that is left out."""
    length = workload.data.sequence_length
    if workload.model.module is not None:
        raise UsageError(
            f"cannot plan `{workload.model.module}` for a described cluster: its shape is only known after building it",
            hint="plan it for this machine, which builds and measures it",
        )
    if workload.model.hf is None:
        taken = default_vocabulary(workload)
        entries = taken.entries if taken else workload.data.vocabulary or _entries_of(Path(workload.data.tokenizer))
        shape = shape_of_model(workload.model, vocabulary=entries, sequence_length=length)
        check_task(workload, shape)
        return reward_shape(shape) if workload.trains_reward else shape, taken.note if taken else None
    config = hf_config(workload.model.hf)
    shape = shape_of_hf_config(config | workload.data.sizes)
    check_task(workload, shape)
    if length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of the model"
        )
    return reward_shape(shape) if workload.trains_reward else shape, towers_note(config)


def conv_net(workload: Workload) -> ConvNetShape | None:
    """The shape of a convolutional network of a Hugging Face config; None for any other model."""
    if workload.model.hf is None or workload.task != "image-classification":
        return None
    config = hf_config(workload.model.hf)
    return conv_net_of_hf_config(config | workload.data.sizes) if config.get("model_type") == "resnet" else None


def has_formula(workload: Workload) -> bool:
    """True if formulas give the parameters, memory and step time of a causal language model on ranks at hand.

    Any other model of `transformers` is measured in a few steps of its own.

    Raises:
        EnvironmentProblem: the config cannot be loaded.
        UsageError: it lacks a dimension.
    """
    if workload.model.hf is None:
        return True
    config = hf_config(workload.model.hf)
    return config.get("model_type") in PLANNED_TYPES and shape_of_hf_config(config).latent is None


def _entries_of(tokenizer: Path) -> int:
    """Number of entries of a tokenizer.json: its largest id + 1."""
    try:
        content = json.loads(tokenizer.read_bytes())
        vocabulary = content["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        return 1 + int(max(ids + [token["id"] for token in content.get("added_tokens", [])]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(f"cannot read tokenizer `{tokenizer}`: {error}") from None
