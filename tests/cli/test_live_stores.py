"""A store that another process is writing to is shown as one moment of it, whole and without false damage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cli.conftest import Run, StartWriter

ROUNDS = 6
BATCHES = 300


def test_the_log_of_a_busy_writer_has_no_damage_and_no_gap(run: Run, start_writer: StartWriter, tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner = start_writer(path, 100)
    for _ in range(ROUNDS):
        owner.put_more(BATCHES)
        position = 0
        for each in run("store", "log", path, "--no-body", "--json").done().objects:
            assert each.get("kind") != "damage", each
            assert each["physical_offset"] == position
            position += each["size"]
        assert position > 100 * 100


def test_the_queues_and_keys_of_a_busy_writer_are_complete(run: Run, start_writer: StartWriter, tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner = start_writer(path, 100)
    for _ in range(ROUNDS):
        owner.put_more(BATCHES)
        found = run("store", "info", path, "--json").done().json
        assert (found["last_exit"], found["in_use_by"]) == ("running", owner.pid)
        assert found["recovery"]["damage"] == found["recovery"]["notes"] == []
        dumped = run("store", "dump", path, "--no-body", "--json").done().objects
        for queue in found["topics"][0]["queues"]:
            offsets = [each["queue_offset"] for each in dumped if each["queue_id"] == queue["queue_id"]]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) >= queue["max_offset"] >= 50
        for number in (0, len(dumped) // 2, len(dumped) - 1):
            asked = ("store", "query", path, "--topic", "orders", "--key", f"order_{number}", "--json")
            (hit,) = run(*asked).done().objects
            assert (hit["queue_id"], hit["queue_offset"]) == (number % 2, number // 2)
