"""What the formulas of time know of a machine: its devices, their links, their host and the software on them.

The rates come from the catalogue, for a described cluster, or from a calibration, for a machine at hand. Everything
after them is the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.activations import element_bytes
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients, Slowdowns
from trainworks.plan.collectives import LinkRates
from trainworks.plan.compute import DeviceRates, device_rates
from trainworks.plan.software import Software
from trainworks.record.calibration import Calibration

_OFFLOADED_BYTES = 6.0
"""Per parameter over the host's link. Count: an fp32 gradient out, a 16-bit weight back."""
_HOST_ADAM_BYTES = 28.0
"""Per parameter in the host's memory. Count: gradient, weight and two moments read, the last three written, in fp32."""
_UNFUSED_BYTES = 2.4
"""Bytes that element-wise work moves on a CPU, where no two operations are fused, over fused kernels. Set
to: runs of the worker (docs/reference/local-accuracy.md)."""
_LAUNCH_SHARE = 0.75
"""Host time per kernel of a model in eager mode, over that of one operation's forward and backward in a calibration.
Set to: runs of small models on one H100 (benchmarks/RESULTS.md)."""
_ONE_DOMAIN = 1 << 30
"""More ranks than any calibration has: what it measured holds for all groups of ranks alike."""
_LATENCY_S = {"InfiniBand": 40e-6, "RoCE": 45e-6, "EFA": 65e-6}
"""Latency of a small collective between two domains, per doubling of their number, by kind of network. Assumed, but for
EFA's, which all-reduces of 16 A100 and H100 show (benchmarks/data/collectives.csv)."""
_OTHER_LATENCY_S = 60e-6
"""The same of Omni-Path and of other networks. Assumed."""
_START_S = 35e-6
"""Latency of a small collective inside a domain: the start of a ring. Set to: all-reduces of 2 to 8 A100 and
V100 in one node (benchmarks/data/collectives.csv)."""
_HOP_S = 2.1e-6
"""Per step of a ring. Set to: the same all-reduces."""
_IN_SWITCH_GAIN = 1.32
"""Speed-up of an all-reduce whose switches add up: every byte crosses a device's link once, not twice. Set
to: all-reduces of 8 H100 (benchmarks/data/collectives.csv)."""
_MESHES = ("NVLink2", "Infinity Fabric", "xGMI")
"""Links that join pairs of devices: a group has only those among its members."""
_ON_BOARDS_OF_FOUR = ("NVLink3", "NVLink4")
"""Links that do so on boards of four, which have no switch (NVIDIA, HGX A100 4-GPU and HGX H100 4-GPU)."""
_CUBE_MESH = tuple(links / 6 for links in (6, 1, 2, 4, 2, 2, 4, 6))
"""Links of six that rings of the first 1 to 8 V100 of a DGX-1 take in one direction. Count: rings are whole, and its
hybrid cube mesh has one or two in most groups. Measured all-reduces reach 22 GB/s times these (vTrain, its trace of
V100)."""
_DATA_S = 3e-5
"""Handing over a batch that was read ahead. Assumed: a lock and a few operations of Python."""


