"""Training scripts of others as they are, under `trainworks run` and killed: curve, restart, lost steps and overhead.

    python benchmarks/scripts.py                                   # small stand-ins for known scripts, and trl's own
    python benchmarks/scripts.py --only gpt \
        --script 'gpt=python nanoGPT/train.py config/train_shakespeare_char.py --device=cpu --compile=False' \
        --resume 'gpt=out-shakespeare-char/ckpt.pt --init_from=resume'

Each script runs three times, in a folder of its own: alone, under `trainworks run`, and there with a `kill -9` after a
third of its steps and one restart. The overhead is the processor time of all processes over that of the script alone,
most of it the start of `trainworks run` and its report.
A script that takes its checkpoint as an argument gets it on its restart: `--resume 'NAME=FILE ARGUMENTS'`.
Nothing is downloaded: a checkout is named by `--script`, and its data have to be there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

import trainworks

EXAMPLE = Path(__file__).parents[1] / "examples" / "run-clm" / "make_model.py"
LONGEST_S = 900.0
LOOP = """
import hashlib, json, pathlib, sys
FILE = pathlib.Path("checkpoint.json")
def work(seed):
    data = bytes([seed % 256]) * (1 << 20)
    for _ in range(150):
        data = hashlib.sha256(data).digest() * (1 << 15)
first = json.loads(FILE.read_text()) if "--resume" in sys.argv else 0
"""
STAND_INS = {
    "gpt": (
        LOOP + "for step in range(first, 60):\n    work(step)\n"
        "    print(f'iter {step}: loss {4 - step / 40:.4f}, time 120.00ms, mfu 1.00%', flush=True)\n"
        "    if step % 10 == 9:\n        FILE.write_text(str(step + 1))\n",
        "checkpoint.json --resume",
    ),
    "mnist": (
        LOOP + "for batch in range(60):\n    work(batch)\n"
        "    print(f'Train Epoch: 1 [{64 * batch}/3840]\\tLoss: {2 - batch / 60:.6f}', flush=True)\n",
        "",
    ),
    "silent": (LOOP + "for step in range(60):\n    work(step)\n    print('still training', flush=True)\n", ""),
}
"""Programs that print as nanoGPT and pytorch/examples do, and one that says nothing: with what a restart gets."""


@dataclass(frozen=True)
class Script:
    """One program: the line that starts it, and what it takes after a restart."""

    name: str
    line: str
    checkpoint: str = ""
    """A file, and the arguments that pass it on once it is there."""

    @property
    def shell(self) -> str:
        """The line for `run:`."""
        if not self.checkpoint:
            return self.line
        file, _, arguments = self.checkpoint.partition(" ")
        return f"{self.line} $(test -e {shlex.quote(file)} && echo {shlex.quote(arguments)})"


@dataclass(frozen=True)
class Outcome:
    """What a script's runs showed."""

    name: str
    curve: str
    after_kill: str
    lost_steps: int
    alone_s: float
    with_s: float
    """Processor time of the script alone, and under `trainworks run`."""


