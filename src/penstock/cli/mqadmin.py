"""RocketMQ's spellings: `penstock topicList -n …` is `penstock topic list -n …`, with mqadmin's short options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

VERBS: Final = {
    "updateTopic": "topic create",
    "deleteTopic": "topic delete",
    "topicList": "topic list",
    "topicRoute": "topic route",
    "topicStatus": "topic status",
    "topicClusterList": "topic clusters",
    "updateSubGroup": "group update",
    "deleteSubGroup": "group delete",
    "consumerProgress": "group progress",
    "consumerStatus": "group status",
    "consumerConnection": "group connections",
    "producerConnection": "group producers",
    "sendMessage": "message send",
    "consumeMessage": "message consume",
    "printMsg": "message print",
    "printMsgByQueue": "message print-queue",
    "queryMsgById": "message by-id",
    "queryMsgByKey": "message by-key",
    "queryMsgByUniqueKey": "message by-unique-key",
    "queryMsgByOffset": "message at",
    "resetOffsetByTime": "offset reset",
    "skipAccumulatedMessage": "offset skip",
    "cloneGroupOffset": "offset clone",
    "clusterList": "cluster list",
    "brokerStatus": "cluster status",
    "haStatus": "cluster replication",
    "getBrokerConfig": "cluster config",
    "updateBrokerConfig": "cluster set",
    "wipeWritePerm": "cluster wipe-write-perm",
    "addWritePerm": "cluster add-write-perm",
    "getNamesrvConfig": "cluster namesrv-config",
    "updateNamesrvConfig": "cluster set-namesrv",
    "updateKvConfig": "cluster put-kv",
    "deleteKvConfig": "cluster delete-kv",
}
"""mqadmin's verbs, and what they are called here."""


def translated(arguments: Sequence[str]) -> list[str]:
    """A command line with our names for mqadmin's verb; any other stays as it is."""
    if not arguments or arguments[0] not in VERBS:
        return list(arguments)
    rest = ["--help" if each == "-h" else each for each in arguments[1:]]
    return [*VERBS[arguments[0]].split(), *rest]
