"""A price list: what a GPU-hour costs, by flavor, and how many GPUs are paid for whether they are used or not."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from advisor.success import Currency
from scheduler.schema_file import BadFile, Name, Part, read_file

ANY = "*"
"""Stands for all flavors that are not named."""

Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(Part):
    """What GPUs cost."""

    version: Literal[1]
    """Version of this schema."""
    currency: Currency
    """Of all prices: EUR, USD …"""
    gpu_hour: Annotated[dict[Name, Price], Field(min_length=1)]
    """What one GPU costs an hour, by ResourceFlavor; `*` for all others. Of a MIG slice as much as it is of a GPU."""
    owned: dict[Name, Price] = Field(default_factory=dict)
    """How many GPUs of a ResourceFlavor are paid for whether they are used or not. What of them nobody was granted is idle cost."""  # noqa: E501

    @model_validator(mode="after")
    def _owned_are_priced(self) -> Self:
        for flavor in self.owned:
            if flavor == ANY:
                raise ValueError("owned.*: name the ResourceFlavor; how many GPUs all others have, adds up to nothing")
            if self.of(flavor) is None:
                raise ValueError(f"owned.{flavor} has no price; add gpuHour.{flavor}")
        return self

    def of(self, flavor: str) -> float | None:
        """What a GPU of a flavor costs an hour; None if the list does not say."""
        return self.gpu_hour.get(flavor, self.gpu_hour.get(ANY))


class BadPrices(BadFile):
    """A price list that cannot be read; ``mistakes`` has all that is wrong with it."""


def read_prices(text: str) -> Prices:
    """A price list in YAML or JSON.

    Raises
    ------
    BadPrices
        If it is none, with every mistake: its path, its line and what is allowed.
    """
    try:
        return read_file(text, Prices, "write version: 1, currency and gpuHour (docs/cost.md)")
    except BadFile as error:
        raise BadPrices(error.mistakes) from None
