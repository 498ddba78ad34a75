"""Hand a proposed cluster over to `deploy`: the stack file of a sizing or of a network."""

from __future__ import annotations

from trainworks.deploy.proposed_stack import proposed_stack
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.plan import NetworkPlan
from trainworks.plan.sizing.result import Proposal
from trainworks.units import format_bytes

Proposed = Proposal | NetworkPlan
"""What `size` and `network` return for one cluster."""


def stack_yaml(proposal: Proposed) -> str:
    """The stack file of a cluster that `size` or `network` proposed, as text.

    Raises:
        UsageError: the nodes have no GPU of NVIDIA, or are too many for one network.

    >>> import trainworks
    >>> text = stack_yaml(trainworks.network(on="4 nodes of DGX H100"))
    >>> next(line for line in text.splitlines() if line.startswith("gpu:"))
    'gpu: {driver: "620"}  # supported until 2029-09; runs CUDA 13.2'
    """
    if isinstance(proposal, NetworkPlan):
        return proposed_stack(proposal.design.cluster, proposal.design, _network_lines(proposal.design))
    design, chosen, run_file = proposal.details.network, proposal.chosen, proposal.run_file
    # without a limit, all but one of a hundred runs end in the time of the partition
    time_limit_s = run_file.job.time_limit or chosen.outcome.quantile_s(0.99)
    has_pods, advice = run_file.cluster.engine == "kubernetes", _storage_lines(proposal)
    if design is None:
        whole = proposal.details.plan.job.cluster.with_nodes(chosen.held_nodes)
        return proposed_stack(whole, advice=advice, time_limit_s=time_limit_s, kubernetes=has_pods)
    lines = [*_network_lines(design), *advice]
    return proposed_stack(design.cluster, design, lines, time_limit_s, kubernetes=has_pods)


def _network_lines(design: NetworkDesign) -> list[str]:
    if not design.num_switches:
        return []
    switch = design.switch.name if design.switch else "switches"
    return [
        f"Compute network: {design.topology} of {design.num_switches:,} {switch}, {design.num_cables:,} cables; "
        "`trainworks network --draw` shows it."
    ]


def _storage_lines(proposal: Proposal) -> list[str]:
    demand = proposal.details.demand
    return [
        f"Storage of the run: {format_bytes(demand.read.value)}/s of reads, {format_bytes(demand.write.value)}/s of "
        f"writes while it saves, {format_bytes(demand.capacity.value)}; check that store1 has that, or mount another "
        "system."
    ]
