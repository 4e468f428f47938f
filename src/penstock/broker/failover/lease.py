"""The thread that renews a lease, and does so only while the broker is healthy.

A thread of its own: neither the broker's loop nor the keeper's transactions delay it. It renews every TTL / 5. Before
each renewal it asks whether the broker is healthy: a broker whose disk hangs must not stay master because its lease
thread lives. If the broker is unhealthy for TTL / 2, or for good, the lease is released. `on_end` is called once, on
this thread, when the lease has ended or was released, or if the thread fails; the keys on the lease are gone then, or
soon will be.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.failover.consensus_engine import EngineAway, Session, boot_time

log = logging.getLogger("penstock.failover")

_RENEWALS: Final = 5
"""Renewals within one time to live."""


class MasterHealth(NamedTuple):
    """Whether a broker may stay master."""

    why_not: str = ""
    """What is wrong; empty if it is healthy."""
    is_final: bool = False
    """Whether it will not become healthy again by itself."""


class LeaseThread:
    """Renews the lease of a session until `stop`."""

    def __init__(
        self,
        session: Session,
        health: Callable[[], MasterHealth],
        on_end: Callable[[str], object],
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._session = session
        self._health = health
        self._on_end = on_end
        self._clock = clock
        self._stopping = threading.Event()
        self._sick_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-lease", daemon=True)
        self.renewed = 0
        """Renewals that the engine has answered."""
        self.failed = 0
        """Renewals without an answer."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Renews no more. The lease stays until its time is over, or `Session.release`."""
        self._stopping.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        why = "the thread that renews the lease has ended"
        try:
            while not self._stopping.wait(self._session.ttl_s / _RENEWALS):
                why = self._round()
                if why:
                    return
            why = ""
        except Exception as error:
            log.exception("the thread that renews the lease has failed")
            why = f"the thread that renews the lease has failed: {error!r}"
        finally:
            if why:
                self._on_end(why)

    def _round(self) -> str:
        """Renews the lease, if the broker is healthy. Returns why the lease is lost; empty if it is not."""
        why, is_final = self._health()
        now = self._clock()
        if why:
            self._sick_since = now if self._sick_since is None else self._sick_since
            if is_final or now - self._sick_since >= self._session.ttl_s / 2:
                log.error("the lease is released, so that another replica can be elected: %s", why)
                self._session.release()
                return f"the lease was released: {why}"
            log.warning("the lease is not renewed: %s", why)
            return ""
        self._sick_since = None
        try:
            lives = self._session.renew()
        except EngineAway as error:
            self.failed += 1
            log.warning("the lease is not renewed: %s", error)
            return ""
        self.renewed += lives
        return "" if lives else "the lease has ended: it was not renewed in time, or it was revoked"
