"""From a run file to a resolved run: probe, choose, measure, predict. Shared by `plan`, `run` and `submit`."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

from trainworks import __version__
from trainworks.api.precision import check_precision, default_precision
from trainworks.api.worker_call import ask
from trainworks.catalog.catalog import accelerator
from trainworks.catalog.facts import Accelerator
from trainworks.catalog.listings import known_accelerator
from trainworks.config.load import Source
from trainworks.config.run_file import TRAINED_VOCABULARY, Data, RunFile, Workload
from trainworks.errors import DiskFullError, EnvironmentProblem, LayoutError, MissingExtraError, UsageError
from trainworks.files import free_bytes
from trainworks.host import process
from trainworks.host.corpus import anchored_data, check_sources
from trainworks.host.folders import cache_folder
from trainworks.host.probe import probe_host
from trainworks.jobs.environment import agent_environment
from trainworks.measure.calibrate import Machines, calibrate
from trainworks.measure.trial import TrialOutOfMemoryError, try_out
from trainworks.plan.local.command import ResourceError, as_asked, choose_command_processes, choose_workload_processes
from trainworks.plan.local.layout import choose_layout
from trainworks.plan.local.measured import check_own_optimizer, make_measured_plan, measured_layouts
from trainworks.plan.local.plan import make_plan, num_steps
from trainworks.plan.local.step_time import calibration_request
from trainworks.plan.model_shape import shape_of_hf_config, shape_of_model
from trainworks.record.environment import HostFacts
from trainworks.record.resolved import ModelShape, Processes, ResolvedRun
from trainworks.record.trial import TrialRequest
from trainworks.units import format_bytes
from trainworks.worker.imports import rank_modules

__all__ = ["model_shape", "resolve"]

_USABLE_SHARE = 0.8
"""Of a rank's memory; the rest is the system's and the allocator's."""
_TYPICAL_BASELINE_BYTES = 400_000_000
"""Of a rank before calibration, for the choice of the layout alone."""


def resolve(
    run_file: RunFile,
    source: Source | None,
    *,
    run_id: str,
    runs: Path,
    command: list[str] | None = None,
    calibrate_again: bool = False,
    host: HostFacts | None = None,
    machines: Machines | None = None,
    shape: ModelShape | None = None,
) -> ResolvedRun:
    """Decide everything that the run file leaves open, and predict the run.

    Args:
        run_file: what is asked for.
        source: where it was read.
        run_id: of the run directory.
        runs: folder of all runs.
        command: argument vector, where one is given instead of a text.
        calibrate_again: measure even what was measured before.
        host: all nodes of the run as one machine, where it has got them; else this machine is probed. A run for
            another engine has none yet: it is planned on its nodes, and until then what it asks for stands in for them.
        machines: how to start something on these nodes.
        shape: of a preset, which can be planned and not trained; the model's own where left out.

    Raises:
        TrainworksError: with the run file's line where it is to blame.
    """
    if shape is None:
        _check_it_can_run(run_file, source)
    folder = _working_folder(run_file, source)
    if shape is None and (host is not None or run_file.cluster.engine != "kubernetes"):  # whose pods see other files
        run_file = _anchored(run_file, source, folder)
    if run_file.workload is None:
        _check_variables(run_file, source)
    elsewhere = run_file.cluster.engine != "local" and host is None
    host = host or (as_asked(run_file) if elsewhere else probe_host(runs))
    processes = _with_nccl(_processes(run_file, source, host), run_file, source)
    if not elsewhere:
        run_file = _with_precision(run_file, source, host, processes.device)
    resolved = ResolvedRun(
        run_id=run_id,
        created_at=time.time(),
        trainworks=__version__,
        run_file=run_file,
        command=tuple(command) if command else None,
        working_folder=str(folder),
        processes=processes,
        host=host,
    )
    if run_file.workload is None or elsewhere:
        return resolved
    try:
        return _with_plan(resolved, run_file.workload, runs, calibrate_again, machines, shape)
    except LayoutError as error:
        if source is None:
            raise
        raise source.locate(error) from None


