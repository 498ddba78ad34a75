"""The key `workload` of a run file: what Trainworks trains, or what the program of a command does."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainworks.config.data import Data, Evaluation
from trainworks.config.finetune import Adapter, Chat, Preference, check_samples
from trainworks.config.limits import up_to
from trainworks.config.model import Model
from trainworks.config.optimizer import Optimizer
from trainworks.config.quantities import TrainForField
from trainworks.config.spec import CallbackClass, FieldError, Spec


class Workload(Spec):
    """A training run of Trainworks."""

    task: Literal["causal-lm", "masked-lm", "image-classification", "diffusion", "module"]
    """Objective: next token, masked tokens, classes of images, noise of latents (a plan alone), or your file's."""
    model: Model
    adapter: Adapter | None = None
    """Train low-rank adapters (LoRA) and leave the weights of the checkpoint as they are."""
    preference: Preference | None = None
    """Train on preferences (DPO, KTO, a reward model) instead of on the next token; `{}` for the defaults, DPO."""
    data: Data = Data()
    """Training data; not used with `task: module`, whose file builds its own dataset."""
    precision: Literal["fp32", "bf16", "fp16", "tf32", "fp8", "fp4"] = "bf16"
    """Arithmetic of forward and backward; weights, sums and optimizer stay in fp32. By default bf16, or fp32 on a
    processor that only emulates bf16. tf32 and fp8 need accelerators with support; fp4 can be planned, not trained."""
    global_batch: Annotated[int, up_to("global_batch")]
    """Sequences, pairs, images or samples per optimizer step, over all ranks."""
    train_for: TrainForField
    optimizer: Optimizer = Optimizer()
    eval: Evaluation | None = None
    """Evaluation on held-out data during training; none by default."""
    callbacks: tuple[CallbackClass, ...] = ()
    """Classes of your own, `package.module:Class`, whose methods every rank calls during training; modules are found
    in the folder that the run was started in, and among installed packages."""
    compile: bool | Literal["auto"] = "auto"
    """Compile blocks with torch.compile; `auto`: on accelerators, if the plan expects it to save more than it takes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    deterministic: bool = False
    """Make two runs on the same ranks bit-identical on a GPU too. Slower; refuses operations without such a version."""
    sample_prompt: str | None = None
    """Prompt that the trained model continues at the end of the run."""

    @property
    def unit(self) -> Literal["tokens", "images", "samples"]:
        """Unit of the throughput."""
        return "images" if self.task == "image-classification" else "tokens" if "-lm" in self.task else "samples"

    @property
    def has_perplexity(self) -> bool:
        """Whether the loss is a cross-entropy of tokens."""
        return self.unit == "tokens" and self.preference is None

    @property
    def is_fine_tuned(self) -> bool:
        """Whether a checkpoint with an adapter or a reference trains, which replicas and shards alone can do."""
        return self.adapter is not None or self.preference is not None

    @property
    def trains_reward(self) -> bool:
        """Whether the model gives a sequence one number, its reward, in place of logits."""
        return self.preference is not None and not self.preference.has_reference

    @property
    def lacks_weights(self) -> bool:
        """Whether a fine-tuning names no checkpoint to start from: it can be planned, and not run."""
        return self.is_fine_tuned and self.model.weights != "pretrained"

    @property
    def sequences_per_sample(self) -> int:
        """Those that take a gradient: two for a pair of answers."""
        return 1 if self.preference is None or self.data.chat is None else self.data.chat.conversations

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.global_batch * self.sequences_per_sample * self.data.sequence_length

    @model_validator(mode="after")
    def _can_be_deterministic(self) -> Workload:
        if self.deterministic and self.compile is True:
            raise FieldError(
                "`compile` measures kernels and takes the fastest, which may differ from run to run; "
                "`deterministic` needs `compile: false`"
            )
        return self

    @model_validator(mode="after")
    def _has_held_out_data(self) -> Workload:
        if self.eval is not None:
            self.eval.check_task(self.task, has_pairs=self.preference is not None)
        return self

    @model_validator(mode="after")
    def _module_or_data(self) -> Workload:
        if (self.task == "module") != (self.model.module is not None):
            raise FieldError("`task: module` needs `model.module`, its Python file, and only it uses one")
        if self.task == "module" and self.data != Data():
            raise FieldError(
                "`task: module` does not use `data`: the module builds its own dataset",
                hint="remove `data` and read the data in `build_dataset`",
            )
        if self.unit != "tokens" and self.train_for.unit == "tokens":
            raise FieldError(f"`task: {self.task}` has no tokens to count", hint="give `train_for` in steps or epochs")
        if self.task == "causal-lm" and self.model.architecture == "bert":
            raise FieldError(
                "bert is bidirectional: `task: causal-lm` would leak the target",
                hint="set `task: masked-lm`, or another architecture",
            )
        if self.task == "masked-lm" and self.data.pack:
            raise FieldError("`task: masked-lm` does not support `pack`: it trains on full rows, without padding")
        if self.task != "causal-lm" and self.data.chat is not None:
            raise FieldError(f"`data.chat` needs `task: causal-lm`, not {self.task}")
        if (self.task != "causal-lm" or self.trains_reward) and self.sample_prompt is not None:
            what = "a reward model" if self.trains_reward else self.task
            raise FieldError(f"`sample_prompt` needs `task: causal-lm`; {what} does not generate text")
        return self

    @model_validator(mode="after")
    def _can_be_fine_tuned(self) -> Workload:
        check_samples(self.preference, self.data.chat or Chat())
        if self.is_fine_tuned and (self.task != "causal-lm" or (self.lacks_weights and self.model.hf is not None)):
            key = "preference" if self.adapter is None else "adapter"
            raise FieldError(f"`{key}` needs `task: causal-lm` and a checkpoint", hint="set `weights: pretrained`")
        if self.adapter is not None:
            has_reference = self.preference is not None and self.preference.has_reference
            self.adapter.check(self.precision, lacks_weights=self.lacks_weights, has_reference=has_reference)
        if self.preference is not None and self.precision == "fp8":
            raise FieldError("`preference` does not support `precision: fp8`", hint="set `precision: bf16`")
        return self

    @model_validator(mode="after")
    def _size_of_a_sample(self) -> Workload:
        if self.task in ("module", "diffusion"):
            return self
        if self.task == "image-classification" and set(self.data.sizes) != {"image_size"}:
            raise FieldError("`task: image-classification` needs `data.image_size`, and no other size")
        if self.unit == "tokens" and (self.data.sequence_length < 2 or self.data.sizes):
            raise FieldError("a text task needs `data.sequence_length` of at least 2, and no `image_size` or `frames`")
        return self
