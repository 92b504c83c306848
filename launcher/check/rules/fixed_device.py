"""LC202: a fixed card in a script that is started once for each card."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import import_of, insert_after, replace_node, statement_of
from launcher.check.inference.definitions import path_of
from launcher.check.inference.value import Const, Made
from launcher.check.reading.module import Module
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_INIT = re.compile(r"torch\.distributed(\.\w+)*\.init_process_group")
_PARALLEL = re.compile(
    r"torch\.nn(\.\w+)*\.DistributedDataParallel|torch\.distributed\.fsdp(\.\w+)*\.(FullyShardedDataParallel|fully_shard)"
)
_SPAWNS = re.compile(
    r"torch\.multiprocessing(\.\w+)*\.(spawn|Process|start_processes)|multiprocessing(\.\w+)*\.Process"
)
_CHOOSES = re.compile(
    rb"set_device\((?!\s*0\s*\))|device_id\s*=|CUDA_VISIBLE_DEVICES|LOCAL_RANK|local_rank|device_ids\s*=\s*\[(?!\s*0\s*\])"
)
_MAX_TEST = 2000
"""Characters of a condition that are looked at: the time of the pattern grows with the square."""
_FIRST = re.compile(r"cuda:\d+")
_ONE_RANK = re.compile(
    r"rank\b.*==|==.*rank\b|is_main_process|is_local_main_process|is_master|master_process|not\s+\w*rank\b|get_rank\(\)\s*=="
)

_SEVERAL = re.compile(
    r"distributed|(\b|_)ddp(\b|_)|world_size|n_?gpus?\b|num_gpus|multi_?gpu|is_initialized", re.IGNORECASE
)
_NOT_SEVERAL = re.compile(r"\bnot\b|(==|<=) 1\b|< 2\b|is None|is False|== False")
_MAX_CALLS = 4


def find(script: Script) -> Iterator[Problem]:
    """Find `cuda:0` in such a script, and `.cuda()` where no rank chooses its card."""
    starts = [*script.calls(_INIT)]
    has_ranks = bool(starts or [*script.calls(_PARALLEL)])
    if not has_ranks and not script.accelerators:
        return
    spawns = any(True for _ in script.calls(_SPAWNS))
    for node, text in _fixed(script):
        if _is_of_one_rank(script.module, node) or _is_without_ranks(script.module, node, starts):
            continue
        message = f"{text} in a script that is started once for each card: every rank takes the same card"
        better = _better(script, node, is_accelerated=not has_ranks)
        imported = import_of(script.module, "os", node) if "os.environ" in better else ()
        is_mended = isinstance(node, ast.Constant) and not spawns and bool(better) and imported is not None
        edits = (replace_node(script.module, node, better), *(imported or ())) if is_mended else ()
        yield Problem(script.module, node, message, better or "the rank's own card", edits)
    if starts and not any(_CHOOSES.search(module.source) for module in script.sources):
        yield from _unchosen(script, starts[0], spawns)


def _fixed(script: Script) -> Iterator[tuple[ast.expr, str]]:
    """Yield the places where a card is named by its number."""
    for call, name in script.module.calls:
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if (
            method == "cuda"
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and isinstance(call.args[0].value, int)
        ):
            yield call.args[0], script.text_of(call)
        words = call.args[:1] if method == "to" or name == "torch.device" else []
        words = [*words, *(one.value for one in call.keywords if one.arg in ("device", "map_location"))]
        for word in words:
            if (
                isinstance(word, ast.Constant)
                and isinstance(word.value, str)
                and _FIRST.fullmatch(word.value)
            ):
                yield word, f'"{word.value}"'


def _is_of_one_rank(module: Module, node: ast.AST, depth: int = 0) -> bool:
    """Whether only one rank executes a node, or calls the function around it."""
    for one in module.above(node):
        if isinstance(one, ast.If | ast.IfExp) and (
            _ONE_RANK.search(ast.unparse(one.test)[:_MAX_TEST]) or _is_single(one, node)
        ):
            return True
        if isinstance(one, ast.FunctionDef) and depth < _MAX_CALLS:
            calls = [
                call
                for call, _ in module.calls
                if isinstance(call.func, ast.Name) and call.func.id == one.name
            ]
            return bool(calls) and all(_is_of_one_rank(module, call, depth + 1) for call in calls)
    return False


def _is_single(condition: ast.If | ast.IfExp, node: ast.AST) -> bool:
    """Whether a condition asks for several processes, and a node is in the branch for one."""
    test = ast.unparse(condition.test)[:_MAX_TEST]
    if not _SEVERAL.search(test):
        return False
    other = condition.orelse if isinstance(condition.orelse, list) else [condition.orelse]
    is_other = any(node is inner for one in other for inner in ast.walk(one))
    return is_other is not bool(_NOT_SEVERAL.search(test))


def _is_without_ranks(module: Module, node: ast.AST, starts: list[Made]) -> bool:
    """Whether a node is in the branch of a condition whose other branch starts the ranks."""
    inner = node
    for one in module.above(node):
        if isinstance(one, ast.If):
            other = one.orelse if inner in one.body else one.body if inner in one.orelse else []
            inside = {id(below) for block in other for below in ast.walk(block)}
            if any(id(start.call) in inside for start in starts):
                return True
        inner = one
    return False


def _better(script: Script, node: ast.expr, *, is_accelerated: bool) -> str:
    if not is_accelerated:
        return "f\"cuda:{os.environ['LOCAL_RANK']}\""
    for made in script.accelerators:
        up = script.module.parents.get(made.call)
        if isinstance(up, ast.Assign) and (name := path_of(up.targets[0])):
            is_before = up.lineno < node.lineno
            return f"{name}.device" if is_before and script.has_name(name, up, node) else ""
    return ""


def _unchosen(script: Script, start: Made, spawns: bool) -> Iterator[Problem]:
    """Yield a problem at the first `.cuda()` if no rank chooses its card anywhere."""
    for call, holder in script.methods("cuda", "to"):
        is_cuda = (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "cuda"
            and not call.args
            and not call.keywords
        )
        is_default = any(
            _is_default(script, one) for argument in call.args[:1] for one in script.values(argument)
        )
        if not (is_cuda or is_default) or script.module.full_name(holder):
            continue
        statement = statement_of(script.module, start.call)
        line = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'
        imported = import_of(script.module, "os", start.call)
        is_own = isinstance(statement, ast.Expr | ast.Assign) and not any(
            isinstance(one, ast.Lambda) for one in script.module.above(start.call)
        )
        inserted = (
            insert_after(script.module, statement, [line]) if statement and is_own and not spawns else ()
        )
        edits = (*inserted, *imported) if inserted and imported is not None else ()
        message = f"{script.text_of(call)}: no rank chooses its card, so all of them take the first one"
        yield Problem(script.module, call, message, line, edits)
        return


def _is_default(script: Script, value: object) -> bool:
    """Whether a value is the device `cuda`, without a number."""
    if isinstance(value, Made) and value.name == "torch.device":
        return script.are(script.argument(value, 0, "type"), "cuda")
    return isinstance(value, Const) and value.value == "cuda"


RULE = Rule(
    code="LC202",
    name="fixed-device",
    what="a fixed card in code that runs once for each card",
    why="Each rank must use its own card. With `cuda:0`, or with `.cuda()` before a card was chosen, all ranks go to the first "
    "card: out of memory there, `Duplicate GPU detected` from NCCL, or on a card in exclusive mode `busy or unavailable`.",
    bad="""dist.init_process_group("nccl")
model = DistributedDataParallel(Net().to("cuda:0"))
""",
    good="""dist.init_process_group("nccl")
model = DistributedDataParallel(Net().to(f"cuda:{os.environ['LOCAL_RANK']}"))
""",
    source="torch.distributed's documentation, 'torchrun'; timm issue 1033, ms-swift issue 5118.",
    find=find,
    causes=("wrong-device-ordinal", "gpu-busy-exclusive"),
)
