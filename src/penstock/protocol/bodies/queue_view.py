"""A look into a consume queue (321), and one subscription of a group (345)."""

from __future__ import annotations

from penstock.format.java_ints import Int32, Int64
from penstock.protocol.bodies.base import Body
from penstock.protocol.subscription import SubscriptionData


class ConsumeQueueData(Body, kw_only=True, omit_defaults=True):
    """One unit. `eval` says whether the group's filter takes it; `msg` what is wrong with it."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool
    extend_data_json: str | None = None
    bit_map: str | None = None
    msg: str | None = None


class QueryConsumeQueueResponseBody(Body, kw_only=True):
    """321."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueData] = []
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0


class QuerySubscriptionResponseBody(Body, kw_only=True):
    """345, 5.x."""

    subscription_data: SubscriptionData | None = None
    group: str
    topic: str
