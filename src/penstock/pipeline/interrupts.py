"""Ctrl-C while Spark runs: the job ends, and neither Java nor py4j fills the terminal with how it ended.

pyspark's own handler asks Java to cancel all jobs over the connection that the interrupted call is still using, which
fails, and Java then tells of everything that it was doing. Here another thread first has Java be silent; the jobs end
with their session, which the caller stops. Use it in the main thread; elsewhere it does nothing. Needs pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from typing import Final, NoReturn

_LONGEST_S: Final = 3.0
"""How long a person waits for Java to be silent."""


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Within the block, SIGINT is a KeyboardInterrupt, and the last that Spark says."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second one does not wait
        thread = threading.Thread(target=hush, name="penstock hush", daemon=True)
        thread.start()
        thread.join(_LONGEST_S)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def hush() -> None:
    """Has Java and py4j say nothing any more. For a thread of its own: threads have connections of their own."""
    from pyspark import SparkContext

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with contextlib.suppress(Exception):  # there is no Java here if the session is of a Connect server elsewhere
        java = SparkContext._gateway.jvm  # type: ignore[union-attr]
        logging_of_java = java.org.apache.logging.log4j
        logging_of_java.core.config.Configurator.setRootLevel(logging_of_java.Level.OFF)
        java.java.lang.System.setErr(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))
