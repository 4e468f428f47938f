"""The disk refuses one call of a repair or a rebuild: it ends with a sentence, and the next one ends as it should."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from store.repair.test_killed import Run, Scene, damaged, garbled, run_rebuild, run_repair, visible
from support.damage import DamagedHome
from support.disks import FailingFiles, UnsyncedFiles
from support.effort import in_parts
from support.stores import is_one_sentence

from penstock.errors import PenstockError

STEP = 9
NEVER = 10**9


def refusal_of(run: Run, path: Path, home: DamagedHome, files: FailingFiles) -> str:
    """The sentence with which it ends, nothing if it does without the call that failed."""
    try:
        run(path, home, files)
    except PenstockError as error:
        return str(error)
    return ""


def assert_any_call_may_fail(scene: Scene, run: Run, tmp_path: Path, kind: int) -> None:
    home, path = scene.home, tmp_path / "copy"
    counted = FailingFiles(NEVER, kind)
    shutil.copytree(home.path, path)
    run(path, home, counted)
    final = visible(path)
    failed = 0
    for number in range(kind % STEP, len(counted.calls), STEP):
        shutil.rmtree(path)
        shutil.copytree(home.path, path)
        files = FailingFiles(number, kind)
        refusal = refusal_of(run, path, home, files)
        failed += bool(refusal)
        assert not refusal or is_one_sentence(refusal), files.failed
        run(path, home, UnsyncedFiles())
        assert visible(path) == final, files.failed
        scene.assert_served(path, ends=True)
    assert failed > 10


@pytest.mark.parametrize("kind", in_parts([errno.EIO, errno.ENOSPC]), ids=["EIO", "ENOSPC"])
def test_any_call_of_a_repair_may_fail(home: DamagedHome, tmp_path: Path, kind: int) -> None:
    assert_any_call_may_fail(damaged(home), run_repair, tmp_path, kind)


@pytest.mark.parametrize("kind", in_parts([errno.EIO, errno.ENOSPC]), ids=["EIO", "ENOSPC"])
def test_any_call_of_a_rebuild_may_fail(home: DamagedHome, tmp_path: Path, kind: int) -> None:
    assert_any_call_may_fail(garbled(home), run_rebuild, tmp_path, kind)
