"""A Connect server inside this process, and a session with it. Needs the extra `lake`.

Spark starts such a server itself (`remote("local")`), on port 15002 of every network interface, so that a second one on
the machine fails and strangers can knock. Here it listens on a free port of loopback. What is called for that is not
public in Spark 4.3; where it is gone, that is said.
"""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import MissingPackage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = {"spark.connect.grpc.binding.address": "127.0.0.1"}


def start_connect_session(app: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """The server's Spark is on `master`. Stopping the session ends the server. Raises MissingPackage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        try:
            from pyspark.sql.connect.session import SparkSession as ConnectSession

            start: Any = ConnectSession._start_connect_server
        except (ImportError, AttributeError) as error:
            raise MissingPackage(f"Spark Connect is needed here: pip install 'penstock[lake]' ({error})") from None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options: dict[str, Any] = {"spark.app.name": app, **conf, **LOOPBACK}
        options["spark.connect.grpc.binding.port"] = str(port)
        os.environ["SPARK_LOCAL_REMOTE"] = "1"  # has the session end the server with itself
        try:
            start(master, options)  # leaves in the options what counts for a session
        except BaseException:
            del os.environ["SPARK_LOCAL_REMOTE"]
            raise
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        options["spark.remote"] = f"sc://localhost:{port}"
        session: Any = ConnectSession.builder.config(map=options).getOrCreate()
        return session  # type: ignore[no-any-return]
