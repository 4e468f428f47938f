"""deploy/compose and deploy/kubernetes, as far as they can be checked without Docker and Kubernetes.

Their schemas, their settings, their commands with the real command line; and all their processes together, with their
commands, on addresses of the loopback interface that stand for containers and pods.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT
from support.clusters import wait_for
from support.etcd import BINARY, need_etcd
from support.kubernetes import problems

from penstock.broker.failover.failover_settings import check_failover, engine_of
from penstock.broker.settings import BrokerSettings
from penstock.cli.main import main
from penstock.client.sync import Admin
from penstock.errors import PenstockError
from penstock.namesrv import NamesrvSettings
from penstock.store import Settings

COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"
BROKER_PORT, OBSERVE_PORT = 10911, 10913


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8")))


def manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert {*names, "kustomization.yaml"} == {each.name for each in KUBERNETES.glob("*.yaml")}
    return [each for name in names for each in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8"))]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def container_of(stateful_set: Mapping[str, Any]) -> dict[str, Any]:
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return dict(container)


# -- schemas ---------------------------------------------------------------------------------------------------------


def check_compose(file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_compose_file_has_the_form_of_the_specification(tmp_path: Path) -> None:
    done = check_compose(COMPOSE / "compose.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "compose.yaml"
    text = (COMPOSE / "compose.yaml").read_text(encoding="utf-8")
    wrong.write_text(text.replace("stop_grace_period:", "stop_grace:"), encoding="utf-8")
    assert check_compose(wrong).returncode != 0, "a key that compose does not know is noticed"


def test_the_manifests_have_the_fields_and_types_of_kubernetes() -> None:
    found = manifests()
    assert len(found) == 12
    assert [problem for each in found for problem in problems(each)] == []


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (("spec", "podManagment"), "Parallel", "StatefulSet.spec has no field podManagment"),
        (("spec", "replicas"), "3", "StatefulSet.spec.replicas is '3', and must be int"),
        (("spec", "selector"), None, "StatefulSet.spec needs the field selector"),
    ],
)
def test_a_wrong_manifest_is_noticed(path: tuple[str, str], value: object, why: str) -> None:
    manifest = of_kind("StatefulSet")["penstock-broker"]
    manifest[path[0]][path[1]] = value
    if value is None:
        del manifest[path[0]][path[1]]
    assert why in problems(manifest)


def test_the_kustomization_names_files_that_are_there() -> None:
    found = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    assert found.keys() == {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "images"}
    (generated,) = found["configMapGenerator"]
    assert all((KUBERNETES / name).is_file() for name in generated["files"])
    (volume,) = [
        each["configMap"]["name"]
        for each in of_kind("StatefulSet")["penstock-broker"]["spec"]["template"]["spec"]["volumes"]
        if "configMap" in each
    ]
    assert generated["name"] == volume
    used = {container_of(each)["image"] for each in of_kind("StatefulSet").values()}
    assert used == {each["name"] for each in found["images"]}


# -- what the parts say about each other -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["penstock-broker", "penstock-namesrv", "penstock-etcd"])
def test_pods_are_spread_kept_and_confined(name: str) -> None:
    spec = of_kind("StatefulSet")[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    pod, container = spec["template"]["spec"], container_of(of_kind("StatefulSet")[name])
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    budget = of_kind("PodDisruptionBudget")[name]["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)
    service = of_kind("Service")[spec["serviceName"]]["spec"]
    assert (service["clusterIP"], service["selector"]) == ("None", labels)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    ports = {each["name"] for each in container["ports"]}
    probes = [container[each]["httpGet"]["port"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert set(probes) <= ports
    mounts = {each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"] for each in pod.get("volumes", [])}
    assert mounts == volumes | {each["metadata"]["name"] for each in spec.get("volumeClaimTemplates", [])}


def test_a_broker_has_time_for_a_handover_and_a_clean_stop() -> None:
    settings = BrokerSettings()
    needed_s = (settings.failover_ttl_millis + settings.stop_limit_millis) / 1000 + 5
    assert (
        of_kind("StatefulSet")["penstock-broker"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        > needed_s
    )
    for name, service in compose()["services"].items():
        if name.startswith("broker"):
            assert int(service["stop_grace_period"].removesuffix("s")) > needed_s


@pytest.mark.parametrize("folder", [COMPOSE, KUBERNETES])
def test_every_setting_is_one_that_brokers_know(folder: Path) -> None:
    settings = Settings.load(folder / "broker.conf", [])
    broker = BrokerSettings.of(settings)
    check_failover(settings)
    assert settings.notes() == [], "all of them have an effect"
    assert broker.failover == "etcd"
    assert len(broker.engine_nodes) == 3
    assert settings.min_in_sync_replicas == 2
    assert broker.failover_fast is (folder is COMPOSE), "a pod's address may belong to another pod"


# -- their processes -------------------------------------------------------------------------------------------------


@dataclass
class Process:
    """A container or a pod, with an address of the loopback interface."""

    name: str
    address: str
    words: list[str]
    health: list[str] = field(default_factory=list)
    """Paths that a probe of it asks for, at OBSERVE_PORT."""


def stand_ins(kind: str) -> tuple[str, str]:
    """The networks of the containers, and of the loopback interface, which is this process's own."""
    number = os.getpid() % 60_000
    return "172.30.7.", f"127.{30 if kind == 'compose' else 31}.{number >> 8}."


