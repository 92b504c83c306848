"""A Slurm cluster as its login node reports it: partitions and their nodes, limits, and the user's permissions."""

from __future__ import annotations

from collections import Counter

from launcher.values.base import Record


class Gres(Record):
    """A generic resource of a node, such as two cards: Slurm's `gpu:a100:2`.

    `type` is None if the cluster names no type.
    """

    name: str
    type: str | None = None
    count: int = 1

    @property
    def title(self) -> str:
        """The resource as Slurm writes it."""
        return ":".join([self.name, *([self.type] if self.type else []), str(self.count)])


class NodeSet(Record):
    """Identical nodes of a partition: how many there are, how many are idle or down, and the equipment of each node.

    `drained` counts those of the down nodes that an administrator has taken out of service.
    """

    count: int
    idle: int = 0
    down: int = 0
    drained: int = 0
    cpus: int | None = None
    memory_mib: float | None = None
    gres: tuple[Gres, ...] = ()
    features: tuple[str, ...] = ()


class Partition(Record):
    """A partition.

    `max_time_s` and `max_nodes` limit one job, None without a limit. `state` is Slurm's word, such as `up`.
    """

    name: str
    is_default: bool = False
    state: str = "up"
    max_time_s: float | None = None
    max_nodes: int | None = None
    nodes: tuple[NodeSet, ...] = ()

    @property
    def size(self) -> int:
        """The number of nodes."""
        return sum(alike.count for alike in self.nodes)

    @property
    def gpus(self) -> tuple[Gres, ...]:
        """The kinds of cards on its nodes, each once."""
        return tuple(dict.fromkeys(one for alike in self.nodes for one in alike.gres if one.name == "gpu"))


class Cluster(Record):
    """A cluster and the user's permissions. Facts that Slurm's programs did not report are None, or empty.

    `accounts` and `qos` are those of the user, None where the cluster keeps no accounts. `queued` and
    `running` count the user's jobs. `root_was_seen`: another machine has written to the root, so other
    machines see it. `error` names the program that did not answer, with its message.
    """

    name: str | None = None
    version: str | None = None
    partitions: tuple[Partition, ...] = ()
    has_accounting: bool = False
    can_requeue: bool | None = None
    accounts: tuple[str, ...] | None = None
    qos: tuple[str, ...] | None = None
    queued: int | None = None
    running: int | None = None
    root_was_seen: bool = False
    error: str | None = None

    def partitions_of(self, names: str | None) -> tuple[Partition, ...]:
        """Return the partitions of a job from their names, separated by commas; the default one if None.
        Unknown names are skipped.
        """
        if names is None:
            return tuple(one for one in self.partitions if one.is_default)
        by_name = {one.name: one for one in self.partitions}
        return tuple(by_name[name] for name in names.split(",") if name in by_name)

    def cards(self, names: str | None) -> str:
        """Return the cards in a job's partitions, in Slurm's words, e.g. `4 x a100`; empty without cards.

        Partitions may share nodes, so for each kind of card the largest number of any partition counts.
        """
        most: dict[str, int] = {}
        for partition in self.partitions_of(names):
            found: Counter[str] = Counter()
            for alike in partition.nodes:
                for one in alike.gres:
                    if one.name == "gpu":
                        found[one.type or one.name] += alike.count * one.count
            most |= {kind: max(count, most.get(kind, 0)) for kind, count in found.items()}
        return ", ".join(f"{count} x {kind}" for kind, count in most.items())
