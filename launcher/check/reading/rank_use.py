"""Read from a script's source how it uses ranks, to start one process per card or only one.

Two processes of a script that does not know about ranks train twice into one folder; one process at worst
leaves cards idle. So a script is started once per card only if its source shows that it reads its rank from
the environment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from launcher.check.reading.module import Module
from launcher.planning.script.script import script_of
from launcher.values.plan import RankUse

_TRAINERS = (
    r"(?:transformers|trl|sentence_transformers|optimum|unsloth)(?:\.\w+)*\.\w*(?:Trainer|TrainingArguments)"
)
_TAKES = re.compile(
    rf"{_TRAINERS}"
    r"|accelerate(?:\.\w+)*\.(?:Accelerator|PartialState|AcceleratorState)"
    r"|launcher_worker\.(?:accelerator|training_arguments)"
    r"|torch\.distributed(?:\.\w+)*\.init_device_mesh"
    r"|deepspeed\.(?:initialize|init_distributed)"
    r"|composer\.Trainer"
)
"""Classes and functions that read the rank from the environment."""
_STARTS = re.compile(
    r"torch\.multiprocessing(?:\.\w+)*\.(?:spawn|start_processes|Process)"
    r"|accelerate(?:\.\w+)*\.(?:notebook_launcher|debug_launcher)"
    r"|torch\.distributed\.(?:run\.\w+|launcher(?:\.\w+)*\.elastic_launch)"
    r"|(?:lightning|pytorch_lightning|lightning_fabric)(?:\.\w+)*\.(?:Trainer|Fabric|LightningCLI)"
    r"|ray\.train(?:\.\w+)*\.\w*Trainer"
)
"""Classes and functions that start a process for each visible card.

Lightning 2.6 does so. In a process that sees only one card, its Trainer reads no rank by default: in a test,
two such processes trained the same model twice, each with `world_size` 1.
"""
_INITS = re.compile(r"torch\.distributed(?:\.\w+)*\.init_process_group")
_STARTERS = ("torchrun", "accelerate", "deepspeed")
_STARTER = re.compile(
    r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\baccelerate(?:\s+|\.commands\.)launch\b|\bdeepspeed\s+\S*\.py\b"
)
_STARTER_PACKAGES = ("torch", "accelerate", "deepspeed", "horovod")
"""Packages whose modules start ranks themselves."""
_COMMANDS = re.compile(r"subprocess\.\w+|os\.(?:system|popen|exec\w+|spawn\w+|posix_spawnp?)")
_DATA_PARALLEL = re.compile(r"torch\.nn(?:\.\w+)*\.DataParallel")
_DISTRIBUTED_DATA_PARALLEL = re.compile(r"torch\.nn(?:\.\w+)*\.DistributedDataParallel")
_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
_OPTIONS = ("--device_map", "--device-map")
_RANK_VARIABLES = ("LOCAL_RANK", "WORLD_SIZE")
"""RANK is not listed: if read with a default, it may be the script's own variable, e.g. the rank of a LoRA."""


def rank_use(command: Sequence[str], modules: Iterable[Module]) -> RankUse | None:
    """Return how a command's script uses ranks; None if the agent cannot start the command once for each rank.

    `modules` are the files that were read, the script's own first. The uses are looked
    for in this order: the script starts processes, chooses cards, spreads a model over cards, reads a rank.
    """
    if not _is_python(command):
        return None
    found = [*map(_RankSource, modules)]
    title = _title(command)
    if not found:
        return RankUse(kind="none", why=f"{title} cannot be read here")
    for one in found:
        for word in one.starts():
            return RankUse(kind="started", why=f"{one.name} starts its processes itself: {word}")
    for one in found:
        for word in one.own_cards():
            return RankUse(kind="none", why=f"{one.name} chooses its cards itself: {word}")
    spreads = [(one, word) for one in found for word in one.spreads()]
    if spreads and not any(one.places for one in found):
        one, word = spreads[0]
        return RankUse(kind="none", why=f"{one.name} spreads its model over the cards: {word}")
    for one in found:
        for word in one.takes():
            return RankUse(kind="taken", why=f"{one.name} has {word}")
    return RankUse(kind="none", why=f"{title} takes no rank from its environment")


def _is_python(command: Sequence[str]) -> bool:
    """Whether the agent may start a command once for each rank; the agent's `is_one_rank` has the same rule."""
    package = command[2].partition(".")[0] if command[1:2] == ("-m",) and command[2:3] else ""
    return command[0] in ("python", "python3") and package not in _STARTER_PACKAGES


def _title(command: Sequence[str]) -> str:
    script = script_of(command)
    return script.path if script is not None else command[0]


