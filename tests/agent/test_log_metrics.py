"""What a user's program prints: its metrics are read, and nothing else is taken for one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainworks.agent.log_metrics import LogReader, read_line
from trainworks.agent.metric_names import reading_of

FORMS = {
    "step 38/40 loss 0.08 acc 0.5 tokens/s 1000": {"step": 38, "total": 40, "loss": 0.08},
    "step 38/40 loss 0.08 acc 0.5 tok/s 1000": {"step": 38, "total": 40, "loss": 0.08},
    "step 38 loss 0.08 samples/sec 100.5": {"step": 38, "loss": 0.08},
    "step 38 loss 0.08 samples/sec: 100.5": {"step": 38, "loss": 0.08},
    "[Epoch 1/10] loss: 0.5": {"epoch": 1, "loss": 0.5},
    "[Epoch 1] loss: 0.5": {"epoch": 1, "loss": 0.5},
    "loss=tensor(0.5, device='cuda:0')": {"loss": 0.5},
    "step 3 loss: tensor(0.5000, device='cuda:0', grad_fn=<NllLossBackward0>)": {"step": 3, "loss": 0.5},
    "{'loss': np.float64(0.5), 'step': 3}": {"step": 3, "loss": 0.5},
    "step 5 loss 0.5 gpu mem 12.1GB": {"step": 5, "loss": 0.5},
    "step 5 | loss 0.5 | max mem: 12.1 GB": {"step": 5, "loss": 0.5},
    "epoch 1 loss 0.5 eta 0:12:30": {"epoch": 1, "loss": 0.5},
    "epoch 1 loss 0.5 eta: 1 day, 0:12:30": {"epoch": 1, "loss": 0.5},
    "Epoch(train) [1][50/100]  lr: 1.0e-02  eta: 0:10:00  time: 0.1  data_time: 0.01  memory: 1234  loss: 0.5": {
        "epoch": 1,
        "step": 50,
        "total": 100,
        "lr": 0.01,
        "loss": 0.5,
    },
    "01/01 10:00:00 - mmengine - INFO - Iter(train) [ 100/1000]  base_lr: 1.0e-02 lr: 1.0e-02  loss: 2.3": {
        "step": 100,
        "total": 1000,
        "lr": 0.01,
        "loss": 2.3,
    },
    "Loss at step 10: 0.5": {"step": 10, "loss": 0.5},
    "2024-01-01 10:00:00 INFO Loss at step 10: 0.5": {"step": 10, "loss": 0.5},
    "Training loss (for one batch) at step 100: 0.5": {"step": 100, "loss": 0.5},
    "Validation loss after epoch 3/10 = 0.5": {"epoch": 3, "eval_loss": 0.5},
    "[0/5][10/1000] Loss_D: 0.5 Loss_G: 1.2": {
        "epoch": 0,
        "step": 10,
        "total": 1000,
        "figures/Loss_D": 0.5,
        "figures/Loss_G": 1.2,
    },
    "[0/5][10/1000]\tLoss_D: 0.5\tLoss_G: 1.2\tD(x): 0.5\tD(G(z)): 0.4 / 0.3": {
        "epoch": 0,
        "step": 10,
        "total": 1000,
        "figures/Loss_D": 0.5,
        "figures/Loss_G": 1.2,
    },
    "[Epoch 0/200] [Batch 1/938] [D loss: 0.5] [G loss: 1.2]": {
        "epoch": 0,
        "step": 1,
        "total": 938,
        "figures/D loss": 0.5,
        "figures/G loss": 1.2,
    },
    "epoch 3: val ppl 1.0": {"epoch": 3, "eval_loss": 0.0},
    "epoch 3: val acc 81.25": {"epoch": 3, "eval_accuracy": 0.8125},
    "epoch 3: val_acc: 0.8125": {"epoch": 3, "eval_accuracy": 0.8125},
    "Test accuracy: 98.5%": {"eval_accuracy": 0.985},
    "accuracy: 0.9": None,
    "loss: 3.21": {"loss": 3.21},
    "iter 100: loss 2.3021, time 120.50ms, mfu 3.41%": {"step": 100, "loss": 2.3021},
    "step 250: train loss 1.9654, val loss 1.9812": {"step": 250, "loss": 1.9654, "eval_loss": 1.9812},
    "{'loss': 1.2, 'grad_norm': 2.5, 'learning_rate': 5e-05, 'epoch': 0.1}": {
        "loss": 1.2,
        "grad_norm": 2.5,
        "lr": 5e-05,
        "epoch": 0.1,
    },
    "{'loss': '10.82', 'grad_norm': '2.5', 'learning_rate': '5e-05', 'epoch': '0.1'}": {
        "loss": 10.82,
        "grad_norm": 2.5,
        "lr": 5e-05,
        "epoch": 0.1,
    },
    "{'eval_loss': 2.1, 'eval_runtime': 12.3, 'eval_samples_per_second': 10.1, 'epoch': 1.0}": {
        "eval_loss": 2.1,
        "eval_runtime": 12.3,
        "epoch": 1,
    },
    '{"step": 10, "loss": 2.3, "lr": 1e-4, "time": "2026-01-01"}': {"step": 10, "loss": 2.3, "lr": 0.0001},
    "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.290": {"epoch": 1, "step": 640, "total": 60000, "loss": 2.29},
    "Epoch: [0][  10/5005]\tTime  0.350 ( 0.512)\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.00 (  0.10)": {
        "epoch": 0,
        "step": 10,
        "total": 5005,
        "loss": 6.9,
    },
    " iteration        1/   50 | elapsed time per iteration (ms): 3000.1 | lm loss: 1.08E+01 |": {
        "step": 1,
        "total": 50,
        "loss": 10.8,
    },
    "[2026-01-01 10:00:00] iteration 1/ 50 | lm loss: 1.08E+01 | loss scale: 1.0 | number of nan iterations: 0 |": {
        "step": 1,
        "total": 50,
        "loss": 10.8,
    },
    "\x1b[31m[titan] 2025-01-01 10:00:00,123 - root - INFO - step:  1  \x1b[33mloss: 12.2  memory: 20.2GiB(21.3%)": {
        "step": 1,
        "loss": 12.2,
    },
    "Step 1 | loss:2.345 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_active:12.1": {
        "step": 1,
        "loss": 2.345,
        "lr": 2e-05,
    },
    "Epoch 0/9  ━━━━━━━━━━ 450/1000 0:00:10 • 0:00:12 43.21it/s v_num: 0.000 train_loss: 2.100": {
        "epoch": 0,
        "step": 450,
        "total": 1000,
        "loss": 2.1,
    },
    "450/1000 ━━━━━━━━━━━━━━━━━━━━ 10s 12ms/step - accuracy: 0.8012 - loss: 0.5123": {
        "step": 450,
        "total": 1000,
        "loss": 0.5123,
    },
    "100/100 [==========] - 2s 5ms/step - loss: 0.5 - accuracy: 0.8 - val_loss: 0.6 - val_accuracy: 0.78": {
        "step": 100,
        "total": 100,
        "loss": 0.5,
        "eval_loss": 0.6,
        "eval_accuracy": 0.78,
    },
    "Train: 0 [   0/1251 (  0%)]  Loss: 6.93 (6.93)  Time: 1.2s, 200.1/s  (1.2s, 200.1/s)  LR: 1e-05": {
        "epoch": 0,
        "step": 0,
        "total": 1251,
        "loss": 6.93,
        "lr": 1e-05,
    },
    "Epoch [1/10], Step [100/600], Loss: 0.5123": {"epoch": 1, "step": 100, "total": 600, "loss": 0.5123},
    "epoch 19: loss 0.0345": {"epoch": 19, "loss": 0.0345},
    "[1,  2000] loss: 2.187": {"epoch": 1, "step": 2000, "loss": 2.187},
    "Epoch:  10, Loss: 0.123, Train: 0.9000, Val: 0.8000, Test: 0.7000": {"epoch": 10, "loss": 0.123},
    "Test set: Average loss: 0.05, Accuracy: 985/1000 (98%)": {"eval_loss": 0.05, "eval_accuracy": 0.985},
    "Test set: Average loss: 0.05, Accuracy: (98%)": {"eval_loss": 0.05, "eval_accuracy": 0.98},
    "step 60: train_loss_step: 2.5, val_loss_step: 2.7, val_loss_epoch: 2.6": {
        "step": 60,
        "loss": 2.5,
        "eval_loss": 2.6,
    },
    "====> Test set loss: 101.12": {"eval_loss": 101.12},
    "step 3 | loss 2.5 | 12.3 samples/sec": {"step": 3, "loss": 2.5},
    "2024-01-01 10:00:00.123 | INFO     | __main__:train:42 - step 10 loss 2.3": {"step": 10, "loss": 2.3},
    "INFO:root:Step 10 loss=2.3": {"step": 10, "loss": 2.3},
    "INFO:__main__:step 10: loss=2.3": {"step": 10, "loss": 2.3},
    "[rank0]: step 5 loss 2.1 lr 1e-3": {"step": 5, "loss": 2.1, "lr": 0.001},
    "[01/01 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 2.3  loss_cls: 1.2  lr: 0.001": {
        "step": 19,
        "loss": 2.3,
        "lr": 0.001,
    },
    "step=1000, loss=nan": {"step": 1000, "loss": float("nan")},
    "| epoch 001:     10 / 100 loss=2.3, ppl=10.1, wps=1000, gnorm=1.2, lr=0.001": {
        "epoch": 1,
        "step": 10,
        "total": 100,
        "loss": 2.3,
        "grad_norm": 1.2,
        "lr": 0.001,
    },
    "step 1,500 | loss 2.31 | 12.5k tok/s": {"step": 1500, "loss": 2.31},
    "Epoch 1 | Batch 10 | Loss 0.52": {"epoch": 1, "step": 10, "loss": 0.52},
    "Iteration 100/1000: Loss = 0.25": {"step": 100, "total": 1000, "loss": 0.25},
    "[10/1000] loss: 2.3": {"step": 10, "total": 1000, "loss": 2.3},
    "step 10 | loss: 9.531250 | lr 6.0e-04 | norm: 2.1 | dt: 120.33ms | tok/sec: 4350.12": {
        "step": 10,
        "loss": 9.53125,
        "lr": 0.0006,
    },
    "I0101 10:00:00.000000 1234 train.py:12] step: 10, loss: 2.5": {"step": 10, "loss": 2.5},
    "Epoch 1/10 - train_loss: 0.5 - val_loss: 0.6": {"epoch": 1, "loss": 0.5, "eval_loss": 0.6},
    "| epoch   1 |   200/ 2983 batches | lr 20.00 | ms/batch 12.34 | loss  5.67 | ppl   289.12": {
        "epoch": 1,
        "step": 200,
        "total": 2983,
        "lr": 20,
        "loss": 5.67,
    },
    "| end of epoch   1 | time: 12.34s | valid loss  5.67 | valid ppl   289.12": {"epoch": 1, "eval_loss": 5.67},
    "iter_dt 120.50ms; iter 100: train loss 2.30123": {"step": 100, "loss": 2.30123},
    "step   10/100 | train loss 5.3 | norm 1.2 | (12.34 ms | 5678 tok/s)": {"step": 10, "total": 100, "loss": 5.3},
    "Epoch 5 Train Loss 0.5 Train Acc 90% Val Loss 0.6 Val Acc 80%": {
        "epoch": 5,
        "loss": 0.5,
        "eval_loss": 0.6,
        "eval_accuracy": 0.8,
    },
    "{'loss': '2.5', 'num_tokens': '4096', 'mean_token_accuracy': '0.5', 'epoch': '0.5'}": {"loss": 2.5, "epoch": 0.5},
    "step 10 | loss 3.2 | step time 12.00ms": {"step": 10, "loss": 3.2},
    "completed step: 5, seconds: 0.5, TFLOP/s/device: 12.3, loss: 8.1": {"step": 5, "loss": 8.1},
    "global step 10, epoch: 1, batch: 10, loss: 0.5, speed: 1.2 step/s": {"step": 10, "epoch": 1, "loss": 0.5},
    "===> Epoch[1](10/50): Loss: 0.1000": {"epoch": 1, "step": 10, "total": 50, "loss": 0.1},
    "====> Epoch: 1 Average loss: 101.1": {"epoch": 1, "loss": 101.1},
    "4242\tTrain Epoch: 1 [64/640 (10%)]\tLoss: 2.2": {"epoch": 1, "step": 64, "total": 640, "loss": 2.2},
    "2024-01-01 10:00:00,123 - INFO - joeynmt.training - Epoch   1, Step:      100, Batch Loss:     2.3, "
    "Batch Acc: 0.3, Tokens per Sec:     1234, Lr: 0.0003": {"epoch": 1, "step": 100, "loss": 2.3, "lr": 0.0003},
    "Epoch 1 | iter 10 step 5 | loss train: 2.345, val: n/a | iter time: 12.34 ms (step) remaining time: 0:00:10": {
        "epoch": 1,
        "step": 10,
        "loss": 2.345,
    },
    "Epoch 1 | iter 12 step 6 | loss train: 2.1, val: 2.4 | iter time: 12.34 ms": {
        "epoch": 1,
        "step": 12,
        "loss": 2.1,
        "eval_loss": 2.4,
    },
    "[3]\teval-logloss:0.25\ttrain-logloss:0.125": {"step": 3, "loss": 0.125, "eval_loss": 0.25},
    "[3]\ttraining's binary_logloss: 0.5\tvalid_0's binary_logloss: 0.75": {
        "step": 3,
        "loss": 0.5,
        "eval_loss": 0.75,
    },
    "I20240101 10:00:00 123 dinov2 helpers.py:102] Training  [  10/12500]  eta: 1:00:00  total_loss: 11.2 (11.3)": {
        "step": 10,
        "total": 12500,
        "loss": 11.2,
    },
    "2024-01-01 10:00:00 | INFO | train_inner | epoch 001:     10 / 100 loss=2.3, ppl=4.9, lr=0.001, gnorm=1.2": {
        "epoch": 1,
        "step": 10,
        "total": 100,
        "loss": 2.3,
        "lr": 0.001,
        "grad_norm": 1.2,
    },
    "2024-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 5.1 | ppl 22.1 | num_updates 9": {
        "epoch": 1,
        "step": 9,
        "eval_loss": 5.1,
    },
    "epoch: 3 | loss: 0.25 | num_updates: 300": {"epoch": 3, "loss": 0.25, "step": 300},
    "Epoch 5 Train Loss 0.5 Val Loss 0.6 Val Acc 91.2%": {
        "epoch": 5,
        "loss": 0.5,
        "eval_loss": 0.6,
        "eval_accuracy": 0.912,
    },
}
"""Lines of nanoGPT, torchtitan, torchtune, Megatron, timm, Keras, detectron2, fairseq, Hugging Face and plain loops."""

NO_METRICS = """\
loss: 3 terms
resumed from step 100, loss 2.31
best loss: 2.1
best loss: 2.1 at step 100
Best val loss so far
lowest loss 2.1
loss decreased from 2.3 to 2.1
packet loss 0.5%
packet loss: 0.5
0.0% packet loss
loss: 0.5%
loss: 10s
loss: 3.2 MB
weight loss: 3.2 kg
Saving checkpoint with loss 2.31 to ckpt-2.31.pt
saved model_loss=0.31.ckpt
Early stopping: loss 2.31 did not improve for 3 epochs
target loss: 2.0
expected loss ~ 10.8
loss 2.3 -> 2.1
loss scale: 65536.0
Reducing loss scale to 32768
Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 65536.0
using loss=cross_entropy
loss = nn.CrossEntropyLoss()
loss_weight=0.5
loss weights: [1.0, 0.5]
--loss 2.5 is deprecated
Namespace(loss=0.5, lr=0.001)
TrainingArguments(loss=1.0, learning_rate=5e-05)
{'loss': 'cross_entropy', 'lr': 0.1}
{'loss': 1.0, 'batch_size': 32, 'lr': 0.1}
{"loss": 1.0, "optimizer": "adamw"}
{"loss_fn": 1.0, "step": 3}
{'train_runtime': 12.3, 'train_samples_per_second': 10.2, 'train_loss': 1.98, 'epoch': 1.0}
lr: 0.001, loss: 1.0, epochs: 10, batch_size: 32
Test set: Average loss: 0.0543, Accuracy: 9829/10000 (98%) on disk
Test: [ 10/100] Loss: 0.5 (0.6)
warning: loss is nan
WARNING step 10: loss 2.3
ERROR loss: 3.2
loss: 12:30:05
loss: 0x1f
loss: 2.3.1
loss: v2
loss 1,2,3
def loss(x): return 2.0
assert loss < 3.0
lossless: 3.0
glossary: 4
floss 2.3
no loss: 3
final loss: 2.1
minimum loss = 0.5 (step 100)
Loss function: mse, reduction: 0.5
learning rate 0.1, target loss 2.0, patience 3
100 requests, 0 loss
loss:
loss: -
loss: N/A
loss train: n/a, val: n/a
INFO - lowest - loss 2.1
2024-01-01 10:00:00 INFO - val - loss 2.1
time lost: 3.2
In 3 steps the loss fell by 0.5
model loss parameters: 100,000 params
epochs=3 loss=1.0
+ loss: 2.3
- loss: 2.1
> loss 2.1
# loss: 2.1
loss 2.1 (best)
Total loss function evaluations 300 times
01/01 10:00:00 - mmengine - INFO - Epoch(val)  [1][ 100/1000]  eta: 0:10:00  loss: 2.3
01/01 10:00:00 - mmengine - INFO - Epoch(val) [1][100/100]  accuracy/top1: 80.5
The loss at step 10: 0.5
Best loss at step 10: 0.5
Loss at step 10: 0.5 is the best
Loss at step 10: see the log
no loss at step 10
eta 0:12:30
step 10 eta 0:12:30
loss eta 0:12:30
step 10 gpu mem 12.1GB
step 10 loss of gpu mem 12.1GB
lr: 0.001
step 10 lr 0.001
step 10 lr 0.001 tokens/s 1000
tokens/s 1000 without a loss
Perplexity: 3
ppl 12.3
Loss_D: 0.5 Loss_G: 1.2
[0/5][10/1000] Loss_D: 0.5
[Epoch 1/10] loss goes down
loss=tensor([0.5, 0.6])
val_loss_step: 2.5
test acc 9829
step    10/19560 | loss 9.53 (+0.00z)| norm 2.1 (+0.00z)| 43.1% bf16 MFU | 4350 tok/s
Epoch 3, global step 500: 'val_loss' reached 0.50
""".splitlines()
INDENTED = [
    "  train_loss               =     1.9812",
    "  loss: 1.0",
    "    loss = 2.0 * x",
    '  File "train.py", line 10, in loss',
]
"""Settings, summaries and code, which programs print below a heading."""


@pytest.mark.parametrize(("line", "metrics"), FORMS.items())
def test_a_line_of_metrics_is_read(line: str, metrics: dict[str, float]) -> None:
    assert read_line(line) == pytest.approx(metrics, nan_ok=True)


@pytest.mark.parametrize(
    ("field", "names"),
    {
        "loss": "Loss/train loss/train loss_train Train/Loss train_loss_epoch loss/total epoch_loss Loss/train_step",
        "eval_loss": "Loss/val Loss/test Loss/validation val_loss_epoch loss/val_epoch eval/loss",
        "eval_accuracy": "Accuracy/test Acc/val val/accuracy test_accuracy",
        None: "perplexity val_loss_step Loss_D Accuracy/train loss_scale max_loss objective/kl",
    }.items(),
)
def test_tags_of_trackers_name_what_and_of_which_data_in_either_order(field: str | None, names: str) -> None:
    for name in names.split():
        assert reading_of({name: 0.75}) == ({field: 0.75} if field else None), name


def test_a_perplexity_is_the_exponential_of_a_loss_that_goes_first() -> None:
    assert reading_of({"train/perplexity": 1.0, "val_ppl": 1.0}) == {"loss": 0.0, "eval_loss": 0.0}
    assert reading_of({"train/perplexity": 12.0, "train/loss": 2.0}) == {"loss": 2.0}


def test_a_loss_of_steps_goes_before_the_mean_of_the_epoch() -> None:
    assert reading_of({"train_loss_epoch": 3.0, "train_loss_step": 2.0}) == {"loss": 2.0}


def test_the_run_file_names_what_a_program_calls_its_loss() -> None:
    reader = LogReader(names={"loss": "objective/kl", "step": "env_steps"})
    lines = (
        'objective/kl: 0.5\n{"env_steps": 7, "objective/kl": 0.25, "batch_size": 8}\nloss: 9.0 objective/kl: 0.125\n'
    )
    assert [(each["step"], each["loss"]) for each in reader.read(lines)] == [(1, 0.5), (7, 0.25), (2, 0.125)]


YOLO = """
      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
