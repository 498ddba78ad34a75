"""Starts one contender once: a peer under torchrun, or Trainworks through its own command line.

Both benchmarks use it. Every contender is a fresh process on the same machine, with the same number of ranks and one
thread per rank.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PEERS_FOLDER = HERE / "peers"
sys.path.insert(0, str(PEERS_FOLDER))

from config import RANKS, PeerConfig, Result  # noqa: E402 - the peers are scripts of their own folder
from data import write_token_file  # noqa: E402

__all__ = [
    "MODELS",
    "PEERS",
    "RANKS",
    "ContenderError",
    "Peer",
    "PeerConfig",
    "Result",
    "Workspace",
    "first_step_end_t",
    "metrics_rows",
    "provenance",
    "reason_unavailable",
    "run_peer",
    "run_trainworks",
    "torchrun",
    "trainworks",
]

MODELS = {
    "tiny": PeerConfig(
        layers=2, hidden=32, heads=4, feed_forward=96, vocabulary=2048, sequence_length=64, micro_batch=4,
        steps=700, warmup_steps=100,
    ),
    "compute": PeerConfig(
        layers=8, hidden=256, heads=8, feed_forward=688, vocabulary=2048, sequence_length=256, micro_batch=4,
        steps=33, warmup_steps=3,
    ),
    "350m": PeerConfig(
        layers=24, hidden=1024, heads=16, feed_forward=2816, vocabulary=32768, sequence_length=2048, micro_batch=8,
        steps=40, warmup_steps=10, device="cuda", precision="bf16", compiled=True,
    ),
    "1b": PeerConfig(
        layers=20, hidden=2048, heads=16, feed_forward=5632, vocabulary=32768, sequence_length=2048, micro_batch=4,
        steps=40, warmup_steps=10, device="cuda", precision="bf16", compiled=True,
    ),
}  # fmt: skip
"""Overhead-bound and compute-bound, and two for one accelerator."""


KEEP_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc settings that Trainworks gives its ranks; every peer gets them too, so that they favour no contender."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A script of `peers/`, the module that it needs beyond torch and transformers, and its environment variables."""

    script: str
    needs: str
    environment: Mapping[str, str] = field(default_factory=lambda: KEEP_FREED_MEMORY)


PEERS = {
    "bare": Peer("bare.py", needs="torch"),
    "bare_default_malloc": Peer("bare.py", needs="torch", environment={}),
    "accelerate": Peer("accelerate_peer.py", needs="accelerate"),
    "fabric": Peer("fabric_peer.py", needs="lightning"),
    "hf_trainer": Peer("hf_trainer_peer.py", needs="accelerate"),
    "torchtitan": Peer("torchtitan_peer.py", needs="torchtitan"),
}


class ContenderError(Exception):
    """A contender could not be measured; the message says why, with the end of its output."""


class Workspace:
    """A folder for data, configs, run directories and Trainworks' cache, shared by all runs of one benchmark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.cache = folder / "cache"

    def token_file(self, config: PeerConfig) -> Path:
        """Random tokens for the peers, written once per shape."""
        path = self.folder / f"tokens-{config.hidden}-{config.steps}.bin"
        return path if path.exists() else write_token_file(path, config)

    def text_file(self, config: PeerConfig) -> Path:
        """Random words for Trainworks' tokenizer, written once per shape; no fewer tokens than the peers' file.

        At least 1 MB, so that the byte-pair vocabulary fills up.
        """
        path = self.folder / f"words-{config.hidden}-{config.steps}.txt"
        if not path.exists():
            num_bytes = max(10**6, 4 * config.steps * config.tokens_per_step)
            path.write_text(random_words(num_bytes, seed=config.seed, num_words=max(4000, config.vocabulary)))
        return path

    def environment(self) -> dict[str, str]:
        """One thread per rank, a cache of its own, and compiled modules kept, as a user has them."""
        ours = {"OMP_NUM_THREADS": "1", "TRAINWORKS_CACHE": str(self.cache), "PYTHONDONTWRITEBYTECODE": ""}
        return {**os.environ, **ours}


def random_words(num_bytes: int, seed: int, num_words: int) -> str:
    """Lines of twelve words out of so many: enough pairs for a byte-pair vocabulary, 2.5 bytes a token or more."""
    generator = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(generator.choice(letters, size)) for size in generator.integers(3, 10, num_words)])
    rows = generator.choice(words, size=(max(1, num_bytes // 84), 12))
    return "".join(" ".join(row) + "\n" for row in rows)


def provenance(launcher: str = "python") -> dict[str, Any]:
    """The command, day, machine and versions that a result was measured with."""
    found = {
        name: _version(name)
        for name in ("torch", "transformers", "accelerate", "lightning", "torchft-nightly", "torchtitan")
    }
    return {
        "command": " ".join([launcher, f"benchmarks/{Path(sys.argv[0]).name}", *_without_output(sys.argv[1:])]),
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "python": platform.python_version(),
        "versions": {name: version for name, version in found.items() if version},
    }


def _without_output(arguments: Sequence[str]) -> list[str]:
    """The arguments that change what is measured: all but `--json FILE`."""
    where = arguments.index("--json") if "--json" in arguments else len(arguments)
    return [*arguments[:where], *arguments[where + 2 :]]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} cores of {name}"


def reason_unavailable(peer: Peer) -> str | None:
    """Why this peer cannot run here; None if it can."""
    return None if find_spec(peer.needs) else f"`{peer.needs}` is not installed in {sys.prefix}"


def torchrun(script: Path, *arguments: str, ranks: int = RANKS) -> list[str]:
    """Argument vector of a local torchrun."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, str(script), *arguments]


