"""Jobs on a real API server, in pods that are processes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.backends.kubernetes.conftest import Kube
from tests.fakes import FakeClock
from tests.gpus.machine import GpuMachine
from tests.kubernetes.cluster import wait_until
from tests.kubernetes.pod_security import violations
from tests.lanes import cases
from trainworks.api.launching.prepared_run import NODE_CHECK
from trainworks.api.proving.repair import ClusterRepairs
from trainworks.backends.kubernetes.client import KubernetesRefusedError
from trainworks.config.engines import Toleration
from trainworks.errors import UnreachableError, UsageError
from trainworks.jobs.state import Cause, JobState
from trainworks.recover.repairs import RepairPolicy

pytestmark = pytest.mark.kubernetes

UNTIL_TOLD = 'until test -e "$TRAINWORKS_RUN_DIR/told"; do sleep 0.1; done'
UNTIL_STOPPED = "trap 'echo asked; exit 0' TERM; echo begun; while :; do sleep 0.1; done"


def test_a_gang_runs_and_succeeds(kube: Kube) -> None:
    run = kube.command(
        f'echo "rank $RANK of $WORLD_SIZE on $(hostname), $SECRET"; {UNTIL_TOLD}', nodes=4, envs={"SECRET": None}
    )
    seen = run.start().status
    assert seen.state is JobState.RUNNING and seen.nodes == ("node1", "node2", "node3", "node4")
    run.tell()
    seen = run.reaches("SUCCEEDED")
    assert (seen.raw, seen.exit_code, seen.cause, seen.restarts) == ("Completed", 0, None, 0)
    assert [f"[{rank}] rank {rank} of 4 on {run.handle}-node-0-{rank}, s3cret $(HOME)" for rank in range(4)] == [
        line for line in run.backend.output(run.handle) if " of 4 on " in line
    ]
    assert run.there.read_status().state == "SUCCEEDED"


def test_output_comes_while_the_job_runs(kube: Kube) -> None:
    run = kube.command(f'echo "first $RANK"; {UNTIL_TOLD}; printf "no end $RANK"').submit()
    lines = run.backend.output(run.handle, follow=True)
    first = {next(lines), next(lines)}
    assert first == {"[0] first 0", "[1] first 1"} and run.status.state is JobState.RUNNING
    run.tell()
    assert set(lines) == {"[0] no end 0", "[1] no end 1"}
    assert list(run.backend.output(run.handle, node=1)) == ["[1] first 1", "[1] no end 1"]


def test_a_stop_is_clean(kube: Kube) -> None:
    run = kube.command(UNTIL_STOPPED, job={"grace": "60 s"}).start()
    wait_until(lambda: run.log().count("begun") == 2)
    run.backend.stop(run.handle)
    seen = run.reaches("STOPPED")
    assert seen.raw == "Stopped" and run.there.read_status().state == "STOPPED"
    assert all("asked" in run.there.rank_log(rank).read_text() for rank in (0, 1))
    wait_until(lambda: run.pods() == [])


def test_a_second_stop_ends_at_once(kube: Kube) -> None:
    run = kube.command("trap '' TERM; while :; do sleep 0.1; done", job={"grace": "10 min"}).start()
    run.backend.stop(run.handle)
    wait_until(lambda: run.events("stop_requested"))
    assert run.status.state is JobState.RUNNING and run.status.reason == "stop requested"
    run.backend.stop(run.handle, at_once=True)
    run.reaches("STOPPED")
    wait_until(lambda: run.pods() == [])


def test_the_first_rank_that_fails_is_named(kube: Kube) -> None:
    fails = 'test "$RANK" != 1 || { echo "no such dataset" >&2; exit 7; }; sleep 600'
    seen = kube.command(fails, restarts=2).submit().reaches("FAILED")
    assert (seen.cause, seen.exit_code, seen.restarts) == (Cause.USER_ERROR, 7, 0)
    assert seen.reason == "rank 1 on node 1: the command exited with code 7: no such dataset"


def test_a_job_does_not_start_on_a_node_that_fails_its_check(kube: Kube) -> None:
    check = '[ "$NODE_NAME" != node2 ] || { echo "fan 2 is broken"; exit 1; }'
    run = kube.command("true", nodes=2, restarts=2, job={"health": check}).submit()
    seen = run.reaches("FAILED")
    assert (seen.cause, seen.restarts) == (Cause.NODE_UNHEALTHY, 0)
    assert "node2: fan 2 is broken (exit code 1)" in (seen.reason or "")
    assert not run.events("attempt")


def test_a_run_is_one_job(kube: Kube) -> None:
    run = kube.command("sleep 1").submit()
    assert run.backend.submit(run.rendered, run.here) == run.handle
    assert len(kube.cluster.client.list(kube.cluster.path("secrets"))) == 1
    run.reaches("SUCCEEDED")
    assert run.backend.submit(run.rendered, run.here) == run.handle and run.status.state is JobState.SUCCEEDED


def test_a_run_that_is_submitted_from_several_shells_is_one_job(kube: Kube) -> None:
    run = kube.command("true")
    with ThreadPoolExecutor(4) as shells:
        handles = set(shells.map(lambda _: run.backend.submit(run.rendered, run.here), range(4)))
    run.handle = handles.pop()
    assert not handles and run.reaches("SUCCEEDED").restarts == 0
    assert len(kube.cluster.client.list(kube.cluster.path("secrets"))) == 1


def test_a_job_that_is_being_deleted_is_submitted_anew(kube: Kube) -> None:
    run = kube.command("sleep 600", nodes=1).start()
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{run.handle}"
    first = kube.cluster.client.get(path)["metadata"]["uid"]
    kube.cluster.client.delete(path, {"propagationPolicy": "Foreground"})
    assert run.submit().handle == run.handle
    assert kube.cluster.client.get(path)["metadata"]["uid"] != first
    wait_until(lambda: len(run.events("submitted")) == 2)


@pytest.mark.parametrize(("level", "user"), [("restricted", 1000), ("baseline", None)])
def test_pods_are_not_root_where_their_namespace_forbids_it(kube: Kube, level: str, user: int | None) -> None:
    labels = {"pod-security.kubernetes.io/enforce": level}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    kube.cluster.client.create("/api/v1/namespaces", namespace)
    try:
        run = kube.command("true", nodes=1, job={"hold": True}).submit()
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{run.handle}"
        spec = kube.cluster.client.get(path)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    finally:
        kube.cluster.client.delete("/api/v1/namespaces/default")
    assert spec["securityContext"].get("runAsUser") == user
    assert violations(spec, user_of_the_image=1000) == ([] if user else ["node: runAsNonRoot != true"])


def test_the_pods_of_a_job_have_what_its_run_file_says(kube: Kube) -> None:
    patch = {
        "metadata": {"annotations": {"example.com/cost-centre": "7"}},
        "spec": {"containers": [{"name": "node", "env": [{"name": "ADDED", "value": "by the patch"}]}]},
    }
    tolerations = (Toleration(key="dedicated", operator="Exists"),)
    run = kube.command("echo $ADDED", nodes=1, tolerations=tolerations, shared_memory=2**30, patch=patch).submit()
    run.reaches("SUCCEEDED")
    (pod,) = run.pods()
    assert pod["metadata"]["annotations"]["example.com/cost-centre"] == "7"
    assert {"key": "dedicated", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert {"medium": "Memory", "sizeLimit": "1Gi"} in [one.get("emptyDir") for one in pod["spec"]["volumes"]]
    assert "by the patch" in run.log()


def test_the_server_refuses_a_field_that_pods_do_not_have(kube: Kube) -> None:
    with pytest.raises(KubernetesRefusedError, match="hostNetwrok"):
        kube.command("true", nodes=1, patch={"spec": {"hostNetwrok": True}}).submit()


def test_somebody_else_s_job_of_that_name_is_left_alone(kube: Kube) -> None:
    run = kube.command("true").submit()
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{run.handle}"
    kube.cluster.client.patch(path, {"metadata": {"annotations": {"trainworks/run": "trainworks:t-1:another"}}})
    with pytest.raises(UsageError, match=f"a JobSet `{run.handle}` of run trainworks:t-1:another already exists"):
        run.backend.submit(run.rendered, run.here)
    run.reaches("SUCCEEDED")


def test_a_held_job_waits_for_its_release(kube: Kube) -> None:
    run = kube.command("true", job={"hold": True}).submit()
    seen = run.status
    assert (seen.state, seen.reason) == (JobState.QUEUED, "held") and run.pods() == []
    run.backend.release(run.handle)
    run.reaches("SUCCEEDED")


def test_a_job_that_finds_no_room_says_so_and_can_be_held(kube: Kube) -> None:
    first = kube.command("sleep 600", nodes=4).start()
    run = kube.command("true", nodes=1).submit()
    wait_until(lambda: "Insufficient" in (run.status.reason or ""))
    assert run.status.state is JobState.QUEUED
    run.backend.hold(run.handle)
    assert run.status.reason == "held"
    with pytest.raises(KubernetesRefusedError, match="cannot hold"):
        first.backend.hold(first.handle)
    first.backend.stop(first.handle, at_once=True)
    run.backend.release(run.handle)
    run.reaches("SUCCEEDED")


def test_kueue_starts_a_job_when_its_turn_comes(kube: Kube) -> None:
    first = kube.command("sleep 600", nodes=4, queue="train").start()
    run = kube.command("true", nodes=1, queue="train").submit()
    wait_until(lambda: "insufficient unused quota" in (run.status.reason or ""))
    run.backend.hold(run.handle)
    assert run.status.raw == "Inactive"
    first.backend.stop(first.handle)
    first.reaches("STOPPED")
    assert run.status.state is JobState.QUEUED
    run.backend.release(run.handle)
    run.reaches("SUCCEEDED")
    lost = kube.command("true", queue="no-such").submit()
    wait_until(lambda: lost.status.reason == "Inadmissible: LocalQueue no-such doesn't exist")


def test_a_lost_node_costs_a_restart(kube: Kube) -> None:
    been = '"$TRAINWORKS_RUN_DIR/been-$RANK"'
    run = kube.command(f"test -e {been} && exit 0; touch {been}; sleep 600", restarts=1).start()
    node = run.status.nodes[1]
    wait_until(lambda: all((run.there.path / f"been-{rank}").exists() for rank in range(2)))
    kube.cluster.lose(node)
    seen = run.reaches("SUCCEEDED")
    assert seen.restarts == 1 and node not in seen.nodes
    assert [event["restarts"] for event in run.events("submitted")] == [0, 1]
    assert [facts.name for facts in run.backend.nodes() if facts.state == "down"] == [node]


@pytest.mark.parametrize("index", [0, 1])
def test_a_preempted_pod_ends_all_ranks_in_order_and_costs_no_restart(kube: Kube, index: int) -> None:
    trap = "trap 'touch /runs/preempted; exit 0' TERM; touch /runs/up-$RANK"
    again = f"test -e /runs/preempted && exit 0; {trap}; while :; do sleep 0.1; done"
    run = kube.command(again, restarts=0, job={"grace": "30 s"}).start()
    up = [kube.cluster.volume / f"up-{rank}" for rank in range(2)]
    wait_until(lambda: run.status.state is JobState.RUNNING and all(rank.exists() for rank in up))
    run.evict_pod(index)
    seen = run.reaches("SUCCEEDED")
    assert seen.restarts == 1 and [event["cause"] for event in run.events("state")].count("preempted") == 1
    for file in (*up, kube.cluster.volume / "preempted"):
        file.unlink()


@pytest.mark.parametrize("index", cases([0, 1], at_night=[1]))  # of the second pod another test shows a restart
def test_restarts_end(kube: Kube, index: int) -> None:
    run = kube.command("sleep 600", restarts=1).start()
    run.delete_pod(index)
    wait_until(lambda: len(run.events("submitted")) == 2 and run.there.read_status().state == "RUNNING")
    run.delete_pod(index)
    seen = run.reaches("FAILED")
    assert seen.restarts == 1


def test_ranks_start_again_in_their_pods(kube: Kube) -> None:
    run = kube.command('echo "attempt $TRAINWORKS_ATTEMPT"; test "$TRAINWORKS_ATTEMPT" = 2', restarts=1).submit()
    seen = run.reaches("SUCCEEDED")
    assert seen.restarts == 0 and [event["attempt"] for event in run.events("attempt")] == [1, 2]
    assert "attempt 2" in run.there.rank_log(1).read_text()


def test_a_broken_gpu_costs_new_pods_and_not_another_start_on_it(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = kube.cluster.volume / f"gpus-{tmp_path.name}"
    machine, there = GpuMachine(here, 8, monkeypatch), f"/runs/{here.name}"
    env = {"TRAINWORKS_TEST_GPUS": there, "PYTHONPATH": os.environ["PYTHONPATH"]}
    values = [{"name": name, "value": value} for name, value in env.items()]
    breaking = machine.breaking(5, 8).replace(str(here), there)
    breaks = f'test "$RANK" = 0 || test -e {there}/been || {{ touch {there}/been; {breaking}; exit 1; }}'
    patch = {"spec": {"containers": [{"name": "node", "env": values}]}}
    run = kube.command(breaks, restarts=1, patch=patch)
    looks = run.here.read_resolved().model_copy(update={"accelerator_check": (NODE_CHECK,)})
    run.here.write_resolved(looks)
    run.submit()
    assert run.reaches("SUCCEEDED").restarts == 1
    assert [event["action"] for event in run.events("decision")] == ["restart without the bad accelerator"]
    (waits,) = [event for event in run.events("state") if event["state"] == "QUEUED"]
    assert waits["cause"] == "gpu_fault" and "GPU 5 has 3 uncorrected errors" in waits["message"]


def test_a_server_that_is_away_says_nothing_of_any_job(kube: Kube) -> None:
    run = kube.command(UNTIL_TOLD).start()
    run.backend._client._patience_s = 1.0
    kube.cluster.stop_server()
    try:
        for ask in (lambda: run.status, run.backend.nodes, run.submit, lambda: run.backend.stop("x")):
            with pytest.raises(UnreachableError, match="the API server does not answer"):
                ask()
        run.tell()
    finally:
        kube.cluster.start_server()
    run.reaches("SUCCEEDED")


def test_a_job_that_somebody_deleted_is_not_known(kube: Kube) -> None:
    run = kube.command("sleep 600").start()
    path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/{run.handle}"
    kube.cluster.client.delete(path, {"propagationPolicy": "Background"})
    assert run.backend.poll([run.handle]) == {}
    run.backend.stop(run.handle)
    wait_until(lambda: run.pods() == [] and kube.cluster.client.list(kube.cluster.path("secrets")) == [])


def test_a_retry_goes_on_in_the_run_directory(kube: Kube) -> None:
    run = kube.command("test -e /runs/good").submit()
    run.reaches("FAILED")
    (kube.cluster.volume / "good").touch()
    assert run.backend.retry(run.rendered, run.here, run.handle) == run.handle
    run.reaches("SUCCEEDED")
    assert len(run.events("submitted")) == 2
    (kube.cluster.volume / "good").unlink()


def test_a_time_limit_ends_a_job(kube: Kube) -> None:
    run = kube.command("sleep 60", job={"time_limit": "2 s"}).submit()
    assert run.reaches("FAILED").cause is Cause.TIME_LIMIT


HOSTILE = """a"b'c $(touch /runs/evil) `touch /runs/evil` $(HOME) $$(HOME) ; touch /runs/evil \\ \t ü"""


