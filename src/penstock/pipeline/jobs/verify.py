"""Audits many stores at once on Spark: every record must be valid, in its queue and in the index.

The job runs the code of `penstock store verify` (`penstock.store.audit`), so its findings are the same. The driver
plans the audit. Workers audit pieces of it: first the index files, then ranges of the logs with their records, units
and keys. The driver combines the results. Its memory grows with the queues and findings, not with the logs. The job
changes nothing and takes no lock.

`AuditCase` is one store's audit on the driver. Its caller repeats these steps until `is_done`, and runs the pieces:

    case.begin(); case.index_pieces() -> answers; case.log_pieces(answers) -> answers; case.end(answers)

A failure in one store sets that case's `problem` and does not end the job. Each piece has its store's plan in pickled
form. A worker therefore unpickles only the plans that it needs, and caches the last four.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import BadStore, PenstockError
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.offset_ranges import piece_size_for
from penstock.pipeline.session import gather, parallelism
from penstock.store.audit import AuditReport
from penstock.store.audit.audit import AuditPass, AuditPasses, build_report, plan_pass, wait_for_dispatch
from penstock.store.audit.config import ConfigState
from penstock.store.audit.index_keys import IndexFacts, audit_index_file
from penstock.store.audit.plan import AuditPlan, AuditRange, split_log
from penstock.store.audit.ranges import RangeResult, audit_range
from penstock.store.audit.several_stores import Stores, Verified
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.readonly.infer_file_sizes import NumberedFile
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# -- on workers ------------------------------------------------------------------------------------------------------

_TASK_BYTES: Final = 16 << 20
_MAX_TASK_PIECES: Final = 64


class PackedPlan(msgspec.Struct, frozen=True):
    """A store's AuditPlan and its IndexFacts, both pickled."""

    plan: bytes
    index: bytes = b""

    @classmethod
    def of(cls, plan: AuditPlan, index: tuple[IndexFacts, ...] = ()) -> PackedPlan:
        return cls(pickle.dumps(plan), pickle.dumps(index))


class IndexPiece(msgspec.Struct, frozen=True):
    """A piece: one index file. `number` is its position in the plan's `index_files`."""

    store: PackedPlan
    file: NumberedFile
    number: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return self.file.size


class LogPiece(msgspec.Struct, frozen=True):
    """A piece: a range of one log file."""

    store: PackedPlan
    range: AuditRange

    @property
    def path(self) -> Path:
        return self.range.file.path

    @property
    def size(self) -> int:
        return self.range.stop - self.range.start


AuditPiece = IndexPiece | LogPiece
NumberedPiece = tuple[int, AuditPiece]
"""A piece, after its number. Its answer gets the same number."""


class AuditAnswer(msgspec.Struct, frozen=True):
    """The outcome of auditing a piece. One of the fields is set."""

    result: Any = None
    """The IndexFacts of an index file, or the RangeResult of a log range."""
    gone: str = ""
    """The path of a missing file, which the store's owner may have deleted."""
    problem: str = ""
    """One sentence that says why the piece could not be audited."""


def tasks_of(pieces: Sequence[AuditPiece]) -> list[list[NumberedPiece]]:
    """Numbers the pieces and groups them into tasks, so that a hundred small stores do not cost a thousand tasks.

    A task has neighbouring pieces of at most 16 MiB in total, or one larger piece.
    """
    tasks: list[list[NumberedPiece]] = []
    size = 0
    for number, piece in enumerate(pieces):
        if not tasks or size + piece.size > _TASK_BYTES or len(tasks[-1]) == _MAX_TASK_PIECES:
            tasks.append([])
            size = 0
        tasks[-1].append((number, piece))
        size += piece.size
    return tasks


def answer(piece: AuditPiece) -> AuditAnswer:
    """Audits one piece. The answer has the problem if that fails."""
    try:
        return _audit(piece)
    except PenstockError as error:
        return AuditAnswer(problem=str(error))
    except FileNotFoundError as error:
        return AuditAnswer(gone=str(error.filename))
    except OSError as error:
        return AuditAnswer(problem=f"{error.filename}: {error.strerror or error}")


