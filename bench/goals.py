"""The rows of the project's goals, by suite: `python -m bench --only goals` measures all of them.

Five rounds take less than 40 minutes on a quiet machine with two cores. `tests/bench/test_goals.py` checks that every
row exists.
"""

from __future__ import annotations

GOALS: dict[str, tuple[str, ...]] = {
    "store": (
        "put-1k-1t",
        "put-100b-1t",
        "sync-1k-1t",
        "sync-1k-16t",
        "sync-1k-in-flight",
        "get-raw-1k",
        "get-raw-100b",
        "get-decoded-1k",
        "get-decoded-100b",
        "query-many",
        "query-many-messages",
    ),
    "recovery": ("rebuild-1k", "rebuild-100b"),
    "broker": (
        "send-128b-16",
        "send-128b-64",
        "send-1k-16",
        "send-1k-64",
        "batch-128b",
        "consume-128b",
        "consume-1k",
    ),
    "producer": ("producer-128b-64", "producer-128b-16", "producer-128b-1", "producer-1k-64"),
    "replication": ("sync-send-1", "sync-send-64", "catch-up-rate"),
    "pipeline": ("rebuild-1k-5gb-java", "rebuild-100b-5gb-java"),
    "queues": (
        "python-128b-64",
        "python-1k-64",
        "backlog-push",
        "backlog-batch",
        "backlog-sync",
        "on-disk-1",
        "on-disk-64",
    ),
}
