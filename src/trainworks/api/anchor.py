"""First step of resolving a run: check that it can run, and anchor its paths."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.config.finetune import Adapter
from trainworks.config.run_file import RunFile, Workload
from trainworks.config.software import family_of
from trainworks.config.source import Source
from trainworks.errors import MissingExtraError, UsageError
from trainworks.host.adapter_folder import continued
from trainworks.host.corpus import anchored_data, anchored_evaluation, check_sources
from trainworks.plan.software import worker_software
from trainworks.record.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class AnchoredRun:
    """A run file that can run, with paths that mean the same from every folder."""

    run_file: RunFile
    source: Source | None
    working_folder: Path
    shape: ModelShape | None
    """Shape of a preset, which can be planned and not trained; None for a model that is built."""


def anchor(run_file: RunFile, source: Source | None, *, on_nodes: bool, shape: ModelShape | None = None) -> AnchoredRun:
    """Check that a run can start, and make its paths absolute.

    Args:
        run_file: the run to resolve.
        source: text of the run file, for the place of an error.
        on_nodes: whether this process runs on the nodes of the job, whose files it sees.
        shape: of a preset.

    Raises:
        UsageError: the run cannot start, with its line.
        MissingExtraError: its data need a package.
    """
    if shape is None:
        run_file = trainable(run_file, source)
    folder = _working_folder(run_file, source)
    sees_files = on_nodes or run_file.cluster.engine != "kubernetes"
    if shape is None and sees_files:
        if run_file.workload is None:
            update: dict[str, object] = {"workdir": str(folder)} if run_file.workdir else {}
        else:
            update = {"workload": anchored_workload(run_file.workload, source)}
        run_file = run_file.model_copy(update=update)
    if run_file.workload is None:
        _check_variables(run_file, source)
    return AnchoredRun(run_file, source, folder, shape)


def trainable(run_file: RunFile, source: Source | None) -> RunFile:
    """The run file as the worker reads it: with the dimensions of a preset in place of its name.

    Raises:
        UsageError: the run can be planned and not started, with its line.
    """
    if run_file.workload is not None and run_file.workload.task == "diffusion":
        raise UsageError(
            "`task: diffusion` can be planned for a described cluster, not trained, by this version",
            place=source.place(("workload", "task")) if source else None,
            hint="train it with a script of its own, as a command: `run: torchrun $TORCHRUN_ARGS train.py`",
        )
    run_file = _with_dimensions(run_file, source)
    _check_it_can_run(run_file, source)
    _check_software(run_file, source)
    return run_file


def _check_it_can_run(run_file: RunFile, source: Source | None) -> None:
    """Refuse what can be planned for a described cluster and not run by this version."""
    workload = run_file.workload
    engine = run_file.cluster.engine
    problem: tuple[tuple[str, ...], str, str] | None = None
    if engine == "described":
        text = f"cluster `{run_file.cluster.of}` is described, to plan with, and nothing can run there"
        hint = "plan it with `trainworks plan`, or name its scheduler: `cluster: {engine: slurm, of: ...}`"
        problem = ("cluster",), text, f"{hint}; `trainworks size --engine slurm` writes such a file"
    elif engine == "local" and run_file.framework == "slurm" and (word := _word_of_slurm(run_file.run or "")):
        text = f"the script needs Slurm: `{word}`, and `cluster` is this machine"
        problem = ("run",), text, "set `cluster: slurm`, or let Trainworks start the ranks, without `srun`"
    elif workload is not None and workload.task != "causal-lm" and run_file.job.min_nodes not in (None, run_file.nodes):
        text = f"a workload of the task `{workload.task}` is measured, not planned, for its {run_file.nodes} node(s)"
        problem = ("job", "min_nodes"), text, "leave `min_nodes` out; a command or a causal-lm may have it"
    elif workload is not None and (mismatch := _model_mismatch(workload)) is not None:
        problem = ("workload", "model"), *mismatch
    elif workload is not None and (lacking := lacking_weights(workload)) is not None:
        text, hint = lacking
        problem = ("workload", "model"), text, f"{hint}; `trainworks plan` needs no weights"
    elif workload is not None and not workload.data.source and workload.task != "module":
        problem = (
            ("workload", "data"),
            "`source` is missing",
            "set `data.source`: python-stdlib, a file, a folder or a glob",
        )
    problem = problem or _no_container(run_file) or _image_of_role(run_file)
    if problem is not None:
        field, message, hint = problem
        raise UsageError(message, place=source.place(field) if source else None, hint=hint)


def lacking_weights(workload: Workload) -> tuple[str, str] | None:
    """The reason why a fine-tuning without a checkpoint cannot run, and a hint; None for any other workload."""
    if not workload.lacks_weights:
        return None
    key = "adapter" if workload.adapter is not None else "preference"
    text = f"`{key}` starts from the weights of a checkpoint, and `model` names none"
    return text, "set `model: {hf: FOLDER, weights: pretrained}`"


def _with_dimensions(run_file: RunFile, source: Source | None) -> RunFile:
    """The run file with a preset's dimensions in place of its name; a described cluster trains nothing."""
    workload = run_file.workload
    if workload is None or workload.model.preset is None or run_file.cluster.engine == "described":
        return run_file
    from trainworks.plan.shapes.presets import with_dimensions  # noqa: PLC0415  # imports the catalogue

    return run_file.model_copy(update={"workload": with_dimensions(workload, source)})


