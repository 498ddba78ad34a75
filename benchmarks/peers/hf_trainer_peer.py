"""The same training with the Trainer of transformers."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from common import BETAS, CLIP_GRAD_NORM, WEIGHT_DECAY, StepClock, TokenWindows, build_model, collate, log
from config import PeerConfig
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class ClockCallback(TrainerCallback):
    """Feeds the clock; logs to stderr in place of the Trainer's own printer."""

    def __init__(self, clock: StepClock) -> None:
        self.clock = clock

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """One optimizer step is done; the Trainer logs it right after this, so inside the next step's time."""
        self.clock.step_ended()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Log the loss that the Trainer has averaged."""
        if state.is_world_process_zero and logs and "loss" in logs:
            log(state.global_step, loss=float(logs["loss"]))


def main() -> None:
    """Train under `torchrun`, print one line."""
    config = PeerConfig.from_command_line()
    clock = StepClock("hf_trainer", config, int(os.environ["RANK"]))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=build_model(config),
            args=training_arguments(config, folder),
            train_dataset=TokenWindows(config),
            data_collator=collate,
            callbacks=[ClockCallback(clock)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    clock.print_result()


def training_arguments(config: PeerConfig, folder: str) -> TrainingArguments:
    """The same hyperparameters, and every extra of the Trainer off."""
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        per_device_train_batch_size=config.micro_batch,
        max_steps=config.steps,
        learning_rate=config.lr,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP_GRAD_NORM,
        optim="adamw_torch_fused",
        lr_scheduler_type="cosine",
        warmup_steps=config.lr_warmup_steps,
        logging_steps=config.log_every,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_drop_last=True,
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        seed=config.seed,
    )


if __name__ == "__main__":
    main()
