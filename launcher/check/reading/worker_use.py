"""The plan's values that a training takes through `launcher_worker`, read from its source.

This is a forecast before the launch. During the run, `consumed` in its state lists the values really taken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from launcher.check.reading.module import Module
from launcher.values.plan import PlanValue

WORKER = "launcher_worker"
_OWN_KEYWORDS: dict[str, dict[PlanValue, frozenset[str]]] = {
    "model_arguments": {"precision": frozenset({"dtype", "torch_dtype"})},
    "training_arguments": {
        "precision": frozenset({"fp16", "bf16", "tf32"}),
        "split": frozenset({"per_device_train_batch_size", "gradient_accumulation_steps"}),
        "checkpointing": frozenset({"gradient_checkpointing", "activation_checkpointing"}),
    },
    "prepare": {"checkpointing": frozenset()},
    "accelerator": {"precision": frozenset({"mixed_precision"})},
    "autocast": {"precision": frozenset()},
    "scaler": {"precision": frozenset()},
}
"""The worker's functions that take values of the plan, and the keywords with which a script sets such a value itself."""


def values_taken(modules: Iterable[Module]) -> tuple[PlanValue, ...]:
    """Return the plan's values that one training's Python sources take."""
    files = [_WorkerSource(module) for module in modules]
    knobs = frozenset().union(*(file.knobs() for file in files))
    taken = {value for file in files for value in file.taken(knobs)}
    return tuple(sorted(taken))


class _WorkerSource:
    """One source file: the names under which it calls the worker's functions."""

    def __init__(self, module: Module) -> None:
        self._nodes = module.nodes
        self._modules: set[str] = set()
        self._functions: dict[str, str] = {}
        for node in self._nodes:
            self._note_import(node)

    def _note_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self._modules.update(
                (one.asname or WORKER) for one in node.names if one.name.partition(".")[0] == WORKER
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == WORKER:
            names = {one.asname or one.name: one.name for one in node.names}
            self._functions.update(
                {name: name for name in (*_OWN_KEYWORDS, "knobs")} if "*" in names else names
            )
        elif isinstance(node, ast.Assign) and _imports(node.value):
            self._modules.update(_names(node.targets))

    def _function(self, node: ast.expr) -> str | None:
        """Return the worker's function that an expression names."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return node.attr if node.value.id in self._modules else None
        return self._functions.get(node.id) if isinstance(node, ast.Name) else None

    def knobs(self) -> frozenset[str]:
        """Return the names, of variables and attributes, that hold the worker's knobs."""
        found: set[str] = set()
        for node in self._nodes:
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(_names(targets) if self._is_knobs(node.value) else ())
        return frozenset(found)

    def _is_knobs(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Attribute) and node.attr == "peek":
            return self._is_knobs(node.value)
        return isinstance(node, ast.Call) and self._function(node.func) == "knobs"

    def taken(self, knobs: frozenset[str]) -> Iterator[PlanValue]:
        """Yield the values that this source takes; `knobs` are the names in all sources that hold knobs."""
        for node in self._nodes:
            if isinstance(node, ast.Call):
                keywords = {one.arg for one in node.keywords}
                decided = _OWN_KEYWORDS.get(self._function(node.func) or "", {})
                yield from (value for value, own in decided.items() if not own & keywords)
            elif isinstance(node, ast.Attribute):
                holder = node.value
                if isinstance(holder, ast.Attribute) and holder.attr == "peek":
                    holder = holder.value
                if self._is_knobs(holder) or not knobs.isdisjoint(_names([holder])):
                    yield from (value for name, value in _ATTRIBUTES.items() if node.attr == name)


def _imports(node: ast.expr) -> bool:
    """Whether an expression imports the worker by its name, as `importlib.import_module` does."""
    words = node.args if isinstance(node, ast.Call) else []
    return any(isinstance(word, ast.Constant) and word.value == WORKER for word in words)


_ATTRIBUTES: dict[str, PlanValue] = {
    "precision": "precision",
    "split": "split",
    "activation_checkpointing": "checkpointing",
}
"""The knobs through which a script reads a value itself."""


def _names(nodes: Iterable[ast.expr]) -> Iterator[str]:
    """Yield the names of variables, and of attributes such as `self.plan`."""
    for node in nodes:
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
