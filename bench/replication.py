"""The suite `replication`: a master and a slave of ours beside a pair of Apache RocketMQ's brokers.

Load generator, brokers and settings are those of the suite `broker`. All of it on loopback and on one disk: master,
slave and generator share the machine's cores. A side has one pair for each role of its master, and only one of them
runs at a time. There is no name server: the slave's settings name the master. CPU time is that of master and slave.

Logs are compared from outside, on disk, through the page cache that they share with the brokers. Only acknowledged
bytes are asked for, so the comparison does not depend on how a broker keeps its files.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from bench.broker import AS_FAST, Sizes, Warm, latency, latency_rows
from bench.load import generate
from bench.processes import JAVA_BROKER, BrokerProcess, JavaBroker, PenstockBroker, class_path
from bench.recovery import copy_sparse
from bench.report import java_versions
from bench.run import JAVA, OURS, Goal, Row, Run, Stopwatch, Task, cpu_seconds
from bench.workspace import GIB, MIB, BenchFailed
from penstock.store.files.file_io import written_ranges

Role = Literal["SYNC_MASTER", "ASYNC_MASTER"]
Make = Callable[[Path, dict[str, object]], BrokerProcess]
ROLES: dict[Role, str] = {"SYNC_MASTER": "sync", "ASYNC_MASTER": "async"}
WINDOWS = (1, 64)
BODY = 1024
_BATCH = 32
_FOLLOWS_WITHIN_S = 60.0
_RECORD = 1300
"""More than a message of 1 KB takes."""
_PIECE = 1 << 20
_TAIL = 64
"""Bytes at the end of the last record that show that it is there: its properties, which are not zeros."""
_POLL_S = 0.002
_EQUAL_WITHIN_S = 240.0


class PairSizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    load: Sizes
    behind: int
    """Messages that a slave has to catch up with."""

    @property
    def disk_need(self) -> int:
        """Two pairs: either both roles' load, or what a slave is behind; each store has a log file ahead."""
        loaded = self.load.store_limit + 4 * self.load.log_file
        behind = 2 * (self.behind * _RECORD + 2 * self.load.log_file)
        return 2 * max(loaded, behind) + GIB


FULL = PairSizes(
    load=Sizes(
        run_serially=10_000,
        many=102_400,
        passes=1,
        rate=1_000,
        seconds=10,
        warm_up=102_400,
        log_file=GIB,
        store_limit=5 * GIB,
    ),
    behind=1_664_000,
)
QUICK = PairSizes(
    load=Sizes(
        run_serially=50, many=640, passes=1, rate=200, seconds=0.4, warm_up=0, log_file=8 * MIB, store_limit=256 * MIB
    ),
    behind=9_600,
)


class ReplicationSuite:
    """See the module."""

    name = "replication"
    summary = "Master and slave: sends, latency, and a slave that is 2 GB behind."
    sides = ("Penstock", "Java")

    def __init__(self) -> None:
        self._jars: list[Path] = []
        self._pairs: dict[str, Pairs] = {}

    def need(self, quick: bool) -> int:
        return _sizes(quick).disk_need

    def tasks(self, folder: Path, quick: bool) -> list[Task]:
        sizes = _sizes(quick)
        both = self._pairs = {
            OURS: Pairs(PenstockBroker, folder / "penstock", sizes),
            JAVA: Pairs(lambda place, settings: JavaBroker(place, settings, self._jars), folder / "java", sizes),
        }

        def task(group: str, rows: tuple[Row, ...], run: Callable[[Pairs], Run]) -> Task:
            return Task(group, rows, {name: partial(run, pairs) for name, pairs in both.items()})

        found: list[Task] = []
        for role, name in ROLES.items():
            for window in WINDOWS:
                title = f"{role}, send, 1 KB, {window} in flight"
                rows = [Row(f"{name}-send-{window}", title, "messages/s", AS_FAST, field="publishRate")]
                if role == "ASYNC_MASTER":
                    all_copied = f"{title}, until the slave has all"
                    row = Row(f"{name}-copied-{window}", all_copied, "messages/s", AS_FAST, figure="copied")
                    rows.append(row)
                found.append(task("send", tuple(rows), partial(send, sizes.load, role, window)))
            shown = latency_rows("publishLatency", f"{role}, send to answer", sizes.load.rate, goal=AS_FAST)[:2]
            rows = [msgspec.structs.replace(row, name=f"{name}-{row.name}") for row in shown]
            found.append(task("latency", tuple(rows), partial(paced, sizes.load, role)))
        twice, text = Goal("ratio at least", 2), "catch-up, 2 GB"
        rate = Row("catch-up-rate", f"{text} of 1 KB, from the first byte on", "GB/s", twice, figure="rate")
        whole = Row("catch-up-time", f"{text}, from the slave's start to equal logs", "s", less_is_better=True)
        return [*found, task("catch-up", (rate, whole), partial(catch_up, sizes.behind))]

    @contextmanager
    def peer(self, folder: Path, quick: bool) -> Iterator[dict[str, str]]:
        """Java's pairs warm up when they are first used."""
        self._jars += class_path(JAVA_BROKER)
        yield java_versions(self._jars)

    def close(self) -> None:
        """Ends the pairs that a row has started."""
        for pairs in self._pairs.values():
            pairs.stop()


