"""Planning on the first node of a job: its backend says which nodes the job has."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from tests.backends.small_backend import SmallBackend
from tests.fakes import job, on_engine
from trainworks.api import node_plan
from trainworks.backends.backend import AllocatedNodes
from trainworks.errors import UsageError
from trainworks.record.run_dir import RunDir

HOSTS: Any = object()


def test_the_backend_of_a_plugin_gives_the_nodes_to_plan_for(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pair(SmallBackend):  # type: ignore[misc]
        @classmethod
        def allocated_nodes(cls) -> AllocatedNodes:
            return AllocatedNodes(2, 1, 0, HOSTS)

    asked: dict[str, Any] = {}

    def resolve(run_file: Any, source: None, **arguments: Any) -> Any:
        asked.update(arguments)
        raise UsageError("it has what it needs")

    run_dir.write_resolved(on_engine(job(), "slurm"))
    monkeypatch.setattr(node_plan, "backend_class", {"slurm": Pair}.__getitem__)
    monkeypatch.setattr(node_plan, "resolve", resolve)
    node_plan.main(str(run_dir.path))
    assert (asked["machines"], asked["host"].num_cores) == (HOSTS, 2)


def test_a_backend_without_workloads_says_so(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir.write_resolved(on_engine(job(), "slurm"))
    monkeypatch.setattr(node_plan, "backend_class", {"slurm": SmallBackend}.__getitem__)
    assert node_plan.main(str(run_dir.path)) == 2
    problem = json.loads(run_dir.plan_error_file.read_text())
    assert "small cannot plan a workload on its nodes" in json.dumps(problem)


def test_a_node_without_the_home_of_its_user_is_named(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*arguments: Any, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", "/home/ada")

    run_dir.write_resolved(on_engine(job(), "slurm"))
    monkeypatch.setattr(SmallBackend, "allocated_nodes", classmethod(lambda cls: AllocatedNodes(1, 1, 0, None)))
    monkeypatch.setattr(node_plan, "backend_class", {"slurm": SmallBackend}.__getitem__)
    monkeypatch.setattr(node_plan, "resolve", resolve)
    assert node_plan.main(str(run_dir.path)) == 3
    problem = json.loads(run_dir.plan_error_file.read_text())
    assert problem["message"] == "cannot use `/home/ada`: Permission denied"