@dataclass(frozen=True, slots=True)
class HostRates:
    """What the host does for one of its devices."""

    link_bytes_per_s: float
    """Rate that offloading reaches between device and host, one direction."""
    update_params_per_s: float
    """Parameters that the host updates if it holds the optimizer's states: the slower of the device's link and of
    the host's memory, which all devices of a node share."""
    step_s: float
    """Work of one step that no device does: data, logging."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one rank in one precision, with all ranks busy."""

    device: DeviceRates
    """In the run's precision."""
    wide: DeviceRates
    """In at least 16 bits: logits."""
    links: LinkRates
    host: HostRates
    optimizer_params_per_s: float
    """Parameters that the device updates."""
    software: Software
    coefficients: Coefficients

    @classmethod
    def of_catalogue(
        cls,
        cluster: ClusterDescription,
        precision: str,
        software: Software,
        coefficients: Coefficients = COEFFICIENTS,
    ) -> Rates:
        """Rates that a described cluster reaches by its data sheets and the fitted coefficients.

        Raises:
            UsageError: the accelerator cannot compute in the precision.
        """
        accelerator = cluster.accelerator
        device = device_rates(accelerator, precision, coefficients, software.attention, software.fp8_recipe)
        narrow = precision in ("fp8", "fp4")
        host_link = accelerator.host_bytes_per_s * coefficients.host_link_share
        host_memory = coefficients.host_update_bytes_per_s / cluster.accelerators_per_node
        return cls(
            device=device,
            wide=device_rates(accelerator, "bf16", coefficients) if narrow else device,
            links=link_rates(cluster, coefficients),
            host=HostRates(
                link_bytes_per_s=host_link,
                update_params_per_s=min(host_link / _OFFLOADED_BYTES, host_memory / _HOST_ADAM_BYTES),
                step_s=coefficients.step_s,
            ),
            optimizer_params_per_s=device.memory_bytes_per_s / coefficients.optimizer_bytes,
            software=software,
            coefficients=coefficients,
        )

    def slowed(self, by: Slowdowns) -> Rates:
        """The rates after learning."""
        host, links = self.coefficients, self.links.corrected(by.links)
        coefficients = replace(host, launch_s=host.launch_s * by.host, gap_s=host.gap_s * by.host)

        def device(rates: DeviceRates) -> DeviceRates:
            attention = rates.measured_attention_flops_per_s
            return replace(
                rates,
                product_flops_per_s=rates.product_flops_per_s / by.products,
                attention_flops_per_s=rates.attention_flops_per_s / by.attention,
                memory_bytes_per_s=rates.memory_bytes_per_s / by.memory,
                coefficients=coefficients,
                measured_attention_flops_per_s=None if attention is None else attention / by.attention,
            )

        return replace(
            self,
            device=device(self.device),
            wide=device(self.wide),
            links=replace(
                links,
                scale_up_bytes_per_s=links.scale_up_bytes_per_s / by.scale_up,
                hop_s=links.hop_s * by.scale_up,
                node_bytes_per_s=links.node_bytes_per_s / by.scale_out,
                scale_out_latency_s=links.scale_out_latency_s * by.scale_out,
            ),
            host=HostRates(
                link_bytes_per_s=self.host.link_bytes_per_s / by.host,
                update_params_per_s=self.host.update_params_per_s / by.host,
                step_s=self.host.step_s * by.host,
            ),
            optimizer_params_per_s=self.optimizer_params_per_s / by.memory,
        )

    @classmethod
    def of_calibration(cls, calibration: Calibration, software: Software) -> Rates:
        """Rates that were measured with all ranks busy; they need no share of a limit, and nothing waits for others.

        On a CPU every operation reads and writes memory (`_UNFUSED_BYTES`) and takes the host's time for one operation,
        forward and backward.
        """
        on_cpu = calibration.device == "cpu"
        coefficients = replace(
            COEFFICIENTS,
            launch_s=calibration.op_overhead_s * (1.0 if on_cpu else _LAUNCH_SHARE),
            unfused_bytes=_UNFUSED_BYTES if on_cpu else COEFFICIENTS.unfused_bytes,
            old_gather_share=1.0,
            straggle=0.0,
        )
        device = _measured_device(calibration, coefficients)
        return cls(
            device=device,
            wide=device,
            links=_measured_links(calibration),
            host=HostRates(
                link_bytes_per_s=calibration.memory_bytes_per_s,
                update_params_per_s=calibration.optimizer_params_per_s,
                step_s=_DATA_S,
            ),
            optimizer_params_per_s=calibration.optimizer_params_per_s,
            software=software,
            coefficients=coefficients,
        )


