"""The worker publishes which layouts it can train a model of `transformers` under; planner and ranks refuse by that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.plan.shapes import shape, workload
from trainworks.config.finetune import Adapter
from trainworks.config.layout import Layout, ModelSupport, resolve_layout
from trainworks.config.model import Model
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError, UsageError
from trainworks.measure.model_config import check_groups, model_shape, model_support
from trainworks.plan.run.trainable import check_trainable
from trainworks.worker.models.adapters import adapt
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.support import layer_stack, loaded_config, support_of, tensor_plan
from trainworks.worker.models.transformer import CausalTransformer, trained_names
from trainworks.worker.optimizer import named_parameters

SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
ALONE = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.05}


def support(kind: str, *, adapted: bool = False, **changes: Any) -> ModelSupport:
    """That of a tiny model."""
    return support_of(AutoConfig.for_model(kind, **SIZE | ALONE | changes), adapted=adapted)


def refused(of: ModelSupport, written: dict[str, Any]) -> str | None:
    """The field that a layout is refused for, by the planner as well."""
    layout = Layout.model_validate(written)
    world_size = layout.dp_shard * layout.cp * layout.tp * layout.pp
    resolved = resolve_layout(layout, world_size=world_size, global_batch=8, micro_batch=1, support=of)
    try:
        of.check(resolved)
    except LayoutError as error:
        assert error.hint is not None
        with pytest.raises(LayoutError) as planned:
            check_trainable(resolved, workload(), shape(), of)
        assert (planned.value.field, planned.value.message) == (error.field, error.message)
        return error.field
    return None


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "mixtral", "gpt2"])
@pytest.mark.parametrize("axis", ["tp", "pp", "cp"])
def test_the_decoder_is_cut_over_every_axis(kind: str, axis: str) -> None:
    assert refused(support(kind), {axis: 2}) is None


@pytest.mark.parametrize("kind", ["olmo2", "gemma", "opt"])
@pytest.mark.parametrize("written", [{"cp": 2}, {"dp_shard": 2, "ep": 2}])
def test_a_module_of_transformers_is_not_cut_over_positions_and_experts(kind: str, written: dict[str, Any]) -> None:
    assert refused(support(kind, dropout=0.0), written) in written
    assert refused(support(kind, dropout=0.0), {"tp": 2, "pp": 2}) is None


@pytest.mark.parametrize(
    ("kind", "changes", "axis", "reason"),
    [
        ("starcoder2", {"attention_dropout": 0.1}, "tp", "with dropout (0.1), each rank would drop other values"),
        ("starcoder2", {"residual_dropout": 0.2}, "tp", "with dropout (0.2), each rank would drop other values"),
        ("olmoe", {}, "tp", "it has experts, and each rank would route copies of the same tokens"),
        ("olmoe", {"output_router_logits": True}, "pp", "its balance loss needs the routers of all layers"),
        ("opt", {"layerdrop": 0.1}, "pp", "with layerdrop (0.1), it leaves out layers"),
        ("rwkv", {}, "pp", "`transformers` computes something between its layers"),
        ("gemma4_text", {}, "pp", "its layers get more than the output of the layer before"),
        ("vit", {}, "pp", "`transformers` has no causal language model"),
    ],
)
def test_a_module_is_refused_where_a_cut_would_be_wrong(
    kind: str, changes: dict[str, Any], axis: str, reason: str
) -> None:
    of = support(kind, **changes)
    assert refused(of, {axis: 2}) == axis
    assert of.uncut[axis].startswith(reason)


def plan(kind: str, ranks: int = 2, **changes: Any) -> dict[str, str]:
    """How a layer of a tiny model is cut."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZE | ALONE | changes))
    layers = layer_stack(model)
    assert layers is not None
    return tensor_plan(model, layers[0], ranks)


@pytest.mark.parametrize(
    ("kind", "changes", "style"),
    [
        ("gemma", {"num_key_value_heads": 2}, "colwise"),
        ("gemma", {"num_key_value_heads": 1}, "colwise_gather_output"),  # ranks would have half a key head
        ("phi", {"qk_layernorm": False}, "colwise"),
        ("phi", {"qk_layernorm": True}, "colwise_gather_output"),  # norms of heads that the table does not know
    ],
)
def test_attention_is_cut_by_its_table_into_whole_heads_or_gathered(
    kind: str, changes: dict[str, Any], style: str
) -> None:
    assert plan(kind, **changes)["self_attn.k_proj"] == style


