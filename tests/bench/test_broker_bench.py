"""The benchmark of the broker runs from end to end, on small sizes and without Java; its loops count what they must."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.effort import quick_report

from bench.load import (
    QUEUES,
    BadReply,
    Ring,
    batches,
    closed_loop,
    percentiles,
    pull_frame,
    pulls,
    reply_frame,
    send_frame,
    sends,
)
from penstock.format.batch import decode_batch_body
from penstock.protocol.command import RESPONSE, Command
from penstock.protocol.frame import FrameReader, encode

PERCENTILES = ("50pct", "99pct", "999pct")
ROWS = {
    *(f"generator-{what}" for what in ("1", "16", "64", "pull")),
    *(f"send-{size}-{window}" for size in ("128b", "1k") for window in (1, 16, 64)),
    *(f"send-{size}-{window}-cpu" for size in ("128b", "1k") for window in (1, 16, 64)),
    "batch-128b",
    *(f"consume-{size}-cpu" for size in ("128b", "1k")),
    *(f"consume-{size}" for size in ("128b", "1k")),
    *(f"{kind}{part}" for kind in ("endToEndLatency", "publishLatency") for part in PERCENTILES),
    "start",
    "idle-memory",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    """The JSON of a quick run of all rows."""
    return quick_report("broker", folder, "--no-java")


@pytest.mark.rest
def test_every_row_is_there_once_and_measured(report: dict[str, Any]) -> None:
    names = [result["row"]["name"] for result in report["results"]]
    assert len(names) == len(set(names))
    assert set(names) == ROWS
    assert all(result["status"] == "measured" and result["ours"]["least"] > 0 for result in report["results"])


@pytest.mark.rest
def test_figures_have_the_names_of_openmessaging_benchmark(report: dict[str, Any]) -> None:
    fields = {result["row"]["name"]: result["row"]["field"] for result in report["results"]}
    rates = {name for name in ROWS if not name.endswith("-cpu")}
    assert {fields[name] for name in rates if name.startswith(("send-", "batch-"))} == {"publishRate"}
    assert {fields[name] for name in rates if name.startswith("consume-")} == {"consumeRate"}
    assert all(fields[name] == name for name in ROWS if "Latency" in name)


@pytest.mark.rest
def test_every_goal_of_the_broker_stands_at_its_row(report: dict[str, Any]) -> None:
    goals = {
        result["row"]["name"]: (result["row"]["goal"]["kind"], result["row"]["goal"]["value"])
        for result in report["results"]
        if result["row"]["goal"]
    }
    rate = {"128b": ("ratio at least", 2), "1k": ("ratio at least", 1.5)}
    quarter = ("ratio at least", 4)
    several = [(f"send-{size}-{window}", rate[size]) for size in rate for window in (16, 64)]
    several += [(f"consume-{size}", rate[size]) for size in rate]
    assert goals == {
        **dict.fromkeys([f"send-{size}-1" for size in rate], ("ratio at least", 1)),
        **dict(several),
        **{f"{name}-cpu": quarter for name, _ in several},
        "batch-128b": ("ratio at least", 1.5),
        **dict.fromkeys([name for name in ROWS if name.startswith("endToEnd")], ("ratio at least", 1)),
        "start": ("at most", 1.5),
        "idle-memory": ("at most", 200e6),
    }


@pytest.mark.rest
def test_no_file_and_no_process_is_left(report: dict[str, Any], folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["report.json"]
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _is_readable(path)]
    assert not any(str(folder).encode() in line for line in lines)


def _is_readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


# -- the loops -----------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[int, Command], bytes]) -> Iterator[tuple[socket.socket, list[Command]]]:
    """A connection to a server that answers each request, and the requests it got."""
    ours, theirs = socket.socketpair()
    got: list[Command] = []

    def serve() -> None:
        reader = FrameReader()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client has read enough
            while data := theirs.recv(1 << 16):
                for command in reader.feed(data):
                    got.append(command)
                    theirs.sendall(answer(len(got), command))

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield ours, got
    finally:
        ours.close()
        server.join()
        theirs.close()


def test_the_window_loop_sends_each_request_once_and_counts_the_bodies() -> None:
    with answering(lambda number, command: encode(Command(0, {}, bytes(100), command.opaque, RESPONSE))) as (it, got):
        done = closed_loop(it, sends("t", 128, 8), 50, 5)
    assert done["replies"] == len(got) == 50
    assert done["body_bytes"] == 5_000
    assert [command.opaque for command in got[:8]] == [command.opaque for command in got[8:16]]


def test_a_reply_that_says_anything_but_success_ends_the_loop() -> None:
    def answer(number: int, command: Command) -> bytes:
        return encode(Command(2 if number == 7 else 0, {}, b"", command.opaque, RESPONSE, "busy"))

    with answering(answer) as (connection, _), pytest.raises(BadReply, match="2: busy"):
        closed_loop(connection, sends("t", 128, 8), 20, 4)


def test_a_ring_gives_its_frames_round_and_round() -> None:
    ring = Ring([b"a", b"bb", b"ccc"])
    assert [b"".join(ring.take(count)) for count in (2, 2, 5)] == [b"abb", b"ccca", b"bbcccabbccc"]


def test_pulls_cover_every_message_once() -> None:
    commands = FrameReader().feed(bytes(pulls("t", 64).block))
    places = [(command.ext["queueId"], command.ext["queueOffset"]) for command in commands]
    assert sorted(places) == sorted((str(queue), str(offset)) for queue in range(QUEUES) for offset in (0, 32))


def test_a_batch_holds_its_messages_with_keys_of_their_own() -> None:
    (command, _) = FrameReader().feed(bytes(batches("t", 128, 32, 2).block))
    items = decode_batch_body(bytes(command.body))
    assert len(items) == len({item.properties for item in items}) == 32
    assert command.ext["m"] == "true"


def test_all_sends_of_a_ring_are_of_one_length_as_the_sink_needs_it() -> None:
    ring = sends("t", 128, 1024)
    assert len(ring.block) == 1024 * len(send_frame("t", 0, bytes(128), 100_000))
    (reply,) = FrameReader().feed(reply_frame(50))
    assert (reply.code, len(reply.body)) == (0, 50)


def test_frames_are_the_bytes_that_the_protocol_writes() -> None:
    for frame in (send_frame("t", 1, b"body", 100_000), pull_frame("t", 1, 5, 7, wait=True), reply_frame(3)):
        (command,) = FrameReader().feed(frame)
        assert encode(command) == frame


@pytest.mark.rest
def test_the_cpu_time_of_the_broker_is_measured_with_its_rate(report: dict[str, Any]) -> None:
    with_load = [result for result in report["results"] if result["row"]["name"].startswith(("send-", "consume-"))]
    assert all(result["cpu"]["least"] > 0 for result in with_load)


def test_percentiles_are_those_of_the_sorted_times() -> None:
    assert percentiles("x", [n * 1_000_000 for n in range(1000, -1, -1)]) == {
        "x50pct": 500,
        "x99pct": 990,
        "x999pct": 999,
    }
