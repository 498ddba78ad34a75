"""Diffusion transformers in a diffusers config.json: DiT, MMDiT (Stable Diffusion 3, Flux), and Wan for videos.

A sample is cut into patches of its latent, as in the model's own pipeline: a side of s pixels has s / (8 p) patches of
width p; a video of F frames has 1 + (F - 1) / 4 latent ones. The model has none of the frozen encoders (VAE, text).
Symbols: those of `parameters`.
"""

from __future__ import annotations

from typing import Any

from trainworks.errors import UsageError
from trainworks.plan.shapes.hf_config import Config, completed, optional, whole
from trainworks.record.model_shape import DiffusionTransformer, ModelShape, SmallParameters

_PIXELS, _FRAMES = 8, 4
"""Pixels of a side, and frames, that the VAE of each of these models makes one."""
_SINUSOIDS = 256
"""Values of a time step before its embedder."""
_CLIP_AND_T5, _T5 = 77 + 256, 512
"""Tokens of a caption in the pipelines of Stable Diffusion 3, and in those of Flux dev and Wan."""


def dit(config: Config) -> ModelShape:
    """Classes instead of text; adaLN-Zero modulates a layer by 6 h^2 (Peebles and Xie 2023). Layers share embedders."""
    return _dit(config, shared=True)


def diffusers_dit(config: Config) -> ModelShape:
    """The same in diffusers, where every layer has embedders of time and class of its own."""
    return _dit(config, shared=False)


def _dit(config: Config, *, shared: bool) -> ModelShape:
    _refuse(config, norm_type="ada_norm_zero", norm_elementwise_affine=False)
    config = {"in_channels": 4, "sample_size": 32, "attention_head_dim": 72, "num_layers": 28, **config}
    hidden = _hidden(config)
    layers, time = whole(config, "num_layers"), _embedder(_SINUSOIDS, hidden)
    inside, outside = (0, 1) if shared else (layers, 0)  # embedders
    tables = 2 * hidden + (whole(config, "num_embeds_ada_norm", default=1000) + 1) * hidden
    biases = 0 if config.get("attention_bias", True) else -3 * hidden  # of queries, keys and values
    diffusion = DiffusionTransformer(
        modulation=6 * layers * hidden * hidden + inside * time,
        conditioning=2 * hidden * hidden + outside * time,
        small=layers * (6 * hidden + biases) + inside * tables,
    )
    ends = 2 * hidden + outside * tables
    return _denoiser(config, layers=layers, feed_forward=4 * hidden, diffusion=diffusion, ends=ends)


def stable_diffusion_3(config: Config) -> ModelShape:
    """Two streams of image and text with weights of their own, and one attention over both; the text of the last layer
    ends behind its keys and values.

    Raises:
        UsageError: layers have a second attention of the image alone, as in 3.5 medium.
    """
    _refuse(config, dual_attention_layers=())
    config = {"num_layers": 18, "num_attention_heads": 18, "attention_head_dim": 64, "in_channels": 16, **config}
    layers, hidden = whole(config, "num_layers"), _hidden(config)
    time = _embedder(_SINUSOIDS, hidden) + _embedder(whole(config, "pooled_projection_dim", default=2048), hidden)
    text = whole(config, "caption_projection_dim", default=1152)
    norms = 2 * whole(config, "attention_head_dim") if config.get("qk_norm") else 0
    of_text = layers * (3 * hidden + norms) + (layers - 1) * 6 * hidden  # of which output and MLP have 1 + 4 + 1
    diffusion = DiffusionTransformer(
        text_tokens=_CLIP_AND_T5,
        text_layers=layers,
        text_outputs=layers - 1,
        modulation=(12 * layers - 4) * hidden * hidden,
        conditioning=2 * hidden * hidden + time,
        text_projection=whole(config, "joint_attention_dim", default=4096) * text,
        small=(12 * layers - 4) * hidden + layers * norms + of_text,
    )
    ends = 6 * hidden + text
    return _denoiser(config, layers=layers, feed_forward=4 * hidden, diffusion=diffusion, ends=ends, size=128)


def flux(config: Config) -> ModelShape:
    """Layers of two streams, then layers of one with attention and MLP side by side; patches are packed 2 x 2."""
    config = {"attention_head_dim": 128, "num_attention_heads": 24, "in_channels": 64, "patch_size": 1, **config}
    double, single = whole(config, "num_layers", default=19), whole(config, "num_single_layers", default=38)
    hidden, head_dim = _hidden(config), whole(config, "attention_head_dim")
    time = _embedder(_SINUSOIDS, hidden) * (2 if config.get("guidance_embeds") else 1)
    time += _embedder(whole(config, "pooled_projection_dim", default=768), hidden)
    layer = 6 * hidden + 9 * hidden + 2 * head_dim
    diffusion = DiffusionTransformer(
        text_tokens=_T5,
        text_layers=double,
        text_outputs=double,
        single_layers=single,
        modulation=(12 * double + 3 * single) * hidden * hidden,
        conditioning=2 * hidden * hidden + time,
        text_projection=whole(config, "joint_attention_dim", default=4096) * hidden,
        small=double * (2 * layer - 9 * hidden) + single * (2 * head_dim + 2 * hidden),
    )
    ends = 2 * hidden + (3 if config.get("guidance_embeds") else 2) * 2 * hidden + hidden
    layers = double + single
    return _denoiser(config, layers=layers, feed_forward=4 * hidden, diffusion=diffusion, ends=ends, size=128, packed=2)


