"""The run directory and its file names.

runs/stdlib-lm-1/
  run.yaml        copy of the run file         status.json     state, supervisor; replaced atomically
  resolved.json   the resolved run             stop            present after a request to stop a workload
  events.jsonl    events of the run            logs/           supervisor, node-N, rank-N; appended
  anchor.json     step by its first quiet ones checkpoints/    step-NNNNNNNN/, complete with manifest.json
  metrics.jsonl   one line per step
  report.html     written by `report`          .lock .reserve  locked while it runs; disk space for the last writes
  profile.json    steps to profile             profiles/       steps-N-M/: rank-R.trace.json.gz, rank-R.json
  usage/          node-N.json: resources used  environment/    node-N.json: Python and packages of its ranks
  bench/          node-N.json: measured there  trackers/       wandb/, mlruns/ of a command's own program
  dev/            server.json, use.json: the ssh server or JupyterLab of `trainworks dev`, with its keys
  observe/        mlflow-CRC.json: what a server has; notify.json: messages sent and to send; tensorboard/, wandb/
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.errors import EnvironmentProblem
from trainworks.files import fsync_folder, naming_full_disk, size_of, write_atomic
from trainworks.record.events.log import Event, append_event

if TYPE_CHECKING:  # a list of jobs reads no file of a run, and building a model takes milliseconds
    from trainworks.record.dev_environment import DevServer, DevUse
    from trainworks.record.events.job import StateEvent
    from trainworks.record.resolved import ResolvedRun
    from trainworks.record.run_environment import NodeEnvironment
    from trainworks.record.status import RunStatus
    from trainworks.record.usage import NodeUsage

_RESERVE_BYTES = 256 * 1024


def _mode(resolved: ResolvedRun) -> int:
    return 0o600 if resolved.run_file.written_secrets else 0o644


class RunDir:
    """Paths and small files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def run_id(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def run_file(self) -> Path:
        """Copy of the run file."""
        return self.path / "run.yaml"

    @property
    def resolved_file(self) -> Path:
        """The resolved run."""
        return self.path / "resolved.json"

    @property
    def edited_file(self) -> Path:
        """The resolved run of a waiting job that is being edited, until the job store has the change."""
        return self.path / ".resolved.edited.json"

    @property
    def code_folder(self) -> Path:
        """Copy of the working directory at submission, if `job.keep_code` is set."""
        return self.path / "code"

    @property
    def events_file(self) -> Path:
        """Events, one JSON object per line."""
        return self.path / "events.jsonl"

    @property
    def metrics_file(self) -> Path:
        """One JSON object per training step."""
        return self.path / "metrics.jsonl"

    @property
    def anchor_file(self) -> Path:
        """The step of the plan, anchored on the first quiet steps; replaced atomically."""
        return self.path / "anchor.json"

    @property
    def status_file(self) -> Path:
        """The current state."""
        return self.path / "status.json"

    @property
    def stop_file(self) -> Path:
        """Present after a request to stop the run."""
        return self.path / "stop"

    @property
    def save_request_file(self) -> Path:
        """Present after a request for a checkpoint at the next logging step; rank 0 removes it."""
        return self.path / "save"

    @property
    def environment_file(self) -> Path:
        """Environment variables of the submitter, readable by the owner only."""
        return self.path / ".environment.json"

    @property
    def batch_script(self) -> Path:
        """Script of a run with `framework: slurm`."""
        return self.path / "batch_script"

    def hostfile(self, role: str | None = None) -> Path:
        """Nodes of a command and their ranks, for a launcher such as mpirun; of one role, where the job has some."""
        return self.path / ("hostfile" if role is None else f"hostfile-{role}")

    def usage_file(self, node: int) -> Path:
        """Resources used by the processes of one node; replaced atomically."""
        return self.path / "usage" / f"node-{node}.json"

    def node_environment_file(self, node: int) -> Path:
        """Python and packages of the ranks of one node; replaced atomically."""
        return self.path / "environment" / f"node-{node}.json"

    @property
    def script_trackers(self) -> Path:
        """Files of Weights & Biases and MLflow that the program of a command writes."""
        return self.path / "trackers"

    @property
    def dev_folder(self) -> Path:
        """Folder of a development environment, with its keys; closed to other users."""
        return self.path / "dev"

    @property
    def dev_server_file(self) -> Path:
        """How to reach a development environment; replaced atomically."""
        return self.dev_folder / "server.json"

    @property
    def dev_use_file(self) -> Path:
        """Whether a development environment is in use; replaced atomically."""
        return self.dev_folder / "use.json"

    def observer_file(self, name: str) -> Path:
        """What one server of a tracker, or the recipients of messages, have got from this run; replaced atomically."""
        return self.path / "observe" / f"{name}.json"

    def observer_log(self, name: str) -> Path:
        """Output of the process that reports the run to a tracker, or to the recipients of messages."""
        return self.logs / f"observe-{name}.log"

    @property
    def profile_request_file(self) -> Path:
        """Present while a profile is requested."""
        return self.path / "profile.json"

    def profile(self, first_step: int, last_step: int) -> Path:
        """Folder of the traces of these steps."""
        return self.path / "profiles" / f"steps-{first_step}-{last_step}"

    @property
    def report_file(self) -> Path:
        """The self-contained HTML report."""
        return self.path / "report.html"

    @property
    def plan_error_file(self) -> Path:
        """Why a workload cannot be planned on the nodes of its job, as JSON."""
        return self.path / "plan_error.json"

    @property
    def lock_file(self) -> Path:
        """Locked while the supervisor or one of its agents lives."""
        return self.path / ".lock"

    @property
    def submit_lock_file(self) -> Path:
        """Locked while the run is submitted to a backend."""
        return self.path / ".submit.lock"

    @property
    def reserve_file(self) -> Path:
        """Reserved disk space for the last writes on a full disk."""
        return self.path / ".reserve"

    def make_reserve(self) -> None:
        """Reserve the disk space."""
        with naming_full_disk(self.path), self.reserve_file.open("ab") as reserve:
            os.posix_fallocate(reserve.fileno(), 0, _RESERVE_BYTES)

    def release_reserve(self) -> None:
        """Release the reserved space for the last writes on a full disk."""
        self.reserve_file.unlink(missing_ok=True)

    @property
    def logs(self) -> Path:
        """Folder of all logs."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """Folder of all checkpoints."""
        return self.path / "checkpoints"

    @property
    def supervisor_log(self) -> Path:
        """Output of the process that watches the node agents."""
        return self.logs / "supervisor.log"

    def node_log(self, node: int) -> Path:
        """Output of one node agent."""
        return self.logs / f"node-{node}.log"

    def rank_log(self, rank: int) -> Path:
        """Output of one rank, over all attempts."""
        return self.logs / f"rank-{rank}.log"

    def note_rank_start(self, rank: int) -> None:
        """Record when a rank starts, and the offset in its log where the output of this start begins."""
        log = self.rank_log(rank)
        with log.with_suffix(".starts").open("a", encoding="utf-8") as starts:
            starts.write(f"{size_of(log)} {time.time():.6f}\n")

    def rank_starts(self, rank: int) -> list[tuple[int, float]]:
        """Offset in the log and time of every start of a rank, the first one first; time 0 in older records."""
        try:
            lines = self.rank_log(rank).with_suffix(".starts").read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [(int(offset), float(at or 0)) for offset, _, at in (line.partition(" ") for line in lines)]

    def rank_log_part(self, rank: int, start: int) -> tuple[int, int | None] | None:
        """First byte and end of the output of the n-th start of a rank; None before that start."""
        offsets = [offset for offset, _ in self.rank_starts(rank)]
        return (offsets[start - 1], offsets[start] if start < len(offsets) else None) if start <= len(offsets) else None

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint after `step` optimizer steps."""
        return self.checkpoints / checkpoint_name(step)

    def checkpoint_folders(self) -> list[tuple[int, Path]]:
        """Step and folder of every checkpoint, complete or not, oldest first."""
        folders = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
        found = ((re.fullmatch(r"step-(\d{8,})", folder.name), folder) for folder in folders)
        return sorted((int(match[1]), folder) for match, folder in found if match)

    def write_run_file(self, text: str, resolved: ResolvedRun) -> None:
        """Write the copy of the run file, atomically; one with secrets is readable by its user alone."""
        write_atomic(self.run_file, text, mode=_mode(resolved))

    def write_resolved(self, resolved: ResolvedRun) -> None:
        """Write the resolved run, atomically; one with secrets is readable by its user alone."""
        write_atomic(self.resolved_file, resolved.model_dump_json(indent=2) + "\n", mode=_mode(resolved))

    def read_resolved(self) -> ResolvedRun:
        """Read the resolved run.

        Raises:
            EnvironmentProblem: the file is missing or was written by another format.
        """
        try:
            return _read_resolved(self.resolved_file)
        except FileNotFoundError:
            raise EnvironmentProblem(f"`{self.path}` has no resolved.json", hint="is it a run directory?") from None

    def write_edited(self, resolved: ResolvedRun) -> None:
        """Write the resolved run of a job that is being edited beside the one that counts, atomically."""
        write_atomic(self.edited_file, resolved.model_dump_json(indent=2) + "\n", mode=_mode(resolved))

    def read_edited(self) -> ResolvedRun | None:
        """Read the resolved run of a job that is being edited; None if no edit was interrupted.

        Raises:
            EnvironmentProblem: the file was written by another format.
        """
        try:
            return _read_resolved(self.edited_file)
        except FileNotFoundError:
            return None

    def adopt_edited(self) -> None:
        """Make the edited resolved run the one that counts, durably; nothing if another process did so."""
        with suppress(FileNotFoundError):
            self.edited_file.replace(self.resolved_file)
            fsync_folder(self.path)

    def write_status(self, status: RunStatus) -> None:
        """Replace the status, atomically; only the final one must survive a power cut."""
        write_atomic(self.status_file, status.model_dump_json(indent=2) + "\n", durable=status.exit_code is not None)

    def enter(self, status: RunStatus, *, ended_at: float | None = None) -> None:
        """Replace the status, and record its state and how the run came to it as an event."""
        self.write_status(status)
        event: StateEvent = {
            "kind": "state",
            "state": status.state,
            "cause": status.cause,
            "message": status.message,
            "hint": status.hint,
            "exit_code": status.exit_code,
        }
        if ended_at is not None:
            event["ended_at"] = ended_at
        self.note(event)

    def note(self, event: Event) -> None:
        """Append an event to the record."""
        append_event(self.events_file, event)

    def read_status(self) -> RunStatus:
        """Read the status; CREATED for a run that was never launched."""
        from trainworks.record.status import RunStatus  # noqa: PLC0415

        try:
            return RunStatus.model_validate_json(self.status_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return RunStatus(state="CREATED")

    def note_loss(self, supervisor_pid: int) -> None:
        """Write LOST for a supervisor that has ended without a final state.

        The agent of its first node calls it, which has the lock of the run: no other supervisor starts meanwhile.
        """
        from trainworks.record.status import END_STATES  # noqa: PLC0415

        status = self.read_status()
        if status.supervisor_pid == supervisor_pid and status.state not in END_STATES:
            with suppress(OSError, EnvironmentProblem):
                self.write_status(status.without_supervisor())

    def write_usage(self, node: int, usage: NodeUsage) -> None:
        """Replace the usage of one node, atomically."""
        path = self.usage_file(node)
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, usage.model_dump_json() + "\n")

    def read_usage(self, node: int) -> NodeUsage | None:
        """Read the usage of one node; None if it is missing or of another version."""
        from trainworks.record.usage import NodeUsage  # noqa: PLC0415

        try:
            return NodeUsage.model_validate_json(self.usage_file(node).read_bytes())
        except (OSError, ValueError):
            return None

    def write_node_environment(self, node: int, environment: NodeEnvironment) -> None:
        """Replace what the ranks of one node run with, atomically."""
        path = self.node_environment_file(node)
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, environment.model_dump_json(indent=2) + "\n", durable=False)

    def read_node_environments(self) -> dict[int, NodeEnvironment]:
        """What the ranks of each node run with, by the number of the node; empty before they start."""
        from trainworks.record.run_environment import NodeEnvironment  # noqa: PLC0415

        found = {}
        for path in (self.path / "environment").glob("node-*.json"):
            with suppress(OSError, ValueError):
                found[int(path.stem.partition("-")[2])] = NodeEnvironment.model_validate_json(path.read_bytes())
        return dict(sorted(found.items()))

    def write_dev_server(self, server: DevServer) -> None:
        """Replace how to reach the development environment, atomically."""
        write_atomic(self.dev_server_file, server.model_dump_json(indent=2) + "\n")

    def read_dev_server(self) -> DevServer | None:
        """How to reach the development environment; None while it does not answer yet, and for other runs."""
        from trainworks.record.dev_environment import DevServer  # noqa: PLC0415

        try:
            return DevServer.model_validate_json(self.dev_server_file.read_bytes())
        except (OSError, ValueError):
            return None

    def write_dev_use(self, use: DevUse) -> None:
        """Replace the use of the development environment, atomically."""
        write_atomic(self.dev_use_file, use.model_dump_json() + "\n", durable=False)

    def read_dev_use(self) -> DevUse:
        """Use of the development environment; unused if there is none."""
        from trainworks.record.dev_environment import DevUse  # noqa: PLC0415

        try:
            return DevUse.model_validate_json(self.dev_use_file.read_bytes())
        except (OSError, ValueError):
            return DevUse()

    def forget_dev(self) -> None:
        """Remove what an earlier start of the development environment has written."""
        self.dev_server_file.unlink(missing_ok=True)
        self.dev_use_file.unlink(missing_ok=True)


def checkpoint_name(step: int) -> str:
    """Name of the folder of a checkpoint: `step-00000300`."""
    return f"step-{step:08d}"


def _read_resolved(file: Path) -> ResolvedRun:
    from pydantic import ValidationError  # noqa: PLC0415, as in `_parsed`

    found = file.stat()
    try:
        return _parsed(file, found.st_ino, found.st_mtime_ns)
    except ValidationError as error:
        raise EnvironmentProblem(
            f"cannot read `{file}`: {error.error_count()} fields differ",
            hint="read it with the version of Trainworks that wrote it",
        ) from None


@lru_cache(maxsize=4)
def _parsed(resolved_file: Path, inode: int, modified_at: int) -> ResolvedRun:
    """Read a resolved run; cached, because launcher, supervisor and agents are forks of one process."""
    from trainworks.record.resolved import ResolvedRun  # noqa: PLC0415, a list of jobs reads no resolved run

    return ResolvedRun.model_validate_json(resolved_file.read_bytes())