def compose_processes() -> Iterator[Process]:
    printed, here = stand_ins("compose")
    for name, service in compose()["services"].items():
        address = service["networks"]["penstock"]["ipv4_address"].replace(printed, here)
        words = [*service.get("entrypoint", []), *service["command"]]
        test = service["healthcheck"]["test"]
        assert test[0] == "CMD"
        yield Process(name, address, words, re.findall(r"http://127\.0\.0\.1:10913(/\w+)", test[-1]))


def kubernetes_processes() -> Iterator[Process]:
    here = stand_ins("kubernetes")[1]
    for number, (name, stateful_set) in enumerate(of_kind("StatefulSet").items(), 1):
        container = container_of(stateful_set)
        probes = [container[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
        health = [each["path"] for each in probes if each["port"] == "observe"]
        for ordinal in range(stateful_set["spec"]["replicas"]):
            address, pod = f"{here}{number * 10 + ordinal}", f"{name}-{ordinal}"
            words = [word.replace("$(POD_IP)", address).replace("$(POD_NAME)", pod) for word in container["command"]]
            yield Process(pod, address, words, health)


class Machine:
    """This machine in place of a cluster: the processes of a folder of deploy, with files in a folder of the test."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._folder = folder
        self._networks = stand_ins(kind)
        self.processes = list({"compose": compose_processes, "kubernetes": kubernetes_processes}[kind]())
        self._names = {f"{each.name}.{each.name.rpartition('-')[0]}": each.address for each in self.processes}
        self.config = folder / "broker.conf"
        self.config.write_text(self._here((ROOT / "deploy" / kind / "broker.conf").read_text(encoding="utf-8")))

    def _here(self, text: str) -> str:
        for name, address in self._names.items():
            text = text.replace(name, address)
        return text.replace(*self._networks)

    def command(self, process: Process) -> list[str]:
        """The command of a process, with its addresses and folders here."""
        home = self._folder / process.name
        home.mkdir(exist_ok=True)
        moved = {"/etc/penstock/broker.conf": str(self.config), "/data/": f"{home}/", "/var/lib/etcd": str(home)}
        words = []
        for word in map(self._here, process.words):
            for printed, here in moved.items():
                word = word.replace(printed, here)
            words.append(re.sub(r"\b0\.0\.0\.0(?=:\d)", process.address, word))
        return words

    def of(self, program: str) -> list[Process]:
        return [each for each in self.processes if program in each.words[:2]]


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_the_commands_are_ones_that_the_command_line_takes(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(kind, tmp_path)
    assert [len(machine.of(each)) for each in ("etcd", "namesrv", "serve")] == [3, 2, 3]
    for broker in machine.of("serve"):
        program, *words = machine.command(broker)
        assert program == "penstock"
        assert main([*words, "--print-config"]) == 0, capsys.readouterr().err
        shown = capsys.readouterr().out
        assert re.search(rf"brokerIP2 *= *{broker.address}\b", shown), shown
    for namesrv in machine.of("namesrv"):
        words = machine.command(namesrv)
        assert main([*words[1:], "--help"]) == 0
        pairs = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
        assert NamesrvSettings.load(None, pairs).ignored == ()


@pytest.mark.etcd
@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_all_processes_together_elect_a_master_and_answer_their_probes(kind: str, tmp_path: Path) -> None:
    need_etcd()
    machine = Machine(kind, tmp_path)
    settings = Settings.load(machine.config, [])
    broker_settings = BrokerSettings.of(settings)
    with running(machine, tmp_path) as started, ExitStack() as opened:

        def said() -> str:
            return "\n".join(each.read_text() for each in sorted(tmp_path.glob("*.log")))

        session = engine_of(settings, broker_settings)(False)
        opened.callback(session.close)

        def whole() -> bool:
            assert all(each.poll() is None for each in started.values()), said()
            try:
                state = session.view().state
            except PenstockError:
                return False
            return state is not None and len(state.sync) == 3

        wait_for(whole, said)
        leader = session.view().leader
        assert leader is not None
        for namesrv in broker_settings.name_servers:
            with Admin(namesrv) as admin:

                def names_the_leader(admin: Admin = admin) -> bool:
                    table = admin.cluster.info().broker_addr_table
                    return "broker-a" in table and table["broker-a"].broker_addrs.get(0) == leader.address

                wait_for(names_the_leader, said)
        for process in [*machine.of("serve"), *machine.of("namesrv")]:
            assert process.health
            for path in process.health:
                url = f"http://{process.address}:{OBSERVE_PORT}{path}"
                with urllib.request.urlopen(url, timeout=30) as answer:
                    assert answer.status == 200
        for process in machine.of("serve"):
            started[process.name].send_signal(signal.SIGTERM)
            assert started[process.name].wait(60) == 0, said()


@contextmanager
def running(machine: Machine, folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts everything, brokers with small files; kills what is left at the end."""
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for process in [*machine.of("etcd"), *machine.of("namesrv"), *machine.of("serve")]:
            program, *words = machine.command(process)
            if program == "penstock":
                command = [sys.executable, "-m", "penstock.cli.main", *words]
                command += ["--profile", "dev"] if words[0] == "serve" else []
            else:
                command = [BINARY, *words]
            with (folder / f"{process.name}.log").open("wb") as log:
                started[process.name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder / process.name)
        yield started
    finally:
        for each in started.values():
            each.kill()
            each.wait()
