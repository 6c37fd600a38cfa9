"""Runs ``punctual`` with a wall clock that is off by as many seconds as a file says at that moment.

    python skewed.py FILE controller --solver …

``time.time`` and ``time.time_ns`` are what the controller takes the time from; its monotonic clock goes on as it does
when somebody sets a machine's clock.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    true_time, true_time_ns = time.time, time.time_ns

    def offset() -> float:
        """Seconds."""
        return float(file.read_text())

    time.time = lambda: true_time() + offset()
    time.time_ns = lambda: true_time_ns() + round(offset() * 1e9)

    from cli.main import main

    main()
