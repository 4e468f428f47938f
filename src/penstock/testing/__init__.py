"""A real broker for tests: its own store in a temporary folder, its own name server, free ports, up in a moment.

    with penstock.testing.broker(topics={"orders": 4}) as b:
        ...  # any RocketMQ client, with b.namesrv

It is the broker of `penstock serve` with the profile `dev`, in a thread of this process. The pytest plugin gives it as
the fixture `penstock_broker`; since every run of pytest loads that plugin, the broker is imported when it is asked for.
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
