"""Connections that carry remoting commands, for both sides: asyncio, on uvloop where it is installed.

A `Server` accepts them, `connect` dials them, a `Connection` is one of them. Nothing here knows what a request means:
that is the handlers' business. All of it belongs to the thread of one event loop.
"""
