"""The best plan of a workload on any cluster that a proposal asks about, each planned once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from trainworks.api.cluster_plan import ClusterPlan, plan_cluster
from trainworks.api.planned_model import planned_model
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.load import Source
from trainworks.config.run_file import Goal, RunFile
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.sizing.fabric_choice import FabricOption, PlannedFabric, fabric_options

__all__ = ["Plans", "smallest", "smallest_power"]

_ON_THE_ACCELERATOR = {"offload": 0, "offload_optimizer": 0}
"""Nobody buys accelerators that hold a workload only with the host's memory."""


class Plans:
    """Plans of one workload; a cluster on which nothing fits has none, and a reason.

    Args:
        run_file: with a workload; its cluster and its goal are replaced.
        source: where its fields stand.

    Raises:
        TrainworksError: no cluster can mend the run file; an unknown preset, for one.
    """

    def __init__(self, run_file: RunFile, source: Source | None) -> None:
        self._model = planned_model(run_file, source)
        self._run_file = run_file.model_copy(update={"goal": Goal()})
        self._source = source
        self._known: dict[str, ClusterPlan | str] = {}

    @property
    def flops(self) -> float | None:
        """Of the whole run, forward and backward; None before anything was planned."""
        plan = next((found for found in self._known.values() if not isinstance(found, str)), None)
        return None if plan is None else plan.steps * plan.global_batch * plan.job.flops_per_sequence

    def on(self, text: str) -> ClusterPlan | None:
        """The plan on the cluster that the text describes, or None where nothing fits or divides."""
        found = self._on(text)
        return None if isinstance(found, str) else found

    def exactly(self, text: str) -> ClusterPlan:
        """The plan on that very cluster, with its own name and nodes.

        Raises:
            UsageError: it cannot be.
            EnvironmentProblem: nothing fits.
        """
        cluster = self._run_file.cluster.model_copy(update={"engine": "described", "of": text})
        run_file = self._run_file.model_copy(update={"cluster": cluster})
        return plan_cluster(run_file, self._source, fixed=_ON_THE_ACCELERATOR, model=self._model, advise=False)

    def why_not(self, text: str) -> str:
        """Why there is no plan on that cluster; empty where there is one."""
        found = self._on(text)
        return found if isinstance(found, str) else ""

    def _on(self, text: str) -> ClusterPlan | str:
        """Nodes that differ in nothing that a plan looks at have one plan."""
        alike = str(parse_cluster(text).model_dump(exclude={"name", "node", "notes"}))
        if alike not in self._known:
            self._known[alike] = self._search(text)
        return self._known[alike]

    def _search(self, text: str) -> ClusterPlan | str:
        try:
            return self.exactly(text)
        except (EnvironmentProblem, UsageError) as error:
            return error.message

    def fabrics(self, num_nodes: int, node: str, plan: ClusterPlan) -> list[PlannedFabric]:
        """The same nodes with leaner and better networks; those on which nothing fits are left out."""
        options = fabric_options(plan.job.cluster)
        planned = [(option, self.on(_over(num_nodes, node, option))) for option in options]
        return [PlannedFabric(option, found.best[0]) for option, found in planned if found is not None]


def _over(num_nodes: int, node: str, option: FabricOption) -> str:
    return f"{num_nodes} nodes of {node.partition(' over ')[0]} over {option.over}"


def smallest(largest: int, enough: Callable[[int], bool]) -> int | None:
    """The smallest of 1, 2, 3, 4, 6, 8, 12 ... that is enough; None where no power of two up to the largest is.

    The count between the last two powers is tried last, because batches do not always divide by three.
    """
    power = smallest_power(largest, enough)
    if power is None or power < 4:
        return power
    return 3 * power // 4 if enough(3 * power // 4) else power


def smallest_power(largest: int, enough: Callable[[int], bool]) -> int | None:
    """The smallest power of two that is enough, by halves: what is enough is taken to stay enough with more."""
    powers = [1 << shift for shift in range(largest.bit_length())]
    index = bisect_left(powers, True, key=enough)
    return powers[index] if index < len(powers) else None
