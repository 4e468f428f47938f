"""The job builds what inline dispatch builds, in batches of any size, killed or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stores import StoreHome, build_all, derived_files, pieces_of, put_mixed

from penstock.errors import BadStore, StoreInUse
from penstock.store import Dispatch
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.queue_units_and_keys import ScannedPieces

SMALL = {"mapped_file_size_commit_log": 16_384, "max_hash_slot_num": 50, "max_index_num": 300}
EXTERNAL = {**SMALL, "dispatch": Dispatch.EXTERNAL}


def inline_twin(home: StoreHome, count: int) -> dict[str, bytes]:
    """What inline dispatch builds of the same messages."""
    twin = StoreHome(home.path.with_name("twin"))
    with twin.open(**SMALL) as store:
        put_mixed(twin, store, count)
    return derived_files(twin.path)


@pytest.mark.parametrize("step", [700, 5_000, 1 << 30])
def test_batches_of_any_size_build_what_inline_dispatch_builds(home: StoreHome, step: int) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 600)
    with Builder.open(home.path) as builder:
        assert build_all(builder, step=step) >= 1
        assert builder.position == builder.published
    assert derived_files(home.path) == inline_twin(home, 600)


def test_what_workers_found_is_used(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_itself = []
    take = ScannedPieces.derive

    def counting(self: ScannedPieces, *place: object) -> object:
        before = self.used
        derived = take(self, *place)  # type: ignore[arg-type]
        looked_itself.append(self.used == before)
        return derived

    monkeypatch.setattr(ScannedPieces, "derive", counting)
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 600)
    with Builder.open(home.path) as builder:
        build_all(builder, count=5)
    assert not any(looked_itself)


def test_a_batch_without_anything_found_is_looked_at_by_the_builder(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 300)
    with Builder.open(home.path) as builder:
        builder.build(builder.published)
    assert derived_files(home.path) == inline_twin(home, 300)


def test_a_builder_of_an_empty_store_reads_no_further_than_what_is_published(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store, Builder.open(home.path) as builder:
        for start in range(0, 300, 5):
            put_mixed(home, store, 5, start)
            builder.build(builder.published)
            assert builder.position == store.log.max_offset
    assert derived_files(home.path) == inline_twin(home, 300)


def test_the_same_batch_again_changes_nothing(home: StoreHome) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 300)
    with Builder.open(home.path) as builder:
        end = builder.published
        pieces = pieces_of(builder, end)
        builder.build(end, pieces)
        before = derived_files(home.path)
        builder.build(end, pieces)
        assert builder.position == end
    assert derived_files(home.path) == before == inline_twin(home, 300)


def test_a_killed_builder_is_followed_by_one_that_ends_with_the_same_files(home: StoreHome, tmp_path: Path) -> None:
    """A kill is a copy of the files at that moment: what was written is there, synced or not."""
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 400)
    expected = inline_twin(home, 400)
    builder = Builder.open(home.path)
    killed: list[StoreHome] = []
    step = builder._dispatcher.step

    def step_and_copy() -> None:
        step()  # a part of the batch is in its queues, and not published yet
        killed.append(home.copy_to(tmp_path / f"killed{len(killed)}"))

    builder._dispatcher.step = step_and_copy  # type: ignore[method-assign]
    while builder.position < builder.published:
        stop = min(builder.position + 4_000, builder.published)
        pieces = pieces_of(builder, stop)
        builder.build(stop, pieces)
    builder.close()
    assert len(killed) > 5
    for each in killed[:: max(len(killed) // 8, 1)]:
        with Builder.open(each.path) as again:
            assert again.position <= again.published
            build_all(again, step=3_000)
        assert derived_files(each.path) == expected


def test_a_builder_after_the_machine_failed_goes_by_the_note(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    with home.open(**EXTERNAL) as store:
        put_mixed(home, store, 200)
        with Builder.open(home.path) as builder:
            build_all(builder)
            noted = builder.position
        put_mixed(home, store, 200, 200)
        builder = Builder.open(home.path)
        builder._synced += 1000
        builder.build(builder.published)
        failed = home.copy_to(home.path.with_name("failed"))
        builder.close()
    queue = failed.queue_files("T1", 1)[0]
    last = queue.read_bytes().rstrip(b"\0")
    failed.write(queue, len(last) - 30, bytes(60))  # what was not synced did not reach the disk
    (failed.path / "abort").unlink()
    monkeypatch.setattr("penstock.store.external_dispatch.files_shared_with_job.boot_number", lambda: 42)
    with Builder.open(failed.path) as again:
        assert again.position == noted
        build_all(again)
    assert derived_files(failed.path) == inline_twin(home, 400)


def test_one_job_at_a_time(home: StoreHome) -> None:
    with (
        home.open(**EXTERNAL),
        Builder.open(home.path),
        pytest.raises(StoreInUse, match="dispatch` job"),
    ):
        Builder.open(home.path)


def test_a_job_refuses_a_store_that_dispatches_itself(home: StoreHome) -> None:
    with home.open(**SMALL), pytest.raises(BadStore, match="start it with dispatch=external first"):
        Builder.open(home.path)
    with home.open(**EXTERNAL):
        Builder.open(home.path).close()


def test_a_job_waits_for_the_start_of_a_store_that_was_not_closed(home: StoreHome) -> None:
    home.open(**EXTERNAL).close()
    home.mark_crashed()
    with pytest.raises(BadStore, match="start the store first"):
        Builder.open(home.path)
    with home.open(**EXTERNAL):
        Builder.open(home.path).close()
