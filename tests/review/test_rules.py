"""Every rule finds its own example, is silent on the corrected one, and has a source."""

from __future__ import annotations

import re

import pytest

from trainworks.review.check import check_text
from trainworks.review.registry import DOMAINS, RULES
from trainworks.review.rule import ReviewRule

EVERY = tuple(RULES.values())


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_a_rule_finds_its_example_and_no_other_does(rule: ReviewRule) -> None:
    assert {finding.rule for finding in check_text(rule.bad, EVERY, name=rule.file)} == {rule.id}


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_all_rules_are_silent_on_a_corrected_example(rule: ReviewRule) -> None:
    assert check_text(rule.good, EVERY, name=rule.file) == []


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_a_finding_points_into_its_file(rule: ReviewRule) -> None:
    lines = rule.bad.split("\n")
    for finding in check_text(rule.bad, [rule], name=rule.file):
        assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_a_rule_has_a_domain_a_source_and_whole_sentences(rule: ReviewRule) -> None:
    assert rule.id[:3] in DOMAINS
    assert re.match("https://|trainworks catalog show ", rule.source)
    assert rule.why.endswith(".")
    assert rule.fix.rstrip("`'\"").endswith((".", "...", ")"))


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_file_that_breaks_off_is_read(rule: ReviewRule, share: float) -> None:
    for finding in check_text(rule.bad[: int(share * len(rule.bad))], EVERY, name=rule.file):
        assert finding.line >= 1


@pytest.mark.parametrize(
    "text",
    [
        "DataLoader 用多进程, 而不是多线程加载\n",
        "A DataLoader does not read data with several threads.\n",
        "优化器状态: `torch.save(model.state_dict(), 'a.pt'); torch.save(optimizer.state_dict(), 'b.pt')`\n",
        "激活检查点与激活卸载 (把激活放到 CPU)\n",
    ],
)
def test_prose_that_denies_a_mistake_is_not_one(text: str) -> None:
    assert check_text(text, EVERY, name="guide.md") == []


_TORCHRUN = "docker run {} pytorch/pytorch torchrun --nproc-per-node=8 train.py\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--gpus all", "neither"),
        ("--gpus=all --shm-size=64m", "`--shm-size=64m` is less than 1 GiB"),
        ("--gpus all --shm-size 512MB", "`--shm-size=512MB` is less than 1 GiB"),
        ("--gpus all --shm-size=8g", None),
        ("--gpus all --shm-size=1073741824", None),
        ("--gpus all -v /dev/shm:/dev/shm", None),
        ("", None),
    ],
)
def test_a_container_has_shared_memory_for_its_workers(options: str, says: str | None) -> None:
    found = [each.message for each in check_text(_TORCHRUN.format(options), [RULES["TW404"]], name="run.sh")]
    assert found == [] if says is None else len(found) == 1 and says in found[0]


@pytest.mark.parametrize(
    ("kind", "program", "found"), [("Job", "torchrun", 1), ("Pod", "torchrun", 1), ("Job", "nvidia-smi", 0)]
)
def test_a_pod_that_runs_torchrun_has_shared_memory(kind: str, program: str, found: int) -> None:
    container = f"command: [{program}]\n    resources: {{limits: {{nvidia.com/gpu: 8}}}}"
    pod = f"kind: {kind}\nspec:\n  containers:\n  - {container}\n"
    assert len(check_text(pod, [RULES["TW403"]], name="job.yaml")) == found
