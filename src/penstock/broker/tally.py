"""Counts of what went through, by topic and group: only ever added to, so that whoever samples them gets rates."""

from __future__ import annotations

from collections import defaultdict


class Tally:
    """Messages and bytes. Each entry is [messages, bytes]."""

    def __init__(self) -> None:
        self.sent: defaultdict[str, list[int]] = defaultdict(_zero)
        """By topic."""
        self.got: defaultdict[tuple[str, str], list[int]] = defaultdict(_zero)
        """By topic and group."""
        self.sent_back: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Messages by topic and group."""

    def count_sent(self, topic: str, messages: int, size: int) -> None:
        entry = self.sent[topic]
        entry[0] += messages
        entry[1] += size

    def count_got(self, topic: str, group: str, messages: int, size: int) -> None:
        entry = self.got[topic, group]
        entry[0] += messages
        entry[1] += size

    def forget_topic(self, topic: str) -> None:
        """A topic is deleted, and its figures with it."""
        self.sent.pop(topic, None)
        for key in [key for key in self.got if key[0] == topic]:
            del self.got[key]
        for key in [key for key in self.sent_back if key[0] == topic]:
            del self.sent_back[key]

    def forget_group(self, group: str) -> None:
        for key in [key for key in self.got if key[1] == group]:
            del self.got[key]
        for key in [key for key in self.sent_back if key[1] == group]:
            del self.sent_back[key]


def _zero() -> list[int]:
    return [0, 0]
