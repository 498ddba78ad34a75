"""A small config of every family that can be planned, and of its variants."""

from __future__ import annotations

from typing import Any

DECODER = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}
GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 6, "vocab_size": 100, "n_positions": 32}
BLOOM = {"model_type": "bloom", "hidden_size": 48, "n_layer": 3, "n_head": 6, "vocab_size": 100}
VIT = {"model_type": "vit", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
VIT |= {"num_attention_heads": 6, "image_size": 32, "patch_size": 8, "num_labels": 10}
EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
GLM_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1}
LLAMA4 = {"intermediate_size_mlp": 160, "num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 8}
ERNIE = {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 20, "moe_num_shared_experts": 2}
FALCON_40B = {"new_decoder_architecture": True, "num_kv_heads": 2}
DEEPSEEK = {
    "num_key_value_heads": 6,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
}
MAMBA = {"mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_d_conv": 3}
GRANITE = {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 30}
GRANITE |= {"layer_types": ["mamba", "attention", "mamba"]}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "hidden_size": 48,
    "intermediate_size": 80,
    "hybrid_override_pattern": "MEM*-E",
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "vocab_size": 100,
    "max_position_embeddings": 32,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 2,
    "conv_kernel": 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 40,
}


def family(kind: str, **changes: Any) -> dict[str, Any]:
    return DECODER | {"model_type": kind} | changes


CONFIGS = {
    **{kind: family(kind) for kind in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")},
    "llama-biases": family("llama", attention_bias=True, mlp_bias=True),
    "qwen3-wide-heads": family("qwen3", head_dim=20),
    "qwen3-biases": family("qwen3", attention_bias=True),
    "gemma-narrow-heads": family("gemma", head_dim=10),
    "gemma3-biases": family("gemma3_text", head_dim=10, attention_bias=True),
    **{kind: family(kind) for kind in ("olmo2", "olmo3", "phi3", "smollm3", "granite")},
    "glm": family("glm", head_dim=8),
    "glm-no-biases": family("glm", head_dim=10, attention_bias=False),
    "glm4_moe": family("glm4_moe", **GLM_EXPERTS),
    "glm4_moe-norms-and-biases": family("glm4_moe", **GLM_EXPERTS, head_dim=10, use_qk_norm=True, attention_bias=True),
    "llama4_text": family("llama4_text", **LLAMA4),
    "llama4_text-every-second-layer": family("llama4_text", **LLAMA4, interleave_moe_layer_step=2),
    "llama4_text-named-layers": family("llama4_text", **LLAMA4, moe_layers=[0, 2], attention_bias=True),
    "olmo2-biases": family("olmo2", attention_bias=True),
    "mixtral": family("mixtral", num_local_experts=4),
    "qwen3_moe": family("qwen3_moe", **EXPERTS),
    "qwen3_moe-every-second-layer": family("qwen3_moe", **EXPERTS, decoder_sparse_step=2),
    "qwen3_moe-dense-layers": family("qwen3_moe", **EXPERTS, mlp_only_layers=[0, 2]),
    "gpt_oss": family("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=10),
    "gpt_oss-no-biases": family("gpt_oss", num_local_experts=4, attention_bias=False),
    "deepseek_v2": family("deepseek_v2", **DEEPSEEK),
    "deepseek_v2-direct-queries": family("deepseek_v2", **DEEPSEEK | {"q_lora_rank": None}),
    "deepseek_v3": family("deepseek_v3", **DEEPSEEK),
    "deepseek_v3-biases": family("deepseek_v3", **DEEPSEEK, attention_bias=True),
    "deepseek_v3-all-dense": family("deepseek_v3", **DEEPSEEK | {"first_k_dense_replace": 3}),
    "qwen2_moe": family("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=30),
    "qwen2_moe-no-biases": family("qwen2_moe", **EXPERTS, qkv_bias=False, decoder_sparse_step=2),
    "olmoe": family("olmoe", num_experts=4, num_experts_per_tok=2),
    "minimax_m2": family("minimax_m2", num_local_experts=4, num_experts_per_tok=2),
    "ernie4_5_moe": family("ernie4_5_moe", **ERNIE),
    "ernie4_5_moe-steps": family("ernie4_5_moe", **ERNIE, moe_layer_start_index=0, moe_layer_interval=2),
    **{kind: family(kind) for kind in ("glm4", "seed_oss", "ernie4_5", "cohere", "cohere2", "phi", "stablelm")},
    "seed_oss-biases": family("seed_oss", attention_out_bias=True, mlp_bias=True, head_dim=8),
    "ernie4_5-biases": family("ernie4_5", use_bias=True, head_dim=8),
    "ministral3": family("ministral3", head_dim=8),
    "cohere-norms-and-biases": family("cohere", use_qk_norm=True, attention_bias=True),
    "phi-norms": family("phi", qk_layernorm=True, num_key_value_heads=6),
    "falcon-one-key-head": family("falcon"),
    "falcon-two-norms": family("falcon", **FALCON_40B, ffn_hidden_size=70),
    "falcon-one-norm": family("falcon", **FALCON_40B, num_ln_in_parallel_attn=1),
    "falcon-in-turn": family("falcon", multi_query=False, parallel_attn=False, bias=True),
    "stablelm-in-parallel": family("stablelm", use_qkv_bias=True, qk_layernorm=True, use_parallel_residual=True),
    "starcoder2": family("starcoder2"),
    "starcoder2-no-biases": family("starcoder2", use_bias=False, tie_word_embeddings=False),
    "gpt2": GPT2,
    "gpt2-untied": GPT2 | {"tie_word_embeddings": False, "n_inner": 70},
    "gpt_neox": family("gpt_neox", num_key_value_heads=6),
    "gpt_neox-no-biases": family("gpt_neox", num_key_value_heads=6, attention_bias=False),
    "opt": family("opt", ffn_dim=80, num_key_value_heads=6, word_embed_proj_dim=48),
    "bloom": BLOOM,
    "nemotron": family("nemotron", head_dim=8),
    "nemotron-biases": family("nemotron", head_dim=8, attention_bias=True, mlp_bias=True),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h-latent-experts": NEMOTRON_H | {"moe_latent_size": 12, "hybrid_override_pattern": "MEM*EME"},
    "nemotron_h-dense": NEMOTRON_H | {"hybrid_override_pattern": "M-M*-M", "use_conv_bias": False},
    "bamba": family("bamba", **MAMBA, attn_layer_indices=[1]),
    "granitemoehybrid": family("granitemoehybrid", **MAMBA, **GRANITE),
    "granitemoehybrid-dense": family("granitemoehybrid", **MAMBA, **GRANITE | {"num_local_experts": 0}),
    "falcon_h1": family("falcon_h1", **MAMBA | {"mamba_d_ssm": 40, "mamba_n_heads": 5}),
    "falcon_h1-norms": family("falcon_h1", **MAMBA, mamba_d_ssm=96, mamba_rms_norm=True),
    "bert": family("bert", num_key_value_heads=6),
    "bert-token-types": family("bert", num_key_value_heads=6, type_vocab_size=5),
    "vit": VIT,
    "vit-no-biases": VIT | {"qkv_bias": False},
    "dinov2": VIT | {"model_type": "dinov2"},
    "dinov2-gated": VIT | {"model_type": "dinov2", "use_swiglu_ffn": True, "use_mask_token": False, "mlp_ratio": 3},
}
