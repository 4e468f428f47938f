"""One store's audit when others do the reading: what is asked of the workers, and what follows from their answers.

    case.begin(); case.index_pieces() -> answers; case.log_pieces(answers) -> answers; case.end(answers)

and from the beginning until `is_done`. On the driver; one thread. Whatever cannot be done becomes the case's problem.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import BadStore, PenstockError
from penstock.pipeline.jobs.audit_tasks import Answer, AuditPiece, IndexPiece, LogPiece, Packed
from penstock.pipeline.ranges import size_of_pieces
from penstock.store.audit import AuditReport
from penstock.store.audit.auditor import finish, plan_look, settle
from penstock.store.audit.config_audit import ConfigState
from penstock.store.audit.index_files import IndexFacts
from penstock.store.audit.looks import Look, Looks
from penstock.store.audit.plan import Plan, pieces
from penstock.store.audit.range_audit import RangeResult
from penstock.store.folder import StoreFolder


class AuditCase:
    """The looks at one store. A look that has failed asks for nothing more."""

    def __init__(self, folder: StoreFolder, *, check_crc: bool = True, workers: int = 2, piece_size: int = 0) -> None:
        """`piece_size`: bytes of the log that are one piece; 0 takes what suits the log and the number of workers."""
        self._folder = folder
        self._files = folder.files
        self._check_crc = check_crc
        self._workers = workers
        self._piece_size = piece_size
        self._looks = Looks(folder.files, folder.layout)
        self._look: Look | None = None
        self._plan: Plan | None = None
        self._config = ConfigState()
        self._index: tuple[IndexFacts, ...] = ()
        self._asked: list[AuditPiece] = []
        self.problem = ""
        """Why there will be no report, in one sentence."""

    @property
    def report(self) -> AuditReport | None:
        return self._looks.report

    @property
    def is_done(self) -> bool:
        return self.report is not None or bool(self.problem)

    def begin(self) -> None:
        """Begins a look."""
        with self._trying():
            self._look = self._looks.begin()
            self._plan, self._config = plan_look(
                self._files,
                self._folder.layout,
                self._folder.settings,
                is_live=self._look.is_live,
                check_crc=self._check_crc,
            )

    def index_pieces(self) -> list[AuditPiece]:
        """What is asked first: every index file."""
        self._asked = []
        plan = self._plan
        if plan is not None:
            packed = Packed.of(plan)
            self._asked += [IndexPiece(packed, file, place) for place, file in enumerate(plan.index_files)]
        return self._asked

    def log_pieces(self, answers: Sequence[Answer]) -> list[AuditPiece]:
        """What is asked next: the log, by ranges. `answers` are those to the index pieces, in their order."""
        asked, self._asked = self._asked, []
        plan = self._plan
        if plan is not None:
            with self._trying():
                self._index = tuple(facts for facts in self._results(plan, asked, answers) if facts is not None)
                size = self._piece_size or size_of_pieces(sum(file.size for file in plan.log.files), self._workers)
                packed = Packed.of(plan, self._index)
                self._asked += [LogPiece(packed, piece) for piece in pieces(plan, self._files, size)]
        return self._asked

    def end(self, answers: Sequence[Answer]) -> None:
        """Ends the look; `answers` are those to the log pieces, in their order."""
        plan, look = self._plan, self._look
        if plan is None or look is None:
            return
        with self._trying():
            joined = RangeResult()
            for result in self._results(plan, self._asked, answers):
                joined.join(result or RangeResult())
            settle(plan, self._files, self._index, joined)
            self._looks.take(look, finish(plan, self._files, self._config, self._index, joined))

    def _results(self, plan: Plan, asked: Sequence[AuditPiece], answers: Sequence[Answer]) -> Iterator[Any]:
        """What the workers found, None for a file that retention has taken. Raises BadStore, FileNotFoundError."""
        for piece, answer in zip(asked, answers, strict=True):
            if answer.problem:
                raise BadStore(answer.problem)
            if answer.gone:
                if self._files.exists(Path(answer.gone)):
                    raise BadStore("not every host sees this file; all must, by this path", path=answer.gone)
                if not plan.is_live or answer.gone != str(piece.path):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), answer.gone)
            yield answer.result

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Ends the look if something in it fails, and the case if that was not the store's owner at work."""
        try:
            try:
                yield
            except FileNotFoundError as error:
                self._plan = None
                if self._look is None:
                    raise
                self._looks.lost(self._look, error)
        except PenstockError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror or error}")

    def _fail(self, problem: str) -> None:
        self._plan = None
        self.problem = problem
