"""New folders replace old ones, and a start finishes an interrupted swap."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.damage import DamagedHome
from support.disks import CountedFiles, UnsyncedFiles, run_killed

from penstock.store import Settings
from penstock.store.files.atomic_files import Move, finish_swap, swap, write_checksummed
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout

MOVES = [
    Move("consumequeue/T/0", True, "penstock/quarantine/x/consumequeue/T/0"),
    Move("consumequeue/gone/0", False, "penstock/quarantine/x/consumequeue/gone/0"),
    Move("consumequeue/fresh/3", True, "penstock/quarantine/x/consumequeue/fresh/3"),
    Move("index", True, "penstock/quarantine/x/index"),
]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Old folders in their places, new ones staged."""
    root = tmp_path / "store"
    for folder, text in (
        ("consumequeue/T/0", "old"),
        ("consumequeue/gone/0", "old"),
        ("index", "old"),
        ("penstock/staging/consumequeue/T/0", "new"),
        ("penstock/staging/consumequeue/fresh/3", "new"),
        ("penstock/staging/index", "new"),
    ):
        (root / folder).mkdir(parents=True)
        (root / folder / "file").write_text(text)
    return Layout.of(root, Settings())


DONE = {
    "consumequeue/T/0/file": b"new",
    "consumequeue/fresh/3/file": b"new",
    "index/file": b"new",
    "penstock/quarantine/x/consumequeue/T/0/file": b"old",
    "penstock/quarantine/x/consumequeue/gone/0/file": b"old",
    "penstock/quarantine/x/index/file": b"old",
}


def listing(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_old_folders_go_to_the_quarantine_and_new_ones_to_their_places(layout: Layout) -> None:
    swap(UnsyncedFiles(), layout, MOVES)
    assert listing(layout.root) == DONE


def test_a_swap_killed_at_any_call_is_finished_by_the_next_start(layout: Layout, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(layout.root, before)
    counted = CountedFiles()
    swap(counted, layout, MOVES)
    for last in range(len(counted.calls)):
        shutil.rmtree(layout.root)
        shutil.copytree(before, layout.root)
        untouched = listing(layout.root)
        run_killed(lambda files: swap(files, layout, MOVES), last)
        finish_swap(UnsyncedFiles(), layout)
        left = {name: data for name, data in listing(layout.root).items() if not name.endswith(".tmp")}
        assert left in (untouched, DONE), counted.calls[last]


class CountedSyncs(UnsyncedFiles):
    """Counts the syncs of each folder."""

    def __init__(self) -> None:
        self.syncs: Counter[Path] = Counter()

    def sync_folder(self, folder: Path) -> None:
        self.syncs[folder] += 1


def test_a_folder_is_synced_once_when_all_left_it_and_once_when_all_came(layout: Layout) -> None:
    moves = []
    for queue_id in range(1, 6):
        for folder in (layout.consume_queue, layout.staging / "consumequeue"):
            (folder / "T" / str(queue_id)).mkdir()
        moves.append(Move(f"consumequeue/T/{queue_id}", True, f"penstock/quarantine/x/consumequeue/T/{queue_id}"))
    counted = CountedSyncs()
    swap(counted, layout, [*MOVES, *moves])
    assert counted.syncs[layout.consume_queue / "T"] == 2
    assert counted.syncs[layout.quarantine / "x" / "consumequeue" / "T"] == 1
    assert counted.syncs[layout.staging / "consumequeue" / "T"] == 1


def test_a_view_sees_a_swap_as_done_and_leaves_it_undone(layout: Layout) -> None:
    write_checksummed(UnsyncedFiles(), layout.swap, {"moves": MOVES})
    before = listing(layout.root)
    view = OverlayFiles()
    assert finish_swap(view, layout) == len(MOVES)
    assert view.read_bytes(layout.root / "consumequeue/T/0/file") == b"new"
    assert not view.exists(layout.root / "consumequeue/gone/0")
    assert view.names(layout.root / "index") == ["file"]
    assert listing(layout.root) == before


@pytest.mark.parametrize(
    "move",
    [
        Move("commitlog", True, "penstock/quarantine/x/y"),
        Move("../elsewhere", True, "penstock/quarantine/x/y"),
        Move("consumequeue/../index", False, "penstock/quarantine/x/y"),
        Move("consumequeue/T/0", True, "../../elsewhere"),
        Move("consumequeue/T/0", True, "penstock/quarantine/../../elsewhere"),
        Move("consumequeue/T/0", True, "penstock/quarantine/.."),
    ],
)
def test_a_note_that_would_move_anything_else_is_not_followed(layout: Layout, move: Move) -> None:
    write_checksummed(UnsyncedFiles(), layout.swap, {"moves": [move]})
    before = listing(layout.root)
    del before["penstock/swap.json"]
    assert finish_swap(UnsyncedFiles(), layout) == 0
    assert listing(layout.root) == before


def test_a_start_and_a_view_find_the_new_queue_when_a_rebuild_was_killed_between_two_renames(
    home: DamagedHome, tmp_path: Path
) -> None:
    """At the worst moment: the old queue is in the quarantine, the new one not yet in place."""
    home.fill()
    counted = CountedFiles()
    shutil.copytree(home.path, tmp_path / "counted")
    DamagedHome(tmp_path / "counted").rebuild(files=counted, clock=home.clock)
    last = (
        next(n for n, call in enumerate(counted.calls) if call.startswith("rename 0 to") and "quarantine" in call) + 1
    )
    run_killed(lambda files: home.rebuild(files=files), last)
    assert len(list((home.path / "consumequeue").glob("*/*"))) == 2
    with home.open_small(read_only=True) as view:
        assert len(home.read_queue(view, "T")) == 60
    with home.open_small() as store:
        assert len(home.read_queue(store, "T")) == 60
    home.assert_whole()
