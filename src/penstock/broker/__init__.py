"""The broker: serves a store to any client that speaks RocketMQ's remoting protocol.

    broker                        assembles the parts; its docstring gives the order of start and stop
    settings                      RocketMQ's broker settings as one typed object
    operations                    operations as plain calls, and the guards around them
    remoting/                     request codes to operations, outcomes to replies; signatures
    saved_tables                  the tables of topics, groups and offsets, and how they are saved
    topics, consumers, offsets, queue_locks    topics; groups and clients; consumer offsets; locks for ordered queues
    send, send_acks               sends, and the acks that wait for the disk or a slave
    pull, long_polling, filters   pulls, held pulls, and filters by tag and by SQL92
    retry, delay, transactions, request_reply    send-backs; delayed, transactional and request-reply messages
    query                         messages by key and by message id
    registration, replication/    registration with name servers; masters and slaves
    access, access_file           who may ask for which operation; the accounts of the access file
    admin/, stats, tracing, hooks administration; statistics; OpenTelemetry spans; user code

Each concern is a class. Its constructor takes its dependencies, and `operations()` lists what it does for clients. Use
a concern from the thread of the broker's event loop only, unless its module says otherwise.
"""