def _check_it_can_run(run_file: RunFile, source: Source | None) -> None:
    """What can be planned for a described cluster and not trained by this version is refused, with its place."""
    workload = run_file.workload
    engine = run_file.cluster.engine
    problem: tuple[tuple[str, ...], str, str] | None = None
    if engine == "described":
        text = f"cluster `{run_file.cluster.of}` is described, to plan with, and nothing can run there"
        problem = ("cluster",), text, "plan it with `trainworks plan`, or set `cluster: local`"
    elif engine == "local" and run_file.framework == "slurm" and (word := _word_of_slurm(run_file.run or "")):
        text = f"the script needs Slurm: `{word}`, and `cluster` is this machine"
        problem = ("run",), text, "set `cluster: slurm`, or let Trainworks start the ranks, without `srun`"
    elif workload is not None and run_file.job.min_nodes not in (None, run_file.nodes):
        text = f"a workload is planned for {run_file.nodes} node(s), and cannot start on {run_file.job.min_nodes}"
        problem = ("job", "min_nodes"), text, "leave `min_nodes` out; a command may have it"
    elif workload is not None and workload.model.preset is not None:
        text = f"preset `{workload.model.preset}` can be planned, not trained, by this version"
        problem = (
            ("workload", "model", "preset"),
            text,
            "name a checkpoint folder or hub id in `hf`, or give dimensions",
        )
    elif workload is not None and (wanted := _other_model(workload)) is not None:
        problem = ("workload", "model"), *wanted
    elif workload is not None and not workload.data.source and workload.task != "module":
        problem = (
            ("workload", "data"),
            "`source` is missing",
            "set `data.source`: python-stdlib, a file, a folder or a glob",
        )
    if problem is not None:
        field, message, hint = problem
        raise UsageError(message, place=source.place(field) if source else None, hint=hint)


def _word_of_slurm(script: str) -> str | None:
    """The first thing in a script, outside of comments, that only Slurm provides."""
    code = "".join(line for line in script.splitlines(keepends=True) if not line.lstrip().startswith("#"))
    found = re.search(r"(?:^|(?<=[\s;&|(`]))(?:srun|scontrol|sbcast|sbatch|scancel)(?=\s|$)|\$\{?SLURM_\w+", code)
    return found[0].replace("{", "") if found else None


def _other_model(workload: Workload) -> tuple[str, str] | None:
    """Why the model that is given by dimensions is none for the task, and what to write."""
    if workload.model.layers is None or workload.task == "causal-lm":
        return None
    if workload.task == "image-classification":
        return "a model of images is not given by dimensions", "name a folder or hub id with its config.json in `hf`"
    if workload.model.architecture != "bert":
        return f"{workload.model.architecture} predicts the next token, not hidden ones", "set `architecture: bert`"
    return None


def _check_variables(run_file: RunFile, source: Source | None) -> None:
    missing = [name for name, value in run_file.envs.items() if value is None and name not in os.environ]
    if missing:
        place = source.place(("envs", missing[0])) if source else None
        hint = f"export {missing[0]}=..., or write its value in `envs`"
        raise UsageError(f"environment variable `{missing[0]}` has no value", place=place, hint=hint)
    login = run_file.cluster.slurm.login if run_file.cluster.engine == "slurm" else None
    if login and (here := [name for name, value in run_file.envs.items() if value is None]):
        place = source.place(("envs", here[0])) if source else None
        hint = f"write its value in `envs`, or submit on {login}"
        raise UsageError(f"`{here[0]}` has a value here, and `{login}` does not see it", place=place, hint=hint)


def _processes(run_file: RunFile, source: Source | None, host: HostFacts) -> Processes:
    choose = choose_workload_processes if run_file.workload else choose_command_processes
    try:
        return choose(run_file, host)
    except ResourceError as error:
        place = source.place(("resources", error.field)) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None


def _with_nccl(processes: Processes, run_file: RunFile, source: Source | None) -> Processes:
    """The same processes with what NCCL needs on the cluster, where the run file describes it."""
    described = run_file.cluster.of
    if described is None:
        return processes
    from trainworks.catalog.cluster import parse_cluster  # noqa: PLC0415  # a catalogue that few runs need
    from trainworks.plan.network.nccl import nccl_environment  # noqa: PLC0415

    try:
        cluster = parse_cluster(described)
    except UsageError as error:
        place = source.place(("cluster", "of")) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None
    return processes.model_copy(update={"nccl_environment": nccl_environment(cluster, processes)})


def _working_folder(run_file: RunFile, source: Source | None) -> Path:
    """Where a command starts: `workdir`, from the folder that one is in."""
    place = source.place(("workdir",)) if source else None
    try:
        folder = Path.cwd() / Path(run_file.workdir or "").expanduser()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError) as error:  # a name that is too long, or the home of a user that does not exist
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot use `workdir`: {why}", place=place, hint="name a folder that exists") from None
    if not is_folder:
        raise UsageError(f"`workdir` ({run_file.workdir}) is no folder", place=place)
    return folder


