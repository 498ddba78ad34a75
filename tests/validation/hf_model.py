"""The Llama that `transformers` builds, with fused attention."""

from __future__ import annotations

from typing import Any

import transformers
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.validation.reference_model import FusedCrossEntropy, Sizes

_ATTENTION = "causal-without-a-mask"
"""Under fake tensors `sdpa` writes a mask [T, T] for every layer, as it does when a model is traced."""


class HfLlama(nn.Module):
    """Tokens [B, T] to the loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        transformers.AttentionInterface.register(_ATTENTION, _attended)
        config = transformers.LlamaConfig(
            hidden_size=sizes.hidden,
            intermediate_size=sizes.feed_forward,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            vocab_size=sizes.vocabulary,
            max_position_embeddings=sizes.max_sequence_length,
            attn_implementation=_ATTENTION,
        )
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = FusedCrossEntropy.apply(self.model(input_ids=tokens, use_cache=False).logits)
        return loss


def _attended(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **_: Any
) -> tuple[Tensor, None]:
    """Queries [B, H, T, D], keys and values with fewer heads, to [B, T, H, D]."""
    attended_BHTD = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return attended_BHTD.transpose(1, 2), None
