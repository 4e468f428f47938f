"""What the tests of the command line share: running it, a store of many kinds of messages, processes that own one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main
from penstock.format import kernels
from penstock.store import Message, MessageStore, PutResult, Settings

T0 = 1_600_000_000_000
PREPARED, ROLLBACK = 0x4, 0xC
PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
ENVIRONMENT = {**os.environ, "PENSTOCK_KERNELS": kernels.active}  # a chosen twin says nothing about itself


def hear_interrupts() -> None:
    """For `preexec_fn`: a program that a shell has started in the background ignores interrupts, and so do its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Ran(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def done(self) -> Ran:
        assert self.status == 0, self.err
        return self

    def refused(self) -> str:
        """The one sentence of a command that could not run."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("penstock: ")
        assert self.err.endswith(".\n") or self.err.endswith(")\n") or self.err.endswith("?\n"), self.err
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `penstock` in this process."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        try:
            status = main([str(argument) for argument in arguments])
        finally:  # `serve` sets up logging, to a stream that ends with this test
            root.handlers[:] = handlers
            root.setLevel(level)
        return Ran(status, *capsys.readouterr())

    return run


def run_as_process(*arguments: object) -> Ran:
    """Runs `penstock` as a program of its own."""
    ended = subprocess.run(
        [*PENSTOCK, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


class Filled(NamedTuple):
    """A closed store, what was put into it, and when."""

    path: Path
    messages: list[Message]
    acks: list[PutResult]


@pytest.fixture
def filled(filled_model: Filled, tmp_path: Path) -> Filled:
    """A copy of `filled_model`."""
    return filled_model._replace(path=shutil.copytree(filled_model.path, tmp_path / "store"))


@pytest.fixture(scope="session")
def filled_model(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Two topics, three queues, tags, keys, IPv6, a delayed message, and records that have no queue."""
    clock = Clock()
    messages = [
        Message("orders", b"zero", keys=("order_0", "all"), tags="paid", queue_id=0, flag=5),
        Message("orders", b"one", keys=("order_1", "all"), tags="refunded", queue_id=1, reconsume_times=2),
        Message("orders", b"two", keys="order_2 all", tags="paid", queue_id=0, properties={"colour": "rot, grün"}),
        Message("half", b"prepared", keys=("half_1",), queue_id=0, sys_flag=PREPARED),
        Message("half", b"rolled back", queue_id=0, sys_flag=ROLLBACK, prepared_transaction_offset=3),
        Message("Alerts", b"\x00\xff", born_host="[1050::5:600:300c:326b]:99", store_host="[::1]:10911"),
        Message("orders", b"late", keys=("order_9",), tags="paid", delay_level=3),
        Message("orders", b"three", keys=("order_3", "all"), tags="paid", queue_id=0, born_timestamp=T0 - 7),
    ]
    path = tmp_path_factory.mktemp("filled") / "store"
    with MessageStore.open(path, Settings.dev(), clock=clock) as store:
        acks = []
        for message in messages:
            acks.append(store.put(message))
            clock.now += 1000
    assert all(ack.ok for ack in acks)
    return Filled(path, messages, acks)


WRITER = """
import sys
from penstock.store import Message, MessageStore, Settings
store = MessageStore.open(sys.argv[1], Settings.dev())
number = 0
def put(count):
    global number
    some = [
        Message("orders", b"body %d" % each, keys=(f"order_{each}", "all"), tags="paid", queue_id=each % 2)
        for each in range(number, number + count)
    ]
    assert (store.put_many(some) if count > 1 else store.put(some[0])).ok
    number += count
for _ in range(int(sys.argv[2])):
    put(1)
store.catch_up()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        put(1)
        put(5)
"""


class Writer:
    """A process that owns a store: puts `count` messages, says so, and keeps the store open."""

    def __init__(self, path: Path, count: int) -> None:
        command = [sys.executable, "-c", WRITER, str(path), str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the writer ended early"

    def put_more(self, batches: int) -> None:
        """Has it put single messages and batches of five, while the caller goes on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batches}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Ends it as a crash would; the page cache survives."""
        with self._process:
            self._process.kill()


StartWriter = Callable[[Path, int], Writer]


@pytest.fixture
def start_writer() -> Iterator[StartWriter]:
    started: list[Writer] = []

    def start(path: Path, count: int) -> Writer:
        writer = Writer(path, count)
        started.append(writer)
        writer.wait_until_ready()
        return writer

    yield start
    for writer in started:
        writer.kill()


def all_verbs(path: Path) -> dict[str, Sequence[object]]:
    """A call of every verb that looks into a store."""
    return {
        "info": ("store", "info", path, "--json"),
        "dump": ("store", "dump", path, "--json"),
        "log": ("store", "log", path, "--json"),
        "get": ("store", "get", path, "--topic", "orders", "--queue", 0, "--offset", 0, "--json"),
        "query": ("store", "query", path, "--topic", "orders", "--key", "all", "--json"),
        "offset": ("store", "offset", path, "--topic", "orders", "--queue", 0, "--timestamp", T0, "--json"),
        "conf": ("store", "conf", path, "--json"),
        "retention": ("store", "retention", path, "--dry-run", "--json"),
    }
