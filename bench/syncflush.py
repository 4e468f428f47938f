"""The command `python -m bench syncflush`: a put under SYNC_FLUSH beside a bare `msync` of as many bytes.

Both take turns, one put and one `msync` at a time, on files of the same kind in the same folder; which of them comes
first changes from turn to turn. The bare side stores a record into a mapped file and syncs its pages, nothing else. So
the ratio of the medians is what the store adds to the disk. CPU time is that of the whole process, dispatch included.
With `--threads` other than 1 the puts of all threads are timed together, without a bare side.

If `strace` is installed, two more runs of one thread count the futex calls: calls of the longer run less those of the
shorter, by the difference in puts. `python -P bench/syncflush.py FOLDER PUTS THREADS` does one turn with the tree on
PYTHONPATH and prints JSON; it uses the public names of `penstock.store` only, so that other trees can be measured.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import penstock
from penstock.store import Message, MessageStore, Settings

BODY = 1024
FILE_SIZE = 64 << 20
_MS_SYNC = 4
_WARM_UP = 50
_TRACED = (100, 600)
"""Puts of the two runs under strace."""
_SETTINGS = [
    "flushDiskType=SYNC_FLUSH",
    f"mappedFileSizeCommitLog={FILE_SIZE}",
    "maxHashSlotNum=10000",
    "maxIndexNum=40000",
    "osPageCacheBusyTimeOutMills=60000",
]


class BareFile:
    """A mapped file with allocated blocks, to which records are appended and synced."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            os.posix_fallocate(file.fileno(), 0, FILE_SIZE)
            self._memory = mmap.mmap(file.fileno(), FILE_SIZE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._msync = ctypes.CDLL(None, use_errno=True).msync
        self._end = 0

    def append(self, record: bytes) -> None:
        start, self._end = self._end, self._end + len(record)
        self._memory[start : self._end] = record
        start -= start % mmap.PAGESIZE
        if self._msync(ctypes.c_void_p(self._address + start), ctypes.c_size_t(self._end - start), _MS_SYNC):
            raise OSError(ctypes.get_errno(), "msync")


def put(store: MessageStore, number: int) -> int:
    """Puts one message; returns the size of its record."""
    message = Message("bench", bytes(BODY), keys=(f"order_{number}",), tags="TagA", queue_id=number % 4)
    result = store.put(message)
    if not result.ok:
        raise SystemExit(f"put {number} was refused: {result.reason}")
    return result.size


def alternate(store: MessageStore, bare: BareFile, puts: int) -> dict[str, Any]:
    """Puts and syncs in turns. Returns the medians and the CPU time of each, in microseconds."""
    record = bytes(put(store, 0))
    took: dict[str, list[float]] = {"put": [], "msync": []}
    cpu = {"put": 0.0, "msync": 0.0}
    for number in range(-_WARM_UP, puts):
        for side in ("put", "msync") if number % 2 else ("msync", "put"):
            cpu_before, before = time.process_time(), time.perf_counter()
            if side == "put":
                put(store, number)
            else:
                bare.append(record)
            if number >= 0:
                took[side].append(time.perf_counter() - before)
                cpu[side] += time.process_time() - cpu_before
    sides = {side: {"us": 1e6 * statistics.median(took[side]), "cpu_us": 1e6 * cpu[side] / puts} for side in took}
    return {**sides, "ratio": sides["put"]["us"] / sides["msync"]["us"]}


def together(store: MessageStore, puts: int, threads: int) -> dict[str, Any]:
    """Puts from several threads. Returns the rate, and the CPU time of a put in microseconds."""
    put(store, 0)

    def put_some(first: int) -> None:
        for number in range(first, puts, threads):
            put(store, number)

    workers = [threading.Thread(target=put_some, args=(number,)) for number in range(threads)]
    cpu, started = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    return {"puts/s": puts / seconds, "cpu_us": 1e6 * (time.process_time() - cpu) / puts}


def turn(folder: Path, puts: int, threads: int) -> dict[str, Any]:
    """One run in a new store below `folder`."""
    place = Path(tempfile.mkdtemp(prefix="syncflush-", dir=folder))
    try:
        with MessageStore.open(place / "store", Settings.load(pairs=_SETTINGS)) as store:
            if threads == 0:
                for number in range(puts):
                    put(store, number)
                figures: dict[str, Any] = {"puts": puts}
            elif threads == 1:
                figures = alternate(store, BareFile(place / "bare"), puts)
            else:
                figures = together(store, puts, threads)
        return {"tree": str(Path(penstock.__file__).parents[1]), **figures}
    finally:
        shutil.rmtree(place, ignore_errors=True)


def calls_per_put(folder: Path) -> dict[str, float] | None:
    """Returns the futex and msync calls of a put from one thread; None without strace."""
    if shutil.which("strace") is None:
        return None
    counts: list[dict[str, int]] = []
    for puts in _TRACED:
        report = folder / "strace.txt"
        trace = ["strace", "-f", "-c", "-e", "trace=futex,msync", "-o", str(report)]
        subprocess.run(
            [*trace, sys.executable, "-P", __file__, str(folder), str(puts), "0"], check=True, stdout=subprocess.DEVNULL
        )
        lines = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+).* (futex|msync)$", report.read_text(), re.MULTILINE)
        counts.append({name: int(count) for count, name in lines})
        report.unlink()
    few, many = counts
    return {name: (many.get(name, 0) - few.get(name, 0)) / (_TRACED[1] - _TRACED[0]) for name in ("futex", "msync")}


def describe(figures: dict[str, Any]) -> str:
    """One line for a turn."""
    if "ratio" in figures:
        put_side, bare = figures["put"], figures["msync"]
        return (
            f"put {put_side['us']:.0f} us (CPU {put_side['cpu_us']:.0f}), "
            f"msync {bare['us']:.0f} us (CPU {bare['cpu_us']:.0f}), {figures['ratio']:.2f} times"
        )
    return f"{figures['puts/s']:.0f} puts/s, CPU {figures['cpu_us']:.0f} us a put"


if __name__ == "__main__":
    print(json.dumps(turn(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
