"""A request that is refused as a whole."""

from __future__ import annotations


class InvalidRequest(ValueError):
    """A table of the request makes no sense.

    Attributes
    ----------
    field
        Path of the field at fault, e.g. ``quota.cohorts[3].name``.
    message
        What is wrong with it; reads on from the path.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class UnknownSchema(InvalidRequest):
    """The request is written in a revision of the contract that this planner does not know."""
