"""A Slurm and a Kubernetes API server for the tests that want one."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.agent.conftest import spare_the_helpers_of_other_tests
from tests.backends.slurm_cluster import _cluster, backend, cluster
from tests.kubernetes.cluster import KubernetesCluster, kubernetes_cluster

__all__ = ["_cluster", "backend", "cluster", "spare_the_helpers_of_other_tests"]

_running = ExitStack()
_clusters: list[KubernetesCluster] = []


@pytest.fixture
def _kubernetes() -> KubernetesCluster:
    if not _clusters:
        _clusters.append(_running.enter_context(kubernetes_cluster()))
    return _clusters[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """An idle API server and its etcd cost a minute of processor time in half an hour: they end with their tests."""
    if _clusters and (nextitem is None or nextitem.get_closest_marker("kubernetes") is None):
        _clusters.clear()
        _running.close()
