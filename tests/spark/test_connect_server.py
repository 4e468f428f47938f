"""A Connect server that Penstock starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import socket
from penstock.pipeline import session

taken = socket.create_server(("127.0.0.1", 0))
ports, free_port = [taken.getsockname()[1]], session._free_port
session._free_port = lambda: ports.pop() if ports else free_port()
spark = session.start_connect_session("taken", "local[1]", {"spark.ui.enabled": "false"})
print("rows", spark.range(5).count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_port_that_another_process_takes_is_not_the_end() -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240)
    assert done.stdout == "rows 5\n", done.stderr[-2000:]