def run_peer(peer: Peer, config: PeerConfig, workspace: Workspace) -> dict[str, Any]:
    """Run one peer to its end; the JSON line it printed.

    Raises:
        ContenderError: not installed, failed, or printed something else.
    """
    if reason := reason_unavailable(peer):
        raise ContenderError(reason)
    config_file = config.write(workspace.folder / "peer.json")
    output = _output(
        torchrun(PEERS_FOLDER / peer.script, str(config_file), ranks=config.ranks), workspace, peer.environment
    )
    try:
        return dict(json.loads(output))
    except ValueError:
        raise ContenderError(f"{peer.script} did not print one JSON line:\n{output[-2000:]}") from None


def run_trainworks(config: PeerConfig, workspace: Workspace) -> Result:
    """Train the same model with `trainworks run`; throughput over the steps after the warm-up.

    The time of a step is Trainworks' own `step_s`, held against the wall clock between the ends of the steps.

    Raises:
        ContenderError: the run failed, or left fewer steps than asked for.
    """
    timed = metrics_rows(trainworks(config, workspace))[config.warmup_steps :]
    if len(timed) != config.steps - config.warmup_steps:
        raise ContenderError(f"trainworks left {len(timed)} timed steps, not {config.steps - config.warmup_steps}")
    step_s = [float(row["step_s"]) for row in timed]
    _warn_of_unaccounted_time(timed, step_s)
    return Result(
        peer="trainworks",
        tokens_per_s=sum(int(row["tokens"]) for row in timed) / sum(step_s),
        step_s_median=median(step_s),
        steps=len(timed),
    )


def trainworks(config: PeerConfig, workspace: Workspace) -> Path:
    """Run `trainworks run` in the foreground; the run directory that it made."""
    run_file = workspace.folder / "run.yaml"
    run_file.write_text(json.dumps(run_file_content(config, workspace), indent=2))  # JSON is YAML
    before = set(workspace.runs.glob("*"))
    _output([sys.executable, "-m", "trainworks", "run", str(run_file)], workspace)
    made = set(workspace.runs.glob("*")) - before
    if len(made) != 1:
        raise ContenderError(f"`trainworks run` made {len(made)} run directories in {workspace.runs}, not 1")
    return made.pop()


def run_file_content(config: PeerConfig, workspace: Workspace) -> dict[str, Any]:
    """The run file of this config: same model, batch, optimizer and layout as the peers; no checkpoint on the way."""
    model = {
        "architecture": "llama", "layers": config.layers, "hidden": config.hidden, "heads": config.heads,
        "feed_forward": config.feed_forward, "tie_embeddings": False,
    }  # fmt: skip
    data = {
        "source": str(workspace.text_file(config)), "tokenizer": "bpe", "vocabulary": config.vocabulary,
        "sequence_length": config.sequence_length,
    }  # fmt: skip
    optimizer = {
        "lr": config.lr, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip_grad_norm": 1.0, "schedule": "cosine",
        "min_lr_ratio": 0.0, "warmup": f"{min(config.lr_warmup_steps, config.steps)} steps",
    }  # fmt: skip
    workload = {
        "task": "causal-lm", "model": model, "data": data, "precision": config.precision, "optimizer": optimizer,
        "compile": config.compiled, "global_batch": config.ranks * config.micro_batch,
        "train_for": f"{config.steps} steps", "seed": config.seed,
    }  # fmt: skip
    return {
        "name": "benchmark",
        "workload": workload,
        "cluster": {"engine": "local", "nodes": 1, "processes_per_node": config.ranks},
        "layout": {"dp_shard" if config.shards else "dp_replicate": config.ranks, "micro_batch": config.micro_batch},
        "checkpoint": {"every": "1000000 steps", "to": str(workspace.runs)},
        "recover": {"max_restarts": 0},
    }


def metrics_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, one per step."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        raise ContenderError(f"trainworks wrote no {path}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def first_step_end_t(row: dict[str, Any]) -> float:
    """Seconds since the epoch at which a contender's first step ended, from its first row or its JSON line."""
    return float(row["first_step_end_t"] if "first_step_end_t" in row else row["t"])


def _output(command: Sequence[str], workspace: Workspace, extra: Mapping[str, str] | None = None) -> str:
    environment = workspace.environment() | dict(extra or {})
    result = subprocess.run(command, env=environment, cwd=workspace.folder, capture_output=True, text=True, check=False)
    if result.returncode:
        output = (result.stdout + result.stderr).rstrip()
        last_line = output.rpartition("\n")[2]
        raise ContenderError(f"{last_line} (code {result.returncode} of `{' '.join(command)}`)\n{output[-2000:]}")
    return result.stdout


def _warn_of_unaccounted_time(rows: Sequence[dict[str, Any]], step_s: Sequence[float]) -> None:
    """Say so on stderr when the step times leave out more than 1% of the wall clock between the first and last row."""
    wall_s = float(rows[-1]["t"]) - float(rows[0]["t"])
    accounted_s = sum(step_s[1:])
    if wall_s > 1.01 * accounted_s:
        missing = f"{wall_s - accounted_s:.3f} s of {wall_s:.3f} s"
        print(f"warning: trainworks' step_s leave out {missing} of wall clock", file=sys.stderr)
