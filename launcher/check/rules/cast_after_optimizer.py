"""LC105: a model that is cast while it is trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from launcher.check.edit import Edit, import_of, remove_statement, replace_node, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.reading.time_limit import tick
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script, dtype_of

_HALVING = {"half": "float16", "bfloat16": "bfloat16"}
_BACK = ("float",)
_CALLBACK = re.compile(r"transformers(\.\w+)*\.TrainerCallback")
_DURING = (
    "on_step_end", "on_substep_end", "on_evaluate", "on_log", "on_save", "on_epoch_end", "on_step_begin", "on_epoch_begin",
    "on_prediction_step",
)  # fmt: skip
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Cast(NamedTuple):
    call: ast.Call
    model: ast.expr
    dtype: str
    is_taken_back: bool = False


def find(script: Script) -> Iterator[Problem]:
    """Find casts in a loop of steps, in what it calls, in callbacks of a Trainer, and between two trainings."""
    if not re.search(rb"\.half\(|\.bfloat16\(|\.to\(", script.module.source):
        return
    live = _live(script)
    for loop in _loops(script):
        yield from _problems(script, loop, live)
        for function, own in _called_in(script, loop, live):
            yield from _problems(script, function, own)
    for function in _callbacks(script):
        yield from _problems(script, function, {"model", "kwargs['model']"})
    yield from _between_trainings(script, live)


def _live(script: Script) -> set[str]:
    """Return the names of models whose parameters an optimizer or a Trainer has."""
    found: set[str] = set()
    trainers = {one.call for one in script.trainings}
    for call, name in script.module.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("parameters", "named_parameters"):
            found.add(path_of(call.func.value))
        if name.endswith("Trainer") or call in trainers:
            found |= {path_of(one.value) for one in call.keywords if one.arg == "model"}
            found |= {path_of(one) for one in call.args[:1]}
    return found - {""}


def _loops(script: Script) -> Iterator[ast.For | ast.While]:
    """Yield the outermost loops that step an optimizer."""
    for node in script.module.nodes:
        if isinstance(node, ast.For | ast.While) and not any(
            isinstance(up, ast.For | ast.While) for up in script.module.above(node)
        ):
            names = _methods_in(node)
            called = (one for one in script.module.nodes if isinstance(one, _Function) and one.name in names)
            names = names.union(*map(_methods_in, called))
            if "backward" in names and "step" in names:
                yield node


def _methods_in(node: ast.AST) -> set[str]:
    """Return the names of the functions and methods that a node calls."""
    calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
    return {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in calls}


def _casts(script: Script, inside: ast.AST, live: set[str]) -> list[_Cast]:
    """Return the casts to half precision in a node."""
    found: list[_Cast] = []
    back: set[str] = set()
    for node in ast.walk(inside):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        path = path_of(node.func.value)
        if path not in live:
            continue
        dtype = _HALVING.get(node.func.attr, "")
        if node.func.attr in ("to", "type"):
            values = [
                one
                for argument in (*node.args, *(k.value for k in node.keywords))
                for one in script.values(argument)
            ]
            names = {dtype_of(one) for one in values} - {""}
            dtype = names.pop() if len(names) == 1 else ""
        if node.func.attr in _BACK or dtype == "float32":
            back.add(path)
        elif dtype:
            found.append(_Cast(node, node.func.value, dtype))
    return [one._replace(is_taken_back=path_of(one.model) in back) for one in found]


def _called_in(script: Script, loop: ast.AST, live: set[str]) -> Iterator[tuple[_Function, set[str]]]:
    """Yield the functions that a loop calls with a live model, each with the names that the model has in it."""
    tick()
    functions = {one.name: one for one in script.module.nodes if isinstance(one, _Function)}
    for node in ast.walk(loop):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        function = functions.get(name)
        is_method = isinstance(node.func, ast.Attribute)
        if function is None or (isinstance(node.func, ast.Attribute) and path_of(node.func.value) != "self"):
            continue
        names = [one.arg for one in function.args.args][1 if is_method else 0 :]
        own = {name for name, word in zip(names, node.args, strict=False) if path_of(word) in live}
        own |= {one.arg for one in node.keywords if one.arg and path_of(one.value) in live}
        local = {
            *names,
            *(
                one.id
                for one in ast.walk(function)
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
            ),
        }
        yield (
            function,
            own | {one for one in live if (one.startswith("self.") if is_method else one not in local)},
        )


def _callbacks(script: Script) -> Iterator[_Function]:
    """Yield the methods of a Trainer's callbacks that run during the training."""
    for node in script.module.nodes:
        if isinstance(node, ast.ClassDef) and any(_is_callback(script, base) for base in node.bases):
            yield from (one for one in node.body if isinstance(one, _Function) and one.name in _DURING)


def _is_callback(script: Script, base: ast.expr) -> bool:
    return any(script.base_of(one, _CALLBACK) for one in script.values(base))


def _between_trainings(script: Script, live: set[str]) -> Iterator[Problem]:
    """Find casts in a block between two calls of a trainer's `train`."""
    blocks = [
        getattr(node, "body", []) for node in script.module.nodes if isinstance(node, ast.Module | _Function)
    ]
    for block in blocks if script.trainings else ():
        trains = [place for place, one in enumerate(block) if _trains(one)]
        for statement in block[trains[0] + 1 : trains[-1]] if len(trains) > 1 else ():
            yield from _problems(script, statement, live)


def _trains(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "train"
        and not value.args
    )


def _problems(script: Script, inside: ast.AST, live: set[str]) -> Iterator[Problem]:
    for cast in _casts(script, inside, live):
        name = script.text_of(cast.model)
        message = (
            f"{name} is cast to {cast.dtype} while it is trained: the optimizer's state keeps the old type"
        )
        if cast.is_taken_back:
            message = f"{name} is cast to {cast.dtype} and back while it is trained: that rounds its weights each time"
        edits = () if cast.is_taken_back else _mended(script, cast, name)
        yield Problem(script.module, cast.call, message, f"cast a copy: copy.deepcopy({name})", edits)


def _mended(script: Script, cast: _Cast, name: str) -> tuple[Edit, ...]:
    statement = statement_of(script.module, cast.call)
    if isinstance(statement, ast.Expr) and statement.value is cast.call:
        return (remove_statement(script.module, statement),)
    is_itself = (
        isinstance(statement, ast.Assign)
        and statement.value is cast.call
        and path_of(statement.targets[0]) == name
    )
    if is_itself and statement is not None:
        return (remove_statement(script.module, statement),)
    imported = import_of(script.module, "copy", cast.call)
    if imported is None:
        return ()
    return (replace_node(script.module, cast.model, f"copy.deepcopy({name})"), *imported)


RULE = Rule(
    code="LC105",
    name="cast-after-optimizer",
    what="a model is cast while it is trained",
    why="`.half()` and `.to(dtype)` change the module itself. The optimizer's state has the type that the parameters had at "
    "the first step, so that the next step fails: ``expected dtype float for `end` but got dtype c10::BFloat16``. The fused "
    "optimizer says `expected scalar type BFloat16 but found Float`.",
    bad="""for step, batch in enumerate(loader):
    model(**batch).loss.backward()
    optimizer.step()
    if step % 100 == 0:
        model.to(torch.bfloat16)
        sample(model)
""",
    good="""for step, batch in enumerate(loader):
    model(**batch).loss.backward()
    optimizer.step()
    if step % 100 == 0:
        sample(model)
""",
    source="Measured with torch 2.13: AdamW of all kinds, and a callback of the Trainer.",
    find=find,
    causes=("bf16-dtype-mismatch",),
)
