"""Logs as JSON lines (for machines) or as text (for people).

One object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, then whatever the call gave as
``extra``, and ``exception`` with the traceback where there is one.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import IO, Any

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every log record has; anything else came from ``extra``."""


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    TEXT = "text"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """``12:30:01.250 warning  message  key=value``"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        extra = "".join(f"  {name}={value}" for name, value in _extra(record).items())
        text = f"{at} {record.levelname.lower():<8} {record.getMessage()}{extra}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def configure(style: LogFormat, level: int = logging.INFO, stream: IO[str] | None = None) -> None:
    """Send all log lines to ``stream`` (standard error by default); call once, at the start of a command."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if style is LogFormat.JSON else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    # It warns about each connection that is closed and made again, which is our business as usual.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
