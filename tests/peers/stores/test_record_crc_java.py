"""Records that end with their own CRC, between Penstock and Apache RocketMQ 5.5: same bytes, and each checks the other.

RocketMQ runs with forceVerifyPropCRC, so it accepts no record without the CRC, and none whose CRC does not fit.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.peers import JAVA, Peer, PeerError, build, message_json

from penstock.format.constants import CRC32, KEYS, TAGS, UNIQ_KEY
from penstock.format.kernels.plain.record import without_record_crc
from penstock.format.record import decode_record
from penstock.format.scan import valid_rows
from penstock.store import Message, MessageStore, Record, Settings
from penstock.store.audit import audit

pytestmark = pytest.mark.java

SIZES = {
    "mappedFileSizeCommitLog": 32 * 1024,
    "mappedFileSizeConsumeQueue": 40 * 20,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
    "maxMessageSize": 8 * 1024,
    "enabledAppendPropCRC": "true",
}
STRICT = {**SIZES, "forceVerifyPropCRC": "true"}
SETTINGS = Settings.load(pairs=[f"{name}={value}" for name, value in SIZES.items()])
HOST = "127.0.0.1:10911"
IPV6 = "[1050::5:600:300c:326b]:10911"
BATCH = [
    {"topic": "T", "body": b"%d" % number, "born_timestamp": 1_600_000_000_000, "properties": {KEYS: f"k{number}"}}
    for number in range(8)
]


@pytest.fixture(scope="session")
def java5_class_path() -> list[Path]:
    try:
        return build(JAVA / "store5")
    except PeerError as reason:
        pytest.skip(f"the store of RocketMQ 5 cannot be had here: {reason}")


@pytest.fixture
def java5(java5_class_path: list[Path]) -> Iterator[Peer]:
    """The store of RocketMQ 5.5, in a process of its own."""
    with Peer(java5_class_path) as peer:
        yield peer


def corpus() -> list[dict[str, Any]]:
    """Messages with and without properties, body and IPv6 hosts; several log files of them."""
    chance = random.Random(55)
    made = []
    for number in range(400):
        properties = {KEYS: f"k{number}", UNIQ_KEY: f"7F00000100002A139A55{number:012X}", TAGS: "标签"}
        kept = [name for name in properties if chance.random() < 0.6]
        made.append(
            {
                "topic": "T",
                "body": chance.randbytes(chance.choice([0, 1, 15, 16, 17, 200, 900])),
                "flag": chance.choice([0, 7, -1]),
                "born_timestamp": 1_600_000_000_000 + number,
                "born_host": IPV6 if number % 11 == 0 else HOST,
                "store_host": IPV6 if number % 13 == 0 else HOST,
                "reconsume_times": number % 4,
                "properties": {name: properties[name] for name in kept},
            }
        )
    return made


def fill_with_penstock(path: Path) -> None:
    with MessageStore.open(path, SETTINGS) as store:
        for fields in corpus():
            assert store.put(Message(**fields)).ok
        assert store.put_many([Message(**fields) for fields in BATCH]).ok


def fill_with_java(java5: Peer, path: Path) -> None:
    java5.open(path, STRICT)
    for fields in corpus():
        assert java5.ask("put", message=message_json(**fields))["status"] == "PUT_OK"
    assert java5.ask("batch", messages=[message_json(**fields) for fields in BATCH])["status"] == "PUT_OK"
    java5.ask("close")


def read_all(store: MessageStore) -> list[Record]:
    messages: list[Record] = []
    while (page := store.get("T", 0, len(messages))).records:
        messages += page.messages
    return messages


def read_all_from_java(java5: Peer) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    while (page := java5.ask("get", topic="T", queue=0, offset=len(messages), max=32))["messages"]:
        messages += page["messages"]
    return messages


def log_files(store: Path) -> list[Path]:
    return sorted((store / "commitlog").iterdir())


@pytest.mark.parametrize("is_clean", [True, False], ids=["closed", "crashed"])
def test_java_accepts_what_penstock_wrote(tmp_path: Path, java5: Peer, is_clean: bool) -> None:
    fill_with_penstock(tmp_path / "store")
    if not is_clean:
        (tmp_path / "store" / "abort").touch()
        (tmp_path / "store" / "checkpoint").unlink()
    java5.open(tmp_path / "store", STRICT)
    found = read_all_from_java(java5)
    wanted = [*corpus(), *BATCH]
    assert [each["properties"].keys() - {CRC32} for each in found] == [each["properties"].keys() for each in wanted]
    assert len(found) == len(wanted)


def test_penstock_accepts_what_java_wrote(tmp_path: Path, java5: Peer) -> None:
    path = tmp_path / "store"
    fill_with_java(java5, path)
    with MessageStore.open(path, SETTINGS) as store:
        assert not store.report.notes
        wanted = [*corpus(), *BATCH]
        assert [(each.body, each.properties) for each in read_all(store)] == [
            (each["body"], each["properties"]) for each in wanted
        ]
    errors = [finding.kind for finding in audit(path, SETTINGS).findings if finding.severity == "error"]
    assert not [kind for kind in errors if not kind.startswith("index")]  # 5.5 also indexes tags


def test_both_write_the_same_bytes(tmp_path: Path, java5: Peer) -> None:
    fill_with_java(java5, tmp_path / "theirs")
    now = 0
    with MessageStore.open(tmp_path / "ours", SETTINGS, clock=lambda: now) as store:
        for file in log_files(tmp_path / "theirs"):
            data = file.read_bytes()
            for rows in valid_rows(data, int(file.name), 0, len(data)):
                for row in rows:
                    at = int(row["physical_offset"]) - int(file.name)
                    record = data[at : at + int(row["size"])]
                    now = int(row["store_timestamp"])
                    properties = without_record_crc(record[int(row["properties_at"]) :])
                    assert len(properties) == int(row["properties_length"]) - 20
                    assert store.put(as_sent(record, properties)).ok
    theirs = [file.read_bytes() for file in log_files(tmp_path / "theirs")]
    ours = [file.read_bytes() for file in log_files(tmp_path / "ours")]
    assert len(theirs) > 2
    for our, their in zip(ours, theirs, strict=False):  # the last one may be a file that was made ahead
        assert our == their


def as_sent(record: bytes, properties: bytes) -> Message:
    found = decode_record(record)
    return Message(
        found.topic,
        found.body,
        queue_id=found.queue_id,
        flag=found.flag,
        sys_flag=found.sys_flag,
        born_timestamp=found.born_timestamp,
        born_host=found.born_host,
        store_host=found.store_host,
        reconsume_times=found.reconsume_times,
        property_text=properties.decode(),
    )


@pytest.mark.parametrize("part", ["topic", "properties", "flag"])
@pytest.mark.parametrize("writer", ["penstock", "java"])
def test_both_refuse_a_last_record_that_rotted(tmp_path: Path, java5: Peer, writer: str, part: str) -> None:
    """Its body is intact, so without the record's CRC neither would notice."""
    path = tmp_path / "store"
    if writer == "penstock":
        fill_with_penstock(path)
    else:
        fill_with_java(java5, path)
    files = [file for file in log_files(path) if file.read_bytes().strip(b"\0")]
    data = bytearray(files[-1].read_bytes())
    row = list(valid_rows(bytes(data), int(files[-1].name), 0, len(data)))[-1][-1]
    at = int(row["physical_offset"]) - int(files[-1].name)
    data[at + {"topic": int(row["topic_at"]), "properties": int(row["properties_at"]), "flag": 16}[part]] ^= 1
    files[-1].write_bytes(data)
    (path / "abort").touch()
    (path / "checkpoint").unlink(missing_ok=True)
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    shutil.rmtree(path / "penstock", ignore_errors=True)
    shutil.copytree(path, tmp_path / "copy")
    count = len(corpus()) + len(BATCH) - 1
    java5.open(tmp_path / "copy", STRICT)
    assert len(read_all_from_java(java5)) == count
    with MessageStore.open(path, SETTINGS) as store:
        assert len(read_all(store)) == count
