"""What the figures were measured on and with: facts that a reader needs to judge them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec

from penstock.format import kernels

_PACKAGES = ("penstock", "numpy", "msgspec", "pyarrow", "pyspark")


class Machine(msgspec.Struct, frozen=True):
    """The machine, as it was when the run began."""

    cores: int
    cpu: str
    memory_bytes: int
    kernel: str
    file_system: str
    load_average: tuple[float, float, float]
    """Of the last 1, 5 and 15 minutes; well below 1 if nobody else is at work."""


def look_at(folder: Path) -> Machine:
    """The facts, with the file system that `folder` lies on."""
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        cpu=_cpu(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        file_system=file_system_of(folder),
        load_average=os.getloadavg(),
    )


def versions() -> dict[str, str]:
    """Of what our side is made of."""
    found = {"python": platform.python_version(), "kernels": kernels.active}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def java_versions(class_path: list[Path]) -> dict[str, str]:
    """Of what the peer is made of: Java, and Apache RocketMQ's store unless it has none."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    java = re.search(r'version "([^"]+)"', said)
    stores = [match[1] for jar in class_path if (match := re.fullmatch(r"rocketmq-store-(.+)\.jar", jar.name))]
    found = {"java": java[1] if java else "unknown"}
    return found | {"rocketmq-store": stores[0] if stores else "unknown"} if class_path else found


def file_system_of(folder: Path) -> str:
    """The type of the file system that a folder lies on."""
    place = folder.resolve()
    best, kind = Path("/"), "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, found, *_ = line.split(" ")
        path = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), mount))
        if place.is_relative_to(path) and len(path.parts) >= len(best.parts):
            best, kind = path, found
    return kind


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
