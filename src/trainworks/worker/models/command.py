"""`python -m trainworks.worker.models.command support|names REQUEST_JSON PARENT_PID`: a `ModelSupport`, or names.

The control plane asks before anything starts; a rank decides by the same functions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trainworks.config.finetune import Adapter
from trainworks.config.model import Model
from trainworks.record.model_shape import ModelShape
from trainworks.worker.data.command import answer
from trainworks.worker.models.support import loaded_config, support_of
from trainworks.worker.models.transformer import trained_names


def main(action: str, request_json: str, parent: str) -> int:
    """Print the support of `model`, with an adapter if it is `adapted`, or the names of what is trained of it; returns
    the exit code.
    """

    def support(request: Mapping[str, Any]) -> Mapping[str, object]:
        config = loaded_config(Model.model_validate(request["model"]))
        return support_of(config, adapted=request["adapted"]).model_dump(mode="json")

    def names(request: Mapping[str, Any]) -> Mapping[str, object]:
        adapter, shape = request["adapter"], request["shape"]
        found = trained_names(
            Model.model_validate(request["model"]),
            ModelShape.model_validate(shape),
            adapter and Adapter.model_validate(adapter),
        )
        return {"names": found}

    return answer(request_json, parent, support if action == "support" else names)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
