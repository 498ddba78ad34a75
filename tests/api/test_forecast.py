"""The plan of a job before it is submitted, from what its scheduler says of the nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.small_backend import SmallBackend
from tests.fakes import resolved_command, spec
from tests.report.conftest import make_plan
from trainworks.api.planning.described import job_plan
from trainworks.api.planning.expected_cost import expected_cost
from trainworks.backends.backend import NodeStatus
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, LayoutError, UnreachableError
from trainworks.jobs.job_spec import NodeResources
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.record.resolved import Forecast
from trainworks.record.step_time import ExpectedStep
from trainworks.report.local_plan import cost_text
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import render_text
from trainworks.units import HOUR_S


class Nodes(SmallBackend):
    """A scheduler whose nodes have these accelerators; without any it does not answer."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def nodes(self) -> list[NodeStatus]:
        if not self.names:
            raise UnreachableError("nobody answers")
        return [NodeStatus(name=f"n{at}", state="free", accelerator=name) for at, name in enumerate(self.names)]


def run_file(accelerators: str = "H100:8", **changes: Any) -> RunFile:
    """A language model of 7 billion parameters on four nodes."""
    work = {
        "task": "causal-lm",
        "model": {"layers": 32, "hidden": 4096, "heads": 32, "feed_forward": 11008},
        "data": {"source": "./text", "sequence_length": 4096, "vocabulary": 32000},
        "precision": "bf16",
        "global_batch": 256,
        "train_for": "10B tokens",
    }
    fields = {
        "name": "llama",
        "workload": work | changes.pop("workload", {}),
        "resources": {"accelerators": accelerators},
        "cluster": {"engine": "slurm", "nodes": 4} | changes.pop("cluster", {}),
    }
    return RunFile.model_validate(fields | changes)


def forecast(*of_job: Any, **options: Any) -> Forecast | None:
    """What the record keeps of the plan; None where there is none."""
    found = job_plan(*of_job, **options)
    return None if found is None else found.forecast()


def planned(backend: SmallBackend | None = None, **of_run: Any) -> Forecast:
    """For nodes that are known."""
    found = forecast(run_file(**of_run), None, backend)
    assert found is not None
    return found


def test_a_job_has_a_step_with_its_interval_a_memory_a_duration_and_a_price() -> None:
    found = planned()
    assert found.cluster == "4 nodes of 8x H100-SXM-80GB"
    assert found.layout.world_size == 32
    assert found.low_s < found.step_s < found.high_s
    assert found.memory_bytes < 80 * 10**9
    assert found.train_s == pytest.approx(found.step_s * 10e9 / (256 * 4096), rel=1e-3)
    assert found.finish_s is not None
    assert found.train_s * found.low_s / found.step_s < found.finish_s[1] < found.train_s * found.high_s / found.step_s
    priced = planned(cluster={"usd_per_accelerator_hour": 3.0})
    assert priced.usd == pytest.approx(3.0 * 32 * found.finish_s[1] / HOUR_S)


def test_the_price_of_a_job_has_its_failures() -> None:
    """Four nodes that each fail every six hours interrupt a job of ten hours six times."""
    often, seldom = (planned(recover={"node_mttf": mttf}) for mttf in ("6h", "10000d"))
    assert often.step_s == seldom.step_s and often.train_s == seldom.train_s
    assert often.finish_s is not None and seldom.finish_s is not None
    assert seldom.finish_s[1] == pytest.approx(seldom.train_s, rel=0.03)
    assert often.finish_s[1] > 1.1 * seldom.finish_s[1]
    assert often.usd is not None and seldom.usd is not None
    assert often.usd / seldom.usd == pytest.approx(often.finish_s[1] / seldom.finish_s[1])


@pytest.mark.parametrize("mttf", ["1m", "20m"])
def test_a_job_that_fails_too_often_to_finish_has_no_price_and_says_why(mttf: str) -> None:
    run = run_file(recover={"node_mttf": mttf}, cluster={"usd_per_accelerator_hour": 3.0})
    found = forecast(run, None, None)
    assert found is not None and found.train_s is not None
    assert (found.finish_s, found.usd) == (None, None)
    asked = spec(time_limit_s=HOUR_S, node=NodeResources(accelerators=8))
    assert expected_cost(resolved_command(run_file=run, forecast=found), asked) is None
    assert "fails too often to finish: see `trainworks goodput`" in render_text(build_document(found)).replace(
        "\n", " "
    )


def test_the_scheduler_says_which_accelerator_is_meant() -> None:
    assert planned(Nodes("nvidia_a100-sxm4-40gb"), accelerators="A100:8").cluster == "4 nodes of 8x A100-SXM-40GB"
    assert planned(Nodes("nvidia_a100-sxm4-80gb"), accelerators="A100:8").cluster == "4 nodes of 8x A100-SXM-80GB"