def main() -> int:
    """Run all, print the table; exit code 1 if a script did not end well."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="scripts-") as folder:
        found = {script.name: script for script in (*stand_ins(Path(folder)), *installed(Path(folder)))}
        resumes = dict(each.split("=", 1) for each in options.resume)
        for name, line in (each.split("=", 1) for each in options.script):
            found[name] = Script(name, line, resumes.get(name, ""))
        chosen = [found[name] for name in options.only or found]
        print(f"{'script':12} {'curve':38} {'after kill -9':44} {'lost':>4}  overhead")
        outcomes = []
        for script in chosen:
            outcomes.append(outcome_of(script, Path(folder)))
            print(row(outcomes[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([vars(each) for each in outcomes], indent=2) + "\n")
    return int(any("FAILED" in each.after_kill for each in outcomes))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", action="append", default=[], metavar="NAME=COMMAND", help="a script of a checkout")
    parser.add_argument("--resume", action="append", default=[], metavar="NAME=FILE ARGUMENTS", help="for its restart")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="of all of them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    return parser.parse_args()


def stand_ins(folder: Path) -> list[Script]:
    """Small programs that print as known ones do."""
    scripts = []
    for name, (text, checkpoint) in STAND_INS.items():
        (folder / f"{name}.py").write_text(text)
        scripts.append(Script(name, f"{sys.executable} {folder / name}.py", checkpoint))
    return scripts


def installed(folder: Path) -> list[Script]:
    """trl's `sft.py`, which its package brings along, on a tiny model."""
    if (spec := find_spec("trl")) is None or spec.origin is None or not EXAMPLE.is_file():
        return []
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], check=True, stdout=subprocess.DEVNULL)
    lines = [each for each in (folder / "text.txt").read_text().splitlines() if len(each) > 30][:400]
    (folder / "texts").mkdir()
    (folder / "texts" / "train.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in lines))
    arguments = (
        f"--model_name_or_path {folder / 'weights'} --dataset_name {folder / 'texts'} --output_dir out --max_steps 30 "
        "--per_device_train_batch_size 4 --logging_steps 1 --save_steps 10 --report_to none --use_cpu true "
        "--bf16 false --gradient_checkpointing false"
    )
    code = "from transformers import AutoConfig, AutoModelForCausalLM as M, AutoTokenizer as T; import sys; "
    code += "M.from_config(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[2]); "
    code += "T.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])"
    subprocess.run(
        [sys.executable, "-c", code, str(folder / "model"), str(folder / "weights")], check=True, capture_output=True
    )
    return [Script("trl sft", f"{sys.executable} {Path(spec.origin).parent / 'scripts' / 'sft.py'} {arguments}")]


def outcome_of(script: Script, folder: Path) -> Outcome:
    """Alone, under `trainworks run`, and killed there."""
    alone_s = processor_s(["bash", "-c", script.line], folder / f"{script.name}-alone")
    whole = folder / f"{script.name}-whole"
    with_s = processor_s(command_of(script, whole), whole)
    report = trainworks.report(folder=whole / "runs")
    curve, num_rows = "none", 0
    if report.training is not None and report.curves is not None:
        held_out = ", held-out" if report.evaluations else ""
        num_rows = sum(len(line.points) for line in report.curves.loss)
        curve = f"{num_rows} losses{held_out}, from {report.training.source}"
    after_kill, lost_steps = killed(script, folder / f"{script.name}-killed", num_rows, alone_s)
    return Outcome(script.name, curve, after_kill, lost_steps, alone_s, with_s)


def command_of(script: Script, folder: Path) -> list[str]:
    """`trainworks run` of the script in this folder, which gets its run file."""
    folder.mkdir(exist_ok=True)
    content = {"name": "script", "run": script.shell, "recover": {"max_restarts": 1}}
    (folder / "run.yaml").write_text(json.dumps(content))  # JSON is YAML
    return [sys.executable, "-m", "trainworks", "run", "run.yaml"]


def processor_s(command: Sequence[str], folder: Path) -> float:
    """Processor time of a command and of all processes that it waits for."""
    folder.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(command, cwd=folder, stdout=output, stderr=output, timeout=LONGEST_S, check=True, env=offline())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def offline() -> dict[str, str]:
    """The environment of a script, which downloads nothing."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}


def killed(script: Script, folder: Path, num_rows: int, alone_s: float) -> tuple[str, int]:
    """What a run does after a `kill -9` of the script, and the steps that it lost."""
    command = command_of(script, folder)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=offline())
        until, metrics, seen_at = time.monotonic() + LONGEST_S, folder / "runs" / "script-1" / "metrics.jsonl", None
        while process.poll() is None and time.monotonic() < until:
            targets = programs_of(script, process.pid)
            seen_at = seen_at or (time.monotonic() if targets else None)
            rows = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            silent_s = 0.0 if num_rows or seen_at is None else time.monotonic() - seen_at
            if targets and (silent_s > alone_s / 3 or rows > num_rows // 3 > 0):
                for each in targets:
                    with suppress(psutil.Error):
                        each.kill()
                break
            time.sleep(0.2)
        process.wait(LONGEST_S)
    report = trainworks.report(folder=folder / "runs")
    if len(report.attempts) < 2:
        return f"{report.state}, it was not killed", 0
    again = report.attempts[-1].first_step
    did = "restarted, no step recorded" if again is None else f"from step {again}"
    causes = trainworks.why(folder=folder / "runs").causes
    told = any("first step again" in text for cause in causes for text in cause.evidence)
    hint = ", `why` names the argument" if told else ""
    return f"{report.state}, {did}{hint}", report.training.lost_steps if report.training else 0


def programs_of(script: Script, root: int) -> list[psutil.Process]:
    """Processes below `root` that run the script's file."""
    file, found = script.line.split()[1], list[psutil.Process]()
    with suppress(psutil.Error):
        for each in psutil.Process(root).children(recursive=True):
            with suppress(psutil.Error):
                found += [each] if file in each.cmdline()[1:2] else []
    return found


def row(outcome: Outcome) -> str:
    """One line of the table."""
    first = f"{outcome.name:12} {outcome.curve:38} {outcome.after_kill:44}"
    added_s = outcome.with_s - outcome.alone_s
    return f"{first} {outcome.lost_steps:>4}  {outcome.with_s / outcome.alone_s:.2f} ({added_s:+.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