def _anchored(run_file: RunFile, source: Source | None, working_folder: Path) -> RunFile:
    """The same run file with paths that mean the same from every folder; the text must exist now."""
    workload = run_file.workload
    if workload is None:
        return run_file.model_copy(update={"workdir": str(working_folder)} if run_file.workdir else {})
    try:
        check_sources(workload.data)
    except (UsageError, MissingExtraError) as error:
        error.place = source.place(("workload", "data", "source")) if source else None
        raise
    tokenizer = _tokenizer(workload)
    if workload.model.module is not None:
        module = _module_file(workload.model.module, source)
        changed: dict[str, Any] = {"model": workload.model.model_copy(update={"module": str(module)})}
        return run_file.model_copy(update={"workload": workload.model_copy(update=changed)})
    data = {"source": anchored_data(workload.data).source}
    data |= {} if tokenizer == "bpe" else {"tokenizer": str(Path(tokenizer).expanduser().absolute())}
    folder = Path(workload.model.hf).expanduser() if workload.model.hf else None
    model = {"hf": str(folder.absolute())} if folder and folder.is_dir() else {}
    changed = {
        "data": workload.data.model_copy(update=data),
        "model": workload.model.model_copy(update=model),
    }
    return run_file.model_copy(update={"workload": workload.model_copy(update=changed)})


def _with_precision(run_file: RunFile, source: Source | None, host: HostFacts, device: str) -> RunFile:
    """The same run file with a precision, where it names none; one that the host has not got is refused."""
    workload = run_file.workload
    if workload is None:
        return run_file
    if "precision" in workload.model_fields_set:
        check_precision(workload.precision, host, source)
        return run_file
    chosen = workload.model_copy(update={"precision": default_precision(host, device)})
    return run_file.model_copy(update={"workload": chosen})


def _module_file(written: str, source: Source | None) -> Path:
    """The Python file, as seen from the run file."""
    folder = Path(source.name).parent if source else Path()
    file = (folder / Path(written).expanduser()).absolute()
    if not file.is_file():
        place = source.place(("workload", "model", "module")) if source else None
        raise UsageError(f"`{written}` is no file", place=place, hint=f"it is looked for as `{file}`")
    return file


def _tokenizer(workload: Workload) -> str:
    """As written; pretrained weights take the tokenizer that lies beside them, never a trained one."""
    if workload.data.tokenizer != "bpe" or workload.model.weights != "pretrained":
        return workload.data.tokenizer
    beside = Path(str(workload.model.hf)).expanduser() / "tokenizer.json"
    if beside.is_file():
        return str(beside)
    raise UsageError(
        "pretrained weights mean nothing under a tokenizer that is trained anew",
        hint="set `data.tokenizer` to the tokenizer.json of the checkpoint",
    )


def _with_plan(
    resolved: ResolvedRun,
    workload: Workload,
    runs: Path,
    again: bool,
    machines: Machines | None,
    planned: ModelShape | None,
) -> ResolvedRun:
    host, processes = resolved.host, resolved.processes
    if "torch" not in host.packages or "transformers" not in host.packages:
        raise MissingExtraError("torch" if "torch" not in host.packages else "transformers", "train")
    if workload.task != "causal-lm":
        return _with_measured_plan(resolved, workload, host, runs, again)
    shape = planned or model_shape(workload)
    if not shape.causal or shape.latent is not None:
        raise UsageError(f"`{workload.model.hf}` can be planned for a described cluster, not trained, by this version")
    layout = choose_layout(
        workload,
        shape,
        resolved.run_file.layout,
        world_size=processes.world_size,
        memory_per_rank_bytes=_memory_per_rank(host, processes),
        baseline_bytes=_TYPICAL_BASELINE_BYTES,
        device=processes.device,
    )
    request = calibration_request(
        shape,
        layout,
        processes,
        sequence_length=workload.data.sequence_length,
        precision=workload.precision,
        machines=processes.nodes if machines else 1,
        modules=rank_modules(workload, layout),
    )
    calibration = calibrate(
        request,
        host,
        cache_folder("calibration"),
        environment=agent_environment(processes),
        again=again,
        machines=machines,
    )
    steps = num_steps(workload, tokens_in_data=_tokens_in_data(workload))
    part = _catalogued(host)
    plan = make_plan(resolved.run_file, shape, layout, processes, calibration, steps=steps, accelerator=part)
    _check_disk(plan.checkpoint_bytes, runs)
    return resolved.model_copy(update={"plan": plan, "calibration": calibration})


