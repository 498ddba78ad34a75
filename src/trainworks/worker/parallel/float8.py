"""Matrix products of the blocks in 8-bit floating point, with torchao.

Dynamic scaling per tensor: inputs and weights in e4m3, gradients of outputs in e5m2 (Micikevicius et al. 2022), sums in
higher precision. Embeddings, output, norms, routers and grouped products of experts stay in bf16.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from trainworks.errors import MissingExtraError

_MULTIPLE = 16
"""Divisor of both feature sizes of a product that the hardware requires."""


def use_float8(blocks: Sequence[nn.Module], *, emulate: bool) -> None:
    """Let the linear layers of the blocks multiply in fp8; parameters keep their names and stay as they are stored.

    Args:
        blocks: of a model, cut or not.
        emulate: round to fp8 and multiply in bf16, where the hardware has no such product.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415  # needed by few
    except ImportError:
        raise MissingExtraError("torchao", "fp8") from None
    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_fits, config=Float8LinearConfig(emulate=emulate))


def _fits(module: nn.Module, name: str) -> bool:
    if not isinstance(module, nn.Linear) or name.endswith("mlp.gate"):
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0
