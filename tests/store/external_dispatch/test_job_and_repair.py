"""A dispatch job and a repair never have the queues of one store at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.stores import StoreHome, build_all, derived_files, put_mixed

from penstock.errors import BadStore, StoreInUse
from penstock.store import Dispatch, Settings
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.rebuild import rebuild
from penstock.store.repair import repair

SMALL: dict[str, Any] = {"mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 50, "max_index_num": 300}
INLINE = Settings.dev(**SMALL)
WORKS: dict[str, Callable[..., object]] = {"repair": repair, "rebuild": rebuild}


@pytest.fixture
def half_built(home: StoreHome) -> StoreHome:
    """A store whose job has built a part."""
    with home.open(**SMALL, dispatch=Dispatch.EXTERNAL) as store:
        put_mixed(home, store, 100)
        store.flush()
        with Builder.open(home.path) as builder:
            build_all(builder)
        put_mixed(home, store, 100, 100)
    return home


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_the_job_is_refused_until_the_work_is_done(half_built: StoreHome, work: Callable[..., object]) -> None:
    path, refused = half_built.path, []
    due = half_built.copy_to(path.with_name("due"))
    with Builder.open(due.path) as builder:
        build_all(builder)

    def try_to_dispatch(*progress: object) -> None:
        with pytest.raises(StoreInUse, match=r"or a repair .* owns the queues and the index of this store"):
            Builder.open(path)
        refused.append(progress)

    work(path, INLINE, clock=half_built.clock, progress=try_to_dispatch)
    assert refused
    assert derived_files(path) == derived_files(due.path)
    with pytest.raises(BadStore, match="start it with dispatch=external first"):
        Builder.open(path)


@pytest.mark.parametrize("dry_run", [False, True], ids=["in earnest", "rehearsed"])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_the_work_is_refused_while_the_job_runs(
    half_built: StoreHome, work: Callable[..., object], dry_run: bool
) -> None:
    with Builder.open(half_built.path) as builder:
        with pytest.raises(StoreInUse, match="wait for it, or stop it first"):
            work(half_built.path, INLINE, dry_run=dry_run)
        build_all(builder)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_the_job_goes_on_after_work_that_keeps_dispatch_external(
    half_built: StoreHome, work: Callable[..., object]
) -> None:
    path, settings = half_built.path, INLINE.with_changes(dispatch=Dispatch.EXTERNAL)
    due = half_built.copy_to(path.with_name("due"))
    due.clock.now = half_built.clock.now
    work(path, settings, clock=half_built.clock)
    for home in (half_built, due):
        with home.open(**SMALL, dispatch=Dispatch.EXTERNAL) as store:
            put_mixed(home, store, 50, 200)
        with Builder.open(home.path) as builder:
            build_all(builder)
    assert derived_files(path) == derived_files(due.path)
