"""How ``advise capacity`` tells what it has found: for people, the sentence first, and for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from advisor.capacity import Capacity
    from cli.advise_capacity_question import Prices, Question


def to_json(answers: Sequence[Capacity], asked: Question, prices: Prices) -> dict[str, object]:
    from advisor.capacity import to_json as answer_json
    from advisor.capacity_words import sentence

    told: dict[str, object] = {
        "sentence": " ".join(sentence(answer, len(answers) == 1) for answer in answers) or NOTHING,
        "flavors": [
            {"sentence": sentence(answer), **answer_json(answer, prices.of(answer)),
             "pricePerHour": prices.of(answer)}
            for answer in answers
        ],
        "counted": list(asked.counted),
        "remarks": [remark.told() for remark in asked.remarks],
    }  # fmt: skip
    return told if asked.missed is None else told | {"missedInFact": len(asked.missed)}


NOTHING = "There is no work that asks for any GPUs (or what --resource names), so none are needed."


def show(answers: Sequence[Capacity], asked: Question, prices: Prices, console: Console) -> None:
    from advisor.capacity_words import details, sentence

    if not answers:
        console.print(NOTHING)
    for answer in answers:
        console.print(sentence(answer, len(answers) == 1), markup=False, style="bold")
    for answer in answers:
        console.print()
        for line in details(answer):
            console.print(line, markup=False)
        if answer.deadlines:
            console.print()
            console.print(_curve(answer, prices))
    notes = list(_notes(answers, asked, prices))
    if answers and notes:
        console.print()
    for line in notes:
        console.print(line, markup=False)


def _notes(answers: Sequence[Capacity], asked: Question, prices: Prices) -> Iterator[str]:
    for line in asked.counted:
        yield f"Counted: {line}."
    if asked.missed is not None and answers:
        yield f"In fact {len(asked.missed)} of these deadlines {'was' if len(asked.missed) == 1 else 'were'} missed."
    missing = sorted({each.pool.flavor_name for each in answers if each.deadlines and prices.of(each) is None})
    if missing and prices.listed is None and not prices.said:
        yield "No price is known, so none per extra deadline (--price 2.50, of one for an hour; --prices FILE)."
    elif missing:
        told = f"--price {missing[0]}=2.50, or in the price list"
        yield f"No price is known of flavor {', '.join(missing)}, so none per extra deadline ({told})."
    if len(answers) > 1:
        yield "Each answer leaves the other flavors and queues as they are."


def _curve(answer: Capacity, prices: Prices) -> Table:
    """How many deadlines are met with how much."""
    from rich.table import Table

    from advisor.capacity import prices_per_extra

    found, pool, price = answer.least, answer.pool, prices.of(answer)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(answer.unit.upper() if answer.unit != "GPUs" else "GPUs", justify="right", no_wrap=True)
    table.add_column("DEADLINES MET", justify="right")
    table.add_column("AT MOST", justify="right")
    if price is not None:
        table.add_column("EACH EXTRA COSTS", justify="right")
    table.add_column("")
    last = None
    for point, cost in zip(found.curve, prices_per_extra(answer, price), strict=True):
        if point.met == last and point.amount not in (found.needed, pool.now):
            continue
        last = point.met
        marks = []
        if point.amount == found.needed:
            marks.append("enough")
        if point.amount == pool.now:
            marks.append("today")
        cells = [str(point.amount), f"{point.met} of {answer.deadlines}", str(point.at_most)]
        if price is not None:
            cells.append("" if cost is None else f"{cost:.2f}{prices.currency}")
        table.add_row(*cells, ", ".join(marks))
    return table
