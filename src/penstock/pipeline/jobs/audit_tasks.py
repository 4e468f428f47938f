"""What workers do for `verify`: audit one index file, or some bytes of one store's log.

A piece carries its store's plan packed, so that a worker unpacks the plans of the stores it works on and no others, and
keeps the last. Nothing that happens to one store ends the job: what a worker could not do is an answer too.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import PenstockError
from penstock.store.audit.index_files import IndexFacts, audit_index_file
from penstock.store.audit.listing import DataFile
from penstock.store.audit.plan import Piece, Plan
from penstock.store.audit.range_audit import audit_range
from penstock.store.overlay_files import OverlayFiles

_SMALLEST: Final = 16 << 20
_MOST_IN_A_TASK: Final = 64


class Packed(msgspec.Struct, frozen=True):
    """A store's plan, and what is known of its index files, as bytes."""

    plan: bytes
    index: bytes = b""

    @classmethod
    def of(cls, plan: Plan, index: tuple[IndexFacts, ...] = ()) -> Packed:
        return cls(pickle.dumps(plan), pickle.dumps(index))


class IndexPiece(msgspec.Struct, frozen=True):
    """One index file, by its place among the plan's."""

    store: Packed
    file: DataFile
    place: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return self.file.size


class LogPiece(msgspec.Struct, frozen=True):
    """A range of one log file."""

    store: Packed
    range: Piece

    @property
    def path(self) -> Path:
        return self.range.file.path

    @property
    def size(self) -> int:
        return self.range.stop - self.range.start


AuditPiece = IndexPiece | LogPiece
Numbered = tuple[int, AuditPiece]
"""A piece with the number by which its answer is known."""


class Answer(msgspec.Struct, frozen=True):
    """What became of a piece."""

    result: Any = None
    """IndexFacts, or a RangeResult."""
    gone: str = ""
    """A file that is not there: its owner may have deleted it."""
    problem: str = ""
    """Why the piece could not be looked at, in one sentence."""


def tasks_of(pieces: Sequence[AuditPiece]) -> list[list[Numbered]]:
    """Numbers pieces, and puts small neighbours together: a hundred small stores are not to cost a thousand tasks."""
    tasks: list[list[Numbered]] = []
    held = 0
    for number, piece in enumerate(pieces):
        if not tasks or held + piece.size > _SMALLEST or len(tasks[-1]) == _MOST_IN_A_TASK:
            tasks.append([])
            held = 0
        tasks[-1].append((number, piece))
        held += piece.size
    return tasks


def answer(piece: AuditPiece) -> Answer:
    """Audits one piece."""
    try:
        return _audit(piece)
    except PenstockError as error:
        return Answer(problem=str(error))
    except FileNotFoundError as error:
        return Answer(gone=str(error.filename))
    except OSError as error:
        return Answer(problem=f"{error.filename}: {error.strerror or error}")


def answers(numbered: Sequence[Numbered]) -> bytes:
    """The same for the pieces of one of Spark's tasks: numbers and answers, pickled."""
    return pickle.dumps([(number, answer(piece)) for number, piece in numbered])


def _audit(piece: AuditPiece) -> Answer:
    files = OverlayFiles()
    plan: Plan = _unpacked(piece.store.plan)
    for folder in (plan.layout.commit_log, *([plan.layout.consume_queue] if plan.queues else [])):
        if not files.is_folder(folder):
            return Answer(problem=f"{folder}: {socket.gethostname()} does not see it; all hosts must, by this path")
    if not files.exists(piece.path):
        return Answer(gone=str(piece.path))
    if isinstance(piece, IndexPiece):
        return Answer(audit_index_file(plan, files, piece.place))
    return Answer(audit_range(plan, files, piece.range, _unpacked(piece.store.index)))


@lru_cache(maxsize=4)
def _unpacked(data: bytes) -> Any:
    return pickle.loads(data)
