"""Config of a model on disk, in the Hub's cache, or on the Hub."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from trainworks.catalog.models import find_preset
from trainworks.errors import EnvironmentProblem
from trainworks.host import process

_DOWNLOAD = """
import sys
import huggingface_hub as hub
try:
    hub.get_hf_file_metadata(hub.hf_hub_url(sys.argv[1], "config.json"))
    path = hub.hf_hub_download(sys.argv[1], "config.json")
except Exception:
    path = hub.try_to_load_from_cache(sys.argv[1], "config.json")
    if not isinstance(path, str):
        raise
print(path)
"""
"""Downloads a config, or finds it in the cache. The request for its metadata fails at once without a network; the
download alone would try again for half a minute."""


def hf_config(checkpoint: str) -> dict[str, Any]:
    """The config.json of a local folder, of the Hub's cache, or of the Hub."""
    folder = Path(checkpoint).expanduser()
    path = folder / "config.json" if folder.is_dir() else _from_hub(checkpoint)
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"cannot read the config of `{checkpoint}`: {error}") from None
    if not isinstance(config, dict):
        raise EnvironmentProblem(f"cannot read the config of `{checkpoint}`: it is not a JSON object")
    return config


def _from_hub(checkpoint: str) -> Path:
    env = {"HF_HUB_ETAG_TIMEOUT": "5"} | os.environ
    output = process.run([*process.python_program(_DOWNLOAD), checkpoint], timeout_s=120, env=env)
    if output.exit_code != 0:
        reason = (output.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentProblem(
            f"cannot load the config of `{checkpoint}`: no such folder, and the Hub returned: {reason}",
            hint=f"name a folder with config.json, or check the id and the network{_or_preset(checkpoint)}",
        )
    return Path(output.stdout.strip().splitlines()[-1])


def _or_preset(checkpoint: str) -> str:
    known = find_preset(Path(checkpoint).name)
    return "" if known is None else f"; `model: {{preset: {known}}}` plans the published model without them"
