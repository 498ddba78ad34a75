"""Causal language models that the decoder is not: as `transformers` computes them, cut by their own plan tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers import logging as transformers_logging

from trainworks.config.model import Model
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.record.model_shape import ModelShape
from trainworks.worker.loss import IGNORED
from trainworks.worker.models.decoder import PackedTokens
from trainworks.worker.models.families import balance_weight
from trainworks.worker.models.support import COLUMNS, ROWS, loaded_config

_STYLES: dict[str, type[ParallelStyle]] = {COLUMNS: ColwiseParallel, ROWS: RowwiseParallel}


class CausalTransformer(nn.Module):
    """Next-token prediction with a model of `transformers`, with pretrained weights or random ones.

    Shape suffixes: B sequences, T positions, V vocabulary.

    Raises:
        EnvironmentProblem: the weights cannot be read.
    """

    def __init__(self, config: PretrainedConfig, *, pretrained: str | None, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        options = {"dtype": torch.float32}  # attention by SDPA, where the model has it
        try:
            self.model: PreTrainedModel = (
                AutoModelForCausalLM.from_config(config, **options)
                if pretrained is None
                else AutoModelForCausalLM.from_pretrained(pretrained, use_safetensors=True, **options)
            )
        except (OSError, ValueError) as error:
            raise EnvironmentProblem(f"cannot load `{pretrained or config.model_type}`: {error}") from None
        self.model.train()
        self._balance = balance_weight(config)
        self.loss: Callable[[Tensor, Tensor], Tensor] = _mean_cross_entropy
        """Logits [N, V] and labels [N] to the loss."""

    def forward(
        self, tokens: Tensor | PackedTokens, labels_BT: Tensor | None = None, *, at: int | None = None
    ) -> Tensor:
        """Mean cross-entropy in fp32, natural logarithm; without labels logits [B, T, V], or [B, V] `at` a position.

        Labels of -100 do not count; the loss is 0 where none counts.
        """
        options: dict[str, Tensor] = {}
        if isinstance(tokens, PackedTokens):
            tokens, options["position_ids"] = tokens
        output = self.model(input_ids=tokens, use_cache=False, **options)
        logits_BTV: Tensor = output.logits
        if labels_BT is None:
            return logits_BTV if at is None else logits_BTV[:, at]
        loss = self.loss(logits_BTV.flatten(0, 1), labels_BT.flatten())
        if self._balance and torch.is_grad_enabled():
            balance = self._balance * output.aux_loss
            loss = loss + (balance - balance.detach())  # its gradient alone: the reported loss does not contain it
        return loss

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
        """The decoder layers, in order."""
        return blocks_of(self.model)

    def apply_tensor_parallel(self, mesh: DeviceMesh) -> None:
        """Shard the layers by the model's own plan, see `support_of`; embeddings and output stay whole."""
        table, base = self.model.config.base_model_tp_plan, self.model.base_model
        plan = {
            name: _STYLES[table[pattern]]()
            for pattern in table
            for name, _ in base.named_modules()
            if re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name)
        }
        parallelize_module(base, mesh, plan)


def _mean_cross_entropy(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    total = cross_entropy(logits_NV.float(), labels_N, reduction="sum")
    return total / (labels_N != IGNORED).sum().clamp(min=1)


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
