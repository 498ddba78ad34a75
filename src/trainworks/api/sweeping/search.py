"""Searches of a sweep behind one interface: a grid, random points, and Optuna."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from trainworks.errors import MissingExtraError, UsageError
from trainworks.plan.sweeps.space import Choice, Dimension, Space, grid, random_point
from trainworks.record.sweeps.sweep import SweepTrial

if TYPE_CHECKING:
    import optuna

SearchName = Literal["grid", "random", "optuna"]


class Search(Protocol):
    """Proposes the settings of trials. The same trials before give the same proposal, in any process."""

    num_trials: int

    def propose(self, number: int, earlier: Sequence[SweepTrial]) -> dict[str, Any]:
        """Settings of the trial `number`, counted from 0, after the trials before it."""


class GridSearch:
    """Every combination of the values."""

    def __init__(self, space: Space) -> None:
        self._points = grid(space)
        self.num_trials = len(self._points)

    def propose(self, number: int, earlier: Sequence[SweepTrial]) -> dict[str, Any]:
        """The combination of this number."""
        return self._points[number]


class RandomSearch:
    """Independent draws."""

    def __init__(self, space: Space, num_trials: int, seed: int) -> None:
        self._space, self._seed = space, seed
        self.num_trials = num_trials

    def propose(self, number: int, earlier: Sequence[SweepTrial]) -> dict[str, Any]:
        """A draw that depends on the seed and the number alone."""
        return random_point(self._space, self._seed, number)


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator (TPE), which gets all earlier trials anew before each proposal.

    The record of the sweep is the only storage: a study in memory is made from it. Trials that run count as Optuna's
    running trials, so that those of one moment spread (`constant_liar`).

    Raises:
        MissingExtraError: Optuna is not installed.
    """

    def __init__(self, space: Space, num_trials: int, seed: int, *, maximize: bool) -> None:
        if importlib.util.find_spec("optuna") is None:
            raise MissingExtraError("optuna", "sweep")
        self._space, self._seed, self._maximize = space, seed, maximize
        self.num_trials = num_trials

    def propose(self, number: int, earlier: Sequence[SweepTrial]) -> dict[str, Any]:
        """What TPE proposes after the earlier trials, with a random state of this number."""
        import optuna  # noqa: PLC0415  # an extra

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():  # of constant_liar, which is marked as experimental since 2021
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=self._seed * 100_003 + number, constant_liar=True)
        study = optuna.create_study(direction="maximize" if self._maximize else "minimize", sampler=sampler)
        distributions = {key: _distribution(dimension) for key, dimension in self._space.items()}
        for trial in earlier:
            study.add_trial(_frozen(trial, distributions))
        return dict(study.ask(distributions).params)


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna import distributions  # noqa: PLC0415  # an extra

    if isinstance(dimension, Choice):
        return distributions.CategoricalDistribution(dimension.values)
    if dimension.whole:
        return distributions.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.is_log)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.is_log)


def _frozen(trial: SweepTrial, distributions: dict[str, Any]) -> optuna.trial.FrozenTrial:
    import optuna  # noqa: PLC0415  # an extra

    states = optuna.trial.TrialState
    known = {"succeeded": states.COMPLETE, "failed": states.FAIL, "pruned": states.FAIL}
    state = known.get(trial.state, states.RUNNING)
    if trial.state == "pruned" and trial.value is not None:
        state = states.COMPLETE  # its last value is worse than its end would have been, and worse than others
    value = trial.value if state is states.COMPLETE else None
    return optuna.trial.create_trial(params=trial.settings, distributions=distributions, value=value, state=state)


def make_search(name: SearchName, space: Space, *, num_trials: int | None, seed: int, maximize: bool) -> Search:
    """The search of a sweep.

    Raises:
        UsageError: a grid over a range, or a search without a number of trials.
        MissingExtraError: Optuna is not installed.
    """
    if name == "grid":
        return GridSearch(space)
    if num_trials is None or num_trials < 1:
        raise UsageError(f"a {name} search needs a number of trials of at least 1")
    if name == "random":
        return RandomSearch(space, num_trials, seed)
    return OptunaSearch(space, num_trials, seed, maximize=maximize)
