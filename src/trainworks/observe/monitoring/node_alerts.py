"""Alerts of nodes, GPUs, fabric, storage and queue.

Aggregation by node and GPU makes one alert where two exporters see the same GPU, such as DCGM's and that of Trainworks.
"""

from __future__ import annotations

from trainworks.observe.monitoring.alert import ASSUMED, AlertCase, AlertRule

_GPU = {"node": "node1", "gpu": "3", "UUID": "GPU-3"}


def _of_gpu(**values: str) -> dict[str, str]:
    """Series of one GPU as two exporters see it, by the end of the name."""
    labels = 'node="node1",gpu="3",UUID="GPU-3"'
    return {
        f'DCGM_FI_DEV_{name}{{{labels},job="{job}"}}': value
        for name, value in values.items()
        for job in ("trainworks", "dcgm")
    }


def _of_node(name: str, value: str, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{each}"' for key, each in {"node": "node1", **labels}.items())
    return {f"{name}{{{pairs}}}": value}


_PORT = {"device": "mlx5_0", "port": "1"}
_DISK = {"mountpoint": "/scratch", "fstype": "xfs"}
NODE_ALERTS = (
    AlertRule(
        name="NodeDown",
        expr='max by (node) (up{job=~"trainworks|node|dcgm"}) == 0',
        summary="Node {{ $labels.node }} does not answer.",
        threshold=f"two minutes without an answer of any exporter ({ASSUMED})",
        action="look at its console; `trainworks drain NODE` keeps jobs away",
        severity="critical",
        lasts="2m",
        fires=AlertCase(
            "5m", _of_node("up", "0+0x9", job="node") | _of_node("up", "0+0x9", job="trainworks"), {"node": "node1"}
        ),
        quiet=AlertCase("5m", _of_node("up", "0+0x9", job="node") | _of_node("up", "1+0x9", job="trainworks")),
    ),
    AlertRule(
        name="ExporterDown",
        expr='max by (node, job) (up{job=~"trainworks|node|dcgm"}) == 0',
        summary="The exporter `{{ $labels.job }}` of node {{ $labels.node }} does not answer.",
        threshold=f"ten minutes ({ASSUMED})",
        action="restart the exporter on that node",
        severity="warning",
        lasts="10m",
        fires=AlertCase("15m", _of_node("up", "0+0x20", job="node"), {"node": "node1", "job": "node"}),
        quiet=AlertCase("15m", _of_node("up", "0+0x10 1+0x10", job="node")),
    ),
    AlertRule(
        name="ExporterIncomplete",
        expr="min by (node, collector) (trainworks_exporter_collector_success) == 0",
        summary="The exporter of node {{ $labels.node }} cannot read `{{ $labels.collector }}`.",
        threshold=f"ten minutes ({ASSUMED})",
        action="run `trainworks exporter --once --collect NAME` there, and the command that shows the same",
        severity="warning",
        lasts="10m",
        fires=AlertCase(
            "15m",
            _of_node("trainworks_exporter_collector_success", "0+0x20", collector="queue"),
            {"node": "node1", "collector": "queue"},
        ),
        quiet=AlertCase("15m", _of_node("trainworks_exporter_collector_success", "1+0x20", collector="queue")),
    ),
    AlertRule(
        name="HealthCheckFailed",
        expr="max by (node, check) (trainworks_health_check_status == 2)",
        summary="Node {{ $labels.node }} fails the health check `{{ $labels.check }}`.",
        threshold="that of the check; for `xid` the action of the error in the catalogue",
        action="do what `trainworks health` says on that node; a failed node gets no job",
        severity="critical",
        fires=AlertCase(
            "5m", _of_node("trainworks_health_check_status", "2+0x9", check="xid"), {"node": "node1", "check": "xid"}
        ),
        quiet=AlertCase("5m", _of_node("trainworks_health_check_status", "1+0x9", check="xid")),
    ),
    AlertRule(
        name="GpuLost",
        expr="max by (node) (trainworks_gpus_lost) > 0",
        summary="The driver of node {{ $labels.node }} cannot open a GPU.",
        threshold="a GPU that the driver counts and cannot open",
        action="drain the node and reboot it; have the GPU replaced if it does not come back",
        severity="critical",
        fires=AlertCase("5m", _of_node("trainworks_gpus_lost", "1+0x9"), {"node": "node1"}),
        quiet=AlertCase("5m", _of_node("trainworks_gpus_lost", "0+0x9")),
    ),
    AlertRule(
        name="GpuRowRemapFailed",
        expr="max by (node, gpu, UUID) (DCGM_FI_DEV_ROW_REMAP_FAILURE) > 0",
        summary="GPU {{ $labels.gpu }} of node {{ $labels.node }} has no spare memory rows.",
        threshold="a row of memory could not be replaced",
        action="drain the node and have the GPU replaced",
        severity="critical",
        fires=AlertCase("5m", _of_gpu(ROW_REMAP_FAILURE="1+0x9"), _GPU),
        quiet=AlertCase("5m", _of_gpu(ROW_REMAP_FAILURE="0+0x9")),
    ),
    AlertRule(
        name="GpuResetPending",
        expr="max by (node, gpu, UUID) (DCGM_FI_DEV_ROW_REMAP_PENDING) > 0",
        summary="GPU {{ $labels.gpu }} of node {{ $labels.node }} needs a reset to replace a memory row.",
        threshold="a replacement that waits for a reset",
        action="drain the node; reset the GPU when it is free, or reboot",
        severity="warning",
        fires=AlertCase("5m", _of_gpu(ROW_REMAP_PENDING="1+0x9"), _GPU),
        quiet=AlertCase("5m", _of_gpu(ROW_REMAP_PENDING="0+0x9")),
    ),
    AlertRule(
        name="GpuUncorrectedErrors",
        expr="max by (node, gpu, UUID) (increase(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL[1h])) > 0",
        summary="GPU {{ $labels.gpu }} of node {{ $labels.node }} had an uncorrected memory error.",
        threshold="one within an hour",
        action="read `trainworks health` on the node for the XID and its action",
        severity="warning",
        fires=AlertCase("10m", _of_gpu(ECC_DBE_VOL_TOTAL="0 0 1+0x20"), _GPU),
        quiet=AlertCase("10m", _of_gpu(ECC_DBE_VOL_TOTAL="4+0x20")),
    ),
    AlertRule(
        name="GpuTooHot",
        expr="max by (node, gpu, UUID) (DCGM_FI_DEV_GPU_TEMP) >= max by (node, gpu, UUID) (DCGM_FI_DEV_SLOWDOWN_TEMP)",
        summary="GPU {{ $labels.gpu }} of node {{ $labels.node }} is at its slowdown temperature.",
        threshold="the slowdown temperature that the GPU reports",
        action="look at fans, air flow and coolant; drain the node if it stays hot",
        severity="critical",
        lasts="1m",
        fires=AlertCase("5m", _of_gpu(GPU_TEMP="88+0x9", SLOWDOWN_TEMP="87+0x9"), _GPU),
        quiet=AlertCase("5m", _of_gpu(GPU_TEMP="86+0x9", SLOWDOWN_TEMP="87+0x9")),
    ),
    AlertRule(
        name="GpuThermallyThrottled",
        expr='max by (node, gpu, UUID) (rate(DCGM_FI_DEV_THERMAL_VIOLATION{job="trainworks"}[5m])) > 0.05e9',
        summary="GPU {{ $labels.gpu }} of node {{ $labels.node }} runs slower because of its temperature.",
        threshold=f"5 % of the time of five minutes ({ASSUMED})",
        action="look at fans, air flow and coolant; compare it with its neighbours",
        severity="warning",
        lasts="10m",
        fires=AlertCase("20m", _of_gpu(THERMAL_VIOLATION="0+6000000000x30"), _GPU),
        quiet=AlertCase("20m", _of_gpu(THERMAL_VIOLATION="0+600000000x30")),
    ),
    AlertRule(
        name="NvlinkRecovers",
        expr="max by (node, gpu, UUID) (increase(DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL[1h])) > 0",
        summary="An NVLink of GPU {{ $labels.gpu }} of node {{ $labels.node }} recovered from errors.",
        threshold="one recovery within an hour",
        action="drain the node; `trainworks bench collectives` shows whether the link is slow",
        severity="warning",
        fires=AlertCase("10m", _of_gpu(NVLINK_RECOVERY_ERROR_COUNT_TOTAL="0 0 2+0x20"), _GPU),
        quiet=AlertCase("10m", _of_gpu(NVLINK_RECOVERY_ERROR_COUNT_TOTAL="2+0x20")),
    ),
    AlertRule(
        name="FabricPortDown",
        expr="max by (node, device, port) (node_infiniband_state_id != 4)"
        " and max by (node, device, port) (max_over_time(node_infiniband_state_id[1d])) == 4",
        summary="Port {{ $labels.device }}/{{ $labels.port }} of node {{ $labels.node }} is not active any more.",
        threshold="another state than ACTIVE for two minutes, of a port that was active within a day",
        action="look at cable and switch port; drain the node",
        severity="critical",
        lasts="2m",
        fires=AlertCase("10m", _of_node("node_infiniband_state_id", "4 4 1+0x20", **_PORT), {"node": "node1", **_PORT}),
        quiet=AlertCase("10m", _of_node("node_infiniband_state_id", "1+0x20", **_PORT)),
    ),
    AlertRule(
        name="FabricPortFlaps",
        expr="max by (node, device, port) (increase(node_infiniband_link_downed_total[1h])) >= 3",
        summary="Port {{ $labels.device }}/{{ $labels.port }} of node {{ $labels.node }} went down three times.",
        threshold=f"three times within an hour ({ASSUMED})",
        action="replace the cable or transceiver; drain the node until then",
        severity="warning",
        fires=AlertCase(
            "30m", _of_node("node_infiniband_link_downed_total", "0+0.2x40", **_PORT), {"node": "node1", **_PORT}
        ),
        quiet=AlertCase("30m", _of_node("node_infiniband_link_downed_total", "0 0 1+0x40", **_PORT)),
    ),
    AlertRule(
        name="DiskFilling",
        expr="max by (node, mountpoint) (predict_linear(node_filesystem_avail_bytes"
        '{fstype!~"tmpfs|ramfs"}[6h], 4 * 3600) < 0)',
        summary="{{ $labels.mountpoint }} of node {{ $labels.node }} will be full within four hours.",
        threshold=f"full in four hours at the pace of the last six ({ASSUMED})",
        action="remove old runs and checkpoints, or lower `checkpoint.keep`",
        severity="warning",
        lasts="30m",
        fires=AlertCase(
            "45m",
            _of_node("node_filesystem_avail_bytes", "1000000-10000x60", **_DISK),
            {"node": "node1", "mountpoint": "/scratch"},
        ),
        quiet=AlertCase("45m", _of_node("node_filesystem_avail_bytes", "1000000-100x300", **_DISK)),
    ),
    AlertRule(
        name="BackendUnreachable",
        expr="max by (node) (trainworks_jobs_unreachable) > 0",
        summary="A backend does not answer the job store of {{ $labels.node }}.",
        threshold=f"fifteen minutes ({ASSUMED})",
        action="see `trainworks ps` for the jobs; look at the scheduler",
        severity="warning",
        lasts="15m",
        fires=AlertCase("20m", _of_node("trainworks_jobs_unreachable", "2+0x30"), {"node": "node1"}),
        quiet=AlertCase("20m", _of_node("trainworks_jobs_unreachable", "2 2 2 0+0x30")),
    ),
    AlertRule(
        name="QueueWaitsLong",
        expr="max by (node) (time() - trainworks_queue_oldest_submission_timestamp_seconds) > 86400",
        summary="A job in the job store of {{ $labels.node }} has waited for a day.",
        threshold=f"a day ({ASSUMED})",
        action="`trainworks describe JOB` says why it waits",
        severity="warning",
        fires=AlertCase(
            "5m", _of_node("trainworks_queue_oldest_submission_timestamp_seconds", "-86200+0x9"), {"node": "node1"}
        ),
        quiet=AlertCase("2m", _of_node("trainworks_queue_oldest_submission_timestamp_seconds", "-86200+0x9")),
    ),
)