def answers(numbered: Sequence[NumberedPiece]) -> bytes:
    """Audits the pieces of one Spark task. Returns a pickled list of (number, answer)."""
    return pickle.dumps([(number, answer(piece)) for number, piece in numbered])


def _audit(piece: AuditPiece) -> AuditAnswer:
    files = OverlayFiles()
    plan: AuditPlan = _unpickle(piece.store.plan)
    for folder in (plan.layout.commit_log, *([plan.layout.consume_queue] if plan.queues else [])):
        if not files.is_folder(folder):
            return AuditAnswer(
                problem=f"{folder}: {socket.gethostname()} does not see this folder; every host must, by this path"
            )
    if not files.exists(piece.path):
        return AuditAnswer(gone=str(piece.path))
    if isinstance(piece, IndexPiece):
        return AuditAnswer(audit_index_file(plan, files, piece.number))
    return AuditAnswer(audit_range(plan, files, piece.range, _unpickle(piece.store.index)))


@lru_cache(maxsize=4)
def _unpickle(data: bytes) -> Any:
    return pickle.loads(data)


# -- one store -------------------------------------------------------------------------------------------------------


class AuditCase:
    """The audit of one store. After a failure it returns no more pieces. Not thread-safe."""

    def __init__(self, folder: StoreFolder, *, check_crc: bool = True, workers: int = 2, piece_size: int = 0) -> None:
        """`piece_size` is the bytes of the log per piece; 0 derives it from the log's size and number of workers."""
        self._folder = folder
        self._files = folder.files
        self._check_crc = check_crc
        self._workers = workers
        self._piece_size = piece_size
        self._looks = AuditPasses(folder.files, folder.layout)
        self._look: AuditPass | None = None
        self._plan: AuditPlan | None = None
        self._config = ConfigState()
        self._index: tuple[IndexFacts, ...] = ()
        self._requested: list[AuditPiece] = []
        self.problem = ""
        """One sentence that says why there is no report; empty if there is no problem."""

    @property
    def report(self) -> AuditReport | None:
        return self._looks.report

    @property
    def is_done(self) -> bool:
        return self.report is not None or bool(self.problem)

    def begin(self) -> None:
        """Starts a pass over the store: a plan and the audit of its pieces. A store in use may need several passes."""
        with self._record_failures():
            self._look = self._looks.begin()
            self._plan, self._config = plan_pass(
                self._files,
                self._folder.layout,
                self._folder.settings,
                is_live=self._look.is_live,
                check_crc=self._check_crc,
            )

    def index_pieces(self) -> list[AuditPiece]:
        """Returns the first pieces of a pass: every index file."""
        self._requested = []
        plan = self._plan
        if plan is not None:
            packed = PackedPlan.of(plan)
            self._requested += [IndexPiece(packed, file, number) for number, file in enumerate(plan.index_files)]
        return self._requested

    def log_pieces(self, answers: Sequence[AuditAnswer]) -> list[AuditPiece]:
        """Returns the next pieces of a pass: ranges of the log. `answers` are for the index pieces, in order."""
        requested, self._requested = self._requested, []
        plan = self._plan
        if plan is not None:
            with self._record_failures():
                self._index = tuple(facts for facts in self._results(plan, requested, answers) if facts is not None)
                size = self._piece_size or piece_size_for(sum(file.size for file in plan.log.files), self._workers)
                packed = PackedPlan.of(plan, self._index)
                self._requested += [LogPiece(packed, piece) for piece in split_log(plan, self._files, size)]
        return self._requested

    def end(self, answers: Sequence[AuditAnswer]) -> None:
        """Ends the pass and adds its report. `answers` are for the log pieces, in order."""
        plan, look = self._plan, self._look
        if plan is None or look is None:
            return
        with self._record_failures():
            joined = RangeResult()
            for result in self._results(plan, self._requested, answers):
                joined.join(result or RangeResult())
            wait_for_dispatch(plan, self._files, self._index, joined)
            self._looks.add(look, build_report(plan, self._files, self._config, self._index, joined))

    def _results(
        self, plan: AuditPlan, requested: Sequence[AuditPiece], answers: Sequence[AuditAnswer]
    ) -> Iterator[Any]:
        """Yields the workers' results in order, or None for a file that retention deleted.

        Raises BadStore if a piece has a problem, FileNotFoundError for any other missing file.
        """
        for piece, answer in zip(requested, answers, strict=True):
            if answer.problem:
                raise BadStore(answer.problem)
            if answer.gone:
                if self._files.exists(Path(answer.gone)):
                    raise BadStore("not every host sees this file; every host must, by this path", path=answer.gone)
                if not plan.is_live or answer.gone != str(piece.path):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), answer.gone)
            yield answer.result

    @contextmanager
    def _record_failures(self) -> Iterator[None]:
        """Ends the pass if the block fails. Sets `problem` too, unless the store's owner may have deleted a file."""
        try:
            try:
                yield
            except FileNotFoundError as error:
                self._plan = None
                if self._look is None:
                    raise
                self._looks.file_missing(self._look, error)
        except PenstockError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror or error}")

    def _fail(self, problem: str) -> None:
        self._plan = None
        self.problem = problem


