"""`python -m trainworks.worker.models.command support REQUEST_JSON PARENT_PID`: prints a `ModelSupport`.

The control plane asks before anything starts; a rank decides by the same function.
"""

from __future__ import annotations

import sys
from typing import Any

from trainworks.config.model import Model
from trainworks.worker.data.command import answer
from trainworks.worker.models.support import loaded_config, support_of


def _support(request: dict[str, Any]) -> dict[str, Any]:
    """The support of `model`, with an adapter if it is `adapted`."""
    config = loaded_config(Model.model_validate(request["model"]))
    return support_of(config, adapted=request["adapted"]).model_dump(mode="json")


if __name__ == "__main__":
    sys.exit(answer(sys.argv[2], sys.argv[3], _support))
