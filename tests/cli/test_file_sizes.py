"""File sizes are taken from the files; where those cannot tell, one sentence says what to set."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.conftest import all_verbs

from penstock.store import Message, MessageStore, Settings

if TYPE_CHECKING:
    from cli.conftest import Filled, Run

ODD = {
    "mapped_file_size_commit_log": 4000,
    "mapped_file_size_consume_queue": 20 * 7,
    "max_hash_slot_num": 11,
    "max_index_num": 200,
}
ODD_INDEX = ("--set", "maxHashSlotNum=11", "--set", "maxIndexNum=200")
COUNT = 60


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A store with sizes that nobody else has, in several files of each kind."""
    path = tmp_path / "odd"
    with MessageStore.open(path, Settings.dev(**ODD)) as store:
        for number in range(COUNT):
            assert store.put(Message("orders", b"%d" % number, keys=("all",))).ok
    assert len(list((path / "commitlog").iterdir())) > 1
    (path / "penstock" / "dispatched.json").unlink()  # RocketMQ writes no such note
    return path


def test_sizes_come_from_the_files(run: Run, odd: Path) -> None:
    found = run("store", "info", odd, "--json", *ODD_INDEX).done().json
    assert found["commit_log"]["file_size"] == 4000
    assert (found["index"]["slots"], found["index"]["items"]) == (11, 200)
    assert run("store", "dump", odd, "--json").done().out.count("\n") == COUNT
    conf = run("store", "conf", odd, "--json", *ODD_INDEX).done().json
    assert conf["mappedFileSizeCommitLog"] == "4000"
    assert conf["mappedFileSizeConsumeQueue"] == "140"
    assert (conf["maxHashSlotNum"], conf["maxIndexNum"]) == ("11", "200")


def test_an_index_of_unknown_geometry_hinders_only_those_who_need_it(run: Run, odd: Path) -> None:
    for verb, call in all_verbs(odd).items():
        ran = run(*call)
        if verb in ("query", "conf"):
            assert "--set maxHashSlotNum=" in ran.refused()
        elif verb == "log":
            assert ran.done().err == ""
        else:
            assert ran.done().err.count("\n") == 1
            assert "the index cannot be read: " in ran.err
            assert "--set maxHashSlotNum=" in ran.err
    found = run("store", "info", odd, "--json").done().json["index"]
    assert found["readable"] is False
    assert "--set maxHashSlotNum=" in found["reason"]


def test_the_right_geometry_makes_the_index_readable(run: Run, odd: Path) -> None:
    asked = ("store", "query", odd, "--topic", "orders", "--key", "all", "--max", 100, "--json")
    assert len(run(*asked, *ODD_INDEX).done().objects) == COUNT
    assert "the index cannot be read" in run(*asked, "--set", "maxHashSlotNum=11").refused()


