"""Training scripts of others as they are, under `trainworks run` and killed: curve, restart, lost steps and overhead.

    python benchmarks/scripts.py                                   # small stand-ins for known scripts, and trl's own
    python benchmarks/scripts.py --checkout karpathy/nanoGPT=nanoGPT --checkout pytorch/examples=examples \
        --markdown table.md                                        # their scripts of public_scripts.py
    python benchmarks/scripts.py --only gpt \
        --script 'gpt=python nanoGPT/train.py config/train_shakespeare_char.py --device=cpu --compile=False' \
        --resume 'gpt=out-shakespeare-char/ckpt.pt --init_from=resume'

Each script runs three times, in a folder of its own: alone, under `trainworks run`, and there with a `kill -9` after
60 % of its steps and one restart. The overhead is the processor time of all processes over that of the script alone,
most of it the start of `trainworks run` and its report.
A script that takes its checkpoint as an argument gets it on its restart: `--resume 'NAME=FILE ARGUMENTS'`.
With `--kill-after ROWS` the third run is the only one.
Nothing is downloaded: a checkout is named by `--checkout`, for which data are made, or by `--script`, with its data.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import psutil
from public_scripts import PUBLIC_SCRIPTS

import trainworks
from trainworks.report.runs.summary import Report

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
    """Pattern of a file, and the arguments that pass it on once it is there."""
    first: str = ""
    """Arguments without a checkpoint."""
    data: Path | None = None
    """A folder whose copy the script starts in."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    """Repository and revision."""
    framework: str = ""

    @property
    def alone(self) -> str:
        """The line that starts it without a checkpoint."""
        return f"{self.line} {self.first}".strip()

    @property
    def shell(self) -> str:
        """The line for `run:`."""
        if not self.checkpoint:
            return self.alone
        pattern, _, arguments = self.checkpoint.partition(" ")
        return f"{self.line} $(compgen -G '{pattern}' > /dev/null && echo {arguments} || echo {self.first})"


@dataclass(frozen=True)
class Outcome:
    """What a script's runs showed."""

    name: str
    origin: str
    framework: str
    curve: str
    killed_at: int | None = None
    """The last step that was recorded before."""
    after_kill: str = ""
    message: str = ""
    """What `why` says about it."""
    lost_steps: int = 0
    alone_s: float | None = None
    with_s: float | None = None
    """Processor time of the script alone, and under `trainworks run`, where both were measured."""

    @property
    def overhead(self) -> str:
        """Processor time under `trainworks run` over that of the script alone."""
        if self.alone_s is None or self.with_s is None:
            return "-"
        return f"{self.with_s / self.alone_s:.2f} ({self.with_s - self.alone_s:+.1f} s)"


