"""What the steps of the demo share, and what came of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.sync import PushConsumer
from penstock.demo.broker_process import BrokerProcess
from penstock.demo.shop import Ledger, Shop

if TYPE_CHECKING:
    from penstock.pipeline.jobs.usage import Usage


class StepFailed(Exception):
    """A step did not do what it was to show; the text says what instead."""


class StepSkipped(Exception):
    """A step cannot be shown here; the text says why."""


class State(StrEnum):
    """What came of a step."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


class Done(msgspec.Struct, frozen=True):
    """A step that is over."""

    name: str
    title: str
    state: State
    seconds: float
    says: str
    """One sentence: what was seen, or what went wrong, or why it was left out."""
    figures: dict[str, Any] = {}


@dataclass
class Scene:
    """The broker, the shop and what they left, as far as the steps have come. Belongs to the thread that runs them."""

    folder: Path
    orders: int
    broker: BrokerProcess
    opened: ExitStack
    """Closes everything that the steps have opened, in the right order."""
    tell: Callable[[str, int, int], None]
    """Is told what is being done, how much of it, and of how much."""
    ledger: Ledger = field(default_factory=Ledger)
    shop: Shop | None = None
    consumers: list[PushConsumer] = field(default_factory=list)
    sales: list[Future[None]] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)
    """Spans of time, in seconds since the beginning, in which the broker was not there."""
    killed_at: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    """Of the step that runs."""
    streamed: list[tuple[str, str, int]] = field(default_factory=list)
    """(topic, tag, messages) as a streaming query counted them."""
    usage: Usage | None = None
    spark: Any = None

    @property
    def store(self) -> Path:
        return self.broker.store


def verdict(steps: Sequence[Done]) -> str:
    """What came of all of them together; a step that was left out did not check out."""
    failed = [step for step in steps if step.state is State.FAILED]
    if failed:
        return f"It stopped at: {failed[0].title}"
    skipped = [step for step in steps if step.state is State.SKIPPED]
    if skipped:
        return f"Every step that could be run checked out, and {len(skipped)} of {len(steps)} could not"
    return "Every step checked out"


def check(done: bool, otherwise: str) -> None:
    """Raises StepFailed unless it is done."""
    if not done:
        raise StepFailed(otherwise)