def test_a_conf_opens_the_store_it_was_made_for(run: Run, odd: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(run("store", "conf", odd, *ODD_INDEX).done().out)
    asked = ("store", "query", odd, "--topic", "orders", "--key", "all", "--max", 100)
    assert run(*asked, "--config", conf).done().out.count("\n") == COUNT
    settings = Settings.load(conf)
    with MessageStore.open(settings.store_path_root_dir, settings) as store:
        assert store.max_offset("orders", 0) == COUNT


def test_the_note_of_the_last_close_tells_the_geometry(run: Run, odd: Path) -> None:
    MessageStore.open(odd, Settings.dev(**ODD)).close()
    found = run("store", "info", odd, "--json").done().json["index"]
    assert (found["readable"], found["slots"], found["items"]) == (True, 11, 200)
    asked = ("store", "query", odd, "--topic", "orders", "--key", "all", "--max", 100, "--json")
    assert len(run(*asked).done().objects) == COUNT


def test_what_is_set_wins_over_the_files(run: Run, filled: Filled) -> None:
    said = run("store", "dump", filled.path, "--set", "mappedFileSizeCommitLog=4096").refused()
    assert "expected 4096 bytes, found 1048576 bytes" in said


def test_set_wins_over_config(run: Run, filled: Filled, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeCommitLog=4096\n")
    run("store", "dump", filled.path, "--config", conf).refused()
    run("store", "dump", filled.path, "--config", conf, "--set", "mappedFileSizeCommitLog=1048576").done()


def test_a_log_elsewhere_is_found_by_its_setting(run: Run, filled: Filled, tmp_path: Path) -> None:
    before = run("store", "dump", filled.path, "--json").done().out
    (filled.path / "commitlog").rename(tmp_path / "log")
    asked = ("store", "dump", filled.path, "--json", "--set", f"storePathCommitLog={tmp_path / 'log'}")
    assert run(*asked).done().out == before
    assert "there is no commit log" in run("store", "dump", filled.path).done().err


def test_a_log_file_that_disagrees_with_the_others_is_named(run: Run, odd: Path) -> None:
    victim = sorted(path for path in (odd / "commitlog").rglob("0*") if path.is_file())[1]
    with victim.open("r+b") as data:
        data.truncate(100)
    said = run("store", "info", odd, *ODD_INDEX).refused()
    assert str(victim) in said
    assert "found 100 bytes" in said
    assert "penstock store repair" in said


def test_a_queue_file_that_disagrees_with_the_others_is_made_up_for(run: Run, odd: Path) -> None:
    before = run("store", "dump", odd, "--json").done().out
    victim = sorted(path for path in (odd / "consumequeue").rglob("0*") if path.is_file())[1]
    with victim.open("r+b") as data:
        data.truncate(100)
    ran = run("store", "dump", odd, "--json", *ODD_INDEX).done()
    assert ran.out == before
    assert "a start would report: queue orders/0" in ran.err


def test_a_file_cut_short_that_has_no_other_to_disagree_with_is_noticed(run: Run, filled: Filled) -> None:
    victim = filled.path / "commitlog" / ("0" * 20)
    cut = filled.acks[-1].physical_offset + 40
    with victim.open("r+b") as data:
        data.truncate(cut)
    for verb in ("info", "log", "dump", "conf"):
        said = run("store", verb, filled.path).refused()
        assert f"{victim}: the file was cut short" in said
        assert f"(at offset {filled.acks[-1].physical_offset})" in said
    readable = run("store", "log", filled.path, "--json", "--set", f"mappedFileSizeCommitLog={cut}").done().objects
    assert [each.get("kind") for each in readable] == [None] * 7 + ["damage"]


def test_an_unfinished_last_file_is_passed_over_as_a_start_would(run: Run, odd: Path) -> None:
    before = run("store", "dump", odd, "--json", *ODD_INDEX).done().out
    files = sorted((odd / "commitlog").iterdir())
    (odd / "commitlog" / f"{4000 * len(files):020d}").write_bytes(bytes(1000))
    (odd / "consumequeue" / "orders" / "0" / f"{140 * 99:020d}").write_bytes(b"")
    assert run("store", "dump", odd, "--json", *ODD_INDEX).done().out == before
    assert run("store", "log", odd).done().out.count("orders/0") == COUNT


def test_an_index_file_of_a_wrong_size_is_made_up_for_where_a_note_tells_the_right_one(
    run: Run, filled: Filled
) -> None:
    asked = ("store", "query", filled.path, "--topic", "orders", "--key", "all", "--json")
    before = run(*asked).done().out
    (victim,) = (filled.path / "index").iterdir()
    with victim.open("r+b") as data:
        data.truncate(1000)
    ran = run(*asked).done()
    assert ran.out == before
    assert f"a start would report: {victim}: the index is not valid" in ran.err


def test_an_index_file_of_a_wrong_size_is_named(run: Run, filled: Filled) -> None:
    (filled.path / "penstock" / "dispatched.json").unlink()
    (victim,) = (filled.path / "index").iterdir()
    with victim.open("r+b") as data:
        data.truncate(1000)
    ran = run("store", "dump", filled.path, "--json").done()
    assert len(ran.objects) == 6
    assert f"{victim} has 1000 bytes" in ran.err
    assert str(victim) in run("store", "query", filled.path, "--topic", "orders", "--key", "all").refused()


def test_without_an_index_there_is_nothing_to_query(run: Run, filled: Filled) -> None:
    asked = ("store", "query", filled.path, "--topic", "orders", "--key", "all", "--set", "messageIndexEnable=false")
    assert "messageIndexEnable is false" in run(*asked).refused()
    assert run("store", "dump", filled.path, "--set", "messageIndexEnable=false").done().err == ""


def test_an_index_that_is_gone_is_made_up_for(run: Run, filled: Filled) -> None:
    asked = ("store", "query", filled.path, "--topic", "orders", "--key", "all", "--json")
    before = run(*asked).done().out
    shutil.rmtree(filled.path / "index")
    assert run(*asked).done().out == before
