"""Gives a message back to its broker, to come again later or to become a dead letter: 36.

Where the broker that has the message cannot take it back, a copy is sent to the group's retry topic at any broker.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.routes import TEMPLATE_TOPIC
from penstock.clock import now_ms
from penstock.errors import PenstockError
from penstock.format.constants import DELAY, ORIGIN_MESSAGE_ID, RETRY_PREFIX, RETRY_TOPIC
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import COMPRESSED, COMPRESSION_MASK
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.groups import SendBack
from penstock.protocol.headers.send import SendMessageV2

log = logging.getLogger("penstock.client")

_FIRST_LEVEL: Final = 3
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class SendBacks:
    """For one group. `max_times` is how often a message is retried before it is a dead letter."""

    def __init__(self, instance: ClientInstance, group: str, max_times: int) -> None:
        self._instance = instance
        self._group = group
        self.max_times = max_times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether the message is the broker's business again; a negative level makes it a dead letter at once."""
        try:
            await self._give_back(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be given back: %s", message, error)
        try:
            await self._send_copy(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be sent to be retried either: %s", message, error)
        return False

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> None:
        header = SendBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self.max_times,
        )
        address = self._instance.routes.address(message.broker_name)
        await self._instance.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def _send_copy(self, message: ReceivedMessage, delay_level: int) -> None:
        record, topic = message.record, f"{RETRY_PREFIX}{self._group}"
        times = self.max_times if delay_level < 0 else message.reconsume_times + 1
        properties = {
            **record.properties,
            RETRY_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: record.properties.get(ORIGIN_MESSAGE_ID, message.msg_id),
            DELAY: str(max(delay_level, 0) or _FIRST_LEVEL + message.reconsume_times),
        }
        header = SendMessageV2(
            producer_group=_PRODUCER_GROUP,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp=now_ms(),
            flag=record.flag,
            properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
            reconsume_times=times,
            max_reconsume_times=self.max_times,
        )
        route = await self._instance.routes.find(topic)
        for address in route.masters.values():
            await self._instance.ask(address, RequestCode.SEND_MESSAGE_V2, header, record.body)
            return
        raise PenstockError(f"no broker has topic '{topic}'")