def test_without_an_answer_the_run_file_says_it() -> None:
    assert planned(Nodes()).cluster == "4 nodes of 8x H100-SXM-80GB"


@pytest.mark.parametrize("changes", [{"accelerators": "Frobnicator:8"}, {"workload": {"precision": "fp4"}}])
def test_what_the_catalogue_lacks_is_planned_on_the_nodes_alone(changes: dict[str, Any]) -> None:
    assert forecast(run_file(**changes), None, Nodes("x")) is None


def test_a_job_without_accelerators_is_planned_on_the_nodes_alone() -> None:
    assert forecast(run_file().model_copy(update={"resources": None}), None, Nodes("h100")) is None


def test_a_model_that_fits_no_layout_is_refused_before_it_waits_in_a_queue() -> None:
    with pytest.raises(EnvironmentProblem, match="no layout fits 32 accelerators"):
        planned(
            workload={"model": {"layers": 80, "hidden": 32768, "heads": 64}},
            layout={"dp_shard": 32, "offload_optimizer": False},
        )


def test_a_layout_that_does_not_multiply_is_refused_before_it_waits_in_a_queue() -> None:
    with pytest.raises(LayoutError, match="world size is 32"):
        planned(layout={"tp": 8})


def test_epochs_have_no_duration_before_the_data_is_prepared() -> None:
    found = planned(workload={"train_for": "2 epochs"})
    assert (found.train_s, found.usd) == (None, None)


def cost(jobs: int = 1, *, time_limit_s: float | None = None, accelerators: int = 8, **of_run: Any) -> ExpectedCost:
    """Of a job on four nodes of eight accelerators."""
    asked = spec(time_limit_s=time_limit_s, node=NodeResources(accelerators=accelerators))
    found = expected_cost(resolved_command(**of_run), asked, jobs)
    assert found is not None
    return found


def command(engine: str = "slurm", usd: float | None = None, kind: str = "H100") -> RunFile:
    """A command that asks for four nodes of eight accelerators."""
    cluster = {"engine": engine, "nodes": 4} | ({"usd_per_accelerator_hour": usd} if usd else {})
    words = {"name": "x", "run": "true", "cluster": cluster, "resources": {"accelerators": f"{kind}:8"}}
    return RunFile.model_validate(words)


def test_the_cost_of_a_planned_job_is_the_interval_of_its_finish() -> None:
    for run in (run_file(), run_file(cluster={"usd_per_accelerator_hour": 3.0})):
        plan = forecast(run, None, None)
        assert plan is not None
        assert plan.usd is not None
        found = cost(run_file=run, forecast=plan, time_limit_s=1.0)
        assert plan.finish_s is not None
        low_s, median_s, high_s = plan.finish_s
        ends = (plan.usd * low_s / median_s, plan.usd * high_s / median_s)
        assert (found.low_usd, found.high_usd) == pytest.approx(ends)


def test_the_cost_of_a_run_on_this_machine_follows_its_plan_and_the_price_of_the_run_file() -> None:
    step = ExpectedStep(low_s=0.09, high_s=0.12, by_rate_s={}, learned_from=0)
    plan = make_plan(expected=step)  # 40 s with 300 steps of 100 ms
    found = cost(run_file=command("local", usd=2.0), plan=plan)
    assert (found.low_s, found.high_s) == pytest.approx((37.0, 46.0))
    assert found.high_usd == pytest.approx(32 * 2.0 * 46 / 3600)
    assert cost_text(found) == "0.66 USD to 0.82 USD (80 %): 32 accelerators at 2.00 USD an hour"


def test_a_command_costs_at_most_its_time_limit_by_its_own_price_or_that_of_the_catalogue() -> None:
    found = cost(run_file=command(usd=2.0), time_limit_s=HOUR_S)
    assert (found.low_usd, found.high_usd) == (None, 64.0)
    assert cost(3, run_file=command(usd=2.0), time_limit_s=HOUR_S).high_usd == 192.0
    offered = forecast(run_file(), None, None)
    assert offered is not None
    assert offered.usd is not None
    assert offered.finish_s is not None
    listed = offered.usd / offered.finish_s[1] * HOUR_S
    assert cost(run_file=command(), time_limit_s=HOUR_S).high_usd == pytest.approx(listed)


@pytest.mark.parametrize(
    ("run", "time_limit_s", "accelerators"),
    [
        (command(usd=2.0), None, 8),
        (command(usd=2.0), HOUR_S, 0),
        (command("local"), HOUR_S, 8),
        (command(kind="Frobnicator"), HOUR_S, 8),
    ],
    ids=["no time limit", "no accelerators", "no price on this machine", "no offer in the catalogue"],
)
def test_a_job_whose_cost_nothing_tells(run: RunFile, time_limit_s: float | None, accelerators: int) -> None:
    asked = spec(time_limit_s=time_limit_s, node=NodeResources(accelerators=accelerators))
    assert expected_cost(resolved_command(run_file=run), asked) is None
