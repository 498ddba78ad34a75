"""What one machine with accelerators says of Trainworks, in order of worth, within a given time.

    python benchmarks/gpu.py --minutes 9 --json benchmarks/results/gpu.json
    python benchmarks/gpu.py --dry-run --ranks 8      the parts, and the seconds that each takes
    python benchmarks/gpu.py --small                  the same paths with tiny models in fp32, on processors

Every run has a rank on each accelerator, of one to eight; `--ranks` takes fewer. Batches grow with the ranks.

A part begins only while the seconds that it takes are left; else it is written as not measured, with the reason, as is
one that fails. The file is complete after every part. Trainworks' side of a run is its own record: the first plan, by
the calibration alone, against the mean step after the warm-up, and against the device's peak as nvidia-smi counts it.
`publish.py` writes the tables of RESULTS.md from the file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contenders import (
    MODELS,
    PEERS,
    RANKS,
    ContenderError,
    Workspace,
    provenance,
    random_words,
    reason_unavailable,
    run_file_content,
    run_peer,
)

from trainworks.agent.enter import newest_pids
from trainworks.files import write_atomic
from trainworks.host.probe import probe_accelerators
from trainworks.record.metric_columns import read_columns
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

STEPS = 40
WARM_UP = 10
VOCABULARY = 4096
WINDOW = 1024
SAVE_EVERY, KILL_AT = 10, 15
MOST_RANKS = 8

SMALL = {"architecture": "llama", "layers": 8, "hidden": 512, "heads": 8}
MEDIUM = {"architecture": "llama", "layers": 24, "hidden": 1024, "heads": 16, "kv_heads": 4, "feed_forward": 2816}
LARGE = {"architecture": "llama", "layers": 20, "hidden": 2048, "heads": 16, "feed_forward": 5632}
GPT2 = {"architecture": "gpt2", "layers": 12, "hidden": 768, "heads": 12, "dropout": 0.1}
MIXTRAL = {"architecture": "mixtral", "layers": 8, "hidden": 1024, "heads": 16, "feed_forward": 2816, "experts": 8}
LORA = {"pretrained": MEDIUM, "length": 4096, "batch": 2, "adapter": {"rank": 16}}

ONE_BILLION = {"model": LARGE, "length": 2048, "batch": 4}

CASES: dict[str, dict[str, Any]] = {
    "llama-300m-gqa-packed-8k": {"model": MEDIUM, "length": 8192, "batch": 1, "pack": True},
    "llama-1b-fp8-compiled": ONE_BILLION | {"precision": "fp8", "compile": True, "data_parallel": "dp_shard"},
    "llama-300m-lora": LORA,
    "llama-300m-gqa": {"model": MEDIUM, "length": 4096, "batch": 2},
    "mixtral-600m": {"model": MIXTRAL},
    "gpt2-88m-dropout": {"model": GPT2},
    "mistral-300m-window": {"pretrained": MEDIUM, "window": WINDOW, "length": 4096, "batch": 2},
    "llama-300m-lora-packed": LORA | {"pack": True},
    "llama-28m": {"model": SMALL},
    "llama-28m-compiled": {"model": SMALL, "compile": True},
    "llama-28m-fp8-compiled": {"model": SMALL, "precision": "fp8", "compile": True},
    "llama-1b-tp": ONE_BILLION | {"layout": {"tp": 2}},
    "llama-1b-pp": ONE_BILLION | {"layout": {"pp": 2, "micro_batch": 1}},
}
"""Changes to a workload of 8 sequences of 1,024 tokens in bf16, in order of worth. Ranks that a layout leaves are
replicas; with `data_parallel: dp_shard` they hold shards."""
SEVERAL = ("1b-shards", "kill", "llama-1b-fp8-compiled", "llama-1b-tp", "llama-1b-pp")
"""Parts that come first after `1b` where there are several ranks."""


class PartError(Exception):
    """A part could not be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything is measured, and until when."""

    workspace: Workspace
    deadline: float
    small: bool
    ranks: int

    @property
    def seconds_left(self) -> float:
        """Until the time that was given is over."""
        return self.deadline - time.monotonic()

    def output(self, *command: str, codes: Sequence[int] = (0,), **environment: str) -> str:
        """What a command prints, within the time that is left.

        Raises:
            PartError: it ended with another code, or not in time.
        """
        try:
            done = subprocess.run(
                [sys.executable, *command],
                cwd=self.workspace.folder,
                env={**os.environ, "TRAINWORKS_CACHE": str(self.workspace.cache), **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=max(1.0, self.seconds_left),
            )
        except subprocess.TimeoutExpired:
            raise PartError(f"`{' '.join(command[:3])}` did not end in time") from None
        if done.returncode not in codes:
            raise PartError(" / ".join((done.stdout + done.stderr).strip().splitlines()[-4:]))
        return done.stdout


@dataclass(frozen=True, slots=True)
class Part:
    """Something to measure."""

    name: str
    seconds: float
    """It takes on an H100, compiling for the first time."""
    what: str
    measure: Callable[[Bench], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was planned and what was measured of one run."""

    planned_s: float
    low_s: float | None
    high_s: float | None
    """Ends of the 80 % interval."""
    measured_s: float
    planned_bytes: int
    measured_bytes: int
    """With the driver's context, both."""
    tokens_per_s: float
    mfu: float | None
    loss: float