def _with_measured_plan(
    resolved: ResolvedRun, workload: Workload, host: HostFacts, runs: Path, again: bool
) -> ResolvedRun:
    """A plan of what a few steps of the real model took; the first layout that has room is the one."""
    processes = resolved.processes
    usable = _USABLE_SHARE * _memory_per_rank(host, processes)
    largest = 0
    folder = _prepared_folder(workload)
    for layout in measured_layouts(workload, resolved.run_file.layout, world_size=processes.world_size):
        request = TrialRequest(workload=workload, layout=layout, processes=processes, data_folder=folder)
        try:
            trial = try_out(
                request, host, cache_folder("trials"), environment=agent_environment(processes), again=again
            )
        except TrialOutOfMemoryError:
            continue
        plan = make_measured_plan(resolved.run_file, layout, processes, trial, accelerator=_catalogued(host))
        largest = plan.memory.total_bytes
        if largest <= usable:
            check_own_optimizer(workload, trial)
            _check_disk(plan.checkpoint_bytes, runs)
            return resolved.model_copy(update={"plan": plan})
    raise EnvironmentProblem(
        f"the model does not fit: {format_bytes(largest) if largest else 'more memory than there is'} per rank, "
        f"{format_bytes(usable)} usable",
        hint="set a smaller `layout.micro_batch`, shard the model over more ranks, or start fewer ranks per node",
    )


def _prepared_folder(workload: Workload) -> str | None:
    """Of the data, prepared now if it has to be: a trial reads it. A module brings its own."""
    if workload.task == "module":
        return None
    return str(ask("prepare", {"data": workload.data.model_dump(mode="json")})["folder"])


def _catalogued(host: HostFacts) -> Accelerator | None:
    """The accelerator of a machine as the catalogue has it; None without one, or where the catalogue lacks it."""
    name = known_accelerator(host.accelerators[0].name) if host.accelerators else None
    return None if name is None else accelerator(name)


def _memory_per_rank(host: HostFacts, processes: Processes) -> int:
    if processes.device == "cuda":
        return min(accelerator.memory_bytes for accelerator in host.accelerators)
    return host.memory_bytes // processes.world_size


def model_shape(workload: Workload) -> ModelShape:
    """The shape of a model given by dimensions or by a Hugging Face config.

    Raises:
        UsageError: a sequence is longer than the model has positions for.
        EnvironmentProblem: the config cannot be had.
    """
    length = workload.data.sequence_length
    if workload.model.module is not None:
        raise UsageError(
            f"nobody knows the shape of a model that `{workload.model.module}` builds",
            hint="plan it for this machine, where it is built and tried out",
        )
    if workload.model.hf is None:
        return shape_of_model(workload.model, vocabulary=_vocabulary(workload.data), sequence_length=length)
    shape = shape_of_hf_config(_hf_config(workload.model.hf))
    if length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of the model"
        )
    return shape


def _vocabulary(data: Data) -> int:
    """Rows of the embedding: as written, else those that the tokenizer needs."""
    if data.vocabulary is not None:
        return data.vocabulary
    return TRAINED_VOCABULARY if data.tokenizer == "bpe" else _entries_of(Path(data.tokenizer))


def _entries_of(tokenizer: Path) -> int:
    """Entries of a tokenizer.json: its largest id + 1."""
    try:
        content = json.loads(tokenizer.read_bytes())
        vocabulary = content["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        return 1 + int(max(ids + [token["id"] for token in content.get("added_tokens", [])]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(f"cannot read tokenizer `{tokenizer}`: {error}") from None


def _hf_config(checkpoint: str) -> dict[str, Any]:
    """config.json of a local folder, or of the hub's cache, or of the hub."""
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
    program = "import sys, huggingface_hub as hub; print(hub.hf_hub_download(sys.argv[1], 'config.json'))"
    output = process.run([*process.python_program(program), checkpoint], timeout_s=120)
    if output.exit_code != 0:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(
            f"`{checkpoint}` is no folder, and the hub cannot give its config: {reason}",
            hint="name a folder with config.json, or check the id and the network",
        )
    return Path(output.stdout.strip().splitlines()[-1])


def _tokens_in_data(workload: Workload) -> int | None:
    """Size of the tokenized data, which only a run by epochs needs to know; prepared now if it has to be."""
    if workload.train_for.unit != "epochs":
        return None
    return int(ask("prepare", {"data": workload.data.model_dump(mode="json")})["num_tokens"])


def _check_disk(checkpoint_bytes: int, runs: Path) -> None:
    """One checkpoint must fit beside nothing: a run that cannot save once is not started."""
    if (free := free_bytes(runs)) < checkpoint_bytes:
        raise DiskFullError(
            f"one checkpoint takes {format_bytes(checkpoint_bytes)}, `{runs}` has {format_bytes(free)} free",
            hint="free some space or point `checkpoint.to` at another disk",
        )
