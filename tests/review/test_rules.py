"""Every rule finds its own example, is silent on the corrected one, and has a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainworks.review import rules
from trainworks.review.check import check_text
from trainworks.review.registry import DOMAINS, RULES
from trainworks.review.rule import ReviewRule

EVERY = tuple(RULES.values())


@pytest.mark.parametrize("rule", EVERY, ids=RULES)
def test_a_rule_finds_its_example_and_no_other_does(rule: ReviewRule) -> None:
    assert {finding.rule for finding in check_text(rule.bad, EVERY, name=rule.file)} == {rule.id}


def test_every_rule_has_an_id_of_its_own() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(rules.__path__[0]).glob("*.[py]*")))
    assert sorted(re.findall(r'^(?:    ")?(TW\d{3})(?:",|:)$', sources, re.MULTILINE)) == list(RULES)


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


_STEP = "    model(batch).backward()\n"


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (f"for batch in loader:\n{_STEP}    torch.cuda.empty_cache()\n", [4]),
        ("while True:\n    accelerator.backward(loss)\n    torch.cuda.memory.empty_cache()\n", [4]),
        (f"from torch.cuda import empty_cache as free\nfor batch in loader:\n    free()\n{_STEP}", [4]),
        (f"for batch in loader:\n{_STEP}    if torch.cuda.is_available():\n        torch.cuda.empty_cache()\n", [5]),
        (f"for batch in loader:\n{_STEP}    if device.type == 'cuda':\n        torch.cuda.empty_cache()\n", [5]),
        (
            "class Trainer:\n  def fit(self):\n    for batch in self.loader:\n      self.step(batch)\n"
            "  def step(self, batch):\n    self.model(batch).backward()\n    torch.cuda.empty_cache()\n",
            [8],
        ),
    ],
    ids=["for", "while", "imported by another name", "on a GPU", "on a device", "function of the step"],
)
def test_a_cache_that_each_step_empties_is_found(code: str, lines: list[int]) -> None:
    assert [each.line for each in check_text(f"import torch\n{code}", [RULES["TW605"]], name="train.py")] == lines


@pytest.mark.parametrize(
    "code",
    [
        f"torch.cuda.empty_cache()\nfor batch in loader:\n{_STEP}torch.cuda.empty_cache()\n",
        f"for batch in loader:\n{_STEP}else:\n    torch.cuda.empty_cache()\n",
        "for epoch in range(3):\n    for batch in loader:\n        model(batch).backward()\n"
        "    torch.cuda.empty_cache()\n",
        f"for batch in loader:\n{_STEP}for batch in held_out:\n    model(batch)\n    torch.cuda.empty_cache()\n",
        f"for batch in loader:\n{_STEP}    for held in held_out:\n        torch.cuda.empty_cache()\n",
        f"for batch in loader:\n{_STEP}    model.empty_cache()\n    cuda.empty_cache()\n    self.kv().empty_cache()\n",
        f"from vendor import cuda\nfor batch in loader:\n{_STEP}    cuda.empty_cache()\n",
        f"for n, batch in enumerate(loader):\n{_STEP}    if n % 100 == 0:\n        torch.cuda.empty_cache()\n",
        "for batch in loader:\n    try:\n        model(batch).backward()\n"
        "    except torch.cuda.OutOfMemoryError:\n        torch.cuda.empty_cache()\n",
        f"for batch in loader:\n{_STEP}    def free():\n        torch.cuda.empty_cache()\n",
        "def once(batch):\n    model(batch).backward()\n    torch.cuda.empty_cache()\nonce(batch)\n",
    ],
    ids=[
        "outside the loop", "else of the loop", "once an epoch", "loop of an evaluation", "evaluation in the loop",
        "method of another object", "module of another package", "now and then", "out of memory", "another function",
        "function that no loop calls",
    ],
)  # fmt: skip
def test_a_cache_that_is_emptied_otherwise_is_left_alone(code: str) -> None:
    assert check_text(f"import torch\n{code}", [RULES["TW605"]], name="train.py") == []