def race(part: str, model: str, bench: Bench, *, peer: str = "bare", **changes: Any) -> dict[str, Any]:
    """Trainworks and a peer on one model of `contenders.py`, one after the other, and the plan of the former."""
    if reason := reason_unavailable(PEERS[peer]):
        raise PartError(reason)
    config = replace(MODELS["tiny" if bench.small else model], accelerators=bench.ranks, **changes)
    if bench.small:
        config = replace(config, steps=STEPS, warmup_steps=WARM_UP)
    config = replace(config, data_file=str(bench.workspace.token_file(config)))
    ours = outcome_of(train(part, run_file_content(config, bench.workspace), bench), config.warmup_steps)
    theirs = run_peer(PEERS[peer], config, bench.workspace)
    return {**asdict(ours), "peer": theirs, "ratio": ours.tokens_per_s / theirs["tokens_per_s"]}


def shards(bench: Bench) -> dict[str, Any]:
    """The larger model in shards over all accelerators, beside FSDP2 in the bare loop."""
    if bench.ranks < 2:
        raise PartError("several ranks are needed, and there is one")
    return race("1b-shards", "1b", bench, shards=True)


def planned(name: str, bench: Bench) -> dict[str, Any]:
    """One case: the plan against the run."""
    return asdict(outcome_of(train(name, run_file(CASES[name], bench), bench), WARM_UP))


def killed(bench: Bench) -> dict[str, Any]:
    """A run whose rank is killed by SIGKILL after a checkpoint, beside the same without a kill."""
    content = run_file(CASES["llama-28m"], bench)
    whole = rows_of(train("whole", content, bench))
    content["checkpoint"], content["recover"] = {"every": f"{SAVE_EVERY} steps"}, {"max_restarts": 1}
    killed_at: list[float] = []

    def kill(folder: Path) -> None:
        if not killed_at and len(rows_of(folder)) > KILL_AT and (pids := newest_pids(RunDir(folder))):
            killed_at.append(time.time())
            os.kill(pids[0], signal.SIGKILL)

    rows = rows_of(train("killed", content, bench, watch=kill))
    if not killed_at:
        raise PartError(f"the run ended before step {KILL_AT}")
    again = [row for row in rows if row["attempt"] > 1]
    before = [row["step"] for row in rows if row["attempt"] == 1]
    differences = [abs(row["loss"] - other["loss"]) for row in again for other in whole if row["step"] == other["step"]]
    return {
        "recovered_s": again[0]["t"] - killed_at[0],
        "steps_lost": max(before) - again[0]["step"] + 1,
        "last_step": again[-1]["step"],
        "largest_loss_difference": max(differences),
    }


def printed(*command: str, codes: Sequence[int] = (0,)) -> Callable[[Bench], dict[str, Any]]:
    """A command of the product, or another benchmark: what it prints, as JSON or as lines."""

    def measure(bench: Bench) -> dict[str, Any]:
        text = bench.output(*command, codes=codes)
        return {"json": json.loads(text)} if "--json" in command else {"lines": text.splitlines()}

    return measure


def parts(ranks: int) -> list[Part]:
    """All of them, in order of worth."""
    product = ("-m", "trainworks")
    found = [
        Part("health", 5, "the accelerators, checked", printed(*product, "health", "--json", codes=(0, 1))),
        Part("1b", 150, "bf16, compiled, over the bare loop", partial(race, "1b", "1b")),
        Part("350m", 110, "bf16, compiled, over the bare loop", partial(race, "350m", "350m")),
        Part("kill", 60, "SIGKILL of a rank, and what is lost", killed),
        *(Part(name, 45, "the plan against the run", partial(planned, name)) for name in list(CASES)[:3]),
        Part("350m-eager", 60, "bf16, eager, over the bare loop", partial(race, "350m-eager", "350m", compiled=False)),
        Part("1b-shards", 150, "FSDP2 over all accelerators, over the bare loop", shards),
        Part(
            "1b-torchtitan",
            180,
            "beside torchtitan's own trainer, where it is installed",
            partial(race, "1b-torchtitan", "1b", peer="torchtitan"),
        ),
        Part("attention", 30, "packed documents", printed(str(Path(__file__).parent / "masked_attention.py"))),
        *(Part(name, 40, "the plan against the run", partial(planned, name)) for name in list(CASES)[3:]),
        Part(
            "bench",
            60,
            "products, memory, host link",
            printed(*product, "bench", "compute", "memory", "--json", codes=(0, 1)),
        ),
    ]
    first = ("health", "1b", *SEVERAL) if ranks > 1 else ()
    return sorted(found, key=lambda part: first.index(part.name) if part.name in first else len(first))


