"""The run file: what to train or run, on what, how, and what to keep.

Either `workload:` (a model that Trainworks trains) or `run:` (a command of your own) is given, never both.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainworks.spec.layout import Layout
from trainworks.spec.quantities import (
    BudgetUsd,
    CheckpointInterval,
    CheckpointIntervalField,
    DurationS,
    SizeBytes,
    Spec,
    TrainForField,
)

__all__ = [
    "TRAINED_VOCABULARY",
    "Checkpoint",
    "Cluster",
    "Data",
    "Goal",
    "Model",
    "Optimizer",
    "Recover",
    "RunFile",
    "Workload",
]

TRAINED_VOCABULARY = 4096
"""Entries of a tokenizer that is trained on the data, if the run file does not say."""

Architecture = Literal["llama", "mistral", "qwen2", "gpt2"]
RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
PositiveInt = Annotated[int, Field(ge=1)]


class Model(Spec):
    """A model: a preset, a Hugging Face checkpoint (local folder or hub id), or a decoder's bare dimensions."""

    preset: str | None = None
    """A published model by name (`llama3-70b`); replaces the dimensions below. To plan with, not to train."""
    hf: str | None = None
    """Folder or hub id with a config.json; replaces the dimensions below."""
    weights: Literal["random", "pretrained"] = "random"
    """Where the first weights come from; `pretrained` needs `hf`."""
    architecture: Architecture = "llama"
    layers: PositiveInt | None = None
    hidden: PositiveInt | None = None
    heads: PositiveInt | None = None
    kv_heads: PositiveInt | None = None
    """Key/value heads of grouped-query attention; the number of heads when left out."""
    feed_forward: PositiveInt | None = None
    """Width of the MLP; when left out 8/3 of `hidden` rounded up to 64 (gated) or 4 times `hidden` (gpt2)."""
    tie_embeddings: bool = True
    """Input and output embedding share one matrix."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Only gpt2 has dropout; any other architecture refuses a value above 0."""

    @model_validator(mode="after")
    def _complete(self) -> Model:
        missing = [name for name in ("layers", "hidden", "heads") if getattr(self, name) is None]
        named = [name for name in ("preset", "hf") if getattr(self, name) is not None]
        if not named and missing:
            raise ValueError(f"a model needs `preset`, `hf` or dimensions; missing: {', '.join(missing)}")
        if len(named) > 1 or (named and len(missing) < 3):
            raise ValueError("give one of `preset`, `hf` and dimensions")
        if self.weights == "pretrained" and self.hf is None:
            raise ValueError("`weights: pretrained` needs `hf`")
        if self.dropout and self.architecture != "gpt2":
            raise ValueError(f"`{self.architecture}` has no dropout; only gpt2 does")
        if self.hidden and self.heads and self.hidden % self.heads:
            raise ValueError(f"hidden ({self.hidden}) is not a multiple of heads ({self.heads})")
        if self.heads and self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})")
        return self


class Data(Spec):
    """Text to train on, tokenized once and cached."""

    source: str = ""
    """`python-stdlib` (this Python's own library), or a path or glob of text files; a described cluster needs none."""
    sequence_length: Annotated[int, Field(ge=1)] = 1
    """Tokens per training sequence; at least 2 for text, left out for images."""
    image_size: Annotated[int, Field(ge=8)] | None = None
    """Width of the square images."""
    tokenizer: str = "bpe"
    """`bpe` trains a byte-pair tokenizer on the text; otherwise a tokenizer.json."""
    vocabulary: Annotated[int, Field(ge=257, le=65536)] | None = None
    """Entries of a trained tokenizer, 4096 when left out; otherwise the tokenizer's own."""
    sample_size: SizeBytes | None = None
    """Of one sample as it is stored, for planning storage; when left out 2 or 4 bytes per token, 110 kB per image."""


