"""Fine-tuning: conversations as training data, adapters beside the weights of a checkpoint, and preferences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from trainworks.config.spec import PathText, Spec

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
    """Folder of an exported adapter, of Trainworks or of `peft`, that training goes on from. The other keys are then
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

    @property
    def title(self) -> str:
        """Kind and rank, and the name of the adapter that training goes on from."""
        start = f", trained on from `{Path(self.folder).name}`" if self.folder else ""
        return f"{'DoRA' if self.use_dora else 'LoRA'} of rank {self.rank}{start}"


class Preference(Spec):
    """Direct preference optimization (DPO, Rafailov et al. 2023): the preferred answer becomes likelier than the other
    one, measured against a reference, the checkpoint that the run starts from.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1
    """Scale of the log-probability ratios; a larger one keeps the model closer to the reference."""
