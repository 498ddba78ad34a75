"""`python -m trainworks.worker.models.command support REQUEST_JSON PARENT_PID`: prints a `ModelSupport`.

The control plane asks before anything starts; a rank decides by the same function.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from trainworks.config.model import Model
from trainworks.worker.data.command import answer
from trainworks.worker.models.support import loaded_config, support_of


def main(action: str, request_json: str, parent: str) -> int:
    """Print the support of `model`, with an adapter if it is `adapted`; returns the exit code."""

    def support(request: Mapping[str, Any]) -> Mapping[str, object]:
        config = loaded_config(Model.model_validate(request["model"]))
        return support_of(config, adapted=request["adapted"]).model_dump(mode="json")

    return answer(request_json, parent, support)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
