"""External dispatch: an append-only store, and a job in another process that builds its queues and index.

With `dispatch=external` the two share these files in the store's folder `penstock/`:

    dispatch.json    the store writes it at start: dispatch is external, and the file sizes that the job must use
    dispatch.end     the store updates it: the log position up to which the job may dispatch (SYNC_FLUSH: flushed)
    dispatch.done    the job updates it after each batch: the position up to which queues and index are complete
    dispatch.lock    held by the owner of queues and index
    dispatched.json  the job writes it after a sync: the position up to which they are on disk; as in inline dispatch

The store owns the log, the checkpoint, and the notes of damage and of deleted topics. It maps queues and index
read-only. The job owns queues and index, and deletes their files. Another holder of the job's lock may change them in
its place: a start does so when dispatch switches between inline and external, or when the log has lost its end; a
repair or a rebuild holds the lock from beginning to end.

The store serves units up to `dispatch.done`, so units before it never change. The next job trusts that mark if it is of
this boot, because all writes before it still exist; otherwise the note counts.
"""
