"""Dimensions of a model, as the planner, the worker and the record share them."""

from __future__ import annotations

from trainworks.config.spec import Spec


class LatentAttention(Spec):
    """Multi-head latent attention: queries, keys and values through low-rank projections (DeepSeek-V2)."""

    query_rank: int
    """0 if queries are projected directly."""
    kv_rank: int
    rope_head_dim: int
    """Per head, the part of queries and keys with positions; all heads share one key part."""
    nope_head_dim: int
    """Per head, the part without positions."""
    value_head_dim: int


class StateSpace(Spec):
    """Mamba-2 mixers (Dao and Gu 2024): a state of `head_dim` x `state` values per head instead of keys and values."""

    layers: int
    """Layers that have one."""
    heads: int
    head_dim: int
    state: int
    groups: int
    """Groups of heads that share the projections B and C to and from the state."""
    convolution: int
    """Tokens that the convolution before the scan spans."""
    chunk: int
    """Tokens that the scan computes at once, as attention would."""
    small: int
    """Weights of one mixer outside of its projections and its convolution: decay, skip, step, biases, norm."""

    @property
    def inner(self) -> int:
        """Values of all heads per token."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Values per token that pass the convolution: those of the heads, and B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Outputs of the input projection per token: gate, what is convolved, and a step of each head."""
        return self.inner + self.convolved + self.heads


class DiffusionTransformer(Spec):
    """What a transformer that denoises latents has beyond attention and MLP: text, and conditioning by the time step.

    A matrix of the conditioning is multiplied once per sample, not once per token.
    """

    frames: int = 1
    """Frames of a video; 1 for images."""
    text_tokens: int = 0
    """Tokens of a caption; they are part of the sequence, unless layers have cross-attention."""
    cross_layers: int = 0
    """Layers in which patches attend to the text, too, by a second attention (Wan)."""
    text_layers: int = 0
    """Layers whose queries, keys and values of the text have weights of their own (MMDiT)."""
    text_outputs: int = 0
    """Those of them whose attention output and MLP of the text have weights of their own: all but a last one."""
    single_layers: int = 0
    """Layers whose attention and MLP stand side by side, behind one norm (Flux)."""
    modulation: int = 0
    """Weights of all layers that turn the conditioning into scales, shifts and gates."""
    conditioning: int = 0
    """Weights outside of the layers that a sample passes once: embedders of time, class and pooled text."""
    text_projection: int = 0
    """Weights outside of the layers that a text token passes."""
    small: int = 0
    """Weights of all layers outside of matrices: biases of text, cross-attention and modulation, norms, tables."""

    @property
    def text_in_sequence(self) -> int:
        """Tokens of the sequence that are text."""
        return 0 if self.cross_layers else self.text_tokens


class SmallParameters(Spec):
    """Weights outside of matrix products over all tokens: norms, biases, sinks, pooler."""

    layer: int = 0
    """Norms and attention biases of each layer."""
    dense_mlp: int = 0
    """Biases of one dense MLP."""
    expert: int = 0
    """Biases of one routed expert."""
    router: int = 0
    """Router biases and gate of the shared experts of one layer with experts."""
    model: int = 0
    """Weights outside of the layers: final norm, token types, class token, pooler."""


class ModelShape(Spec):
    """Dimensions of a transformer; without layers, a model known only by its parameter count."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    """Width of the dense MLP; with experts, that of the layers without them."""
    vocabulary: int
    max_sequence_length: int
    gated_mlp: bool
    tie_embeddings: bool
    learned_positions: bool
    num_parameters: int
    causal: bool = True
    """Tokens attend only to earlier ones; False for encoders."""
    experts: int = 0
    """Routed experts of a layer; 0 for a dense model."""
    experts_per_token: int = 0
    expert_feed_forward: int = 0
    """Width of one routed expert."""
    expert_groups: int = 1
    """Groups of experts, of which a token chooses `groups_per_token` first (node-limited routing); 1 without them."""
    groups_per_token: int = 1
    further_tokens: int = 0
    """Layers with an output of their own that predict further tokens (multi-token prediction); they take time, and
    parameters and memory leave them out."""
    shared_feed_forward: int = 0
    """Total width of the experts that every token uses."""
    dense_layers: int = 0
    """Layers of a model with experts that have a dense MLP instead."""
    interleaved: bool = False
    """The dense layers stand between those with experts, as in Llama 4 Maverick; else they come first."""
    parallel: bool = False
    """Attention and MLP of a layer stand side by side, and their outputs are added at once, as in Falcon."""
    latent: LatentAttention | None = None
    """Ranks of multi-head latent attention; None for MHA and GQA."""
    state_space: StateSpace | None = None
    """Mixers of a hybrid; None for a model whose layers all have attention and an MLP."""
    attention_layers: int | None = None
    """Layers of a hybrid that have attention; None for all."""
    mlp_layers: int | None = None
    """Layers of a hybrid that have an MLP or experts; None for all."""
    expert_latent: int = 0
    """Width to which a token is projected for its routed experts; 0 where they take it as it is."""
    window: int = 0
    """Window of layers with sliding-window attention, in tokens; 0 without such layers."""
    window_layers: int = 0
    """Layers with such a window."""
    chunked: bool = False
    """A layer with a window attends within chunks of its length, as in Llama 4, instead of to the last tokens."""
    diffusion: DiffusionTransformer | None = None
    """Text and conditioning of a diffusion transformer; each of its patches has `vocabulary` outputs."""
    patch_values: int = 0
    """Values of one patch of an image or a latent, which is projected to a token; 0 for models with an embedding table.
    An image has one output, over `vocabulary` classes."""
    head_transform: bool = False
    """A layer from h to h with biases and a norm precedes the output matrix, as in BERT."""
    small: SmallParameters = SmallParameters()
    """Weights other than matrices, to recount parameters for another number of layers."""

    @classmethod
    def of_size(cls, num_parameters: int) -> ModelShape:
        """A model known only by its parameter count."""
        widths = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "head_dim", "feed_forward"), 0)
        rest = {"vocabulary": 0, "max_sequence_length": 0, "num_parameters": num_parameters}
        kinds = dict.fromkeys(("gated_mlp", "tie_embeddings", "learned_positions", "causal"), False)
        return cls.model_validate(widths | rest | kinds)

    @property
    def is_described(self) -> bool:
        """True if the dimensions are known."""
        return self.layers > 0
