"""The job `diff` over stores that Apache RocketMQ wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.stores.test_store_interchange import fill_with_java, fill_with_penstock
from support.peers import Peer, PeerError, build
from support.stores import StoreHome

from penstock.pipeline.jobs.diff import Sides, diff_bytes_here, diff_here
from penstock.pipeline.jobs.job_input import JobInput

pytestmark = pytest.mark.java


@pytest.fixture
def java() -> Iterator[Peer]:
    try:
        class_path = build()
    except PeerError as reason:
        pytest.skip(f"Java's store cannot be had here: {reason}")
    with Peer(class_path) as peer:
        yield peer


def test_what_java_and_penstock_stored_of_the_same_messages_is_the_same(java: Peer, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "java", tmp_path / "penstock"
    theirs.mkdir()
    fill_with_java(java, theirs)
    fill_with_penstock(ours)
    a, b = JobInput(stores=(str(theirs),)), JobInput(stores=(str(ours),))
    found = diff_here(Sides(a=a, b=b))
    assert (found.same, found.examples) == (True, [])
    assert sum(queue.same for queue in found.queues) > 500
    assert diff_here(Sides(a=a, b=b, by="key")).same
    assert not diff_bytes_here(Sides(a=a, b=b, by="bytes")).same, "they were stored at other times"
    copy = StoreHome(theirs).copy_to(tmp_path / "copy")
    assert diff_bytes_here(Sides(a=a, b=JobInput(stores=(str(copy.path),)), by="bytes")).same
    copy.flip(copy.log_files()[0], 3000)
    assert diff_here(Sides(a=a, b=JobInput(stores=(str(copy.path),)))).count("unreadable_b") == 1
