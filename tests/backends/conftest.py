"""A Slurm and a Kubernetes API server for the tests that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.conftest import spare_the_helpers_of_other_tests
from tests.backends.slurm_cluster import _cluster, backend, cluster
from tests.kubernetes.cluster import KubernetesCluster, kubernetes_cluster

__all__ = ["_cluster", "backend", "cluster", "spare_the_helpers_of_other_tests"]


@pytest.fixture(scope="session")
def _kubernetes() -> Iterator[KubernetesCluster]:
    with kubernetes_cluster() as made:
        yield made
