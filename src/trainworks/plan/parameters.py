"""Parameters of a transformer by part, exact to the last weight.

Symbols: L layers, h hidden, H heads, K key/value heads, d head dimension, f feed-forward, V vocabulary, S positions;
with experts: E routed experts, k of them per token, e width of one, s width of the shared ones together, D layers that
are dense; with latent attention: q and c ranks of queries and of keys and values, r and n head dimensions with and
without positions, v head dimension of values.

Functions count the weights of *one* layer unless documented otherwise, and matrices only: norms and biases are in
`shape.small` and included in `dense_layer_parameters`, `expert_layer_parameters` and `num_parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainworks.plan.layouts import Array, Layouts, divides
from trainworks.record.model_shape import ModelShape


def num_parameters(shape: ModelShape) -> int:
    """All weights of the model; a matrix shared by input and output counts once.

    N = layers + input + output + `small.model`.
    """
    ends = embedding_parameters(shape) + output_parameters(shape)
    return layers_parameters(shape) + ends + shape.small.model


def layers_parameters(shape: ModelShape) -> int:
    """Weights of all layers, norms and biases included: of dense ones and those with experts, or of a hybrid's parts.

    Mixers and MLPs of a hybrid are counted one by one: a layer may have either, or both.
    """
    dense, experts = num_dense_layers(shape), num_expert_layers(shape)
    if shape.state_space is None:
        plain = dense * dense_layer_parameters(shape) + experts * expert_layer_parameters(shape)
        return plain + conditioned_parameters(shape)
    mixers = num_attention_layers(shape) * attention_parameters(shape)
    mixers += shape.state_space.layers * (state_space_parameters(shape) + shape.state_space.small)
    mlps = dense * (dense_mlp_parameters(shape) + shape.small.dense_mlp) + experts * _experts_of_layer(shape)
    return mixers + mlps + shape.layers * shape.small.layer


def conditioned_parameters(shape: ModelShape) -> int:
    """Weights of a diffusion transformer's layers beyond attention and MLP of the patches; 0 without.

    With A of an attention and M of an MLP: A per cross-attention; 3/4 A, and with an output A/4 + M more, of the text
    in two streams; modulation, biases and norms.
    """
    if (diffusion := shape.diffusion) is None:
        return 0
    attention, mlp = attention_parameters(shape), dense_mlp_parameters(shape)
    text = diffusion.text_layers * 3 * attention // 4 + diffusion.text_outputs * (attention // 4 + mlp)
    return diffusion.cross_layers * attention + text + diffusion.modulation + diffusion.small


def active_parameters(shape: ModelShape) -> int:
    """Weights that one token passes: N less the E - k routed experts of each layer that it does not visit."""
    idle = (shape.experts - shape.experts_per_token) * (expert_parameters(shape) + shape.small.expert)
    return num_parameters(shape) - num_expert_layers(shape) * idle


def resized(
    shape: ModelShape,
    *,
    layers: int | None = None,
    dense_layers: int | None = None,
    vocabulary: int | None = None,
    max_sequence_length: int | None = None,
) -> ModelShape:
    """The model with another number of layers, vocabulary or positions, and the resulting parameters.

    Args:
        shape: the model as it is.
        layers: a model with experts keeps its dense layers, which come first, unless `dense_layers` is given;
            a window keeps its share of the layers, rounded up, and a cut model predicts no further tokens. Each kind
            of a hybrid's layers keeps its share, rounded.
        dense_layers: ignored for a model without experts.
        vocabulary: padded to a multiple, for example.
        max_sequence_length: only learned positions cost parameters.
    """
    given = {
        "layers": layers,
        "dense_layers": dense_layers,
        "vocabulary": vocabulary,
        "max_sequence_length": max_sequence_length,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if layers is not None:
        changes["window_layers"] = -(-layers * shape.window_layers // shape.layers)
        changes |= _cut_parts(shape, layers)
        changes["further_tokens"] = shape.further_tokens if layers >= shape.layers else 0
    changed = shape.model_copy(update=changes)
    return changed.model_copy(update={"num_parameters": num_parameters(changed)})


def _cut_parts(shape: ModelShape, layers: int) -> dict[str, Any]:
    def part(count: int | None) -> int | None:
        return None if count is None else round(count * layers / shape.layers)

    if (diffusion := shape.diffusion) is not None:
        names = ("cross_layers", "text_layers", "text_outputs", "single_layers", "modulation", "small")
        return {"diffusion": diffusion.model_copy(update={name: part(getattr(diffusion, name)) for name in names})}
    if shape.state_space is None:
        return {}
    mixers = shape.state_space.model_copy(update={"layers": part(shape.state_space.layers)})
    changes = {"attention_layers": part(shape.attention_layers), "mlp_layers": part(shape.mlp_layers)}
    return {**changes, "state_space": mixers}


def mixer_bytes(shape: ModelShape, element_bytes: int) -> float:
    """Bytes per token that the kernels of one mixer move forward, less the norm before it: 4 e (c + i) + 16 i N / Q,
    with c = i + 2 G N convolved values and chunks of Q tokens.

    Input and output of the convolution, which the scan reads twice; output of the scan, and a gated norm of it; and
    the states of the chunks in fp32, written and read twice. 0 without mixers.
    """
    mixer = shape.state_space
    if mixer is None:
        return 0.0
    states = 16.0 * mixer.inner * mixer.state / mixer.chunk
    return 4.0 * element_bytes * (mixer.convolved + mixer.inner) + states


def mixer_values(shape: ModelShape) -> float:
    """Values per token that mixers keep, on average over the layers: 3 i + 2 G N + H of each that has one."""
    mixer = shape.state_space
    return 0.0 if mixer is None else mixer.layers / shape.layers * (mixer.projected + mixer.inner)


def num_expert_layers(shape: ModelShape) -> int:
    """Layers with experts: L - D, of a hybrid those with an MLP less D; 0 for a dense model."""
    return max(0, _num_mlp_layers(shape) - shape.dense_layers) if shape.experts else 0


def num_dense_layers(shape: ModelShape) -> int:
    """Layers with a dense MLP: all that have an MLP for a dense model, D with experts."""
    return _num_mlp_layers(shape) - num_expert_layers(shape)


def num_attention_layers(shape: ModelShape) -> int:
    """Layers with attention: L, fewer in a hybrid."""
    return shape.layers if shape.attention_layers is None else shape.attention_layers


def num_sublayers(shape: ModelShape) -> int:
    """Residual additions of all layers, each behind a norm: 2 L, fewer where a layer is a mixer or an MLP alone.

    Attention side by side with a Mamba-2 mixer, or with the MLP, is one. A cross-attention is one more.
    """
    if (diffusion := shape.diffusion) is not None:
        return 2 * shape.layers + diffusion.cross_layers - diffusion.single_layers
    if shape.parallel:
        return shape.layers
    mixers = num_attention_layers(shape) + (shape.state_space.layers if shape.state_space else 0)
    return min(shape.layers, mixers) + _num_mlp_layers(shape)


def _num_mlp_layers(shape: ModelShape) -> int:
    return shape.layers if shape.mlp_layers is None else shape.mlp_layers


def state_space_parameters(shape: ModelShape) -> int:
    """Matrices of one Mamba-2 mixer and its convolution: h (2 i + 2 G N + H) + i h + k (i + 2 G N).

    i is the width of all heads, H their number, N the state, G the groups, k the convolution's length; 0 without.
    """
    mixer = shape.state_space
    return 0 if mixer is None else scanned_parameters(shape) + mixer.convolution * mixer.convolved


def scanned_parameters(shape: ModelShape) -> int:
    """The projections into and out of one Mamba-2 mixer: h (2 i + 2 G N + H) + i h; 0 without."""
    mixer = shape.state_space
    return 0 if mixer is None else shape.hidden * (mixer.projected + mixer.inner)


def dense_layer_parameters(shape: ModelShape) -> int:
    """All weights of one layer with a dense MLP, norms and biases included."""
    matrices = attention_parameters(shape) + dense_mlp_parameters(shape)
    return matrices + shape.small.layer + shape.small.dense_mlp


def expert_layer_parameters(shape: ModelShape) -> int:
    """All weights of one layer with experts, norms and biases included."""
    return attention_parameters(shape) + _experts_of_layer(shape) + shape.small.layer


def _experts_of_layer(shape: ModelShape) -> int:
    """Routed and shared experts of a layer, with the router and its biases."""
    routed = shape.experts * (expert_parameters(shape) + shape.small.expert)
    return routed + shared_expert_parameters(shape) + router_parameters(shape) + shape.small.router


def attention_parameters(shape: ModelShape) -> int:
    """Attention's matrices: h H d + 2 h K d + H d h.

    With latent attention: [h q + q H (n + r), or h H (n + r) where q = 0] + h (c + r) + c H (n + v) + H v h.
    Source: DeepSeek-V2 (DeepSeek-AI 2024), section 2.1.
    """
    h, latent = shape.hidden, shape.latent
    if latent is None:
        return 2 * h * shape.head_dim * (shape.heads + shape.kv_heads)
    query_width = shape.heads * (latent.nope_head_dim + latent.rope_head_dim)
    queries = latent.query_rank * (h + query_width) if latent.query_rank else h * query_width
    key_value_width = shape.heads * (latent.nope_head_dim + latent.value_head_dim)
    keys_values = h * (latent.kv_rank + latent.rope_head_dim) + latent.kv_rank * key_value_width
    return queries + keys_values + shape.heads * latent.value_head_dim * h


def attention_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the attention's linear layers, by their usual names; their products add up to
    `attention_parameters`.
    """
    h, heads, latent = shape.hidden, shape.heads, shape.latent
    queries, keys = heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if _is_gpt2(shape):  # whose queries, keys and values are one layer
        return {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h)}
    if latent is None:
        return {"q_proj": (h, queries), "k_proj": (h, keys), "v_proj": (h, keys), "o_proj": (queries, h)}
    q, c, width = latent.query_rank, latent.kv_rank, heads * (latent.nope_head_dim + latent.rope_head_dim)
    lifted = heads * (latent.nope_head_dim + latent.value_head_dim)
    sizes = {"q_a_proj": (h, q), "q_b_proj": (q, width)} if q else {"q_proj": (h, width)}
    sizes |= {"kv_a_proj_with_mqa": (h, c + latent.rope_head_dim), "kv_b_proj": (c, lifted)}
    return sizes | {"o_proj": (heads * latent.value_head_dim, h)}


