"""Whether a message may be sent to a topic, and which topic that is: made if it is new, or the one for dead letters."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.group_table import GroupTable
from penstock.broker.settings import SettingsInForce
from penstock.broker.system_topics import NOT_FOR_SENDING, dead_letter_topic
from penstock.broker.topic_table import UNIT, UNIT_SUBSCRIPTION, TopicTable
from penstock.errors import BadMessage
from penstock.format.config_tables import TopicConfig
from penstock.format.constants import RETRY_PREFIX
from penstock.format.topics import check_topic
from penstock.protocol.bodies.route import PERM_WRITE
from penstock.protocol.codes import ResponseCode
from penstock.protocol.headers.send import SendMessage
from penstock.protocol.versions import V3_4_9
from penstock.remoting.handlers import Refusal


class SendChecks:
    """RocketMQ's checks of a send, in its order."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, settings: SettingsInForce, clock: Callable[[], int]
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._settings = settings
        self._clock = clock

    def topic_for(self, header: SendMessage) -> TopicConfig:
        """The topic that a send names. Raises Refusal."""
        settings, name = self._settings.now, header.topic
        if self._clock() < settings.start_accept_send_request_time_stamp:
            why = "this broker does not take messages yet (startAcceptSendRequestTimeStamp)"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)
        if not settings.is_writable:
            raise Refusal(ResponseCode.NO_PERMISSION, "this broker may not be written to (brokerPermission)")
        try:
            check_topic(name)
        except BadMessage as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if name in NOT_FOR_SENDING:
            raise Refusal(ResponseCode.NO_PERMISSION, f"topic '{name}' is the broker's own; nobody else may send to it")
        topic = self._topics.find(name) or self._make(header)
        if not topic.perm & PERM_WRITE:
            raise Refusal(ResponseCode.NO_PERMISSION, f"topic '{name}' may not be written to")
        return topic

    def queue_of(self, header: SendMessage, queues: int) -> None:
        """Raises Refusal if there is no such queue."""
        if header.queue_id >= queues:
            why = f"topic '{header.topic}' has {queues} queues, and no queue {header.queue_id}"
            raise Refusal(ResponseCode.SYSTEM_ERROR, why)

    def _make(self, header: SendMessage) -> TopicConfig:
        is_retry = header.topic.startswith(RETRY_PREFIX)
        flag = 0 if not header.unit_mode else UNIT_SUBSCRIPTION if is_retry else UNIT
        made = None
        if is_retry:
            made = self._topics.create_for_send_back(header.topic, 1, sys_flag=flag)
        else:
            queues = header.default_topic_queue_nums
            made = self._topics.create_on_send(header.topic, header.default_topic, queues, flag)
        if made is None:
            why = f"topic '{header.topic}' does not exist, and may not be made by a send; create it first"
            raise Refusal(ResponseCode.TOPIC_NOT_EXIST, why)
        return made

    def dead_letter_for(self, header: SendMessage, version: int) -> TopicConfig | None:
        """The topic for dead letters, if a retry that a client sends itself has been retried often enough."""
        name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find_or_create(name)
        if group is None:
            raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group '{name}' does not exist")
        most = group.retry_max_times
        if version >= V3_4_9 and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        if header.reconsume_times < most:
            return None
        return make_dead_letter_topic(self._topics, name)


def make_dead_letter_topic(topics: TopicTable, group: str) -> TopicConfig:
    """The topic for a group's dead letters, made if it is new. Raises Refusal."""
    found = topics.create_for_send_back(dead_letter_topic(group), 1)
    if found is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"topic '{dead_letter_topic(group)}' does not exist and cannot be made"
        )
    return found