# -- the job ---------------------------------------------------------------------------------------------------------

FINDINGS: Final = (
    "store string, severity string, kind string, path string, offset bigint, what string, messages bigint, "
    "remedy string"
)
"""The columns of `verify_frame`: the store's name, and the fields of a finding."""
Run = Callable[[Sequence[Sequence[NumberedPiece]]], Iterable[tuple[int, AuditAnswer]]]
"""A function that audits the pieces of tasks. It returns (number of the piece, answer) in any order."""


def find_stores(job_input: JobInput) -> Stores:
    """Finds the stores of an input. Raises BadSettings, or BadStore if no folder is a store."""
    job_input.check(only_stores=True)
    return Stores.find(job_input.stores, Path(job_input.config) if job_input.config else None, job_input.settings)


def verify(spark: SparkSession, job_input: JobInput | Stores, *, check_crc: bool = True) -> dict[str, Verified]:
    """Audits stores on Spark and returns the results by store name.

    `check_crc` also checks the bodies' CRCs. Raises BadSettings, or BadStore if no folder is a store.
    """

    def run(tasks: Sequence[Sequence[NumberedPiece]]) -> Iterator[tuple[int, AuditAnswer]]:
        for results in gather(spark, tasks, answers):
            yield from pickle.loads(results)

    stores = find_stores(job_input) if isinstance(job_input, JobInput) else job_input
    return audit_stores(stores, run, check_crc=check_crc, workers=parallelism(spark))


def verify_frame(spark: SparkSession, found: Mapping[str, Verified]) -> DataFrame:
    """Returns a DataFrame with one row per finding. A store without a report has no rows."""
    rows = [
        (store, *msgspec.structs.astuple(finding))
        for store, each in found.items()
        if each.report is not None
        for finding in each.report.findings
    ]
    return spark.createDataFrame(rows, FINDINGS)


def audit_stores(
    stores: Stores, run: Run, *, check_crc: bool = True, workers: int = 2, piece_size: int = 0
) -> dict[str, Verified]:
    """Audits stores and returns the results by store name. `run` audits the pieces.

    A store in use gets further passes until its report is stable.
    """
    cases = {
        name: AuditCase(folder, check_crc=check_crc, workers=workers, piece_size=piece_size)
        for name, folder in stores.folders.items()
    }
    with quiet_log():
        while waiting := [case for case in cases.values() if not case.is_done]:
            for case in waiting:
                case.begin()
            found = _run_together(run, [case.index_pieces() for case in waiting])
            requested = [case.log_pieces(some) for case, some in zip(waiting, found, strict=True)]
            for case, some in zip(waiting, _run_together(run, requested), strict=True):
                case.end(some)
    done = {
        name: Verified(str(stores.folders[name].layout.root), case.report, case.problem) for name, case in cases.items()
    }
    return dict(sorted({**done, **stores.others}.items()))


def _run_together(run: Run, work: Sequence[Sequence[AuditPiece]]) -> list[list[AuditAnswer]]:
    """Runs the pieces of all stores together. Returns a list of answers per store, in the order of `work`."""
    all_pieces = [piece for some in work for piece in some]
    found = dict(run(tasks_of(all_pieces))) if all_pieces else {}
    results = iter([found[number] for number in range(len(all_pieces))])
    return [[next(results) for _ in some] for some in work]
