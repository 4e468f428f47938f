"""Rows into a cluster: each stored, in its queue, under a key that stays the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.arrow import MAP
from support.pipeline import columns_of

from penstock.client.message import ReceivedMessage
from penstock.client.sync import PullConsumer
from penstock.errors import BadMessage, PenstockError, Refused
from penstock.format.constants import UNIQ_KEY
from penstock.format.message_id import make_unique_id
from penstock.pipeline.cluster_sink import ClusterTarget, UniqueKeys
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import WrittenRows
from penstock.store.sink.journal import Identity, WriterKind
from penstock.testing import LocalBroker, broker

QUERY = Identity(WriterKind.QUERY, "7d6f4b0e", 3)


def send(b: LocalBroker, columns: str, partition: int = 0, identity: Identity = QUERY, **values: Any) -> int:
    target = ClusterTarget.of(Options.read({"namesrv": b.namesrv}))
    rows = WrittenRows.of(columns_of(columns), "", "orders")
    return target.send(identity, rows, partition, [pa.RecordBatch.from_pydict(values)])


def received(b: LocalBroker, topic: str = "orders") -> list[ReceivedMessage]:
    b.settle()
    found: list[ReceivedMessage] = []
    with PullConsumer("looking", b.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset, end = 0, consumer.offsets.max_offset(queue)
            while offset < end:
                page = consumer.pull(queue, offset)
                found += page.messages
                offset = page.next_offset
    return found


def test_every_row_is_stored_with_all_that_it_has(b: LocalBroker) -> None:
    columns = "body string, keys array<string>, tags string, properties map<string,string>, queue_id int"
    count = send(
        b,
        columns,
        body=["a", "b"],
        keys=[["k1", "k2"], None],
        tags=["paid", None],
        properties=pa.array([[("x", "1")], None], MAP),
        queue_id=[2, None],
    )
    assert count == 2
    first, second = sorted(received(b), key=lambda message: message.body)
    assert (first.body, first.keys, first.tags, first.queue_id) == (b"a", ("k1", "k2"), "paid", 2)
    assert first.properties["x"] == "1"
    assert (second.body, second.keys, second.tags) == (b"b", (), "")


def test_rows_that_are_sent_again_have_the_same_keys(b: LocalBroker) -> None:
    bodies = [f"{number}" for number in range(1200)]
    assert send(b, "body string", body=bodies) == 1200
    assert send(b, "body string", body=bodies) == 1200
    send(b, "body string", partition=1, body=["other"])
    by_key: dict[str, list[bytes]] = {}
    for message in received(b):
        by_key.setdefault(message.msg_id, []).append(message.body)
    assert len(by_key) == 1201
    assert sorted(map(len, by_key.values())) == [1] + [2] * 1200
    assert all(len(set(found)) == 1 for found in by_key.values())


def test_rows_of_one_queue_keep_their_order_and_large_and_delayed_ones_go_alone(b: LocalBroker) -> None:
    bodies = ["1", "x" * 300_000, "3", "4"]
    levels = pa.array([None, None, None, 3], pa.int32())
    send(b, "body string, queue_id int, delay_level int", body=bodies, queue_id=[1] * 4, delay_level=levels)
    found = received(b)
    assert [message.body.decode() for message in found] == bodies[:3]
    assert {message.queue_id for message in found} == {1}
    with PullConsumer("looking", b.namesrv) as consumer:
        b.settle()
        delayed = [queue for queue in consumer.queues("SCHEDULE_TOPIC_XXXX") if consumer.offsets.max_offset(queue)]
    assert [queue.queue_id for queue in delayed] == [2]


@pytest.mark.parametrize(
    ("columns", "values", "sentence"),
    [
        ("body string, queue_id int", {"body": ["a", "b"], "queue_id": [0, 4]}, "'orders' has no queue 4"),
        ("body string, delay_level int", {"body": ["a"], "delay_level": [-1]}, "there is no delay level -1"),
        ("body string, topic string", {"body": ["a"], "topic": ["a b"]}, "the topic 'a b' holds characters"),
        ("body string", {"body": ["x" * (5 << 20)]}, "a body has 5242880 bytes; the limit is 4194304"),
    ],
)
def test_a_row_that_may_not_be_sent_is_named(
    b: LocalBroker, columns: str, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadMessage, match=r"^row \d of partition 6: ") as error:
        send(b, columns, 6, **values)
    assert sentence in str(error.value)


def test_a_cluster_that_is_not_there_is_an_error_of_one_sentence() -> None:
    target = ClusterTarget.of(Options.read({"namesrv": "127.0.0.1:1"}))
    rows = WrittenRows.of(columns_of("body string"), "orders")
    with pytest.raises(PenstockError, match=r"127\.0\.0\.1:1"):
        target.send(QUERY, rows, 0, [pa.RecordBatch.from_pydict({"body": ["a"]})])


def test_a_key_that_a_row_brings_is_kept(b: LocalBroker) -> None:
    own = make_unique_id()
    properties = pa.array([[(UNIQ_KEY, own)]], MAP)
    send(b, "body string, properties map<string,string>", body=["a"], properties=properties)
    assert [message.msg_id for message in received(b)] == [own]


def test_keys_differ_by_write_batch_partition_and_row() -> None:
    keys = {
        UniqueKeys(Identity(kind, name, batch), partition).of(row)
        for kind in WriterKind
        for name in ("a", "b")
        for batch in (0, 1)
        for partition in (0, 1)
        for row in (0, 1)
    }
    assert len(keys) == 48
    assert all(len(key) == 32 and key == key.upper() and int(key, 16) for key in keys)
    assert {key[20:28] for key in keys} == {"00000000"}


ACCOUNTS = """
accounts:
  - accessKey: spark_1
    secretKey: spark-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB]
"""


def test_an_account_signs_what_is_sent(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    rows = WrittenRows.of(columns_of("body string"), "orders")
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b"]})
    with broker(["orders"], settings={"aclEnable": True, "aclFile": tmp_path / "plain_acl.yml"}) as guarded:

        def send_as(**account: str) -> int:
            target = ClusterTarget.of(Options.read({"namesrv": guarded.namesrv, **account}))
            return target.send(QUERY, rows, 0, [batch])

        with pytest.raises(Refused):
            send_as()
        with pytest.raises(Refused):
            send_as(accessKey="spark_1", secretKey="guessed-it")
        assert send_as(accessKey="spark_1", secretKey="spark-secret") == 2


def test_rows_are_sent_in_the_name_of_the_producer_group(b: LocalBroker) -> None:
    target = ClusterTarget.of(Options.read({"namesrv": b.namesrv, "producerGroup": "nightly"}))
    seen: list[int] = []

    def look() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"body": ["a"]})
        with b.admin() as admin:
            seen.append(len(admin.groups.producers("nightly", "orders").connection_set))

    target.send(QUERY, WrittenRows.of(columns_of("body string"), "orders"), 0, look())
    assert seen == [1]


def test_a_secret_is_not_shown() -> None:
    options = Options.read({"namesrv": "127.0.0.1:1", "accessKey": "me", "secretKey": "hush"})
    assert "hush" not in repr(ClusterTarget.of(options))
