"""LC109: a step, or a clipping, of gradients that are still scaled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import Edit, insert_after, insert_before, replace_node, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.inference.value import Made
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_CLIP = re.compile(r"torch\.nn\.utils(\.clip_grad)?\.clip_grad_(norm|value)_")
_SCALER = re.compile(r"torch(\.cuda)?\.amp(\.grad_scaler)?\.GradScaler")


def find(script: Script) -> Iterator[Problem]:
    """Find steps and clippings in a script that scales its loss."""
    found = _scaler(script)
    if found is None:
        return
    scaler, scaled = found
    stepped = {path_of(call.args[0]): call for call, _ in script.methods("step") if call.args}
    unscaled = {path_of(call.args[0]) for call, _ in script.methods("unscale_") if call.args}
    yield from _steps(script, scaler, scaled, stepped)
    if unscaled or len(stepped) != 1:
        return
    (optimizer,) = stepped
    for made in script.calls(_CLIP):
        if _is_unscaled_branch(script, made.call):
            continue
        first = _first_beside(script, made.call)
        edits: tuple[Edit, ...] = ()
        if (
            first is not None
            and optimizer
            and _is_beside(script, made.call, scaled, scaler)
            and script.has_name(optimizer, stepped[optimizer], made.call)
        ):
            edits = insert_before(script.module, first, f"{scaler}.unscale_({optimizer})")
        message = "gradients are clipped while they are scaled: the limit is thousands of times too small"
        yield Problem(script.module, made.call, message, f"{scaler}.unscale_({optimizer}) before it", edits)


def _is_beside(script: Script, node: ast.AST, scaled: ast.Call, scaler: str) -> bool:
    """Whether a node has the scaler's name, and is executed as often as the scaled backward pass."""
    own, other = (
        next((one for one in script.module.above(it) if isinstance(one, ast.For | ast.While)), None)
        for it in (node, scaled)
    )
    return own is other and script.has_name(scaler, scaled, node)


def _first_beside(script: Script, call: ast.Call) -> ast.stmt | None:
    """Return the statement of the first clipping in the block of one: the gradients are unscaled once."""
    own = statement_of(script.module, call)
    block = script.module.parents.get(own) if own is not None else None
    clips = (statement_of(script.module, made.call) for made in script.calls(_CLIP))
    same = [one for one in clips if one is not None and script.module.parents.get(one) is block]
    is_else = own in getattr(block, "orelse", [])
    return next((one for one in same if (one in getattr(block, "orelse", [])) is is_else), own)


def _scaler(script: Script) -> tuple[str, ast.Call] | None:
    """Return the name of the GradScaler that scales the loss before its backward pass, and where it does."""
    for call, holder in script.methods("scale"):
        made = script.values(holder)
        up = script.module.parents.get(call)
        is_scaler = bool(made) and all(isinstance(one, Made) and _SCALER.fullmatch(one.name) for one in made)
        if is_scaler and path_of(holder) and isinstance(up, ast.Attribute) and up.attr == "backward":
            is_off = all(
                script.are(script.keyword(one, "enabled"), False) for one in made if isinstance(one, Made)
            )
            return None if is_off else (path_of(holder), call)
    return None


def _steps(script: Script, scaler: str, scaled: ast.Call, stepped: dict[str, ast.Call]) -> Iterator[Problem]:
    updates = any(path_of(holder) == scaler for _, holder in script.methods("update"))
    found = [
        (call, path_of(holder), statement_of(script.module, call))
        for call, holder in script.methods("step")
        if not (call.args or call.keywords or path_of(holder) in stepped or not script.optimizers(holder))
        and not (_is_unscaled_branch(script, call) or _has_plain_loss(script))
    ]
    found.sort(key=lambda one: (one[0].lineno, one[0].col_offset))
    is_one_block = len({script.module.parents.get(one) for _, _, one in found if one is not None}) == 1
    for call, optimizer, statement in found:
        edits: list[Edit] = []
        is_own = isinstance(statement, ast.Expr) and statement.value is call and (updates or is_one_block)
        if is_own and statement is not None and optimizer and _is_beside(script, call, scaled, scaler):
            edits = [replace_node(script.module, call, f"{scaler}.step({optimizer})")]
            if not updates and call is found[-1][0]:
                edits += insert_after(script.module, statement, [f"{scaler}.update()"])
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
