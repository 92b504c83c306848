"""LC109: a step, or a clipping, of gradients that are still scaled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import insert_after, insert_before, replace_node, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.inference.value import Made
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_CLIP = re.compile(r"torch\.nn\.utils(\.clip_grad)?\.clip_grad_(norm|value)_")
_SCALER = re.compile(r"torch(\.cuda)?\.amp(\.grad_scaler)?\.GradScaler")


def find(script: Script) -> Iterator[Problem]:
    """Find steps and clippings in a script that scales its loss."""
    scaler = _scaler(script)
    if scaler is None:
        return
    stepped = {path_of(call.args[0]): call for call, _ in script.methods("step") if call.args}
    unscaled = {path_of(call.args[0]) for call, _ in script.methods("unscale_") if call.args}
    yield from _steps(script, scaler, stepped)
    if unscaled or len(stepped) != 1:
        return
    (optimizer,) = stepped
    for made in script.calls(_CLIP):
        if _is_unscaled_branch(script, made.call):
            continue
        statement = statement_of(script.module, made.call)
        edits = (
            (insert_before(script.module, statement, [f"{scaler}.unscale_({optimizer})"]),)
            if statement and optimizer
            else ()
        )
        message = "gradients are clipped while they are scaled: the limit is thousands of times too small"
        yield Problem(script.module, made.call, message, f"{scaler}.unscale_({optimizer}) before it", edits)


def _scaler(script: Script) -> str | None:
    """Return the name of the GradScaler that scales the loss before its backward pass."""
    for call, holder in script.methods("scale"):
        made = script.values(holder)
        up = script.module.parents.get(call)
        is_scaler = bool(made) and all(isinstance(one, Made) and _SCALER.fullmatch(one.name) for one in made)
        if is_scaler and path_of(holder) and isinstance(up, ast.Attribute) and up.attr == "backward":
            is_off = all(
                script.are(script.keyword(one, "enabled"), False) for one in made if isinstance(one, Made)
            )
            return None if is_off else path_of(holder)
    return None


def _steps(script: Script, scaler: str, stepped: dict[str, ast.Call]) -> Iterator[Problem]:
    updates = any(path_of(holder) == scaler for _, holder in script.methods("update"))
    for call, holder in script.methods("step"):
        optimizer = path_of(holder)
        if call.args or call.keywords or optimizer in stepped or not script.optimizers(holder):
            continue
        if _is_unscaled_branch(script, call) or _has_plain_loss(script):
            continue
        statement = statement_of(script.module, call)
        edits = [replace_node(script.module, call, f"{scaler}.step({optimizer})")]
        if not updates and statement is not None:
            edits.append(insert_after(script.module, statement, [f"{scaler}.update()"]))
        message = (
            f"{optimizer}.step() uses gradients that {scaler} has scaled, and does not skip infinite ones"
        )
        yield Problem(
            script.module, call, message, f"{scaler}.step({optimizer}), then {scaler}.update()", tuple(edits)
        )


def _has_plain_loss(script: Script) -> bool:
    """Whether a script also has a loss that it does not scale, beside the scaled one."""
    return any(
        not (isinstance(holder, ast.Call) and getattr(holder.func, "attr", "") == "scale")
        and not _is_unscaled_branch(script, call)
        for call, holder in script.methods("backward")
    )


def _is_unscaled_branch(script: Script, node: ast.AST) -> bool:
    """Whether a node is in the other branch of a condition than the scaled backward pass."""
    scaled = [call for call, _ in script.methods("scale")]
    for one in script.module.above(node):
        if isinstance(one, ast.If):
            other = one.orelse if any(_is_in(node, block) for block in one.body) else one.body
            if any(_is_in(call, block) for block in other for call in scaled):
                return True
    return False


def _is_in(node: ast.AST, block: ast.AST) -> bool:
    return any(one is node for one in ast.walk(block))


RULE = Rule(
    code="LC109",
    name="step-outside-scaler",
    what="scaled gradients are stepped or clipped",
    why="After `scaler.scale(loss).backward()` each gradient is multiplied by the scale, 65536 at first. `optimizer.step()` "
    "takes that huge gradient, and also infinite ones, which `scaler.step` would skip. Clipping to 1.0 before "
    "`scaler.unscale_` makes each step thousands of times too small.",
    bad="""scaler.scale(loss).backward()
optimizer.step()
""",
    good="""scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
""",
    source="torch.amp examples, 'Working with unscaled gradients'; torch/amp/grad_scaler.py.",
    find=find,
    causes=("nan-divergence",),
)