def test_what_a_user_writes_is_data(kube: Kube) -> None:
    run = kube.command('printf %s "$HOSTILE"; test "$(HOME=x; echo "$HOME")" = x', nodes=1, envs={"HOSTILE": HOSTILE})
    run.submit().reaches("SUCCEEDED")
    assert run.there.rank_log(0).read_text() == HOSTILE
    assert not (kube.cluster.volume / "evil").exists()


def test_one_node_needs_no_volume(kube: Kube) -> None:
    run = kube.command('echo "$TRAINWORKS_RUN_DIR"', nodes=1, volume=None).submit()
    run.reaches("SUCCEEDED")
    assert run.log() == f"[0] /runs/{run.handle}" and not run.there.path.exists()
    with pytest.raises(UsageError, match="2 nodes need a shared run directory"):
        kube.command("true", volume=None).submit()


def test_a_node_is_drained(kube: Kube) -> None:
    backend = kube.cluster.backend()
    backend.drain("node2", "bad\nGPU 3")
    assert [(one.state, one.reason) for one in backend.nodes() if one.name == "node2"] == [("drained", "bad GPU 3")]
    run = kube.command("sleep 600", nodes=3).start()
    assert run.status.nodes == ("node1", "node3", "node4")
    facts = {one.name: one for one in backend.nodes()}
    assert facts["node1"].state == "taken" and facts["node1"].jobs == (run.handle,)
    assert (facts["node1"].accelerators_taken, facts["node1"].cores_taken) == (8, 2.0)
    backend.undrain("node2")
    assert {one.name: one.state for one in backend.nodes()}["node2"] == "free"


