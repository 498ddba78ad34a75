"""What is believed of a cluster: laws of the interval, and of what a measurement does to it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import JOBS, job, random_layouts
from trainworks.plan.coefficients import Slowdowns
from trainworks.plan.layouts import Array
from trainworks.plan.uncertainty import (
    EXPERTS_PRIOR,
    KINDS,
    PRIOR,
    RATES,
    Z80,
    Belief,
    Observation,
    believe,
    interval_s,
    parts_s,
    prior_of,
    selection_bias,
)

LLAMA = job()
MANY = parts_s(LLAMA, random_layouts(200, seed=3))
NOTHING = Belief.of(PRIOR)
FACTORS = st.floats(0.5, 1.4)
ROWS = st.integers(0, MANY.shape[1] - 1)
RATE = st.sampled_from(RATES)


def measured(index: int, factor: float, software: str | None = "this", spread: float = 0.0) -> Observation:
    """A layout that took so many times as long as predicted."""
    return Observation(MANY[:, index], factor * float(MANY[:, index].sum()), software, spread)


def after(*observations: Observation) -> Belief:
    return believe(observations, software="this")


def seconds(parts: Array, belief: Belief) -> float:
    return float(parts @ belief.factors)


def moved(index: int, belief: Belief) -> float:
    """Logarithm of the factor that was learned for a layout."""
    return float(np.log(seconds(MANY[:, index], belief) / MANY[:, index].sum()))


def width(index: int, belief: Belief = NOTHING) -> float:
    """Upper over lower end of the interval."""
    low, high = interval_s(MANY[:, [index]] * belief.factors[:, None], belief)
    return float((high / low)[0])


@pytest.mark.parametrize("name", JOBS)
def test_the_parts_of_the_rates_add_up_to_the_step_time(name: str) -> None:
    some = random_layouts(40, seed=5)
    assert parts_s(JOBS[name], some).sum(axis=0) == pytest.approx(JOBS[name].step_times(some).total_s)
    assert (parts_s(JOBS[name], some) >= 0).all()


def test_a_long_sequence_is_mostly_attention() -> None:
    shares = []
    for length in (2**11, 2**18):
        parts = parts_s(job(sequence_length=length), random_layouts(1))[:, 0]
        shares.append(parts[RATES.index("attention")] / parts.sum())
    assert shares[0] < 0.1
    assert shares[1] > 0.5


def test_before_any_measurement_nothing_is_slower() -> None:
    assert NOTHING.slowdowns == Slowdowns()
    assert believe([], software="this").slowdowns == Slowdowns()


def test_kernels_of_experts_are_known_less_well() -> None:
    assert prior_of(LLAMA) == PRIOR
    assert prior_of(JOBS["experts"]) == EXPERTS_PRIOR


@given(ROWS, FACTORS)
def test_an_interval_has_the_prediction_between_its_ends(index: int, factor: float) -> None:
    belief = after(measured(index, factor))
    parts = MANY * belief.factors[:, None]
    low, high = interval_s(parts, belief)
    assert ((low > 0) & (low < parts.sum(axis=0)) & (parts.sum(axis=0) < high)).all()


@given(st.floats(0.081, 1))
def test_software_that_is_less_known_widens_every_interval(deviation: float) -> None:
    less_known = Belief.of(replace(PRIOR, software=deviation))
    (low, high), (lower, higher) = interval_s(MANY, NOTHING), interval_s(MANY, less_known)
    assert (lower < low).all()
    assert (high < higher).all()


@given(times=st.lists(st.floats(1.0, 1.3), min_size=2, max_size=12))
def test_the_best_of_several_layouts_is_expected_to_be_slower_than_predicted(times: list[float]) -> None:
    bias = selection_bias(np.array(times), own=0.05)
    assert 0 < bias <= selection_bias(np.ones(len(times)), own=0.05) + 1e-9
    assert selection_bias(np.array([*times, 3.0]), own=0.05) == pytest.approx(bias, abs=1e-6)


def test_nothing_is_chosen_from_one_layout() -> None:
    assert selection_bias(np.array([3.0])) == 0.0


def test_the_correction_of_equal_layouts_is_their_expected_luckiest_error() -> None:
    luckiest = np.random.default_rng(1).normal(0, 0.05, (20_000, 10)).max(axis=1).mean()
    assert selection_bias(np.ones(10), own=0.05) == pytest.approx(luckiest, rel=0.02)


@pytest.mark.parametrize("spread", [0.0, 0.03, 0.06, 0.12])
def test_the_correction_takes_most_of_the_optimism_out_of_a_search(spread: float) -> None:
    """Layouts with known times are predicted with errors of 5 %, and the one that is predicted fastest is chosen."""
    random = np.random.default_rng(2)
    true = random.exponential(spread, (400, 10)) if spread else np.zeros((400, 10))
    errors = random.normal(0, 0.05, true.shape)
    chosen = (true - errors).argmin(axis=1)
    optimism = errors[np.arange(len(true)), chosen]
    corrections = [selection_bias(np.exp(predicted), own=0.05) for predicted in true - errors]
    left = float(np.mean(optimism - corrections))
    assert -0.002 < left < 0.4 * float(np.mean(optimism))


@given(ROWS, FACTORS)
def test_a_measurement_moves_the_prediction_towards_itself(index: int, factor: float) -> None:
    found = moved(index, after(measured(index, factor)))
    assert min(0, np.log(factor)) - 1e-9 <= found <= max(0, np.log(factor)) + 1e-9


@given(ROWS, FACTORS)
def test_a_measurement_never_widens_the_interval(index: int, factor: float) -> None:
    assert width(index, after(measured(index, factor))) < width(index) * (1 + 1e-9)


@given(ROWS)
def test_measuring_what_was_predicted_changes_no_mean(index: int) -> None:
    belief = after(measured(index, 1.0))
    assert np.allclose(belief.mean, 0, atol=1e-12)
    assert width(index, belief) < width(index)


@given(st.lists(st.tuples(ROWS, FACTORS), min_size=2, max_size=5))
def test_the_order_of_the_measurements_does_not_matter(rows: list[tuple[int, float]]) -> None:
    one, other = (after(*(measured(*row) for row in some)) for some in (rows, rows[::-1]))
    assert np.allclose(one.mean, other.mean, atol=1e-6)


@given(ROWS, FACTORS)
def test_the_same_measurement_again_and_again_is_believed_in_the_end(index: int, factor: float) -> None:
    belief = after(*[measured(index, factor)] * 60)
    assert seconds(MANY[:, index], belief) == pytest.approx(factor * MANY[:, index].sum(), rel=0.05)


@given(st.lists(st.tuples(ROWS, FACTORS), max_size=6))
def test_a_belief_stays_a_distribution(rows: list[tuple[int, float]]) -> None:
    belief = after(*(measured(*row) for row in rows))
    assert np.allclose(belief.covariance, belief.covariance.T)
    assert (np.linalg.eigvalsh(belief.covariance) > -1e-12).all()
    assert (np.diag(belief.covariance) <= np.diag(NOTHING.covariance) + 1e-12).all()


@given(ROWS, ROWS, FACTORS)
def test_a_slow_cluster_is_slow_for_other_layouts_too(one: int, other: int, factor: float) -> None:
    assert moved(other, after(measured(one, factor))) * (factor - 1) >= -1e-9


def test_a_measurement_that_is_far_off_counts_less() -> None:
    products = np.array([float(name == "products") for name in RATES])
    far, near = (after(Observation(products, f, "this")).factors[0] for f in (3.0, 1.1))
    assert np.log(far) / np.log(3.0) < 0.5 * np.log(near) / np.log(1.1)


@given(ROWS, FACTORS, st.floats(0.05, 1))
def test_a_disturbed_run_counts_less(index: int, factor: float, spread: float) -> None:
    quiet, disturbed = (abs(moved(index, after(measured(index, factor, spread=of)))) for of in (0.0, spread))
    assert disturbed <= quiet


def test_one_disturbed_run_does_not_spoil_what_three_others_agree_on() -> None:
    agreed, spoilt = after(*[measured(7, 1.1)] * 3), after(*[measured(7, 1.1)] * 3, measured(7, 3.0))
    assert moved(7, spoilt) == pytest.approx(moved(7, agreed), abs=0.03)


@given(ROWS, st.floats(1.1, 1.4))
def test_other_software_teaches_the_hardware_alone(index: int, factor: float) -> None:
    own, other = (moved(index, after(*[measured(index, factor, of)] * 3)) for of in ("this", "another"))
    assert 0 < other < own


def test_software_that_is_slow_everywhere_is_told_from_slow_hardware_by_another_that_is_not() -> None:
    both = [measured(index, 1.3) for index in (1, 50, 90)] + [measured(index, 1.0, "another") for index in (1, 50, 90)]
    programs = [np.exp(believe(both, software=of).mean[-1]) for of in ("this", "another")]
    assert programs[0] > 1.04
    assert programs[1] < 0.99


@given(RATE, FACTORS)
def test_a_benchmark_moves_its_rate_alone(rate: str, factor: float) -> None:
    only = np.array([float(name == rate) for name in RATES])
    mean = after(Observation(only, factor, None)).mean
    assert abs(mean[RATES.index(rate)]) <= abs(np.log(factor)) + 1e-12
    assert np.allclose(np.delete(mean, RATES.index(rate)), 0, atol=1e-12)


@given(RATE)
def test_a_benchmark_makes_its_rate_surer(rate: str) -> None:
    only = np.array([float(name == rate) for name in RATES])
    variances = np.diag(after(Observation(only, 1.0, None)).covariance)
    surer = variances < np.diag(NOTHING.covariance) - 1e-12
    assert surer.tolist() == [name == rate for name in (*RATES, "software")]


PLANNING = (Path(__file__).parents[2] / "docs" / "concepts" / "planning.md").read_text(encoding="utf-8")


def test_the_page_has_the_deviations_of_the_model() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \| [^|]+ \| ([0-9.]+ %[^|]*) \|$", PLANNING, re.MULTILINE))
    names = ("products", "attention", "memory", "host", "links inside", "links outside", "software", "noise")
    said = [float(rows[name].partition(" %")[0]) for name in names]
    assert said == pytest.approx([100 * each for each in (*PRIOR.rates, PRIOR.software, PRIOR.noise)])
    assert rows["noise"].endswith(f"with experts {100 * EXPERTS_PRIOR.noise:.0f} %")
    assert EXPERTS_PRIOR.software == PRIOR.software


def test_the_page_has_what_kinds_of_jobs_add_and_how_wide_an_interval_is() -> None:
    text = " ".join(PLANNING.split())
    added = re.search(
        r"8 bits add ([0-9.]+) %, PyTorch's own parallelism ([0-9.]+) %, 512 accelerators and more ([0-9.]+) % .+ "
        r"parts without an NVLink switch ([0-9.]+) %\..+ no source has gets ([0-9.]+) %",
        text,
    )
    assert added is not None
    assert [float(each) for each in added.groups()] == pytest.approx([100 * each for each in KINDS.values()])
    widths = re.search(r"products alone is predicted within (\d+) %, one of network alone within (\d+) %", text)
    assert widths is not None
    for said, rate in zip(widths.groups(), (PRIOR.rates[0], PRIOR.rates[5]), strict=True):
        spread = math.sqrt(rate**2 + PRIOR.software**2 + PRIOR.noise**2)
        assert 100 * math.expm1(Z80 * spread) == pytest.approx(float(said), abs=0.5)
