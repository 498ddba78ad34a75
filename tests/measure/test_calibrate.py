"""A machine is measured once, and then remembered."""

from __future__ import annotations

import os
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes import HOST
from trainworks.errors import EnvironmentProblem, MissingExtraError
from trainworks.measure.calibrate import calibrate, remembered
from trainworks.record.calibration import Calibration, CalibrationRequest

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="NOT TESTED: calibration; torch is not installed")
REQUEST = CalibrationRequest(
    device="cpu",
    precision="fp32",
    num_ranks=1,
    threads_per_rank=1,
    gemm_shapes=((64, 64, 64), (64, 128, 64), (64, 256, 64)),
    micro_batch=1,
    sequence_length=64,
    heads=2,
    head_dim=32,
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path]:
    """What this machine reaches, and the folder that remembers it."""
    cache = tmp_path_factory.mktemp("calibration")
    return calibrate(REQUEST, HOST, cache, environment={}), cache


def test_without_torch_the_hint_is_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError) as refused:
        calibrate(REQUEST, HOST.model_copy(update={"packages": {}}), tmp_path, environment={})
    assert refused.value.hint == "pip install 'trainworks[train]'"


@needs_torch
def test_every_rate_is_positive(measured: tuple[Calibration, Path]) -> None:
    calibration, _ = measured
    rates = calibration.model_dump(include={"attention_flops_per_s", "memory_bytes_per_s", "optimizer_params_per_s"})
    assert all(rate > 0 for rate in [*rates.values(), *(gemm.flops_per_s for gemm in calibration.gemms)])


@needs_torch
def test_the_products_are_those_that_were_asked_for(measured: tuple[Calibration, Path]) -> None:
    calibration, _ = measured
    assert tuple((gemm.m, gemm.n, gemm.k) for gemm in calibration.gemms) == REQUEST.gemm_shapes


@needs_torch
def test_a_measured_machine_is_remembered(measured: tuple[Calibration, Path]) -> None:
    calibration, cache, announced = *measured, list[str]()
    (known,) = cache.glob("*.json")
    marked = calibration.model_copy(update={"seconds": 1234.5})
    known.write_text(marked.model_dump_json())
    assert calibrate(REQUEST, HOST, cache, environment={}, announce=announced.append) == marked
    assert announced == [], "what is in the cache takes no time"


@needs_torch
@pytest.mark.parametrize(
    ("others", "load", "minutes", "times"),
    [
        (0.5, 0.1, 1, 1),
        (0.5, 3.0, 1, 0),
        (0.5, 3.0, 11, 1),
        (0.05, 0.0, 1, 0),
        (0.05, 3.0, 479, 0),
        (0.05, 0.0, 481, 1),
    ],
)
def test_rates_count_for_hours_and_those_beside_other_programs_for_minutes_and_while_they_run(
    others: float,
    load: float,
    minutes: int,
    times: int,
    measured: tuple[Calibration, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calibration, cache, announced = *measured, list[str]()
    (known,) = cache.glob("*.json")
    known.write_text(calibration.model_copy(update={"others_share": others}).model_dump_json())
    written = time.time() - minutes * 60
    os.utime(known, (written, written))
    monkeypatch.setattr("os.getloadavg", lambda: (load * 2, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    calibrate(REQUEST, HOST, cache, environment={}, announce=announced.append)
    assert len(announced) == times


@needs_torch
def test_a_failed_measurement_ends_with_its_reason(tmp_path: Path) -> None:
    request, announced = REQUEST.model_copy(update={"precision": "fp7"}), list[str]()
    with pytest.raises(EnvironmentProblem, match=r"the calibration of this machine failed: .+"):
        calibrate(request, HOST, tmp_path, environment={}, announce=announced.append)
    assert list(tmp_path.glob("*.json")) == []
    assert announced == ["measuring the rates of this machine, which takes some seconds; later plans use them again"]


def test_of_two_that_need_the_same_measurement_one_measures_and_the_other_waits_for_it(tmp_path: Path) -> None:
    begun, may_end, measured, answers = threading.Event(), threading.Event(), list[int](), list[CalibrationRequest]()

    def measure() -> CalibrationRequest:
        measured.append(1)
        begun.set()
        may_end.wait(60)
        return REQUEST

    def ask() -> None:
        answers.append(remembered(tmp_path / "known.json", CalibrationRequest, measure, again=False))

    both = [threading.Thread(target=ask) for _ in range(2)]
    both[0].start()
    assert begun.wait(60)
    both[1].start()
    both[1].join(0.2)
    may_end.set()
    for one in both:
        one.join()
    assert (measured, answers) == ([1], [REQUEST] * 2)
