"""Writes the measured tables of RESULTS.md and of the README from `benchmarks/results/*.json`.

    python benchmarks/publish.py            writes them
    python benchmarks/publish.py --check    says which file is out of date; exit code 1

Each result file is what one benchmark wrote with `--json`, so a figure on both pages comes from one run.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["PAGES", "main", "published"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "benchmarks" / "RESULTS.md", ROOT / "README.md")
NAMES = {
    "bare": "bare PyTorch loop",
    "bare_default_malloc": "bare PyTorch loop, glibc's default malloc settings",
    "accelerate": "accelerate",
    "fabric": "Lightning Fabric",
    "hf_trainer": "Hugging Face Trainer",
}


def main() -> int:
    """Write the pages, or check them; the exit code."""
    stale = [page for page in PAGES if published(page) != page.read_text(encoding="utf-8")]
    if "--check" in sys.argv[1:]:
        for page in stale:
            print(f"{page.relative_to(ROOT)} is out of date; run: python benchmarks/publish.py", file=sys.stderr)
        return int(bool(stale))
    for page in stale:
        page.write_text(published(page), encoding="utf-8")
    return 0


def published(page: Path) -> str:
    """The page with every region `<!-- results: NAME -->` ... `<!-- end -->` written anew."""
    text = page.read_text(encoding="utf-8")
    region = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return region.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def result(name: str) -> dict[str, Any]:
    """What a benchmark measured."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def throughput(name: str) -> str:
    """Tokens per second of every contender of one model, and the ratios."""
    found = result(name)
    (contenders,) = found["models"].values()
    rows = [
        ["contender", "tokens/s", "ms/step", "trainworks / contender"],
        *(_contender(contender, outcome) for contender, outcome in contenders.items()),
    ]
    return _measured_by(found, f"{found['rounds']} rounds") + _table(rows)


def _contender(name: str, outcome: dict[str, Any]) -> list[str]:
    speeds, steps = ([one[key] for one in outcome["results"]] for key in ("tokens_per_s", "step_s_median"))
    ratio = "" if name == "trainworks" else _ratio(outcome["ratios"])
    return [NAMES.get(name, name), f"{median(speeds):,.0f}", f"{median(steps) * 1e3:.1f}", ratio]


def stall() -> str:
    """How long the loop stands still for a checkpoint."""
    found = result("checkpoint_stall")
    undisturbed = median(found["total_s"]["none"])
    rows = [["", "the loop stands still", "of `dcp.save`", "costs in all"]]
    for name, stalls in found["stall_s"].items():
        if name != "none":
            cost_ms = (median(found["total_s"][name]) - undisturbed) * 1e3
            rows.append([name, f"{median(stalls) * 1e3:,.0f} ms", f"{_of_save(found, name):.3f}", f"{cost_ms:,.0f} ms"])
    rounds = len(found["stall_s"]["none"])
    return _measured_by(found, f"{rounds} rounds") + _table(rows)


def _of_save(found: dict[str, Any], name: str) -> float:
    return median(found["stall_s"][name]) / median(found["stall_s"]["dcp.save"])


def startup() -> str:
    """From the command to the end of the first training step."""
    found = result("startup")
    rows = [
        ["", "seconds"],
        ["bare `torchrun`", _spread(found["bare_s"])],
        ["`trainworks run`, warm", _spread(found["warm_s"])],
        ["`trainworks run`, first ever (tokenizing, calibration)", f"{found['cold_s']:.1f}, one run"],
        ["ratio, warm", _ratio(found["ratios"])],
    ]
    return _measured_by(found, f"{len(found['warm_s'])} rounds") + _table(rows)


def headline() -> str:
    """The ratios of the README."""
    tiny, compute = (result(f"throughput_{model}")["models"][model] for model in ("tiny", "compute"))
    others = [median(tiny[name]["ratios"]) for name in ("accelerate", "fabric", "hf_trainer")]
    saves = result("checkpoint_stall")
    rows = [
        ["Trainworks over", "tiny model", "compute-bound model"],
        ["a bare PyTorch loop, tokens/s", *(f"{median(of['bare']['ratios']):.2f}" for of in (tiny, compute))],
        [
            "accelerate / Lightning Fabric / Hugging Face Trainer, tokens/s",
            " / ".join(f"{one:.2f}" for one in others),
            "",
        ],
        ["bare `torchrun`, seconds to the first step", f"{median(result('startup')['ratios']):.2f}", ""],
    ]
    stalls = " / ".join(f"{_of_save(saves, name):.3f}" for name in ("trainworks", "dcp.async_save, cached"))
    below = f"A save blocks the loop for {stalls} of `dcp.save`'s time (Trainworks / `dcp.async_save`, cached staging)."
    return f"{_table(rows)}\n{below}\n"


def accelerators() -> str:
    """Speed over peers, and plans against runs, of the newest `gpu.py`; a sentence where there is none."""
    if not (RESULTS / "gpu.json").exists():
        return "It has not been run on an accelerator yet.\n"
    found = result("gpu")
    rows = [["part", "step planned", "measured", "error", "memory", "tokens/s", "over the peer"]]
    for name, part in found["parts"].items():
        if "measured_s" in part:
            planned, measured = part["planned_s"], part["measured_s"]
            rows.append([
                name, f"{planned * 1e3:.1f} ms", f"{measured * 1e3:.1f} ms", f"{planned / measured - 1:+.0%}",
                f"{part['planned_bytes'] / part['measured_bytes'] - 1:+.0%}", f"{part['tokens_per_s']:,.0f}",
                f"**{part['ratio']:.2f}** ({part['peer']['peer']})" if "ratio" in part else "",
            ])  # fmt: skip
    reasons = {name: part["not_measured"] for name, part in found["parts"].items() if "not_measured" in part}
    missing = "".join(f"\nNot measured: {name}, {reason}\n" for name, reason in reasons.items())
    return _measured_by(found, ", ".join(found["accelerators"])) + _table(rows) + missing


TABLES: dict[str, Callable[[], str]] = {
    "throughput_tiny": lambda: throughput("throughput_tiny"),
    "throughput_tiny_shards": lambda: throughput("throughput_tiny_shards"),
    "throughput_compute": lambda: throughput("throughput_compute"),
    "checkpoint_stall": stall,
    "startup": startup,
    "gpu": accelerators,
    "headline": headline,
}


def _measured_by(found: dict[str, Any], rounds: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"`{found['command']}`\n({rounds}, {found['date']}, {found['processor']}, {versions})\n\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |\n" for row in rows]
    return re.sub(r" {2,}", " ", head + "|" + "---|" * len(rows[0]) + "\n" + "".join(body))


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} .. {max(values):.2f})"


def _ratio(values: Sequence[float]) -> str:
    return f"**{median(values):.2f}** ({min(values):.2f} .. {max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
