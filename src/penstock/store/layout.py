"""Where a store's files lie."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store.settings import Settings


class Layout(msgspec.Struct, frozen=True):
    """The paths of one store."""

    root: Path
    commit_log: Path

    @classmethod
    def of(cls, root: Path, settings: Settings) -> Layout:
        elsewhere = settings.store_path_commit_log
        return cls(root, Path(elsewhere) if elsewhere else root / "commitlog")

    @property
    def consume_queue(self) -> Path:
        return self.root / "consumequeue"

    @property
    def consume_queue_ext(self) -> Path:
        return self.root / "consumequeue_ext"

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def dispatched(self) -> Path:
        return self.root / "penstock" / "dispatched.json"

    @property
    def dispatch_terms(self) -> Path:
        return self.root / "penstock" / "dispatch.json"

    @property
    def dispatch_end(self) -> Path:
        return self.root / "penstock" / "dispatch.end"

    @property
    def dispatch_done(self) -> Path:
        return self.root / "penstock" / "dispatch.done"

    @property
    def dispatch_lock(self) -> Path:
        return self.root / "penstock" / "dispatch.lock"

    @property
    def damaged(self) -> Path:
        return self.root / "penstock" / "damaged.json"

    @property
    def deleted_topics(self) -> Path:
        return self.root / "penstock" / "deleted_topics.json"

    @property
    def walked(self) -> Path:
        return self.root / "penstock" / "walked.json"

    @property
    def quarantine(self) -> Path:
        return self.root / "penstock" / "quarantine"

    @property
    def staging(self) -> Path:
        return self.root / "penstock" / "staging"

    @property
    def swap(self) -> Path:
        return self.root / "penstock" / "swap.json"

    @property
    def sink(self) -> Path:
        return self.root / "penstock" / "sink"

    @property
    def sink_journal(self) -> Path:
        return self.sink / "journal.json"

    @property
    def sink_marks(self) -> Path:
        return self.sink / "marks"

    @property
    def sink_staged(self) -> Path:
        return self.sink / "staged"

    @property
    def sink_lock(self) -> Path:
        return self.sink / "lock"
