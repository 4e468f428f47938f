"""The peer: Apache RocketMQ's published store, in a process of its own for the whole run; and where Java's jars are.

Compiled with Maven if the program is not there or is older than its source; otherwise nothing is fetched. The process
gets `HEAP` of heap and Java's own choice of everything else.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.peers import PROJECT, Peer, PeerError, build

HEAP = "2g"


class NoJava(Exception):
    """A sentence that says why there is no peer."""


def class_path(project: Path = PROJECT) -> list[Path]:
    """What Java needs to run a program of ours, or a published one. Raises NoJava."""
    if shutil.which("java") is None:
        raise NoJava("java is not installed")
    try:
        return _built(project) or build(project)
    except PeerError as reason:
        raise NoJava(str(reason)) from reason


def _built(project: Path) -> list[Path]:
    """The class path of the last build, empty if there is none or the source is newer."""
    jars = list((project / "target").glob("*-peer-*.jar"))
    libraries = list((project / "target" / "lib").glob("*.jar"))
    programs = list((project / "src").rglob("*.java"))
    newest = max(source.stat().st_mtime for source in [project / "pom.xml", *programs])
    made = jars if programs else [project / "target" / "lib"]
    if not libraries or not made or min(each.stat().st_mtime for each in made) < newest:
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


class BesideStore:
    """A suite whose peer is Apache RocketMQ's store: how that is started and warmed up."""

    beside = "Java"

    def class_path(self) -> list[Path]:
        return class_path()

    @contextmanager
    def peer(self, jars: list[Path], folder: Path, quick: bool) -> Iterator[Peer]:
        with started(jars) as peer:
            self.warm_up(peer, folder, quick)
            yield peer

    def warm_up(self, peer: Peer, folder: Path, quick: bool) -> None:
        """Has Java do a little of everything, several hundred thousand times."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing runs of our side."""
