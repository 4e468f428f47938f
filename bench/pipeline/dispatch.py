"""How long a message takes from its producer to a waiting consumer, with inline and with external dispatch.

    python -m bench.pipeline.dispatch [--messages 300] [--every 0.05] [--master 'local[2]']

One broker, one producer that sends a message now and then, one consumer whose long poll waits for it, all over
loopback; with external dispatch also `penstock pipeline dispatch`, as an application of its own. A message carries when
it was sent; the consumer notes when it came. The first messages, which wait for Spark to start, do not count.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from penstock.client.message import Message
from penstock.client.sync import Producer, PullConsumer
from penstock.testing import broker

_START_S = 300.0


def percentile(sorted_values: list[float], percent: int) -> float:
    return sorted_values[min(len(sorted_values) * percent // 100, len(sorted_values) - 1)]


class Waiting:
    """A consumer in a thread: how many milliseconds each message took."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self.took: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with PullConsumer("bench", self._namesrv) as consumer:
            consumer.assign(consumer.queues("T"))
            while not self._stop.is_set():
                for message in consumer.poll(1.0):
                    self.took.append((time.monotonic_ns() - int(message.body)) / 1e6)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + _START_S
        while len(self.took) < count:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {len(self.took)} of {count} messages came")
            time.sleep(0.005)


def measure(namesrv: str, messages: int, every: float) -> list[float]:
    with Waiting(namesrv) as waiting, Producer("bench", namesrv) as producer:
        for number in range(20):  # warm-up: each one waits for the one before
            producer.send(Message("T", b"%d" % time.monotonic_ns()))
            waiting.wait_for(number + 1)
        waiting.took.clear()
        for _ in range(messages):
            producer.send(Message("T", b"%d" % time.monotonic_ns()))
            time.sleep(every)
        waiting.wait_for(messages)
        return sorted(waiting.took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument("--every", type=float, default=0.05, help="seconds between two messages")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores", file=sys.stderr)
    print("| dispatch | p50 ms | p90 ms | p99 ms | slowest ms |\n|---|---|---|---|---|")
    for kind in ("inline", "external"):
        with (
            tempfile.TemporaryDirectory() as folder,
            broker({"T": 1}, store_path=Path(folder) / "store", settings={"dispatch": kind}) as served,
        ):
            job: subprocess.Popen[bytes] | None = None
            if kind == "external":
                command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "dispatch", "--json"]
                command += ["--store", str(served.store_path), "--master", given.master]
                job = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
            try:
                took = measure(served.namesrv, given.messages, given.every)
            finally:
                if job is not None:
                    job.send_signal(signal.SIGTERM)
                    job.wait(60)
            figures = [percentile(took, percent) for percent in (50, 90, 99)] + [took[-1]]
            print(f"| {kind} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
