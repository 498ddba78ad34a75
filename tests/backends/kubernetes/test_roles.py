"""Jobs with roles: a group of pods for each, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.kubernetes.conftest import Kube, Run
from tests.kubernetes.cluster import IMAGE, wait_until
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events
from trainworks.recover.restarts import Begin, lives_of

pytestmark = pytest.mark.kubernetes

GPUS = {"accelerators": "h100:8", "cpus": 2}
UNTIL_TOLD = 'until [ -e "$TRAINWORKS_RUN_DIR/told" ]; do sleep 0.2; done'
TRAINER = {"run": f"echo up $TRAINWORKS_ADDRESSES_SERVER; {UNTIL_TOLD}; echo trained", "resources": GPUS}
SERVER: dict[str, Any] = {
    "run": "trap 'echo saved; exit' TERM; echo up $TRAINWORKS_ROLE_INDEX; while true; do sleep 0.1; done",
    "nodes": 2,
    "resources": {"cpus": 4},
    "decides": False,
}


def said(run: Run, rank: int) -> list[str]:
    """Lines of a rank."""
    log = run.there.rank_log(rank)
    return log.read_text().splitlines() if log.exists() else []


def up(run: Run, rank: int, times: int = 1) -> None:
    """Wait until a rank has started so often."""
    wait_until(lambda: sum(line.startswith("up") for line in said(run, rank)) == times)


def nodes_taken(kube: Kube) -> list[str]:
    """Names of nodes on which a pod of a job stands."""
    return [node.name for node in kube.cluster.backend().nodes() if node.jobs]


def test_a_trainer_and_its_servers_end_well_and_leave_nothing(kube: Kube) -> None:
    prepare = {"run": f"{UNTIL_TOLD}; echo prepared"}
    run = kube.roles({"prepare": prepare, "trainer": TRAINER | {"depends_on": ["prepare"]}, "server": SERVER}).submit()
    up(run, 2)
    up(run, 3)
    assert said(run, 1) == []  # the trainer waits
    wait_until(lambda: run.status.state is JobState.RUNNING)
    wanted = {pod["metadata"]["name"].rsplit("-", 1)[0]: pod["spec"]["containers"][0] for pod in run.pods()}
    assert list(wanted) == [f"{run.handle}-{pod}" for pod in ("prepare-0-0", "server-0-0", "server-0-1", "trainer-0-0")]
    assert wanted[f"{run.handle}-trainer-0-0"]["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert wanted[f"{run.handle}-server-0-1"]["resources"]["requests"] == {"cpu": "4"}
    run.tell()
    run.reaches("SUCCEEDED")
    addresses = said(run, 1)[0].removeprefix("up ").split(",")
    assert [place.split(":")[0] for place in addresses] == [
        f"{run.handle}-server-0-{index}.{run.handle}" for index in (0, 1)
    ]
    assert said(run, 1)[1] == "trained" and said(run, 0) == ["prepared"]
    assert [(said(run, rank)[0], said(run, rank)[-1]) for rank in (2, 3)] == [("up 0", "saved"), ("up 1", "saved")]
    assert {"[trainer-0] trained", "[prepare-0] prepared", "[server-1] saved"} <= set(run.log().splitlines())
    assert list(run.backend.output(run.handle, node=0))[-1] == "[prepare-0] prepared"
    assert not run.events("failure") and nodes_taken(kube) == []
    client, name = kube.cluster.client, run.handle
    client.delete(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{name}")
    wait_until(lambda: not run.pods() and not client.list(kube.cluster.path("secrets")))


@pytest.mark.parametrize("grace_s", [0, 30], ids=["power lost", "evicted"])
def test_a_server_pod_that_is_lost_starts_again_alone_at_its_address(kube: Kube, grace_s: int) -> None:
    run = kube.roles({"trainer": TRAINER, "server": SERVER | {"restarts": 1}}).submit()
    for rank in range(3):
        up(run, rank)
    wait_until(lambda: run.there.read_status().state == "RUNNING")
    before = {pod["metadata"]["uid"] for pod in run.pods()}
    run.delete_pod(1, grace_s, role="server")
    up(run, 1, times=2)
    up(run, 2, times=2)
    wait_until(lambda: run.there.read_status().state == "RUNNING")
    assert len({pod["metadata"]["uid"] for pod in run.pods()} - before) == 1
    assert run.status.restarts == 0
    run.tell()
    run.reaches("SUCCEEDED")
    assert len(said(run, 0)) == 2, "the trainer ran on"
    lives = lives_of(read_events(run.there.events_file))
    assert [(life.begin, life.part) for life in lives] == [
        (Begin.SUBMIT, None),
        (Begin.ROLE, "`server`: node 2"),
    ]
    assert (lives[1].cause, lives[1].message) == ("node_lost", "the connection to the node was lost (role `server`)")


def test_a_server_that_is_lost_more_often_than_its_restarts_fails_the_job(kube: Kube) -> None:
    run = kube.roles({"trainer": TRAINER, "server": SERVER | {"restarts": 1}}).submit()
    for times in (1, 2):
        for rank in (1, 2):
            up(run, rank, times=times)
        wait_until(lambda: run.there.read_status().state == "RUNNING")
        run.delete_pod(0, role="server")
    seen = run.reaches("FAILED")
    assert (seen.cause, seen.reason) == ("node_lost", "node 1: the connection to the node was lost (role `server`)")
    assert nodes_taken(kube) == []


def test_a_server_that_is_lost_after_its_last_restart_starts_all_roles_again_in_their_pods(kube: Kube) -> None:
    run = kube.roles({"trainer": TRAINER, "server": SERVER | {"nodes": 1, "restarts": 1}}, restarts=1).submit()
    for times in (1, 2):
        up(run, 0)
        up(run, 1, times=times)
        wait_until(lambda: run.there.read_status().state == "RUNNING")
        run.delete_pod(0, role="server")
    up(run, 0, times=2)
    up(run, 1, times=3)
    run.tell()
    assert run.reaches("SUCCEEDED").restarts == 0
    assert len([pod for pod in run.pods() if "-trainer-" in pod["metadata"]["name"]]) == 1


def test_a_failed_command_of_a_role_names_it(kube: Kube) -> None:
    run = kube.roles({"trainer": TRAINER, "server": {"run": "echo no such model; exit 3", "decides": False}}).submit()
    seen = run.reaches("FAILED")
    assert (seen.cause, seen.exit_code) == ("user_error", 3)
    assert "the command of role `server` exited with code 3: no such model" in str(seen.reason)


def test_a_stop_ends_all_roles(kube: Kube) -> None:
    run = kube.roles({"trainer": TRAINER, "server": SERVER | {"restarts": 3}}).submit()
    for rank in range(3):
        up(run, rank)
    run.backend.stop(run.handle)
    run.reaches("STOPPED")
    wait_until(lambda: not run.pods())
    assert [said(run, rank)[-1] for rank in (1, 2)] == ["saved", "saved"]
    assert not run.events("restart")


@pytest.mark.parametrize("options", [{}, {"queue": "train"}], ids=["scheduler", "Kueue"])
def test_a_role_for_which_there_is_no_place_leaves_nothing_running(kube: Kube, options: dict[str, str]) -> None:
    run = kube.roles({"server": SERVER, "trainer": TRAINER | {"nodes": 5}}, **options).submit()
    wait_until(lambda: "nvidia.com/gpu" in str(run.status.reason))
    assert run.status.state is JobState.QUEUED
    assert not run.there.path.exists() and nodes_taken(kube) == []
    run.backend.stop(run.handle)
    run.reaches("STOPPED")


def test_the_supervisor_killed_starts_all_roles_again(kube: Kube) -> None:
    run = kube.roles({"trainer": TRAINER, "server": SERVER | {"restarts": 1}}, restarts=1).submit()
    for rank in range(3):
        up(run, rank)
    run.delete_pod(0, role="trainer")
    for rank in range(3):
        up(run, rank, times=2)
    run.tell()
    assert run.reaches("SUCCEEDED").restarts == 1


def test_the_record_of_roles_with_images_of_their_own_is_fetched_by_a_pod_of_the_first(kube: Kube) -> None:
    run = kube.roles({"one": {"run": "echo done", "image": IMAGE}, "two": {"run": "true", "image": IMAGE}}, image=None)
    run.submit().reaches("SUCCEEDED")
    assert run.backend.fetch([run.here])
    assert run.here.events_file.read_bytes() == run.there.events_file.read_bytes()
