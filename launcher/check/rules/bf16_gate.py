"""LC103: a question about bf16 that counts emulation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import set_keyword
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script
from launcher.values.precision import AMPERE

_GATE = re.compile(
    r"torch\.cuda\.is_bf16_supported|transformers\.utils(\.import_utils)?\.is_torch_bf16_gpu_available"
)
_TELLS = re.compile(r"\b(print|log|info|debug|warning|warn|rprint|write|echo)$")


def find(script: Script) -> Iterator[Problem]:
    """Find the calls whose answer decides something."""
    if script.card.kind != "cuda" or (script.card.compute or (0, 0)) >= AMPERE:
        return
    for made in script.calls(_GATE):
        if script.are(script.keyword(made, "including_emulation"), False) or _is_told(script, made.call):
            continue
        message = "torch.cuda.is_bf16_supported() is true on Turing and Pascal too: it counts emulation"
        is_torch = made.name.startswith("torch.")
        edits = (set_keyword(script.module, made.call, "including_emulation", "False"),) if is_torch else ()
        yield Problem(
            script.module, made.call, message, "is_bf16_supported(including_emulation=False)", edits
        )


def _is_told(script: Script, call: ast.Call) -> bool:
    """Whether the answer is only printed, or the capability is asked beside it."""
    for node in script.module.above(call):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Call) and _TELLS.search(ast.unparse(node.func))
        ):
            return True
        if isinstance(node, ast.BoolOp) and "get_device_capability" in ast.unparse(node):
            return True
        if isinstance(node, ast.stmt):
            is_alone = isinstance(node, ast.Expr) and node.value is call
            return is_alone or (isinstance(node, ast.If) and all(map(_tells, (*node.body, *node.orelse))))
    return False


def _tells(statement: ast.stmt) -> bool:
    """Whether a statement only prints or logs."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(statement, ast.Pass) or (
        isinstance(value, ast.Call) and bool(_TELLS.search(ast.unparse(value.func)))
    )


RULE = Rule(
    code="LC103",
    name="bf16-gate",
    what="torch.cuda.is_bf16_supported() decides the precision",
    why="By default it counts emulation, and ends with the question whether a bfloat16 tensor can be made. So it is true on "
    "a T4, a TITAN RTX and a P100, and the script takes bfloat16 there: slow on Turing, an error of cuBLAS on Pascal.",
    bad="""arguments = TrainingArguments("out", bf16=torch.cuda.is_bf16_supported())
""",
    good="""arguments = TrainingArguments("out", bf16=torch.cuda.is_bf16_supported(including_emulation=False))
""",
    source="torch/cuda/__init__.py of torch 2.13, measured with a faked capability of 7.5.",
    find=find,
    causes=("bf16-unsupported",),
    is_adapted=True,
)
