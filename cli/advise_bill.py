"""What ``advise cost`` and ``advise`` have in common: what was spent, by OpenCost or a price list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.advise_source import USAGE, Seen, Servers, Sources, bad_file, fail, text_of, waiting

if TYPE_CHECKING:
    from advisor.cost import Bill
    from advisor.cost_prices import Prices
    from advisor.outcomes import Judge
    from advisor.usage import Usage

OpenCostUrl = Annotated[
    str | None,
    typer.Option("--opencost", envvar="PUNCTUAL_OPENCOST", metavar="URL", help="An OpenCost: what pods cost."),
]
Currency = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="In which OpenCost counts, EUR or USD: it does not say so itself."),
]
PriceList = Annotated[
    Path | None,
    typer.Option(
        "--prices",
        envvar="PUNCTUAL_PRICES",
        metavar="FILE",
        help="A price list (docs/cost.md); beside OpenCost: for days that it has nothing of.",
    ),
]


def check_currency(code: str | None, opencost: str | None) -> None:
    """Refuse what is no code of a currency, or says nothing of anything."""
    if code is None:
        return
    if not (len(code) == 3 and code.isalpha() and code.isupper()):
        raise fail(f"--currency: {code} is no code of a currency; write EUR, USD …", USAGE)
    if opencost is None:
        raise fail("--currency: says in which OpenCost counts (--opencost URL); a price list says it itself", USAGE)


def bill_of(
    used: Usage,
    seen: Seen,
    judge: Judge,
    prices: Prices | None,
    opencost: str | None,
    currency: str,
    servers: Servers,
    sources: Sources,
) -> Bill:
    """From OpenCost if there is one, else from the price list."""
    from advisor.cost import charge_by_prices
    from advisor.cost_opencost import charge_by_opencost
    from advisor.opencost import OpenCost
    from advisor.usage_pods import Pods

    if opencost is None:
        assert prices is not None
        sources.missing("OpenCost", "GPUs alone are counted, by the price list (--opencost URL)")
        return charge_by_prices(used, prices, judge, seen.now)
    try:
        server = OpenCost(opencost, servers.token, servers.timeout)
    except ValueError as error:
        raise fail(f"--opencost: {error}", USAGE) from None
    pods = Pods(seen.everybody, seen.now, seen.hide)
    with waiting("asking OpenCost") as told:
        bill = charge_by_opencost(
            used, pods, server, judge, seen.entries, currency=currency, prices=prices, progress=told
        )
    why = next((remark for remark in bill.remarks if server.url in remark), "") if not bill.complete else ""
    if why:
        bill.remarks.remove(why)  # it is told once, with the source
    sources.add("OpenCost", server.url, ok=bill.complete, why=why)
    return bill


def price_list_of(file: Path) -> Prices:
    """A price list."""
    from advisor.cost_prices import BadPrices, read_prices

    try:
        return read_prices(text_of(file))
    except BadPrices as error:
        raise bad_file(file, error) from None