def test_dropout_of_a_config_needs_sequence_parallel() -> None:
    of = support("gpt2", resid_pdrop=0.1)
    assert refused(of, {"tp": 2, "sequence_parallel": False}) == "sequence_parallel"
    assert refused(of, {"tp": 2}) is None


def test_a_module_over_tp_has_no_sequence_parallelism() -> None:
    of = support("gemma")
    written, sizes = Layout(tp=2), {"world_size": 2, "global_batch": 8, "micro_batch": 1}
    assert not resolve_layout(written, **sizes, support=of).sequence_parallel
    assert resolve_layout(written, **sizes, support=support("llama")).sequence_parallel
    asked = resolve_layout(written.model_copy(update={"sequence_parallel": True}), **sizes, support=of)
    with pytest.raises(LayoutError, match="`gemma` is trained as `transformers` computes it: ranks of tp share"):
        check_trainable(asked, workload(), shape(), of)


def saved(folder: Path, kind: str, **changes: Any) -> Workload:
    """The workload of a model whose config is in a folder."""
    AutoConfig.for_model(kind, **SIZE | ALONE | changes).save_pretrained(folder)
    data = {"source": "python-stdlib", "sequence_length": 16}
    fields = {"task": "causal-lm", "data": data, "global_batch": 4, "train_for": "1 steps"}
    return Workload.model_validate(fields | {"model": {"hf": str(folder)}})


def test_the_control_plane_gets_the_same_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    workload = saved(tmp_path / "model", "olmo2")
    expected = support_of(loaded_config(workload.model), adapted=False)
    assert model_support(workload, {}) == expected
    assert expected.uncut.keys() == {"cp", "ep"}


def test_a_group_of_no_parameter_is_refused_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = saved(tmp_path / "model", "llama")
    dims = model_shape(run)

    def with_groups(*patterns: str) -> Workload:
        groups = [{"parameters": pattern, "lr": 0.1} for pattern in patterns]
        return Workload.model_validate(run.model_dump() | {"optimizer": {"groups": groups}})

    check_groups(with_groups("*embed*", "layers.1.*"), dims, {})
    with pytest.raises(UsageError, match="no trained parameter has such a name") as caught:
        check_groups(with_groups("embed_token.weight"), dims, {})
    assert "did you mean `embed_tokens.weight`" in str(caught.value.hint)


@pytest.mark.parametrize("adapter", [None, Adapter(rank=2, base="nf4")], ids=["all weights", "adapter"])
@pytest.mark.parametrize("kind", ["llama", "olmo2"])
def test_names_of_a_model_are_those_that_its_optimizer_has(tmp_path: Path, kind: str, adapter: Adapter | None) -> None:
    run = saved(tmp_path, kind)
    names = trained_names(run.model, model_shape(run), adapter)
    config = loaded_config(run.model)
    decoder = decoder_config(config)
    built: Any = CausalTransformer(config, pretrained=None, seed=1) if decoder is None else Decoder(decoder)
    if adapter is not None:
        adapt(built, built.blocks, adapter, precision="fp32")
    assert names == [name for name, _ in named_parameters([built])]
    assert all("lora" in name for name in names) == (adapter is not None)


@pytest.mark.parametrize(
    ("written", "router_logits", "weight"),
    [(None, False, 0.0), (None, True, 0.05), (0.2, False, 0.2), (0.0, True, 0.0)],
)
def test_a_balance_loss_is_added_where_transformers_or_the_run_file_adds_one(
    tmp_path: Path, written: float | None, router_logits: bool, weight: float
) -> None:
    AutoConfig.for_model("mixtral", **SIZE | EXPERTS, output_router_logits=router_logits).save_pretrained(tmp_path)
    config = loaded_config(Model(hf=str(tmp_path), balance_loss=written))
    decoder = decoder_config(config)
    assert decoder is not None
    assert (decoder.balance_loss, support_of(config, adapted=False).balance_loss) == (weight, weight)


@pytest.mark.parametrize("kind", ["llama", "olmo2", "deepseek_v3"])
def test_a_balance_loss_is_refused_where_transformers_has_none(tmp_path: Path, kind: str) -> None:
    AutoConfig.for_model(kind, **SIZE | ALONE).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="`balance_loss` is for experts that `transformers` balances"):
        loaded_config(Model(hf=str(tmp_path), balance_loss=0.1))
    assert support_of(loaded_config(Model(hf=str(tmp_path), balance_loss=0.0)), adapted=False).balance_loss == 0
