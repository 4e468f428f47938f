"""A client for RocketMQ clusters of Penstock or Java brokers. It is asynchronous; `penstock.client.sync` has the same
clients for blocking code.

    Producer, TransactionProducer          send
    PushConsumer, PullConsumer             consume
    Admin                                  inspect and change a cluster
    ClientConfig, Credentials              addresses, TLS, account

All clients find brokers through name servers and reconnect after a lost connection. Their errors are subclasses of
PenstockError.
"""

from penstock.client.admin import Admin
from penstock.client.config import ClientConfig, Credentials
from penstock.client.message import Message, ReceivedMessage, SendResult, SendStatus
from penstock.client.producer import Producer, ProducerOptions
from penstock.client.pull_consumer import PullConsumer
from penstock.client.pull_requests import PullResult, PullStatus, Sql92
from penstock.client.push_consumer import PushConsumer, PushOptions
from penstock.client.transaction_producer import TransactionProducer, TransactionResult, TransactionState
from penstock.client.user_handlers import DeadLetter, Later
from penstock.protocol.bodies.queues import MessageQueue

__all__ = [
    "Admin",
    "ClientConfig",
    "Credentials",
    "DeadLetter",
    "Later",
    "Message",
    "MessageQueue",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "Sql92",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
]
