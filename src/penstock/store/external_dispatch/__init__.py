"""External dispatch: an append-only store, and a job in another process that builds its queues and index.

With `dispatch=external` the store and the job share these files in the folder `penstock/`:

    dispatch.json    the agreement. The store writes it at start: dispatch is external, and the job's settings
    dispatch.end     a mark of the store: the log position up to which the job may dispatch (SYNC_FLUSH: flushed)
    dispatch.done    a mark of the job, after each batch: the log position up to which queues and index are complete
    dispatch.lock    the job's lock: its holder owns queues and index
    dispatched.json  the dispatch note. The job writes it after a sync: the position up to which they are on disk

The store owns the log, the checkpoint, and the lists of damage and of deleted topics. It maps queues and index
privately and never changes them. The job owns queues and index, and deletes their files. Another process that holds the
job's lock may change them instead: a start, when dispatch switches between inline and external or when the log has lost
its end; and a repair or a rebuild, which holds the lock from beginning to end.

The store serves units up to the position in `dispatch.done`, so units before that position never change. The next job
starts there if the mark was written in this boot, because all writes before it still exist. Otherwise the next job
starts at the position in the dispatch note.
"""
