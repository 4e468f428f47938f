"""Fetches the other side of `bench queues`, only when asked: `python -m bench fetch [redis] [nats] [kafka] [clients]`.

Everything goes to `.cache/peers` in the project's folder, which `make clean` removes; nothing is installed elsewhere,
and nothing needs root. `redis`: the packages of Debian or Ubuntu, unpacked. `nats`: built with Go, through its module
proxy. `kafka`: the broker's jars, with Maven. `clients`: the Python clients, in an environment of their own. It takes
a few minutes, 150 MB there, and what Go and Maven keep in caches of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import PROJECT
from bench.workspace import BenchFailed

PEERS = PROJECT / ".cache" / "peers"
CLIENTS = {
    "redis": "8.1.0",
    "nats-py": "2.16.0",
    "confluent-kafka": "2.16.1",
    "aiokafka": "0.14.0",
    "uvloop": "0.23.0",
}
"""Python packages and their versions."""
_REDIS = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1", "libhiredis0.14", "liblua5.1-0")
_NATS = "github.com/nats-io/nats-server/v2@v2.15.2"
_POM = Path(__file__).parent / "kafka-pom.xml"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
_WITHIN_S = 1200


def run(command: Sequence[str], folder: Path, **variables: str) -> None:
    """Runs a command in a folder. Raises BenchFailed with the last line that it said."""
    if shutil.which(command[0]) is None:
        raise BenchFailed(f"{command[0]} is not installed")
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise BenchFailed(f"{Path(command[0]).name} failed: {said[-1] if said else done.returncode}")


def fetch_redis(place: Path) -> None:
    run(["apt-get", "download", *_REDIS], place)
    for package in place.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(place)], place)
        package.unlink()


def fetch_nats(place: Path) -> None:
    run(["go", "install", _NATS], place, GOBIN=str(place))


def fetch_kafka(place: Path) -> None:
    run(["mvn", "-q", "-B", "-f", str(_POM), _COPY, f"-DoutputDirectory={place}"], place)


def fetch_clients(place: Path) -> None:
    packages = [f"{name}=={version}" for name, version in CLIENTS.items()]
    run([sys.executable, "-m", "venv", str(place)], place)
    run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", *packages], place)


WAYS: dict[str, Callable[[Path], None]] = {
    "redis": fetch_redis,
    "nats": fetch_nats,
    "kafka": fetch_kafka,
    "clients": fetch_clients,
}


def fetch(names: Sequence[str], tell: Callable[[str], None]) -> None:
    """Fetches these, or all; what is there is replaced only by what was fetched whole. Raises BenchFailed."""
    if unknown := [name for name in names if name not in WAYS]:
        raise BenchFailed(f"there is nothing called '{unknown[0]}' to fetch; there are {', '.join(WAYS)}")
    for name in names or WAYS:
        tell(f"fetching {name}")
        place, new = PEERS / name, PEERS / f"{name}.tmp"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        try:
            WAYS[name](new)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)
        new.rename(place)
