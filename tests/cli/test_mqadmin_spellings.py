"""Every verb and option over the network is on its reference page, and mqadmin's spellings of them work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from support import ROOT

from penstock.cli import main
from penstock.cli.lazy_verbs import EVERYTHING
from penstock.cli.mqadmin_verbs import ELSEWHERE, VERBS, translated

if TYPE_CHECKING:
    from cli.conftest import Run

PAGE = (ROOT / "docs" / "reference" / "cli-network.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `penstock (\w+)`\n((?:(?!^## ).*\n)*)", PAGE, re.M))
SHARED = {"namesrv", "context", "account", "trust", "as_json"}

MQADMIN = {
    "updateTopic": "-b -c -o -p -r -s -t -u -w",
    "deleteTopic": "-c -t",
    "topicStatus": "-t",
    "topicRoute": "-l -t",
    "topicList": "-c",
    "topicClusterList": "-t",
    "clusterList": "-i -m",
    "brokerStatus": "-b -c",
    "consumerProgress": "-g -s",
    "consumerStatus": "-b -g -i -s",
    "consumerConnection": "-b -g",
    "producerConnection": "-g -t",
    "producer": "-b",
    "queryMsgById": "-d -g -i -s -u",
    "queryMsgByKey": "-k -t",
    "queryMsgByUniqueKey": "-a -d -g -i -t",
    "queryMsgByOffset": "-b -i -o -t",
    "printMsg": "-b -c -d -e -s -t",
    "printMsgByQueue": "-a -b -c -d -e -f -i -p -s -t",
    "resetOffsetByTime": "-c -f -g -s -t",
    "skipAccumulatedMessage": "-f -g -t",
    "cloneGroupOffset": "-d -o -s -t",
    "updateSubGroup": "-a -b -c -d -g -i -m -q -r -s -w",
    "deleteSubGroup": "-b -c -g -r",
    "sendMessage": "-b -c -i -k -m -p -t",
    "consumeMessage": "-b -c -e -g -i -o -s -t",
    "updateBrokerConfig": "-b -c -k -v",
    "getBrokerConfig": "-b -c",
    "wipeWritePerm": "-b",
    "addWritePerm": "-b",
    "getNamesrvConfig": "",
    "updateNamesrvConfig": "-k -v",
    "updateKvConfig": "-k -s -v",
    "deleteKvConfig": "-k -s",
}
"""What `mqadmin help <verb>` of RocketMQ 4.9.8 lists, but for -n and -h, which all have."""
OTHER_MQADMIN = (
    "updateTopicPerm queryMsgTraceById sendMsgStatus brokerConsumeStats updateOrderConf cleanExpiredCQ "
    "deleteExpiredCommitLog cleanUnusedTopic startMonitoring statsAll allocateMQ checkMsgSendRT clusterRT "
    "getConsumerConfig queryCq updateAclConfig deleteAclConfig clusterAclConfigVersion updateGlobalWhiteAddr "
    "exportMetadata exportConfigs exportMetrics"
)
"""The other verbs of RocketMQ 4.9.8's mqadmin."""


def commands() -> dict[str, Any]:
    """Click's command of each verb, by `group verb`; those that help does not list left out."""
    root: Any = typer.main.get_command(main.make_app(EVERYTHING))
    return {
        f"{group} {name}": command
        for group in main.OVER_NETWORK
        for name, command in root.commands[group].commands.items()
        if not command.hidden
    }


COMMANDS = commands()


def test_every_verb_and_its_spelling_are_on_the_page() -> None:
    on_page = {
        f"{group} {verb}": re.findall(r"\w+", theirs)
        for group, text in SECTIONS.items()
        for verb, theirs in re.findall(r"^\| `([\w-]+)` \| ((?:`\w+`(?:, )?)*) ?\|", text, re.M)
    }
    assert on_page == {name: [theirs for theirs, ours in VERBS.items() if ours == name] for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_verb_is_in_its_row(name: str) -> None:
    group, verb = name.split(" ")
    row = next(line for line in SECTIONS[group].splitlines() if line.startswith(f"| `{verb}` |"))
    for parameter in (each for each in COMMANDS[name].params if each.opts[0].startswith("-")):
        names = [parameter.opts[0], *(each for each in parameter.opts if len(each) == 2)]  # mqadmin's long ones are not
        text = PAGE if parameter.name in SHARED else row
        assert all(re.search(rf"`{each}[` ]", text) for each in names), parameter.opts


def test_every_verb_of_mqadmin_is_here_or_says_what_to_use() -> None:
    assert len(MQADMIN) + len(OTHER_MQADMIN.split()) == 56, "which are all"
    assert set(MQADMIN) <= set(VERBS)
    assert set(OTHER_MQADMIN.split()) <= set(ELSEWHERE)
    newer_or_older = {"haStatus", "getAclConfig"}
    assert {*VERBS, *ELSEWHERE} == {*MQADMIN, *OTHER_MQADMIN.split(), *newer_or_older}


@pytest.mark.parametrize("verb", MQADMIN)
def test_mqadmins_options_are_known(verb: str) -> None:
    command = COMMANDS[VERBS[verb]]
    known = {each for parameter in command.params for each in parameter.opts}
    assert set(MQADMIN[verb].split()) | {"-n"} <= known


@pytest.mark.parametrize("verb", ELSEWHERE)
def test_what_replaces_a_missing_verb_is_said_and_on_the_page(run: Run, verb: str) -> None:
    assert f"mqadmin's {verb} is not here; use " in run(verb, "-n", "127.0.0.1:1").refused()
    assert re.search(rf"^\| `{verb}` \| {re.escape(ELSEWHERE[verb].partition(':')[0])}", PAGE, re.M), verb


def test_the_word_mqadmin_may_stand_before_its_verb() -> None:
    assert translated(["mqadmin", "topicStatus", "-t", "x"]) == ["topic", "status", "-t", "x"]
    assert translated(["mqadmin", "statsAll"]) == ["statsAll"]


def test_only_mqadmins_verbs_are_translated() -> None:
    assert translated(["topicList", "-n", "h:1"]) == ["topic", "list", "--names", "--all", "-n", "h:1"]
    assert translated(["topicList", "-h"]) == ["topic", "list", "--names", "--all", "--help"]
    assert translated(["store", "topicList"]) == ["store", "topicList"]
    assert translated([]) == []
