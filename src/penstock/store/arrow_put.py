"""Putting Arrow record batches: the columns are planned, then appended in one go. Needs pyarrow."""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import BadMessage
from penstock.format.arrow_puts import PutBatch
from penstock.format.hosts import encode_host
from penstock.format.put_rows import PutLimits, PutRows, RowRefused, plan_puts
from penstock.store.arrow_results import ArrowResult
from penstock.store.message import Message
from penstock.store.prepare import PutRefused, prepare
from penstock.store.put import Putter
from penstock.store.settings import Settings
from penstock.store.status import PutStatus


def put_batch(putter: Putter, settings: Settings, batch: pa.RecordBatch) -> ArrowResult:
    """Stores all rows; see `MessageStore.put_arrow`."""
    if not isinstance(batch, pa.RecordBatch):
        raise TypeError(f"a pyarrow.RecordBatch is needed, not {type(batch).__name__}")
    return putter.put_rows(lambda: _plan(batch, settings))


def check_batch(batch: pa.RecordBatch, settings: Settings) -> None:
    """Raises RowRefused if a put would refuse the batch: with the row, -1 if it is not one row's fault, and why."""
    try:
        _planned(batch, settings)
    except _Unfit as unfit:
        raise RowRefused(unfit.number, unfit.reason) from None


class _Unfit(Exception):
    """A batch that may not be stored, because of one row, or as a whole (-1)."""

    def __init__(self, number: int, status: PutStatus, reason: str) -> None:
        super().__init__(reason)
        self.number, self.status, self.reason = number, status, reason


def _plan(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    try:
        return _planned(batch, settings)
    except _Unfit as unfit:
        reason = unfit.reason if unfit.number < 0 else f"row {unfit.number}: {unfit.reason}"
        raise PutRefused(unfit.status, reason) from None


def _planned(batch: pa.RecordBatch, settings: Settings) -> PutRows:
    limits = PutLimits(
        settings.max_message_size,
        settings.max_record_size,
        len(settings.delay_levels),
        encode_host(Message("", b"").born_host),
        encode_host(settings.store_host),
    )
    try:
        columns = PutBatch(batch)
        return plan_puts(columns.columns(), limits)
    except (BadMessage, ValueError) as error:
        raise _Unfit(-1, PutStatus.MESSAGE_ILLEGAL, str(error)) from None
    except RowRefused as refused:
        why = _explain(columns, refused, settings)
        raise _Unfit(refused.number, why.status, why.reason) from None


def _explain(columns: PutBatch, refused: RowRefused, settings: Settings) -> PutRefused:
    """Why a put of that row alone would be refused."""
    if refused.reason:
        return PutRefused(PutStatus.MESSAGE_ILLEGAL, refused.reason)
    try:
        prepare(
            Message(**columns.fields(refused.number)),
            store_host=settings.store_host,
            max_message_size=settings.max_message_size,
            max_record_size=settings.max_record_size,
            delay_levels=len(settings.delay_levels),
        )
    except PutRefused as why:
        return why
    raise AssertionError(f"row {refused.number} was refused, though a put would take it")
