"""RocketMQ's formats: conversion between bytes and values. Pure functions, no I/O.

    record, properties, hosts, sys_flag, message_id, topics, delay, batch   one message
    queue_unit, queue_ext, index_layout, checkpoint, fastjson               the other files of a store
    kernels, kernel_row_types, scan                                         many records at once
    put_rows, arrow_put_columns, arrow_rows                                 columns and Arrow batches of messages
    constants, config_tables, damage_placeholder                            shared values, config files, repairs
    msgspec_warm_up                                                         the first use of a type by msgspec

The package itself imports nothing: a client that only lists topics needs neither the kernels nor numpy.
"""
