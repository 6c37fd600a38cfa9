"""Reading text tables, plain or gzipped, with errors that say where."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class TraceError(Exception):
    """A file is missing or broken; the message says which, where, and what is wrong."""


def packed(path: Path) -> Path:
    """The gzipped file beside it, if there is one; else the file itself."""
    gzipped = path.with_name(path.name + ".gz")
    return gzipped if gzipped.exists() else path


class Row:
    """One line of a table, whose cells are asked for by column."""

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self._path, self._line, self._cells = path, line, cells

    def text(self, column: str) -> str:
        """A cell as it is."""
        return self._cells[column]

    def whole(self, column: str, least: int | None = None) -> int:
        """A cell that must be a whole number, not below ``least``."""
        return self.parse(column, self._cells[column], least)

    def parse(self, column: str, text: str, least: int | None = None) -> int:
        """A part of a cell that must be a whole number, not below ``least``."""
        try:
            value = int(text)
        except ValueError:
            raise self.error(f"{column} is {text!r}, not a whole number") from None
        if least is not None and value < least:
            raise self.error(f"{column} is {value}; it must be at least {least}")
        return value

    def error(self, what: str) -> TraceError:
        """Something is wrong with this line."""
        return TraceError(f"{self._path}, line {self._line}: {what}")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The text of a file, unpacked if its name ends in ``.gz``.

    Raises
    ------
    TraceError
        When the file cannot be read, on opening or later.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as text:
            yield text
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Lines of a CSV file with a header that has at least these columns; empty lines are passed over.

    Raises
    ------
    TraceError
        When the file cannot be read, a column is missing, or a line has more or fewer cells than the header.
    """
    with opened(path) as text:
        reader = csv.reader(text)
        header = next(reader, [])
        if missing := [column for column in columns if column not in header]:
            raise TraceError(f"{path}, line 1: no column {', '.join(missing)}; the columns are {', '.join(header)}")
        for cells in reader:
            if not cells:
                continue
            row = Row(path, reader.line_num, dict(zip(header, cells, strict=False)))
            if len(cells) != len(header):
                raise row.error(f"{len(cells)} cells, the header has {len(header)}")
            yield row
