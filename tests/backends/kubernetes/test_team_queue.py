"""The queue of a team: entered at submission and after a hold, on a cluster that has Kueue."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.fakes import resolved_command, spec
from trainworks.backends.kubernetes.backend import KubernetesBackend
from trainworks.backends.kubernetes.client import KubernetesRefusedError, NotFound, NotServed
from trainworks.config.engines import Kubernetes
from trainworks.errors import UnreachableError, UsageError
from trainworks.jobs.formats.manifest import QUEUE_LABEL
from trainworks.record.run_dir import RunDir

KUEUE = "/apis/kueue.x-k8s.io"


class Server:
    """An API server of one namespace with these LocalQueues, or with this answer to whoever lists them.

    Args:
        queues: names of the LocalQueues.
        refuses: the answer instead.
        versions: of Kueue's API that it serves; None where users may not ask.
    """

    def __init__(
        self, *queues: str, refuses: Exception | None = None, versions: Sequence[str] | None = ("v1beta2", "v1beta1")
    ) -> None:
        self.queues = queues
        self.refuses = refuses
        self.versions = versions
        self.objects: dict[str, dict[str, Any]] = {}

    def list(self, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        if not path.endswith("/localqueues"):
            return []
        if self.refuses is not None:
            raise self.refuses
        version = path.removeprefix(f"{KUEUE}/").removesuffix("/namespaces/ml/localqueues")
        if version not in (self.versions or ("v1beta1",)):
            raise NotServed(f"the API server does not serve `{path}`")
        return [{"metadata": {"name": name}} for name in self.queues]

    def get(self, path: str) -> dict[str, Any]:
        if path == KUEUE and self.versions is not None:
            return {"kind": "APIGroup", "versions": [{"version": version} for version in self.versions]}
        if path not in self.objects:
            raise NotFound(f"no {path}")
        return self.objects[path]

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        created = copy.deepcopy(dict(body))
        created["metadata"]["uid"] = f"uid-{len(self.objects)}"
        self.objects[f"{path}/{created['metadata']['name']}"] = created
        return created

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found = self.objects[path]
        for key, values in body["metadata"].items():
            merged = {**(found["metadata"].get(key) or {}), **values}
            found["metadata"][key] = {name: value for name, value in merged.items() if value is not None}
        found["spec"].update(body.get("spec", {}))
        return found


def submitted(server: Server, run_dir: RunDir, *, queue: str | None = None, **of_job: Any) -> dict[str, Any]:
    """The JobSet that a job of the team `vision_lab` becomes; a held one after its release."""
    run_dir.write_resolved(resolved_command(run_dir.run_id))
    options = Kubernetes(namespace="ml", image="x", volume="runs", queue=queue, run_as_user=7)
    backend = KubernetesBackend(options, client=server, env={}, machine="here")  # type: ignore[arg-type]
    handle = backend.submit(backend.render(spec(**{"team": "vision_lab"} | of_job), run_dir), run_dir)
    path = backend._jobsets(handle)
    if of_job.get("hold"):
        assert (server.objects[path]["spec"]["suspend"], queue_of(server.objects[path])) == (True, None)
        backend.release(handle)
    return server.objects[path]


def queue_of(jobset: dict[str, Any]) -> str | None:
    """Of Kueue."""
    label: str | None = jobset["metadata"]["labels"].get(QUEUE_LABEL)
    return label


@pytest.mark.parametrize("hold", [False, True])
def test_a_job_enters_the_queue_of_its_team_at_once_or_when_it_is_released(run_dir: RunDir, hold: bool) -> None:
    jobset = submitted(Server("language", "vision-lab"), run_dir, hold=hold)
    assert (queue_of(jobset), jobset["spec"]["suspend"]) == ("vision-lab", True)


@pytest.mark.parametrize("versions", [["v1beta2", "v1beta1"], ["v1beta1"], ["v1beta2"], None])
def test_the_queue_is_found_in_every_version_of_kueue(run_dir: RunDir, versions: list[str] | None) -> None:
    jobset = submitted(Server("vision-lab", versions=versions), run_dir)
    assert queue_of(jobset) == "vision-lab"


@pytest.mark.parametrize(
    ("server", "options", "queue"),
    [
        (Server("vision-lab"), {"queue": "urgent"}, "urgent"),
        (Server("vision-lab"), {"team": ""}, None),
        (Server(refuses=NotServed("no Kueue")), {}, None),
        (Server(refuses=KubernetesRefusedError("queues are not yours to list")), {}, None),
    ],
    ids=["the run file names a queue", "no team", "no Kueue", "no right to list queues"],
)
def test_a_job_that_has_no_queue_of_a_team(
    server: Server, options: dict[str, Any], queue: str | None, run_dir: RunDir
) -> None:
    jobset = submitted(server, run_dir, **options)
    assert (queue_of(jobset), jobset["spec"].get("suspend")) == (queue, True if queue else None)


def test_a_team_without_a_queue_is_refused_with_the_queues_that_there_are(run_dir: RunDir) -> None:
    server = Server("vision", "language")
    with pytest.raises(UsageError, match="`vision_lab` has no LocalQueue `vision-lab` in the namespace `ml`") as error:
        submitted(server, run_dir)
    assert "the namespace has: language, vision;" in (error.value.hint or "")
    assert server.objects == {}


def test_a_server_that_does_not_answer_gets_no_job_without_its_queue(run_dir: RunDir) -> None:
    server = Server(refuses=UnreachableError("nobody answers"))
    with pytest.raises(UnreachableError):
        submitted(server, run_dir)
    assert server.objects == {}
