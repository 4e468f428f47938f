"""Machines as network namespaces on one bridge: each has an address, and links between two of them can be cut.

A cut is silent, as that of a cable: packets are dropped where they arrive, and neither side is told. It may be one-way.
This process is on the bridge as well, under the name HERE. Needs root and Linux's network namespaces.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

HERE: Final = "here"
_LOCAL, _CUT = "100", "50"
"""Priorities of rules: cuts come before the table of local addresses, which the system has at 0."""


class Machine:
    """A network namespace. `within` is the command that runs another one in it."""

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address
        self.within = ("ip", "netns", "exec", namespace)


class Network:
    """Machines by name. Use `network` to make one."""

    def __init__(self, prefix: str, number: int) -> None:
        self._prefix = prefix
        self._number = number
        self._machines: dict[str, Machine] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._slow: set[str] = set()
        self.address = f"10.213.{number}.1"
        """Of this process."""

    def make(self) -> None:
        _run(f"ip link add {self._prefix} type bridge")
        _run(f"ip addr add {self.address}/24 dev {self._prefix}")
        _run(f"ip link set {self._prefix} up")

    def add(self, name: str) -> Machine:
        number = len(self._machines) + 2
        made = Machine(f"{self._prefix}n{number}", f"10.213.{self._number}.{number}")
        self._machines[name] = made
        port = self._port(name)
        inside = f"ip -n {made.namespace}"
        for command in (
            f"ip netns add {made.namespace}",
            f"ip link add {port} type veth peer name eth0 netns {made.namespace}",
            f"ip link set {port} master {self._prefix}",
            f"ip link set {port} up",
            f"{inside} addr add {made.address}/24 dev eth0",
            f"{inside} link set eth0 up",
            f"{inside} link set lo up",
            f"{inside} rule add pref {_LOCAL} lookup local",
            f"{inside} rule del pref 0",
        ):
            _run(command)
        return made

    def _port(self, name: str) -> str:
        """The bridge's end of a machine's cable."""
        return f"{self._prefix}p{list(self._machines).index(name)}"

    def _address(self, name: str) -> str:
        return self.address if name == HERE else self._machines[name].address

    # -- links -----------------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """Loses every packet from one to the other; those of the other way still pass."""
        if (sender, receiver) not in self._cuts:
            self._cuts.add((sender, receiver))
            self._rule("add", sender, receiver)

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def mend(self, sender: str, receiver: str) -> None:
        if (sender, receiver) in self._cuts:
            self._cuts.discard((sender, receiver))
            self._rule("del", sender, receiver)

    def mend_both(self, one: str, other: str) -> None:
        self.mend(one, other)
        self.mend(other, one)

    def _rule(self, verb: str, sender: str, receiver: str) -> None:
        """The rules of this machine's own network are left alone: there the sender drops the packets."""
        if receiver == HERE:
            where, which = self._machines[sender], f"to {self.address}"
        else:
            where, which = self._machines[receiver], f"from {self._address(sender)}"
        _run(f"ip -n {where.namespace} rule {verb} pref {_CUT} {which} blackhole")

    def slow(self, name: str, rate: str = "200kbit") -> None:
        """Lets so much pass from and to a machine, and has the rest wait."""
        if name not in self._slow:
            self._slow.add(name)
            for device in self._both_ends(name):
                _run(f"{device} root tbf rate {rate} burst 8kb latency 2s".replace("VERB", "add"))

    def hasten(self, name: str) -> None:
        if name in self._slow:
            self._slow.discard(name)
            for device in self._both_ends(name):
                _run(f"{device} root".replace("VERB", "del"))

    def _both_ends(self, name: str) -> tuple[str, str]:
        inside = f"tc -n {self._machines[name].namespace} qdisc VERB dev eth0"
        return inside, f"tc qdisc VERB dev {self._port(name)}"

    def heal(self) -> None:
        """All links are whole and fast again."""
        for sender, receiver in list(self._cuts):
            self.mend(sender, receiver)
        for name in list(self._slow):
            self.hasten(name)

    def remove(self) -> None:
        for name, machine in self._machines.items():
            for command in (f"ip link del {self._port(name)}", f"ip netns del {machine.namespace}"):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _run(command)
        with contextlib.suppress(subprocess.CalledProcessError):
            _run(f"ip link del {self._prefix}")


def _run(command: str) -> str:
    return subprocess.run(command.split(), check=True, capture_output=True, text=True, timeout=20).stdout


@contextmanager
def network() -> Iterator[Network]:
    """A network until the end of the block; skips the test, with the reason, where none can be made."""
    made: Network | None = None
    try:
        try:
            used = _run("ip -4 addr")
            number = next(each for each in range(os.getpid() % 200, 250) if f"10.213.{each}." not in used)
            made = Network(f"pst{os.getpid()}", number)
            made.make()
            made.add("probe")
            made.cut_both(HERE, "probe")
            made.slow("probe")
            made.heal()
        except (OSError, subprocess.CalledProcessError) as error:
            said = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            pytest.skip(f"no network namespace can be made here: {said.strip()}")
        yield made
    finally:
        if made is not None:
            with contextlib.suppress(OSError):
                made.remove()
