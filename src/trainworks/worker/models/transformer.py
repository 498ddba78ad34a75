"""Causal language models that the decoder is not: as `transformers` computes them, cut at the seams of their layers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers import logging as transformers_logging

from trainworks.config.finetune import Adapter
from trainworks.config.model import Model
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.record.model_shape import ModelShape
from trainworks.worker.loss import IGNORED, predictions_of_logits
from trainworks.worker.models.adapters import adapt
from trainworks.worker.models.decoder import Decoder, PackedTokens
from trainworks.worker.models.families import adaptable_decoder, balance_weight, decoder_config, described_decoder
from trainworks.worker.models.support import find_seams, layer_stack, loaded_config, tensor_plan

_STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    # A norm of the heads that a rank has. It treats each vector alone, so that ranks may count as parts of the batch.
    "replicated_with_grad_allreduce": lambda: SequenceParallel(sequence_dim=0, use_local_output=True),
}
"""Cuts of `base_model_tp_plan` by their names there."""


class CausalTransformer(nn.Module):
    """Next-token prediction with a model of `transformers`, with pretrained weights or random ones; with `scores`, one
    number of the last token of each sequence.

    Shape suffixes: B sequences, T positions, V vocabulary.

    Raises:
        EnvironmentProblem: the weights cannot be read.
        UsageError: the model has no head `score`.
    """

    def __init__(self, config: PretrainedConfig, *, pretrained: str | None, seed: int, scores: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        options: dict[str, object] = {"dtype": torch.float32}  # attention by SDPA, where the model has it
        kind = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
        options |= {"num_labels": 1} if scores and pretrained is not None else {}
        try:
            self.model: PreTrainedModel = (
                kind.from_config(config, **options)
                if pretrained is None
                else kind.from_pretrained(pretrained, use_safetensors=True, **options)
            )
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(f"cannot load `{pretrained or config.model_type}`: {error}") from None
        if scores and not hasattr(self.model, "score"):
            raise UsageError(f"a {config.model_type} of `transformers` has no head for rewards, `score`")
        self._scores = scores
        self.model.train()
        self.first = self.last = True
        self._layers = list(layer_stack(self.model) or blocks_of(self.model))
        self._blocks = self._layers
        self._passing: Tensor | None = None
        """Hidden states on their way into, or out of, the layers of a stage."""
        self._balance = balance_weight(config)
        self.loss: Callable[[Tensor, Tensor], Tensor] = _mean_cross_entropy
        """Logits [N, V] and labels [N] to the loss."""
        self.watch: Callable[..., None] | None = None
        """Called in evaluation with what the model predicts."""

    def keep_stage(self, layers: range, *, first: bool, last: bool) -> None:
        """Keep the layers of one pipeline stage; `first` has what comes before all layers, and `last` what comes after.

        `transformers` still runs the whole forward, so that masks and rotary embeddings are its own: a layer that
        another stage has hands on what it is given.
        """
        seams = find_seams(self.model)
        assert not isinstance(seams, str)  # `support_of` refuses the others
        self.first, self.last = first, last
        kept = (seams.before if first else frozenset()) | (seams.after if last else frozenset())
        dropped = (seams.before | seams.after) - kept
        for name, module in self.model.named_modules():
            own = [key for key, _ in module.named_parameters(name, recurse=False, remove_duplicate=False)]
            if not dropped.isdisjoint(own):
                for key in own:
                    module.register_parameter(key.rpartition(".")[2], None)
                module.forward = _absent
        for index, layer in enumerate(self._layers):
            if index not in layers:
                for content in (layer._modules, layer._parameters, layer._buffers):
                    content.clear()
                layer.forward = functools.partial(self._pass, index, seams.in_tuple)
        self._blocks = [self._layers[index] for index in layers]

    def _pass(self, index: int, in_tuple: bool, *args: Tensor, **kwargs: Any) -> Tensor | tuple[Tensor]:
        x_BTD: Tensor = args[0] if args else kwargs["hidden_states"]
        if index == 0:
            assert self._passing is not None
            x_BTD = self._passing
        if index == len(self._layers) - 1:
            self._passing = x_BTD
        return (x_BTD,) if in_tuple else x_BTD

    @property
    def shared_weight(self) -> Tensor | None:
        """The output matrix, on a first or last stage whose other end has it as its embedding."""
        output = self.model.get_output_embeddings()
        weight: Tensor | None = getattr(output, "weight", None)
        tied = weight is not None and weight is self.model.get_input_embeddings().weight
        return weight if tied and self.first != self.last else None

    def forward(
        self,
        x: Tensor | PackedTokens,
        labels_BT: Tensor | None = None,
        *,
        positions_BT: Tensor | None = None,
        at: int | None = None,
    ) -> Tensor:
        """Hidden states, logits or the mean cross-entropy in fp32, natural logarithm, as far as this stage goes.

        Args:
            x: tokens [B, T] for the first stage, hidden states [B, T, D] for any other.
            labels_BT: what the last stage compares with; -100 does not count. The loss is 0 where none counts. For a
                reward, the position [B] of the last token of each sequence.
            positions_BT: of packed documents, see `PackedTokens`, which a first stage may have instead.
            at: without labels: the position whose logits [B, V] are wanted; all of them [B, T, V] when None.

        Returns:
            [B, T, D], [B, V] or [B, T, V]; with labels the loss, shape [1], or the rewards [B].
        """
        if isinstance(x, PackedTokens):
            x, positions_BT = x
        options = {} if positions_BT is None else {"position_ids": positions_BT}
        options["input_ids" if self.first else "inputs_embeds"] = x
        if not self.first:
            self._passing = x
        output = (self.model if self.last and not self._scores else self.model.base_model)(**options, use_cache=False)
        x_BTD, self._passing = self._passing, None
        if not self.last:
            assert x_BTD is not None
            return x_BTD
        if self._scores:
            x_BTD = output.last_hidden_state
            rewards: Tensor = self.model.score(x_BTD[torch.arange(len(x_BTD), device=x_BTD.device), labels_BT])
            return rewards.squeeze(-1)
        logits_BTV: Tensor = output.logits
        if labels_BT is None:
            return logits_BTV if at is None else logits_BTV[:, at]
        if self.watch is not None:
            self.watch(*predictions_of_logits(logits_BTV.flatten(0, 1), labels_BT.flatten()))
        loss = self.loss(logits_BTV.flatten(0, 1), labels_BT.flatten())
        if self._balance and torch.is_grad_enabled():
            balance = self._balance * output.aux_loss
            loss = loss + (balance - balance.detach())  # its gradient alone: the reported loss does not contain it
        return loss if loss.ndim else torch.stack([loss])

    @torch.no_grad()
    def check_packing(self) -> None:
        """Check on a few tokens that a document in a row has the logits that it has alone.

        `transformers` tells documents apart by their positions, in most models and not in all.

        Raises:
            UsageError: it does not, and documents would see each other.
        """
        self.model.eval()
        tokens_BT = torch.arange(1, 7).remainder(self.model.config.vocab_size).unsqueeze(0)
        positions_BT = torch.tensor([[0, 1, 2, 0, 1, 2]])
        packed = self(PackedTokens(tokens_BT, positions_BT))[:, 3:]
        alone = self(tokens_BT[:, 3:])
        self.model.train()
        if not torch.allclose(packed, alone, rtol=1e-3, atol=1e-3):
            raise UsageError(
                f"a {self.model.config.model_type} of `transformers` cannot keep the documents of a row apart: "
                f"logits differ by up to {(packed - alone).abs().max():.2g}",
                hint="set `data.pack: false`",
            )

    @property
    def blocks(self) -> list[nn.Module]:
        """The decoder layers that this stage has, in order."""
        return self._blocks

    def apply_tensor_parallel(self, mesh: DeviceMesh) -> None:
        """Cut the linear layers as `tensor_plan` says; embeddings, norms and output stay whole."""
        for block in self.blocks:
            plan = tensor_plan(self.model, block, mesh.size())
            parallelize_module(block, mesh, {name: _STYLES[style]() for name, style in plan.items()})
            if not self.model.config.base_model_tp_plan:  # a family that was not written for it may add in place
                for name in plan:
                    block.get_submodule(name).register_forward_hook(lambda module, inputs, output: output.clone())


def _absent(*args: Tensor, **kwargs: Any) -> Tensor:
    """Stands where another stage has an embedding or a norm; what it gives is not used, it has to fit alone."""
    x = args[0]
    return x if x.ndim == 3 else torch.zeros((), device=x.device)  # [B, T, D]


def _mean_cross_entropy(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    total = cross_entropy(logits_NV.float(), labels_N, reduction="sum")
    return total / (labels_N != IGNORED).sum().clamp(min=1)


def trained_names(model: Model, shape: ModelShape, adapter: Adapter | None) -> list[str]:
    """Names of the parameters that a run trains, from a model without storage.

    Raises:
        EnvironmentProblem: the config of the model cannot be read.
        UsageError: no layer has a name that the adapter asks for.
    """
    config = None if model.hf is None else model_config(model, shape)
    decoder = described_decoder(model, shape) if config is None else decoder_config(config)
    if config is not None and adapter is not None:
        decoder = adaptable_decoder(config)
    with torch.device("meta"):
        if decoder is None:
            assert config is not None
            built: Decoder | CausalTransformer = CausalTransformer(config, pretrained=None, seed=0)
        else:
            built = Decoder(decoder)
        if adapter is not None:  # 4 bits need storage, and change no name
            adapt(built, built.blocks, adapter.model_copy(update={"base": "fp32"}), precision="fp32")
    return [name for name, parameter in built.named_parameters() if parameter.requires_grad]


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The longest list of modules of a model: its layers; empty without one."""
    return max((list(module) for module in model.modules() if isinstance(module, nn.ModuleList)), key=len, default=[])


