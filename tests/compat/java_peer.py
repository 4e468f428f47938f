"""Apache RocketMQ's own store, run beside the tests: a small Java program that answers JSON line by line.

Built once per session with Maven from `tests/java`; where Maven, Java or the artifacts cannot be had, the tests that
need it are skipped with the reason.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

from talker import PeerError, Talker

__all__ = ["OPENED", "PROJECT", "Peer", "PeerError", "build", "message_json"]

PROJECT = Path(__file__).parent.parent / "java"
OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")


def build(project: Path = PROJECT) -> list[Path]:
    """Compiles a program and fetches what it needs; returns the class path. Raises PeerError with the reason."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise PeerError(f"{tool} is not installed")
    done = subprocess.run(
        ["mvn", "-q", "-B", "-Dstyle.color=never", "package"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise PeerError(f"Maven failed: {lines[0] if lines else done.returncode}")
    target = project / "target"
    return [*target.glob("*-peer-*.jar"), *target.glob("lib/*.jar")]


class Peer(Talker):
    """Java's store in a process of its own. Use it in a `with` block."""

    def __init__(self, class_path: list[Path], heap: str = "1g") -> None:
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        super().__init__(["java", f"-Xmx{heap}", *opens, "-cp", ":".join(map(str, class_path)), "penstock.Peer"])

    def open(self, path: Path, settings: dict[str, Any]) -> Any:
        return self.ask("open", path=str(path), settings=settings)


def message_json(**fields: Any) -> dict[str, Any]:
    """A message for Java to put, with the defaults of Penstock's Message."""
    body = fields.pop("body", b"")
    return {
        "queue_id": 0,
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": "127.0.0.1:0",
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": {},
        **fields,
        "body": base64.b64encode(body).decode(),
    }
