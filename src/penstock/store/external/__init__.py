"""Dispatch by somebody else: a store that only appends, and the job that builds its queues and index.

With `dispatch=external` the two share a store as follows; `penstock/` is a folder of the store.

    dispatch.json    the store writes it at its start: dispatch is external, and the sizes that the job has to keep to
    dispatch.end     the store, all the time: up to where the log may be dispatched; flushed, under SYNC_FLUSH
    dispatch.done    the job, after each batch: up to where queues and index are complete
    dispatch.lock    the job holds it: queues and index are the job's
    dispatched.json  the job, after a sync: up to where they are complete on disk; inline dispatch writes the same

The store owns the log, the checkpoint and the notes of damage and of deleted topics; it maps queues and index and never
changes them. The job owns queues and index, the deletion of their files included. Whoever holds the lock of the job may
change them in its stead: a start does, when dispatch changes hands, or when the log has lost its end; and so does a
repair or a rebuild, from its beginning to its end.

What `dispatch.done` says is believed by the store for units, so those before it never change; it is believed by the
next job if the machine was not started anew since, because then all that was written is there. Else the note counts.
"""
