"""What tests share: disks, stores, brokers, clusters, peers, and damage to plant in them."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
