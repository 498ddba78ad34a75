"""Models: a Hugging Face causal language model and the loss it is trained with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging

from trainworks.errors import EnvironmentProblem
from trainworks.record.resolved import ModelShape
from trainworks.spec.run_file import Model

__all__ = ["CausalLanguageModel", "build_model"]


class CausalLanguageModel(nn.Module):
    """Next-token prediction: tokens in, mean loss out.

    Shape suffixes: B sequences, T positions, V vocabulary.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *, last_only: bool = False) -> Tensor:
        """Mean cross-entropy of tokens 1 ... T given 0 ... T-1, in fp32, natural logarithm; scalar.

        Args:
            tokens: [B, T + 1].
            last_only: return the logits [B, V] of the token that follows `tokens` instead. (One forward for both
                uses, because FSDP2 gathers parameters around forward and nothing else.)
        """
        if last_only:
            logits_BV: Tensor = self.model(input_ids=tokens, use_cache=False).logits[:, -1]
            return logits_BV
        logits_BTV = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return cross_entropy(logits_BTV.flatten(0, 1).float(), tokens[:, 1:].flatten())

    @property
    def blocks(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        return max((module for module in self.model.modules() if isinstance(module, nn.ModuleList)), key=len)


def build_model(model: Model, shape: ModelShape, *, seed: int) -> CausalLanguageModel:
    """The model in fp32 on the CPU; random weights are the same on every rank.

    Raises:
        EnvironmentProblem: the checkpoint folder or hub id cannot be read.
    """
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.manual_seed(seed)
    if model.weights == "pretrained":
        return CausalLanguageModel(_pretrained(str(model.hf)))
    built = AutoModelForCausalLM.from_config(_config(model, shape), attn_implementation="sdpa", dtype=torch.float32)
    return CausalLanguageModel(built.train())


def _pretrained(checkpoint: str) -> PreTrainedModel:
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            checkpoint, attn_implementation="sdpa", dtype=torch.float32, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load `{checkpoint}`: {error}") from None
    model: PreTrainedModel = loaded.train()
    return model


def _config(model: Model, shape: ModelShape) -> PretrainedConfig:
    if model.hf is not None:
        try:
            return AutoConfig.from_pretrained(model.hf)
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(f"cannot load `{model.hf}`: {error}") from None
    fields = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": shape.max_sequence_length,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    if model.architecture == "gpt2":
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout)
        return AutoConfig.for_model("gpt2", **fields, n_inner=shape.feed_forward, **dropout)
    fields |= {"num_key_value_heads": shape.kv_heads, "intermediate_size": shape.feed_forward}
    return AutoConfig.for_model(model.architecture, **fields)
