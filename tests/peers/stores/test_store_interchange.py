"""A store moves between Penstock and Apache RocketMQ 4.9.8 and back: same messages, same answers, same bytes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.peers import Peer, message_json

from penstock.cli.output import message_object
from penstock.format.constants import DELAY, KEYS, TAGS, UNIQ_KEY
from penstock.format.hosts import decode_host, encode_host
from penstock.store import Message, MessageStore, Record, Settings

pytestmark = pytest.mark.java

SIZES = {
    "mappedFileSizeCommitLog": 16 * 1024,
    "mappedFileSizeConsumeQueue": 40 * 20,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
    "maxMessageSize": 8 * 1024,
}
SETTINGS = Settings.load(pairs=[f"{name}={value}" for name, value in SIZES.items()])
IPV6 = "[1050::5:600:300c:326b]:10911"


def corpus() -> list[dict[str, Any]]:
    """Messages of every kind: keys, colliding and unicode tags, IPv6, delays, transaction types, empty bodies."""
    chance = random.Random(49)
    made = []
    for number in range(600):
        properties = {}
        if number % 3:
            properties[KEYS] = f"order_{number % 50} batch_{number // 50}" + (" order_0" if number % 4 == 0 else "")
        if number % 2:
            properties[UNIQ_KEY] = f"7F00000100002A139A55{number:012X}"
        if number % 5:
            properties[TAGS] = chance.choice(["Aa", "BB", "TagA", "标签", "😀", "polygenelubricants"])
        if number % 7 == 0:
            properties["colour"] = "blå \u0001 grün"
        fields: dict[str, Any] = {
            "topic": chance.choice(["orders", "payments", "%RETRY%group-a", "T" * 127]),
            "queue_id": chance.randrange(3),
            "body": chance.randbytes(chance.choice([0, 1, 14, 200, 900])),
            "flag": chance.choice([0, 7, -1]),
            "born_timestamp": 1_600_000_000_000 + number,
            "reconsume_times": number % 4,
            "properties": properties,
        }
        if number % 11 == 0:
            fields["born_host"] = IPV6
        if number % 13 == 0:
            fields["store_host"] = IPV6
        if number % 17 == 0:
            fields["sys_flag"] = chance.choice([0x4, 0x8, 0xC])
            fields["prepared_transaction_offset"] = number
        elif number % 19 == 0:
            properties[DELAY] = chance.choice(["17", "18", "40"])
        made.append(fields)
    return made


def batches() -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "topic": "batched",
                "body": f"{number}.{place}".encode() * 30,
                "born_timestamp": 1_600_000_000_000,
                "properties": {KEYS: f"b{number}_{place}", TAGS: "batch"},
            }
            for place in range(8)
        ]
        for number in range(20)
    ]


def queues_of(store: MessageStore) -> list[tuple[str, int, int, int]]:
    return sorted((queue.topic, queue.queue_id, queue.min_offset, queue.max_offset) for queue in store.queues)


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[dict[str, Any]]:
    messages: list[Record] = []
    offset = 0
    while (page := store.get(topic, queue_id, offset)).records:
        messages += page.messages
        offset = page.next_begin_offset
    return [comparable(message) for message in messages]


def comparable(message: Record) -> dict[str, Any]:
    fields = message_object(message, 0)
    del fields["tags_code"], fields["body_text"]
    return fields


def read_all_from_java(java: Peer, topic: str, queue_id: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    offset = 0
    while (page := java.ask("get", topic=topic, queue=queue_id, offset=offset, max=32))["messages"]:
        messages += map(from_java, page["messages"])
        offset = page["next_begin_offset"]
    return messages


def from_java(message: dict[str, Any]) -> dict[str, Any]:
    """Java writes IPv6 addresses out in full."""
    return {**message, "born_host": short_host(message["born_host"]), "store_host": short_host(message["store_host"])}


def short_host(host: str) -> str:
    return decode_host(encode_host(host))


def fill_with_penstock(path: Path) -> None:
    with MessageStore.open(path, SETTINGS) as store:
        for fields in corpus():
            assert store.put(Message(**fields)).ok
        for batch in batches():
            assert store.put_many([Message(**fields) for fields in batch]).ok


def fill_with_java(java: Peer, path: Path) -> None:
    java.open(path, SIZES)
    for fields in corpus():
        assert java.ask("put", message=message_json(**fields))["status"] == "PUT_OK"
    for batch in batches():
        assert java.ask("batch", messages=[message_json(**fields) for fields in batch])["status"] == "PUT_OK"
    java.ask("close")


def assert_same_answers(store: MessageStore, java: Peer) -> None:
    """Every queue's messages, statuses and next offsets, every key's hits, every id, whoever is asked."""
    # A look-up makes a queue in Java: those that it made for its delay levels are empty.
    asked = [each for each in java.ask("queues") if each["max"]]
    found = sorted((each["topic"], each["queue_id"], each["min"], each["max"]) for each in asked)
    assert found == queues_of(store)
    keys = set()
    for topic, queue_id, _, highest in found:
        ours = read_all(store, topic, queue_id)
        for our, their in zip(ours, read_all_from_java(java, topic, queue_id), strict=True):
            assert our == their
        assert len(ours) == highest
        for offset in (-1, 0, highest // 2, highest, highest + 1):
            for tags in (None, "TagA", "Aa", "nothing", "标签 || 😀"):
                assert_same_page(store, java, topic, queue_id, offset, tags)
        for message in ours:
            assert java.ask("look", offset=message["physical_offset"])["msg_id"] == message["msg_id"]
            assert store.look_up_id(message["msg_id"]) is not None
            keys.update((topic, key) for key in message["properties"].get(KEYS, "").split())
    for topic, key in sorted(keys):
        ours = [comparable(hit) for hit in store.query(topic, key, max_messages=64)]
        # Java does not look at the key itself, and returns a record once for each time that it names the key.
        theirs = java.ask("query", topic=topic, key=key, begin=0, end=2**62, max=64)
        assert len(theirs) < 64
        real = {hit["physical_offset"]: hit for hit in theirs if key in hit["properties"].get(KEYS, "").split()}
        assert ours == [from_java(hit) for hit in real.values()]
        assert ours


def assert_same_page(store: MessageStore, java: Peer, topic: str, queue_id: int, offset: int, tags: str | None) -> None:
    ours = store.get(topic, queue_id, offset, 32, tags)
    theirs = java.ask("get", topic=topic, queue=queue_id, offset=offset, max=32, tags=tags)
    wanted = None if tags is None else {tag.strip() for tag in tags.split("||")}
    real = [from_java(hit) for hit in theirs["messages"] if wanted is None or hit["properties"].get(TAGS) in wanted]
    if len(real) == len(theirs["messages"]):  # Java does not look at the tag's text: collisions come through
        assert ours.status.value == theirs["status"]
        assert ours.next_begin_offset == theirs["next_begin_offset"]
    assert [comparable(message) for message in ours.messages][: len(real)] == real


def test_java_serves_what_penstock_wrote(tmp_path: Path, java: Peer) -> None:
    fill_with_penstock(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    java.open(tmp_path / "store", SIZES)
    with MessageStore.open(tmp_path / "copy", SETTINGS) as store:
        assert_same_answers(store, java)


def test_penstock_serves_what_java_wrote(tmp_path: Path, java: Peer) -> None:
    fill_with_java(java, tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    java.open(tmp_path / "store", SIZES)
    with MessageStore.open(tmp_path / "copy", SETTINGS) as store:
        assert store.report.clean_exit
        assert not store.report.notes
        assert_same_answers(store, java)


def test_both_go_on_where_the_other_stopped(tmp_path: Path, java: Peer) -> None:
    path = tmp_path / "store"
    fields = {"topic": "shared", "properties": {KEYS: "k"}, "body": b"x" * 500}
    for turn in range(4):
        with MessageStore.open(path, SETTINGS) as store:
            results = [store.put(Message(**fields)) for _ in range(30)]
        assert [result.queue_offset for result in results] == list(range(60 * turn, 60 * turn + 30))
        java.open(path, SIZES)
        answers = [java.ask("put", message=message_json(**fields)) for _ in range(30)]
        java.ask("close")
        assert [answer["queue_offset"] for answer in answers] == list(range(60 * turn + 30, 60 * turn + 60))
    with MessageStore.open(path, SETTINGS) as store:
        assert [message["queue_offset"] for message in read_all(store, "shared", 0)] == list(range(240))
        assert len(store.query("shared", "k", max_messages=64)) == 64


@pytest.mark.parametrize("writer", ["penstock", "java"])
def test_both_rebuild_the_same_queues_and_index_from_one_log(tmp_path: Path, java: Peer, writer: str) -> None:
    if writer == "penstock":
        fill_with_penstock(tmp_path / "store")
    else:
        fill_with_java(java, tmp_path / "store")
    for copy in ("ours", "theirs"):
        shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / copy / "commitlog")
    MessageStore.open(tmp_path / "ours", SETTINGS).close()
    java.open(tmp_path / "theirs", SIZES)
    java.ask("close")
    ours, theirs = derived(tmp_path / "ours"), derived(tmp_path / "theirs")
    assert ours["queues"].keys() == theirs["queues"].keys()
    assert ours["queues"] == theirs["queues"]
    assert len(ours["index"]) == len(theirs["index"]) > 3
    assert ours["index"] == theirs["index"]


def derived(store: Path) -> dict[str, Any]:
    queues = {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted((store / "consumequeue").rglob("*"))
        if path.is_file()
    }
    return {"queues": queues, "index": [path.read_bytes() for path in sorted((store / "index").iterdir())]}
