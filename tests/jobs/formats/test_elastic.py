"""Jobs whose nodes come and go, in the words of Kubernetes and SkyPilot."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from tests.jobs.formats.jobs import pods
from tests.jobs.formats.test_formats import check_jobset
from trainworks.config.manifests.own_job import JOB
from trainworks.errors import UsageError
from trainworks.jobs.formats import jobset, skypilot

GANG: dict[str, Any] = {"num_nodes": 4, "resources": {"accelerators": "H100:8"}, "job": {"time_limit": "12h"}}
GOOGLE = {"kubernetes": {"provisioning_class": "queued-provisioning.gke.io"}}
AUTOSTOP_OF_SKYPILOT = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "idle_minutes": {"type": "integer", "minimum": 0},
        "down": {"type": "boolean"},
        "wait_for": {"enum": ["jobs_and_ssh", "jobs", "none"]},
        "hook": {"type": "string"},
        "hook_timeout": {"type": "integer"},
    },
}
"""Of `resources.autostop`, as the schemas of SkyPilot 0.14 have it."""


def elastic(autoscale: dict[str, Any], *, queue: str | None = "research", **keys: Any) -> Any:
    return pods(**(GANG | keys | {"kubernetes": {"queue": queue}, "cluster": {"autoscale": autoscale}}))


def task(autoscale: dict[str, Any]) -> dict[str, Any]:
    wanted = elastic(autoscale, job={})
    document: dict[str, Any] = yaml.safe_load(skypilot.render(wanted.spec, wanted.program, autoscale=wanted.autoscale))
    return document


def test_elastic_jobs_in_every_language(golden) -> None:
    wanted = elastic({"down_after": "10m"}, job={})
    texts = [jobset.render(elastic(GOOGLE)), skypilot.render(wanted.spec, wanted.program, autoscale=wanted.autoscale)]
    golden("job_elastic.yaml", "---\n".join(texts))


def test_a_jobset_with_nodes_on_request_is_one_of_its_api() -> None:
    check_jobset(yaml.safe_load(jobset.render(elastic(GOOGLE))))


def test_a_trainjob_with_nodes_on_request_is_one_of_its_api() -> None:
    document = yaml.safe_load(jobset.render_trainjob(elastic(GOOGLE)))
    assert TrainerV1alpha1TrainJob.from_dict(document).to_dict() == document
    assert "safe-to-evict" in str(document["spec"]["runtimePatches"])


def test_the_autoscaler_does_not_move_the_pods_of_an_elastic_job() -> None:
    document = yaml.safe_load(jobset.render(elastic({}, queue=None)))
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    assert document["metadata"]["annotations"].keys() == {JOB}


def test_a_job_without_the_block_says_nothing_of_it() -> None:
    assert yaml.safe_load(jobset.render(pods(**GANG)))["metadata"]["annotations"].keys() == {JOB}


def test_nodes_are_asked_for_in_a_queue() -> None:
    with pytest.raises(UsageError, match="needs a Kueue queue"):
        jobset.render(elastic({"kubernetes": {}}, queue=None))


def test_googles_queue_wants_a_time_limit() -> None:
    with pytest.raises(UsageError, match="only for jobs with a time limit"):
        jobset.render(elastic(GOOGLE, job={}))


@pytest.mark.parametrize(
    ("autoscale", "autostop"),
    [
        ({"down_after": "10m"}, {"idle_minutes": 10, "down": True, "wait_for": "jobs_and_ssh"}),
        (
            {"down_after": "2h", "skypilot": {"then": "stop", "wait_for": "none"}},
            {"idle_minutes": 120, "down": False, "wait_for": "none"},
        ),
    ],
)
def test_skypilots_autostop(autoscale: dict[str, Any], autostop: dict[str, Any]) -> None:
    written = task(autoscale)["resources"]["autostop"]
    jsonschema.validate(written, AUTOSTOP_OF_SKYPILOT)
    assert written == autostop


def test_without_a_time_skypilot_is_told_nothing() -> None:
    assert "autostop" not in task({})["resources"]


@pytest.mark.parametrize(
    ("autoscale", "refusal"),
    [
        ({"down_after": "10m", "keep": 1}, "does not support `keep`"),
        ({"start_timeout": "10m"}, "does not support `start_timeout`"),
        ({"stop_timeout": "10m"}, "does not support `stop_timeout`"),
        ({"down_after": "90s"}, "counts idle time in whole minutes"),
    ],
)
def test_what_skypilot_cannot_do_is_refused(autoscale: dict[str, Any], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        task(autoscale)