\r        1/3      2.5G        1.5        2.5        1.0         42        640:   0%|          | 0/50 [00:00<?, ?it/s]\
\r        1/3      2.5G       1.25        2.5        1.0         42        640: 100%|####| 50/50 [00:10<00:00,  4.9it/s]
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|###| 3/3 [00:00<00:00]
                   all        128        929       0.64      0.537      0.605      0.446

      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
        2/3      2.5G        1.0        2.0        1.0         42        640: 100% ━━━━━━━━━━━━ 50/50 4.9it/s 10.2s
"""


def test_an_epoch_of_yolo_has_the_sum_of_its_losses() -> None:
    found = LogReader().read(YOLO, last=True)
    assert found == [{"step": 1, "total": 3, "loss": 4.75}, {"step": 2, "total": 3, "loss": 4.0}]
    written = {"train/box_loss": 1.0, "train/cls_loss": 2.0, "val/box_loss": 2.0, "val/cls_loss": 3.0}
    assert reading_of(written) == {"loss": 3.0, "eval_loss": 5.0}
    assert reading_of({"box_loss": 1.0}) is None


@pytest.mark.parametrize(
    ("text", "found"),
    {
        "epoch 1: val acc: 0.1\nepoch 2: val acc: 0.2\nepoch 3: val acc: 0.3\n": [1, 2, 3],
        "val loss: 3\nval acc: 0.1\nval loss: 2\nval acc: 0.2\n": [1, 1, 2, 2],
        "step 20: val loss 1.15\nval acc: 0.5\nstep 40: val loss 1.1\n": [20, 20, 40],
        "epoch 1 val loss 0.5\nepoch 1 val acc 0.5\nepoch 2 val loss 0.4\n": [1, 1, 2],
        "val loss 3.0\nloss: 2.9\nloss: 2.8\nval loss 2.7\n": [1, 1, 2, 2],
    }.items(),
)
def test_evaluations_of_a_program_that_prints_no_loss_have_steps(text: str, found: list[int]) -> None:
    assert [each["step"] for each in LogReader().read(text, last=True)] == found


@pytest.mark.parametrize("line", NO_METRICS + INDENTED)
def test_a_line_that_is_no_metric_is_never_taken_for_one(line: str) -> None:
    assert read_line(line) is None
    assert LogReader().read(f"{line}\n", last=True) == []


def steps(text: str, reader: LogReader | None = None) -> list[tuple[float, float]]:
    """Step and loss of every reading of the text."""
    found = (reader or LogReader()).read(text, last=True)
    return [(each["step"], each.get("loss", each.get("eval_loss", 0.0))) for each in found]


def test_losses_without_a_step_are_counted() -> None:
    assert steps("loss: 3.0\nsaved\nloss: 2.0\nloss: 1.5\n") == [(1, 3.0), (2, 2.0), (3, 1.5)]


def test_a_bar_of_tqdm_says_its_step_and_its_loss() -> None:
    bars = "".join(
        f"\r{n // 10:3d}%|####      | {n}/1000 [00:10<00:12, 43.2it/s, loss={3 - n / 1000:.2f}]" for n in (0, 450, 451)
    )
    assert steps(f"{bars}\n") == [(0, 3.0), (450, 2.55), (451, 2.55)]


def test_a_bar_of_another_work_says_nothing() -> None:
    assert steps("\rEvaluating:  50%|##   | 5/10 [00:01<00:01, 5.00it/s, loss=2.10]\n") == []
    assert steps("\rValidation DataLoader 0:  50%|##   | 5/10 [00:01<00:01, 5.00it/s, val_loss=2.10]\n") == []


def test_lightnings_bar_counts_over_the_epochs() -> None:
    lines = [
        f"\rEpoch {epoch}:  50%|#####     | {n}/20 [00:01<00:01, 9.0it/s, v_num=0, train_loss={3 - epoch - n / 20}]"
        for epoch in (0, 1)
        for n in (10, 20)
    ]
    assert steps("".join(lines) + "\n") == [(10, 2.5), (20, 2.0), (30, 1.5), (40, 1.0)]


def test_torchtunes_bar_has_the_loss_before_it() -> None:
    assert steps("\r1|10|Loss: 2.3456:   1%|1         | 10/1000 [00:10<16:30,  1.00s/it]\n") == [(10, 2.3456)]


def test_hugging_faces_trainer_has_its_steps_in_the_bar_that_it_draws_below_a_line() -> None:
    text = (
        "Map: 100%|##########| 5000/5000 [00:01<00:00, 4000.00 examples/s]\n"
        "\r  0%|          | 0/500 [00:00<?, ?it/s]\r  2%|2         | 8/500 [00:01<01:10,  6.95it/s]"
        "\r                                                 \r{'loss': '2.5', 'grad_norm': '1.2', "
        "'learning_rate': '5e-05', 'epoch': '1.0'}\n\r  2%|2         | 10/500 [00:01<01:10,  6.95it/s]"
        "\r  0%|          | 0/7 [00:00<?, ?it/s]\r100%|##########| 7/7 [00:00<00:00, 70.00it/s]"
        "\r                 \r{'eval_loss': '2.4', 'eval_runtime': '0.1', 'epoch': '0.02'}\n"
        "\r  2%|2         | 10/500 [00:02<01:10,  6.95it/s]\r  4%|4         | 20/500 [00:03<01:10,  6.95it/s]"
        "\r          \r{'loss': '2.3', 'epoch': '0.04'}\n\r  4%|4         | 20/500 [00:03<01:10,  6.95it/s]\n"
        "{'train_runtime': '3.0', 'train_loss': '2.4', 'epoch': '0.04'}\n"
    )
    assert steps(text) == [(10, 2.5), (10, 2.4), (20, 2.3)]


@pytest.mark.parametrize("work", ["Adding EOS to train dataset", "Downloading", ""])
def test_a_bar_of_work_before_the_training_is_not_that_of_its_steps(work: str) -> None:
    text = (
        f"\r{work}:   0%|          | 0/400 [00:00<?, ?it/s]\r{work}: 100%|####| 400/400 [00:01<00:00, 400.00it/s]\n"
        "\r  0%|          | 0/100 [00:00<?, ?it/s]\r  4%|4         | 4/100 [00:01<00:20,  4.00it/s]"
        "\r          \r{'loss': '5.7', 'epoch': '0.1'}\n\r  5%|5         | 5/100 [00:01<00:20,  4.00it/s]"
        "\r  9%|9         | 9/100 [00:01<00:20,  4.00it/s]\r          \r{'loss': '5.5', 'epoch': '0.2'}\n"
        "\r 10%|#         | 10/100 [00:02<00:20,  4.00it/s]"
    )
    assert steps(text) == [(5, 5.7), (10, 5.5)]


def test_a_counter_that_begins_again_with_every_epoch_goes_on() -> None:
    named = "".join(f"Epoch: [{e}][{n}/100]\tLoss {e + n / 100} (1.0)\n" for e in (0, 1) for n in (0, 50))
    assert steps(named) == [(0, 0.0), (50, 0.5), (100, 1.0), (150, 1.5)]
    from_one = "".join(f"Epoch [{e}/2], Step [{n}/100], Loss: {e + n / 100}\n" for e in (1, 2) for n in (50, 100))
    assert steps(from_one) == [(50, 1.5), (100, 2.0), (150, 2.5), (200, 3.0)]
    without = "".join(f"{n}/100 [=====>...] - 2s 5ms/step - loss: 0.5\n" for n in (50, 100, 50, 100))
    assert [step for step, _ in steps(without)] == [50, 100, 150, 200]
    whole = "".join(f"epoch {1 + n // 100} step {n}/200: loss 0.5\n" for n in (50, 100, 150, 200))
    assert [step for step, _ in steps(whole)] == [50, 100, 150, 200]


@pytest.mark.parametrize("form", ["[{}, {}] loss: 2.5", "Epoch {} | Batch {} | Loss 2.5"])
@pytest.mark.parametrize(("lines", "steps"), [((100,), [100, 200]), ((100, 200), [100, 200, 300, 400])])
def test_batches_of_the_next_epoch_go_on_though_no_line_says_how_many_there_are(
    form: str, lines: tuple[int, ...], steps: list[int]
) -> None:
    text = "".join(form.format(epoch, batch) + "\n" for epoch in (1, 2) for batch in lines)
    assert [reading["step"] for reading in LogReader().read(text)] == steps


def test_an_evaluation_without_a_step_follows_the_step_before_it() -> None:
    text = "Train Epoch: 2 [64/640 (10%)] Loss: 2.5\nTest set: Average loss: 0.5, Accuracy: 98/100 (98%)\n"
    assert steps(f"Train Epoch: 1 [64/640 (10%)] Loss: 2.6\n{text}") == [(64, 2.6), (704, 2.5), (704, 0.5)]
    assert steps("step 250: train loss 2.0\niter 251: loss 1.9\nepoch 1: val loss 2.2\n")[-1] == (251, 2.2)
    assert steps("iter 0: loss 4.2654, time 5023.61ms, mfu -100.00%\n") == [(0, 4.2654)]


def test_the_mean_of_an_epoch_follows_its_steps_and_brings_the_evaluation_alone() -> None:
    text = "Train Epoch: 1 [0/640 (0%)]\tLoss: 5.0\nTrain Epoch: 1 [320/640 (50%)]\tLoss: 2.0\n"
    assert steps(f"{text}====> Epoch: 1 Average loss: 3.5\n") == [(0, 5.0), (320, 2.0)]
    found = LogReader().read(f"{text}Epoch 1: train loss 3.5, val loss 2.5\n")
    assert found[-1] == {"epoch": 1, "step": 320, "eval_loss": 2.5}
    assert steps(f"{text}Epoch 2: loss 3.5\n")[-1][1] == 3.5


def test_an_evaluation_that_counts_its_own_batches_stays_at_the_step_before_it() -> None:
    line = "[RANK0] Epoch {} | Iter {} | {} Loss {}\n"
    printed = [
        (1, 0, "Train", 4.0),
        (1, 100, "Train", 3.0),
        (1, 0, "Eval", 3.5),
        (1, 50, "Eval", 3.25),
        (2, 0, "Train", 2.5),
    ]
    text = "".join(line.format(*each) for each in printed)
    assert steps(text) == [(0, 4.0), (100, 3.0), (100, 3.5), (100, 3.25), (101, 2.5)]


def test_a_heading_says_that_the_line_below_it_is_of_held_out_data() -> None:
    text = "loss: 2.5  [   64/60000]\nTest Error: \n Accuracy: 50.0%, Avg loss: 2.25 \n\n"
    assert LogReader().read(text)[1:] == [{"step": 64, "eval_loss": 2.25, "eval_accuracy": 0.5}]


def test_a_box_of_names_and_values_is_one_reading() -> None:
    rows = "| time/              |          |\n|    total_timesteps | 4096     |\n| train/             |          |\n"
    rows += "|    learning_rate   | 0.0003   |\n|    loss            | 8.45     |\n"
    text = f"{'-' * 33}\n{rows}{'-' * 33}\n"
    assert LogReader().read(text) == [{"step": 4096, "lr": 0.0003, "loss": 8.45}]
    assert LogReader().read("| loss | 8.45 |\n|------|------|\nloss of the table\n") == []


def test_what_is_printed_while_a_bar_stands_in_the_line_is_read() -> None:
    bars = [f"\rtraining:  {n}%|#   | {n}/100 [00:01<01:40,  1.00s/it]" for n in range(3)]
    printed = ["training loss: 5.5\n", "training loss: 5.25\nvalidation loss: 5.0\n", "training loss: 4.5\n"]
    found = LogReader().read(
        "".join(map("".join, zip(bars, printed, strict=True))) + bars[2].replace("2/", "3/"), last=True
    )
    assert [(each["step"], each["loss"], each.get("eval_loss")) for each in found] == [
        (1, 5.5, None),
        (2, 5.25, 5.0),
        (3, 4.5, None),
    ]


def test_a_restart_in_a_later_epoch_has_the_steps_of_that_epoch() -> None:
    reader = LogReader()
    assert steps("Train Epoch: 1 [64/640 (10%)] Loss: 2.5\n", reader) == [(64, 2.5)]
    reader.begin()
    assert steps("Train Epoch: 3 [64/640 (10%)] Loss: 1.5\n", reader) == [(1344, 1.5)]


def test_what_another_process_prints_late_is_left_out() -> None:
    assert steps("step 10 loss 2.0\nstep 20 loss 1.9\nstep 10 loss 2.1\nstep 30 loss 1.8\n") == [
        (10, 2.0),
        (20, 1.9),
        (30, 1.8),
    ]


def test_rows_below_a_header_are_metrics() -> None:
    text = "epoch,step,train_loss,val_loss\n0,10,2.5,\n0,20,2.25,2.4\nsaved,20,now,\n"
    assert LogReader().read(text) == [
        {"epoch": 0, "step": 10, "loss": 2.5},
        {"epoch": 0, "step": 20, "loss": 2.25, "eval_loss": 2.4},
    ]
    assert steps("name,loss,weight\na,1.0,2\n") == []


def test_a_line_that_was_cut_off_is_no_line() -> None:
    reader = LogReader()
    assert reader.read("step 1 loss 2.5\nstep 2 loss 2.") == [{"step": 1, "loss": 2.5}]
    assert reader.read("", last=True, whole=False) == []
    reader.begin()
    assert steps("step 2 loss 2.25\n", reader) == [(2, 2.25)]
    assert reader.read("step 3 loss 2.0", last=True) == [{"step": 3, "loss": 2.0}]


def test_a_pattern_replaces_the_known_forms() -> None:
    reader = LogReader(r"it=(?P<step>\d+) L=(?P<loss>[\d.]+)")
    assert steps("it=7 L=2.5 (ok)\nstep 8 loss 2.0\n", reader) == [(7, 2.5)]


def test_the_guide_names_lines_that_are_read_and_lines_that_are_not() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "your-own-script.md").read_text(encoding="utf-8")
    table = guide[guide.index("| printed |") : guide.index("A line counts")].splitlines()[2:]
    printed = [
        line.replace("\\|", "|") for row in table if row for line in re.findall(r"`([^`]+)`", row.split(" | ")[0][1:])
    ]
    assert len(printed) > 10
    header = "epoch,step,train_loss"
    for line in printed:
        text = f"{header}\n{line}\n" if line[0].isdigit() and "," in line and "%" not in line else f"{line}\n"
        assert line == header or LogReader().read(text, last=True), line
    refused = re.findall(r"`([^`]+)`", guide[guide.index("A line counts") :].split(" are none")[0].replace("\n", " "))
    assert len(refused) == 4
    assert not any(read_line(line) for line in refused[:3]) and read_line(f"  {refused[3]}") is None
