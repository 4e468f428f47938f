"""Which messages a subscription wants.

By tag, the store itself picks them from a queue's units. By SQL92, what is read is asked afterwards, record by record;
who compiles such expressions is plugged in (`SqlCompiler`), and without it they are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.store.tag_filter import EVERYTHING, TagFilter

RecordFilter: TypeAlias = Callable[[bytes], bool]
"""Whether a record, as it lies in the log, is wanted."""
SqlCompiler: TypeAlias = Callable[[str], RecordFilter]
"""Makes a filter of an SQL92 expression; raises BadRequest."""

_LONGEST_KEPT: Final = 4096


class Selection(NamedTuple):
    """What is wanted of a queue."""

    tags: TagFilter = EVERYTHING
    accepts: RecordFilter | None = None
    """If given, a record has to pass this as well."""

    def may_want(self, tags_codes: npt.NDArray[np.int64]) -> bool:
        """Whether there may be a wanted message among those with these tags codes."""
        hashes = self.tags.hashes
        if hashes is None:
            return True
        return bool(np.isin(tags_codes.astype(np.int32), hashes).any())


ALL: Final = Selection()


def by_tags(expression: str) -> Selection:
    """What `*`, or tags joined by `||`, selects."""
    if expression == "*":
        return ALL
    return Selection(TagFilter(expression)) if len(expression) > _LONGEST_KEPT else _kept(expression)


@lru_cache(maxsize=1024)
def _kept(expression: str) -> Selection:
    """Pulls bring the same few expressions again and again."""
    return Selection(TagFilter(expression))
