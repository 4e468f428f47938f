"""mqadmin's verbs: those that Penstock has under another name, and what replaces the others."""

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
    "producer": "group producers",
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
"""mqadmin's verbs, and the Penstock verbs that replace them."""

ELSEWHERE: Final = {
    "updateTopicPerm": "`penstock topic create TOPIC --perm 4`, which leaves everything else as it is",
    "updateOrderConf": "`penstock topic create TOPIC --order true`",
    "allocateMQ": "`penstock group progress GROUP --clients true`, which shows the client of each queue",
    "statsAll": "`penstock topic list` for messages and rates, and `penstock group progress` for lag",
    "brokerConsumeStats": "`penstock group progress`",
    "getConsumerConfig": "`penstock group describe GROUP`",
    "sendMsgStatus": "`penstock perf produce`",
    "checkMsgSendRT": "`penstock perf produce`, which prints latencies",
    "clusterRT": "`penstock perf produce`, which prints latencies",
    "queryCq": "`penstock message print-queue`, or `penstock store get` for a store's files",
    "queryMsgTraceById": "`penstock message by-key RMQ_SYS_TRACE_TOPIC ID`, which finds the records of the trace",
    "startMonitoring": "the broker's /metrics with Prometheus",
    "cleanExpiredCQ": "nothing: a broker deletes expired files of queues by itself",
    "cleanUnusedTopic": "nothing: a broker deletes the queues of deleted topics by itself",
    "deleteExpiredCommitLog": "`penstock store retention DIR` while no broker runs; brokers delete by themselves",
    "updateAclConfig": "the broker's access file, which is read again when it changes",
    "deleteAclConfig": "the broker's access file, which is read again when it changes",
    "updateGlobalWhiteAddr": "the broker's access file, which is read again when it changes",
    "getAclConfig": "the broker's access file",
    "clusterAclConfigVersion": "the broker's access file",
    "exportMetadata": "`penstock topic list --all --json` and `penstock group list --all --json`",
    "exportConfigs": "`penstock cluster config --json`",
    "exportMetrics": "`penstock cluster status --json`",
}
"""mqadmin's verbs that Penstock does not have, and what to use."""
_ADDED: Final = {"topicList": ("--names", "--all")}
"""Options that make a Penstock verb print what mqadmin's prints."""


def translated(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with mqadmin's verb replaced by Penstock's verb. Returns any other command line
    unchanged. The word `mqadmin` may stand before its verb.
    """
    if arguments and arguments[0] == "mqadmin":
        arguments = arguments[1:]
    if not arguments or arguments[0] not in VERBS:
        return list(arguments)
    rest = ["--help" if each == "-h" else each for each in arguments[1:]]
    return [*VERBS[arguments[0]].split(), *_ADDED.get(arguments[0], ()), *rest]
