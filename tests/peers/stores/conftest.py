"""Fixtures for tests against Apache RocketMQ's own code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.peers import Peer, PeerError, build


@pytest.fixture(scope="session")
def java_class_path() -> list[Path]:
    try:
        return build()
    except PeerError as reason:
        pytest.skip(f"Java's store cannot be had here: {reason}")


@pytest.fixture
def java(java_class_path: list[Path]) -> Iterator[Peer]:
    """Apache RocketMQ 4.9.8's store, in a process of its own."""
    with Peer(java_class_path) as peer:
        yield peer