def main() -> int:
    """Run all, print the table; exit code 1 if a script did not end well."""
    options = parse_options()
    with nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory(prefix="scripts-") as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        public = list(of_checkouts(Path(folder), dict(each.split("=", 1) for each in options.checkout), options.only))
        others = () if public else (*stand_ins(Path(folder)), *installed(Path(folder)))
        found = {script.name: script for script in (*public, *others)}
        resumes = dict(each.split("=", 1) for each in options.resume)
        for name, line in (each.split("=", 1) for each in options.script):
            found[name] = Script(name, line, resumes.get(name, ""))
        chosen = [found[name] for name in options.only or found]
        print(f"{'script':20} {'curve':38} {'killed':>6}  {'after kill -9':34} {'lost':>4}  overhead")
        outcomes = []
        for script in chosen:
            outcomes.append(outcome_of(script, Path(folder), options.kill_after))
            print(row(outcomes[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps([vars(each) for each in outcomes], indent=2) + "\n")
    if options.markdown:
        options.markdown.write_text(table(outcomes))
    return int(any("FAILED" in each.after_kill for each in outcomes))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", action="append", default=[], metavar="NAME=COMMAND", help="a script of a checkout")
    parser.add_argument("--resume", action="append", default=[], metavar="NAME=FILE ARGUMENTS", help="for its restart")
    parser.add_argument("--checkout", action="append", default=[], metavar="OWNER/NAME=FOLDER", help="a repository")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,...", help="of all of them")
    parser.add_argument("--kill-after", type=int, metavar="ROWS", help="of its metrics; leaves the two other runs out")
    parser.add_argument(
        "--keep",
        type=lambda text: Path(text).resolve(),
        metavar="FOLDER",
        help="a new folder for all runs, which stay there",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table of RESULTS.md")
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


def of_checkouts(folder: Path, checkouts: Mapping[str, str], only: Sequence[str] | None) -> Iterator[Script]:
    """The scripts of these repositories, with their data."""
    for public in PUBLIC_SCRIPTS:
        if public.repository not in checkouts or (only and public.name not in only):
            continue
        checkout = Path(checkouts[public.repository]).resolve()
        data = folder / f"{public.name}-data".replace(" ", "-")
        data.mkdir()
        public.prepare(data, checkout)
        yield Script(
            name=public.name,
            line=public.line(checkout),
            checkpoint=public.checkpoint,
            first=public.first,
            data=data,
            metrics=public.metrics,
            environment=public.variables(checkout),
            origin=f"{public.repository} {public.revision}",
            framework=public.framework,
        )


def outcome_of(script: Script, folder: Path, kill_after: int | None) -> Outcome:
    """Alone, under `trainworks run`, and killed there; the last of them alone with a number of rows to kill after."""
    if kill_after is not None:
        return killed(script, folder, kill_after, 75.0)
    alone, whole = (folder / f"{script.name}-{how}".replace(" ", "-") for how in ("alone", "whole"))
    alone_s = processor_s(script, ["bash", "-c", script.alone], alone)
    with_s = processor_s(script, command_of(script, whole), whole)
    curve, num_rows = curve_of(trainworks.report(folder=whole / "runs"))
    outcome = killed(script, folder, int(0.6 * num_rows), alone_s / 3)
    return replace(outcome, curve=curve, alone_s=alone_s, with_s=with_s)


def curve_of(report: Report) -> tuple[str, int]:
    """What the report shows of the training, and its number of losses."""
    if report.training is None or report.curves is None:
        return "none", 0
    held_out = f", {report.evaluations.count} held-out" if report.evaluations else ""
    losses = sum(len(line.points) for line in report.curves.loss if not line.lost)
    return f"{losses} losses{held_out}, from {report.training.source}", losses


def command_of(script: Script, folder: Path) -> list[str]:
    """`trainworks run` of the script in this folder, which gets its run file."""
    fill(folder, script)
    content = {"name": "script", "run": script.shell, "recover": {"max_restarts": 1}, "metrics": dict(script.metrics)}
    (folder / "run.yaml").write_text(json.dumps(content))  # JSON is YAML
    return [sys.executable, "-m", "trainworks", "run", "run.yaml"]


def fill(folder: Path, script: Script) -> None:
    """Make a folder for a run, with the script's data."""
    if not folder.is_dir():
        shutil.copytree(script.data, folder) if script.data else folder.mkdir()


def processor_s(script: Script, command: Sequence[str], folder: Path) -> float:
    """Processor time of a command and of all processes that it waits for."""
    fill(folder, script)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(
            command, cwd=folder, stdout=output, stderr=output, timeout=LONGEST_S, check=True, env=environment(script)
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def environment(script: Script) -> dict[str, str]:
    """The environment of a script, which downloads nothing."""
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **offline, **script.environment}


def killed(script: Script, folder: Path, kill_after: int, longest_silence_s: float) -> Outcome:
    """What a `kill -9` after this number of rows, or after a silence without any, does to the script's run."""
    folder = folder / f"{script.name}-killed".replace(" ", "-")
    command = command_of(script, folder)
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, env=environment(script))
        until, metrics, seen_at = time.monotonic() + LONGEST_S, folder / "runs" / "script-1" / "metrics.jsonl", None
        while process.poll() is None and time.monotonic() < until:
            targets = programs_of(script, process.pid)
            seen_at = seen_at or (time.monotonic() if targets else None)
            rows = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            silent_s = 0.0 if rows or seen_at is None else time.monotonic() - seen_at
            if targets and (silent_s > longest_silence_s or rows > kill_after > 0):
                for each in targets:
                    with suppress(psutil.Error):
                        each.kill()
                break
            time.sleep(0.2)
        process.wait(LONGEST_S)
    report = trainworks.report(folder=folder / "runs")
    outcome = Outcome(script.name, script.origin, script.framework, curve_of(report)[0])
    if len(report.attempts) < 2:
        return replace(outcome, after_kill=f"{report.state}, it was not killed")
    killed_at, again = report.attempts[0].last_step, report.attempts[-1].first_step
    did = "no step recorded" if again is None else f"from step {again}"
    found = trainworks.why(folder=folder / "runs")
    lost = next((each for each in found.causes if each.name == "lost_steps"), None)
    message = lost.evidence[-1] if lost else ""
    steps = report.training.lost_steps if report.training else 0
    return replace(outcome, killed_at=killed_at, after_kill=f"{report.state}, {did}", message=message, lost_steps=steps)


def programs_of(script: Script, root: int) -> list[psutil.Process]:
    """Processes below `root` that run the script's file."""
    file = next(word for word in script.line.split() if word.endswith(".py"))
    found = list[psutil.Process]()
    with suppress(psutil.Error):
        for each in psutil.Process(root).children(recursive=True):
            with suppress(psutil.Error):
                found += [each] if file in each.cmdline() else []
    return found


def row(outcome: Outcome) -> str:
    """One line of the table."""
    first = f"{outcome.name:20} {outcome.curve:38} {outcome.killed_at or '-':>6}  {outcome.after_kill:34}"
    return f"{first} {outcome.lost_steps:>4}  {outcome.overhead}"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a table of Markdown."""
    lines = ["| script, repository, commit | framework | the report has | killed after | then | `why` | time |"]
    lines.append("|---|---|---|---|---|---|---|")
    for each in outcomes:
        after = "-" if each.killed_at is None else f"step {each.killed_at:,}"
        cells = (f"`{each.name}`, {each.origin}", each.framework, each.curve, after, each.after_kill, each.message)
        lines.append(f"| {' | '.join(cells)} | {each.overhead} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
