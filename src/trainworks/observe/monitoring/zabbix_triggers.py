"""Alerts as triggers of Zabbix: the items they read, and their expressions in Zabbix' language.

What an alert says, how grave it is and what to do come from the alert itself; only the expression has a second form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Discovered = Literal["", "GPU", "RUN", "CHECK"]
"""What a trigger or an item exists for: the node, or each GPU, run or health check that a scrape names."""
DISCOVERIES: dict[Discovered, tuple[str, str, str]] = {
    "GPU": ("GPUs", "DCGM_FI_DEV_FB_TOTAL", "gpu"),
    "RUN": ("Runs", "trainworks_run_info", "run"),
    "CHECK": ("Health checks", "trainworks_health_check_status", "check"),
}
"""Title of a discovery, metric that has every one of its things, and label with their names."""


@dataclass(frozen=True, slots=True)
class ZabbixItem:
    """A value that Zabbix keeps: one series of a scrape."""

    key: str
    series: str
    """Pattern of Prometheus; `{#GPU}` and the like stand for what was discovered."""
    name: str
    units: str = ""
    absent: int | None = None
    """Value when the scrape does not have the series; None keeps the last one."""
    count: bool = False
    """True if the value is the number of series that match."""


@dataclass(frozen=True, slots=True)
class ZabbixTrigger:
    """An alert in Zabbix' language."""

    alert: str
    expression: str
    """`{key}` stands for an item with its host."""
    after: tuple[str, ...] = ()
    """Alerts that mute it, of the same thing or of the node."""


ITEMS: dict[Discovered, tuple[ZabbixItem, ...]] = {
    "": (
        ZabbixItem("up", "trainworks_exporter_collector_success", "Collectors that answer", count=True),
        ZabbixItem("gpus_lost", "trainworks_gpus_lost", "GPUs that the driver cannot open", absent=0),
        ZabbixItem("unreachable", "trainworks_jobs_unreachable", "Jobs whose backend does not answer", absent=0),
    ),
    "GPU": (
        ZabbixItem("temperature", 'DCGM_FI_DEV_GPU_TEMP{gpu="{#GPU}"}', "Temperature", "°C"),
        ZabbixItem("slowdown", 'DCGM_FI_DEV_SLOWDOWN_TEMP{gpu="{#GPU}"}', "Slowdown temperature", "°C"),
        ZabbixItem("power", 'DCGM_FI_DEV_POWER_USAGE{gpu="{#GPU}"}', "Power", "W"),
        ZabbixItem("utilization", 'DCGM_FI_DEV_GPU_UTIL{gpu="{#GPU}"}', "Time with a kernel", "%"),
        ZabbixItem("memory", 'DCGM_FI_DEV_FB_USED{gpu="{#GPU}"}', "Memory in use, MiB"),
        ZabbixItem("remap_failed", 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="{#GPU}"}', "Row remapping failed"),
        ZabbixItem("remap_pending", 'DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="{#GPU}"}', "Row remapping waits for a reset"),
        ZabbixItem("uncorrected", 'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="{#GPU}"}', "Uncorrected memory errors"),
        ZabbixItem(
            "recoveries", 'DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL{gpu="{#GPU}"}', "Recoveries of NVLinks"
        ),
    ),
    "CHECK": (ZabbixItem("status", 'trainworks_health_check_status{check="{#CHECK}"}', "Verdict"),),
    "RUN": (
        ZabbixItem("failed", 'trainworks_run_state{run="{#RUN}",state=~"FAILED|LOST"}', "Has failed", absent=0),
        ZabbixItem("running", 'trainworks_run_state{run="{#RUN}",state="RUNNING"}', "Runs", absent=0),
        ZabbixItem("loss", 'trainworks_run_loss{run="{#RUN}"}', "Loss"),
        ZabbixItem("step", 'trainworks_run_step{run="{#RUN}"}', "Step"),
        ZabbixItem("goodput", 'trainworks_run_goodput_ratio{run="{#RUN}"}', "Goodput"),
        ZabbixItem("last_step", 'trainworks_run_last_step_timestamp_seconds{run="{#RUN}"}', "Last step", "unixtime"),
        ZabbixItem("pause", 'trainworks_run_planned_log_interval_seconds{run="{#RUN}"}', "Planned log interval", "s"),
        ZabbixItem("saved", 'trainworks_run_unsaved_since_timestamp_seconds{run="{#RUN}"}', "Last save", "unixtime"),
        ZabbixItem(
            "interval", 'trainworks_run_planned_checkpoint_interval_seconds{run="{#RUN}"}', "Checkpoint interval", "s"
        ),
        ZabbixItem(
            "finish", 'trainworks_run_expected_finish_timestamp_seconds{run="{#RUN}"}', "Expected finish", "unixtime"
        ),
        ZabbixItem("deadline", 'trainworks_run_deadline_timestamp_seconds{run="{#RUN}"}', "Deadline", "unixtime"),
    ),
}
TRIGGERS: dict[Discovered, tuple[ZabbixTrigger, ...]] = {
    "": (
        ZabbixTrigger("NodeDown", "nodata({up},2m)=1"),
        ZabbixTrigger("GpuLost", "last({gpus_lost})>0", ("NodeDown",)),
        ZabbixTrigger("BackendUnreachable", "min({unreachable},15m)>0", ("NodeDown",)),
    ),
    "GPU": (
        ZabbixTrigger("GpuTooHot", "min({temperature},1m)>=last({slowdown})", ("NodeDown",)),
        ZabbixTrigger("GpuRowRemapFailed", "last({remap_failed})>0", ("NodeDown",)),
        ZabbixTrigger("GpuResetPending", "last({remap_pending})>0", ("NodeDown",)),
        ZabbixTrigger("GpuUncorrectedErrors", "max({uncorrected},1h)>min({uncorrected},1h)", ("NodeDown",)),
        ZabbixTrigger("NvlinkRecovers", "max({recoveries},1h)>min({recoveries},1h)", ("NodeDown",)),
    ),
    "CHECK": (ZabbixTrigger("HealthCheckFailed", "last({status})=2", ("NodeDown",)),),
    "RUN": (
        ZabbixTrigger("RunFailed", "last({failed})=1"),
        ZabbixTrigger(
            "RunStalled",
            "now()-last({last_step})>120+5*last({pause}) and last({running})=1",
            ("NodeDown", "RunFailed"),
        ),
        ZabbixTrigger(
            "RunCheckpointOverdue",
            "now()-last({saved})>120+2*last({interval}) and last({running})=1",
            ("NodeDown", "RunFailed", "RunStalled"),
        ),
        ZabbixTrigger(
            "RunDeadlineInDanger",
            "min({finish},10m)>last({deadline}) and last({running})=1",
            ("NodeDown", "RunFailed", "RunStalled"),
        ),
    ),
}
"""Where an alert must hold for two minutes, the expression adds them to its threshold."""
IN_ZABBIX = frozenset(trigger.alert for group in TRIGGERS.values() for trigger in group)
"""Alerts that the template has."""
