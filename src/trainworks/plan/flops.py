"""Floating-point operations of training a transformer, and the conventions that published figures follow.

Symbols: those of `parameters`, T sequence length, P matrix weights that one token passes, w context of a layer; of
Mamba-2 mixers H heads of p values, N state, G groups, Q chunk.
A multiplication and an addition are 2 FLOPs; backward costs twice forward. Norms, activations, softmax, rotation and
the embedding look-up are left out (about 1 %).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from trainworks.plan import parameters
from trainworks.plan.layouts import Recompute
from trainworks.plan.parameters import num_attention_layers
from trainworks.record.model_shape import ModelShape

FlopsConvention = Literal["model", "model-causal", "hardware-selective", "hardware-full", "sc21-model", "sc21-hardware"]
"""Convention by which a published FLOP/s figure was counted.

model               6 P + attention in full, PaLM's
model-causal        the same with half the attention; Megatron-LM since 2025, the Llama 3 report
hardware-selective  model, and attention's forward once more
hardware-full       model, and the forward of every layer once more
sc21-model          72 B s L h^2 (1 + s/6h + V/12Lh) per step, for any model
sc21-hardware       96 B s L h^2 (1 + s/6h + V/16Lh) per step, with full recomputation
"""


def model_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """Model FLOPs per token, forward and backward: 6 (L P + h V) + 12 L H d T.

    P are a layer's matrix weights: with experts only those that a token visits, and the router. Attention is counted
    in full, not halved for causality; a sliding window bounds T in its layers. Of an image, the patches are projected
    and one token is classified; `sequence_length` is patches + 1 there. Mamba-2 mixers have their scan instead
    of attention. Of a diffusion transformer, see `conditioned_matmul_parameters`, all patches are projected, there and
    back; its attention is full. Source: PaLM (Chowdhery et al. 2022), appendix B.
    """
    ends: float = parameters.head_matmul_parameters(shape)
    if (diffusion := shape.diffusion) is not None:
        text, patches = diffusion.text_tokens, sequence_length - diffusion.text_in_sequence
        ends = patches * (ends + shape.hidden * shape.patch_values) + text * diffusion.text_projection
        ends = (ends + diffusion.conditioning) / sequence_length + conditioned_matmul_parameters(shape, sequence_length)
    elif shape.patch_values:
        ends = (shape.hidden * shape.patch_values * (sequence_length - 1) + ends) / sequence_length
    matrices = layers_matmul_parameters(shape) + ends
    mixing = attention_flops_per_token(shape, sequence_length) + 3.0 * scan_flops_per_token(shape)
    return 6.0 * matrices + mixing


def causal_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """Model FLOPs with the attention that a causal mask leaves; an encoder keeps all of it.

    A token sees T/2 others on average, or w - w^2/2T under a window w <= T, w/2 in a chunk of w.
    """
    if not shape.causal:
        return model_flops_per_token(shape, sequence_length)
    window = min(shape.window, sequence_length)
    windowed = shape.window_layers * window * (0.5 if shape.chunked else 1 - window / (2 * sequence_length))
    contexts = (num_attention_layers(shape) - shape.window_layers) * sequence_length / 2 + windowed
    attention = _flops_per_context(shape) * contexts
    full = attention_flops_per_token(shape, sequence_length)
    return model_flops_per_token(shape, sequence_length) - full + attention


def hardware_flops_per_token(shape: ModelShape, sequence_length: int, recompute: Recompute) -> float:
    """FLOPs that are carried out per token: the model's, and what backward computes again.

    Args:
        shape: the model.
        sequence_length: T.
        recompute: NONE adds nothing; SELECTIVE the forward of attention and scan between the projections, a third of
            their FLOPs; FULL the forward of every layer, a third of the layers' FLOPs. The output is never computed
            again.

    Source: Korthikanti et al. 2022, appendix A.
    """
    model = model_flops_per_token(shape, sequence_length)
    mixing = attention_flops_per_token(shape, sequence_length) / 3 + scan_flops_per_token(shape)
    if recompute == Recompute.NONE:
        return model
    if recompute == Recompute.SELECTIVE:
        return model + mixing
    layers = layers_matmul_parameters(shape) + conditioned_matmul_parameters(shape, sequence_length)
    return model + 2.0 * layers + mixing


def attention_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """FLOPs of scores and mix, all layers, forward and backward: 6 H (d + d) times the sum of all layers' contexts.

    A layer's context is T, or min(T, w) under a sliding window; that of a cross-attention is the text. With latent
    attention the head dimensions are n + r for the scores and v for the mix.
    """
    windowed = shape.window_layers * min(shape.window, sequence_length)
    full = num_attention_layers(shape) - shape.window_layers
    text = shape.diffusion.cross_layers * shape.diffusion.text_tokens if shape.diffusion else 0
    return _flops_per_context(shape) * (full * sequence_length + windowed + text)


def scan_flops_per_token(shape: ModelShape) -> float:
    """FLOPs of convolutions and scans forward, all Mamba-2 mixers; 0 without any.

        2 k (i + 2 G N)     the convolution over k tokens
        2 G Q N + 2 H Q p   inside a chunk: scores of its tokens, and their sum of the inputs
        4 H N p             what a chunk adds to the state, and what a token reads from it

    A chunk is computed whole, masked or not; passing states between chunks is left out (1 / Q of the last term).
    Source: Dao and Gu 2024, section 6 (the SSD algorithm).
    """
    mixer = shape.state_space
    if mixer is None:
        return 0.0
    inside = 2.0 * mixer.chunk * (mixer.groups * mixer.state + mixer.inner)
    states = 4.0 * mixer.inner * mixer.state
    return mixer.layers * (2.0 * mixer.convolution * mixer.convolved + inside + states)


def _flops_per_context(shape: ModelShape) -> float:
    """FLOPs of one query over one key and value, forward and backward, all heads."""
    latent = shape.latent
    scores = latent.nope_head_dim + latent.rope_head_dim if latent else shape.head_dim
    mix = latent.value_head_dim if latent else shape.head_dim
    return 6.0 * shape.heads * (scores + mix)


def layers_matmul_parameters(shape: ModelShape) -> int:
    """Matrix weights that one token passes in all layers: L attention + D dense MLP + (L - D)(k e + s + router).

    A hybrid has fewer layers of each kind, and the projections of its mixers.
    """
    routed = shape.experts_per_token * parameters.expert_parameters(shape)
    visited = routed + parameters.shared_expert_parameters(shape) + parameters.router_parameters(shape)
    return (
        num_attention_layers(shape) * parameters.attention_parameters(shape)
        + (shape.state_space.layers * parameters.scanned_parameters(shape) if shape.state_space else 0)
        + parameters.num_dense_layers(shape) * parameters.dense_mlp_parameters(shape)
        + parameters.num_expert_layers(shape) * visited
    )


def conditioned_matmul_parameters(shape: ModelShape, sequence_length: int) -> float:
    """Matrix weights that the layers of a diffusion transformer multiply beyond `layers_matmul_parameters`, per token.

    With S tokens of text, modulation C, and A of an attention, M of an MLP:

        C / T                  once per sample
        A (1 + S / T) / 2      per cross-attention: queries and outputs of patches, keys and values of the text
        - (A / 4 + M) S / T    where the text of a two-stream layer ends behind its keys and values

    In two streams a token passes the weights of its own, which are as many. 0 for other models.
    """
    if (diffusion := shape.diffusion) is None:
        return 0.0
    share = diffusion.text_tokens / sequence_length
    attention, mlp = parameters.attention_parameters(shape), parameters.dense_mlp_parameters(shape)
    crossing = diffusion.cross_layers * attention * (1 + share) / 2
    ending = (diffusion.text_layers - diffusion.text_outputs) * (attention / 4 + mlp) * share
    return diffusion.modulation / sequence_length + crossing - ending


def flops_per_token_by_convention(convention: FlopsConvention, shape: ModelShape, sequence_length: int) -> float:
    """FLOPs per token as a published table counts them, so that its FLOP/s can be turned into a step time."""
    return _CONVENTIONS[convention](shape, sequence_length)


def sc21_model_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """72 L h^2 (1 + T/6h + V/12Lh), for multi-head attention and an MLP of 4 h.

    Source: Narayanan et al. 2021 (SC21), section 3 and appendix, without recomputation.
    """
    layers, h = shape.layers, shape.hidden
    return 72.0 * layers * h * h * (1 + sequence_length / (6 * h) + shape.vocabulary / (12 * layers * h))


def sc21_hardware_flops_per_token(shape: ModelShape, sequence_length: int) -> float:
    """96 L h^2 (1 + T/6h + V/16Lh): the same with every layer's forward twice.

    Source: Narayanan et al. 2021 (SC21), equation 3.
    """
    layers, h = shape.layers, shape.hidden
    return 96.0 * layers * h * h * (1 + sequence_length / (6 * h) + shape.vocabulary / (16 * layers * h))


_CONVENTIONS: dict[FlopsConvention, Callable[[ModelShape, int], float]] = {
    "model": model_flops_per_token,
    "model-causal": causal_flops_per_token,
    "hardware-selective": partial(hardware_flops_per_token, recompute=Recompute.SELECTIVE),
    "hardware-full": partial(hardware_flops_per_token, recompute=Recompute.FULL),
    "sc21-model": sc21_model_flops_per_token,
    "sc21-hardware": sc21_hardware_flops_per_token,
}