def model_config(model: Model, shape: ModelShape | None) -> PretrainedConfig:
    """The Hugging Face config of a model that is named, or given by dimensions.

    Raises:
        EnvironmentProblem: it cannot be read.
    """
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if model.hf is not None:
        return loaded_config(model)
    assert shape is not None
    fields: dict[str, Any] = {
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
    fields |= {"head_dim": shape.head_dim}
    if model.architecture == "mistral":
        fields["sliding_window"] = shape.window or None
    if shape.experts:
        fields |= {"num_local_experts": shape.experts, "num_experts_per_tok": shape.experts_per_token}
        fields |= {"intermediate_size": shape.expert_feed_forward}
        fields |= {"router_aux_loss_coef": model.written_balance_loss, "output_router_logits": True}
    return AutoConfig.for_model(model.architecture, **fields)


def hub_origin(folder: Path) -> tuple[str, str] | None:
    """Hub id and revision of a folder in the hub's cache; None for any other.

    >>> hub_origin(Path("/hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de289a04d12100db370d81485cdf75e47ca"))
    ('Qwen/Qwen3-0.6B', 'c1899de289a04d12100db370d81485cdf75e47ca')
    """
    found = re.search(r"/models--([^/]+)/snapshots/([0-9a-f]{40})$", str(folder))
    return None if found is None else (found[1].replace("--", "/", 1), found[2])


def checkpoint_folder(checkpoint: str) -> Path:
    """The folder of a checkpoint with its safetensors files: as named, or from the hub's cache, or from the hub.

    Raises:
        EnvironmentProblem: it is not a folder, and the Hub cannot provide it.
    """
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # half a second that only few need
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(checkpoint, allow_patterns=["*.safetensors", "*.json"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        raise EnvironmentProblem(
            f"cannot load `{checkpoint}`: no such folder, and the Hub returned: {error}",
            hint="name a folder with config.json and safetensors files, or check the id and the network",
        ) from None
