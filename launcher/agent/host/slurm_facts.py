"""The cluster of a login node: its partitions, their limits and nodes, and its user's accounts.

    facts = look(root, user)

No node is contacted. Each of Slurm's programs is asked once, all at the same time. The output format is that
of version 22.05.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Callable, List, Optional, TypedDict

from ..liveness.slurm.slurm_jobs import seconds_of
from ..liveness.slurm.slurm_programs import CONFIG, SlurmSilentError, ask, title_of
from ..record.files import paths_in
from ..record.strict_json import JsonObject
from ..system import process
from ..system.deadline import at_once

NODES = ("sinfo", "--noheader", "--all", "--exact", "--format=%P|%a|%l|%s|%D|%t|%c|%m|%G|%f")
"""Lists the nodes of each partition, including hidden ones. Nodes with the same resources and state share a line."""
QUEUE = ("squeue", "--me", "--noheader", "--format=%t")
ACCOUNTS = ("sacctmgr", "--noheader", "--parsable2", "show", "associations", "format=Account,QOS", "where")
"""Lists the accounts of the user whose name follows, `user=NAME`."""
ANSWER_S = 8.0
"""The time limit of a program in seconds: a stuck controller makes these programs wait for 18 s and more."""
_MARKS = "*~#!%$@^-+"
_DOWN = ("down", "drain", "drng", "drained", "fail", "failg", "maint", "unk", "pow_dn", "inval")
_DRAINED = ("drain", "drng", "drained")
_GONE = "*"
"""The mark of a node that does not answer the controller."""


class GresReport(TypedDict):
    """A countable resource of a node, such as cards of a type."""

    name: str
    type: Optional[str]
    count: int


class NodeGroupReport(TypedDict):
    """Similar nodes: how many, how many of them are idle, down or drained, and the resources of each."""

    count: int
    idle: int
    down: int
    drained: int
    cpus: Optional[int]
    memory_mib: Optional[int]
    gres: List[GresReport]
    features: List[str]


class PartitionReport(TypedDict):
    """A partition of a cluster and its limits; None means no limit."""

    name: str
    is_default: bool
    state: str
    max_time_s: Optional[int]
    max_nodes: Optional[int]
    nodes: List[NodeGroupReport]


class ClusterConfig(TypedDict):
    """The cluster's settings, reported by its controller; None is unknown."""

    name: Optional[str]
    version: Optional[str]
    has_accounting: bool
    can_requeue: Optional[bool]


def read_cluster_facts(root: str, user: str) -> JsonObject:
    """Return the facts of the cluster; see values/reported/cluster.py.

    They include an `error` if its controller does not answer.
    """
    questions: dict[str, Callable[[], tuple[str, str]]] = {
        "config": partial(_ask, *CONFIG),
        "nodes": partial(_ask, *NODES),
        "queue": partial(_ask, *QUEUE),
        "accounts": partial(_ask, *ACCOUNTS, "user=" + user),
    }
    answers = at_once(questions, ANSWER_S + 1)
    silence = ("", "did not answer")
    config, config_error = answers.get("config", silence)
    nodes, nodes_error = answers.get("nodes", silence)
    queue, queue_error = answers.get("queue", silence)
    accounts, accounts_error = answers.get("accounts", silence)
    error = config_error or nodes_error
    return {
        **parse_config(config),
        "partitions": parse_nodes(nodes),
        **({} if queue_error else parse_queue(queue)),
        **({} if accounts_error else parse_accounts(accounts)),
        "root_was_seen": is_seen_elsewhere(root),
        "error": error or None,
    }


def _ask(*words: str) -> tuple[str, str]:
    """Return the output and the error of a Slurm program; the error is empty if it succeeded."""
    try:
        answer = ask(words, ANSWER_S)
    except SlurmSilentError as error:
        return "", str(error)
    if answer.code != 0:
        said = answer.said or answer.text or "exit %d" % answer.code
        return "", "%s: %s" % (title_of(words), said.splitlines()[0][:200])
    return answer.text, ""


