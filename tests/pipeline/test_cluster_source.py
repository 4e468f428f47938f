"""A cluster as the driver sees it: topics, queues, offsets, times, groups and sizes, from a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loopback import free_port, make_authority, make_certificate
from support.pipeline import access_to, cluster_source, column_of, columns_of, read_pages, read_tasks, send, whole

from penstock.client.client_instance import ClientInstance
from penstock.client.config import ClientConfig, Credentials
from penstock.client.message import Message
from penstock.client.sync import Admin, Producer
from penstock.errors import BadSettings, NoRoute, Refused, Unreachable
from penstock.pipeline.cluster_read_tasks import ClusterLink
from penstock.pipeline.cluster_sink import ClusterTarget
from penstock.pipeline.cluster_source import ClusterSource, QueueProbe, _StoredMessage
from penstock.pipeline.offset_ranges import Queue
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import plan_batch
from penstock.pipeline.sink_rows import WrittenRows
from penstock.protocol.codes import RequestCode
from penstock.store.sink.journal import Identity, WriterKind
from penstock.testing import LocalBroker, broker

ACCOUNTS = """
accounts:
  - accessKey: reader_1
    secretKey: reader-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms: [orders=PUB|SUB]
    groupPerms: [lake=SUB]
"""


def orders(count: int, **fields: str) -> list[Message]:
    return [Message("orders", b"%d" % number, **fields) for number in range(count)]


def test_topics_are_those_that_people_made(b: LocalBroker) -> None:
    with b.admin() as admin:
        admin.topics.create("%RETRY%CID", queues=1)
    source = cluster_source(b)
    try:
        assert source.topics() == ["%RETRY%CID", "orders"]
        assert [queue.queue_id for queue in source.queues(["orders"])] == [0, 1, 2, 3]
        assert source.queues(["missing"]) == []
        assert source.queues(["SCHEDULE_TOPIC_XXXX"])  # a system topic can be read by name
        assert source.name == b.namesrv
    finally:
        source.close()


def test_bounds_are_those_of_the_last_refresh(b: LocalBroker) -> None:
    source = cluster_source(b)
    try:
        assert [source.bounds(queue) for queue in source.queues(["orders"])] == [(0, 0)] * 4
        send(b, orders(100))
        assert sum(source.bounds(queue)[1] for queue in source.queues(["orders"])) == 0
        source.refresh()
        assert sum(source.bounds(queue)[1] for queue in source.queues(["orders"])) == 100
    finally:
        source.close()


def test_a_topic_and_queues_that_come_later_are_seen(b: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.cluster_source._ROUTES_TTL_S", 0.0)
    source = cluster_source(b)
    try:
        assert source.queues(["late"]) == []
        assert source.topics() == ["orders"]
        assert len(whole(source, "orders")) == 4
        with b.admin() as admin:
            admin.topics.create("late", queues=2)
            admin.topics.create("orders", queues=6)
        source.refresh()
        assert source.topics() == ["late", "orders"]
        assert len(source.queues(["late", "orders"])) == 8
        assert len(whole(source, "late", "orders")) == 8
    finally:
        source.close()


def test_a_refresh_asks_each_broker_once_for_each_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RequestCode] = []
    request = ClientInstance.request

    async def note(self: ClientInstance, address: str, code: RequestCode, *rest: object, **named: object) -> object:
        asked.append(code)
        return await request(self, address, code, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(ClientInstance, "request", note)
    with broker({"orders": 16, "bills": 16}) as b:
        source = cluster_source(b)
        try:
            assert len(whole(source, "orders", "bills")) == 32
            asked.clear()
            source.refresh()
            assert asked == [RequestCode.GET_TOPIC_STATS_INFO] * 2
        finally:
            source.close()


def test_queues_that_are_only_read_have_bounds_too(b: LocalBroker) -> None:
    """A topic that shrinks has more queues to read than to write, and a broker tells of the latter only."""
    send(b, orders(40))
    with b.admin() as admin:
        admin.topics.create("orders", read_queues=4, write_queues=1)
    source = cluster_source(b)
    try:
        assert sum(span.count for span in whole(source, "orders")) == 40
    finally:
        source.close()


def test_times_are_found_exactly(b: LocalBroker) -> None:
    for _ in range(4):
        send(b, orders(30))
    source = cluster_source(b)
    try:
        for span in whole(source, "orders"):
            (task,) = source.tasks([[span]])
            moments = [moment.timestamp() * 1000 for moment in column_of(read_pages(task), "store_timestamp")]  # type: ignore[attr-defined]
            for moment in sorted({round(moment) + shift for moment in moments for shift in (-1, 0, 1)}):
                first = next((number for number, each in enumerate(moments) if each >= moment), len(moments))
                assert source.offset_at(span.queue, moment) == first
            assert source.offset_at(span.queue, 0) == 0
            assert source.offset_at(span.queue, 2**62) == span.stop
    finally:
        source.close()


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60).map(sorted),
    st.sets(st.integers(0, 59)),
    st.integers(0, 10),
    st.integers(-2, 14),
    st.integers(-5, 80),
)
def test_a_time_is_found_wherever_the_broker_points(
    times: list[int], gone: set[int], low: int, timestamp: int, hint: int
) -> None:
    high = len(times)
    low = min(low, high)
    there = [offset for offset in range(low, high) if offset not in gone]

    class Look(QueueProbe):
        async def _hint(self, queue: Queue, timestamp: int) -> int:
            return hint

        async def _message_at(self, queue: Queue, offset: int, high: int) -> _StoredMessage:
            found = next((each for each in there if each >= offset), None)
            return _StoredMessage(high, 1 << 63) if found is None else _StoredMessage(found, times[found])

    found = asyncio.run(Look(None).offset_at(Queue("T", "b", 0), timestamp, low, high))  # type: ignore[arg-type]
    assert found == next((offset for offset in there if times[offset] >= timestamp), high)


def test_a_groups_progress_is_read_and_stored(b: LocalBroker) -> None:
    send(b, orders(100))
    source = cluster_source(b)
    try:
        queues = source.queues(["orders"])
        assert [source.group_offset("lake", queue) for queue in queues] == [None] * 4
        source.commit_group("lake", {queues[0]: 7, queues[2]: 0})
        assert [source.group_offset("lake", queue) for queue in queues] == [7, None, 0, None]
    finally:
        source.close()


def test_a_size_is_about_right_and_stays_the_same(b: LocalBroker) -> None:
    source = cluster_source(b)
    try:
        empty = source.queues(["orders"])[0]
        assert source.bounds(empty) == (0, 0)
        assert source.size(empty, 0, 10) == 10 * 1024
        send(b, [Message("orders", b"x" * 5000) for _ in range(60)])
        source.refresh()
        sizes = {queue: source.size(queue, 0, 10) for queue in source.queues(["orders"]) if source.bounds(queue)[1]}
        assert set(sizes.values()) == {10 * 8192}
        send(b, [Message("orders", b"x" * 90_000) for _ in range(5)])
        source.refresh()
        assert {queue: source.size(queue, 0, 10) for queue in sizes} == sizes
    finally:
        source.close()


# -- errors --------------------------------------------------------------------------------------------------


def test_a_name_server_that_is_not_there_is_said_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    source = ClusterSource(Options.read({"namesrv": address}))
    try:
        with pytest.raises(Unreachable, match=f"Cannot reach name server.*{address}"):
            source.queues(["orders"])
        with pytest.raises(Unreachable, match=address):
            source.topics()
    finally:
        source.close()


def test_a_cluster_that_was_there_is_waited_for(b: LocalBroker) -> None:
    with ClusterLink(access_to(b.namesrv, patience_s=0.3)) as link:
        queue = Queue("orders", "broker-x", 0)
        with pytest.raises(NoRoute, match="broker 'broker-x'"):
            link.run(link.pull(queue, 0, 1))
        link.run(link.pull(queue._replace(broker="broker-a"), 0, 1))
        with pytest.raises(Unreachable, match=r"topic orders queue 0 of broker broker-x .*retried for"):
            link.run(link.pull(queue, 0, 1))


def test_a_queue_that_no_broker_has_is_one_sentence(b: LocalBroker) -> None:
    source = cluster_source(b)
    try:
        with pytest.raises(NoRoute, match="queue 9 of topic orders at broker broker-a is not in the cluster"):
            source.bounds(Queue("orders", "broker-a", 9))
    finally:
        source.close()


def test_an_account_reads_what_it_is_granted(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(ACCOUNTS)
    account = {"accessKey": "reader_1", "secretKey": "reader-secret", "consumerGroup": "lake"}

    def count(**options: str) -> int:
        source = cluster_source(b, **options)
        try:
            # Such an account may only ask queue by queue.
            (task,) = source.tasks([whole(source, "orders")])
            return sum(page.batch.num_rows for page in read_pages(task))
        finally:
            source.close()

    with broker({"orders": 4, "bills": 4}, settings={"aclEnable": True, "aclFile": tmp_path / "plain_acl.yml"}) as b:
        config = ClientConfig(b.namesrv, credentials=Credentials("reader_1", "reader-secret"))
        with Producer("PID", config) as producer:
            producer.send_batch(orders(5))
        assert count(**account) == 5
        with pytest.raises(Refused, match="group 'other'"):
            count(**account | {"consumerGroup": "other"})
        for wrong in ({}, account | {"secretKey": "guessed-wrong"}):
            with pytest.raises(Refused) as caught:
                count(**wrong)
            assert "guessed" not in str(caught.value)
        source = cluster_source(b, **account)
        try:
            assert source.group_offset("lake", source.queues(["orders"])[0]) is None
            with pytest.raises(Refused, match="bills"):
                whole(source, "bills")
        finally:
            source.close()


def test_half_an_account_is_refused() -> None:
    with pytest.raises(BadSettings, match="accessKey is given without secretKey"):
        ClusterSource(Options.read({"namesrv": "127.0.0.1:1", "accessKey": "reader_1"}))


def test_a_cluster_behind_tls_is_read_and_written_with_the_authority_to_trust(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    own = make_certificate(tmp_path, "broker", authority)
    settings = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": own.certificate,
        "tls.server.keyPath": own.key,
    }
    with broker(settings=settings) as b:
        options = Options.read({"namesrv": b.namesrv, "trust": str(authority.certificate), "topic": "orders"})
        with Admin(ClientConfig(b.namesrv, tls=options.tls_properties)) as admin:
            admin.topics.create("orders", queues=1)
        target, rows = ClusterTarget.of(options), WrittenRows.of(columns_of("body string"), "orders")
        batch = pa.RecordBatch.from_pydict({"body": ["1", "2"]})
        assert target.send(Identity(WriterKind.WRITE, "w"), rows, 0, [batch]) == 2
        b.settle()
        assert [row["body"] for row in read_tasks(options, plan_batch(options), ["body"])] == [b"1", b"2"]
        plain = Options.read({"namesrv": b.namesrv, "topic": "orders", "waitForBrokers": "1s"})
        with pytest.raises(Unreachable):
            plan_batch(plain)
