"""The verdict of a sizing in two sentences: buy or rent, how many, over which network, and from when on owning pays."""

from __future__ import annotations

from trainworks.plan.cost.owning import fits_in_year
from trainworks.plan.sizing.result import Ownership, Proposal, ProposalDetails
from trainworks.units import format_usd


def verdict(proposal: Proposal) -> str:
    """What to do, with the price, and how buying and renting compare for these nodes."""
    chosen, details = proposal.chosen, proposal.details
    candidate, owned = chosen.candidate, details.ownership
    node = details.plan.job.cluster.node_name
    accelerators = f"({chosen.accelerators:,} {candidate.base.accelerator})"
    network = _network(details) if chosen.num_nodes > 1 else ""
    run_usd = f"{format_usd(chosen.cost.value)} for the run"
    if candidate.there is not None:
        return f"Use {chosen.num_nodes:,} of your {candidate.there:,} {node} {accelerators}{network}: {run_usd}."
    if chosen.contract == "own" and chosen.purchase is not None:
        spares = f" and {chosen.spares:,} spare" if chosen.spares else ""
        price = f"{format_usd(chosen.purchase.value)} by an estimate, {run_usd}"
        nodes = f"{chosen.num_nodes:,} {node} {accelerators}"
        return f"Buy {nodes}{spares}{network}: {price}. {_when_it_pays(owned)}"
    rented = f"Rent {chosen.num_nodes:,} x {chosen.offer} {accelerators}{network}, {chosen.contract}: {run_usd}"
    to_buy = f"; buying them costs {format_usd(owned.owning.capex.value)} by an estimate" if owned else ""
    return f"{rented}{to_buy}. {_when_it_pays(owned)}"


def _network(details: ProposalDetails) -> str:
    """The adapters of a node, the topology, and the leanest network that would do."""
    cluster, design, enough = details.plan.job.cluster, details.network, details.enough
    each = f"{cluster.node_bytes_per_s / max(1, cluster.nics) * 8e-9:g} Gb/s"
    text = f" over {cluster.fabric or f'{cluster.nics}x {each} {cluster.network}'} a node"
    if design is not None and design.num_switches:
        text += f" in a {design.topology}"
    if cluster.oversubscription > 1:
        text += f" at {cluster.oversubscription:g}:1"
    if enough is None:
        return text
    leanest = enough.option.fabric
    is_leaner = leanest.nics * leanest.bytes_per_s < cluster.node_bytes_per_s
    return f"{text} ({enough.option.over} would do)" if is_leaner else text


def _when_it_pays(owned: Ownership | None) -> str:
    """From how many hours of training a year on owning costs less than renting."""
    if owned is None:
        return "Owning cannot be priced: the power of these nodes is not published."
    if owned.market is None:
        return "Nothing tells when owning pays: no such accelerator is on offer for rent."
    rate = f"beside a rent of {owned.market.value:.2f} USD per accelerator hour, the median"
    if owned.break_even is None or not fits_in_year(owned.break_even):
        return f"Owning never pays {rate}."
    return f"Owning pays from {owned.break_even.value:,.0f} hours of training a year on, {rate}."
