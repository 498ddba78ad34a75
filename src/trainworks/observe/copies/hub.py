"""Upload of an exported model to the Hugging Face Hub, or to a server with its interface (`HF_ENDPOINT`)."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.masking import masked


def push(folder: Path, repository: str, *, public: bool = False) -> str:
    """Upload a folder in one commit; returns its address. The token is that of `HF_TOKEN` or `hf auth login`.

    A repository that is not there is created, for its owner alone unless `public` is set; one that is there stays as
    visible as it is.

    Raises:
        EnvironmentProblem: the server refuses it, or does not answer; the folder stays.
    """
    import httpx  # noqa: PLC0415  # of huggingface_hub
    from huggingface_hub import HfApi  # noqa: PLC0415  # half a second that only few need
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    hub = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        hub.create_repo(repository, private=not public, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="Upload the model of a run")
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError, RuntimeError) as error:
        reason = masked(" ".join(str(error).split()))
        raise EnvironmentProblem(
            f"cannot upload to `{repository}`: {reason}; the export is complete",
            place=str(folder),
            hint=f"check HF_TOKEN and the name, then: hf upload {repository} {folder}",
        ) from None
    return f"{hub.endpoint}/{repository}"
