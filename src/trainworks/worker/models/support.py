"""Where a model of `transformers` can be cut, found in its structure, and the layouts that follow.

A pipeline cuts between layers. That is right where a layer gets nothing that was trained but the output of the layer
before. The model itself shows it: its forward runs with stand-ins for the layers, without storage, and the graph of its
gradients tells which weights come before them and which after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trainworks.config.layout import ModelSupport
from trainworks.config.model import Model
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.models.families import adaptable_decoder, balance_weight, decoder_config, dropout_rate

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_TOKENS = 8


def support_of(config: PretrainedConfig, *, adapted: bool) -> ModelSupport:
    """What the worker can do with a model, beside which adapters train if it is `adapted`."""
    decoder = adaptable_decoder(config) if adapted else decoder_config(config)
    return ModelSupport(
        model_type=config.model_type,
        uncut={} if decoder is not None else _uncut(config),
        layers=config.num_hidden_layers,
        dropout=dropout_rate(config),
        balance_loss=balance_weight(config),
    )


def _uncut(config: PretrainedConfig) -> dict[str, str]:
    """The axes over which a model that the decoder is not cannot be cut, and the reasons."""
    uncut = dict.fromkeys(("cp", "ep"), "the worker trains it as `transformers` computes it")
    from transformers import AutoModelForCausalLM  # noqa: PLC0415  # a second, for models that the decoder is not

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except ValueError:
        return uncut | dict.fromkeys(("tp", "pp"), "`transformers` has no causal language model of this type")
    if reason := _no_tensor_parallel(model):
        uncut["tp"] = reason
    if balance_weight(config):
        uncut["pp"] = "its balance loss needs the routers of all layers at once"
    elif getattr(config, "layerdrop", 0.0):
        uncut["pp"] = f"with layerdrop ({config.layerdrop:g}), it leaves out layers at random"
    elif isinstance(seams := find_seams(model), str):
        uncut["pp"] = seams
    return uncut


def _no_tensor_parallel(model: Any) -> str | None:
    """The reason why the linear layers of a model cannot be cut over tp."""
    if rate := dropout_rate(model.config):
        return f"with dropout ({rate:g}), each rank would drop other values of activations that all ranks share"
    layers = layer_stack(model) or nn.ModuleList()
    if any("experts" in name for name, _ in layers.named_modules()):
        return "it has experts, and each rank would route copies of the same tokens in a way of its own"
    has_linear = any(isinstance(module, nn.Linear) for module in layers.modules())
    return None if has_linear else "its layers have no `nn.Linear`, which is what the worker cuts"


def loaded_config(model: Model, **changes: int) -> PretrainedConfig:
    """The config of a model that is named, with the balance loss of the run file and other fields changed.

    Raises:
        EnvironmentProblem: it cannot be read.
        UsageError: the run file has a balance loss, and the model does not.
    """
    from transformers import AutoConfig, logging  # noqa: PLC0415  # a second, for models that are named alone

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        config = AutoConfig.from_pretrained(str(model.hf), **changes)
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(f"cannot load `{model.hf}`: {error}") from None
    if model.balance_loss and not hasattr(config, "router_aux_loss_coef"):
        raise UsageError(
            f"`balance_loss` is for experts that `transformers` balances, and `{model.hf}` has none", hint="remove it"
        )
    if model.balance_loss is not None:
        config.router_aux_loss_coef = model.balance_loss
        config.output_router_logits = model.balance_loss > 0
    return config


@dataclass(frozen=True, slots=True)
class Seams:
    """What a pipeline has to know of a model."""

    before: frozenset[str]
    """Parameters between the tokens and the first layer, by every name that they have."""
    after: frozenset[str]
    """Parameters between the last layer and the logits; tied ones are in both."""
    in_tuple: bool
    """A layer returns its output as the first of a tuple."""


def layer_stack(model: Any) -> nn.ModuleList | None:
    """The outermost list of `num_hidden_layers` modules; None without one."""
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next((each for each in lists if len(each) == model.config.num_hidden_layers), None)


def find_seams(model: Any) -> Seams | str:
    """The seams of a causal model of `transformers`, with storage or without; or why a pipeline cannot cut it."""
    layers = layer_stack(model)
    if layers is None:
        return f"it has no list of its {model.config.num_hidden_layers} layers"
    names: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
    for in_tuple in (False, True):
        try:
            seen = _run(model, layers, in_tuple=in_tuple)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
            continue  # it wants the other kind of output
        if [id(x) for x in seen.inputs[1:]] != [id(x) for x in seen.outputs[:-1]]:
            continue
        if any(each.requires_grad for each in seen.others):
            return "its layers get more than the output of the layer before"
        before, after = _leaves(seen.inputs[0]), _leaves(seen.logits)
        inside = {id(output) for output in seen.outputs[:-1]}
        if any(id(leaf) in inside for leaf in after):
            return "its output needs more than the last layer"
        known = [frozenset(name for leaf in leaves for name in names.get(id(leaf), ())) for leaves in (before, after)]
        return Seams(known[0], known[1], in_tuple)
    return "`transformers` computes something between its layers"


@dataclass(slots=True)
class _Seen:
    """What layers are given, and what stands for their outputs."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    others: list[Tensor]
    logits: Tensor


