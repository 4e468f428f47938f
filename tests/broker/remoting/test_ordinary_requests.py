"""Two brokers, one with the compiled request path and one without it: no client and no file can tell them apart.

Both get the same frames, one connection each, from the same port, at the same fixed time. Then their replies, their
logs and their tables must be the same to the byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers import BrokerHome, RunningBroker, bodies, ok, pull_arguments, send_arguments
from support.loopback import until

from penstock.broker.broker import Broker
from penstock.broker.offsets import Offsets
from penstock.broker.pull import Pulls
from penstock.broker.remoting import compiled_requests
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import MessageCounters
from penstock.errors import BadFrame, BadSettings
from penstock.format import kernels
from penstock.format.batch import encode_batch_body
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.protocol.frame import FrameReader, encode
from penstock.remoting.event_loop import loop_factory
from penstock.store import MessageStore, Settings

NOW = 1_794_765_215_418
END = 2_000_000_000
"""The opaque of the last request of each exchange."""
READ_S = 60.0


class Twins(NamedTuple):
    """The two brokers, and the loop that they run on."""

    compiled: Broker
    general: Broker
    addresses: tuple[tuple[str, int], ...]
    run: Callable[..., Any]
    last: bytes
    """The frame of the last request of an exchange: all replies come before its own."""

    @property
    def brokers(self) -> tuple[Broker, Broker]:
        return self.compiled, self.general


async def started(folder: Path, changes: dict[str, Any]) -> tuple[Broker, tuple[str, int]]:
    store = MessageStore.open(folder, Settings.dev(**changes), clock=lambda: NOW)
    chosen = BrokerSettings(server_channel_max_idle_time_seconds=86_400)
    broker = Broker(store, chosen, clock=lambda: NOW)
    for topic in ("T", "orders", "filled"):
        broker.state.topics.update(TopicConfig(name=topic, read_queue_nums=2, write_queue_nums=2))
    broker.state.topics.update(TopicConfig(name="closed", read_queue_nums=2, write_queue_nums=2, perm=0))
    return broker, await broker.start("127.0.0.1", 0)


@contextlib.contextmanager
def running_twins(folder: Path, changes: dict[str, Any]) -> Iterator[Twins]:
    """Two brokers with the same settings. If sends wait for acks, the last request is a send: its ack comes last."""
    last = Command(30, {"topic": "filled", "queueId": "0"}, opaque=END)
    if changes:
        last = Command(10, texts(send_arguments("orders", bornTimestamp=NOW)), b"", END)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(compiled_requests.VARIABLE, "compiled")
            compiled, first = runner.run(started(folder / "compiled", changes))
            patch.setenv(compiled_requests.VARIABLE, "general")
            general, second = runner.run(started(folder / "general", changes))
        pair = Twins(compiled, general, (first, second), runner.run, encode(last))
        fill(pair)
        try:
            yield pair
        finally:
            for broker in pair.brokers:
                assert runner.run(broker.stop(60))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    with running_twins(tmp_path_factory.mktemp("twins"), {}) as pair:
        yield pair


WAITING = (
    {"flush_disk_type": "SYNC_FLUSH", "sync_flush_timeout": 60_000},
    {"broker_role": "SYNC_MASTER", "ha_listen_port": 0},
)


@pytest.fixture(scope="module", params=WAITING, ids=["on disk", "no slave"])
def waiting_twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """Sends are answered once they are on disk; or without a slave, with a code that says so."""
    with running_twins(tmp_path_factory.mktemp("waiting"), request.param) as pair:
        yield pair


def fill(twins: Twins) -> None:
    """Forty messages to pull, and a consumer group whose heartbeat has subscribed to some of them."""
    arguments = [
        send_arguments("filled", queueId=n % 2, bornTimestamp=NOW, properties={"TAGS": "ABC"[n % 3]}) for n in range(40)
    ]
    sends = [Command(10, texts(each)) for each in arguments]
    heartbeat = {"groupName": "tags", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    subscription = {"topic": "filled", "subString": "A || B", "subVersion": 1}
    consumer = {**heartbeat, "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}
    body = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [consumer]}
    beat = Command(34, {}, json.dumps(body).encode())
    compare(twins, b"".join(map(encode, [*sends, beat])), keep=True)


def texts(arguments: dict[str, object]) -> dict[str, str]:
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in arguments.items()}


# -- exchanges -----------------------------------------------------------------------------------------------

_kept: list[socket.socket] = []


async def exchange(address: tuple[str, int], data: bytes, port: int, keep: bool) -> list[bytes]:
    """Sends bytes from a port, and returns the frames of the replies; the last is b"" if the broker hung up."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("127.0.0.1", port))
    held, frames = b"", []
    try:
        await loop.sock_connect(client, address)
        await loop.sock_sendall(client, data)
        while True:
            try:
                got = await asyncio.wait_for(loop.sock_recv(client, 1 << 20), READ_S)
            except ConnectionError:
                got = b""
            if not got:
                return [*frames, b""]
            held += got
            while len(held) >= 4 and len(held) >= (size := 4 + int.from_bytes(held[:4], "big")):
                frames.append(held[:size])
                held = held[size:]
            if any(b'"opaque":%d,' % END in frame for frame in frames):
                return frames
    finally:
        if keep:
            _kept.append(client)
        else:
            client.close()


