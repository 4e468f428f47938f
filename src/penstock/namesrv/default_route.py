"""The route of a topic that nobody has yet.

Some clients send only to a topic whose route they were told, and never ask for the template's. While topics may be
created by a send, they get the route that the topic would have: at each broker that offers the template, with as many
queues as a send creates by default. Names that mean something to a broker get none.
"""

from __future__ import annotations

from typing import Final

from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from penstock.format.topics import is_legal_topic
from penstock.namesrv.route_table import RouteTable
from penstock.protocol.bodies.route import PERM_INHERIT, QueueData, TopicRouteData

TEMPLATE_TOPIC: Final = "TBW102"
_QUEUES: Final = 4
"""What clients ask for when a send creates a topic, unless told otherwise."""
_TAKEN: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        DAMAGED_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_TAKEN_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_", "rmq_sys_", "CID_RMQ_SYS_")


def default_route(routes: RouteTable, topic: str) -> TopicRouteData | None:
    """The route that a send would give to a new topic; None if it would not."""
    if topic in _TAKEN or topic.startswith(_TAKEN_PREFIXES) or not is_legal_topic(topic):
        return None
    template = routes.queues(TEMPLATE_TOPIC)
    offered = [_like(queues) for queues in template.values() if queues.perm & PERM_INHERIT]
    return routes.route_of(offered)


def _like(template: QueueData) -> QueueData:
    return QueueData(
        broker_name=template.broker_name,
        perm=template.perm & ~PERM_INHERIT,
        read_queue_nums=min(_QUEUES, template.write_queue_nums),
        write_queue_nums=min(_QUEUES, template.write_queue_nums),
    )
