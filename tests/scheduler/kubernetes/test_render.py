"""A ticket as a JobSet for pods with Trainworks in their image."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.job.formats.jobs import pods
from tests.job.formats.test_formats import LARGE, ON_KUBERNETES, WISHES, check_jobset
from trainworks.errors import UsageError
from trainworks.scheduler.kubernetes.render import render


def rendered(**keys: Any) -> str:
    """The manifest of a job."""
    job = pods(**keys)
    return render(job.ticket, job.where, secrets=[name for name, value in job.program.envs.items() if value is None])


def test_a_job_is_this_manifest(golden) -> None:
    golden("kubernetes_everything.yaml", rendered(**(LARGE | WISHES | ON_KUBERNETES)))


def test_the_manifest_is_one_of_the_api() -> None:
    check_jobset(yaml.safe_load(rendered(**(LARGE | WISHES | ON_KUBERNETES))))


def test_every_pod_runs_the_agent_of_its_node() -> None:
    document = yaml.safe_load(rendered(kubernetes={"volume": "shared"}))
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["python", "-m", "trainworks.scheduler.kubernetes.node", "/runs/demo-1"]


def test_nothing_of_the_program_is_in_the_manifest() -> None:
    manifest = rendered(run="echo 'very secret'", envs={"KEY": "abc123"}, kubernetes={"volume": "shared"})
    assert "secret" not in manifest
    assert "abc123" not in manifest


@pytest.mark.parametrize(
    ("kubernetes", "message"),
    [({}, "the pods have no place for the run directory"), ({"volume": "v", "image": None}, "the pods have no image")],
)
def test_pods_need_an_image_and_a_volume(kubernetes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rendered(kubernetes=kubernetes)
