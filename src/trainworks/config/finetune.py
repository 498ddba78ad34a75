"""Fine-tuning: conversations as training data, adapters beside the weights of a checkpoint, and preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

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
    """Direct preference optimization (DPO, Rafailov et al. 2023): the preferred answer becomes likelier than the other
    one, measured against a reference, the checkpoint that the run starts from.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1
    """Scale of the log-probability ratios; a larger one keeps the model closer to the reference."""