def _check_software(run_file: RunFile, source: Source | None) -> None:
    """Refuse a `software` block that says what Trainworks' own worker does not do."""
    block, workload = run_file.software, run_file.workload
    if block is None or workload is None:
        return
    if block.framework is not None and family_of(block.framework) != "trainworks":
        text = f"is {block.framework}, and Trainworks trains a workload itself"
        raise _other_software("framework", text, "remove `software.framework`", source)
    own = worker_software("cuda")
    for key, actual in (
        ("compiled", workload.compile is True),
        ("attention", own.attention),
        ("fp8_recipe", own.fp8_recipe),
    ):
        if (said := getattr(block, key)) not in (None, actual):
            hint = f"set `workload.compile: {str(said).lower()}`" if key == "compiled" else f"remove `software.{key}`"
            raise _other_software(key, f"is {str(said).lower()}, and the worker's {str(actual).lower()}", hint, source)


def _other_software(key: str, text: str, hint: str, source: Source | None) -> UsageError:
    place = source.place(("software", key)) if source else None
    hint = f"{hint}, or plan for a described cluster: `trainworks plan --on`"
    return UsageError(f"`software.{key}` {text}", place=place, hint=hint)


def _no_container(run_file: RunFile) -> tuple[tuple[str, ...], str, str] | None:
    """Field, reason and hint of a run that cannot start in a container on this machine; None for any other."""
    container, environment = run_file.cluster.local.container, run_file.environment
    if container is None or run_file.cluster.engine != "local":
        return None
    has_file = environment is not None and environment.file is not None
    reasons = [
        (container.image is None, "the container has no image", "set `environment: {image: ...}`"),
        (
            run_file.workload is not None,
            "a workload trains outside of containers on this machine",
            "use a lock file, or start your program as a command",
        ),
        (bool(run_file.roles), "a job with roles runs outside of containers here", "give each role a command in one"),
        (has_file, "a container has its own packages, and `environment` names others", "keep one of the two"),
        (
            run_file.setup is not None,
            "`setup` would run in a container that ends before `run`",
            "put it into the image, or into `run`",
        ),
    ]
    texts = next((texts for holds, *texts in reasons if holds), None)
    return None if texts is None else (("cluster", "local", "container"), texts[0], texts[1])


def _image_of_role(run_file: RunFile) -> tuple[tuple[str, ...], str, str] | None:
    """Field, reason and hint of a role with an image where it has no container of its own; None without one."""
    name = next((name for name, role in run_file.roles.items() if role.image is not None), None)
    if name is None or run_file.cluster.engine in ("kubernetes", "skypilot"):
        return None
    hint = "set `cluster.engine` to `kubernetes` or `skypilot`, or remove `image`"
    return ("roles", name, "image"), f"role `{name}` has an image, which is for Kubernetes and SkyPilot alone", hint


