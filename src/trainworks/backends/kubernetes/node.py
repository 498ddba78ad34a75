"""`python -m trainworks.backends.kubernetes.node RUN_DIR`: what every pod of a job runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trainworks.backends.kubernetes.first_pod import FirstPod
from trainworks.backends.kubernetes.follower import Follower
from trainworks.backends.kubernetes.pod import leave_words, pod_of, private_variables
from trainworks.backends.kubernetes.render import SECRETS
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.jobs.state import Cause, JobState
from trainworks.record.run_dir import RunDir

__all__ = ["main"]


def main(run_folder: str, secrets: str = SECRETS) -> int:
    """Supervise the job in the first pod, serve the first pod in all others."""
    process.adopt_orphans()
    run_dir, folder = RunDir(Path(run_folder)), Path(secrets)
    try:
        pod = pod_of(os.environ, folder)
        os.environ.update(private_variables(folder))
        return FirstPod(pod, run_dir, folder).run() if pod.index == 0 else Follower(pod, run_dir).run()
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        leave_words(JobState.FAILED, message=error.message, cause=Cause.ENVIRONMENT, exit_code=error.exit_code)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
