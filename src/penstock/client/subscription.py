"""What a consumer wants of a topic: all of it, some tags, or what an SQL92 expression selects."""

from __future__ import annotations

from penstock.clock import now_ms
from penstock.errors import BadRequest, BadSettings
from penstock.protocol.subscription import SQL92, TAG, SubscriptionData, subscribe


class Sql92(str):
    """An SQL92 expression over properties, as in `Sql92("price > 10 AND colour = 'red'")`; a plain text names tags."""

    __slots__ = ()


def make_subscription(topic: str, expression: str) -> SubscriptionData:
    """A subscription of now. Raises BadSettings for one that names no tag at all."""
    kind = SQL92 if isinstance(expression, Sql92) else TAG
    try:
        return subscribe(topic, str(expression), now_ms(), kind)
    except BadRequest as error:
        raise BadSettings(str(error)) from None


def wants(subscription: SubscriptionData, tags: str) -> bool:
    """Whether a message with these tags is meant: brokers may compare hashes only, and those can collide."""
    return subscription.expression_type != TAG or not subscription.tags_set or tags in subscription.tags_set
