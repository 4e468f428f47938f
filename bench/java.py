"""The peer: Apache RocketMQ's published store, in a process of its own for the whole run.

Compiled with Maven if the program is not there or is older than its source; otherwise nothing is fetched. The process
gets `HEAP` of heap and Java's own choice of everything else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from compat.java_peer import PROJECT, Peer, PeerError, build

HEAP = "2g"


class NoJava(Exception):
    """A sentence that says why there is no peer."""


def class_path() -> list[Path]:
    """What Java needs to run the program. Raises NoJava."""
    if shutil.which("java") is None:
        raise NoJava("java is not installed")
    try:
        return _built() or build()
    except PeerError as reason:
        raise NoJava(str(reason)) from reason


def _built() -> list[Path]:
    """The class path of the last build, empty if there is none or the source is newer."""
    jars = list((PROJECT / "target").glob("store-peer-*.jar"))
    libraries = list((PROJECT / "target" / "lib").glob("*.jar"))
    sources = [PROJECT / "pom.xml", *(PROJECT / "src").rglob("*.java")]
    newest = max(source.stat().st_mtime for source in sources)
    if not libraries or not jars or min(jar.stat().st_mtime for jar in jars) < newest:
        return []
    return [*jars, *libraries]


@contextmanager
def started(jars: list[Path]) -> Iterator[Peer]:
    """The process; killed at once when the run is given up, which may be in the middle of a round."""
    with Peer(jars, heap=HEAP) as peer:
        try:
            yield peer
        except BaseException:
            peer.kill()
            raise
