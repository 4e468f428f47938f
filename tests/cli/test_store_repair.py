"""`penstock store repair` and `rebuild`: what they say, what they leave, and how they end."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Filled, Run, StartWriter

LOG = Path("commitlog") / ("0" * 20)


def damage(filled: Filled, number: int = 1) -> int:
    """Breaks a record in the middle of the log; returns where it lies."""
    offset = filled.acks[number].physical_offset
    with (filled.path / LOG).open("r+b") as log:
        log.seek(offset + 4)
        log.write(b"\xff\xff\xff\xff")
    return offset


def listing(path: Path) -> dict[str, bytes]:
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_a_sound_store_has_nothing_to_repair(run: Run, filled: Filled) -> None:
    said = run("store", "repair", filled.path).done()
    assert "nothing to repair" in said.out
    assert said.err == ""


def test_what_was_done_is_shown_and_verify_is_content(run: Run, filled: Filled) -> None:
    offset = damage(filled)
    assert run("store", "verify", filled.path).status == 1
    said = run("store", "repair", filled.path).done()
    assert str(offset) in said.out
    assert "BAD_MAGIC" in said.out
    assert "orders queue" in said.out
    assert "penstock/quarantine/" in said.out
    assert "1 of 1 ranges repaired" in said.out
    assert run("store", "verify", filled.path).status == 0
    assert "nothing to repair" in run("store", "repair", filled.path).done().out


def test_as_json_everything_is_one_object(run: Run, filled: Filled) -> None:
    offset = damage(filled)
    found = run("store", "repair", filled.path, "--json").done().json
    assert [each["physical_offset"] for each in found["ranges"]] == [offset]
    assert found["lost_messages"] == 1
    assert found["ranges"][0]["lost"][0]["topic"] == filled.messages[1].topic
    assert found["problems"] == []
    assert found["dry_run"] is False


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(run: Run, filled: Filled) -> None:
    damage(filled)
    before = listing(filled.path)
    said = run("store", "repair", filled.path, "--dry-run").done()
    assert "would be repaired" in said.out
    assert "nothing was changed" in said.out
    assert listing(filled.path) == before
    planned = run("store", "repair", filled.path, "--dry-run", "--json").done().json
    done = run("store", "repair", filled.path, "--json").done().json
    for each in (*planned["ranges"], *done["ranges"]):
        each["saved"] = len(each["saved"])  # the names have the time in them
    assert planned["ranges"] == done["ranges"]
    assert [each["what"] for each in planned["rebuilt"]] == [each["what"] for each in done["rebuilt"]]


def test_what_cannot_be_repaired_is_status_1_and_a_sentence(run: Run, tmp_path: Path) -> None:
    """Two records with the same place in a queue: one of them is one too many, and nobody can say which."""
    with MessageStore.open(tmp_path / "s", Settings.dev()) as store:
        for _ in range(3):
            store.put(Message("orders", b"x", keys=("k",)))
        last = store.put(Message("orders", b"x", keys=("k",)))
    with (tmp_path / "s" / LOG).open("r+b") as log:
        log.seek(last.physical_offset + 20)
        log.write(struct.pack(">q", 2))
    queue = tmp_path / "s" / "consumequeue" / "orders" / "0" / ("0" * 20)
    with queue.open("r+b") as units:
        units.seek(60)
        units.write(bytes(20))
    (tmp_path / "s" / "penstock" / "dispatched.json").unlink()
    said = run("store", "repair", tmp_path / "s")
    assert said.status == 1
    assert said.err.count("not repaired: ") == 1
    assert "have others' queue offsets" in said.err


def test_a_store_in_use_is_refused(run: Run, start_writer: StartWriter, tmp_path: Path) -> None:
    start_writer(tmp_path / "s", 3)
    for verb in ("repair", "rebuild"):
        assert "in use" in run("store", verb, tmp_path / "s").refused()
        assert "in use" in run("store", verb, tmp_path / "s", "--dry-run").refused()


def test_where_there_is_no_store_nothing_is_made(run: Run, tmp_path: Path) -> None:
    for verb in ("repair", "rebuild"):
        assert "no store here" in run("store", verb, tmp_path).refused()
    assert list(tmp_path.iterdir()) == []


def test_the_quarantine_is_not_exceeded_unless_somebody_says_yes(run: Run, filled: Filled) -> None:
    damage(filled)
    before = listing(filled.path)
    limit = ("--set", "quarantineMaxBytes=10")
    assert "quarantineMaxBytes" in run("store", "repair", filled.path, *limit).refused()
    after = listing(filled.path)
    assert {name: data for name, data in after.items() if name in before} == before
    assert "1 of 1 ranges repaired" in run("store", "repair", filled.path, *limit, "--yes").done().out


def test_rebuild_says_what_it_built(run: Run, filled: Filled) -> None:
    dumped = run("store", "dump", filled.path, "--json").done().out
    said = run("store", "rebuild", filled.path).done()
    assert "orders queue 0" in said.out
    assert "index" in said.out
    assert run("store", "rebuild", filled.path, "--json").done().json["records"] == len(filled.messages)
    assert run("store", "dump", filled.path, "--json").done().out == dumped
    assert run("store", "verify", filled.path).status == 0


def test_rebuild_of_one_queue_or_the_index_alone(run: Run, filled: Filled) -> None:
    found = run("store", "rebuild", filled.path, "--topic", "orders", "--queue", 0, "--json").done().json
    assert [each["what"] for each in found["rebuilt"]] == ["orders queue 0"]
    found = run("store", "rebuild", filled.path, "--index", "--dry-run", "--json").done().json
    assert [each["what"] for each in found["rebuilt"]] == ["index"]
    assert json.dumps(found).count("quarantine") == 1


def test_rebuild_of_what_is_not_there_is_status_1(run: Run, filled: Filled) -> None:
    said = run("store", "rebuild", filled.path, "--topic", "nobody")
    assert said.status == 1
    assert "no such queue" in said.err


@pytest.mark.parametrize("other", [("--topic", "orders"), ("--queue", 0)])
def test_the_index_is_of_all_topics(run: Run, filled: Filled, other: tuple[object, ...]) -> None:
    assert "--index goes without" in run("store", "rebuild", filled.path, "--index", *other).refused()
