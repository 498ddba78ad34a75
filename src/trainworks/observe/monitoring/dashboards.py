"""Grafana dashboards: panels as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_RUN = '{run="$run"}'
_NODE = '{node="$node"}'


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """One plot over time."""

    title: str
    unit: str
    """Unit of Grafana: `s`, `bytes`, `percentunit`, `short`, `currencyUSD`, `dateTimeAsIso` ..."""
    queries: Mapping[str, str]
    """Legend -> expression; `{{label}}` in a legend stands for a label."""


@dataclass(frozen=True, slots=True)
class MetricsDashboard:
    """One page of panels."""

    name: str
    title: str
    panels: tuple[DashboardPanel, ...]
    variable: str = ""
    """Label whose value the reader chooses; empty for a page without one."""
    values_of: str = ""
    """Metric that has all values of that label."""


_PORT, _CARD = ("device", "port"), ("device",)


def _rate(title: str, unit: str, by: tuple[str, ...], counter: str) -> DashboardPanel:
    """Change of a counter per second, over five minutes, for each value of these labels."""
    legend = "/".join(f"{{{{{label}}}}}" for label in by)
    return DashboardPanel(title, unit, {legend: f"max by ({', '.join(by)}) (rate({counter}{_NODE}[5m]))"})


DASHBOARDS = (
    MetricsDashboard(
        "run",
        "Trainworks: run",
        (
            DashboardPanel("Loss", "short", {"loss": f"max(trainworks_run_loss{_RUN})"}),
            DashboardPanel(
                "Throughput",
                "short",
                {
                    "measured tokens/s": f"max(trainworks_run_tokens_per_second{_RUN})",
                    "planned tokens/s": f"max(trainworks_run_planned_tokens_per_second{_RUN})",
                },
            ),
            DashboardPanel(
                "Step time and the plan's interval",
                "s",
                {
                    "measured": f"max(trainworks_run_training_step_seconds{_RUN})",
                    "measured, with checkpoints and evaluations": f"max(trainworks_run_step_seconds{_RUN})",
                    "planned": f"max(trainworks_run_planned_step_seconds{_RUN})",
                    "planned, low": f"max(trainworks_run_planned_step_low_seconds{_RUN})",
                    "planned, high": f"max(trainworks_run_planned_step_high_seconds{_RUN})",
                },
            ),
            DashboardPanel(
                "MFU",
                "percentunit",
                {
                    "measured": f"max(trainworks_run_mfu_ratio{_RUN})",
                    "planned": f"max(trainworks_run_planned_mfu_ratio{_RUN})",
                },
            ),
            DashboardPanel(
                "Parts of a step, measured",
                "s",
                {"{{part}}": f"max by (part) (trainworks_run_step_part_seconds{_RUN})"},
            ),
            DashboardPanel(
                "Parts of a step, planned",
                "s",
                {"{{part}}": f"max by (part) (trainworks_run_planned_step_part_seconds{_RUN})"},
            ),
            DashboardPanel(
                "Goodput",
                "percentunit",
                {
                    "measured": f"max(trainworks_run_goodput_ratio{_RUN})",
                    "planned": f"max(trainworks_run_planned_goodput_ratio{_RUN})",
                },
            ),
            DashboardPanel(
                "Cores that other programs use",
                "percentunit",
                {
                    "measured": f"max(trainworks_run_other_load_ratio{_RUN})",
                    "planned, at most": f"max(trainworks_run_planned_other_load_ratio{_RUN})",
                },
            ),
            DashboardPanel(
                "Where the time went", "s", {"{{category}}": f"max by (category) (trainworks_run_spent_seconds{_RUN})"}
            ),
            DashboardPanel(
                "Work that no checkpoint holds",
                "s",
                {
                    "unsaved": f"time() - max(trainworks_run_unsaved_since_timestamp_seconds{_RUN})",
                    "planned interval": f"max(trainworks_run_planned_checkpoint_interval_seconds{_RUN})",
                },
            ),
            DashboardPanel(
                "Peak memory of the fullest rank",
                "bytes",
                {
                    "measured": f"max(trainworks_run_memory_peak_bytes{_RUN})",
                    "planned": f"max(trainworks_run_planned_memory_bytes{_RUN})",
                },
            ),
            DashboardPanel(
                "Energy of the accelerators",
                "joule",
                {
                    "so far": f"max(trainworks_run_energy_joules{_RUN})",
                    "planned": f"max(trainworks_run_planned_energy_joules{_RUN})",
                },
            ),
            DashboardPanel(
                "Time between expected finish and deadline",
                "s",
                {"slack": f"max(run:trainworks_deadline_slack:seconds{_RUN})"},
            ),
            DashboardPanel(
                "Cost",
                "currencyUSD",
                {
                    "so far": f"max(trainworks_run_cost_usd{_RUN})",
                    "budget": f"max(trainworks_run_budget_usd{_RUN})",
                },
            ),
        ),
        "run",
        "trainworks_run_info",
    ),
    MetricsDashboard(
        "node",
        "Trainworks: node",
        (
            DashboardPanel(
                "Activity of SMs", "percentunit", {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_PROF_SM_ACTIVE{_NODE})"}
            ),
            DashboardPanel(
                "Activity of tensor cores",
                "percentunit",
                {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_NODE})"},
            ),
            DashboardPanel(
                "Memory in use",
                "percentunit",
                {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_DEV_FB_USED{_NODE} / DCGM_FI_DEV_FB_TOTAL{_NODE})"},
            ),
            DashboardPanel("Power", "watt", {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_DEV_POWER_USAGE{_NODE})"}),
            DashboardPanel(
                "Temperature",
                "celsius",
                {
                    "GPU {{gpu}}": f"max by (gpu) (DCGM_FI_DEV_GPU_TEMP{_NODE})",
                    "slowdown": f"min(DCGM_FI_DEV_SLOWDOWN_TEMP{_NODE})",
                },
            ),
            DashboardPanel("SM clock, in MHz", "short", {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_DEV_SM_CLOCK{_NODE})"}),
            DashboardPanel(
                "Health checks that fail or warn",
                "short",
                {"{{check}}": f"max by (check) (trainworks_health_check_status{_NODE}) > 0"},
            ),
            DashboardPanel("Last XID", "none", {"GPU {{gpu}}": f"max by (gpu) (DCGM_FI_DEV_XID_ERRORS{_NODE})"}),
            DashboardPanel(
                "Errors of NVLink within an hour",
                "short",
                {"GPU {{gpu}}": f"max by (gpu) (increase(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{_NODE}[1h]))"},
            ),
        ),
        "node",
        "trainworks_exporter_collector_success",
    ),
    MetricsDashboard(
        "network",
        "Trainworks: network of a node",
        (
            _rate("InfiniBand and RoCE, received", "Bps", _PORT, "node_infiniband_port_data_received_bytes_total"),
            _rate("InfiniBand and RoCE, sent", "Bps", _PORT, "node_infiniband_port_data_transmitted_bytes_total"),
            _rate("Waits for credit from the other end", "cps", _PORT, "node_infiniband_port_transmit_wait_total"),
            _rate("RoCE: congestion notifications received", "cps", _PORT, "node_infiniband_rp_cnp_handled"),
            DashboardPanel(
                "Errors within an hour",
                "short",
                {
                    f"{kind} {{{{device}}}}": f"max by (device, port) (increase({name}{_NODE}[1h]))"
                    for kind, name in {
                        "symbol": "node_infiniband_symbol_error_total",
                        "received": "node_infiniband_port_errors_received_total",
                        "discarded": "node_infiniband_port_discards_transmitted_total",
                        "out of sequence": "node_infiniband_out_of_sequence",
                    }.items()
                },
            ),
            DashboardPanel(
                "Times that a link went down or changed, within a day",
                "short",
                {
                    "{{device}}/{{port}}": "max by (device, port)"
                    f" (increase(node_infiniband_link_downed_total{_NODE}[1d]))",
                    "{{device}}": f"max by (device) (increase(node_network_carrier_changes_total{_NODE}[1d]))",
                },
            ),
            _rate("Ethernet, received", "Bps", _CARD, "node_network_receive_bytes_total"),
            _rate("Ethernet, sent", "Bps", _CARD, "node_network_transmit_bytes_total"),
            DashboardPanel(
                "NVLink", "Bps", {"GPU {{gpu}}, sent": f"max by (gpu) (DCGM_FI_PROF_NVLINK_TX_BYTES{_NODE})"}
            ),
            DashboardPanel(
                "PCIe of the GPUs",
                "Bps",
                {"GPU {{gpu}}, received": f"max by (gpu) (DCGM_FI_PROF_PCIE_RX_BYTES{_NODE})"},
            ),
        ),
        "node",
        "node_network_up",
    ),
    MetricsDashboard(
        "storage",
        "Trainworks: storage",
        (
            DashboardPanel(
                "Free space",
                "percentunit",
                {
                    "{{mountpoint}}": "max by (mountpoint)"
                    f" (node_filesystem_avail_bytes{_NODE} / node_filesystem_size_bytes{_NODE})"
                },
            ),
            DashboardPanel(
                "Free inodes",
                "percentunit",
                {
                    "{{mountpoint}}": "max by (mountpoint)"
                    f" (node_filesystem_files_free{_NODE} / node_filesystem_files{_NODE})"
                },
            ),
            _rate("Read from disks", "Bps", _CARD, "node_disk_read_bytes_total"),
            _rate("Written to disks", "Bps", _CARD, "node_disk_written_bytes_total"),
            _rate("Time in which a disk was busy", "percentunit", _CARD, "node_disk_io_time_seconds_total"),
            DashboardPanel(
                "Size of checkpoints",
                "bytes",
                {
                    "{{run}}": "max by (run) (trainworks_run_checkpoint_bytes)",
                    "{{run}}, planned": "max by (run) (trainworks_run_planned_checkpoint_bytes)",
                },
            ),
            DashboardPanel(
                "Part of a step that waits for data or a checkpoint",
                "s",
                {"{{run}}, {{part}}": 'max by (run, part) (trainworks_run_step_part_seconds{part=~"data|checkpoint"})'},
            ),
            DashboardPanel(
                "Failed checkpoints", "short", {"{{run}}": "max by (run) (trainworks_run_checkpoint_failures_total)"}
            ),
        ),
        "node",
        "node_filesystem_avail_bytes",
    ),
    MetricsDashboard(
        "fleet",
        "Trainworks: fleet",
        (
            DashboardPanel(
                "Nodes",
                "short",
                {"answer": 'sum(up{job="trainworks"})', "drained": "max(trainworks_nodes_drain)"},
            ),
            DashboardPanel(
                "Health checks that fail or warn, by node",
                "short",
                {"{{node}}": "count by (node) (max by (node, check) (trainworks_health_check_status) > 0)"},
            ),
            DashboardPanel(
                "GPUs that a driver cannot open", "short", {"{{node}}": "max by (node) (trainworks_gpus_lost)"}
            ),
            DashboardPanel(
                "Activity of SMs, mean of a node", "percentunit", {"{{node}}": "node:trainworks_gpu_sm_active:ratio"}
            ),
            DashboardPanel("Power of the GPUs", "watt", {"{{node}}": "node:trainworks_gpu_power:watts"}),
            DashboardPanel(
                "Hottest GPU below its slowdown temperature",
                "celsius",
                {"{{node}}": "min by (node) (DCGM_FI_DEV_SLOWDOWN_TEMP - DCGM_FI_DEV_GPU_TEMP)"},
            ),
            DashboardPanel("Step time over plan", "short", {"{{run}}": "run:trainworks_step_slowdown:ratio"}),
            DashboardPanel("MFU", "percentunit", {"{{run}}": "run:trainworks_mfu:ratio"}),
            DashboardPanel("Goodput", "percentunit", {"{{run}}": "max by (run) (trainworks_run_goodput_ratio)"}),
            DashboardPanel(
                "Seconds per step for which the others wait for the slowest rank",
                "s",
                {"{{run}}": "max by (run) (trainworks_run_slowest_rank_extra_seconds)"},
            ),
        ),
    ),
    MetricsDashboard(
        "queue",
        "Trainworks: queue",
        (
            DashboardPanel(
                "Unfinished jobs",
                "short",
                {
                    name: f"max(trainworks_jobs_{name})"
                    for name in ("pending", "configuring", "running", "recovering", "preempted", "unknown")
                },
            ),
            DashboardPanel(
                "Jobs that ended within an hour",
                "short",
                {name: f"max(delta(trainworks_jobs_{name}[1h]))" for name in ("completed", "failed", "cancelled")},
            ),
            DashboardPanel(
                "Longest wait", "s", {"wait": "time() - min(trainworks_queue_oldest_submission_timestamp_seconds)"}
            ),
            DashboardPanel(
                "Jobs that do not move",
                "short",
                {"held": "max(trainworks_jobs_hold)", "backend does not answer": "max(trainworks_jobs_unreachable)"},
            ),
            DashboardPanel(
                "What jobs hold",
                "short",
                {
                    "GPUs": "max(trainworks_jobs_gpus_alloc)",
                    "cores": "max(trainworks_jobs_cpus_alloc)",
                    "nodes": "max(trainworks_jobs_nodes_alloc)",
                },
            ),
            DashboardPanel(
                "Nodes with a job, by team",
                "short",
                {"{{team}}": "count by (team) (max by (team, node) (trainworks_job_node_info))"},
            ),
            DashboardPanel(
                "Nodes with a job, by owner",
                "short",
                {"{{owner}}": "count by (owner) (max by (owner, node) (trainworks_job_node_info))"},
            ),
        ),
    ),
    MetricsDashboard(
        "cost",
        "Trainworks: cost",
        (
            DashboardPanel(
                "Cost of running runs", "currencyUSD", {"{{run}}": "max by (run) (trainworks_run_cost_usd)"}
            ),
            DashboardPanel(
                "Cost of running runs, by team", "currencyUSD", {"{{team}}": "sum by (team) (run:trainworks_cost:usd)"}
            ),
            DashboardPanel(
                "Cost over budget",
                "percentunit",
                {"{{run}}": "max by (run) (trainworks_run_cost_usd / trainworks_run_budget_usd)"},
            ),
            DashboardPanel(
                "Time that trained nothing",
                "s",
                {
                    "{{run}}, {{category}}": "max by (run, category)"
                    ' (trainworks_run_spent_seconds{category=~"start|checkpoint|restart|lost"})'
                },
            ),
            DashboardPanel("Power of the GPUs by run", "watt", {"{{run}} {{team}}": "run:trainworks_gpu_power:watts"}),
            DashboardPanel(
                "Power of the GPUs by team", "watt", {"{{team}}": "sum by (team) (run:trainworks_gpu_power:watts)"}
            ),
            DashboardPanel(
                "Energy of running runs", "joule", {"{{run}}": "max by (run) (trainworks_run_energy_joules)"}
            ),
        ),
    ),
)
