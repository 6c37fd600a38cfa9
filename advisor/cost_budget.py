"""What tasks and services cost beside their budgets of ``success.yaml``, and what a thousand good answers cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from advisor.cost import Cost
from advisor.success import Budget, Success
from advisor.usage import Window
from scheduler.settings import DAY

_PERIODS = {"day": DAY, "week": 7 * DAY, "month": 30 * DAY}


@dataclass(frozen=True)
class Spent:
    """One figure of a budget, and what it is in truth; of a period, what the window comes to if it goes on like that.

    Attributes
    ----------
    what
        The field of ``success.yaml``: ``gpuHours``, ``cost`` or ``costPerResult``.
    spent
        None: not known, because nothing counts, or money is of another currency.
    """

    name: str
    what: str
    budget: float
    spent: float | None
    unit: str
    why: str = ""

    @property
    def over(self) -> bool | None:
        """Whether it is more than the budget."""
        return None if self.spent is None else self.spent > self.budget

    def __str__(self) -> str:
        if self.spent is None:
            return f"{self.name}: its budget of {self.budget:,.6g} {self.unit} is not compared: {self.why}"
        word = "over" if self.over else "within"
        return f"{self.name}: {self.spent:,.2f} {self.unit}, {word} its budget of {self.budget:,.6g}"


def budgets(
    success: Success, costs: Mapping[str, Cost], results: Mapping[str, float], window: Window, currency: str
) -> list[Spent]:
    """All figures of all budgets.

    Parameters
    ----------
    costs, results
        By name of task or service: what it cost, and how many results (good answers) it gave.
    currency
        Of the costs; empty if not known.
    """
    found: list[Spent] = []
    wanted = [(name, task.budget) for name, task in success.tasks.items()]
    wanted += [(name, service.budget) for name, service in success.services.items()]
    for name, budget in wanted:
        if budget is not None:
            spent = costs.get(name, Cost(name))
            found += _figures(name, budget, spent, results.get(name, 0.0), window, currency)
    return found


def _figures(name: str, budget: Budget, cost: Cost, results: float, window: Window, currency: str) -> list[Spent]:
    scale = _PERIODS[budget.per] / max(1, window.end - window.start)
    found = []
    if budget.gpu_hours is not None:
        found.append(Spent(name, "gpuHours", budget.gpu_hours, cost.gpu_hours * scale, f"GPU-hours a {budget.per}"))
    other = ""
    if budget.currency != currency:
        other = f"costs are in {currency}" if currency else "in which currency costs are is not known"
    if budget.cost is not None:
        unit = f"{budget.currency} a {budget.per}"
        found.append(Spent(name, "cost", budget.cost, None if other else cost.total * scale, unit, other))
    if budget.cost_per_result is not None:
        unit, why = f"{budget.currency} a result", other or ("" if results else "no result counts")
        each = None if why else cost.total / results
        found.append(Spent(name, "costPerResult", budget.cost_per_result, each, unit, why))
    return found
