"""What the formulas of time know of a machine: its devices, their links, their host and the software on them.

The rates come from the catalogue, for a described cluster, or from a calibration, for a machine at hand. Everything
after them is the same code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.collectives import LinkRates, link_rates
from trainworks.plan.compute import DeviceRates, device_rates
from trainworks.plan.software import Software

__all__ = ["AS_PREDICTED", "HostRates", "Rates", "Slowdowns"]

_OFFLOADED_BYTES = 6.0
"""Per parameter over the host's link: an fp32 gradient out, a 16-bit weight back."""
_HOST_ADAM_BYTES = 28.0
"""Per parameter in the host's memory: gradient, weight and two moments read, the last three written, in fp32."""


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
class Slowdowns:
    """Factors on the seconds that physical rates take: 1 as predicted, 2 for half of the rate."""

    products: float = 1.0
    """Matrix products with weights."""
    attention: float = 1.0
    """Fused attention."""
    memory: float = 1.0
    """Element-wise kernels and the optimizer."""
    host: float = 1.0
    """Launches, the work of a step, offloading."""
    scale_up: float = 1.0
    """Links inside a domain."""
    scale_out: float = 1.0
    """Links between domains."""


AS_PREDICTED = Slowdowns()
"""Before any learning."""


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
        device = device_rates(accelerator, precision, coefficients)
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
        host = self.coefficients
        coefficients = replace(host, launch_s=host.launch_s * by.host, gap_s=host.gap_s * by.host)

        def device(rates: DeviceRates) -> DeviceRates:
            return replace(
                rates,
                product_flops_per_s=rates.product_flops_per_s / by.products,
                attention_flops_per_s=rates.attention_flops_per_s / by.attention,
                memory_bytes_per_s=rates.memory_bytes_per_s / by.memory,
                coefficients=coefficients,
            )

        return replace(
            self,
            device=device(self.device),
            wide=device(self.wide),
            links=replace(
                self.links,
                scale_up_bytes_per_s=self.links.scale_up_bytes_per_s / by.scale_up,
                hop_s=self.links.hop_s * by.scale_up,
                node_bytes_per_s=self.links.node_bytes_per_s / by.scale_out,
                scale_out_latency_s=self.links.scale_out_latency_s * by.scale_out,
            ),
            host=HostRates(
                link_bytes_per_s=self.host.link_bytes_per_s / by.host,
                update_params_per_s=self.host.update_params_per_s / by.host,
                step_s=self.host.step_s * by.host,
            ),
            optimizer_params_per_s=self.optimizer_params_per_s / by.memory,
        )
