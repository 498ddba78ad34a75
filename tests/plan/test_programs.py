"""Programs that nobody names: what is said is certain, the median is robust, and the interval covers them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import JOBS, job, known, layouts
from trainworks.catalog.catalog import accelerator
from trainworks.config.software import TrainingSoftware, family_of, years_of
from trainworks.plan.layouts import Layouts
from trainworks.plan.programs import (
    Shown,
    describe_programs,
    mixture_nearness,
    mixture_quantile,
    mixture_spread,
    normalised,
    planned_programs,
    programs,
)
from trainworks.plan.software import Software, planned_software
from trainworks.plan.uncertainty import prior_of

PRECISIONS = ("bf16", "fp16", "fp8", "fp4", "fp32")
LLAMA, NOBODY = job(), planned_software(None, compiled=None)
GPUS = ("V100-SXM2-32GB", "A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB", "MI300X-192GB", "TPU-v5e")


def shown(gpu: str = "H100-SXM-80GB", precision: str = "bf16", **said: int) -> Shown:
    more = {"is_split": False, "is_sharded": True, **said}
    return Shown(precision, accelerator(gpu), **more)  # type: ignore[arg-type]


@given(
    st.sampled_from(GPUS), st.sampled_from(PRECISIONS), st.booleans(), st.booleans(), st.sampled_from([0, 2023, 2025])
)
def test_shares_add_up_to_one_and_no_program_is_twice(
    gpu: str, precision: str, is_split: bool, is_sharded: bool, first: int
) -> None:
    found = programs(shown(gpu, precision, is_split=is_split, is_sharded=is_sharded, first_year=first))
    shares = [share for _, share in found]
    assert sum(shares) == pytest.approx(1) and min(shares) > 0
    assert shares == sorted(shares, reverse=True)
    assert len({software for software, _ in found}) == len(found)


@pytest.mark.parametrize("framework", ["Megatron-LM 2024", "MaxText 2025", "PyTorch 2022", "Nanotron 2024"])
def test_a_program_that_is_named_with_its_year_is_certain(framework: str) -> None:
    assert programs(shown(), framework, compiled=False) == ((Software.of(framework, compiled=False), 1.0),)


def test_a_present_pytorch_program_may_be_compiled_or_not() -> None:
    found = programs(shown(), "PyTorch 2025")
    assert {software.fused_kernels: share for software, share in found} == {True: 0.5, False: 0.5}
    assert len(programs(shown(), "PyTorch 2025", compiled=True)) == 1


def test_attention_of_hugging_face_s_models_may_get_its_mask_as_an_array() -> None:
    def kernels(program: str, **said: str) -> dict[str, float]:
        seen = Shown.of(LLAMA.shape, "bf16", accelerator("A100-SXM-80GB"), {}, program=program)
        found = programs(seen, program, compiled=False, **said)  # type: ignore[arg-type]
        return {software.attention: share for software, share in found}

    for program in ("Hugging Face 2024", "DeepSpeed 2025"):
        assert kernels(program) == {"flash-2": 0.5, "efficient": 0.5}
    for program in ("XTuner DeepSpeed 2024", "PyTorch FSDP 2024"):
        assert kernels(program) == {"flash-2": 1.0}
    assert kernels("Hugging Face 2024", attention="flash-2") == {"flash-2": 1.0}


def test_programs_are_described_by_name_and_share() -> None:
    found = ((Software.of("PyTorch 2025", compiled=True), 0.7), (Software.of("Megatron-LM"), 0.3))
    assert describe_programs(found) == "assumed: PyTorch 2025 compiled 70 %, Megatron-LM 30 %"


def test_the_kernel_that_is_said_is_that_of_every_program() -> None:
    assert {software.attention for software, _ in programs(shown(), attention="flash-3")} == {"flash-3"}


def test_old_programs_are_those_of_old_parts_and_precisions() -> None:
    def unfused(**said: object) -> float:
        found = programs(shown(**said), "Megatron-LM")  # type: ignore[arg-type]
        return sum(share for software, share in found if not software.fused_attention)

    assert unfused(gpu="V100-SXM2-32GB", precision="fp16") == 0.75
    assert 0.1 < unfused(gpu="A100-SXM-80GB") < 0.4
    assert unfused(gpu="A100-SXM-80GB", first_year=2023) == unfused(gpu="B200-SXM-180GB") == 0
    assert unfused(gpu="A100-SXM-80GB", last_year=2021) == 1


@pytest.mark.parametrize(
    ("degrees", "family", "share"),
    [({}, "megatron", 0.5), ({"tp": 8, "pp": 4}, "megatron", 0.65), ({"zero": 3}, "torch", 0.75)],
)
def test_a_plan_weighs_what_its_layout_shows(degrees: dict[str, int], family: str, share: float) -> None:
    llama = Shown.of(LLAMA.shape, "bf16", accelerator("A100-SXM-80GB"), degrees, model="llama3-8b")
    found = planned_programs(NOBODY, llama)
    assert sum(each for software, each in found if software.framework == family) == pytest.approx(share)


def test_a_plan_is_for_programs_of_its_own_year_on_old_accelerators_and_for_old_models_too() -> None:
    shown = Shown.of(known("gpt3-175b"), "fp16", accelerator("A100-SXM-80GB"), {})
    assert all(software.fused_attention for software, _ in planned_programs(NOBODY, shown))
    assert not all(software.fused_attention for software, _ in programs(shown))


def test_a_program_that_is_named_without_its_year_is_of_the_present() -> None:
    named = planned_software(TrainingSoftware(framework="PyTorch FSDP"), compiled=None)
    shown = Shown.of(known("gpt3-175b"), "bf16", accelerator("A100-SXM-80GB"), {}, program=named.name)
    assert {software.overlap for software, _ in planned_programs(named, shown)} == {True}


def test_the_memory_of_a_mixture_is_that_of_the_program_that_its_layout_shows() -> None:
    few, many = Software.of("Megatron-LM"), Software.of("PyTorch 2025")
    open_job = replace(LLAMA, software=few, programs=normalised([(few, 0.5), (many, 0.5)]))
    some = layouts(dp=8, dp_shard=8, zero=3)
    used = [
        float(each.memories(some).allocated_bytes[0])
        for each in (open_job, replace(open_job, keeps=many), replace(LLAMA, software=many))
    ]
    assert used[0] < used[1] == used[2]


def test_a_tpu_runs_jax_and_8_bits_are_of_today() -> None:
    assert {software.framework for software, _ in programs(shown("TPU-v5e"))} == {"jax"}
    assert all(software.overlap for software, _ in programs(shown("H100-SXM-80GB", "fp8", is_split=True)))


@pytest.mark.parametrize(
    ("text", "years"),
    [
        ("our own loop", (0, 9999)),
        ("pytorch/torchtitan at 7a04053", (2024, 9999)),
        ("Korthikanti et al. 2022 (arXiv:2205.05198)", (0, 2022)),
        ("NeMo 25.09", (0, 2025)),
        ("PyTorch 2.6, arXiv:2104.04473", (2023, 2023)),
        ("llm-foundry, 512 to 2048 tokens", (2023, 9999)),
    ],
)
def test_years_are_those_that_a_text_allows(text: str, years: tuple[int, int]) -> None:
    assert years_of(text) == years


def test_fsdp_names_no_program() -> None:
    assert family_of("PyTorch FSDP2") == "torch"
    assert family_of("foundation-model-stack/fms-fsdp") == "fms"


LOGS = st.lists(st.floats(-3, 3), min_size=1, max_size=6)


@given(LOGS, st.data())
def test_the_median_lies_between_the_programs_and_quantiles_are_in_order(
    logs: list[float], data: st.DataObject
) -> None:
    weights = data.draw(st.lists(st.floats(0.05, 1), min_size=len(logs), max_size=len(logs)))
    shares, centres = [weight / sum(weights) for weight in weights], np.array(logs)[:, None]
    low, middle, high = (float(mixture_quantile(centres, shares, part)[0]) for part in (0.1, 0.5, 0.9))
    assert low < middle < high
    assert min(logs) - 1e-6 <= middle <= max(logs) + 1e-6
    assert mixture_nearness(centres, shares, np.array([middle])).sum() == pytest.approx(1)
    assert 0 <= mixture_spread(centres, shares)[0] <= (max(logs) - min(logs)) / 2 + 0.2


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_the_part_of_the_mixture_below_a_quantile_is_that_part(count: int, part: float) -> None:
    random = np.random.default_rng(count)
    for shares in random.dirichlet(np.ones(count), size=20):
        centres = random.uniform(0, math.log(10), size=(count, 4000))
        below = 1 / (1 + np.exp((centres - mixture_quantile(centres, shares, part)) / 0.06))
        assert shares @ below == pytest.approx(part, abs=1e-9)


def test_a_quantile_does_not_depend_on_those_beside_it() -> None:
    centres = np.random.default_rng(7).uniform(0, 1, size=(3, 200))
    together = mixture_quantile(centres, [0.5, 0.3, 0.2], 0.5)
    alone = [mixture_quantile(centres[:, [at]], [0.5, 0.3, 0.2], 0.5)[0] for at in range(200)]
    assert together.tolist() == alone


def test_one_program_has_its_own_time_and_no_spread() -> None:
    assert mixture_quantile(np.array([[1.5]]), [1.0], 0.5)[0] == pytest.approx(1.5)
    assert mixture_spread(np.array([[1.5], [1.5]]), [0.3, 0.7])[0] == pytest.approx(0, abs=1e-3)


def test_a_slow_program_that_is_unlikely_moves_the_median_little() -> None:
    times = np.log([[1.0], [5.0]])
    assert math.exp(mixture_quantile(times, [0.9, 0.1], 0.5)[0]) < 1.03


def test_a_job_of_several_programs_takes_their_median_and_is_known_less_well() -> None:
    known, some = JOBS["dense"], Layouts.of(global_batch=256, dp=4, tp=2, pp=1, micro_batch=1)
    old, new = (Software.of("Megatron-LM", year=year) for year in (2021, 2025))
    open_job = replace(known, programs=normalised([(old, 0.4), (new, 0.6)]))
    slow, fast = (replace(known, software=each).step_times(some).total_s[0] for each in (old, new))
    times = open_job.step_times(some)
    assert fast < times.total_s[0] < slow
    assert sum(times.terms(0).model_dump().values()) == pytest.approx(times.total_s[0])
    assert prior_of(open_job, some).software > prior_of(known, some).software
    alone = replace(known, programs=((old, 1.0),))
    assert alone.step_times(some).total_s[0] == pytest.approx(slow, rel=1e-6)
