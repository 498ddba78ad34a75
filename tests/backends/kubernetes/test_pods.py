"""What a pod knows about itself, and the message that it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainworks.backends.kubernetes.pod import pod_of, write_termination_message
from trainworks.errors import EnvironmentProblem
from trainworks.record.exit_code import End

ENV = {
    "JOB_COMPLETION_INDEX": "1",
    "POD_IP": "10.0.0.7",
    "NODE_NAME": "node3",
    "TRAINWORKS_NODES": "4",
    "TRAINWORKS_CORES": "15",
    "TRAINWORKS_ACCELERATORS": "8",
    "TRAINWORKS_PODS": "demo-node-0-%d.demo",
}


def test_a_pod_reads_its_facts_from_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    pod = pod_of(ENV, tmp_path)
    assert (pod.index, pod.num_nodes, pod.names[3]) == (1, 4, "demo-node-0-3.demo")
    assert not pod.has_roles and not pod.starts_alone
    assert "secret" not in repr(pod) and "secret" not in pod.job


def test_a_pod_of_a_role_knows_its_number_in_the_job_and_which_pods_are_replaced_alone(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    roles = {"TRAINWORKS_PODS": "d-a-0-%d.d,d-b-0-%d.d,d-c-0-%d.d", "TRAINWORKS_NODES": "2,3,1"}
    pod = pod_of({**ENV, **roles, "TRAINWORKS_GROUP": "1", "TRAINWORKS_STARTS_ALONE": "1,2"}, tmp_path)
    assert (pod.index, pod.num_nodes, pod.starts_alone, pod.has_roles) == (3, 6, {2, 3, 4, 5}, True)
    assert pod.names == ("d-a-0-0.d", "d-a-0-1.d", "d-b-0-0.d", "d-b-0-1.d", "d-b-0-2.d", "d-c-0-0.d")


def test_outside_of_a_pod_the_missing_fact_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot read") as missing:
        pod_of(ENV, tmp_path)
    with pytest.raises(EnvironmentProblem, match="'POD_IP' is not set"):
        pod_of({name: value for name, value in ENV.items() if name != "POD_IP"}, tmp_path)
    assert str(tmp_path) in missing.value.message


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f4a5", "\0"])
def test_a_termination_message_fits_into_what_kubernetes_stores(tmp_path: Path, letter: str) -> None:
    write_termination_message(End("FAILED", message=letter * 5000), path=tmp_path / "words", rank=3)
    written = (tmp_path / "words").read_bytes()
    assert len(written) <= 4096 and json.loads(written)["rank"] == 3


def test_a_termination_message_that_cannot_be_written_is_not_fatal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_termination_message(End("FAILED", message="x"), path=tmp_path)
    assert "cannot write" in capsys.readouterr().err
