"""Names from the network or a file become paths in one function, which refuses what is not a plain name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.stores import StoreHome, is_one_sentence

import penstock
from penstock.errors import BadStore, StoreFailed
from penstock.store import Message
from penstock.store.deleted_topics_file import DeletedTopics
from penstock.store.files.file_io import Files
from penstock.store.files.layout import path_below

HOSTILE = ["../../x", "..", ".", "", "/etc", "a/b", "a\0b", "x" * 300]
_JOINS_A_NAME = re.compile(
    r"/ (str\(|[a-z_.]*topic\b|[a-z_.]*group\b|[a-z_.]*queue_id\b|identity\b|part\.)|\.joinpath\("
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_is_not_plain_is_refused(name: str) -> None:
    for names in ((name,), ("T", name), (name, 0)):
        with pytest.raises(BadStore, match="cannot be the name of a file"):
            path_below(Path("/store"), *names)


def test_plain_names_become_a_path() -> None:
    assert path_below(Path("/store"), "%RETRY%g", 7, "x.json") == Path("/store/%RETRY%g/7/x.json")


def test_nothing_else_joins_a_name_to_a_path() -> None:
    root = Path(penstock.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for package in ("store", "broker", "namesrv")
        for path in sorted((root / package).rglob("*.py"))
        for line in path.read_text().splitlines()
        if _JOINS_A_NAME.search(line) and path != root / "store" / "files" / "layout.py"
    ]
    assert not found, "use penstock.store.files.layout.path_below"


@pytest.mark.parametrize("name", ["../../victim", "..", "/victim", ""])
def test_a_slave_refuses_to_delete_a_path(home: StoreHome, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim" / "0"
    victim.mkdir(parents=True)
    (victim / "00000000000000000000").write_bytes(bytes(7) + b"\1" + bytes(3) + b"\1" + bytes(8))
    store = home.open()
    store.put(Message("T", b"x"))
    with pytest.raises(StoreFailed) as refused:
        store.retention.topics.delete_before({"T": 1, name: store.log.max_offset})
    assert is_one_sentence(str(refused.value))
    assert home.bodies(store, "T") == [b"x"], "nothing was deleted"
    assert len(list(victim.iterdir())) == 1


def test_names_that_are_no_topics_are_ignored_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = Files(), tmp_path / "deleted_topics.json"
    with monkeypatch.context() as patch:
        patch.setattr("penstock.store.deleted_topics_file.is_readable_topic", lambda name: True)
        DeletedTopics(files, path).add_ends({"../../victim": 9, "T": 3})
    again = DeletedTopics(files, path)
    assert again.load(None) == {"T": 3}