def main() -> int:
    """Measure what there is time for; exit code 1 if a part failed."""
    options = parse_options()
    found = probe_accelerators()
    ranks = options.ranks or (RANKS if options.small else max(1, min(len(found), MOST_RANKS)))
    chosen = [part for part in parts(ranks) if options.only is None or part.name in options.only]
    if options.dry_run:
        for part in chosen:
            print(f"{part.name:<26} {part.seconds:4.0f} s  {part.what}")
        print(f"{'':<26} {sum(part.seconds for part in chosen):4.0f} s in all, of {60 * options.minutes:.0f} s")
        return 0
    if len(found) < ranks and not options.small:
        what = f"{ranks} ranks, and {len(found)} accelerators" if found else "no accelerator"
        print(f"{what} here; `--small` takes the same paths on processors", file=sys.stderr)
        return 1
    results: dict[str, Any] = {}
    failed = False
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        bench = Bench(Workspace(Path(folder)), time.monotonic() + 60 * options.minutes, options.small, ranks)
        for part in chosen:
            started = time.monotonic()
            try:
                if bench.seconds_left < part.seconds and not options.small:
                    raise PartError(f"{part.seconds:.0f} s are needed and {max(0, bench.seconds_left):.0f} s are left")
                results[part.name] = part.measure(bench)
            except (PartError, ContenderError, OSError, ValueError) as error:
                results[part.name] = {"not_measured": str(error)}
                failed = failed or bench.seconds_left > part.seconds
            took = time.monotonic() - started
            print(f"{part.name}: {took:.0f} s: {summary(results[part.name])}", file=sys.stderr, flush=True)
            if options.json:
                record = {**provenance(), "accelerators": [each.name for each in found[:ranks]], "parts": results}
                write_atomic(options.json, json.dumps(record, indent=1) + "\n")
    return int(failed)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0, help="time for everything")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PARTS", help="comma-separated names")
    parser.add_argument(
        "--ranks",
        type=int,
        choices=range(1, MOST_RANKS + 1),
        metavar="N",
        help="of each run; by default all",
    )
    parser.add_argument("--small", action="store_true", help="tiny models in fp32 on processors")
    parser.add_argument("--dry-run", action="store_true", help="print the parts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result")
    return parser.parse_args()


def summary(result: dict[str, Any]) -> str:
    """One line of a part."""
    if "not_measured" in result:
        return f"NOT MEASURED: {result['not_measured'].splitlines()[0]}"
    figures = {name: value for name, value in result.items() if isinstance(value, float | int)}
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "done"


