"""The tag filter of a subscription: `*`, or tags joined by `||`."""

from __future__ import annotations

import numpy as np

from penstock.format import kernels


class TagFilter:
    """What is wanted: hashes for the units, and texts for the records, since tags may share a hash. Immutable."""

    def __init__(self, expression: str | None) -> None:
        wanted = [piece.strip() for piece in (expression or "*").split("||")]
        self.tags = frozenset(piece for piece in wanted if piece)
        everything = not self.tags or "*" in self.tags
        self.hashes = None if everything else np.array([kernels.java_hash(tag) for tag in self.tags], np.int32)
        """Of the tags wanted; None if every message is."""
        self.texts = () if everything else tuple(tag.encode("utf-8", "surrogateescape") for tag in self.tags)


EVERYTHING = TagFilter("*")
