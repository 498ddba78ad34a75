"""Model, software, adapter and offloading of a measured run, from a row's known names, dimensions and remarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from trainworks.catalog.catalog import explain_term
from trainworks.catalog.facts import Accelerator
from trainworks.catalog.models import find_preset, preset
from trainworks.config.finetune import LARGEST_ADAPTER_RANK, Adapter
from trainworks.config.software import HUGGING_FACE, Attention, Fp8Recipe, family_of
from trainworks.errors import UsageError
from trainworks.measure.tables import Row, flag_of, needed_whole, number_of, text_of, whole_of
from trainworks.plan.parameters import num_parameters, resized
from trainworks.plan.programs import Programs, Shown, programs
from trainworks.plan.run.adapters import adapter_parameters
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Selective
from trainworks.plan.space import Fixed
from trainworks.record.model_shape import ModelShape

_EXPERT_COLUMNS = ("experts", "experts_per_token", "expert_ffn", "shared_experts", "dense_layers")
MODEL_COLUMNS = (*("model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab"), *_EXPERT_COLUMNS)
_PADDING = 128
_OTHERWISE: Any = ({"tie_word_embeddings": True}, *({"head_dim": size} for size in (64, 96, 128, 192, 256)))
"""What a decoder may have where its printed size says so: one table for both ends, or heads of another width."""
_OTHER_SIZE, _SAME_SIZE = 0.1, 0.03
"""Share by which a printed size differs from that of another shape at least, and of the same one at most."""
_GATED_NAMES = re.compile(
    r"llama|mistral|mixtral|qwen|gemma|deepseek|yi|falcon3|olmo|granite|phi-?3|smollm|\bgated\b|glu\b", re.IGNORECASE
)
_NEIGHBOURS = re.compile(r"fake[\s_-]balanced", re.IGNORECASE)
"""A gate of NeMo Automodel's benchmarks, by which a token's k experts are neighbours: one group of E / k."""
_EXPERT_NAMES = re.compile(r"\d+x\d+b|moe\b|[-_]a\d+b", re.IGNORECASE)


def read_model(row: Row) -> ModelShape:
    """Shape of a row's model: that of its name, unless `hidden` or `experts` says otherwise, else of its dimensions.

    Raises:
        UsageError: the name is unknown and the dimensions are missing, or say too little of the experts.
    """
    shape = _read_shape(row)
    if shape.experts and _NEIGHBOURS.search(_words(row)):
        groups = max(1, shape.experts // shape.experts_per_token)
        return shape.model_copy(update={"expert_groups": groups, "groups_per_token": 1})
    return shape


def _read_shape(row: Row) -> ModelShape:
    found, layers = find_preset(text_of(row, "model")), whole_of(row, "layers")
    if found is not None:
        shape = shape_of_hf_config(preset(found))
        printed = (whole_of(row, "hidden") or shape.hidden, whole_of(row, "experts") or shape.experts)
        if printed == (shape.hidden, shape.experts):
            dense_layers = None
            if shape.experts and layers is not None and layers != shape.layers:
                # a cut model has its share of the layers without experts, at least one if it has any
                dense_layers = max(min(1, shape.dense_layers), round(shape.dense_layers * layers / shape.layers))
            return resized(shape, layers=layers, dense_layers=dense_layers, vocabulary=whole_of(row, "vocab"))
    return _shape_of_dimensions(row, layers)


def _shape_of_dimensions(row: Row, layers: int | None) -> ModelShape:
    """A decoder of these dimensions, with a gated MLP if its name, its size or its experts imply one."""
    name = text_of(row, "model")
    hidden = whole_of(row, "hidden")
    if hidden is None:
        unknown = f"model `{name}` is unknown and has no dimensions" if name else "model and hidden are empty"
        raise explain_term(name) or UsageError(unknown)
    experts = _experts(row)
    heads = whole_of(row, "heads") or max(1, hidden // 128)
    if heads > hidden:
        raise UsageError(f"{heads} heads do not fit a hidden size of {hidden}")
    kv_heads, ffn = whole_of(row, "kv_heads") or heads, whole_of(row, "ffn")
    # shared keys and values, or an MLP of 8/3 h to 3.5 h, came with the gated ones; plain MLPs have 4 h
    has_gated_size = kv_heads < heads or (ffn is not None and 2.5 < ffn / hidden < 3.7)
    gated = bool(experts) or bool(_GATED_NAMES.search(name)) or has_gated_size
    width = ffn or (-(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden)
    vocabulary = whole_of(row, "vocab") or (32000 if gated else 51200)
    length = whole_of(row, "seq_len") or 2048
    gated_config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
    }
    plain_config = {
        "model_type": "gpt2",  # it and its kin have one key head per head
        "n_embd": hidden,
        "n_head": heads,
        "n_inner": width,
        "vocab_size": -(-vocabulary // _PADDING) * _PADDING,
        "n_positions": length,
    }
    config, layers_key = (gated_config, "num_hidden_layers") if gated else (plain_config, "n_layer")

    def of(num_layers: int) -> ModelShape:
        shape = shape_of_hf_config(config | {layers_key: num_layers})
        changed = shape.model_copy(update=experts)
        return changed.model_copy(update={"num_parameters": num_parameters(changed)}) if experts else shape

    shape = of(layers or _layers_of_size(row, of, experts.get("dense_layers", 0)))
    if not gated or experts or layers is None or not _is_off(shape, row, _OTHER_SIZE):
        return shape
    others = [shape_of_hf_config(config | {layers_key: layers} | change) for change in _OTHERWISE]
    return next((each for each in others if not _is_off(each, row, _SAME_SIZE)), shape)


def _is_off(shape: ModelShape, row: Row, share: float) -> bool:
    """Whether a shape differs from the printed number of parameters by more than a share; False without one."""
    printed = number_of(row, "params_b")
    return printed is not None and abs(shape.num_parameters / (printed * 1e9) - 1) > share


def _layers_of_size(row: Row, of: Callable[[int], ModelShape], dense_layers: int) -> int:
    """The number of layers with which a model has the printed size."""
    total = number_of(row, "params_b")
    if not total:
        raise UsageError(f"model `{text_of(row, 'model')}` has neither layers nor a size")
    one, two = of(dense_layers + 1).num_parameters, of(dense_layers + 2).num_parameters
    return dense_layers + max(1, round((total * 1e9 - one) / (two - one)) + 1)


def _experts(row: Row) -> dict[str, int]:
    """The fields of a shape with experts; empty for a dense model.

    Without `expert_ffn` an expert is `ffn` wide, as those of Mixtral; a shared one is as wide as a routed one.
    """
    name, count = text_of(row, "model"), whole_of(row, "experts")
    if count is None:
        if _EXPERT_NAMES.search(name) or text_of(row, "usable_for_step_eval").lower() == "moe":
            raise UsageError(
                f"model `{name}` is unknown, and no column says how many experts it has: fill in experts, "
                "experts_per_token and expert_ffn"
            )
        if said := next((column for column in _EXPERT_COLUMNS if whole_of(row, column)), None):
            raise UsageError(f"{said} is filled in, and experts is empty")
        return {}
    per_token, dense = needed_whole(row, "experts_per_token"), whole_of(row, "dense_layers") or 0
    if per_token > count:
        raise UsageError(f"experts_per_token {per_token} is more than the {count} experts")
    if (layers := whole_of(row, "layers")) is not None and dense >= layers:
        raise UsageError(f"dense_layers {dense} leaves none of the {layers} layers for experts")
    width = whole_of(row, "expert_ffn") or (needed_whole(row, "ffn") if not dense else needed_whole(row, "expert_ffn"))
    return {
        "experts": count,
        "experts_per_token": per_token,
        "expert_feed_forward": width,
        "shared_feed_forward": width * (whole_of(row, "shared_experts") or 0),
        "dense_layers": dense,
    }


_ATTENTION: tuple[tuple[Attention, str], ...] = (
    ("unfused", r"\bno flash|without flash|unfused|\bxla\b|\beager attention|naive attention"),
    ("efficient", r"efficient attention|\bxformers\b"),
    ("flash-4", r"flash[\s_-]*(?:attention|attn)?[\s_-]*4|\bfa-?4\b"),
    ("flash-3", r"flash[\s_-]*(?:attention|attn)?[\s_-]*3|\bfa-?3\b"),
    ("flash-2", r"flash[\s_-]*(?:attention|attn)?[\s_-]*2|\bfa-?2\b|\bsdpa\b"),
    ("cudnn", r"cudnn"),
    ("flash-1", r"triton|flash[\s_-]*(?:attention|attn)?[\s_-]*1|\bfa-?1\b"),
)
_RECIPES: tuple[tuple[Fp8Recipe, str], ...] = (
    ("tensorwise", r"tensor[\s_-]*wise|delayed|\bcs\b"),
    ("rowwise", r"row[\s_-]*wise"),
    ("blockwise", r"block|mx"),
)
_SHARDING = re.compile(r"[\s\d,+/-]*(?:fsdp|hsdp|zero)[\s\d,+/-]*", re.IGNORECASE)
_ABOUT_SOFTWARE = ("precision", "source", "notes", "software", "source_key")
T = TypeVar("T")
_FP32_WEIGHTS: dict[str, Any] = {"weight_bytes": 4, "optimizer_bytes": 8.0}

_FACTS: tuple[tuple[re.Pattern[str], dict[str, Any]], ...] = tuple(
    (re.compile(words, re.IGNORECASE), changes)
    for words, changes in (
        (r"\bamp\b(?! ?o2)|autocast", {**_FP32_WEIGHTS, "autocast": True, "gradient_bytes": 4}),
        (r"pure[ -]?(bf|fp)16|(bf|fp)16[ -]true", {"gradient_bytes": 2, "optimizer_bytes": 4.0}),
        (r"8[- ]?bit (adam|optim)|adamw?8bit", {"optimizer_bytes": 2.0}),
        (r"step[a-z ]* in(to|side)? (the )?backward", {"gradient_bytes": 0}),
        (r"chunked|liger|fused linear|cut cross", {"loss_bytes": 3.0}),
        (r"loss parallel", {"loss_parallel": True}),
    )
)
"""What words of a row say, a later one of which overrules an earlier one."""


def read_programs(row: Row, shape: ModelShape, precision: str, accelerator: Accelerator, layout: Fixed) -> Programs:
    """What may have trained, the likeliest first; one program where the row says its name, its year and its compiler.

    Said is what `framework`, `attention` and `compiled` say, else words of its source and notes. A word about sharding
    (FSDP, ZeRO, HSDP) names no program, in no column: programs of every family shard.
    """
    words = " ".join(text_of(row, name) for name in _ABOUT_SOFTWARE)
    framework = text_of(row, "framework")
    named = "" if _SHARDING.fullmatch(framework) else framework
    attention = _written(_ATTENTION, text_of(row, "attention") or words)
    # its GPT-2, GPT-Neo and OPT wrote their scores out until 2024, unless their user asked for another kernel
    if attention is None and not shape.gated_mlp and HUGGING_FACE.search(f"{framework} {words}"):
        attention = "unfused"
    said = {"model": text_of(row, "model"), "program": framework, "words": words}
    shown = Shown.of(shape, precision, accelerator, layout, **said)
    found = programs(
        shown,
        named or family_of(words) or "",
        compiled=_compiled(row, words),
        attention=attention,
        fp8_recipe=_written(_RECIPES, text_of(row, "fp8_recipe") or text_of(row, "precision")),
        gradient_bytes=2 if "pure" in text_of(row, "precision").lower() else None,
        selective=_selective(text_of(row, "recompute")),
    )
    changes = {key: value for said, each in _FACTS if said.search(words) for key, value in each.items()}
    return tuple((replace(software, **changes), share) for software, share in found)


_FUSED_LOSS = {"loss_bytes": 2.0, "loss_parallel": True}
_IN_16_BITS = {"weight_bytes": 2, "gradient_bytes": 2, "optimizer_bytes": 4.0, "autocast": False}
_SAVINGS: tuple[dict[str, Any], ...] = (_FUSED_LOSS, _FUSED_LOSS | _IN_16_BITS)
"""What PyTorch programs do beyond others and tables do not print: a loss in one kernel, of each rank's part of the
vocabulary (FlashAttention, Liger); and weights, gradients and moments in 16 bits (torchtune, LitGPT's `bf16-true`)."""


def sparing(found: Programs) -> list[Programs]:
    """The PyTorch programs with the first of these savings, and with both; others that repeat the product of a gate."""
    torch = [each for each in found if each[0].framework == "torch"]
    saving = [tuple((replace(software, **changes), share) for software, share in torch) for changes in _SAVINGS]
    megatron = [each for each in found if each[0].framework == "megatron"]
    return [*saving, tuple((replace(software, repeats_gate=True), share) for software, share in megatron)]


def _written(names: Sequence[tuple[T, str]], text: str) -> T | None:
    """The first of these names that the text has; None if it has none."""
    return next((name for name, words in names if re.search(words, text, re.IGNORECASE)), None)


def _compiled(row: Row, words: str) -> bool | None:
    said = flag_of(row, "compiled")
    if said is not None:
        return said
    if re.search(r"(?<!non-)\beager\b|no compile|without compile|compile[:= ]*(?:false|off)", words, re.IGNORECASE):
        return False
    return True if re.search(r"torch[._]?compile|\bcompiled?\b|thunder|inductor", words, re.IGNORECASE) else None


def _selective(recompute: str) -> Selective | None:
    if re.search(r"qkv|save_out|except_mlp", recompute, re.IGNORECASE):
        return "projections" if re.search(r"out|except_mlp", recompute, re.IGNORECASE) else "queries"
    if re.search(r"\bop\b", recompute, re.IGNORECASE):
        return "every second product"
    return "products" if re.search(r"save_dot|minimal|custom", recompute, re.IGNORECASE) else None


ADAPTER_COLUMNS = ("adapter_rank", "adapter_targets", "adapter_base")
OFFLOADING_COLUMNS = ("offload_activations", "offload_optimizer")

_ABOUT_TRAINING = ("model", "source", "framework", "notes", "zero_stage", "recompute", "precision")
_METHODS = r"(?:q?lora|dora|peft|offload\w*)"
_DENIED = re.compile(
    rf"\b(?:no|not|without|w/o)\s+(?:\w+[\s-]+)?{_METHODS}|\b(?:\w+[\s-]+)?{_METHODS}\s*[:=]?\s*(?:no|none|off|false|0)\b",
    re.IGNORECASE,
)
"""What a row says that its run does not do."""
_EVERY_LAYER = ("all", "all-linear", "all linear", "linear")
_SHORT_NAMES = {name: f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}
Base = Literal["auto", "fp32", "bf16", "nf4"]

_OFFLOAD = re.compile(r"\b(?:cpu[- ])?offload\w*|zero-?offload|cpu[\s_-]?adam", re.IGNORECASE)
_TO_HOST = r"offload(?:s|ed|ing)?[\s_:-]+(?:of[\s_]+)?(?:the[\s_]+)?"
_ACTIVATIONS = re.compile(rf"activations?[\s_-]+offload|{_TO_HOST}activation", re.IGNORECASE)
_OPTIMIZER = re.compile(
    rf"(?:optimi[sz]er|adam)(?:[\s_-]+(?:states?|cpu))*[\s_-]+offload|{_TO_HOST}(?:optimi[sz]er|adam)|zero-?offload|"
    r"cpu[\s_-]?adam",
    re.IGNORECASE,
)
_WEIGHTS = re.compile(
    rf"(?:param(?:eter)?s?|weights?|model)[\s_-]+offload|{_TO_HOST}(?:param|weight|model)|zero-infinity|"
    r"nvme[\s_-]+offload|offload[^;.,]*\bnvme\b",
    re.IGNORECASE,
)


class Offloading(NamedTuple):
    """What a run keeps in the host's memory."""

    activations: int | None
    """1, or 0 where a column says so; None where the row says nothing."""
    optimizer: bool


def read_adapter(row: Row, shape: ModelShape, precision: str) -> Adapter | None:
    """Adapter that a row's run trains beside frozen weights; None for a run of all weights.

    Raises:
        UsageError: only the source names adapters, or the columns do not describe one of this model.
    """
    words = _words(row)
    said = re.search(r"\b(?:q?lora|dora|peft)\b", words, re.IGNORECASE)
    name = said[0] if said else ""
    if name.lower() == "dora":
        raise UsageError(f"`{name}` is not scored: what another program keeps for its magnitudes is not known")
    rank = whole_of(row, "adapter_rank") or _unfilled_rank(row, name, words)
    if rank is None:
        return None
    if rank > (most := min(shape.hidden, LARGEST_ADAPTER_RANK)):
        raise UsageError(f"adapter_rank {rank} is more than {most}, the largest of this model")
    usual = "fp32" if precision in ("fp32", "tf32") else "bf16"
    base = text_of(row, "adapter_base").lower() or ("nf4" if re.search(r"qlora|nf4", words, re.IGNORECASE) else usual)
    if base not in get_args(Base):
        raise UsageError(f"adapter_base `{base}` is not one of {', '.join(get_args(Base))}")
    adapter = Adapter(rank=rank, targets=_targets(row), base=cast("Base", base))
    if not adapter_parameters(shape, adapter):
        raise UsageError(f"adapter_targets `{text_of(row, 'adapter_targets')}` names no linear layer of the model")
    return adapter


def _unfilled_rank(row: Row, name: str, words: str) -> int | None:
    """The rank that the row's words say, else the program's own: 32 in Megatron-Bridge (`peft/lora.py`), 8 in PEFT,
    torchtune, LitGPT and NeMo Automodel. A rank of 64 instead of 8 makes a step of 7B to 70B 1 to 3 % longer.
    """
    if filled := next((name for name in ADAPTER_COLUMNS[1:] if text_of(row, name)), None):
        raise UsageError(f"{filled} is filled in, and adapter_rank is empty")
    if not name or text_of(row, "adapter_rank"):
        return None
    if name not in _words({**row, "source": ""}):
        raise UsageError(f"`{name}` trains adapters beside frozen weights: fill in adapter_rank, 0 where all train")
    written = re.search(r"\b(?:rank\s*[=:]?|(?:r|dim)\s*[=:])\s*([1-9]\d{0,3})\b", words, re.IGNORECASE)
    return int(written[1]) if written else 32 if family_of(words) in ("megatron", "nemo") else 8


def _targets(row: Row) -> tuple[str, ...]:
    """Names of the adapted layers: `q_proj v_proj`, `q, v`; none for every linear layer of the blocks."""
    text = text_of(row, "adapter_targets").lower()
    if text in _EVERY_LAYER:
        return ()
    names = [name for name in re.split(r"[\s,;+/|]+", text) if name]
    return tuple(_SHORT_NAMES.get(name, name) for name in names)


def read_offloading(row: Row) -> Offloading:
    """What the columns say is offloaded, else what the row's words say.

    Raises:
        UsageError: a column is neither yes nor no, the words do not say what is offloaded, or it is the weights.
    """
    words = _words(row)
    if said := _WEIGHTS.search(words):
        raise UsageError(f"`{said[0]}` keeps weights in the host's memory or states on drives, which is not planned")
    activations, optimizer = (_flag(row, name) for name in OFFLOADING_COLUMNS)
    if (said := _OFFLOAD.search(words)) is not None and activations is None and optimizer is None:
        activations = True if _ACTIVATIONS.search(words) else None
        optimizer = True if _OPTIMIZER.search(words) else None
        if activations is None and optimizer is None:
            columns = " or ".join(OFFLOADING_COLUMNS)
            raise UsageError(f"`{said[0]}` does not say what is offloaded: fill in {columns}")
    return Offloading(None if activations is None else int(activations), bool(optimizer))


def _flag(row: Row, name: str) -> bool | None:
    text = text_of(row, name).lower()
    value = True if text in ("cpu", "host") else flag_of(row, name)
    if text and value is None:
        raise UsageError(f"{name} `{text}` is neither yes nor no")
    return value


def _words(row: Row) -> str:
    """What the row says of its run, without what it denies."""
    return _DENIED.sub("", "; ".join(filter(None, (text_of(row, name) for name in _ABOUT_TRAINING))))
