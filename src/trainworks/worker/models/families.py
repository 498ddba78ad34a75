"""Hugging Face models that the decoder implements, and the names of their stored weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from trainworks.config.model import Model
from trainworks.record.model_shape import ModelShape
from trainworks.worker.models.decoder import DecoderConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gpt2")
"""`model_type` of the configs that the decoder computes; anything else is trained as `transformers` has it."""

OUTPUTS = ("lm_head", "score")
"""Names of the output matrix: of logits, and of a reward."""
_FIXED_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""
_OTHER_HEADS = ("classifier", "summary")


def described_decoder(model: Model, shape: ModelShape) -> DecoderConfig:
    """The decoder of a model given by dimensions: what `decoder_config` gives for its Hugging Face config.

    The config itself would cost a rank the import of `transformers`, a second of its start.
    """
    gpt2, mixtral = model.architecture == "gpt2", model.architecture == "mixtral"
    return DecoderConfig(
        vocabulary=shape.vocabulary,
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        feed_forward=shape.expert_feed_forward if shape.experts else shape.feed_forward,
        max_positions=shape.max_sequence_length,
        norm_eps=1e-5 if gpt2 or mixtral else 1e-6,
        layer_norm=gpt2,
        gated_mlp=not gpt2,
        learned_positions=gpt2,
        rope_frequencies=() if gpt2 else _rope_frequencies(shape.head_dim, 1e6 if mixtral else 1e4),
        qkv_bias=model.architecture in ("gpt2", "qwen2"),
        out_bias=gpt2,
        mlp_bias=gpt2,
        qk_norm=model.architecture == "qwen3",
        tie_embeddings=shape.tie_embeddings,
        sliding_window=shape.window if model.architecture == "mistral" else 0,
        dropout=model.dropout,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        balance_loss=model.written_balance_loss if mixtral else 0.0,
    )


def decoder_config(config: PretrainedConfig) -> DecoderConfig | None:
    """The decoder of a Hugging Face config; None where it differs from what the decoder can be."""
    if config.model_type == "gpt2":
        return _gpt2(config)
    layers_differ = (
        len(set(getattr(config, "layer_types", None) or ())) > 1
        or getattr(config, "mlp_only_layers", None)
        or getattr(config, "decoder_sparse_step", 1) != 1
    )
    if config.model_type not in FAMILIES or config.hidden_act != "silu" or layers_differ:
        return None
    if config.rope_parameters["rope_type"] not in _FIXED_ROPES or dropout_rate(config):
        return None
    heads = config.num_attention_heads
    experts = getattr(config, "num_local_experts", 0) or 0
    qwen2, qwen3 = config.model_type == "qwen2", config.model_type.startswith("qwen3")
    frequencies, scale = _rope(config)
    return DecoderConfig(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        feed_forward=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_frequencies=frequencies,
        rope_scale=scale,
        qkv_bias=qwen2 or getattr(config, "attention_bias", False),
        out_bias=not qwen2 and getattr(config, "attention_bias", False),
        mlp_bias=getattr(config, "mlp_bias", False),
        qk_norm=qwen3,
        tie_embeddings=config.tie_word_embeddings,
        sliding_window=(getattr(config, "use_sliding_window", True) and getattr(config, "sliding_window", None)) or 0,
        experts=experts,
        experts_per_token=config.num_experts_per_tok if experts else 0,
        renormalize_experts=getattr(config, "norm_topk_prob", True),
        balance_loss=balance_weight(config),
        initializer_range=config.initializer_range,
    )


def adaptable_decoder(config: PretrainedConfig) -> DecoderConfig | None:
    """The decoder of a config if its linear layers are those of `transformers`, so that `peft` knows their adapters.

    GPT-2's queries, keys and values are one layer there.
    """
    return None if config.model_type == "gpt2" else decoder_config(config)


def names_in_files(config: PretrainedConfig) -> Callable[[str], str]:
    """A function from a linear layer's name in the model that trains to that in the files of `transformers`."""
    if adaptable_decoder(config) is None:
        return lambda name: name.removeprefix("model.")
    return lambda name: stored_as(f"{name}.weight", config).names[0].removesuffix(".weight")


def balance_weight(config: PretrainedConfig) -> float:
    """Weight of the loss that keeps all experts in use, which `transformers` adds with `output_router_logits` alone."""
    return config.router_aux_loss_coef if getattr(config, "output_router_logits", False) else 0.0


