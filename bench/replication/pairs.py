"""Master and slave as processes, ours or Java's, and which of them run.

A side has one pair for each role of its master; only one of them runs at a time, so that what is measured shares the
machine with one idle pair of the other side and no more. Neither side has a name server: slaves are told by their
settings where the master is.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from bench.broker.processes import BrokerProcess
from bench.broker.sides import Side, Sizes, generate
from bench.harness import BenchFailed
from bench.recovery.killed import copy_sparse
from bench.replication.logs import Log, check_equal, wait_until_equal

Role = Literal["SYNC_MASTER", "ASYNC_MASTER"]
Make = Callable[[Path, dict[str, object]], BrokerProcess]
BODY = 1024
_MIB = 1 << 20
_BATCH = 32
_FOLLOWS_WITHIN_S = 60.0
_LOOK_S = 0.05
_RECORD = 1300
"""More than a message of 1 KB takes."""


class PairSizes(msgspec.Struct, frozen=True):
    """How much is done in a round."""

    load: Sizes
    behind: int
    """Messages that a slave has to catch up with."""

    @property
    def disk_need(self) -> int:
        """Two pairs: either both roles' load, or what a slave is behind; each store has a log file made ahead."""
        loaded = self.load.store_limit + 4 * self.load.log_file
        behind = 2 * (self.behind * _RECORD + 2 * self.load.log_file)
        return 2 * max(loaded, behind) + 1024 * _MIB


FULL = PairSizes(
    load=Sizes(
        one_by_one=10_000,
        many=102_400,
        passes=1,
        rate=1_000,
        seconds=10,
        warm_up=102_400,
        log_file=1024 * _MIB,
        store_limit=5 * 1024 * _MIB,
    ),
    behind=1_664_000,
)
QUICK = PairSizes(
    load=Sizes(
        one_by_one=50,
        many=640,
        passes=1,
        rate=200,
        seconds=0.4,
        warm_up=0,
        log_file=8 * _MIB,
        store_limit=256 * _MIB,
    ),
    behind=9_600,
)


class Pair:
    """A master and its slave, which take messages as one broker."""

    def __init__(self, make: Make, folder: Path, settings: dict[str, object], role: Role) -> None:
        self._file_size = int(str(settings["mappedFileSizeCommitLog"]))
        self.master = make(folder / "master", {**settings, "brokerRole": role})
        self.slave = make(folder / "slave", {**settings, "brokerRole": "SLAVE", "brokerId": 1})
        self.port = 0

    @property
    def master_log(self) -> Log:
        return Log(self.master.store, self._file_size)

    @property
    def slave_log(self) -> Log:
        return Log(self.slave.store, self._file_size)

    def start(self) -> float:
        """Both on new stores; returns the seconds until the slave has the first messages. Raises BenchFailed."""
        started = time.perf_counter()
        try:
            self._start_both()
            while not self.master.takes_messages():  # a SYNC_MASTER does once its slave follows
                if time.perf_counter() - started > _FOLLOWS_WITHIN_S:
                    raise BenchFailed(f"no slave followed within {_FOLLOWS_WITHIN_S:g} s")
                time.sleep(_LOOK_S)
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

    def catch_up(self) -> tuple[int, float, float]:
        """Starts the slave: bytes that it lacked, seconds until they began to come, and from then until all were there.

        Raises BenchFailed, also if the two logs are not equal then.
        """
        pair = self._pair
        if not self._begin:
            self._fill()
        shutil.rmtree(pair.slave.store)
        shutil.copytree(self._kept, pair.slave.store, copy_function=copy_sparse)
        started = time.perf_counter()
        waited = pair.slave.resume(lambda: pair.slave_log.goes_beyond(self._begin))
        ended = wait_until_equal(pair.master_log, pair.slave_log)
        check_equal(pair.master_log, pair.slave_log)
        pair.slave.end()
        return pair.master_log.end() - self._begin, waited, ended - started - waited

    def _fill(self) -> None:
        """A Java slave that has nothing begins with its master's last file, so each slave follows the first record."""
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
        self._sides: dict[Role, Side] = {}
        self.pairs: dict[Role, Pair] = {}
        for role in ("SYNC_MASTER", "ASYNC_MASTER"):
            self.pairs[role] = Pair(make, folder / role.lower(), settings, role)
            self._sides[role] = Side(self.pairs[role], sizes.load)
        late = Pair(make, folder / "behind", settings, "ASYNC_MASTER")
        self._behind = Behind(late, folder / "kept", sizes.behind)

    def side(self, role: Role) -> Side:
        """The pair with a master of that role; others are ended."""
        self._end_all_but(self._sides[role])
        return self._sides[role]

    def behind(self) -> Behind:
        """The pair whose slave is behind; others are ended."""
        self._end_all_but(self._behind)
        return self._behind

    def stop(self) -> None:
        self._end_all_but(None)

    def _end_all_but(self, wanted: Side | Behind | None) -> None:
        every: list[Side | Behind] = [*self._sides.values(), self._behind]
        for each in every:
            if each is not wanted:
                each.stop()
