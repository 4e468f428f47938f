"""The servers of `bench queues` as processes: ours, Redis, NATS and Kafka, each on a free port and a new folder.

Each has two modes. `page-cache` is how it is used when speed counts and a killed process must lose nothing or little;
`on-disk` has every message synced before its answer. `ACKS` says what an answer means in each. What is not here is
named by `missing`; a program on PATH is used, or what `python -m bench fetch` has fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from support.loopback import free_port

from bench.processes import BrokerProcess, PenstockBroker
from bench.queues.fetch import CLIENTS, PEERS
from bench.workspace import BenchFailed

Mode = Literal["page-cache", "on-disk"]
ACKS: dict[Mode, str] = {
    "page-cache": (
        "What an answer to a send means: Penstock: in the page cache, synced within half a second, or ten seconds if "
        "less than 16 KiB were written. Redis: in memory and, unless a sync is under way, in the page cache, synced "
        "within a second or two (appendfsync everysec). NATS: stored by the server, synced within two minutes "
        "(sync_interval). Kafka: in the page cache, synced when the kernel does (acks=all, one replica)."
    ),
    "on-disk": (
        "On disk before the answer: Penstock: SYNC_FLUSH. Redis: appendfsync always. NATS: sync_interval always. "
        "Kafka: flush.messages=1."
    ),
}
_FETCH = "'python -m bench fetch {}' fetches it"
_KAFKA_HEAP = "1g"


def program(name: str, fetched: Path) -> Path | None:
    """The program that was fetched, or else the one on PATH: a distribution's may be too old for its settings here."""
    if fetched.exists():
        return fetched
    found = shutil.which(name)
    return None if found is None else Path(found)


def with_libraries() -> dict[str, str]:
    """The environment of a program that was fetched with its libraries."""
    libraries = [str(path) for path in (PEERS / "redis" / "usr" / "lib").glob("*-linux-gnu")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)} if libraries else dict(os.environ)


def missing(system: str) -> str:
    """Why a system cannot be measured here; empty if it can. Ours always can."""
    if system == "penstock":
        return ""
    if not (PEERS / "clients" / "bin" / "python").exists():
        return f"the Python clients of the others are not here; {_FETCH.format('clients')}"
    servers = {"redis": Redis.program(), "nats": Nats.program(), "kafka": Kafka.jars()}
    if not servers[system]:
        return f"{system} is not installed; {_FETCH.format(system)}"
    return "java is not installed" if system == "kafka" and shutil.which("java") is None else ""


def versions() -> dict[str, str]:
    """Of the servers and Python clients of the others that are here."""
    found = {}
    for system, server in (("redis", Redis), ("nats", Nats)):
        if not missing(system):
            order = [str(server.program()), "--version"]
            done = subprocess.run(order, env=with_libraries(), capture_output=True, text=True, timeout=60, check=False)
            number = re.search(r"v=?([\d.]+)", done.stdout)
            found[f"{system}-server"] = number[1] if number else "unknown"
    if not missing("kafka"):
        numbers = [match[1] for jar in Kafka.jars() if (match := re.fullmatch(r"kafka-server-([\d.]+)\.jar", jar.name))]
        found["kafka"] = numbers[0] if numbers else "unknown"
    for folder in sorted((PEERS / "clients" / "lib").glob("python*/site-packages/*.dist-info")):
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if name.replace("_", "-") in CLIENTS:
            found[f"{name.replace('_', '-')} (client)"] = version
    return found


class Penstock(PenstockBroker):
    """`penstock serve` with its embedded name server and its default settings, as a user starts it."""

    system = "penstock"

    def __init__(self, folder: Path, mode: Mode) -> None:
        super().__init__(folder, {"flushDiskType": "SYNC_FLUSH"} if mode == "on-disk" else {})

    def address(self) -> dict[str, object]:
        return {"namesrv": self.namesrv}


class Server(BrokerProcess):
    """A server of another system."""

    system = ""

    def __init__(self, folder: Path, mode: Mode) -> None:
        super().__init__(folder, {})
        self.mode = mode

    def make_new(self) -> None:
        super().make_new()
        self.port = free_port()

    def address(self) -> dict[str, object]:
        """Where a client connects to."""
        return {"port": self.port}


class Redis(Server):
    """With an append-only file; snapshots are off."""

    system = "redis"

    @staticmethod
    def program() -> Path | None:
        return program("redis-server", PEERS / "redis" / "usr" / "bin" / "redis-server")

    def command(self) -> Sequence[str]:
        sync = "always" if self.mode == "on-disk" else "everysec"
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.store)]
        return [str(self.program()), *where, "--appendonly", "yes", "--appendfsync", sync, "--save", ""]

    def environment(self) -> dict[str, str]:
        return with_libraries()


class Nats(Server):
    """With JetStream, in files."""

    system = "nats"

    @staticmethod
    def program() -> Path | None:
        return program("nats-server", PEERS / "nats" / "nats-server")

    def command(self) -> Sequence[str]:
        sync = "always" if self.mode == "on-disk" else "2m"
        config = self.folder / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{self.store}", sync_interval: {sync} }}\n',
            encoding="utf-8",
        )
        return [str(self.program()), "-c", str(config)]


class Kafka(Server):
    """A broker that is its own controller (KRaft)."""

    system = "kafka"

    @staticmethod
    def jars() -> list[Path]:
        return sorted((PEERS / "kafka").glob("*.jar"))

    def _java(self, main: str, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", f"-Xmx{_KAFKA_HEAP}", quiet, "-cp", str(PEERS / "kafka" / "*"), main, *arguments]

    def make_new(self) -> None:
        super().make_new()
        controller = free_port()
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.store,
            "num.partitions": 4,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        if self.mode == "on-disk":
            settings["log.flush.interval.messages"] = 1
        config = self.folder / "server.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        order = self._java("kafka.tools.StorageTool", "format", "-t", "cGVuc3RvY2stYmVuY2gtMQ", "-c", str(config))
        done = subprocess.run(order, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise BenchFailed(
                f"Kafka's folder was not formatted: {(done.stderr.splitlines() or ['it said nothing'])[-1]}"
            )

    def command(self) -> Sequence[str]:
        return self._java("kafka.Kafka", str(self.folder / "server.properties"))


AnyServer = Penstock | Redis | Nats | Kafka
SERVERS: dict[str, type[AnyServer]] = {each.system: each for each in (Penstock, Redis, Nats, Kafka)}
