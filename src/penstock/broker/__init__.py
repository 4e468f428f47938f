"""The broker: serves a store to any client that speaks RocketMQ's remoting protocol.

    broker                        assembles the parts; its docstring has the order of start and stop
    settings                      RocketMQ's broker settings, one typed object
    state                         the tables below, and how they are saved
    topics, consumers, offsets, queue_locks    topics; groups and clients; consumer offsets; locks for ordered queues
    send, send_acks, replies      sends, and their acks that wait for the disk or a slave
    pull, long_polling, filters   pulls, those that wait, and tag and SQL92 filters
    retry, delay, transactions, request_reply    what else happens to messages
    query                         messages by key and id
    registration, replication/    name servers; masters and slaves
    access, acl                   who may send which request, and the access file
    admin/, stats, tracing, hooks administration, figures, spans, user code

Each concern is a class that gets its dependencies in the constructor, lists the requests it answers in `handlers()`,
and belongs to the thread of one event loop, unless its module says otherwise.
"""
