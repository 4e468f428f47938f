"""A real broker for tests that starts at once, with a store in a temporary directory, a name server and free ports.

    with penstock.testing.broker(topics={"orders": 4}) as b:
        ...  # any RocketMQ client, with b.namesrv

It is the broker of `penstock serve --profile dev`, in a thread of this process. The pytest plugin provides it as the
fixture `penstock_broker`. Every pytest run loads the plugin, so this package imports the broker only on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.local_broker import LocalBroker, broker

__all__ = ["LocalBroker", "broker"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'penstock.testing' has no attribute '{name}'")
    from penstock.testing import local_broker

    return getattr(local_broker, name)
