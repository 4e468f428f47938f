"""The tag filter of a subscription: `*`, or tags joined by `||`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.constants import TAGS
from penstock.format.queue_unit import MAX_EXT_ADDRESS

_TAGS = TAGS.encode()


class TagFilter:
    """Looks at a unit's hash first and at the record's text second; immutable."""

    def __init__(self, expression: str | None) -> None:
        wanted = [piece.strip() for piece in (expression or "*").split("||")]
        self.tags = frozenset(piece for piece in wanted if piece)
        self.everything = not self.tags or "*" in self.tags
        self._texts = frozenset(tag.encode() for tag in self.tags)
        self._hashes = np.array([kernels.java_hash(tag) for tag in self.tags], np.int32)

    def may_match(self, tags_codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """By the low 32 bits of each tags code, which are a tag's hash; an address that led nowhere may match."""
        if self.everything:
            return np.ones(len(tags_codes), np.bool_)
        return np.isin(tags_codes.astype(np.int32), self._hashes) | (tags_codes <= MAX_EXT_ADDRESS)

    def matches(self, record: bytes) -> bool:
        """By the tag itself: different tags may share a hash."""
        return self.everything or kernels.find_property(record, 0, _TAGS) in self._texts
