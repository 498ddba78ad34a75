"""Rented nodes that train a workload: what a run file needs for them, what they run, and how a node knows its job."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from trainworks.agent.allocation import Allocation
from trainworks.agent.remote_agent import greeting_of
from trainworks.catalog.exchange import usd_of
from trainworks.config.engines import SkyPilot
from trainworks.config.run_file import RunFile
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.clock import Clock
from trainworks.host.probe import num_cores
from trainworks.jobs.program import Program
from trainworks.jobs.state import parse_state
from trainworks.record.events.log import Event
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.units import HOUR_S

RENTED = "TRAINWORKS_RENTED"
"""Variable of all nodes with the run that they train, as JSON; see `variables`."""
TOKEN = "TRAINWORKS_TOKEN"  # noqa: S105  # the name of a variable
"""Variable with the secret by which the nodes of one submission recognize each other."""
_HOME = "$HOME/.trainworks"
"""Folder on the nodes, in bash, with what the wheel is installed from, and with its environment."""
_RUNS = "~/trainworks-runs"


def check_rented(options: SkyPilot, nodes: int) -> None:
    """Refuse options with which rented nodes have no Trainworks, or would take their checkpoints along when they end.

    Raises:
        UsageError: an option is missing; the message names the first.
    """
    if options.store is None:
        hint = "set `cluster.skypilot.store` to a bucket: `s3://bucket/prefix`"
        raise UsageError("checkpoints and record of a workload need a store that outlives rented nodes", hint=hint)
    if options.image is None and options.wheel is None:
        hint = "set `environment.image`, or `cluster.skypilot.wheel` and `constraints`, which install it"
        raise UsageError("nothing gives Trainworks to the nodes that SkyPilot rents", hint=hint)
    if nodes > 1 and options.folder is None:
        hint = "set `cluster.skypilot.folder` to where a volume is mounted, as in `task: {volumes: {/runs: my-volume}}`"
        raise UsageError(f"a workload on {nodes} rented nodes needs a folder that all of them see", hint=hint)
    for name in ("wheel", "constraints"):
        place = getattr(options, name)
        if place is not None and not (name == "wheel" and "://" in place) and not Path(place).is_file():
            hint = "name a file, relative to the current folder"
            raise UsageError(f"`cluster.skypilot.{name}` is `{place}`, which is not a file", hint=hint)


def program_of_workload(run_file: RunFile, module: str) -> Program:
    """What every node runs: a module of Trainworks, after its installation where the options name a wheel."""
    trackers = [name for name in run_file.track.names if name in ("mlflow", "wandb")]
    extras = ",".join(["train", "s3", "data", *(["notify"] if run_file.notify else []), *trackers])
    options = run_file.cluster.skypilot
    python = shlex.quote(options.python) if options.wheel is None else f'"{_HOME}/env/bin/python"'
    return Program(
        script=f"exec {python} -P -m {module}\n",
        setup=None if options.wheel is None else _installation(options.wheel, extras),
        envs=run_file.envs | {TOKEN: None},
        starts="per_node",
        resources=run_file.resources,
        is_workload=True,
    )


def _installation(wheel: str, extras: str) -> str:
    """Bash that installs a wheel with exact versions into an environment of its own, with this version of Python."""
    source = shlex.quote(wheel) if "://" in wheel else f'"file://{_HOME}/"{shlex.quote(PurePath(wheel).name)}'
    minor = ".".join(platform.python_version_tuple()[:2])
    return "\n".join(
        [
            "set -euo pipefail",
            'export PATH="$HOME/.local/bin:$PATH"',
            "command -v uv > /dev/null || python3 -m pip install --quiet --user uv",
            f'uv venv --quiet --allow-existing --python {minor} "{_HOME}/env"',
            f'uv pip install --quiet --python "{_HOME}/env/bin/python" --constraint "{_HOME}/constraints.txt" \\',
            f'  "trainworks[{extras}] @ "{source}',
            "",
        ]
    )


def most_seconds(resolved: ResolvedRun) -> float | None:
    """Longest time for which a run may hold its nodes: its budget by their price; None without a budget or a price.

    The price is `max_hourly_cost` of every node, which they can cost at most; else that of the accelerators, of the
    run file or of the catalogue.
    """
    run_file, processes = resolved.run_file, resolved.processes
    most_usd, budget = run_file.cluster.skypilot.max_hourly_cost, usd_of(run_file.goal.budget)
    usd = usd_of(run_file.cluster.hour_price)
    if usd is None and resolved.forecast is not None:
        usd = resolved.forecast.usd_per_accelerator_hour
    hourly_usd = most_usd * processes.nodes if most_usd is not None else (usd or 0.0) * processes.num_accelerators
    return HOUR_S * budget / hourly_usd if budget is not None and hourly_usd else None


def held_seconds(events: Sequence[Event]) -> float:
    """Time for which a run has held its nodes: each turn from its start to its end, or to its last sign of life."""
    held_s, since, last = 0.0, None, 0.0
    for event in events:
        now = float(event["t"])
        has_left = event["kind"] == "state" and not parse_state(event["state"]).holds_resources
        if since is not None and (has_left or event["kind"] == "submitted"):
            held_s += (now if has_left else last) - since
            since = None
        if event["kind"] == "submitted":
            since = now
        last = now
    return held_s + (last - since if since is not None else 0.0)


def mounts(options: SkyPilot) -> dict[str, str]:
    """Files of this machine that the nodes get for the installation, by their places there."""
    files = [("constraints.txt", options.constraints)]
    if options.wheel is not None and "://" not in options.wheel:
        files.append((PurePath(options.wheel).name, options.wheel))
    return {f"~/.trainworks/{name}": str(Path(place).absolute()) for name, place in files if place is not None}


def variables(options: SkyPilot, run_id: str, job_name: str) -> dict[str, str | None]:
    """Variables of the nodes that name the run: its store, and the folder of its run directory there."""
    assert options.store is not None, "`check_rented` refuses a workload without a store"
    folder = f"{options.folder or _RUNS}/{job_name}/{run_id}"
    place = {"folder": folder, "store": options.store.model_dump(exclude_unset=True)}
    return {RENTED: json.dumps(place, sort_keys=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RentedNode:
    """One node of a job."""

    index: int
    addresses: tuple[str, ...]
    """Addresses of all nodes, in their order."""
    accelerators: int
    run_dir: RunDir
    store: CheckpointCopy
    token: str = field(repr=False)

    @property
    def job(self) -> str:
        """Id of this submission of the run; nodes that replace lost ones have the same."""
        return hashlib.sha256(self.token.encode()).hexdigest()[:12]

    @property
    def secrets(self) -> Path:
        """Folder of this node with the token, for the programs that talk to other nodes."""
        return Path.home() / ".trainworks" / f"job-{self.job}"

    def wait_for_all(self, clock: Clock) -> Allocation:
        """All nodes of the job, of which this one is the first, once they answer.

        Raises:
            EnvironmentProblem: a process that does not know the token answers at a node's address.
        """
        others = [greeting_of(address, self.token, clock) for address in self.addresses[1:]]
        return Allocation(
            job=self.job,
            nodes=(socket.gethostname(), *(name for name, _ in others)),
            addresses=self.addresses,
            cores_per_node=num_cores(),
            accelerators_per_node=self.accelerators,
        )


def rented_node(env: Mapping[str, str]) -> RentedNode:
    """Read the variables that SkyPilot and the task set.

    Raises:
        EnvironmentProblem: this process does not run on a rented node of a workload.
    """
    try:
        place = json.loads(env[RENTED])
        return RentedNode(
            index=int(env["SKYPILOT_NODE_RANK"]),
            addresses=tuple(env["SKYPILOT_NODE_IPS"].split()),
            accelerators=int(float(env.get("SKYPILOT_NUM_GPUS_PER_NODE") or 0)),
            run_dir=RunDir(Path(place["folder"]).expanduser()),
            store=CheckpointCopy.model_validate(place["store"]),
            token=env[TOKEN],
        )
    except KeyError as missing:
        hint = "submit the run: this program starts on the nodes of a job of SkyPilot"
        raise EnvironmentProblem(f"{missing} is not set", hint=hint) from None
