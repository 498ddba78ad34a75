"""Run the playbook of a rendered project, and read its results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.host import process


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task that changed something on a host, or failed there."""

    host: str
    outcome: str  # changed, failed or unreachable
    task: str
    detail: str  # paths or names that changed, or the message of the failure


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

    @property
    def failed(self) -> bool:
        """Whether a task failed, or a host did not answer."""
        return any(host.failed or host.unreachable for host in self.hosts)

    @property
    def changed(self) -> bool:
        """Whether a task changed something, or would have."""
        return any(host.changed for host in self.hosts)


def run_playbook(
    project: Path, *, limit: str | None = None, dry_run: bool = False, on_result: Callable[[TaskResult], None]
) -> PlaybookRun:
    """Run `site.yaml` of a project with the `ansible-playbook` of this environment.

    Args:
        project: folder that `render` wrote.
        limit: pattern of hosts; all when None.
        dry_run: report what would change, and change nothing.
        on_result: called with each result that changed or failed, as it comes.

    Raises:
        EnvironmentProblem: Ansible is not installed, or it ended before it had counted its results.
    """
    program = Path(sys.executable).with_name("ansible-playbook")
    if not program.exists():
        raise EnvironmentProblem("ansible-playbook is not installed", hint="pip install 'trainworks[deploy]'")
    settings = ("ANSIBLE_STDOUT_CALLBACK=result_lines", "ANSIBLE_CALLBACK_PLUGINS=callback_plugins")
    command = ["env", "-C", str(project), *settings, "ANSIBLE_CONFIG=ansible.cfg", str(program), "site.yaml"]
    command += ["--check", "--diff"] if dry_run else []
    command += [f"--limit={limit}"] if limit is not None else []
    results: list[TaskResult] = []
    hosts: list[HostCounts] = []
    for line in process.lines(command):
        if not line.startswith('{"host": '):
            continue
        event = json.loads(line)
        if "counts" in event:
            hosts.append(HostCounts(event["host"], *event["counts"]))
            continue
        results.append(TaskResult(**event))
        on_result(results[-1])
    if not hosts:
        raise EnvironmentProblem("ansible-playbook reached no host", hint="read its message above")
    return PlaybookRun(tuple(results), tuple(hosts))