def link_rates(cluster: ClusterDescription, coefficients: Coefficients = COEFFICIENTS) -> LinkRates:
    """The reachable rates of a cluster's links.

    Between nodes they are those of ranks that an oversubscribed network has spread over its leaves. Without a scale-up
    link, or with one that joins pairs of cards only, ranks of a node talk over the host's bus.
    """
    accelerator = cluster.accelerator
    bridged = cluster.scale_up_domain < cluster.accelerators_per_node
    up = accelerator.host_bytes_per_s / 2 if bridged else cluster.scale_up_bytes_per_s
    up = up or accelerator.host_bytes_per_s / 2
    domain = max(cluster.scale_up_domain, cluster.accelerators_per_node)
    kept = coefficients.omni_path_share if cluster.network == "Omni-Path" else 1.0
    share = coefficients.scale_out_share * kept
    return LinkRates(
        ranks_per_node=cluster.accelerators_per_node,
        domain=domain,
        scale_up_bytes_per_s=up * coefficients.scale_up_share,
        in_switch_gain=_IN_SWITCH_GAIN if cluster.scale_up_reduction else 1.0,
        shares=pair_shares(accelerator.scale_up, domain),
        start_s=_START_S,
        hop_s=_HOP_S,
        node_bytes_per_s=cluster.node_bytes_per_s * share * cluster.spread_share,
        scale_out_latency_s=_LATENCY_S.get(cluster.network, _OTHER_LATENCY_S),
        message_gain=1 / kept,
        in_network=cluster.in_network_reduction,
        pipelining=coefficients.pipelining,
        pipelining_inside=coefficients.pipelining_inside,
        pipelining_in_switch=coefficients.pipelining,
    )


def pair_shares(link: str, domain: int) -> tuple[float, ...]:
    """Shares of a scale-up link's rate inside a group of 1, 2, ... of a domain's ranks; empty if a switch joins them.

    Args:
        link: its name in the catalogue.
        domain: ranks that it joins.
    """
    if domain < 2 or not link.startswith((*_MESHES, *(_ON_BOARDS_OF_FOUR if domain == 4 else ()))):
        return ()
    if link.startswith("NVLink2") and domain == len(_CUBE_MESH):
        return _CUBE_MESH
    return tuple(max(1, ranks - 1) / (domain - 1) for ranks in range(1, domain + 1))


def _measured_device(calibration: Calibration, coefficients: Coefficients) -> DeviceRates:
    """Products at the measured rates; a calibration's product counts forward alone."""
    products = sorted((2.0 * gemm.m * gemm.n * gemm.k, gemm.flops_per_s) for gemm in calibration.gemms)
    return DeviceRates(
        product_flops_per_s=products[-1][1],
        attention_flops_per_s=calibration.attention_flops_per_s,
        memory_bytes_per_s=calibration.memory_bytes_per_s,
        multiprocessors=1,
        precision=calibration.precision,
        element_bytes=element_bytes(calibration.precision),
        coefficients=coefficients,
        measured_products=tuple(products),
        measured_attention_flops_per_s=calibration.attention_flops_per_s,
        is_queued=calibration.device != "cpu",
    )


def _measured_links(calibration: Calibration) -> LinkRates:
    """All ranks in one domain, whose latency and rate the calibration measured with an all-reduce of all of them.

    Half of that latency is the start and half is the 2 (n - 1) steps of a ring: a small gather of two ranks, with one
    step, takes 0.8 of a small all-reduce, with two (gloo on one machine).
    """
    return LinkRates(
        ranks_per_node=calibration.num_ranks,
        domain=_ONE_DOMAIN,
        scale_up_bytes_per_s=calibration.all_reduce_bytes_per_s,
        in_switch_gain=1.0,
        shares=(),
        start_s=calibration.all_reduce_latency_s / 2,
        hop_s=calibration.all_reduce_latency_s / 2 / max(1, 2 * (calibration.num_ranks - 1)),
        node_bytes_per_s=calibration.all_reduce_bytes_per_s * calibration.num_ranks,
        scale_out_latency_s=calibration.all_reduce_latency_s,
        message_gain=1.0,
        in_network=False,
        pipelining=0.0,
        pipelining_inside=0.0,
        pipelining_in_switch=0.0,
        copied_bytes_per_s=calibration.memory_bytes_per_s / 2,
        scatters_whole=calibration.device == "cpu",
    )
