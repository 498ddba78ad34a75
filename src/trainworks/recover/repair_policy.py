"""The site's policy of repairs: how many nodes at once, and the command of each step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainworks.config.quantities import DurationS, Share
from trainworks.config.spec import Spec
from trainworks.units import DAY_S

GPUS_RESET = "trainworks: the GPUs were reset"
"""Line of the kernel's log after a reset; errors before it that a reset clears do not count any more."""
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10 $NODE "
_Action = Literal["check", "reset", "reload", "reboot", "ticket"]
_Command = Annotated[str, StringConstraints(max_length=4096)]
_Needed = Annotated[_Command, StringConstraints(pattern=r"\S")]


class RepairPolicy(Spec):
    """How a site repairs its nodes.

    A command is a line of bash that runs where `trainworks repair` runs, with the node's name in `$NODE` and the cause
    in `$CAUSE`. Its exit code is 0 if it succeeded. An empty one leaves its step out.
    """

    max_share: Share = 0.05
    """Largest share of the cluster's nodes that repairs keep out of service, those with a ticket included."""
    escalate_within: DurationS = 7 * DAY_S
    """Time in which a second failure of the same kind gets the next stronger action."""
    boot_timeout: DurationS = 1800.0
    """Time after which a node that has not booted again has failed."""
    command_timeout: DurationS = 900.0
    """Time after which a command is killed and has failed."""
    causes: dict[str, _Action] = Field(default_factory=dict)
    """First action by check or alert."""
    takes_over: dict[Annotated[str, Field(min_length=1)], _Action] = Field(default_factory=dict)
    """First action by the first words of the reason of a drain; such nodes are repaired, too."""
    reset: _Command = _SSH + f"\"sudo sh -c 'nvidia-smi --gpu-reset && echo {GPUS_RESET} > /dev/kmsg'\""
    """Resets all GPUs of the node."""
    reload: _Command = ""
    """Loads the driver of the GPUs anew."""
    reboot: _Command = _SSH + "sudo systemctl reboot"
    """Reboots the node. Exit code 255 counts as 0, because ssh loses its connection."""
    uptime: _Needed = _SSH + "cat /proc/uptime"
    """Prints the seconds since the node booted."""
    check: _Needed = _SSH + "sudo trainworks health --as prolog"
    """Checks the node; as root, because what a check cannot read does not fail."""
    bench: _Command = _SSH + "trainworks bench compute memory"
    """Checks a node that was slow, after `check`."""
    ticket: _Command = ""
    """Opens a ticket. `$TICKET` is a JSON file with its facts; after a crash the command may run again with the same
    `id`."""