def wan(config: Config) -> ModelShape:
    """A video's patches attend to each other, then to the text; a table of 6 h modulates each layer.

    Raises:
        UsageError: the model takes a first image as well.
    """
    _refuse(config, image_dim=None, added_kv_proj_dim=None, pos_embed_seq_len=None)
    config = {"num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16, "num_layers": 40, **config}
    hidden, layers = _hidden(config), whole(config, "num_layers")
    frames = whole(config, "frames", default=81)
    if (frames - 1) % _FRAMES:
        raise UsageError(f"{frames} frames are not 1 and a multiple of {_FRAMES}", hint="set `data.frames: 81`")
    norms = 2 * hidden  # of queries and keys
    crossing = 4 * hidden + norms + (2 * hidden if config.get("cross_attn_norm", True) else 0)
    diffusion = DiffusionTransformer(
        frames=frames,
        text_tokens=_T5,
        cross_layers=layers,
        conditioning=_embedder(whole(config, "freq_dim", default=_SINUSOIDS), hidden) + 6 * hidden * hidden,
        text_projection=_embedder(whole(config, "text_dim", default=4096), hidden),
        small=layers * (6 * hidden + norms + crossing),
    )
    width, ends = whole(config, "ffn_dim", default=13824), 2 * hidden + 8 * hidden + 2 * hidden
    return _denoiser(config, layers=layers, feed_forward=width, diffusion=diffusion, ends=ends, size=(60, 104))


def _denoiser(
    config: Config,
    *,
    layers: int,
    feed_forward: int,
    diffusion: DiffusionTransformer,
    ends: int,
    size: int | tuple[int, int] = 32,
    packed: int = 1,
) -> ModelShape:
    """The model for samples of a size.

    Args:
        config: with `image_size`, `image_height` and `frames` of the samples, if they are not the model's own.
        layers: L.
        feed_forward: f.
        diffusion: text and conditioning.
        ends: biases and tables outside of the layers, without those of the patches.
        size: sides of the latent where the config has none.
        packed: patches of a side that are one token's channels.
    """
    hidden, patch, heads = _hidden(config), _patch(config), whole(config, "num_attention_heads", default=16)
    height, width = _sides(config, size)
    if height % (patch * packed) or width % (patch * packed):
        raise UsageError(
            f"a latent of {height} x {width} has no whole patches of {patch * packed}",
            hint=f"set `data.image_size` to a multiple of {_PIXELS * patch * packed}",
        )
    latents = 1 + (diffusion.frames - 1) // _FRAMES
    tokens = latents * (height // (patch * packed)) * (width // (patch * packed))
    channels = whole(config, "in_channels")
    outputs = optional(config, "out_channels", channels) * patch * patch
    return completed(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        feed_forward=feed_forward,
        vocabulary=outputs,
        max_sequence_length=tokens + diffusion.text_in_sequence,
        gated_mlp=False,
        tie_embeddings=False,
        learned_positions=False,
        causal=False,
        patch_values=channels * patch * patch,
        diffusion=diffusion,
        small=SmallParameters(layer=4 * hidden, dense_mlp=feed_forward + hidden, model=ends + hidden + outputs),
    )


def _sides(config: Config, size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of the latent: of the run's images, else of the config, else the model's usual one."""
    if "image_size" in config:
        width = whole(config, "image_size")
        height = optional(config, "image_height", width)
        if height % _PIXELS or width % _PIXELS:
            raise UsageError(f"the VAE makes {_PIXELS} pixels one, which do not divide {width} x {height}")
        return height // _PIXELS, width // _PIXELS
    own = optional(config, "sample_size", 0)
    usual = size if isinstance(size, tuple) else (size, size)
    return (own, own) if own else usual


def _patch(config: Config) -> int:
    """Side of a patch; those of videos are one latent frame deep."""
    said: Any = config.get("patch_size", 2)
    sides = list(said) if isinstance(said, list | tuple) else [1, said, said]
    if len(sides) != 3 or sides[0] != 1 or sides[1] != sides[2]:
        raise UsageError(f"patches of {said} cannot be planned yet", hint="square patches of one frame can")
    return whole({"patch_size": sides[1]}, "patch_size")


def _hidden(config: Config) -> int:
    return whole(config, "num_attention_heads", default=16) * whole(config, "attention_head_dim")


def _embedder(inputs: int, hidden: int) -> int:
    """Matrices of two layers with an activation function between them."""
    return inputs * hidden + hidden * hidden


def _refuse(config: Config, **planned: Any) -> None:
    """Refuse a config that has another value than the one that is planned.

    Raises:
        UsageError: naming the key.
    """
    for key, value in planned.items():
        if (config.get(key) or value) not in (value, list(value) if isinstance(value, tuple) else value):
            raise UsageError(f"a diffusion transformer with `{key}: {str(config[key])[:40]}` cannot be planned yet")