def dropout_rate(config: PretrainedConfig) -> float:
    """Largest rate at which the layers of a model drop something; heads for other tasks do not count."""
    rates = {name: value for name, value in config.to_dict().items() if "drop" in name and isinstance(value, float)}
    return max((rate for name, rate in rates.items() if not name.startswith(_OTHER_HEADS)), default=0.0)


def _rope(config: PretrainedConfig) -> tuple[tuple[float, ...], float]:
    parameters = config.rope_parameters
    if parameters["rope_type"] != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: PLC0415  # only of models by config

        frequencies, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
        return tuple(frequencies.tolist()), float(scale)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return _rope_frequencies(size, parameters["rope_theta"]), 1.0


def _rope_frequencies(head_dim: int, theta: float) -> tuple[float, ...]:
    """theta^(-2i / H) radians per position for pair i of H head dimensions (Su et al. 2021)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return tuple((1.0 / theta**exponents).tolist())


def _gpt2(config: PretrainedConfig) -> DecoderConfig | None:
    plain = config.scale_attn_weights and not config.scale_attn_by_inverse_layer_idx
    dropouts = {config.resid_pdrop, config.embd_pdrop, config.attn_pdrop}
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh") or not plain or len(dropouts) > 1:
        return None
    return DecoderConfig(
        vocabulary=config.vocab_size,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        feed_forward=config.n_inner or 4 * config.hidden_size,
        max_positions=config.max_position_embeddings,
        norm_eps=config.layer_norm_epsilon,
        layer_norm=True,
        gated_mlp=False,
        learned_positions=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        tie_embeddings=config.tie_word_embeddings,
        dropout=dropouts.pop(),
        initializer_range=config.initializer_range,
    )


@dataclass(frozen=True, slots=True)
class StoredParameter:
    """Location of a parameter in safetensors files: a tensor, one of its parts, or one tensor per expert."""

    names: tuple[str, ...]
    transposed: bool = False
    """Stored as [in, out], as GPT-2's `Conv1D` has it."""
    part: int = 0
    parts: int = 1
    """The parameter is part 0, 1 ... of the tensor's output features."""

    @property
    def stacked(self) -> bool:
        """True if each row of the first dimension is its own tensor."""
        return len(self.names) > 1


def stored_as(name: str, config: PretrainedConfig) -> StoredParameter:
    """Location of a parameter of `Decoder` in the files of a Hugging Face model."""
    if config.model_type == "gpt2":
        return _stored_as_gpt2(name)
    if ".experts." in name:
        return _stored_experts(name, config)
    prefix = "" if name.startswith(OUTPUTS) else "model."
    if config.model_type == "mixtral":
        name = name.replace(".mlp.gate.", ".block_sparse_moe.gate.")
    return StoredParameter((prefix + name,))


_MIXTRAL_EXPERTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def _stored_experts(name: str, config: PretrainedConfig) -> StoredParameter:
    block, _, projection = name.rpartition(".mlp.experts.")
    if config.model_type == "mixtral":
        folder, leaf = f"model.{block}.block_sparse_moe.experts", _MIXTRAL_EXPERTS[projection]
    else:
        folder, leaf = f"model.{block}.mlp.experts", projection
    return StoredParameter(tuple(f"{folder}.{expert}.{leaf}.weight" for expert in range(config.num_local_experts)))


_GPT2_NAMES = {
    "embed_tokens": "wte",
    "embed_positions": "wpe",
    "norm": "ln_f",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}


def _stored_as_gpt2(name: str) -> StoredParameter:
    if name.startswith(OUTPUTS):
        return StoredParameter((name,))
    module, _, kind = name.rpartition(".")
    block = ""
    if module.startswith("layers."):
        _, index, module = module.split(".", 2)
        block = f"h.{index}."
    transposed = kind == "weight" and "proj" in module
    for part, projection in enumerate(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")):
        if module == projection:
            return StoredParameter((f"transformer.{block}attn.c_attn.{kind}",), transposed, part, parts=3)
    return StoredParameter((f"transformer.{block}{_GPT2_NAMES[module]}.{kind}",), transposed)


def stored_names(names: list[str], config: PretrainedConfig) -> dict[str, list[tuple[str, Any]]]:
    """Parameters in each tensor of the files, in order of their parts or with their row."""
    tensors: dict[str, list[tuple[str, Any]]] = {}
    for name in names:
        stored = stored_as(name, config)
        for row, tensor in enumerate(stored.names):
            tensors.setdefault(tensor, []).append((name, row if stored.stacked else None))
    return tensors