class Optimizer(Spec):
    """AdamW and its learning-rate schedule."""

    name: Literal["adamw"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: TrainForField | None = None
    """Linear warm-up, in steps."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Learning rate at the end over the peak."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = 1.0

    @model_validator(mode="after")
    def _warmup_in_steps(self) -> Optimizer:
        if self.warmup is not None and self.warmup.unit != "steps":
            raise ValueError(f"warmup is given in steps, not `{self.warmup}`")
        return self


class Workload(Spec):
    """A training run that Trainworks does itself."""

    task: Literal["causal-lm", "masked-lm", "image-classification"]
    """This version trains causal-lm and plans all of them."""
    model: Model
    data: Data
    precision: Literal["fp32", "bf16", "fp16", "tf32", "fp8", "fp4"] = "bf16"
    """Arithmetic of forward and backward; weights and optimizer stay in fp32. This version trains fp32, bf16, fp16."""
    global_batch: PositiveInt
    """Sequences per optimizer step, over all ranks."""
    train_for: TrainForField
    optimizer: Optimizer = Optimizer()
    compile: bool = False
    """Compile each block with torch.compile."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    sample_prompt: str | None = None
    """Text that the trained model continues at the end of the run."""

    @model_validator(mode="after")
    def _size_of_a_sample(self) -> Workload:
        images = self.task == "image-classification"
        if images and self.data.image_size is None:
            raise ValueError("images need `data.image_size`")
        if not images and (self.data.sequence_length < 2 or self.data.image_size is not None):
            raise ValueError("text needs `data.sequence_length`, at least 2, and no `image_size`")
        return self


class Cluster(Spec):
    """Where to run. `cluster: local` is this machine; `cluster: 4x p4d.24xlarge` is one to plan with."""

    engine: Literal["local", "described"] = "local"
    of: str | None = None
    """A cluster in words, to plan with: `4 nodes of 8x A100-SXM-80GB over 8x HDR`, `64x H100`, `4x p4d.24xlarge`."""
    usd_per_accelerator_hour: Annotated[float, Field(gt=0)] | None = None
    """What one accelerator costs per hour; a budget needs it."""
    nodes: PositiveInt = 1
    """Node agents; several on one machine are separate failure domains."""
    processes_per_node: PositiveInt | Literal["auto"] = "auto"
    """Ranks per node; `auto` is one per accelerator, or one process on a machine without any."""
    rendezvous_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Loopback port of the rendezvous; 0 takes a free one."""

    @model_validator(mode="after")
    def _described_or_local(self) -> Cluster:
        if self.engine == "described" and self.of is None:
            raise ValueError("`cluster.of` is missing: the cluster in words\x1fwrite it like `cluster: 64x H100`")
        if (self.of is None) != (self.engine == "local"):
            raise ValueError("`of` describes a cluster to plan for; leave `engine` out beside it")
        return self


class Goal(Spec):
    """What the plan is held against before the run starts."""

    deadline: DurationS | None = None
    """Longest acceptable time from launch to the last step."""
    budget: BudgetUsd | None = None
    """Most that the run may cost; needs the price of an accelerator hour."""
    every: DurationS | None = None
    """How often such a run is started, when `trainworks size` plans for several teams; once when left out."""
    wait: DurationS | None = None
    """Longest acceptable time in the queue, for nine starts of ten."""


class Checkpoint(Spec):
    """When to save, and how many checkpoints to keep."""

    every: CheckpointIntervalField = CheckpointInterval()
    """`auto` balances the cost of saving against the work lost at the expected failure rate (Young/Daly)."""
    keep: Annotated[int, Field(ge=2)] = 3
    """Complete checkpoints kept; at least two, because the newest may sit on a dying disk."""
    to: str = "runs"
    """Folder that receives the run directory."""


class Recover(Spec):
    """What happens after a failure."""

    max_restarts: Annotated[int, Field(ge=0)] | None = None
    """Automatic restarts, from the last checkpoint; when left out 3 for a workload and 0 for a command."""
    node_mttf: DurationS = 30 * 86400.0
    """Mean time to failure of one node, for `checkpoint.every: auto`."""


def _cluster_from_text(value: Any) -> Any:
    """`local` is an engine; any other text describes a cluster."""
    if not isinstance(value, str):
        return value if not isinstance(value, dict) or "of" not in value else {"engine": "described"} | value
    return {"engine": value} if value == "local" else {"engine": "described", "of": value}


def _layout_from_text(value: Any) -> Any:
    return None if value == "auto" else value


class RunFile(Spec):
    """One file, one run."""

    name: RunName
    """Names the run directory: letters, digits, `.`, `_` and `-`."""
    workload: Workload | None = None
    """A model to train; excludes `run`."""
    run: str | None = None
    """A shell command started once per rank; excludes `workload`."""
    setup: str | None = None
    """A shell command that runs once per node before `run`."""
    envs: dict[str, str] = Field(default_factory=dict)
    """Environment variables of `setup` and `run`."""
    cluster: Annotated[Cluster, BeforeValidator(_cluster_from_text)] = Cluster()
    layout: Annotated[Layout | None, BeforeValidator(_layout_from_text)] = None
    """Degrees of parallelism and options; `auto` when left out. A degree it leaves out is 1 here, open elsewhere."""
    goal: Goal = Goal()
    checkpoint: Checkpoint = Checkpoint()
    recover: Recover = Recover()

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> RunFile:
        if (self.workload is None) == (self.run is None):
            raise ValueError("give exactly one of `workload` (a model to train) and `run` (a command)")
        if self.run is not None and self.layout is not None:
            raise ValueError("`layout` is for a workload; a command of your own lays out its ranks itself")
        if self.setup is not None and self.run is None:
            raise ValueError("`setup` goes with `run`")
        return self
