"""Scripts of others, as they are: their curve, their evaluations and their restarts in the record of the run."""

from __future__ import annotations

import json

import pytest

from tests.faults.launcher import output
from trainworks.record.events.log import read_events

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
at_night = pytest.mark.lane("nightly")
"""tests/agent/test_log_metrics.py reads lines of every style in `quick`."""

PRINTED = {
    "bare": "for i in range(1, 6): print(f'loss: {3 / i}')",
    "nanogpt": "for i in range(1, 6): print(f'iter {i}: loss {3 / i:.4f}, time 10.20ms, mfu 1.20%')",
    "tqdm": "for i in range(1, 6):\n"
    "    print(f'\\r {i * 20:3d}%|##  | {i}/5 [00:01<00:01, 9.1it/s, loss={3 / i:.4f}]', end='')",
    "hugging-face": "for i in range(1, 6):\n"
    "    print(f'\\r {i * 20:3d}%|##  | {i}/5 [00:01<00:01, 9.1it/s]', end='')\n"
    "    print('\\r          \\r' + str({'loss': f'{3 / i:.4g}', 'learning_rate': '1e-3', 'epoch': '0.1'}))\n"
    "    print(f'\\r {i * 20:3d}%|##  | {i}/5 [00:01<00:01, 9.1it/s]', end='')",
    "lightning": "for i in range(1, 6):\n"
    "    print(f'\\rEpoch 0/0 ━━━━ {i}/5 0:00:01 • 0:00:01 9.1it/s train_loss: {3 / i:.3f}')",
    "csv": "print('epoch,step,train_loss')\nfor i in range(1, 6): print(f'0,{i},{3 / i}')",
    "torchtitan": "for i in range(1, 6):\n"
    "    print(f'[titan] 2026-01-01 10:00:00,1 - root - INFO - step: {i}  loss: {3 / i:.4f}')",
    "megatron": "for i in range(1, 6): print(f' iteration {i:8d}/ 5 | lm loss: {3 / i:.6E} | loss scale: 1.0 |')",
    "json": "import json\nfor i in range(1, 6): print(json.dumps({'step': i, 'loss': 3 / i, 'phase': 'train'}))",
}
"""Programs of five steps, with losses 3, 3/2, ... 3/5."""

LOGGED = {
    "trainworks.log": "import trainworks\nfor i in range(1, 6): trainworks.log(step=i, loss=3 / i)",
    "tensorboard": "import os, time\nfrom trainworks.observe.trackers.event_file import scalars\n"
    "os.mkdir('logs')\nfile = open(f'logs/events.out.tfevents.{int(time.time())}.host.{os.getpid()}.0', 'ab')\n"
    "for i in range(1, 6): file.write(scalars(time.time(), i, {'train/loss': 3 / i}))",
    "mlflow": "import os, time\nfrom pathlib import Path\n"
    "folder = Path(os.environ['MLFLOW_TRACKING_URI'].removeprefix('file://'), '0', 'a1', 'metrics')\n"
    "folder.mkdir(parents=True)\nfile = open(folder / 'loss', 'w')\n"
    "for i in range(1, 6): file.write(f'{int(time.time() * 1000)} {3 / i} {i}\\n')",
}
"""Programs that print no metrics."""

RESUMES = """\
import os, sys, time
from pathlib import Path
done = int(Path('saved').read_text()) if Path('saved').exists() else 0
for step in range(done + 1, 31):
    print(f'step {step}/30: loss {3 / step:.4f}')
    time.sleep(0.02)
    if step % 10 == 0:
        print(f'step {step}: val loss {3 / step + 1:.4f}')
        Path('saved').write_text(str(step))
    if step == 25 and done == 0:
        sys.stdout.write('step 26/30: loss 0.')
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
"""


def report_of(program, script, *arguments):
    """The report of a script that is run to its end, as JSON."""
    (program.folder / "train.py").write_text(script)
    code, _, stderr = program.run("run", *arguments, *([] if arguments else ["--", "python", "train.py"]))
    assert code == 0, stderr
    assert "loss" in stderr  # its report
    _, report, _ = program.ask("report", "--json")
    return json.loads(report)


def points(report):
    """Step and loss of the effective steps."""
    return [
        (step, round(loss, 2)) for line in report["curves"]["loss"] if not line["lost"] for step, loss in line["points"]
    ]


FIVE = [(step, round(3 / step, 2)) for step in range(1, 6)]


@pytest.mark.parametrize(
    "style",
    [
        style if style in ("bare", "hugging-face", "lightning") else pytest.param(style, marks=at_night)
        for style in PRINTED
    ],
)
def test_an_unchanged_script_has_its_curve_in_the_report(program, style):
    report = report_of(program, PRINTED[style])
    assert points(report) == FIVE
    assert report["training"]["source"] == "rank-0.log"
    assert report["training"]["steps_done"] == 5


