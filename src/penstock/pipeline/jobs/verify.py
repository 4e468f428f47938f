"""Is every record sound, in its queue and in the index, and is nothing else there: of many stores at once.

The audit of `penstock store verify` (`penstock.store.audit`), with the same findings, because it is the same code.
Stores are planned on the driver; workers go over the index files, then over ranges of the logs, each with its records,
units and keys; what follows from all of them together is told on the driver, which needs memory for the queues and for
what is wrong, not for the logs. Nothing is changed, and no lock is taken.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import BadStore
from penstock.pipeline.jobs.audit_case import AuditCase
from penstock.pipeline.jobs.audit_tasks import Answer, AuditPiece, Numbered, answers, tasks_of
from penstock.pipeline.jobs.where import Where
from penstock.pipeline.store_place import find_paths, name_stores
from penstock.pipeline.workers import gather, parallelism
from penstock.store.audit import AuditReport
from penstock.store.folder import StoreFolder, quiet_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS: Final = (
    "store string, severity string, kind string, path string, offset bigint, what string, messages bigint, "
    "remedy string"
)
"""The columns of `verify_frame`: a finding's, and whose it is."""

Run = Callable[[Sequence[Sequence[Numbered]]], Iterable[tuple[int, Answer]]]
"""Has the pieces of tasks audited; the answers come in any order, by their pieces' numbers."""


class Verified(msgspec.Struct, frozen=True):
    """What became of one store: a report, or why there is none."""

    path: str
    report: AuditReport | None = None
    problem: str = ""


class Stores(msgspec.Struct, frozen=True):
    """The stores that were named, and what is wrong with the names of others."""

    folders: dict[str, StoreFolder]
    others: dict[str, Verified]

    @classmethod
    def find(cls, where: Where) -> Stores:
        """Raises BadSettings, and BadStore if none of them is a store."""
        where.check(only_stores=True)
        config = Path(where.config) if where.config else None
        found = cls({}, {})
        problem: BadStore | None = None
        for name, path in name_stores(find_paths(where.stores)).items():
            try:
                found.folders[name] = StoreFolder.find(path, config, where.settings)
            except BadStore as error:
                problem = error
                found.others[name] = Verified(str(path), problem=str(error))
        if problem is not None and not found.folders:
            raise problem
        return found


def verify(spark: SparkSession, where: Where | Stores, *, check_crc: bool = True) -> dict[str, Verified]:
    """Audits stores on Spark; by their names. Raises BadSettings, and BadStore if none of them is a store."""

    def run(tasks: Sequence[Sequence[Numbered]]) -> Iterator[tuple[int, Answer]]:
        for told in gather(spark, tasks, answers):
            yield from pickle.loads(told)

    stores = Stores.find(where) if isinstance(where, Where) else where
    return audit_stores(stores, run, check_crc=check_crc, workers=parallelism(spark))


def verify_frame(spark: SparkSession, found: Mapping[str, Verified]) -> DataFrame:
    """One row for each finding."""
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
    """Audits stores with the help of `run`; those in use as often as it takes to believe what is seen of them."""
    cases = {
        name: AuditCase(folder, check_crc=check_crc, workers=workers, piece_size=piece_size)
        for name, folder in stores.folders.items()
    }
    with quiet_log():
        while waiting := [case for case in cases.values() if not case.is_done]:
            for case in waiting:
                case.begin()
            found = _together(run, [case.index_pieces() for case in waiting])
            asked = [case.log_pieces(some) for case, some in zip(waiting, found, strict=True)]
            for case, some in zip(waiting, _together(run, asked), strict=True):
                case.end(some)
    done = {
        name: Verified(str(stores.folders[name].layout.root), case.report, case.problem) for name, case in cases.items()
    }
    return dict(sorted({**done, **stores.others}.items()))


def _together(run: Run, work: Sequence[Sequence[AuditPiece]]) -> list[list[Answer]]:
    """The answers to the pieces of all stores, which are worked on together."""
    every = [piece for some in work for piece in some]
    found = dict(run(tasks_of(every))) if every else {}
    told = iter([found[number] for number in range(len(every))])
    return [[next(told) for _ in some] for some in work]
