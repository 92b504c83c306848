"""LC204: CUDA in a forked process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.inference.value import Const, Function, Instance, Made, Value
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_LOADER = re.compile(r"torch\.utils\.data(\.\w+)*\.DataLoader")
_FORKS = re.compile(r"(torch\.)?multiprocessing(\.\w+)*\.(Process|Pool)")
_SPAWNS = re.compile(rb"set_start_method\(|get_context\(|multiprocessing_context|forkserver")
_STARTS = ("cuda", "to", "set_device")


def find(script: Script) -> Iterator[Problem]:
    """Find CUDA in the workers of a DataLoader, and in processes forked after CUDA has begun."""
    found = [*_found(script)]
    if found and not any(_SPAWNS.search(module.source) for module in script.sources):
        yield from found


def _found(script: Script) -> Iterator[Problem]:
    for made in script.calls(_LOADER):
        workers = script.argument(made, 5, "num_workers")
        if workers and all(
            isinstance(one, Const) and isinstance(one.value, int) and one.value > 0 for one in workers
        ):
            yield from _of_loader(script, made)
    for made in script.calls(_FORKS):
        yield from _of_process(script, made)


def _of_loader(script: Script, made: Made) -> Iterator[Problem]:
    """Find CUDA in what a loader's workers execute: `__getitem__` and collate_fn."""
    executed = [*script.keyword(made, "collate_fn")]
    for dataset in script.argument(made, 0, "dataset"):
        executed += script.inference.member(dataset, "__getitem__") if isinstance(dataset, Instance) else []
    for function in executed:
        for call in _cuda_in(script, function):
            message = "workers of the DataLoader are forked, and CUDA cannot be used in a forked process"
            assert isinstance(function, Function)  # noqa: S101
            yield Problem(
                function.frame.module,
                call,
                message,
                "return CPU tensors; move the batch in the training loop",
            )


def _of_process(script: Script, made: Made) -> Iterator[Problem]:
    """Find processes that use CUDA, and that are forked by a process that has used it."""
    uses = any(True for target in script.keyword(made, "target") for _ in _cuda_in(script, target))
    around = next(
        (one for one in script.module.above(made.call) if isinstance(one, ast.FunctionDef | ast.Module)), None
    )
    if not uses or around is None:
        return
    for call in _cuda_calls(script, around):
        inner = next(
            (one for one in script.module.above(call) if isinstance(one, ast.FunctionDef | ast.Module)), None
        )
        if inner is around and call.lineno < made.call.lineno:
            message = "CUDA was begun in this process, and the forked one uses it: `Cannot re-initialize CUDA in forked subprocess`"
            yield Problem(
                script.module,
                made.call,
                message,
                'multiprocessing.set_start_method("spawn") at the start of the program',
            )
            return


def _cuda_in(script: Script, function: Value) -> Iterator[ast.Call]:
    if isinstance(function, Function):
        for node in ast.walk(function.node):
            if isinstance(node, ast.Call) and _is_cuda(script, node, function.frame.module is script.module):
                yield node


def _cuda_calls(script: Script, inside: ast.AST) -> Iterator[ast.Call]:
    return (
        node
        for node in ast.walk(inside)
        if isinstance(node, ast.Call) and _is_cuda(script, node, is_here=True)
    )


def _is_cuda(script: Script, call: ast.Call, is_here: bool) -> bool:
    """Whether a call puts something on a card."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _STARTS:
        return False
    if call.func.attr in ("cuda", "set_device"):
        return True
    words = [one for argument in call.args[:1] if is_here for one in script.values(argument)]
    return bool(words) and all(_is_card(script, one) for one in words)


def _is_card(script: Script, value: Value) -> bool:
    if isinstance(value, Made) and value.name == "torch.device":
        given = script.argument(value, 0, "type")
        return bool(given) and all(_is_card(script, one) for one in given)
    return isinstance(value, Const) and str(value.value).startswith("cuda")


RULE = Rule(
    code="LC204",
    name="cuda-before-fork",
    what="CUDA in a forked process",
    why="CUDA cannot be used in a process that was forked from one that uses it: `Cannot re-initialize CUDA in forked "
    "subprocess`. On Linux, the workers of a DataLoader and the processes of multiprocessing are forked. On a card in "
    "exclusive mode a spawned worker finds the card taken, so data is moved to the card by the training process alone.",
    bad="""class Rows(Dataset):
    def __getitem__(self, index):
        return self.rows[index].cuda()


loader = DataLoader(Rows(), num_workers=4)
""",
    good="""class Rows(Dataset):
    def __getitem__(self, index):
        return self.rows[index]


loader = DataLoader(Rows(), num_workers=4)
""",
    source="torch's notes on multiprocessing, 'CUDA in multiprocessing'.",
    find=find,
    is_mended=False,
)
