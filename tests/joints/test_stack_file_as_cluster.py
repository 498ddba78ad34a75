"""A stack file stands wherever words describe a cluster: on the command line, in a run file, and for a group of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import trainworks
from tests.plan.shapes import workload
from trainworks.api.inputs import described_run, named_cluster
from trainworks.api.launching.prepared_run import prepare
from trainworks.api.launching.resolve import resolve
from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.api.proving.health import expectation_of_run
from trainworks.api.run_request import RunRequest
from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.run_file import Cluster, RunFile
from trainworks.errors import RunFileError, UsageError
from trainworks.jobs.described_nodes import described_cluster, with_described_nodes
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.sizing.candidates import described_node

STACK = "examples/cluster/stack.yaml"
WORDS = "4 nodes of DGX H100"


@pytest.fixture
def two_kinds(tmp_path: Path) -> str:
    data = yaml.safe_load(Path(STACK).read_text(encoding="utf-8"))
    data.pop("fabric", None)
    old = {"hosts": "old[01-02]", "address": "10.10.9.1", "roles": ["compute"], "machine": "DGX A100 80GB"}
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump(data | {"nodes": [*data["nodes"], old]}, sort_keys=False), encoding="utf-8")
    return str(path)


def run_of(cluster: object, **keys: object) -> RunFile:
    return RunFile.model_validate({"name": "demo", "run": "true", "cluster": cluster} | keys)


@pytest.mark.parametrize("cluster", [STACK, {"of": STACK}, {"engine": "kubernetes", "of": STACK}])
def test_a_run_file_names_its_cluster_by_the_stack_file(cluster: object) -> None:
    run_file = run_of(cluster)
    assert run_file.cluster.engine == (
        cluster["engine"] if isinstance(cluster, dict) and "engine" in cluster else "slurm"
    )
    assert described_cluster(run_file).same_hardware() == described_cluster(run_of({"of": WORDS})).same_hardware()
    assert expectation_of_run(run_file) == expectation_of_run(run_of({"of": WORDS}))


def test_a_submitted_run_keeps_the_words_of_the_cluster_and_asks_for_its_nodes(tmp_path: Path) -> None:
    by_file, by_words = (
        resolve(run_of(cluster), None, run_id="demo-1", runs=tmp_path).run_file
        for cluster in (STACK, {"engine": "slurm", "of": WORDS})
    )
    assert by_file == by_words
    assert by_file.cluster.of == WORDS


def test_planning_commands_take_a_stack_file_in_place_of_words() -> None:
    run, on = "examples/plan-llama-2-7b.yaml", (STACK, WORDS)
    plans = [trainworks.plan(run, on=each, without_learning=True) for each in on]
    assert all(isinstance(each, ClusterPlan) for each in plans)
    steps = [each.best[0].step_time_s for each in plans if isinstance(each, ClusterPlan)]
    assert steps[0] == steps[1]
    assert trainworks.network(on=on[0]).bill_csv == trainworks.network(on=on[1]).bill_csv
    assert described_run(run, STACK, task="a run is priced")[0].cluster.engine == "described"
    assert described_hardware(on[0]) == read_cluster(on[0])
    assert described_node(on[0]).one.same_hardware() == described_node("DGX H100").one.same_hardware()
    assert named_cluster(STACK) == Cluster(engine="slurm", of=STACK)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("old", "2 nodes of DGX A100 80GB"),
        ("old[01-02]", "2 nodes of DGX A100 80GB"),
        ("DGX H100", WORDS),
        ("old02", "2 nodes of DGX A100 80GB"),
    ],
)
def test_a_group_of_different_nodes_is_named_behind_the_file(two_kinds: str, group: str, name: str) -> None:
    assert read_cluster(f"{two_kinds}:{group}").name == name
    assert described_cluster(run_of(f"{two_kinds}:{group}")).name == name
    assert described_hardware(f"{two_kinds}:{group}").name == name


def test_different_nodes_without_a_group_are_asked_for_at_their_line(two_kinds: str) -> None:
    for text in (two_kinds, f"{two_kinds}:gpu9"):
        with pytest.raises(RunFileError, match=r"`old\[01-02\]` \(DGX A100 80GB\)") as found:
            trainworks.network(on=text)
        assert (found.value.place or "").startswith(f"{two_kinds}:")
        assert "such as `stack.yaml:gpu`" in (found.value.hint or "")


def test_an_error_in_the_stack_file_names_its_line_and_not_the_option(two_kinds: str) -> None:
    path = Path(two_kinds)
    path.write_text(path.read_text(encoding="utf-8").replace("DGX A100 80GB", "DGX Z100"), encoding="utf-8")
    line = next(i for i, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if "DGX Z100" in text)
    for use in (lambda: trainworks.cost(on=two_kinds), lambda: with_described_nodes(run_of(two_kinds))):
        with pytest.raises(RunFileError, match="DGX Z100") as found:
            use()
        assert (found.value.place or "").startswith(f"{path}:{line}  nodes.")


def test_a_stack_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"stack file `.*no\.yaml` not found"):
        trainworks.network(on=str(tmp_path / "no.yaml"))


def test_hardware_completes_a_machine_whose_processors_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    text = Path(STACK).read_text(encoding="utf-8")
    path.write_text(
        text.replace(
            "machine: DGX H100",
            "machine: p6-b200.48xlarge, hardware: {sockets: 2, cores_per_socket: 48, memory: 1900 GiB}",
        ),
        encoding="utf-8",
    )
    assert read_cluster(str(path)).same_hardware() == read_cluster("4 nodes of p6-b200.48xlarge").same_hardware()


def test_words_of_a_cluster_are_parsed_where_they_enter_alone() -> None:
    sources = Path("src/trainworks")
    calls = {
        str(path.relative_to(sources))
        for path in sources.rglob("*.py")
        if any("parse_cluster(" in line and ">>>" not in line for line in path.read_text(encoding="utf-8").splitlines())
    }
    assert calls == {
        "catalog/cluster.py",  # its definition
        "catalog/stack_cluster.py",  # an argument, or `cluster.of`
        "measure/health/expectation.py",  # `--expect`, with a comma for `over`
        "plan/sizing/candidates.py",  # `--node`
    }


@pytest.mark.parametrize("topology", ["spine-leaf", "rail-optimised"])
def test_a_submitted_run_is_planned_over_the_network_of_its_stack_file(tmp_path: Path, topology: str) -> None:
    data = yaml.safe_load(Path(STACK).read_text(encoding="utf-8"))
    next(group for group in data["nodes"] if "machine" in group)["hosts"] = "gpu[01-48]"
    design = {"nics": 8, "port": "NDR", "topology": topology, "oversubscription": 2}
    stack = tmp_path / "stack.yaml"
    stack.write_text(yaml.safe_dump(data | {"fabric": {"design": design}}, sort_keys=False), encoding="utf-8")
    work = workload(global_batch=384, precision="bf16").model_dump(exclude_defaults=True)
    run_file = RunFile.model_validate(
        {"name": "demo", "workload": work, "cluster": {"engine": "slurm", "of": str(stack)}}
    )
    planned = trainworks.plan(run_file, without_learning=True)
    prepared = prepare(RunRequest(run_file), folder=tmp_path, queued=True).with_forecast(ask=False, learning=False)
    forecast, cost = prepared.resolved.forecast, prepared.expected_cost()
    assert isinstance(planned, ClusterPlan) and forecast is not None and cost is not None
    assert forecast.step_s == planned.best[0].step_time_s
    assert forecast.finish_s is not None
    assert forecast.usd == pytest.approx(cost.usd_per_accelerator_hour * 384 * forecast.finish_s[1] / 3600)


@pytest.mark.parametrize("ratio", ["2:1", "4:3", "1.7:1", "1.2345678901:1"])
def test_a_name_has_the_oversubscription_to_the_last_digit(ratio: str) -> None:
    described = parse_cluster(f"16 nodes of DGX H100 at {ratio}").with_nodes(48)
    assert described.name == f"48 nodes of DGX H100 at {ratio}"
    assert parse_cluster(described.name).same_hardware() == described.same_hardware()


def test_some_accelerators_of_a_node_stay_behind_its_network() -> None:
    whole = parse_cluster("16 nodes of DGX H100 at 2:1").model_copy(update={"topology": "3-tier", "spare_slots": 1})
    assert (whole.part(4, 4).topology, whole.part(4, 4).spare_slots) == ("3-tier", 1)