def _sizes(quick: bool) -> PairSizes:
    return QUICK if quick else FULL


# -- the rows ------------------------------------------------------------------------------------------------


def send(sizes: Sizes, role: Role, window: int, pairs: Pairs) -> Run:
    """Single messages of 1 KB; also how long it takes until the slave has all of them."""
    count = sizes.run_serially if window == 1 else sizes.many
    done, cpu = pairs.warm(role).ask(do="send", topic="sends", body=BODY, count=count, window=window)
    ended = time.perf_counter()
    pair = pairs.pairs[role]
    late = max(wait_until_equal(pair.master_log, pair.slave_log) - ended, 0.0)
    figures = {"value": count / done["seconds"], "copied": count / (done["seconds"] + late)}
    return Run(figures, {"messages": int(done["replies"])}, cpu)


def paced(sizes: Sizes, role: Role, pairs: Pairs) -> Run:
    """From a send to its answer, at a fixed rate."""
    return latency(sizes, pairs.warm(role))


def catch_up(messages: int, pairs: Pairs) -> Run:
    """A slave is started that lacks nearly all of its master's log."""
    lacked, waited, took, cpu = pairs.behind().catch_up()
    return Run({"rate": lacked / took / 1e9, "value": waited + took}, {"messages": messages}, cpu)


# -- two logs on disk ----------------------------------------------------------------------------------------


class Log(msgspec.Struct, frozen=True):
    """The log of a store."""

    store: Path
    file_size: int

    def file(self, offset: int) -> Path:
        return self.store / "commitlog" / f"{offset - offset % self.file_size:020d}"

    def end(self) -> int:
        """The offset after the last byte that is not zero; 0 if there is none."""
        for path in sorted((self.store / "commitlog").glob("[0-9]*"), reverse=True):
            with path.open("rb", buffering=0) as file:
                for begin, stop in reversed(list(written_ranges(file.fileno(), 0, self.file_size))):
                    for at in range(stop - (stop - begin - 1) % _PIECE - 1, begin - 1, -_PIECE):
                        file.seek(at)
                        if used := len(file.read(min(_PIECE, stop - at)).rstrip(b"\0")):
                            return int(path.name) + at + used
        return 0

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of one file, fewer where it ends; none if the file does not exist yet."""
        try:
            with self.file(offset).open("rb", buffering=0) as file:
                file.seek(offset % self.file_size)
                return file.read(count)
        except FileNotFoundError:
            return b""

    def goes_beyond(self, offset: int) -> bool:
        """Whether a record begins at `offset`."""
        return any(self.read(offset, 4))


def wait_until_equal(master: Log, slave: Log, within_s: float = _EQUAL_WITHIN_S) -> float:
    """Waits until the slave has the master's last record; returns when that was. Raises BenchFailed."""
    end = master.end()
    count = min(_TAIL, end % master.file_size or master.file_size)
    tail = master.read(end - count, count)
    deadline = time.perf_counter() + within_s
    while slave.read(end - count, count) != tail:
        if time.perf_counter() > deadline:
            raise BenchFailed(f"the slave has {slave.end()} of {end} bytes of the log after {within_s:g} s")
        time.sleep(_POLL_S)
    return time.perf_counter()


def check_equal(master: Log, slave: Log) -> None:
    """Compares all of the master's log, byte by byte. Raises BenchFailed."""
    end = master.end()
    for at in range(0, end, _PIECE):
        count = min(_PIECE, end - at)
        if master.read(at, count) != slave.read(at, count):
            raise BenchFailed(f"the slave's log is not its master's between {at} and {at + count}")


# -- pairs ---------------------------------------------------------------------------------------------------


