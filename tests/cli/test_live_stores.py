"""A store that another process is writing to is shown as one moment of it, whole and without false damage."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.conftest import kill

if TYPE_CHECKING:
    from cli.conftest import Run

Writer = Callable[..., subprocess.Popen[str]]
ROUNDS = 6


def test_the_log_of_a_busy_writer_has_no_damage_and_no_gap(run: Run, writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner = writer(path, 0, "batches")
    end = 0
    for _ in range(ROUNDS):
        position = 0
        for each in run("store", "log", path, "--no-body", "--json").done().objects:
            assert each.get("kind") != "damage", each
            assert each["physical_offset"] == position
            position += each["size"]
        assert position > end
        end = position
    kill(owner)


def test_the_queues_and_keys_of_a_busy_writer_are_complete(run: Run, writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner = writer(path, 0, "batches")
    for _ in range(ROUNDS):
        found = run("store", "info", path, "--json").done().json
        assert found["last_exit"] == "running"
        assert found["in_use_by"] == owner.pid
        assert found["recovery"]["damage"] == found["recovery"]["notes"] == []
        dumped = run("store", "dump", path, "--no-body", "--json").done().objects
        for queue_id, queue in enumerate(found["topics"][0]["queues"]):
            offsets = [each["queue_offset"] for each in dumped if each["queue_id"] == queue_id]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) >= queue["max_offset"]
        numbers = [2 * each["queue_offset"] + each["queue_id"] for each in dumped]
        for number in (0, len(numbers) // 2, len(numbers) - 1):
            asked = ("store", "query", path, "--topic", "orders", "--key", f"order_{number}", "--json")
            (hit,) = run(*asked).done().objects
            assert hit["properties"]["KEYS"] == f"order_{number} all"
    kill(owner)