def mlp_sizes(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a dense MLP's linear layers, by their usual names."""
    h, f = shape.hidden, shape.feed_forward
    if _is_gpt2(shape):
        return {"mlp.c_fc": (h, f), "mlp.c_proj": (f, h)}
    gate = {"gate_proj": (h, f)} if shape.gated_mlp else {}
    return gate | {"up_proj": (h, f), "down_proj": (f, h)}


def _is_gpt2(shape: ModelShape) -> bool:
    return shape.learned_positions and not shape.gated_mlp


def dense_mlp_parameters(shape: ModelShape) -> int:
    """Matrices of a dense MLP: 3 h f with a gate, 2 h f without."""
    return _num_mlp_matrices(shape) * shape.hidden * shape.feed_forward


def expert_parameters(shape: ModelShape) -> int:
    """Matrices of one routed expert: 3 h e with a gate, 2 h e without, of h the latent width; 0 for a dense model."""
    return _num_mlp_matrices(shape) * (shape.expert_latent or shape.hidden) * shape.expert_feed_forward


def shared_expert_parameters(shape: ModelShape) -> int:
    """Matrices of a layer's shared experts, together: 3 h s with a gate, 2 h s without; 0 where there are none."""
    return _num_mlp_matrices(shape) * shape.hidden * shape.shared_feed_forward


def router_parameters(shape: ModelShape) -> int:
    """The router's matrix, h E, and with a latent width l of the routed experts 2 h l; 0 for a dense model."""
    return shape.hidden * (shape.experts + 2 * shape.expert_latent)


def embedding_parameters(shape: ModelShape) -> int:
    """The model's input: h V and, where positions are learned, h S; the patch projection replaces h V for images.

    A diffusion transformer embeds its conditioning and its text, too.
    """
    tokens = shape.patch_values if shape.patch_values else shape.vocabulary
    positions = shape.max_sequence_length if shape.learned_positions else 0
    beside = shape.diffusion.conditioning + shape.diffusion.text_projection if shape.diffusion else 0
    return shape.hidden * (tokens + positions) + beside


def output_parameters(shape: ModelShape) -> int:
    """Parameters of the output beyond the input: h V, 0 if tied; with a transform h^2 + 3 h + V more.

    The transform has a bias and a norm of 2 h, and the logits have a bias of V.
    """
    h, vocabulary = shape.hidden, shape.vocabulary
    transform = h * h + 3 * h + vocabulary if shape.head_transform else 0
    return transform + (0 if shape.tie_embeddings else h * vocabulary)


def reward_shape(shape: ModelShape) -> ModelShape:
    """The model with a reward as its output: no matrix of the vocabulary, and a head of h."""
    small = shape.small.model_copy(update={"model": shape.small.model + shape.hidden})
    changed = shape.model_copy(update={"tie_embeddings": True, "small": small})
    return changed.model_copy(update={"num_parameters": num_parameters(changed)})


def head_matmul_parameters(shape: ModelShape) -> int:
    """The output's matrices, tied or not: h V, with a transform h V + h^2."""
    return shape.hidden * (shape.vocabulary + (shape.hidden if shape.head_transform else 0))


def _num_mlp_matrices(shape: ModelShape) -> int:
    return 3 if shape.gated_mlp else 2


def head_dims(shape: ModelShape) -> tuple[int, int]:
    """Dimensions of a head's queries and keys, and of its values."""
    if shape.latent is None:
        return shape.head_dim, shape.head_dim
    return shape.latent.nope_head_dim + shape.latent.rope_head_dim, shape.latent.value_head_dim


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Weights of one rank of a stage; shape [n]. Routed experts are sharded by other ranks than the rest."""

    dense: Array
    experts: Array

    @property
    def total(self) -> Array:
        """Memory of all states."""
        return self.dense + self.experts


def stage_blocks(layers: int, layouts: Layouts) -> tuple[Array, Array]:
    """Blocks of a middle stage and of the last one.

    Where the blocks do not divide evenly but with the embedding and the logits counted as one each they do, the first
    and the last stage have one less (Llama 3, BLOOM); else the first stages round up to whole chunks and the
    last down.
    """
    slots = layouts.pp * layouts.interleave
    even = divides(slots, layers)
    counted = ~even & divides(slots, layers + 2)
    middle = np.where(counted, (layers + 2) / slots, np.ceil(layers / slots)) * layouts.interleave
    last = np.where(counted, middle - 1, np.where(even, middle, np.floor(layers / slots) * layouts.interleave))
    return middle, last


def chunk_counts(layers: int, pp: int, most: int) -> list[int]:
    """Numbers of chunks per stage, up to `most`, that share a model's blocks evenly.

    All chunks are alike, or the first and the last have one block less, for the embedding and the logits: Llama 3 405B
    has 126 blocks in 16 stages of 8 chunks.
    """
    return [v for v in range(1, most + 1) if v == 1 or layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0]


def dense_blocks(shape: ModelShape, layouts: Layouts, blocks: Array, *, end: bool) -> Array:
    """Number of a stage's blocks without experts: they are the first of the model, or the stage's share rounded down.

    Args:
        shape: the model.
        layouts: shape [n].
        blocks: of the stage.
        end: whether it is the last stage; else the first.
    """
    if not shape.experts:
        return blocks
    if shape.interleaved:
        return np.floor(blocks * shape.dense_layers / shape.layers)
    first = np.minimum(shape.dense_layers, blocks)
    last = np.maximum(0.0, shape.dense_layers - (shape.layers - blocks))
    return np.where((layouts.pp > 1) & end, last, first)


def stage_parameters(
    shape: ModelShape,
    layouts: Layouts,
    blocks: Array,
    *,
    embeddings: Array | float = 1.0,
    without_experts: Array | None = None,
) -> StageParameters:
    """Weights of one rank of a stage with so many blocks.

        dense    (blocks without experts + the others less their routed experts + embedding, output or both) / t
        experts  blocks with experts * E (3 or 2) h e / ep

    Args:
        shape: the model.
        layouts: shape [n].
        blocks: of the stage, shape [n].
        embeddings: 1 on the first stage and on the last, 2 where they are one and not tied, 0 between.
        without_experts: blocks that have none; the model's share of them where left out.
    """
    if without_experts is None:
        without_experts = blocks * num_dense_layers(shape) / shape.layers
    first, last = embedding_parameters(shape), head_matmul_parameters(shape)
    edges = np.where(np.asarray(embeddings) >= 2, first + last, embeddings * float(max(first, last)))
    if (diffusion := shape.diffusion) is not None:  # every rank of tp modulates all of the hidden state
        rest = blocks * (layers_parameters(shape) - diffusion.modulation) / shape.layers + edges
        return StageParameters(rest / layouts.tp + blocks * diffusion.modulation / shape.layers, np.zeros_like(blocks))
    if shape.state_space is not None:  # the kinds of its layers alternate, so that every stage has a share of each
        routed = num_expert_layers(shape) * shape.experts * expert_parameters(shape)
        rest = blocks * (layers_parameters(shape) - routed) / shape.layers
        return StageParameters((rest + edges) / layouts.tp, blocks * routed / shape.layers / layouts.ep)
    dense = without_experts * dense_layer_parameters(shape) + edges
    if not shape.experts:
        return StageParameters(dense=dense / layouts.tp, experts=np.zeros_like(blocks))
    with_experts = blocks - without_experts
    routed = shape.experts * expert_parameters(shape)
    dense = dense + with_experts * (expert_layer_parameters(shape) - routed)
    return StageParameters(dense=dense / layouts.tp, experts=with_experts * routed / layouts.ep)
