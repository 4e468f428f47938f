"""The figures a broker can show: counts, sizes, latencies, rates, and how far flush and dispatch are behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from support.disks import FaultyFiles
from support.stores import StoreHome, eventually

from penstock.store import Message, PutStatus
from penstock.store.dispatch import DispatchLag
from penstock.store.message import PutResult
from penstock.store.put_and_get_statistics import Statistics

pytestmark = pytest.mark.usefixtures("kernels_name")


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_puts_are_counted_however_they_come(home: StoreHome, sync: bool) -> None:
    store = home.open(sync=sync)
    assert store.figures().put_average_size == 0.0
    results = [store.put(Message("T", bytes(size))) for size in (8, 108, 208)]
    results.append(store.put_async(Message("T", b"")).result(30))
    results += store.put_many([Message("T", b"")] * 3).results
    store.put(Message("no topic", b""))
    store.put_many([Message("", b"")])
    figures = store.figures()
    assert (figures.put_total, figures.put_failed) == (7, 2)
    assert figures.put_bytes == sum(result.size for result in results)
    assert figures.put_average_size == figures.put_bytes / 7
    assert sum(figures.put_latency_ms.values()) == 9
    assert list(figures.put_latency_ms) == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
        "200",
        "500",
        "1000",
        "2000",
        "3000",
        "4000",
        "5000",
        "10000",
        "more",
    ]
    assert figures.put_slowest_ms > 0
    assert figures.started_ms == home.clock.now


def test_a_slow_put_is_seen_in_the_latencies(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    disk.before_sync = lambda path: time.sleep(0.05)
    store.put(Message("T", b"slow"))
    figures = store.figures()
    quick = sum(figures.put_latency_ms[bound] for bound in ("1", "2", "5", "10", "20"))
    assert (quick, sum(figures.put_latency_ms.values())) == (0, 1)
    assert figures.put_slowest_ms >= 30


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_latencies_have_a_sum_and_none_is_left_out(home: StoreHome, sync: bool) -> None:
    store = home.open(sync=sync)
    store.put(Message("T", b""))
    before = store.figures()
    assert 0 < before.put_seconds < 60
    assert before.put_seconds * 1000 <= before.put_slowest_ms * 1.001
    store.statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), 77.0)
    store.get("T", 0, 0)
    store.get("T", 0, 1)
    figures = store.figures()
    assert figures.put_latency_ms["more"] == 1
    assert figures.put_seconds - before.put_seconds == pytest.approx(77.0)
    assert sum(figures.get_latency_ms.values()) == figures.get_total == 2
    assert 0 < figures.get_seconds < 60


def test_rates_are_those_of_ten_seconds_a_minute_and_ten_minutes(home: StoreHome) -> None:
    store, now = home.open(), [0.0]
    store.put(Message("T", b""))
    page = store.get("T", 0, 0)
    statistics = Statistics(0, store.log.appender, clock=lambda: now[0])
    for second in range(1000):
        now[0] += 1
        for _ in range(4 if second >= 990 else 1 if second >= 940 else 0):
            statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), 0.001)
            statistics.count_get(page, 0.001)
        statistics.sample()
    rates = statistics.snapshot(
        dispatch=DispatchLag(0),
        dispatch_skipped=0,
        flush_behind=0,
        put_lock_held=0.0,
        transient_buffers_free=0,
        puts_refused="",
        retention=None,
    ).rates
    assert [each.puts for each in rates] == [4, 90 / 60, 90 / 600]
    assert [each.gets for each in rates] == [4, 90 / 60, 90 / 600]
    assert (rates[0].gets_found, rates[0].gets_missed, rates[0].got_messages) == (4, 0, 4)


STEPPED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static _Atomic long steps;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (id == CLOCK_REALTIME) now->tv_sec += 3600 * (++steps % 2);
    return result;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_clock_that_is_set_makes_no_put_slow_or_negative(tmp_path: Path) -> None:
    """Each reading of the time of day is an hour off the one before."""
    (tmp_path / "stepped.c").write_text(STEPPED)
    library = tmp_path / "stepped.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "stepped.c", "-ldl"], check=True)
    script = """
