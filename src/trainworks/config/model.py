"""The model of a workload."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainworks.config.limits import up_to
from trainworks.config.spec import FieldError, Spec

BALANCE_LOSS = 0.01
"""Default weight of the load-balancing loss of a mixture of experts: Fedus et al. 2021, section 2.2."""
Architecture = Literal["llama", "mistral", "qwen2", "qwen3", "mixtral", "gpt2", "bert"]


class Model(Spec):
    """A model: a preset, a Hugging Face checkpoint (local folder or hub id), a Python file, or bare dimensions."""

    preset: str | None = None
    """A published model by name or hub id (`gemma3-12b`, `google/gemma-3-12b-pt`); replaces the dimensions below. It
    trains from random weights with its published dimensions, if they describe it; others can be planned."""
    hf: str | None = None
    """Folder or hub id with a config.json; replaces the dimensions below."""
    module: str | None = None
    """Python file of `task: module`, relative to the run file, with `build_model()`, `build_dataset()` and optional
    functions; replaces the dimensions below."""
    weights: Literal["random", "pretrained"] = "random"
    """Source of the initial weights; `pretrained` needs `hf`."""
    architecture: Architecture = "llama"
    layers: Annotated[int, up_to("layers")] | None = None
    hidden: Annotated[int, up_to("hidden")] | None = None
    heads: Annotated[int, up_to("heads")] | None = None
    kv_heads: Annotated[int, up_to("kv_heads")] | None = None
    """Key/value heads of grouped-query attention; `heads` by default."""
    feed_forward: Annotated[int, up_to("feed_forward")] | None = None
    """Width of the MLP; by default 8/3 of `hidden` rounded up to 64 (gated) or 4 times `hidden` (gpt2)."""
    experts: Annotated[int, up_to("experts", least=2)] | None = None
    """Experts of each layer, `feed_forward` wide each; only for mixtral, 8 by default."""
    experts_per_token: Annotated[int, up_to("experts_per_token")] | None = None
    """Experts per token; 2 by default."""
    balance_loss: Annotated[float, Field(ge=0)] | None = None
    """Weight of the loss that balances the use of experts, 0 for none; by default 0.01. An `hf` model has none by
    default, as in `transformers`; one whose config has `output_router_logits: true` has its `router_aux_loss_coef`. The
    reported loss does not contain it."""
    tie_embeddings: bool = True
    """Share one matrix between input and output embedding."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of gpt2 and bert; other architectures refuse a value above 0."""

    @model_validator(mode="after")
    def _complete(self) -> Model:
        missing = [name for name in ("layers", "hidden", "heads") if getattr(self, name) is None]
        named = [name for name in ("preset", "hf", "module") if getattr(self, name) is not None]
        if not named and missing:
            raise FieldError(f"a model needs `preset`, `hf`, `module` or dimensions; missing: {', '.join(missing)}")
        if len(named) > 1 or (named and len(missing) < 3):
            raise FieldError("give exactly one of `preset`, `hf`, `module` and dimensions")
        if self.weights == "pretrained" and self.hf is None:
            raise FieldError("`weights: pretrained` needs `hf`")
        if self.dropout and self.architecture not in ("gpt2", "bert"):
            raise FieldError(f"`{self.architecture}` has no dropout; only gpt2 and bert do")
        self._check_experts()
        if self.hidden and self.heads and self.hidden % self.heads:
            raise FieldError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads})")
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise FieldError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self

    def _check_experts(self) -> None:
        written = [name for name in ("experts", "experts_per_token") if getattr(self, name) is not None]
        if written and (self.architecture != "mixtral" or self.layers is None):
            raise FieldError(f"`{written[0]}` needs `architecture: mixtral` and dimensions")
        if self.balance_loss is not None and self.architecture != "mixtral" and self.hf is None:
            raise FieldError(
                "`balance_loss` needs a model with experts", hint="remove it, or set `architecture: mixtral`"
            )
        experts, per_token = self.experts or 8, self.experts_per_token or 2
        if per_token > experts:
            raise FieldError(f"experts_per_token ({per_token}) is more than the {experts} experts")

    @property
    def written_balance_loss(self) -> float:
        """Weight of the balance loss of a mixture of experts that is given by dimensions."""
        return BALANCE_LOSS if self.balance_loss is None else self.balance_loss

    @property
    def title(self) -> str:
        """Source of the model in one line."""
        return self.preset or self.hf or self.module or self.architecture