def _run(model: Any, layers: nn.ModuleList, *, in_tuple: bool) -> _Seen:
    seen = _Seen([], [], [], torch.empty(0))

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs["hidden_states"]
        output = torch.zeros_like(x).requires_grad_()
        seen.inputs.append(x)
        seen.outputs.append(output)
        seen.others += [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor) and each is not x]
        return (output,) if in_tuple else output

    device = next(model.parameters()).device
    with _forwards(layers, stand_in), _Answering(), torch.enable_grad():
        tokens = torch.zeros(1, _TOKENS, dtype=torch.int64, device=device)
        seen.logits = model(input_ids=tokens, use_cache=False).logits
    if len(seen.inputs) != len(layers):
        raise ValueError("a layer is left out, or runs twice")
    return seen


@contextmanager
def _forwards(layers: nn.ModuleList, forward: Any) -> Iterator[None]:
    for layer in layers:
        layer.forward = forward
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Answering(TorchDispatchMode):
    """Answers yes where a model without storage asks whether its tokens are one document."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return True
        return function(*args, **(kwargs or {}))


def _leaves(x: Tensor) -> list[Tensor]:
    """What a tensor was computed from, among what takes gradients."""
    found, visited, left = [], set(), [x.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        left += [following for following, _ in node.next_functions]
    return found


_COLUMNS, _ROWS, _GATHERED, _NORM = "colwise", "rowwise", "colwise_gather_output", "replicated_with_grad_allreduce"
_STYLES = {_COLUMNS, _ROWS, _GATHERED, "rowwise_split_input"}
_INNER = {
    **dict.fromkeys(("gate_proj", "up_proj", "fc1", "fc_in", "c_fc", "dense_h_to_4h"), _COLUMNS),
    **dict.fromkeys(("down_proj", "fc2", "fc_out", "c_proj", "dense_4h_to_h"), _ROWS),
}
"""Layers of an MLP by their usual names, for families without a table."""


def tensor_plan(model: Any, block: nn.Module, ranks: int) -> dict[str, str]:
    """How the linear layers of one decoder layer are cut over `ranks`: style by name in the layer.

    Styles are those of `base_model_tp_plan`, the table that `transformers` has for many families. Attention and MLP are
    cut by it if it covers all of their weights and leaves heads whole. Otherwise each of their linear layers computes
    a part of its columns, and all ranks get all of them: right for any attention and any fused projection, at the price
    of a gather.
    """
    table = _table(model, block)
    norms = [name for name, style in table.items() if style == _NORM]
    linears: dict[str, list[nn.Linear]] = {}
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            linears.setdefault(name.rpartition(".")[0], []).append(module)
    plan: dict[str, str] = {}
    for part, own in linears.items():
        prefix = f"{part}." if part else ""
        names = [name for name, module in block.named_modules() if any(module is each for each in own)]
        styles = {name: (table or _INNER).get(name if table else name.rpartition(".")[2], "") for name in names}
        inner = [name for name in norms if name.startswith(prefix)]
        if (
            set(styles.values()) <= _STYLES
            and _is_covered(block, part, [*names, *inner])
            and (_has_whole_heads(model.config, ranks) if table else _is_plain(block, styles))
        ):
            plan |= styles | dict.fromkeys(inner, _NORM)
        else:
            plan |= dict.fromkeys(names, _GATHERED)
    return plan


def _table(model: Any, block: nn.Module) -> dict[str, str]:
    """Styles of the table of `transformers` by the name of a module in one layer."""
    patterns = {key.partition(".*.")[2]: style for key, style in (model.config.base_model_tp_plan or {}).items()}
    return {
        name: style
        for pattern, style in patterns.items()
        for name, _ in block.named_modules()
        if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name)
    }


def _is_covered(block: nn.Module, part: str, names: list[str]) -> bool:
    """True if a part of a layer has no weights but those of the modules that are named; the layer itself always is."""
    covered = sum(len(list(block.get_submodule(name).parameters())) for name in names)
    return not part or covered == len(list(block.get_submodule(part).parameters()))


def _has_whole_heads(config: PretrainedConfig, ranks: int) -> bool:
    heads = [getattr(config, name, None) or ranks for name in ("num_attention_heads", "num_key_value_heads")]
    return all(number % ranks == 0 for number in heads)


def _is_plain(block: nn.Module, styles: dict[str, str]) -> bool:
    """True if what is cut by columns goes into what is cut by rows as it is: no projection holds two."""
    columns, rows = (
        {getattr(block.get_submodule(name), size) for name, each in styles.items() if each == style}
        for style, size in ((_COLUMNS, "out_features"), (_ROWS, "in_features"))
    )
    return columns == rows and len(rows) == 1
