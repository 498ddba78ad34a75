"""A development environment: a job whose nodes run an ssh server or JupyterLab of the user's own."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.agent.development.ssh import KEYS_VARIABLE
from trainworks.agent.environments.files import without_packages
from trainworks.api.developing.access import DevAccess, access_of
from trainworks.api.inputs import load_run, named_cluster
from trainworks.api.launching.prepared_run import PreparedRun, prepare
from trainworks.api.notices import Notify, warn
from trainworks.api.run_handle import Run
from trainworks.api.run_request import RunRequest
from trainworks.api.runs import create_launch
from trainworks.backends.registry import backend_class
from trainworks.config.load import invalid_value
from trainworks.config.run_description import is_run_description
from trainworks.config.run_file import Cluster, RunFile
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.state import JobState
from trainworks.record.dev_environment import DevKind

_NODE = "trainworks.agent.development.node"
_IDLE = "30m"
_GRACE = "30 s"
_KEY = re.compile(r"(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\x00-\x1f\x7f]*)?")
_POLL_S = 0.2
_LOOK_S = 2.0
"""Time between two questions for the output of a job on another cluster."""
_KEPT = ("envs", "setup", "workdir", "cluster", "job", "checkpoint", "notify", "recover")
"""Keys of a run file that hold for a development environment, too."""
_ARGUMENTS = {
    "accelerators": "gpus",
    "cpus": "cpus",
    "memory": "memory",
    "time_limit": "time_limit",
    "stop_after": "idle",
    "name": "name",
    "cluster": "cluster",
}


def prepare_dev(
    run_file: Path | str | None = None,
    *,
    kind: DevKind = "ssh",
    cluster: str | None = None,
    gpus: str | None = None,
    cpus: str | None = None,
    memory: str | None = None,
    time_limit: str | None = None,
    idle: str | None = None,
    name: str = "dev",
    keys: Sequence[str] = (),
    folder: Path | str | None = None,
) -> PreparedRun:
    """A development environment that is checked and not submitted; arguments and errors are those of `dev`."""
    if kind == "ssh" and not keys:
        hint = "ssh-keygen -t ed25519, or name a public key"
        raise ArgumentError("no public key may log in", argument="key", hint=hint)
    base = load_run(run_file)[0] if run_file is not None else None
    accelerators = f"gpu:{gpus}" if gpus is not None and gpus.isdecimal() else gpus
    resources = _resources(base, {"accelerators": accelerators, "cpus": cpus, "memory": memory})
    kept = {key: value for key in _KEPT if (value := getattr(base, key, None)) is not None}
    content: dict[str, Any] = kept | {"name": name, "run": _NODE, "resources": resources, "metrics": {"source": "none"}}
    if cluster is not None:
        content["cluster"] = named_cluster(cluster) if is_run_description(cluster) else cluster
    if base is not None and (base.num_nodes or base.workload is None):
        content["num_nodes"] = base.nodes
    content["job"] = _job(content.get("job", {"grace": _GRACE}), time_limit, idle)
    if kind == "ssh":
        content["envs"] = content.get("envs", {}) | {KEYS_VARIABLE: "\n".join(keys)}
    wanted = without_packages(_validated(content))
    _refuse_without_trainworks(wanted.cluster)
    request = RunRequest(wanted, command=[*_python(wanted.cluster), "-P", "-m", _NODE, kind])
    prepared = prepare(request, folder=Path(folder or wanted.checkpoint.to), queued=True)
    prepared.check()
    return prepared


def dev(
    run_file: Path | str | None = None,
    *,
    kind: DevKind = "ssh",
    cluster: str | None = None,
    gpus: str | None = None,
    cpus: str | None = None,
    memory: str | None = None,
    time_limit: str | None = None,
    idle: str | None = None,
    name: str = "dev",
    keys: Sequence[str] = (),
    folder: Path | str | None = None,
    notify: Notify = warn,
) -> Run:
    """Submit a job that runs an ssh server or JupyterLab of your own; `dev_access` says how to reach it.

    Args:
        run_file: takes resources, cluster, environment and setup from this run file; what it runs is ignored.
        kind: `ssh` or `jupyter`.
        cluster: another cluster than the run file's: `slurm`, `slurm:PARTITION`, `kubernetes`, or a run file.
        gpus: accelerators of a node: `2`, or `H100:2`.
        cpus: cores of a node.
        memory: memory of a node: `32GB`.
        time_limit: longest time: `8h`.
        idle: end the job after this time without use; `never` keeps it. By default the run file's, else 30 minutes.
        name: name of the run.
        keys: public keys that may log in; `public_keys` reads those of this user.
        folder: folder of all runs, instead of the run file's `checkpoint.to`.
        notify: receives warnings.

    Raises:
        ArgumentError: a value is not valid, or no key may log in.
        RunFileError: a problem in the run file.
        UsageError: the cluster has no nodes with Trainworks.
    """
    prepared = prepare_dev(
        run_file,
        kind=kind,
        cluster=cluster,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        time_limit=time_limit,
        idle=idle,
        name=name,
        keys=keys,
        folder=folder,
    )
    return start_dev(prepared, notify=notify)


def start_dev(prepared: PreparedRun, *, notify: Notify = warn) -> Run:
    """Submit a prepared development environment."""
    prepared.probe()
    launch = create_launch(prepared, notify=notify)
    launch.start()
    return launch.run


def dev_access(
    run: Run,
    *,
    identity: Path | None = None,
    on_state: Callable[[JobState], None] = lambda state: None,
    clock: Clock | None = None,
) -> DevAccess:
    """Wait until a development environment answers; how to reach it.

    `identity` is the private key to log in with; ssh chooses when None. `on_state` is called with every new state of
    the job.

    Raises:
        RunFailedError: the job has failed; the message says why.
        UsageError: the job has ended, or is not a development environment.
    """
    if _NODE not in (run.resolved.command or ()):
        raise UsageError(f"run {run.id} is not a development environment", hint="start one: trainworks dev")
    clock = clock or SystemClock()
    state: JobState | None = None
    next_look = 0.0
    for progress in run.poll(poll_s=_POLL_S):
        if progress.state is not state:
            state = progress.state
            on_state(state)
        if state.is_final:
            break
        if state is JobState.RUNNING and (not run.has_remote_output or clock.now() >= next_look):
            next_look = clock.now() + _LOOK_S
            if (access := access_of(run, identity)) is not None:
                return access
    run.check()
    raise UsageError(f"run {run.id} has ended: {run.state}", hint="start another one: trainworks dev")


def public_keys(key: Path | None = None) -> tuple[list[str], Path | None]:
    """Public keys that may log in, and the private key to use: by one of the two, or all `~/.ssh/id_*.pub` when None,
    where ssh chooses.

    Raises:
        ArgumentError: no key there.
    """
    if key is None:
        files = sorted((Path.home() / ".ssh").glob("id_*.pub"))
        return [text for file in files if (text := _public_key(file)) is not None], None
    public = key if key.suffix == ".pub" else key.with_name(f"{key.name}.pub")
    text = _public_key(public)
    if text is None:
        raise ArgumentError(f"`{public}` is not a public key", argument="key", hint="make one: ssh-keygen -t ed25519")
    private = public.with_suffix("")
    return [text], private.absolute() if private.exists() else None


def _public_key(file: Path) -> str | None:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _KEY.fullmatch(text) else None


def _resources(base: RunFile | None, wanted: Mapping[str, str | None]) -> dict[str, Any]:
    """Those of the run file, replaced by options; one core where neither says anything."""
    options = {key: value for key, value in wanted.items() if value is not None}
    if base is None:
        return options if options.keys() & {"accelerators", "cpus"} else options | {"cpus": "1"}
    written = base.resources.model_dump(exclude_none=True) if base.resources else {}
    return written | options


def _job(job: Any, time_limit: str | None, idle: str | None) -> dict[str, Any]:
    written = job if isinstance(job, dict) else job.model_dump(exclude_unset=True)
    stops = written.get("idle", {})
    stops = {"stop_after": _IDLE} | stops | ({"stop_after": idle} if idle is not None else {})
    limit = {"time_limit": time_limit} if time_limit is not None else {}
    return {**written, **limit, "idle": stops}


def _validated(content: dict[str, Any]) -> RunFile:
    try:
        return RunFile.model_validate(content)
    except ValidationError as error:
        detail = error.errors()[0]
        path = tuple(detail["loc"])
        message, hint = invalid_value(detail, path)
        argument = next((_ARGUMENTS[part] for part in reversed(path) if part in _ARGUMENTS), "run_file")
        raise ArgumentError(message, argument=argument, hint=hint) from None


def _refuse_without_trainworks(cluster: Cluster) -> None:
    """SkyPilot's nodes have no Trainworks, and ssh of their own; of a copied run, no address comes back."""
    if cluster.engine == "slurm" and cluster.slurm.folder is not None:
        message = "`trainworks dev` needs a run directory that the nodes see, without `cluster.slurm.folder`"
        raise UsageError(message, hint="start it on the login node")
    if cluster.engine == "described" or not backend_class(cluster.engine).needs_program:
        return
    hint = "with SkyPilot: `sky launch`, then `ssh CLUSTER`" if cluster.engine == "skypilot" else None
    raise UsageError(f"`trainworks dev` needs Trainworks on the nodes, and {cluster.engine} has none there", hint=hint)


def _python(cluster: Cluster) -> list[str]:
    """Interpreter with Trainworks on the nodes, as the agents of the backend are started."""
    if cluster.engine == "kubernetes":
        return ["python"]
    if cluster.engine == "slurm" and cluster.slurm.container is not None:
        return ["python3"]
    return [sys.executable]