def parse_config(text: str) -> ClusterConfig:
    """Read the answer to CONFIG."""
    found = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", text, re.MULTILINE))
    accounting = found.get("AccountingStorageType", "")
    return {
        "name": found.get("ClusterName") or None,
        "version": found.get("SLURM_VERSION") or None,
        "has_accounting": accounting.startswith("accounting_storage/") and not accounting.endswith("/none"),
        "can_requeue": found["JobRequeue"] == "1" if "JobRequeue" in found else None,
    }


def parse_nodes(text: str) -> list[PartitionReport]:
    """Read the answer to NODES: the partitions, in Slurm's order. Lines of another form are left out."""
    partitions: dict[str, PartitionReport] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 10:
            continue
        name, state, limit, size, count, node_state, cpus, memory, gres, features = fields
        partition = partitions.setdefault(
            name.rstrip("*"),
            {
                "name": name.rstrip("*"),
                "is_default": name.endswith("*"),
                "state": state,
                "max_time_s": seconds_of(limit),
                "max_nodes": _number(size.rpartition("-")[2]),
                "nodes": [],
            },
        )
        group: NodeGroupReport = {
            "count": 0,
            "idle": 0,
            "down": 0,
            "drained": 0,
            "cpus": _number(cpus),
            "memory_mib": _number(memory),
            "gres": parse_gres(gres),
            "features": [one for one in features.split(",") if one and one != "(null)"],
        }
        total = _number(count) or 0
        if not total:
            continue
        entry = next((one for one in partition["nodes"] if _are_alike(one, group)), group)
        if entry is group:
            partition["nodes"].append(entry)
        base = node_state.rstrip(_MARKS)
        is_down = base in _DOWN or _GONE in node_state
        entry["count"] += total
        entry["idle"] += total if base == "idle" and not is_down else 0
        entry["down"] += total if is_down else 0
        entry["drained"] += total if base in _DRAINED else 0
    return list(partitions.values())


def _are_alike(one: NodeGroupReport, other: NodeGroupReport) -> bool:
    """Whether the nodes of two groups have the same resources."""
    return (one["cpus"], one["memory_mib"], one["gres"], one["features"]) == (
        other["cpus"],
        other["memory_mib"],
        other["gres"],
        other["features"],
    )


def parse_gres(text: str) -> list[GresReport]:
    """Read a node's resources, such as `gpu:a100:2(S:0-1),nvme:1`."""
    found: list[GresReport] = []
    for word in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *more = word.split(":")
        more = [part for part in more if part != "no_consume"]
        count = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", more[-1]) if more else None
        kinds = more[:-1] if count else more
        if name:
            factor = 1024 ** " KMGT".index(count[2] or " ") if count else 1
            number = int(count[1]) * factor if count else 1
            found.append({"name": name, "type": kinds[0] if kinds else None, "count": number})
    return found


def parse_queue(text: str) -> dict[str, int]:
    """Read the answer to QUEUE: the number of the user's waiting jobs, and of the user's other jobs."""
    states = text.split()
    queued = states.count("PD")
    return {"queued": queued, "running": len(states) - queued}


def parse_accounts(text: str) -> dict[str, list[str]]:
    """Read the answer to ACCOUNTS. If no accounts are recorded, any account may work, and the result is empty."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
    accounts = [row[0] for row in rows if row[0]]
    qos = [name for row in rows for name in row[1].split(",") if name]
    found = {"accounts": list(dict.fromkeys(accounts)), "qos": list(dict.fromkeys(qos))}
    return {key: names for key, names in found.items() if names}


def is_seen_elsewhere(root: str) -> bool:
    """Whether another machine has written a folder in the root, so that other machines see the root.

    Folders of a cluster do not count.
    """
    places = {os.path.basename(path) for path in paths_in(os.path.join(root, "hosts"))}
    return any(":" not in place for place in places - {process.host_id()})


def _number(text: str) -> int | None:
    """Read a number, or the least of several: `4+`."""
    found = re.match(r"[0-9]{1,15}", text)
    return int(found[0]) if found else None
