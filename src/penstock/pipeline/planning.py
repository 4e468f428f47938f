"""From ranges to tasks: how a read is cut, the same way each time for the same ranges and options."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

from penstock.errors import BadSettings, BadStore
from penstock.pipeline.options import EARLIEST, Options
from penstock.pipeline.places import Place, Task
from penstock.pipeline.ranges import Limits, Span, cut, packed
from penstock.pipeline.resolve import choose_queues, ends, spans_between, starts
from penstock.pipeline.store_place import StorePlace

if TYPE_CHECKING:
    from penstock.pipeline.cluster_place import ClusterPlace

_TASKS_AT_LEAST: Final = 16
"""Small queues share tasks, but not so that fewer than this are left."""


def open_place(options: Options, *, following: bool = False) -> StorePlace | ClusterPlace:
    """Where the options say the messages are. Raises BadStore, BadSettings, Unreachable."""
    if options.path:
        return StorePlace(options, following=following)
    from penstock.pipeline.cluster_place import ClusterPlace

    return ClusterPlace(options)


def check_there(options: Options) -> None:
    """Looks whether what is to be read is there. Raises what opening it raises, BadSettings for an unknown topic.

    First in the cheap way, which sees what the queues' files hold; a read may find more, as a start would.
    """
    for following in (True, False):
        try:
            with closing(open_place(options, following=following)) as place:
                choose_queues(place, options)
            return
        except (BadSettings, BadStore):
            if options.namesrv or not following:
                raise


def plan_batch(options: Options) -> list[Task]:
    """The tasks of a batch read, of what is there now. Raises what opening raises, BadSettings, DataLost."""
    with closing(open_place(options)) as place:
        queues = choose_queues(place, options)
        first = starts(place, queues, options, otherwise=EARLIEST)
        spans = spans_between(place, first, ends(place, queues, options), options)
        if options.keys and isinstance(place, StorePlace):
            return place.key_tasks(options.keys, spans)
        return plan(place, spans, options)


def plan(place: Place, spans: Sequence[Span], options: Options) -> list[Task]:
    """The tasks for some ranges."""
    limits = Limits(options.max_bytes_per_partition, options.max_records_per_partition, options.min_partitions)
    pieces = cut(spans, limits)
    if options.min_partitions is not None or options.max_records_per_partition is not None or options.order == "log":
        return place.tasks([[piece] for piece in pieces])
    return place.tasks(packed(pieces, options.max_bytes_per_partition, _TASKS_AT_LEAST))
