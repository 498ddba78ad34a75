"""A project applied by the real Ansible: changes, no change, drift, repair, failure, and a host without an answer."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainworks.api import deploying
from trainworks.cli.app import app
from trainworks.deploy.playbook import HostCounts, PlaybookRun, TaskResult, run_playbook
from trainworks.deploy.rollout import Batch
from trainworks.errors import EnvironmentProblem

STACK = Path(__file__).parents[2] / "examples/cluster/stack.yaml"
PLUGIN = "callback_plugins/result_lines.py"
HOSTS = """
all:
  hosts:
    a: {ansible_connection: local}
    b: {ansible_connection: ssh, ansible_host: 127.0.0.1, ansible_port: 9, ansible_ssh_common_args: -F none}
"""
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Write the settings
      copy: {content: "secret words\\n", dest: "%s"}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one file, on this machine and on one that does not answer."""
    static = resources.files("trainworks.deploy").joinpath("ansible")
    (tmp_path / "callback_plugins").mkdir()
    (tmp_path / PLUGIN).write_text(static.joinpath(PLUGIN).read_text())
    (tmp_path / "ansible.cfg").write_text(static.joinpath("ansible.cfg").read_text())
    (tmp_path / "inventory.yaml").write_text(HOSTS)
    (tmp_path / "site.yaml").write_text(PLAY % (tmp_path / "settings"))
    return tmp_path


def ran(project: Path, *, limit: str = "a", dry_run: bool = False) -> PlaybookRun:
    """A run whose results also came one by one."""
    seen: list[TaskResult] = []
    done = run_playbook(project, limit=limit, dry_run=dry_run, on_result=seen.append)
    assert tuple(seen) == done.results
    return done


def test_drift_is_named_and_repaired_and_a_second_run_changes_nothing(project: Path) -> None:
    settings = project / "settings"
    assert ran(project, dry_run=True).changed
    assert not settings.exists()
    assert ran(project).results == (TaskResult("a", "changed", "Write the settings", str(settings)),)
    again = ran(project)
    assert (again.changed, again.failed, again.results) == (False, False, ())
    settings.write_text("broken by hand\n")
    assert [result.detail for result in ran(project, dry_run=True).results] == [str(settings)]
    assert settings.read_text() == "broken by hand\n"
    ran(project)
    assert settings.read_text() == "secret words\n"


def test_a_failed_task_and_a_host_without_an_answer_fail_the_run(project: Path) -> None:
    done = ran(project, limit="b")
    assert done.failed
    assert [result.outcome for result in done.results] == ["unreachable"]
    (project / "site.yaml").write_text(PLAY % "/proc/no/such")
    done = ran(project)
    assert done.failed
    assert [(result.host, result.outcome) for result in done.results] == [("a", "failed")]


def test_a_playbook_that_cannot_be_read_is_an_error(project: Path) -> None:
    (project / "site.yaml").write_text("- hosts: [\n")
    with pytest.raises(EnvironmentProblem, match="reached no host"):
        ran(project)


@pytest.mark.parametrize(("step", "code"), [("diff", 1), ("apply", 0)])
def test_results_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, code: int) -> None:
    result, counts = TaskResult("a", "changed", "Write the settings", "/etc/x"), HostCounts("a", 3, 1, 0, 0)
    monkeypatch.setattr(deploying, "run_playbook", lambda into, *playbook, **options: PlaybookRun((result,), (counts,)))
    monkeypatch.setattr(deploying, "batches", lambda *order: [Batch(("a",), computes=False)])
    arguments = ["deploy", step, str(STACK), "--into", str(tmp_path / "project"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == code, done.output
    assert json.loads(done.stdout) == {
        "changed": True,
        "failed": False,
        "results": [{"host": "a", "outcome": "changed", "task": "Write the settings", "detail": "/etc/x"}],
        "hosts": [{"host": "a", "ok": 3, "changed": 1, "unreachable": 0, "failed": 0}],
        "stopped": "",
    }
