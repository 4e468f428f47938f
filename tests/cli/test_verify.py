"""`penstock store verify`: what it says, how it ends, and that it changes nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.test_read_only import fingerprint, watched
from support import ROOT
from support.damage import SoundStore
from support.faults import ALL

from penstock.cli.audit_and_rebuild_reports import MAX_SHOWN_PER_KIND
from penstock.store import Message, MessageStore, Settings
from penstock.store.audit.finding_kinds import KINDS

if TYPE_CHECKING:
    from cli.conftest import Filled, Run, StartWriter

PAGE = (ROOT / "docs" / "reference" / "verify.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SoundStore.make(tmp_path_factory.mktemp("model") / "store").folder


@pytest.fixture
def store(model: Path, tmp_path: Path) -> SoundStore:
    return SoundStore(Path(shutil.copytree(model, tmp_path / "store")))


def test_a_sound_store_ends_with_0_and_one_line(run: Run, store: SoundStore) -> None:
    ran = run("store", "verify", store.folder).done()
    records = len(store.records())
    assert ran.err == ""
    assert ran.out.startswith(f"{store.folder}: 0 errors, 0 notes in {records} records of ")
    assert ran.out.count("\n") == 1


def test_it_says_how_many_records_have_their_own_crc(run: Run, tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev(enabled_append_prop_crc=True)) as opened:
        assert opened.put(Message("T", b"body")).ok
    assert " 1 record of 116 B (1 with their own CRC), " in run("store", "verify", tmp_path / "store").done().out


def test_errors_end_with_1_and_name_file_position_messages_and_remedy(run: Run, store: SoundStore) -> None:
    spot = store.middle()
    ALL["a_body_with_another_crc"](store)
    ran = run("store", "verify", store.folder)
    assert (ran.status, ran.err) == (1, "")
    kind, finding, remedy, empty, summary = ran.out.splitlines()
    assert kind == "error record-crc"
    assert finding.startswith(f"  commitlog/{store.log_path(spot.offset).name} at {spot.offset % 16384}: the body ")
    assert finding.endswith(f"{spot.size} bytes at {spot.offset} are lost (1 message)")
    assert remedy.startswith("  -> `penstock store repair` ")
    assert empty == ""
    assert " 1 error, 0 notes " in summary


def test_notes_alone_end_with_0(run: Run, store: SoundStore) -> None:
    ALL["a_deleted_first_log_file"](store)
    ran = run("store", "verify", store.folder).done()
    assert "note units-below-minimum" in ran.out
    assert " 0 errors, " in ran.out


def test_what_cannot_be_checked_ends_with_2(run: Run, tmp_path: Path) -> None:
    assert "there is no store here" in run("store", "verify", tmp_path / "nowhere").refused()
    assert "there is no store here" in run("store", "verify", tmp_path).refused()


def test_json_has_every_finding_and_the_figures(run: Run, store: SoundStore) -> None:
    spot = store.middle()
    ALL["a_body_with_another_crc"](store)
    ran = run("store", "verify", store.folder, "--json")
    assert ran.status == 1
    found = ran.json
    assert (found["path"], found["errors"], found["notes"]) == (str(store.folder), 1, 0)
    assert found["figures"]["records"] == len(store.records()) + _records_behind(store, spot.offset)
    assert found["damage"] == [{"physical_offset": spot.offset, "size": spot.size, "reason": "BAD_CRC"}]
    (finding,) = found["findings"]
    assert list(finding) == ["severity", "kind", "path", "offset", "what", "messages", "remedy"]
    assert (finding["path"], finding["offset"]) == (str(store.log_path(spot.offset)), spot.offset % 16384)
    assert (finding["kind"], finding["messages"]) == ("record-crc", 1)


def _records_behind(store: SoundStore, offset: int) -> int:
    """What a walk that stops at damage does not see: the rest of the file."""
    healthy = SoundStore.make(store.folder.with_name("healthy"))
    return sum(1 for spot in healthy.records() if offset < spot.offset < (offset // 16384 + 1) * 16384)


def test_text_shows_a_few_of_a_kind_and_counts_the_rest(run: Run, store: SoundStore) -> None:
    for number in range(1, 17, 2):
        offset = int.from_bytes(store.unit(number)[:8], "big") + 1
        store.write_unit(number, offset.to_bytes(8, "big") + store.unit(number)[8:])
    ran = run("store", "verify", store.folder)
    assert ran.out.count("points to") == MAX_SHOWN_PER_KIND == 5
    assert "  and 3 more of this kind (3 messages); --json lists them\n" in ran.out
    assert run("store", "verify", store.folder, "--json").json["errors"] == 8


def test_without_crc_a_damaged_body_is_not_noticed_and_the_summary_says_so(run: Run, store: SoundStore) -> None:
    ALL["a_body_with_another_crc"](store)
    ran = run("store", "verify", store.folder, "--no-crc").done()
    assert ran.out.endswith(", without CRC.\n")


def test_a_crashed_store_says_so_and_what_a_start_will_do(run: Run, store: SoundStore) -> None:
    ALL["a_torn_record_after_a_crash"](store)
    ran = run("store", "verify", store.folder)
    assert ran.status == 1
    assert ran.err == f"penstock: {store.folder} was not closed cleanly: showing the contents of the files.\n"
    assert "a start truncates it and saves the bytes" in ran.out


def test_a_store_in_use_is_checked_and_stays_as_it_is(run: Run, start_writer: StartWriter, tmp_path: Path) -> None:
    path = tmp_path / "store"
    owner = start_writer(path, 40)
    before = fingerprint(path)
    ran = run("store", "verify", path)
    assert ran.status == 0, ran
    assert (
        ran.err == f"penstock: {path} is in use by process {owner.pid}: showing the contents of the files, as of now.\n"
    )
    assert " in 40 records of " in ran.out
    assert fingerprint(path) == before


@pytest.mark.parametrize("name", ["a_body_with_another_crc", "a_torn_record_after_a_crash", "an_empty_last_log_file"])
def test_nothing_is_changed_or_even_opened_for_writing(run: Run, store: SoundStore, name: str) -> None:
    ALL[name](store)
    before = fingerprint(store.folder)
    watched.clear()
    run("store", "verify", store.folder)
    assert watched == []
    assert fingerprint(store.folder) == before


def test_names_from_the_store_cannot_steer_the_terminal(run: Run, filled: Filled) -> None:
    (filled.path / "commitlog" / "\x1b[2J").write_text("")
    ran = run("store", "verify", filled.path)
    assert ran.status == 1
    assert "\x1b" not in ran.out
    assert "commitlog/\\x1b[2J: this is not a data file" in ran.out


def test_the_reference_page_is_the_table_of_kinds() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (error|note) \| (.*) \|$", PAGE, re.M)
    assert rows == [(kind.name, kind.severity, kind.meaning) for kind in KINDS.values()]