class Pair:
    """A master and its slave, which take messages as one broker."""

    def __init__(self, make: Make, folder: Path, settings: dict[str, object], role: Role) -> None:
        self._file_size = int(str(settings["mappedFileSizeCommitLog"]))
        self.master = make(folder / "master", {**settings, "brokerRole": role})
        self.slave = make(folder / "slave", {**settings, "brokerRole": "SLAVE", "brokerId": 1})
        self.port = 0

    @property
    def pids(self) -> tuple[int, ...]:
        return self.master.pids + self.slave.pids

    @property
    def master_log(self) -> Log:
        return Log(self.master.store, self._file_size)

    @property
    def slave_log(self) -> Log:
        return Log(self.slave.store, self._file_size)

    def start(self) -> float:
        """Starts both on new stores; returns the seconds until the slave has the first messages. Raises BenchFailed."""
        started = time.perf_counter()
        try:
            self._start_both()
            while not self.master.takes_messages():  # a SYNC_MASTER does once its slave follows
                if time.perf_counter() - started > _FOLLOWS_WITHIN_S:
                    raise BenchFailed(f"no slave followed within {_FOLLOWS_WITHIN_S:g} s")
                time.sleep(0.05)
            return wait_until_equal(self.master_log, self.slave_log, _FOLLOWS_WITHIN_S) - started
        except BaseException:
            self.stop()
            raise

    def _start_both(self) -> None:
        self.master.make_new()
        while not _is_free(self.master.port + 1):
            self.master.make_new()
        self.port = self.master.port
        ha_port = self.port + 1  # RocketMQ's broker takes this one, whatever its settings say
        self.master.settings["haListenPort"] = ha_port
        self.master.resume(self.master.is_listening)
        self.slave.make_new()
        self.slave.settings["haMasterAddress"] = f"127.0.0.1:{ha_port}"
        self.slave.settings["masterAddr"] = f"127.0.0.1:{self.port}"
        self.slave.resume(self.slave.is_listening)

    def disk_bytes(self) -> int:
        return self.master.disk_bytes() + self.slave.disk_bytes()

    def stop(self) -> None:
        self.slave.stop()
        self.master.stop()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Behind:
    """A master with a filled log, and the store of a slave that was stopped long before; filled when first used."""

    def __init__(self, pair: Pair, kept: Path, messages: int) -> None:
        self._pair = pair
        self._kept = kept
        self._messages = messages
        self._begin = 0

    def catch_up(self) -> tuple[int, float, float, float]:
        """Starts the slave and waits until the logs are equal. Raises BenchFailed.

        Returns the bytes that it lacked, the seconds until they began to come, the seconds from then on, and the CPU
        seconds of both brokers (the master's from here on, the slave's from its start).
        """
        pair = self._pair
        if not self._begin:
            self._fill()
        shutil.rmtree(pair.slave.store)
        shutil.copytree(self._kept, pair.slave.store, copy_function=copy_sparse)
        with Stopwatch(*pair.master.pids) as took:
            waited = pair.slave.resume(lambda: pair.slave_log.goes_beyond(self._begin))
            wait_until_equal(pair.master_log, pair.slave_log)
        slave_cpu = cpu_seconds(*pair.slave.pids)
        check_equal(pair.master_log, pair.slave_log)
        pair.slave.end()
        return pair.master_log.end() - self._begin, waited, took.seconds - waited, took.cpu + slave_cpu

    def _fill(self) -> None:
        """A Java slave without a log begins with its master's last file, so each slave follows the first record."""
        pair = self._pair
        pair.start()
        pair.slave.end()
        shutil.copytree(pair.slave.store, self._kept, copy_function=copy_sparse)
        self._begin = pair.slave_log.end()
        generate(
            do="batch", topic="fill", port=pair.port, body=BODY, count=self._messages, messages=_BATCH, window=_BATCH
        )

    def stop(self) -> None:
        self._pair.stop()
        shutil.rmtree(self._kept, ignore_errors=True)
        self._begin = 0


class Pairs:
    """All pairs of one side."""

    def __init__(self, make: Make, folder: Path, sizes: PairSizes) -> None:
        settings = sizes.load.settings()
        self.pairs = {role: Pair(make, folder / role.lower(), settings, role) for role in ROLES}
        self._warm = {role: Warm(pair, sizes.load) for role, pair in self.pairs.items()}
        late = Pair(make, folder / "behind", settings, "ASYNC_MASTER")
        self._behind = Behind(late, folder / "kept", sizes.behind)

    def warm(self, role: Role) -> Warm:
        """The pair with a master of that role; the others are ended."""
        self._end_all_but(self._warm[role])
        return self._warm[role]

    def behind(self) -> Behind:
        """The pair whose slave is behind; the others are ended."""
        self._end_all_but(self._behind)
        return self._behind

    def stop(self) -> None:
        self._end_all_but(None)

    def _end_all_but(self, wanted: Warm | Behind | None) -> None:
        every: list[Warm | Behind] = [*self._warm.values(), self._behind]
        for each in every:
            if each is not wanted:
                each.stop()