def test_a_node_that_reboots_in_a_repair_stays_cordoned_until_its_check_passes(kube: Kube, tmp_path: Path) -> None:
    backend = kube.cluster.backend()
    backend.drain("node1", "fan 3")
    kube.cluster.lose("node2")
    commands = {
        "reboot": f"touch {tmp_path}/up",
        "uptime": f"test -e {tmp_path}/up; echo 5",
        "check": "true",
        "reset": "",
    }
    policy, clock = RepairPolicy.model_validate({"max_share": 0.25} | commands), FakeClock()
    clock.after(10.0, lambda: kube.cluster.return_node("node2"))
    shown = ClusterRepairs(backend, tmp_path / "k.jsonl", policy, clock).run([])
    assert [(each.node, each.step) for each in shown] == [("node2", "back")]
    states = {one.name: (one.state, one.reason) for one in backend.nodes()}
    assert (states["node1"], states["node2"]) == (("drained", "fan 3"), ("free", None))


def test_the_server_s_refusal_is_passed_on(kube: Kube) -> None:
    run = kube.command("true")
    script = run.rendered
    broken = type(script)(script.spec, script.text.replace("failurePolicy:", "failurePolitics:"))
    with pytest.raises(KubernetesRefusedError, match=r'unknown field "spec.failurePolitics"'):
        run.backend.submit(broken, run.here)
