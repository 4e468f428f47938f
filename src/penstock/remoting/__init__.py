"""Connections that carry remoting commands, for both sides: asyncio, on uvloop where it is installed.

A `Server` accepts connections, `connect` opens one, and a `Connection` is either side of one. This package does not
know what a request means: handlers do. Use everything here from the thread of one event loop.
"""
