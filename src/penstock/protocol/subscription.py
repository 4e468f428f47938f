"""A consumer's subscription to a topic: an expression and, if it names tags, the hash codes that a broker compares.

A client may send the expression alone; this module then computes the tags and their hash codes. It does no I/O.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import BadRequest
from penstock.format import kernels
from penstock.format.constants import Int32, Int64
from penstock.protocol.bodies.base import Body

TAG: Final = "TAG"
SQL92: Final = "SQL92"
EVERYTHING: Final = "*"
MAX_TAGS: Final = 4096
"""Limit of the tags of one expression."""


class SubscriptionData(Body, kw_only=True):
    """A subscription. `sub_version` is its creation time in epoch ms; a subscription with a higher one replaces it."""

    topic: str
    sub_string: str = EVERYTHING
    tags_set: list[str] = []
    code_set: list[Int32] = []
    sub_version: Int64 = 0
    expression_type: str = TAG
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        self.expression_type = self.expression_type or TAG
        self.sub_string = self.sub_string or EVERYTHING
        if self.expression_type == TAG and not self.wants_everything:
            self.tags_set = self.tags_set or tags_of(self.sub_string)
            self.code_set = self.code_set or [kernels.java_hash(tag) for tag in self.tags_set]

    @property
    def wants_everything(self) -> bool:
        return self.sub_string == EVERYTHING


def check_tags(expression: str) -> None:
    """Raises BadRequest if a tag expression has more than MAX_TAGS tags: a broker compares them at each pull."""
    if (count := expression.count("||") + 1) > MAX_TAGS:
        raise BadRequest(f"a subscription may have {MAX_TAGS} tags, and this one has {count}")


def tags_of(expression: str) -> list[str]:
    """Returns the distinct tags of an expression such as `A || B`, in order. Raises BadRequest: see `check_tags`."""
    check_tags(expression)
    return list(dict.fromkeys(tag for piece in expression.split("||") if (tag := piece.strip())))


def subscribe(topic: str, expression: str | None, version: int, expression_type: str | None = None) -> SubscriptionData:
    """Returns the subscription for an expression. Raises BadRequest if a tag expression names no tag."""
    subscription = SubscriptionData(
        topic=topic, sub_string=expression or EVERYTHING, sub_version=version, expression_type=expression_type or TAG
    )
    if subscription.expression_type == TAG and not subscription.wants_everything and not subscription.tags_set:
        raise BadRequest(f"the subscription '{expression}' of topic '{topic}' names no tag; write '*' or 'A || B'")
    return subscription
