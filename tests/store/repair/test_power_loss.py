"""The power goes during a repair or a rebuild: what was valid is still served, and the next one ends the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from store.repair.test_killed import Run, Scene, can_start, damaged, garbled, run_rebuild, run_repair, visible
from support.damage import SMALL_SETTINGS, DamagedHome
from support.disks import UnsyncedFiles
from support.effort import in_parts
from support.messages import SEED
from support.power_loss import Image, PowerLossFiles, write_image

from penstock.store.files.file_io import Files
from penstock.store.rebuild import rebuild

IMAGES = 40


def assert_power_may_go(scene: Scene, run: Run, tmp_path: Path, round_: int) -> None:
    seed = f"{SEED} {round_}"
    base, path = tmp_path / "base", tmp_path / "after"
    shutil.copytree(scene.home.path, base / "store")
    cuts: list[tuple[str, Image]] = []
    files = PowerLossFiles(base, seed, lambda what: cuts.append((what, files.image())))
    run(base / "store", scene.home, files)
    final = visible(base / "store")
    log = log_of(base / "store")
    for _ in range(5):
        shutil.rmtree(path, ignore_errors=True)
        write_image(files.image(), path)
        assert visible(path / "store") == final, "what was said to be done is not on disk"
        assert log_of(path / "store") == log, "what was said to be done is not on disk"
    files.close()
    for number, (what, image) in enumerate(cuts[:: max(1, len(cuts) // IMAGES)]):
        shutil.rmtree(path, ignore_errors=True)
        write_image(image, path)
        try:
            if number % 2 and can_start(path / "store"):
                scene.assert_served(path / "store", ends=False)
            run(path / "store", scene.home, UnsyncedFiles())
            assert visible(path / "store") == final
            scene.assert_served(path / "store", ends=True)
        except BaseException:
            print(f"seed {seed!r}, the power went before: {what}, the store is in {path}")
            raise


def log_of(store: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


@pytest.mark.parametrize("round_", in_parts(range(2)))
def test_the_power_may_go_at_any_sync_of_a_repair(home: DamagedHome, tmp_path: Path, round_: int) -> None:
    assert_power_may_go(damaged(home), run_repair, tmp_path, round_)


def run_by_ranges(path: Path, home: DamagedHome, files: Files) -> None:
    rebuild(path, SMALL_SETTINGS, range_size=2000, files=files, clock=home.clock)


@pytest.mark.slow
@pytest.mark.parametrize("round_", range(3))
def test_the_power_may_go_at_any_sync_of_a_rebuild_by_many_ranges(
    home: DamagedHome, tmp_path: Path, round_: int
) -> None:
    assert_power_may_go(garbled(home), run_by_ranges, tmp_path, round_)


@pytest.mark.parametrize("round_", in_parts(range(2)))
def test_the_power_may_go_at_any_sync_of_a_rebuild(home: DamagedHome, tmp_path: Path, round_: int) -> None:
    assert_power_may_go(garbled(home), run_rebuild, tmp_path, round_)
