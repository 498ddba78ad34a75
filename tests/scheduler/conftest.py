"""Supervisors that run inside the test's own process, and a Slurm for the tests that want one."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from tests.kubernetes.cluster import KubernetesCluster, kubernetes_cluster
from tests.scheduler.slurm_cluster import _cluster, cluster, engine

__all__ = ["_cluster", "cluster", "engine"]


@pytest.fixture(autouse=True)
def _spare_the_helpers_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor ends every descendant of its process, here pytest's, whose fork server other tests still need."""
    children = psutil.Process.children
    others = set(psutil.Process().children(recursive=True))

    def born_since(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        return [child for child in children(process, recursive) if child not in others]

    monkeypatch.setattr(psutil.Process, "children", born_since)


@pytest.fixture(scope="session")
def _kubernetes() -> Iterator[KubernetesCluster]:
    with kubernetes_cluster() as made:
        yield made