def free_ports() -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def compare(twins: Twins, data: bytes, keep: bool = False) -> list[bytes]:
    """Sends the same bytes to both brokers. Their replies and their state must be the same. Returns the replies."""
    port, replies = free_ports(), []
    before = [broker.store.log.max_offset for broker in twins.brokers]
    for broker, address in zip(twins.brokers, twins.addresses, strict=True):
        random.seed(7)  # for queues that the broker chooses
        replies.append(twins.run(exchange(address, data + twins.last, port, keep)))
        broker.store.catch_up()
    compiled, general = replies
    if compiled[-1] and general[-1]:
        assert sorted(compiled) == sorted(general)
        assert [frame for frame in compiled if b"msgId" in frame] == [frame for frame in general if b"msgId" in frame]
    else:  # hung up: which of the frames before the bad one were served depends on how they were read
        assert compiled[-1] == general[-1] == b""
        return compiled
    assert log_of(twins.compiled, before[0]) == log_of(twins.general, before[1])
    assert state_of(twins.compiled) == state_of(twins.general)
    return compiled


def compare_all(twins: Twins, frames: list[bytes]) -> None:
    """Sends all readable frames at once. Each other one comes alone, because what is served before it differs."""
    readable = [frame for frame in frames if is_readable(frame)]
    compare(twins, b"".join(readable))
    for frame in frames:
        if not is_readable(frame):
            compare(twins, frame)


def is_readable(frame: bytes) -> bool:
    try:
        return len(FrameReader().feed(frame)) == 1
    except BadFrame:
        return False


def log_of(broker: Broker, start: int) -> bytes:
    log = broker.store.log
    return log.read(start, log.max_offset - start) or b""


def state_of(broker: Broker) -> dict[str, object]:
    state, store = broker.state, broker.store
    counters = state.counters.totals()
    return {
        "offsets": state.offsets.snapshot().offsets,
        "changes": state.offsets.changes,
        "next offsets": sorted(store.log.next_offsets()),
        "queues": {(queue.topic, queue.queue_id): queue.max_offset for queue in store.queues},
        "topics": sorted(topic.name for topic in state.topics.all().values()),
        "groups": sorted(state.groups.all()),
        "counters": (counters.messages_in, counters.messages_out, counters.requests_refused),
        "puts": (store.statistics.put_total, store.statistics.put_failed),
        "gets": (store.statistics.get_found, store.statistics.got_messages, store.statistics.got_bytes),
        "held": len(broker.held),
    }


# -- random frames -------------------------------------------------------------------------------------------

