"""What tests share: disks, stores, brokers, clusters, peers, and damage to plant in them."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
NO_INDEX = re.compile(r"No matching distribution|Could not find a version|Connection|Network is unreachable")
"""What pip says where there is no index of packages."""
