"""Training throughput of Trainworks over a bare PyTorch loop, Hugging Face Trainer, accelerate and Lightning Fabric.

The contenders take turns (A B C A B C ...), so that a slow minute of the machine hits all of them; a ratio is formed
within a round, and the median of the rounds is printed with its range. Exit code 1 if anything was not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from contenders import (
    MODELS,
    PEERS,
    ContenderError,
    PeerConfig,
    Result,
    Workspace,
    provenance,
    run_peer,
    run_trainworks,
)

from trainworks.host.probe import probe_accelerators

PRODUCT = "trainworks"
DEFAULT_PEERS = {
    "tiny": [name for name in PEERS if name != "torchtitan"],
    "compute": ["bare"],
    "350m": ["bare"],
    "1b": ["bare"],
}
"""Once a step takes most of a second, the libraries cannot be told apart."""
CAN_SHARD = ("bare", "bare_default_malloc")
"""Peers whose script knows FSDP2."""


@dataclass(slots=True)
class Outcome:
    """All rounds of one contender on one model."""

    contender: str
    results: list[Result] = field(default_factory=list)
    not_measured: str | None = None
    """Why there is no result; a contender that fails once is out."""

    @property
    def tokens_per_s(self) -> float:
        """Median over the rounds."""
        return median(result.tokens_per_s for result in self.results)

    @property
    def step_s(self) -> float:
        """Median over the rounds of the median step."""
        return median(result.step_s_median for result in self.results)


def main() -> int:
    """Measure, print, write; the exit code."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="trainer-overhead-") as folder:
        workspace = Workspace(Path(folder))
        outcomes = {model: measure(model, options, workspace) for model in options.models}
    for model, of_model in outcomes.items():
        print(table(model, of_model))
    if options.json:
        options.json.write_text(json.dumps(as_json(outcomes, options.rounds), indent=2) + "\n")
    return int(any(outcome.not_measured for of_model in outcomes.values() for outcome in of_model))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=_names(MODELS), default=["tiny", "compute"], help=f"comma-separated: {','.join(MODELS)}"
    )
    parser.add_argument("--peers", type=_names(PEERS), help="comma-separated; default: all on tiny, bare on compute")
    parser.add_argument(
        "--layout", choices=("replicas", "shards"), default="replicas", help="DDP, or FSDP2 (bare only)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="times that every contender runs")
    parser.add_argument("--steps", type=int, help="timed steps per run instead of the model's own number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single result")
    options = parser.parse_args()
    if any(MODELS[model].device == "cuda" for model in options.models) and not probe_accelerators():
        parser.error("350m and 1b need an accelerator, and there is none")
    return options


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"`{unknown[0]}` is none of {', '.join(known)}")
        return names

    return parse


def measure(model: str, options: argparse.Namespace, workspace: Workspace) -> list[Outcome]:
    """All rounds of all contenders on one model; Trainworks first."""
    config = MODELS[model]
    if options.steps:
        config = replace(config, steps=options.steps + config.warmup_steps)
    config = replace(config, shards=options.layout == "shards", data_file=str(workspace.token_file(config)))
    workspace.text_file(config)
    peers = options.peers or [name for name in DEFAULT_PEERS[model] if name in CAN_SHARD or not config.shards]
    outcomes = [Outcome(name) for name in (PRODUCT, *peers)]
    for number in range(1, options.rounds + 1):
        for outcome in outcomes:
            if not outcome.not_measured:
                run_once(outcome, config, workspace)
                talk(model, number, outcome)
    return outcomes


def run_once(outcome: Outcome, config: PeerConfig, workspace: Workspace) -> None:
    """One run of one contender; a failure is kept as the reason and drops what it had measured."""
    try:
        if outcome.contender == PRODUCT:
            result = run_trainworks(config, workspace)
        else:
            result = Result(**run_peer(PEERS[outcome.contender], config, workspace))
    except ContenderError as error:
        outcome.not_measured = str(error)
        outcome.results.clear()
    else:
        outcome.results.append(result)


def talk(model: str, number: int, outcome: Outcome) -> None:
    """One line per run on stderr."""
    if outcome.not_measured:
        print(f"NOT MEASURED: {outcome.contender} on {model}: {outcome.not_measured}", file=sys.stderr)
        return
    result = outcome.results[-1]
    speed = f"{result.tokens_per_s:,.0f} tokens/s, {result.step_s_median * 1e3:.2f} ms per step"
    print(f"{model}, round {number}: {outcome.contender}: {speed}", file=sys.stderr, flush=True)


def ratios(product: Outcome, peer: Outcome) -> list[float]:
    """Trainworks' tokens/s over the peer's, round by round; above 1 Trainworks is faster."""
    rounds = zip(product.results, peer.results, strict=False)
    return [ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in rounds]


def table(model: str, outcomes: list[Outcome]) -> str:
    """What was measured on one model, as text."""
    config = MODELS[model]
    shape = f"{config.layers} layers, hidden {config.hidden}, sequence {config.sequence_length}"
    lines = [
        f"{model}: {shape}, batch {config.micro_batch} per rank, {config.ranks} rank(s) on {config.device}",
        f"  {'contender':<20} {'tokens/s':>10} {'ms/step':>9}   trainworks / contender (min..max)",
    ]
    lines += [_table_row(outcome, outcomes[0]) for outcome in outcomes]
    return "\n".join([*lines, ""])


def _table_row(outcome: Outcome, product: Outcome) -> str:
    if outcome.not_measured:
        return f"  {outcome.contender:<20} NOT MEASURED: {outcome.not_measured.splitlines()[0]}"
    row = f"  {outcome.contender:<20} {outcome.tokens_per_s:>10,.0f} {outcome.step_s * 1e3:>9.2f}"
    of_rounds = ratios(product, outcome)
    if outcome is product or not of_rounds:
        return row
    return f"{row}   {median(of_rounds):.3f} ({min(of_rounds):.3f}..{max(of_rounds):.3f})"


def as_json(outcomes: dict[str, list[Outcome]], rounds: int) -> dict[str, Any]:
    """Every single result, the ratios, and where they come from."""
    return {
        **provenance(),
        "rounds": rounds,
        "models": {
            model: {
                outcome.contender: {**asdict(outcome), "ratios": ratios(of_model[0], outcome)} for outcome in of_model
            }
            for model, of_model in outcomes.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
