"""Fine-tuning: conversations as training data, adapters beside the weights of a checkpoint, and preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainworks.config.spec import FieldError, PathText, Spec

LossOn = Literal["answers", "all"]
TooLong = Literal["cut", "drop", "refuse"]
LARGEST_ADAPTER_RANK = 4096


class Chat(Spec):
    """How conversations become training sequences."""

    template: str | None = None
    """File with a chat template (Jinja); by default that of the tokenizer, or a built-in one if it has none."""
    loss_on: LossOn = "answers"
    """Tokens that the loss counts: those of the assistant's messages and completions, or all."""
    too_long: TooLong = "cut"
    """What to do with a conversation longer than `sequence_length`: cut its end off, drop it, or refuse the data."""
    pairs: bool = False
    """Each record has two conversations, of which one is preferred: `chosen` and `rejected`, and perhaps `prompt`."""
    margins: bool = False
    """Each pair has a number `margin`: how much better the preferred answer is, for a reward model."""
    labels: bool = False
    """Each record has one answer and a `label` for KTO: true if the answer is desirable, false if not."""

    @property
    def conversations(self) -> int:
        """Conversations of a sample: two of a pair."""
        return 2 if self.pairs else 1

    @property
    def has_values(self) -> bool:
        """Whether a number belongs to each sample: its margin or its label."""
        return self.margins or self.labels

    def row_tokens(self, sequence_length: int) -> int:
        """Stored words of a sample: T + 1 tokens of each conversation, and its number behind each of them."""
        return self.conversations * (sequence_length + 1 + self.has_values)

    @model_validator(mode="after")
    def _has_one_form(self) -> Chat:
        if self.labels and self.pairs:
            raise FieldError("`labels` are of single answers, and `pairs` have two", hint="remove one of them")
        if self.margins and not self.pairs:
            raise FieldError("`margins` are those of pairs", hint="set `pairs: true`")
        return self


class Adapter(Spec):
    """Low-rank adapters (LoRA, Hu et al. 2021) of linear layers: W x + alpha / rank * B A x, with W frozen."""

    folder: PathText | None = None
    """Folder of an exported adapter, of Trainworks or of `peft`, that training continues from. The other keys are then
    those of its `adapter_config.json`; `base` and `dropout` may differ."""
    use_dora: bool = False
    """Train the norm of each row of the weight apart from its direction (DoRA, Liu et al. 2024): m V / |V| x with
    V = W + alpha / rank * B A, where m begins as |W|."""

    rank: Annotated[int, Field(ge=1, le=LARGEST_ADAPTER_RANK)] = 16
    """Rows of A and columns of B."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of what the adapters add, times `rank`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of the adapters' inputs."""
    targets: tuple[str, ...] = ()
    """Names of the layers that get an adapter (`q_proj`, `self_attn.q_proj`); by default all linear layers of the
    blocks, without routers and experts."""
    base: Literal["auto", "fp32", "bf16", "nf4"] = "auto"
    """Format of the frozen weights: bf16 with `precision: bf16`, else fp32. nf4 keeps the linear layers of the blocks
    in 4 bits (QLoRA, Dettmers et al. 2023)."""

    def check(self, precision: str, *, lacks_weights: bool, has_reference: bool) -> None:
        """Check that the adapter can train in a workload.

        Raises:
            FieldError: not in this precision, or not from a folder, because the model has no weights or is compared
                with itself without the adapter.
        """
        if self.base == "bf16" and precision != "bf16":
            raise FieldError(f"`adapter.base: bf16` needs `precision: bf16`, not {precision}")
        if precision == "fp8":
            raise FieldError("`adapter` does not support `precision: fp8`", hint="set `precision: bf16`")
        if self.folder is not None and lacks_weights:
            raise FieldError(
                "`adapter.folder` has an adapter of a checkpoint, and `model` names none",
                hint="set `model: {hf: FOLDER, weights: pretrained}`",
            )
        if self.folder is not None and has_reference:
            raise FieldError(
                "`preference` compares with the model without its adapter, and `adapter.folder` begins elsewhere",
                hint="export with `--merge`, and name the merged model in `model.hf`",
            )

    @property
    def title(self) -> str:
        """Kind and rank, and the name of the adapter that training continues from."""
        start = f", continued from `{Path(self.folder).name}`" if self.folder else ""
        return f"{'DoRA' if self.use_dora else 'LoRA'} of rank {self.rank}{start}"


class Preference(Spec):
    """Training on preferences: of the model itself, or of a reward model."""

    method: Literal["dpo", "kto", "reward"] = "dpo"
    """`dpo`: the preferred answer of a pair becomes likelier than the other one (Rafailov et al. 2023). `kto`: answers
    alone, each desirable or not, become likelier or less likely (Ethayarajh et al. 2024). Both measure against a
    reference, the checkpoint that the run starts from. `reward`: a scalar head on the checkpoint learns to score the
    preferred answer of a pair higher (Ouyang et al. 2022); it has no reference."""
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Scale of the log-probability ratios of `dpo` and `kto`; a larger one keeps the model closer to the reference."""
    desirable_weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the loss of desirable answers, for `kto`; set it so that both kinds weigh alike in the data."""
    undesirable_weight: Annotated[float, Field(gt=0)] = 1.0
    """The same of undesirable answers."""
    center_rewards_coefficient: Annotated[float, Field(gt=0)] | None = None
    """Weight of the squared sum of both rewards of a pair, for `reward`, which keeps their mean at zero (Eisenstein et
    al. 2023); 0.01 is usual. None adds nothing."""

    @property
    def has_reference(self) -> bool:
        """Whether a frozen model is compared with."""
        return self.method != "reward"

    @model_validator(mode="after")
    def _options_of_method(self) -> Preference:
        options = {
            "beta": ("dpo", "kto"),
            "desirable_weight": ("kto",),
            "undesirable_weight": ("kto",),
            "center_rewards_coefficient": ("reward",),
        }
        for name, methods in options.items():
            if self.method not in methods and getattr(self, name) != type(self).model_fields[name].default:
                known = " and ".join(f"`{each}`" for each in methods)
                raise FieldError(f"`{name}` is for {known}, not for `method: {self.method}`", hint="remove it")
        return self


def check_samples(preference: Preference | None, chat: Chat) -> None:
    """Check that the samples of conversations have the form that a method trains on; None is the next token.

    Raises:
        FieldError: they have another one.
    """
    if preference is None:
        for key, method in (("pairs", "dpo"), ("labels", "kto")):
            if getattr(chat, key):
                hint = f"set `preference: {{method: {method}}}`"
                raise FieldError(f"`data.chat.{key}` is for `preference`", hint=hint)
        return
    if preference.method == "kto" and not chat.labels:
        raise FieldError("KTO trains on single answers with labels", hint="set `data.chat: {labels: true}`")
    if preference.method != "kto" and not chat.pairs:
        raise FieldError("`preference` trains on pairs of answers", hint="set `data.chat: {pairs: true}`")
    if preference.method != "reward" and chat.margins:
        raise FieldError("`data.chat.margins` are for a reward model", hint="set `preference: {method: reward}`")