numbers = st.sampled_from(["0", "1", "2", "-1", "31", "2147483647", "2147483648", "9223372036854775807", "1" * 30])
odd_numbers = st.sampled_from(["", "+1", "007", " 1", "1.0", "0x1", "-0", "true", "\x00", "１"])
topics = st.sampled_from(["T", "T", "T", "orders", "new", "closed", "%RETRY%tags", "bad topic!", "", "тема"])
groups = st.sampled_from(["tags", "g", "g", "other", "CID_RMQ_SYS_x", "bad group!"])
PIECES = (
    *("KEYS\x01k", "TAGS\x01A", "WAIT\x01true", "WAIT\x01false", "AWAIT\x01true", "UNIQ_KEY\x01u", "a\x01ключ€😀"),
    *("DELAY\x010", "DELAY\x011", "TRAN_MSG\x01false", "CLUSTER\x01x", "__CRC32#\x011", "\x00", "\x01", "a\x01", ""),
    *('q\x01"\\/\b\f\n\r\t', "\ud83d", "long\x01" + "x" * 4000),
)
properties = st.lists(st.sampled_from(PIECES), max_size=4).map("\x02".join)
ends = st.sampled_from(["", "\x02"])
send_fields = st.fixed_dictionaries(
    {
        "producerGroup": st.sampled_from(["p", "группа"]),
        "topic": topics,
        "defaultTopic": st.just("TBW102"),
        "defaultTopicQueueNums": st.just("2"),
        "queueId": st.sampled_from(["0", "1", "1", "-1", "2", "x"]),
        "sysFlag": st.sampled_from(["0", "0", "1", "4", "8", "12", "16", "-1"]),
        "bornTimestamp": st.sampled_from(["17", "0", "-1", "9223372036854775807"]),
        "flag": st.sampled_from(["0", "-2147483648", "5"]),
        "properties": st.tuples(properties, ends).map("".join),
    },
    optional={
        "reconsumeTimes": numbers,
        "unitMode": st.sampled_from(["false", "true", "1", "no"]),
        "maxReconsumeTimes": numbers,
        "batch": st.sampled_from(["false", "true", "0"]),
        "brokerName": st.just("b"),
        "unknown": st.text(max_size=4),
    },
)
place_fields = {"consumerGroup": groups, "topic": st.sampled_from(["filled", "filled", "none"])}
place_fields["queueId"] = st.sampled_from(["0", "1", "5", "-1"])
pull_fields = st.fixed_dictionaries(
    {
        **place_fields,
        "queueOffset": st.sampled_from(["0", "3", "19", "20", "21", "-1", "9223372036854775807"]),
        "maxMsgNums": st.sampled_from(["32", "1", "0", "-1", "2147483647"]),
        "sysFlag": st.sampled_from(["4", "4", "5", "1", "0", "8", "21"]),
        "commitOffset": st.sampled_from(["0", "5", "-1", "19"]),
        "suspendTimeoutMillis": st.just("15000"),
        "subVersion": st.sampled_from(["0", "1", "2"]),
    },
    optional={
        "subscription": st.sampled_from(["*", "*", "A", "A || B", "", "a > 1"]),
        "expressionType": st.sampled_from(["TAG", "", "SQL92"]),
        "maxMsgBytes": numbers,
    },
)
commit_fields = st.fixed_dictionaries({**place_fields, "commitOffset": numbers})
query_fields = st.fixed_dictionaries(place_fields, optional={"setZeroIfNotFound": st.sampled_from(["true", "false"])})
SHORT = dict(zip(send_arguments("T"), "abcdefghi", strict=True)) | {
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "brokerName": "n",
}
BATCH = encode_batch_body([(0, b"one", b"TAGS\x01A\x02"), (3, b"two", b"")])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """The frame of one request of a hot code, with a header as some client may write it."""
    code = draw(st.sampled_from([310, 310, 310, 10, 320, 11, 11, 361, 14, 15]))
    body = b""
    if code in (10, 310, 320):
        ext: dict[str, str] = draw(send_fields)
        body = draw(st.sampled_from([b"", b"body", BATCH, BATCH[:-1], bytes(3000)]))
        if code != 10:
            ext = {SHORT.get(name, name): value for name, value in ext.items()}
    else:
        ext = draw(pull_fields if code in (11, 361) else commit_fields if code == 15 else query_fields)
    if draw(st.integers(0, 9)) == 0:
        del ext[draw(st.sampled_from(sorted(ext)))]
    if draw(st.integers(0, 9)) == 0:
        ext[draw(st.sampled_from(sorted(ext) or ["a"]))] = draw(odd_numbers | numbers)
    opaque = draw(st.integers(-5, 1000))
    flag = draw(st.sampled_from([0, 0, 0, ONE_WAY, 4]))
    if draw(st.integers(0, 3)) == 0:
        return encode(Command(code, ext, body, opaque, flag, binary=True))
    head = draw(json_headers(code, ext, opaque, flag))
    return (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body


@st.composite
def json_headers(draw: st.DrawFn, code: int, ext: dict[str, str], opaque: int, flag: int) -> bytes:
    """A JSON header: fields in any order, numbers as text or bare, escapes, spaces, doubles and unknown keys."""
    fields: list[tuple[str, str]] = []
    for name, value in ext.items():
        is_bare = value.lstrip("-").isdecimal() and value.isascii() and draw(st.integers(0, 4)) == 0
        text = value if is_bare else json.dumps(value, ensure_ascii=draw(st.booleans()) or "\ud83d" in value)
        fields.append((json.dumps(name), "null" if draw(st.integers(0, 60)) == 0 else text))
    if draw(st.integers(0, 20)) == 0:
        fields.append(draw(st.sampled_from(fields)) if fields else ('"x"', "[1]"))
    outer = [("code", str(code)), ("flag", str(flag)), ("language", '"JAVA"'), ("opaque", str(opaque))]
    outer += draw(st.sampled_from([[], [("version", "409")], [("remark", "null")], [("more", '{"a":[1]}')]]))
    if draw(st.integers(0, 9)) == 0:
        fields = draw(st.permutations(fields))
        outer = draw(st.permutations(outer))
    space = draw(st.sampled_from(["", "", " ", "\n\t"]))
    inner = ("," + space).join(f"{name}:{space}{value}" for name, value in fields)
    pieces = [f'"{name}":{space}{value}' for name, value in outer]
    pieces.insert(draw(st.sampled_from([1, len(pieces)])), f'"extFields":{space}{{{inner}}}')
    text = f"{{{','.join(pieces)}}}"
    if draw(st.integers(0, 9)) == 0:
        text = text.replace("T", "\\u0054").replace("/", "\\/")
    return text.encode("utf-8", "surrogateescape" if "\ud83d" not in text else "replace")


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(st.lists(requests(), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_both_brokers_answer_and_store_the_same(twins: Twins, frames: list[bytes]) -> None:
    compare_all(twins, frames)


@given(st.lists(requests(), min_size=1, max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=SLOW)
def test_both_brokers_answer_the_same_where_sends_wait_for_acks(waiting_twins: Twins, frames: list[bytes]) -> None:
    compare_all(waiting_twins, frames)


@pytest.mark.rest
@given(st.lists(requests(), min_size=1, max_size=12))
@settings(max_examples=800, deadline=None, suppress_health_check=SLOW)
def test_both_brokers_answer_and_store_the_same_for_long(twins: Twins, frames: list[bytes]) -> None:
    compare_all(twins, frames)


@given(st.lists(requests(), min_size=1, max_size=3), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_both_brokers_treat_a_broken_frame_the_same(twins: Twins, frames: list[bytes], data: st.DataObject) -> None:
    broken = bytearray(data.draw(requests()))
    at = data.draw(st.integers(8, len(broken) - 1))
    broken[at] = data.draw(st.integers(0, 255))
    compare_all(twins, frames)
    compare(twins, bytes(broken))


# -- single cases --------------------------------------------------------------------------------------------


def ordinary_send(opaque: int = 1, **changes: object) -> bytes:
    arguments = texts(send_arguments("T", bornTimestamp=NOW, properties={"KEYS": "k"}, **changes))
    return encode(Command(10, arguments, b"body", opaque))


def served_compiled(broker: Broker, data: bytes) -> bool:
    """Whether the compiled path serves a frame of a client, which it does for real."""
    serve = broker.server.serve_frames
    assert serve is not None
    connection = next(iter(broker.server.connections))
    at, _, _ = serve(connection, data, 0)
    return at == len(data)


needs_compiled = pytest.mark.skipif(kernels.active != "compiled", reason="the plain twin serves nothing")


@needs_compiled
def test_ordinary_requests_take_the_compiled_path_and_others_do_not(twins: Twins) -> None:
    compare(twins, ordinary_send() * 2)
    assert twins.general.server.serve_frames is None
    pull = Command(11, texts(pull_arguments("filled", 0)))
    compare(twins, encode(pull))
    for frame in (ordinary_send(), encode(pull)):
        assert served_compiled(twins.compiled, frame)
    assert not served_compiled(twins.compiled, ordinary_send(topic="new topic"))
    at_the_end = encode(Command(11, texts(pull_arguments("filled", 20))))
    missed = twins.compiled.store.statistics.get_missed
    assert not served_compiled(twins.compiled, at_the_end)
    assert twins.compiled.store.statistics.get_missed == missed, "only the general path counts it"


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_requests.VARIABLE, "compiled")


@needs_compiled
@pytest.mark.usefixtures("chosen")
def test_a_broker_that_stops_takes_no_ordinary_send(home: BrokerHome, run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with home.running() as running:
            await send_one(running)
            assert served_compiled(running.broker, ordinary_send())
            running.broker.write_guard.close("test", "it stops")
            assert not served_compiled(running.broker, ordinary_send())

    run(scenario())


async def send_one(running: RunningBroker) -> None:
    client = await running.client()
    ok(await client.send("T"))


@pytest.mark.usefixtures("chosen")
def test_hooks_leave_sends_to_the_general_path(home: BrokerHome, run: Callable[..., Any]) -> None:
    async def with_hook() -> None:
        async with home.running() as running:
            await send_one(running)
            running.state.hooks.send.append(Watching())
            assert not served_compiled(running.broker, ordinary_send())

    run(with_hook())


@needs_compiled
@pytest.mark.usefixtures("chosen")
def test_sends_that_wait_take_the_compiled_path_while_there_is_room(home: BrokerHome, run: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with home.running(sync=True, max_unflushed_sends=3) as running:
            await send_one(running)
            serve = running.broker.server.serve_frames
            assert serve is not None
            connection, frame = next(iter(running.broker.server.connections)), ordinary_send()
            at, stop, replies = serve(connection, frame * 5, 0)
            assert (at, stop, replies) == (3 * len(frame), 4 * len(frame), []), "the general path refuses the fourth"
            assert len(running.broker.pending_acks) == 3
            await running.broker.pending_acks.drained()
            assert served_compiled(running.broker, frame)

    run(scenario())


@needs_compiled
@pytest.mark.usefixtures("chosen")
@pytest.mark.parametrize("call", ["find_ordinary", "commit_ordinary"])
def test_a_request_that_fails_unexpectedly_is_answered_and_the_next_ones_too(
    home: BrokerHome, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("a bug")

    owner = Pulls if call == "find_ordinary" else Offsets
    monkeypatch.setattr(owner, call, fail)

    async def scenario() -> None:
        async with home.running() as running:
            client = await running.client()
            ok(await client.send("T"))
            if call == "find_ordinary":
                failing = client.pull("T")
            else:
                place = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 1}
                failing = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, **place)
            replies = await asyncio.gather(failing, client.send("T"), client.send("T"))
            assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR, 0, 0]
            assert "see the server's log" in (replies[0].remark or "")
            assert running.state.counters.totals().requests_refused

    run(scenario())


@needs_compiled
@pytest.mark.usefixtures("chosen")
def test_an_error_after_a_send_is_logged_and_fails_neither_the_send_nor_the_request_behind_it(
    home: BrokerHome, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    count_sent, failures = MessageCounters.count_sent, list[Exception]()

    def fail_once(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        count_sent(*arguments)

    monkeypatch.setattr(MessageCounters, "count_sent", fail_once)

    async def scenario() -> None:
        async with home.running() as running:
            client = await running.client()
            ok(await client.send("T"))
            failures.append(RuntimeError("a bug"))
            new_topic = {"topic": "N", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
            create = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **new_topic, **more)
            for reply in await asyncio.gather(client.send("T"), create):
                ok(reply)
            assert running.state.topics.find("N") is not None
            assert not failures
            assert "after ordinary requests of 127.0.0.1" in caplog.text

    run(scenario())


@needs_compiled
@pytest.mark.usefixtures("chosen")
def test_a_known_pull_is_checked_again_when_anything_that_it_depends_on_changes(
    home: BrokerHome, run: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        async with home.running() as running:
            client, state = await running.client(), running.state
            for number in range(3):
                ok(await client.send("T", b"%d" % number, properties={"TAGS": "AB"[number % 2]}))
            beat = partial(client.heartbeat, "c", consumes={"g": {"T": "*"}})
            ok(await beat())
            known = running.broker._pulls.ordinary_queues

            async def pulled() -> list[bytes]:
                return bodies(ok(await client.pull("T", sysFlag=0, consumerGroup="g")))

            for _ in range(3):
                assert await pulled() == [b"0", b"1", b"2"]
            assert len(known) == 1
            ok(await client.heartbeat("c", consumes={"g": {"T": "B"}}, version=2))
            assert not known
            assert await pulled() == [b"1"]
            ok(await beat(version=3))
            assert await pulled() == [b"0", b"1", b"2"]
            before = state.counters.totals().messages_out["T@g"][0]
            for change in (
                lambda: state.groups.update(SubscriptionGroup(name="g", consume_enable=False)),
                lambda: state.topics.update(TopicConfig(name="T", read_queue_nums=1, write_queue_nums=1, perm=2)),
            ):
                state.groups.update(SubscriptionGroup(name="g"))
                for _ in range(2):  # the general path serves the first one
                    assert await pulled() == [b"0", b"1", b"2"]
                assert known
                change()
                assert not known
                assert (await client.pull("T", consumerGroup="g")).code == ResponseCode.NO_PERMISSION
            assert state.counters.totals().messages_out["T@g"][0] == before + 12

    run(scenario())


@needs_compiled
@pytest.mark.usefixtures("chosen")
def test_a_known_pull_commits_its_offset_and_hooks_see_it(home: BrokerHome, run: Callable[..., Any]) -> None:
    seen: list[object] = []

    async def scenario() -> None:
        async with home.running() as running:
            client = await running.client()
            ok(await client.send("T"))
            for offset in (1, 2, 3):
                ok(await client.pull("T", sysFlag=5, commitOffset=offset, consumerGroup="g"))
                assert running.state.offsets.query("g", "T", 0) == offset
            found = running.store.statistics.get_found
            assert found == 3
            running.state.hooks.consume.append(Consuming(seen))
            ok(await client.pull("T", consumerGroup="g"))
            assert len(seen) == 1

    run(scenario())


class Consuming:
    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def before_consume(self, context: object) -> None:
        self._seen.append(context)

    def after_consume(self, context: object) -> None: ...


class Watching:
    def before_send(self, context: object) -> None: ...

    def after_send(self, context: object) -> None: ...


def test_an_unknown_choice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled_requests.VARIABLE, "fast")
    with pytest.raises(BadSettings, match="PENSTOCK_REQUESTS: 'fast' is not one of compiled, general"):
        compiled_requests.is_chosen()


@pytest.mark.parametrize("requests", ["compiled", "general"])
def test_a_client_that_dies_with_full_pages_in_flight_does_not_hang_the_others(
    home: BrokerHome, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, requests: str
) -> None:
    monkeypatch.setenv(compiled_requests.VARIABLE, requests)
    serve, calls = compiled_requests.OrdinaryRequests.__call__, itertools.count()

    def serve_for_a_while(*arguments: Any) -> Any:
        assert next(calls) < 5_000, "the loop would never end"
        return serve(*arguments)

    monkeypatch.setattr(compiled_requests.OrdinaryRequests, "__call__", serve_for_a_while)

    async def scenario() -> None:
        async with home.running() as running:
            client, server = await running.client(), running.broker.server
            for _ in range(40):
                ok(await client.send("T", bytes(60_000)))
            assert len(ok(await client.pull("T")).body) > 200_000
            pull = encode(Command(11, texts(pull_arguments("T", 0))))
            for _ in range(3):
                with socket.create_connection(running.address) as dying:
                    dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    await until(lambda: len(server.connections) == 2)
                    dying.sendall(pull * 100)
                await until(lambda: len(server.connections) == 1)
                ok(await client.pull("T"))

    run(scenario())