def train(name: str, content: dict[str, Any], bench: Bench, *, watch: Callable[[Path], None] | None = None) -> Path:
    """One run of the program; its run directory.

    Args:
        name: of the run.
        content: of its run file.
        bench: gives the time, too.
        watch: is called with the run directory as long as the run goes on.

    Raises:
        PartError: it failed, or took too long.
    """
    path, runs = bench.workspace.folder / f"{name}.yaml", bench.workspace.folder / f"runs-{name}"
    content = {**content, "name": name, "checkpoint": {**content["checkpoint"], "to": str(runs)}}
    path.write_text(json.dumps(content, indent=1))  # JSON is YAML
    command = ("-m", "trainworks", "run", str(path), "--without-learning", "--no-review")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(bench.output, *command)
        while watch and not run.done():
            for made in runs.glob("*/metrics.jsonl"):
                watch(made.parent)
            time.sleep(0.01)
        run.result()
    (made,) = (file.parent for file in runs.glob("*/resolved.json"))
    return made


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Its steps, without a line that is being written."""
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [row for row in map(json.loads, (line for line in lines if line.endswith("\n"))) if "step_s" in row]


def layout_of(case: dict[str, Any], bench: Bench, *, batch: int) -> tuple[dict[str, int], int]:
    """The layout of a case on the ranks, and its degree of data parallelism.

    Raises:
        PartError: the ranks cannot be shared by the copies.
    """
    cut = case.get("layout", {})
    of_model = cut.get("tp", 1) * cut.get("pp", 1)
    if bench.ranks % of_model:
        raise PartError(f"a multiple of {of_model} ranks is needed, and there are {bench.ranks}")
    copies = bench.ranks // of_model
    return {"micro_batch": batch, case.get("data_parallel", "dp_replicate"): copies, **cut}, copies


def run_file(case: dict[str, Any], bench: Bench) -> dict[str, Any]:
    """The run file of a case."""
    length, batch = (64, 2) if bench.small else (case.get("length", 1024), case.get("batch", 8))
    data: dict[str, Any] = {"source": str(documents(bench.workspace)), "sequence_length": length}
    data |= {"pack": True} if case.get("pack") else {}
    model = case.get("model", {}) | ({"layers": 2, "hidden": 64, "heads": 4, "feed_forward": 64} if bench.small else {})
    if "pretrained" in case:
        folder = pretrained(case, bench)
        model = {"hf": str(folder), "weights": "pretrained" if "adapter" in case else "random"}
    if "adapter" in case:  # pretrained weights come with their tokenizer
        data |= {"tokenizer": str(model["hf"]) + "/tokenizer.json"}
    else:
        data |= {"vocabulary": VOCABULARY}
    layout, copies = layout_of(case, bench, batch=batch)
    workload = {
        "task": "causal-lm",
        "model": model,
        "data": data,
        "precision": "fp32" if bench.small else case.get("precision", "bf16"),
        "compile": case.get("compile", False) and not bench.small,
        "global_batch": batch * copies,
        "train_for": f"{STEPS} steps",
        "optimizer": {"lr": 3e-4, "warmup": "5 steps"},
        **({"adapter": case["adapter"]} if "adapter" in case else {}),
    }
    return {
        "workload": workload,
        "cluster": {"engine": "local", "processes_per_node": bench.ranks},
        "layout": layout,
        "checkpoint": {"every": f"{10 * STEPS} steps"},
        "recover": {"max_restarts": 0},
    }


def pretrained(case: dict[str, Any], bench: Bench) -> Path:
    """A folder of random weights with a tokenizer, as transformers saves them: Llama, or Mistral with a window."""
    import torch  # noqa: PLC0415 - seconds that few cases need
    from tokenizers import ByteLevelBPETokenizer  # noqa: PLC0415
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM  # noqa: PLC0415

    folder = bench.workspace.folder / ("mistral" if "window" in case else "llama")
    if folder.exists():
        return folder
    of = case["pretrained"]
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64 if bench.small else of["hidden"],
        "intermediate_size": 128 if bench.small else of["feed_forward"],
        "num_hidden_layers": 2 if bench.small else of["layers"], "num_attention_heads": of["heads"],
        "num_key_value_heads": of["kv_heads"], "max_position_embeddings": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = (
        MistralForCausalLM(MistralConfig(**sizes, sliding_window=case["window"]))
        if "window" in case
        else LlamaForCausalLM(LlamaConfig(**sizes))
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(documents(bench.workspace))], vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def documents(workspace: Workspace) -> Path:
    """JSON lines of random words, some hundred tokens each: short enough to pack."""
    path = workspace.folder / "documents.jsonl"
    if not path.exists():
        lines = random_words(3_000_000, seed=1, num_words=5000).splitlines()
        sizes = np.random.default_rng(1).geometric(1 / 30, size=len(lines) // 40)
        ends = np.cumsum(sizes)
        texts = [" ".join(lines[end - size : end]) for size, end in zip(sizes, ends, strict=True)]
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts if text))
    return path


def outcome_of(folder: Path, warm_up: int) -> Outcome:
    """The prediction and the measurement in the record of a finished run."""
    plan = ResolvedRun.model_validate_json((folder / "resolved.json").read_bytes()).plan
    assert plan is not None
    recorded = read_columns(RunDir(folder).metrics_file).steps()
    steps = recorded.where(slice(warm_up, None))
    step_s = float(np.mean(steps["step_s"] - np.nan_to_num(steps["checkpoint_s"])))
    tokens_per_s = plan.tokens_per_step / step_s
    return Outcome(
        planned_s=plan.step_time.total_s,
        low_s=plan.expected.low_s if plan.expected else None,
        high_s=plan.expected.high_s if plan.expected else None,
        measured_s=step_s,
        planned_bytes=plan.memory.total_bytes,
        measured_bytes=int(np.nanmax(recorded["memory_peak_bytes"])),
        tokens_per_s=tokens_per_s,
        mfu=plan.mfu(tokens_per_s),
        loss=float(steps["loss"][-1]),
    )


if __name__ == "__main__":
    sys.exit(main())
