"""Plans of one workload on any cluster that a sizing considers, each planned once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from trainworks.api.planning.described import decisions, plan_cluster, planned_model, workload_of
from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.layout import Layout
from trainworks.config.recovery import Goal
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.search import any_fits
from trainworks.plan.sizing.fabric_choice import PlannedFabric, fabric_options
from trainworks.plan.space import Space

_WITHOUT_OFFLOADING = {"offload": 0, "offload_optimizer": 0}


class PlanCache:
    """Plans of one workload by cluster; a cluster on which nothing fits has a reason instead.

    A sizing buys accelerators that hold the workload without offloading. The cluster and the goal of its run file are
    replaced. `learning`: stored measurements correct the plans.

    Raises:
        TrainworksError: the workload cannot be planned on any cluster, such as one with an unknown preset.
    """

    def __init__(self, run_file: RunFile, source: Source | None, *, learning: bool = True) -> None:
        self._learning = learning
        self._model = planned_model(run_file, source)
        self._run_file = run_file.model_copy(update={"goal": Goal()})
        self._source = source
        self._plans: dict[str, ClusterPlan | EnvironmentProblem | UsageError] = {}

    def flops(self, cluster: ClusterDescription) -> float:
        """FLOPs of the whole run, forward and backward; every cluster takes as many."""
        workload = workload_of(self._run_file)
        job = self._model.job(workload, cluster, {})
        return self._model.steps * workload.global_batch * job.flops_per_sequence

    def on(self, cluster: ClusterDescription) -> ClusterPlan | None:
        """The plan on a cluster of the same hardware under any name; None where nothing fits or divides."""
        plan = self._plan(cluster)
        return plan if isinstance(plan, ClusterPlan) else None

    def is_too_large(self, cluster: ClusterDescription) -> bool:
        """Whether the batch and the model do not divide among so many accelerators; unknown with a written layout."""
        if self._run_file.layout is not None:
            return False
        try:
            return not any(map(len, self._usual(cluster).layouts(lambda reason, mesh: None)))
        except UsageError:  # more layouts than a plan compares
            return True

    def holds(self, cluster: ClusterDescription) -> bool:
        """Whether a layout fits into the memory of a cluster; quicker than its plan."""
        try:
            return any_fits(self._usual(cluster))
        except UsageError:  # the layout does not divide, or leaves too much open
            return False

    def _usual(self, cluster: ClusterDescription) -> Space:
        workload = workload_of(self._run_file)
        fixed = {**decisions(self._run_file.layout, workload, cluster), **_WITHOUT_OFFLOADING}
        job = self._model.job(workload, cluster, fixed)
        return Space(job, cluster.num_accelerators, workload.global_batch, fixed, usual=True)

    def why_not(self, cluster: ClusterDescription) -> str:
        """The reason why a cluster has no plan; empty if it has one."""
        plan = self._plan(cluster)
        return "" if isinstance(plan, ClusterPlan) else plan.message

    def exactly(self, cluster: ClusterDescription) -> ClusterPlan:
        """The plan on a cluster, with its own name and nodes.

        Raises:
            UsageError: the workload does not divide.
            EnvironmentProblem: nothing fits.
        """
        return self._planned(cluster)

    def fabrics(self, cluster: ClusterDescription) -> list[PlannedFabric]:
        """The same nodes with leaner and better networks; those on which nothing fits are left out.

        A search takes a plain layout that is slower by up to a few percent. Where the layout of a leaner network is
        faster than that, a better one takes it, too.
        """
        found: list[PlannedFabric] = []
        for option in fabric_options(cluster):
            fitted = cluster.with_fabric(option.fabric)
            plan = self.on(fitted)
            if plan is None:
                continue
            best = plan.best[0]
            if found and found[-1].best.step_time_s < best.step_time_s:
                again = self._planned(fitted, found[-1].best.chosen_layout).best[0]
                best = min(best, again, key=lambda each: each.step_time_s)
            found.append(PlannedFabric(option, best))
        return found

    def _planned(self, cluster: ClusterDescription, layout: Layout | None = None) -> ClusterPlan:
        return plan_cluster(
            self._run_file,
            self._source,
            cluster=cluster,
            layout=layout,
            fixed=_WITHOUT_OFFLOADING,
            model=self._model,
            advise=False,
            learning=self._learning,
        )

    def _plan(self, cluster: ClusterDescription) -> ClusterPlan | EnvironmentProblem | UsageError:
        key = cluster.same_hardware()
        if key not in self._plans:
            try:
                self._plans[key] = self.exactly(cluster)
            except (EnvironmentProblem, UsageError) as error:
                self._plans[key] = error
        return self._plans[key]


def smallest(
    largest: int, enough: Callable[[int], bool], *, too_many: Callable[[int], bool] = lambda count: False
) -> int | None:
    """The smallest of 1, 2, 3, 4, 6, 8, 12 ... up to the largest that is enough; None where none is.

    A count between two powers of two comes after them, because batches do not always divide by three.

    Args:
        largest: count to consider.
        enough: whether a count is enough; of two counts that are not too many, the larger is if the smaller is.
        too_many: whether a count, and every larger one, is too many for the work.

    >>> smallest(1024, lambda count: 2 <= count < 16, too_many=lambda count: count >= 16)
    2
    >>> smallest(7, lambda count: count >= 5)
    6
    """
    power = smallest_power(largest, lambda count: enough(count) or too_many(count)) or 2 * powers(largest)[-1]
    between = 3 * power // 4
    if power >= 4 and between <= largest and enough(between):
        return between
    return power if power <= largest and enough(power) else None


def powers(largest: int) -> list[int]:
    """The powers of two up to the largest, ascending."""
    return [1 << shift for shift in range(largest.bit_length())]


def smallest_power(largest: int, enough: Callable[[int], bool]) -> int | None:
    """The smallest power of two that is enough, by bisection: more is taken to be enough, too."""
    counts = powers(largest)
    index = bisect_left(counts, True, key=enough)
    return counts[index] if index < len(counts) else None
