"""A term has one name in the plan, the record and the report."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

from trainworks.plan.memory import Memories
from trainworks.record.memory import MemoryAtFailure, MemoryTerms
from trainworks.record.metrics import MetricsRow
from trainworks.record.step_time import StepTimeGroups

SHARED = {field.name for field in fields(Memories)} - {"stage", "cached_bytes"}
"""Terms of memory that both a described cluster and this machine have."""


def test_a_planned_group_of_the_step_time_is_measured_under_its_name() -> None:
    assert set(StepTimeGroups.model_fields) < set(get_type_hints(MetricsRow))


def test_the_measured_groups_of_a_step_are_the_planned_ones_and_what_no_plan_has() -> None:
    measured = {name for name in get_type_hints(MetricsRow) if name.endswith("_s")} - {"step_s"}
    assert measured - set(StepTimeGroups.model_fields) == {"checkpoint_s", "evaluation_s", "callback_s", "other_s"}


def test_a_term_of_memory_has_the_same_name_on_a_described_cluster_and_on_this_machine() -> None:
    assert set(MemoryTerms.model_fields) - {"checkpoint_bytes"} == SHARED


def test_memory_measured_at_a_failure_has_the_names_of_the_plan() -> None:
    totals = {"peak_bytes", "held_bytes", "requested_bytes", "free_bytes", "reserved_bytes"}
    assert {name for name in MemoryAtFailure.model_fields if name.endswith("_bytes")} - totals <= SHARED
