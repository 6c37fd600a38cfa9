"""``python -m localcluster.watchdog DIR``: takes a cluster down once nobody holds its standard input open any more."""

from __future__ import annotations

import sys
from pathlib import Path

from localcluster.cluster import LocalCluster

if __name__ == "__main__":
    sys.stdin.read()
    LocalCluster(Path(sys.argv[1])).down()
