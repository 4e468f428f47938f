"""The broker: a store on the network, for any client that speaks RocketMQ's remoting protocol.

    broker            puts the parts together; its docstring has the order of start and stop
    settings          RocketMQ's broker settings, one typed object
    topic_table, group_table, offset_table, client_table, queue_locks    what a broker knows
    send, pull, hold, send_back, delay    what it does with messages
    offsets, clients                      what it tells consumers
    transactions, transaction_check       half messages, their ends, and asking producers
    sql92, query                          SQL92 filters, and finding messages by key and id
    persist, registration, flow, hooks    what keeps it going
    administration, admin_*, config_change, rates    what administrators see and change
    access, accounts, rights, white_addresses        who may do what

Each concern is a class that gets what it needs in its constructor, says in `handlers()` which requests it answers, and
lives in the thread of one event loop; where a module says nothing else, that is all there is to its thread safety.
"""