@pytest.mark.lane("test")
@pytest.mark.parametrize("source", LOGGED)
def test_what_a_script_logs_is_its_curve(program, source):
    report = report_of(program, LOGGED[source])
    assert points(report) == FIVE
    assert report["training"]["source"] == source


def test_weights_and_biases_of_a_script_without_an_account_are_read(program):
    pytest.importorskip("wandb", reason="trainworks[wandb]")
    script = "import wandb\nrun = wandb.init(project='p')\n"
    script += "for i in range(1, 6): wandb.log({'loss': 3 / i}, step=i)\nrun.finish()"
    report = report_of(program, script)
    assert points(report) == FIVE
    assert report["training"]["source"] == "wandb"


@pytest.mark.lane("test")
def test_a_script_that_is_killed_within_a_line_goes_on_with_its_curve(program):
    report = report_of(program, RESUMES, "--restarts", "1", "--", "python", "train.py")
    assert points(report) == [(step, round(3 / step, 2)) for step in range(1, 31)]
    assert [(each["first_step"], each["last_step"], each["lost_steps"]) for each in report["attempts"]] == [
        (1, 25, 5),
        (21, 30, 0),
    ]
    assert report["training"]["num_steps"] == 30
    assert [step for step, _ in report["curves"]["eval_loss"]] == [10, 20, 30]
    assert report["evaluations"]["best"]["step"] == 30
    assert report["ledger"]["lost_s"] > 0
    _, why, _ = program.ask("why", "--json")
    assert {each["name"] for each in json.loads(why)["causes"]} >= {"lost_steps"}


def test_what_a_script_logs_counts_before_what_it_prints(program):
    script = "import trainworks\nfor i in range(1, 6):\n"
    script += "    print(f'step {i * 7} loss {i}')\n    trainworks.log(step=i, loss=3 / i)"
    assert points(report_of(program, script)) == FIVE


def test_the_first_rank_alone_logs(program):
    script = "import os, trainworks\nr = int(os.environ['RANK'])\n"
    script += "for i in range(1, 6): trainworks.log(step=i, loss=3 / i + r)"
    (program.folder / "run.yaml").write_text("name: two\nrun: python train.py\ncluster: {processes_per_node: 2}\n")
    assert points(report_of(program, script, "run.yaml")) == FIVE


def test_the_run_file_says_what_a_line_looks_like(program):
    pattern = r"t=(?P<step>\d+) J=(?P<loss>[\d.]+)"
    (program.folder / "run.yaml").write_text(f"name: own\nrun: python train.py\nmetrics: {{pattern: '{pattern}'}}\n")
    script = "for i in range(1, 6): print(f't={i} J={3 / i} loss: 7')"
    assert points(report_of(program, script, "run.yaml")) == FIVE


def test_a_run_ends_once_its_evaluations_do_not_improve(program):
    text = "name: own\nrun: python train.py\nmetrics: {patience: 2}\n"
    (program.folder / "run.yaml").write_text(text)
    script = (
        "import time\nfor i in range(1, 4000):\n    time.sleep(0.01)\n"
        "    print(f'step {i}: train loss {3 / i}, val loss {abs(3 - i)}')\n"
    )
    report = report_of(program, script, "run.yaml")
    assert report["evaluations"]["ended_early"] and report["evaluations"]["best"]["step"] == 3
    assert report["training"]["steps_done"] < 4000
    program.assert_nothing_left()


def test_a_script_that_prints_held_out_losses_alone_has_steps_a_curve_and_an_early_stop(program):
    (program.folder / "run.yaml").write_text("name: own\nrun: python train.py\nmetrics: {patience: 2}\n")
    script = (
        "import time\nfor i in range(1, 4000):\n    time.sleep(0.01)\n"
        "    print(f'step {20 * i}: val loss {abs(3 - i)}')\n    print(f'val accuracy: {1 / i}')\n"
    )
    report = report_of(program, script, "run.yaml")
    found, training = report["evaluations"], report["training"]
    assert found["ended_early"] and found["best"] == found["best"] | {"step": 60, "loss": 0, "accuracy": 1 / 3}
    assert [step for step, _ in report["curves"]["eval_loss"]][:5] == [20, 40, 60, 80, 100]
    assert training["steps_done"] == found["last"]["step"] < 20 * 3999 and training["loss_last"] is None
    assert training["step_s"] > 0.0005 / 20 and training["lost_steps"] == 0
    assert report["runtime_goodput"] > 0 and report["ledger"]["lost_s"] == 0
    assert "Loss, steps 20 to" in (program.run_dir.path / "report.html").read_text()
    assert program.run("why")[0] == program.run("status")[0] == 0
    program.assert_nothing_left()


