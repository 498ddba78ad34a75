"""Run the playbook of a rendered project, and read its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task that changed something on a host, or failed there, or was to print something."""

    host: str
    outcome: str  # changed, failed, unreachable or printed
    task: str
    detail: str  # paths or names that changed, the message of the failure, or what was printed


@dataclass(frozen=True, slots=True)
class HostCounts:
    """Tasks of a host by outcome."""

    host: str
    ok: int
    changed: int
    unreachable: int
    failed: int


@dataclass(frozen=True, slots=True)
class PlaybookRun:
    """Results of a playbook: what changed or failed, and the counts of each host."""

    results: tuple[TaskResult, ...]
    hosts: tuple[HostCounts, ...]
    stopped: str = ""
    """Why the batches after these hosts were not started: a drain, a check or a resume that failed."""

    @property
    def failed(self) -> bool:
        """Whether a task failed, a host did not answer, or a batch stopped the ones after it."""
        return bool(self.stopped) or any(host.failed or host.unreachable for host in self.hosts)

    @property
    def changed(self) -> bool:
        """Whether a task changed something, or would have."""
        return any(host.changed for host in self.hosts)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command on a host printed, and its exit code; None where the host did not answer."""

    exit_code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class Playbook:
    """A playbook of a project."""

    name: str = "site.yaml"
    tags: tuple[str, ...] = ()
    """Parts that it is limited to; all when empty."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """Values that it gets beside those of the project."""
    inventories: tuple[str, ...] = ()
    """Files with hosts beside those of the project."""


SITE = Playbook()
"""All that a stack says."""


def run_playbook(
    project: Path,
    playbook: Playbook = SITE,
    *,
    limit: str | None = None,
    dry_run: bool = False,
    on_result: Callable[[TaskResult], None],
) -> PlaybookRun:
    """Run a playbook of a project with the `ansible-playbook` of this environment.

    `limit` is a pattern of hosts. `dry_run` reports what would change, and changes nothing. `on_result` gets each
    result that changed or failed, as it comes.

    Raises:
        EnvironmentProblem: Ansible is not installed, or it ended before it had counted its results.
    """
    options = ["--check", "--diff"] if dry_run else []
    options += [f"--limit={limit}"] if limit is not None else []
    options += [f"--tags={','.join(playbook.tags)}"] if playbook.tags else []
    options += [f"--extra-vars={json.dumps(playbook.variables)}"] if playbook.variables else []
    results: list[TaskResult] = []
    hosts: list[HostCounts] = []
    for event in _events(project, playbook.name, options, playbook.inventories):
        if "counts" in event:
            hosts.append(HostCounts(event["host"], *event["counts"]))
            continue
        _, printed = event.get("answer", (None, ""))
        outcome, task = event.get("outcome", "printed"), event.get("task", playbook.name)
        results.append(TaskResult(event["host"], outcome, task, event.get("detail", printed)))
        on_result(results[-1])
    return PlaybookRun(tuple(results), tuple(hosts))


def run_command(
    project: Path, hosts: Collection[str], command: str, inventories: Sequence[str] = ()
) -> dict[str, Answer]:
    """Run a command of bash as root on some hosts of a project, or of `inventories` beside its own, side by side.

    Returns:
        The answer of every one of the hosts.

    Raises:
        EnvironmentProblem: Ansible is not installed, or it ended before it had counted its results.
    """
    variables = json.dumps({"command": command})
    options = [f"--limit={','.join(hosts)}", f"--extra-vars={variables}"]
    events = _events(project, "command.yaml", options, inventories)
    said = {event["host"]: event for event in events if "counts" not in event}
    lines = {host: said.get(host, _Line(host=host)) for host in hosts}
    no_answer = {host: (None, event.get("detail", "no answer")) for host, event in lines.items()}
    return {host: Answer(*event.get("answer", no_answer[host])) for host, event in lines.items()}


def hosts_of(project: Path, limit: str) -> list[str]:
    """Hosts of a project that a pattern of Ansible names.

    Raises:
        EnvironmentProblem: Ansible is not installed.
        UsageError: it names none.
    """
    command = ["env", "-C", str(project), "ANSIBLE_CONFIG=ansible.cfg", _program("ansible"), "all", "--list-hosts"]
    printed = process.run([*command, f"--limit={limit}"]).stdout.splitlines()
    names = [line.strip() for line in printed if line.startswith("    ")]
    if not names:
        raise UsageError(f"`{limit}` names no host of the stack", place="--limit", hint="name hosts or roles: `gpu01`")
    return names


def _program(name: str) -> str:
    program = Path(sys.executable).with_name(name)
    if not program.exists():
        raise EnvironmentProblem(f"{name} is not installed", hint="pip install 'trainworks[deploy]'")
    return str(program)


class _Line(TypedDict):
    """A line of the callback plugin: the counts of a host, the result of a task, or the answer of a command."""

    host: str
    counts: NotRequired[list[int]]
    outcome: NotRequired[str]
    task: NotRequired[str]
    detail: NotRequired[str]
    answer: NotRequired[tuple[int | None, str]]


def _events(project: Path, playbook: str, options: list[str], inventories: Sequence[str]) -> Iterator[_Line]:
    options = [*options, *(f"--inventory={each}" for each in ("inventory.yaml", *inventories) if inventories)]
    settings = ("ANSIBLE_STDOUT_CALLBACK=result_lines", "ANSIBLE_CALLBACK_PLUGINS=callback_plugins")
    command = ["env", "-C", str(project), *settings, "ANSIBLE_CONFIG=ansible.cfg", _program("ansible-playbook")]
    counted = False
    for line in process.lines([*command, playbook, *options]):
        if line.startswith('{"host": '):
            event: _Line = json.loads(line)
            counted = counted or "counts" in event
            yield event
    if not counted:
        raise EnvironmentProblem("ansible-playbook reached no host", hint="read its message above")