class _RankSource:
    """One source file, and the full names that it uses."""

    def __init__(self, module: Module) -> None:
        self.name = module.name
        self._calls = module.calls
        self._nodes = module.nodes
        self._used = [*filter(None, map(module.full_name, self._nodes))]
        maps = [one for node in self._nodes for value in _device_maps(node) for one in _choices(value)]
        self._spreading = [
            one.value for one in maps if isinstance(one, ast.Constant) and one.value in _SPREADING
        ]
        self.places = any(isinstance(one, ast.Dict | ast.Call) for one in maps)

    # starting

    def starts(self) -> Iterator[str]:
        """Yield the names or words with which this source starts the processes of a training."""
        yield from filter(_STARTS.fullmatch, self._used)
        for call, name in self._calls:
            if _COMMANDS.fullmatch(name):
                for word in _texts([*call.args, *(one.value for one in call.keywords)]):
                    yield from _STARTER.findall(word)
        if any(map(_COMMANDS.fullmatch, self._used)):
            for node in self._nodes:
                if isinstance(node, ast.List | ast.Tuple):
                    words = [_text_of(one) for one in node.elts]
                    yield from (word for word in words[:1] if word in _STARTERS)
                    yield from (word for word in words if _STARTER.fullmatch(word))

    # cards

    def own_cards(self) -> Iterator[str]:
        """Yield the assignments with which this source decides which cards it sees."""
        for node in self._nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                for target in node.targets:
                    if _variable_of(target) == "CUDA_VISIBLE_DEVICES":
                        yield f"CUDA_VISIBLE_DEVICES = {node.value.value!r}"

    def spreads(self) -> Iterator[str]:
        """Yield the ways in which this source spreads a model over the cards that it sees."""
        yield from (f'device_map="{word}"' for word in self._spreading)
        if not any(map(_DISTRIBUTED_DATA_PARALLEL.fullmatch, self._used)):
            yield from (name for _, name in self._calls if _DATA_PARALLEL.fullmatch(name))

    # reading a rank

    def takes(self) -> Iterator[str]:
        """Yield the names with which this source reads its rank from the environment."""
        yield from filter(_TAKES.fullmatch, self._used)
        for node in self._nodes:
            is_needed = isinstance(node, ast.Subscript)  # a missing variable would end the script
            if (name := _variable_read(node)) in _RANK_VARIABLES or (name == "RANK" and is_needed):
                yield name
        if not any(_sets_rank(node) for node in self._nodes):
            yield from (
                name for call, name in self._calls if _INITS.fullmatch(name) and not _gives_rank(call)
            )


def _device_maps(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the values that a node assigns to `device_map`: argument, option, key, variable or default."""
    match node:
        case ast.keyword(arg="device_map", value=value):
            yield value
        case ast.Call(args=args) if any(_text_of(one) in _OPTIONS for one in args):
            yield node
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            yield from (value for key, value in pairs if key is not None and _text_of(key) == "device_map")
        case ast.Assign(targets=targets, value=value) if any(map(_is_device_map, targets)):
            yield value
        case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_device_map(target):
            yield value
        case ast.arguments():
            named = [*node.posonlyargs, *node.args]
            with_default = zip(named[len(named) - len(node.defaults) :], node.defaults, strict=True)
            by_keyword = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from (value for one, value in with_default if one.arg == "device_map")
            yield from (value for one, value in by_keyword if one.arg == "device_map" and value is not None)


def _is_device_map(node: ast.expr) -> bool:
    name = (
        node.id
        if isinstance(node, ast.Name)
        else node.attr
        if isinstance(node, ast.Attribute)
        else _key_of(node)
    )
    return name == "device_map"


def _choices(node: ast.expr) -> Iterator[ast.expr]:
    """Yield an expression's possible values: `a` and `c` of `a if b else c`, the default of an option or a field."""
    defaults = (
        [one.value for one in node.keywords if one.arg == "default"] if isinstance(node, ast.Call) else []
    )
    if isinstance(node, ast.IfExp):
        yield from (*_choices(node.body), *_choices(node.orelse))
    elif defaults:
        yield from defaults
    else:
        yield node


def _key_of(node: ast.AST) -> str:
    """Return the constant key of a subscript."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return ""


def _variable_of(node: ast.AST) -> str:
    """Return the environment variable's name in a subscript such as `os.environ["RANK"]`; else empty."""
    return _key_of(node) if isinstance(node, ast.Subscript) and _is_environment(node.value) else ""


def _variable_read(node: ast.AST) -> str:
    """Return the environment variable that a node reads: by a key, by a function such as `os.getenv`, or by `in`."""
    if isinstance(node, ast.Subscript):
        return _variable_of(node) if isinstance(node.ctx, ast.Load) else ""
    if isinstance(node, ast.Call) and node.args and _is_environment(node.func):
        return _text_of(node.args[0])
    if isinstance(node, ast.Compare) and any(map(_is_environment, node.comparators)):
        return _text_of(node.left)
    return ""


def _is_environment(node: ast.expr) -> bool:
    """Whether an expression is named like an environment or its reader: `os.environ.get`, `getenv`, `env_int`."""
    return any(
        "env" in (one.id if isinstance(one, ast.Name) else one.attr).lower()
        for one in ast.walk(node)
        if isinstance(one, ast.Name | ast.Attribute)
    )


def _sets_rank(node: ast.AST) -> bool:
    """Whether a node sets the rank that a process group would take from the environment."""
    return isinstance(node, ast.Assign) and any(
        _variable_of(one) in ("RANK", "WORLD_SIZE") for one in node.targets
    )


def _gives_rank(call: ast.Call) -> bool:
    """Whether a call of `init_process_group` passes the rank, which is its fifth argument."""
    return len(call.args) > 4 or any(one.arg == "rank" for one in call.keywords)


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _texts(nodes: Sequence[ast.expr]) -> Iterator[str]:
    """Yield the texts in some expressions."""
    for node in nodes:
        yield from filter(None, (_text_of(one) for one in ast.walk(node) if isinstance(one, ast.expr)))
