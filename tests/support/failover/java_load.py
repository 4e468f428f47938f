"""Producers and consumers of Apache RocketMQ's Java client, whose answers go into the same `History` as those of ours.

`penstock.Load`, under tests/peers/java/client, sends and consumes in processes of its own, and writes one JSON line for
each answer and each message. Its clock is this process's: System.nanoTime and time.monotonic are both Linux's
CLOCK_MONOTONIC.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from penstock.format.message_id import decode_message_id
from support.failover.history import Consumption, Outcome, Send
from support.failover.load import BROKER_NAME, TOPIC, Acknowledged, Consumers, queue_name

_NS = 1e-9
_QUICK = ("lockInterval=1000", "waitInterval=1000")
"""A consumer looks for its queues, and locks them, as often as it asks for routes; every 20 s otherwise."""
_ENDS_WITHIN_S = 60.0


class _Process:
    """One run of `penstock.Load`: a thread hands over each line. What it logs is in the folder `logs`."""

    def __init__(self, jars: Sequence[Path], logs: Path, *words: object) -> None:
        quick = [f"-Drocketmq.client.rebalance.{each}" for each in _QUICK]
        options = ["-Xmx256m", f"-Drocketmq.client.logRoot={logs}", "-Drocketmq.client.logLevel=WARN", *quick]
        path = ":".join(map(str, jars))
        self._command = ["java", *options, "-cp", path, "penstock.Load", *map(str, words)]
        self._said = logs / f"{words[0]}.txt"
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread(target=self._read)

    def _take(self, line: dict[str, Any]) -> None:
        raise NotImplementedError

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._take(json.loads(line))

    def __enter__(self) -> Self:
        self._said.parent.mkdir(parents=True, exist_ok=True)
        with self._said.open("ab") as said:
            pipe: int = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=said, text=True)
        self._reader.start()
        return self

    def __exit__(self, *error: object) -> None:
        process = self._process
        assert process is not None
        streams: list[IO[str] | None] = [process.stdin, process.stdout]
        with contextlib.suppress(BrokenPipeError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._reader.join()
        for stream in streams:
            if stream is not None:
                stream.close()
        assert process.returncode == 0, f"Java's client ended with {process.returncode}: {self._said.read_text()}"


class JavaProducers(_Process, Acknowledged):
    """Threads of one Java producer that send side by side, each waiting for its answer before it sends again."""

    def __init__(
        self,
        jars: Sequence[Path],
        logs: Path,
        namesrv: str,
        queues: int,
        seed: int,
        *,
        count: int = 2,
        pause_ms: int = 5,
    ) -> None:
        _Process.__init__(self, jars, logs, "produce", namesrv, TOPIC, BROKER_NAME, queues, count, seed, pause_ms)
        Acknowledged.__init__(self)

    def _take(self, line: dict[str, Any]) -> None:
        sends = sends_of(line)
        self.sends += sends
        self.acknowledged += sum(send.outcome is Outcome.OK for send in sends)


def sends_of(line: dict[str, Any]) -> list[Send]:
    """Returns the messages of one request, with the answer that all of them got."""
    name, first, queue = line["producer"], line["number"], queue_name(TOPIC, line["queue"])
    began, ended = line["began"] * _NS, line["ended"] * _NS
    numbers = range(first, first + line["count"])
    if "status" not in line:
        outcome = Outcome.REFUSED if "refused" in line else Outcome.UNKNOWN
        said = line.get("refused") or line["unknown"]
        return [Send(name, each, f"{name}-{each}", queue, began, ended, outcome, said=said) for each in numbers]
    outcome = Outcome.OK if line["status"] == "SEND_OK" else Outcome.STORED
    found = []
    for at, (number, message_id) in enumerate(zip(numbers, line["ids"].split(","), strict=True)):
        broker, physical = decode_message_id(message_id)
        place = (line["offset"] + at, physical, broker, line["status"])
        found.append(Send(name, number, f"{name}-{number}", queue, began, ended, outcome, *place))
    return found


class JavaGroup(Consumers):
    """What one group of Java's push consumers received."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.is_ordered = group.endswith("orderly")

    def take(self, line: dict[str, Any]) -> None:
        self._tokens.add(line["token"])
        where = queue_name(TOPIC, line["queue"])
        seen = Consumption(self.group, self.group, where, line["offset"], line["token"], line["at"] * _NS)
        self.consumptions.append(seen)


class JavaConsumers(_Process):
    """Two groups of one consumer each: one consumes side by side, one in order."""

    def __init__(self, jars: Sequence[Path], logs: Path, namesrv: str) -> None:
        self.groups = [JavaGroup("CID_java"), JavaGroup("CID_java_orderly")]
        super().__init__(jars, logs, "consume", namesrv, TOPIC, *(each.group for each in self.groups))

    def _take(self, line: dict[str, Any]) -> None:
        next(each for each in self.groups if each.group == line["group"]).take(line)
