"""The record of a run comes from the volume by a pod that reads it, which leaves nothing behind."""

from __future__ import annotations

import json

import pytest

from tests.backends.kubernetes.conftest import Kube, Run
from tests.fakes import FakeClock
from tests.kubernetes.cluster import CLAIM, IMAGE
from trainworks.backends.kubernetes import backend as kubernetes_backend
from trainworks.backends.kubernetes.output import read_by_pod
from trainworks.backends.kubernetes.render import reader
from trainworks.config.engines import Kubernetes
from trainworks.errors import UnreachableError, UsageError

pytestmark = pytest.mark.kubernetes

WHERE = Kubernetes(image=IMAGE, volume=CLAIM)


def jobsets_of(kube: Kube) -> list[str]:
    """Names of the JobSets that nobody has deleted."""
    found = kube.cluster.client.list(kube.cluster.backend()._jobsets())
    return [one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]]


def ended(kube: Kube) -> Run:
    run = kube.command("echo done", nodes=1).submit()
    run.reaches("SUCCEEDED")
    return run


def test_a_record_comes_in_parts_and_as_it_is_on_the_volume(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(kube)
    with run.there.metrics_file.open("w") as file:  # more than one pod may read
        file.writelines(f"{json.dumps({'step': step, 'loss': 1 / step})}\n" for step in range(1, 200))
    monkeypatch.setattr(kubernetes_backend, "_MOST_BYTES", run.there.metrics_file.stat().st_size)
    own = run.here.read_status()
    assert run.backend.fetch([run.here])
    for name in ("events.jsonl", "metrics.jsonl", "resolved.json"):
        assert (run.here.path / name).read_bytes() == (run.there.path / name).read_bytes()
    assert run.here.read_status() == own  # the API server has the state
    assert jobsets_of(kube) == [run.handle]


def test_without_a_volume_there_is_nothing_to_fetch(kube: Kube) -> None:
    run = kube.command("true", nodes=1, volume=None).submit()
    run.reaches("SUCCEEDED")
    assert run.backend.fetch([run.here]) and not run.here.events_file.exists()


def test_a_reader_that_fails_says_why(kube: Kube) -> None:
    manifest = reader(WHERE, "t-1", b"no question")
    backend = kube.cluster.backend()
    with pytest.raises(UsageError, match=r"the pod that reads the volume failed: json\.decoder\.JSONDecodeError"):
        read_by_pod(kube.cluster.client, backend._jobsets(), manifest, backend._clock)
    assert jobsets_of(kube) == []


def test_a_reader_that_finds_no_node_is_not_waited_for_without_end(kube: Kube, clock: FakeClock) -> None:
    backend = kube.cluster.backend()
    for node in backend.nodes():
        backend.drain(node.name, "full")
    with pytest.raises(UnreachableError, match="did not end within 120 s"):
        read_by_pod(kube.cluster.client, backend._jobsets(), reader(WHERE, "t-1", b""), clock)
    assert jobsets_of(kube) == []