import sys, msgspec
from penstock.store import Message, MessageStore, Settings
with MessageStore.open(sys.argv[1], Settings.dev()) as store:
    results = [store.put(Message("T", b"x"))]
    while len({each.store_timestamp for each in results}) < 4:
        results.append(store.put(Message("T", b"x")))
        results += store.put_many([Message("T", b"x")] * 2).results
    stepped = max(each.store_timestamp for each in results) - min(each.store_timestamp for each in results)
    figures = store.figures()
    missing = len(results) - sum(figures.put_latency_ms.values())
    print(msgspec.json.encode([stepped, figures.put_slowest_ms, figures.put_seconds, missing]).decode())
"""
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    command = [sys.executable, "-c", script, tmp_path / "store"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    stepped, slowest_ms, seconds, missing = msgspec.json.decode(done.stdout)
    assert stepped > 3_000_000, "the clock was set"
    assert 0 < slowest_ms < 600_000
    assert 0 < seconds < 600
    assert missing == 0


def test_gets_are_counted_with_what_they_found(home: StoreHome) -> None:
    store = home.open()
    sizes = [store.put(Message("T", bytes(size))).size for size in (1, 2, 3)]
    store.get("T", 0, 0)
    store.get("T", 0, 1, max_messages=1)
    store.get("T", 0, 3)
    store.get("unknown", 0, 0)
    figures = store.figures()
    assert (figures.get_total, figures.get_found, figures.get_missed) == (4, 2, 2)
    assert figures.got_messages == 4
    assert figures.got_bytes == sum(sizes) + sizes[1]


def test_rates_follow_what_was_done(home: StoreHome) -> None:
    store = home.open()
    started = time.monotonic()
    for _ in range(100):
        store.put(Message("T", b""))
        store.get("T", 0, 0, max_messages=2)
    figures = store.figures()
    least = 100 / (time.monotonic() - started + 10)
    assert figures.put_per_second > least
    assert figures.get_per_second > least
    assert figures.got_messages_per_second > figures.get_per_second


def test_rates_fall_when_nothing_happens_any_more(home: StoreHome) -> None:
    """The window is 60 samples of the keeper: here 60 rounds of one millisecond."""
    store = home.open(flush_interval_consume_queue=1)
    for _ in range(10):
        store.put(Message("T", b""))
    eventually(lambda: store.figures().put_per_second == 0, "the rate still counts what is long past")
    assert store.figures().put_total == 10


def test_what_is_not_on_disk_yet_is_behind_for_flush_and_dispatch(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    go_on, in_sync = threading.Event(), threading.Event()

    def wait_in_sync(path: object) -> None:
        in_sync.set()
        go_on.wait(60)

    disk.before_sync = wait_in_sync
    future = store.put_async(Message("T", bytes(100)))
    assert in_sync.wait(30)
    figures = store.figures()
    assert figures.flush_behind_bytes == 192
    assert figures.dispatch_behind_bytes == 0, "what is not confirmed is not yet dispatch's to do"
    go_on.set()
    assert future.result(30).ok
    assert store.figures().flush_behind_bytes == 0


def test_dispatch_behind_shows_messages_that_consumers_cannot_see_yet(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b""))
    store.catch_up()
    in_dispatch, go_on = threading.Event(), threading.Event()

    def wait_in_dispatch(*arrived: object) -> None:
        in_dispatch.set()
        go_on.wait(60)

    store.on_arrival(wait_in_dispatch)
    try:
        size = store.put(Message("T", b"")).size
        assert in_dispatch.wait(30)
        assert store.figures().dispatch_behind_bytes == size
    finally:
        go_on.set()
    store.catch_up()
    assert store.figures().dispatch_behind_bytes == 0


def test_the_time_for_which_the_put_lock_is_held_is_seen(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk)
    go_on, in_allocation = threading.Event(), threading.Event()

    def wait_in_allocation(path: object) -> None:
        in_allocation.set()
        go_on.wait(60)

    disk.before_allocate = wait_in_allocation
    with ThreadPoolExecutor(1) as threads:
        putting = threads.submit(store.put, Message("T", b""))
        try:
            assert in_allocation.wait(30)
            first = store.figures().put_lock_held_ms
            assert store.figures().put_lock_held_ms > first > 0
        finally:
            go_on.set()
        assert putting.result(30).ok
    assert store.figures().put_lock_held_ms == 0


def test_the_figures_can_be_sent_as_json(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b""))
    assert msgspec.json.decode(msgspec.json.encode(store.figures()))["put_total"] == 1