def _word_of_slurm(script: str) -> str | None:
    """The first word of a script, outside of comments, that only Slurm provides."""
    code = "".join(line for line in script.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    match = re.search(r"(?:^|(?<=[\s;&|(`]))(?:srun|scontrol|sbcast|sbatch|scancel)(?=\s|$)|\$\{?SLURM_\w+", code)
    return match[0].replace("{", "") if match else None


def _model_mismatch(workload: Workload) -> tuple[str, str] | None:
    """The reason why a model given by dimensions does not suit the task, and a hint."""
    if workload.model.layers is None or workload.task == "causal-lm":
        return None
    if workload.task == "image-classification":
        return "dimensions do not describe a model of images", "name a folder or hub id with its config.json in `hf`"
    if workload.model.architecture != "bert":
        return f"{workload.model.architecture} predicts the next token, not hidden ones", "set `architecture: bert`"
    return None


def _check_variables(run_file: RunFile, source: Source | None) -> None:
    roles = {name: role.envs for name, role in run_file.roles.items()}
    blocks = {("envs",): run_file.envs} | {("roles", name, "envs"): envs for name, envs in roles.items()}
    wanted = [(path, name) for path, envs in blocks.items() for name, value in envs.items() if value is None]
    if missing := [name for _, name in wanted if name not in os.environ]:
        path = next(path for path, name in wanted if name == missing[0])
        place = source.place((*path, missing[0])) if source else None
        hint = f"export {missing[0]}=..., or write its value in `envs`"
        raise UsageError(f"environment variable `{missing[0]}` has no value", place=place, hint=hint)
    login = run_file.cluster.slurm.login if run_file.cluster.engine == "slurm" else None
    if login and (here := [name for name, value in run_file.envs.items() if value is None]):
        place = source.place(("envs", here[0])) if source else None
        hint = f"write its value in `envs`, or submit on {login}"
        raise UsageError(f"`{here[0]}` has a value here, and `{login}` does not see it", place=place, hint=hint)


def _working_folder(run_file: RunFile, source: Source | None) -> Path:
    """The folder a command starts in: `workdir`, relative to the current folder."""
    place = source.place(("workdir",)) if source else None
    try:
        folder = Path.cwd() / Path(run_file.workdir or "").expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, or the home of a user that does not exist
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot use `workdir`: {why}", place=place, hint="name a folder that exists") from None
    if not is_folder:
        raise UsageError(f"`workdir` ({run_file.workdir}) is not a folder", place=place)
    return folder


def anchored_workload(workload: Workload, source: Source | None) -> Workload:
    """The same workload with absolute paths and the tokenizer that belongs to its model; its data must exist.

    Args:
        workload: of a run file.
        source: text of the run file, for the place of an error.

    Raises:
        UsageError: a source has no files, a module no file, the checkpoint no folder, pretrained weights have no
            tokenizer, or training cannot continue from the adapter.
        MissingExtraError: its data need a package.
    """
    try:
        at = ("workload", "data", "source")
        check_sources(workload.data.sources)
        at = ("workload", "eval", "data")
        check_sources([*workload.eval.sources.values()] if workload.eval else [])
    except (UsageError, MissingExtraError) as error:
        error.place = source.place(at) if source else None
        raise
    _check_checkpoint(workload, source)
    if workload.model.module is not None:
        module = _module_file(workload.model.module, source)
        return workload.model_copy(update={"model": workload.model.model_copy(update={"module": str(module)})})
    anchored, adapter = _with_absolute_paths(workload), continued_adapter(workload, source)
    return anchored if adapter is None else anchored.model_copy(update={"adapter": adapter})


def continued_adapter(workload: Workload, source: Source | None) -> Adapter | None:
    """The adapter of a workload, as the folder describes it that training continues from; None without one.

    Raises:
        UsageError: training cannot continue from it.
    """
    try:
        return continued(workload.adapter) if workload.adapter else None
    except UsageError as error:
        error.place = source.place(("workload", "adapter", "folder")) if source else None
        raise


def _check_checkpoint(workload: Workload, source: Source | None) -> None:
    """Refuse a path without a folder; a name with at most one slash may be a hub id."""
    written = workload.model.hf
    if written is None or (written[0] not in "/.~" and written.count("/") < 2) or Path(written).expanduser().is_dir():
        return
    place = source.place(("workload", "model", "hf")) if source else None
    raise UsageError(f"`{written}` is not a folder", place=place, hint="name the folder of a checkpoint, or a hub id")


def _with_absolute_paths(workload: Workload) -> Workload:
    """The same workload with the tokenizer that it trains with, and absolute paths."""
    tokenizer = _tokenizer(workload)
    data: dict[str, Any] = {"source": anchored_data(workload.data).source}
    if (chat := workload.data.chat) is not None and chat.template is not None:
        data["chat"] = chat.model_copy(update={"template": str(Path(chat.template).expanduser().absolute())})
    data |= {} if tokenizer == "bpe" else {"tokenizer": str(Path(tokenizer).expanduser().absolute())}
    folder = Path(workload.model.hf).expanduser() if workload.model.hf else None
    model = {"hf": str(folder.absolute())} if folder and folder.is_dir() else {}
    return workload.model_copy(
        update={
            "data": workload.data.model_copy(update=data),
            "eval": anchored_evaluation(workload.eval),
            "model": workload.model.model_copy(update=model),
        }
    )


def _module_file(written: str, source: Source | None) -> Path:
    """The Python file, relative to the run file."""
    folder = Path(source.name).parent if source else Path()
    file = (folder / Path(written).expanduser()).absolute()
    if not file.is_file():
        place = source.place(("workload", "model", "module")) if source else None
        raise UsageError(f"`{written}` is not a file", place=place, hint=f"it is looked up as `{file}`")
    return file


def _tokenizer(workload: Workload) -> str:
    """The tokenizer of the run file; pretrained weights take that of their checkpoint."""
    if workload.data.tokenizer != "bpe" or workload.model.weights != "pretrained" or workload.data.image_size:
        return workload.data.tokenizer
    beside = Path(str(workload.model.hf)).expanduser() / "tokenizer.json"
    if beside.is_file():
        return str(beside)
    raise UsageError(
        "pretrained weights need the tokenizer they were trained with",
        hint="set `data.tokenizer` to the tokenizer.json of the checkpoint",
    )