def test_figures_that_a_script_logs_are_shown_and_what_is_no_number_ends_no_training(program):
    script = (
        "import trainworks\nfor i in range(1, 6):\n"
        "    trainworks.log(step=i, loss=3 / i, reward=i / 2, note=object(), lr='high', names=[1])\n"
        "    trainworks.log(step=i, length=i)\n"
        "trainworks.log(step='last', loss=1)\ntrainworks.log(step=9, figure=None)\n"
    )
    report = report_of(program, script)
    assert points(report) == FIVE
    assert report["curves"]["figures"]["reward"] == [[i, i / 2] for i in range(1, 6)]
    assert report["curves"]["figures"]["length"] == [[i, i] for i in range(1, 6)]
    assert report["evaluations"] is None
    assert output(program).count("trainworks.log: ") == 4  # a line for each of `note`, `lr`, `names` and `step`
    _, text, _ = program.run("report")
    assert "reward" in text and "length" in text
    assert "Reward, steps 1 to 5" in (program.run_dir.path / "report.html").read_text()


def test_a_setting_names_the_tag_of_the_loss(program):
    (program.folder / "run.yaml").write_text("name: own\nrun: python train.py\n")
    script = "import json\nfor i in range(1, 6): print(json.dumps({'step': i, 'objective/kl': 3 / i}))"
    report = report_of(program, script, "run.yaml", "--set", "metrics.names.loss=objective/kl")
    assert points(report) == FIVE


def test_a_sweep_compares_scripts_by_their_curves(program):
    (program.folder / "run.yaml").write_text("name: own\nrun: python train.py\n")
    script = (
        "import os\nfor i in range(1, 41): print(f'step {i}/40: loss {abs(float(os.environ[\"LR\"]) - 0.3) + 1 / i}')"
    )
    (program.folder / "train.py").write_text(script)
    code, out, stderr = program.run("sweep", "run.yaml", "--set", "envs.LR=0.1,0.3,0.9", "--json")
    assert code == 0, stderr
    assert json.loads(out)["best"]["settings"] == {"envs.LR": 0.3}


def test_a_command_without_metrics_has_no_curve_and_no_folder_of_trackers(program):
    (program.folder / "train.py").write_text("print('best loss: 2.1 at step 100')")
    assert program.run("run", "--", "python", "train.py")[0] == 0
    assert not program.run_dir.metrics_file.exists()
    assert not program.run_dir.script_trackers.exists()
    assert not any(event["kind"] == "metrics_source" for event in read_events(program.run_dir.events_file))


def test_the_run_file_says_what_is_read(program):
    text = "name: own\nrun: python train.py\nmetrics: {source: SOURCE}\n"
    script = f"{LOGGED['mlflow']}\nfor i in range(1, 6): print(f'step {{i}} loss {{i}}')".replace(
        "os.environ['MLFLOW_TRACKING_URI']", "os.environ.get('MLFLOW_TRACKING_URI', 'mlruns')"
    )
    (program.folder / "run.yaml").write_text(text.replace("SOURCE", "mlflow"))
    assert points(report_of(program, script, "run.yaml")) == FIVE
    (program.folder / "run.yaml").write_text(text.replace("SOURCE", "none"))
    assert program.run("run", "run.yaml")[0] == 0
    assert not program.run_dir.metrics_file.exists()


TRAINER = """\
import os, signal, torch, transformers
from transformers.trainer_utils import get_last_checkpoint

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
    def forward(self, x, labels):
        return {'loss': ((self.line(x) - labels) ** 2).mean()}

class Killed(transformers.TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.global_step == 4 and os.environ['TRAINWORKS_ATTEMPT'] == '1':
            os.kill(os.getpid(), signal.SIGKILL)

data = [{'x': torch.tensor([float(i % 5)]), 'labels': torch.tensor([2.0 * (i % 5)])} for i in range(40)]
options = transformers.TrainingArguments(
    'out', per_device_train_batch_size=5, num_train_epochs=1, logging_steps=2, save_steps=4, eval_strategy='steps',
    eval_steps=4, report_to='none', use_cpu=True, dataloader_pin_memory=False,
)
trainer = transformers.Trainer(Model(), options, train_dataset=data, eval_dataset=data[:5], callbacks=[Killed()])
trainer.train(resume_from_checkpoint=get_last_checkpoint('out') if os.path.isdir('out') else None)
trainer.save_state()
"""


def test_a_script_with_hugging_faces_trainer_resumes_after_a_kill_with_the_curve_that_it_logs(program):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs it")
    report = report_of(program, TRAINER, "--restarts", "1", "--", "python", "train.py")
    logged = json.loads((program.folder / "out" / "trainer_state.json").read_text())["log_history"]
    assert [(each["first_step"], each["last_step"]) for each in report["attempts"]] == [(2, 4), (6, 8)]
    losses = {each["step"]: each["loss"] for each in logged if "loss" in each}
    assert dict(points(report)) == pytest.approx(losses, abs=0.011)  # it prints four digits, `points` rounds to 0.01
    assert [step for step, _ in report["curves"]["eval_loss"]] == [
        each["step"] for each in logged if "eval_loss" in each
    ]
