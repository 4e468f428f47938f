"""Connections that carry remoting commands, for both sides: asyncio, on uvloop where it is installed.

A `Server` accepts them, `connect` dials them, a `Connection` is one of them. Nothing here knows what a request means:
handlers decide that. Use everything here from the thread of one event loop.
"""
