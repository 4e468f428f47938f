"""RocketMQ's C++ client through its PyPI package, told what to do by one JSON object per line.

Run by the Python of an environment of its own; the package owns the module name `rocketmq`.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from typing import Any

from rocketmq.client import Message, MessageModel, Producer, PushConsumer
from rocketmq.exceptions import ProducerSendSyncFailed

_TRIES = 4


class Client:
    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.producers: dict[str, Producer] = {}
        self.consumers: dict[str, PushConsumer] = {}
        self.consumed: dict[str, list[dict[str, Any]]] = {}

    def producer(self, group: str) -> Producer:
        if group not in self.producers:
            made = Producer(group, timeout=5000)
            made.set_namesrv_addr(self.namesrv)
            made.start()
            self.producers[group] = made
        return self.producers[group]

    def send(self, group: str, messages: list[dict[str, Any]], how: str = "sync") -> list[dict[str, Any]]:
        producer = self.producer(group)
        built = [_message(each) for each in messages]
        if how == "batch":
            producer.send_batch(built)
            return [{"status": "SEND_OK"}]
        answers = []
        for given, message in zip(messages, built, strict=True):
            if how == "oneway":
                producer.send_oneway(message)
            elif how == "orderly":
                result = producer.send_orderly(message, given["shard"])
                answers.append(_result(result))
            else:
                answers.append(_result(_send(producer, message)))
        return answers

    def consume(
        self,
        name: str,
        group: str,
        topic: str,
        tags: str = "*",
        orderly: bool = False,
        broadcast: bool = False,
        fails: str = "",
    ) -> dict[str, Any]:
        model = MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING
        consumer = PushConsumer(group, orderly=orderly, message_model=model)
        consumer.set_namesrv_addr(self.namesrv)
        consumer.set_instance_name(name)
        seen = self.consumed.setdefault(name, [])

        def receive(message: Any) -> None:
            body = message.body if isinstance(message.body, bytes) else message.body.encode()
            seen.append(
                {
                    "body": base64.b64encode(body).decode(),
                    "topic": _text(message.topic),
                    "tags": _text(message.tags),
                    "keys": _text(message.keys),
                    "queue_offset": message.queue_offset,
                    "reconsume_times": message.reconsume_times,
                }
            )
            if fails and body.startswith(fails.encode()):
                raise ValueError("this one fails")

        consumer.subscribe(topic, receive, tags)
        consumer.start()
        self.consumers[name] = consumer
        return {}

    def stop(self, name: str) -> dict[str, Any]:
        self.consumers.pop(name).shutdown()
        return {}

    def run(self, ask: dict[str, Any]) -> Any:
        do = ask.pop("do")
        if do == "consumed":
            return self.consumed[ask["name"]]
        return {"send": self.send, "consume": self.consume, "stop": self.stop}[do](**ask)


def _message(given: dict[str, Any]) -> Message:
    made = Message(given["topic"])
    made.set_body(base64.b64decode(given["body"]))
    if given.get("tags"):
        made.set_tags(given["tags"])
    if given.get("keys"):
        made.set_keys(given["keys"])
    if given.get("delay"):
        made.set_delay_time_level(given["delay"])
    return made


def _send(producer: Producer, message: Message) -> Any:
    """Sends; again where the client's first question for the route ran out of time, which it does not ask twice."""
    for _ in range(_TRIES - 1):
        try:
            return producer.send_sync(message)
        except ProducerSendSyncFailed as error:
            if "No route info" not in str(error):
                raise
    return producer.send_sync(message)


def _result(result: Any) -> dict[str, Any]:
    return {"status": str(result.status), "msg_id": result.msg_id, "queue_offset": result.offset}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the library prints must not come between the answers
    client = Client(sys.argv[1])
    for line in sys.stdin:
        try:
            answer = client.run(json.loads(line))
        except Exception as error:
            answer = {"error": repr(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)


main()
