"""Apache RocketMQ's own broker as a command: how the tests start it, and how the benchmarks do.

Everything it writes stays in two folders, its `home` (broker.conf, a log of warnings) and its store. Clients are told
its loopback address. It takes the port that it is given, the one two below, and a free one for replicas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from compat.java_peer import OPENED
from ports import free_port_pair

_LOGBACK = """<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/broker.log</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


def broker_command(
    home: Path, store: Path, port: int, class_path: list[Path], settings: Mapping[str, object], *, heap: str
) -> list[str]:
    """The command that runs the broker on a store; its configuration is in `home` then."""
    (home / "conf").mkdir(parents=True, exist_ok=True)
    (home / "conf" / "logback_broker.xml").write_text(_LOGBACK, encoding="utf-8")
    own = {
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "haListenPort": free_port_pair(),
        "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog",
    }
    lines = [f"{name}={value}\n" for name, value in {**own, **settings}.items()]
    (home / "broker.conf").write_text("".join(lines), encoding="utf-8")
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    main = ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(home / "broker.conf")]
    path = ":".join(map(str, class_path))
    return ["java", f"-Xmx{heap}", f"-Duser.home={home}", *opens, "-cp", path, *main]


def broker_environment(home: Path) -> dict[str, str]:
    return {**os.environ, "ROCKETMQ_HOME": str(home)}
