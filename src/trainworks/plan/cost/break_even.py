"""Hours of training a year above which owning costs less than renting.

fixed + running * h = rent * h    so    h = fixed / (rent - running)
"""

from __future__ import annotations

from trainworks.plan.cost.owning import HOURS_OF_A_YEAR, OwnershipCost
from trainworks.plan.trace import Traced


def break_even_hours(owning: OwnershipCost, rent: Traced) -> Traced | None:
    """Hours of training a year at which owning costs as much as renting.

    Args:
        owning: costs of the cluster when owned.
        rent: of the same cluster, USD/h.

    Returns:
        The hours, possibly more than a year has; None if an hour's electricity alone costs more than its rent.
    """
    if rent.value <= owning.running.value:
        return None
    name = f"break-even hours against {rent.name.removesuffix(' per hour')}"
    hours = owning.fixed / (rent - owning.running)
    return hours.named(name, "h", fixed=owning.fixed, rent=rent, running=owning.running)


def within_a_year(hours: Traced | None) -> bool:
    """True if a year has that many hours; otherwise owning never pays."""
    return hours is not None and hours.value <= HOURS_OF_A_YEAR
