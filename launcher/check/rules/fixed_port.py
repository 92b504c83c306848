"""LC203: a port for the ranks that is written in the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import replace_node
from launcher.check.inference.value import Const
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_INIT = re.compile(r"torch\.distributed(\.\w+)*\.init_process_group")
_MESSAGE = "MASTER_PORT is fixed: the port that the launcher chose is lost, and this one may be taken"
_RANKS = re.compile(r"['\"](LOCAL_)?(RANK|WORLD_SIZE)['\"] in os\.environ")
_NO_RANKS = re.compile(
    r"['\"](LOCAL_)?(RANK|WORLD_SIZE)['\"] not in os\.environ|not .*is_torchelastic_launched"
)
_ADDRESS = re.compile(r"tcp://.*:[1-9]\d*")


def find(script: Script) -> Iterator[Problem]:
    """Find assignments to MASTER_PORT, and addresses with a port, that are constants."""
    for node in script.module.nodes:
        if isinstance(node, ast.Assign) and any(_is_port(script, one) for one in node.targets):
            yield from _assigned(script, node)
    for call, holder in script.methods("update"):
        if script.module.full_name(holder) == "os.environ":
            yield from _updated(script, call)
    for made in script.calls(_INIT):
        for one in script.argument(made, 1, "init_method"):
            if isinstance(one, Const) and _ADDRESS.fullmatch(str(one.value)) and not _is_option(script, one):
                message = f"the port in {one.value} may be taken: by a run that crashed, or by a second one"
                place = script.written(made, "init_method")
                node_ = place.node if place else made.call
                yield Problem(script.module, node_, message, 'init_method="env://" under torchrun or launch')


def _is_port(script: Script, target: ast.expr) -> bool:
    match target:
        case ast.Subscript(value=holder, slice=ast.Constant(value="MASTER_PORT")):
            return script.module.full_name(holder) == "os.environ"
    return False


def _assigned(script: Script, node: ast.Assign) -> Iterator[Problem]:
    values = script.values(node.value)
    if not all(
        isinstance(one, Const) and one.value is not None and not _is_option(script, one) for one in values
    ):
        return
    if any(
        isinstance(one, ast.If) and ("MASTER_PORT" in ast.unparse(one.test) or _is_unlaunched(one, node))
        for one in script.module.above(node)
    ):
        return
    environ = script.text_of(node.targets[0]).partition("[")[0]
    text = f'{environ}.setdefault("MASTER_PORT", {script.text_of(node.value)})'
    edits = (replace_node(script.module, node, text),) if len(node.targets) == 1 else ()
    yield Problem(script.module, node, _MESSAGE, text, edits)


def _is_unlaunched(condition: ast.If, node: ast.Assign) -> bool:
    """Whether a condition asks for the ranks' environment, and a statement is where there is none."""
    test = ast.unparse(condition.test)
    if node in condition.body:
        return bool(_NO_RANKS.search(test))
    return node in condition.orelse and bool(_RANKS.search(test))


def _updated(script: Script, call: ast.Call) -> Iterator[Problem]:
    """Find a port in `os.environ.update(…)`."""
    given = [one.value for one in call.keywords if one.arg == "MASTER_PORT"]
    for one in call.args:
        if isinstance(one, ast.Dict):
            pairs = zip(one.keys, one.values, strict=True)
            given += [
                value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "MASTER_PORT"
            ]
    for node in given:
        if all(isinstance(one, Const) and not _is_option(script, one) for one in script.values(node)):
            yield Problem(
                script.module, node, _MESSAGE, f'os.environ.setdefault("MASTER_PORT", {script.text_of(node)})'
            )


def _is_option(script: Script, value: Const) -> bool:
    """Whether a value is the default of an option, which a command line can change, or of a parameter for other files."""
    if value.at is None:
        return True
    module = value.at.module
    up = module.parents.get(value.at.node)
    if isinstance(up, ast.arguments):
        function = getattr(module.parents.get(up), "name", "")
        called = {getattr(call.func, "attr", getattr(call.func, "id", "")) for call, _ in module.calls}
        passed = {one.id for one in module.nodes if isinstance(one, ast.Name)}
        return function not in called | passed
    return isinstance(up, ast.keyword) and up.arg == "default"


RULE = Rule(
    code="LC203",
    name="fixed-port",
    what="a fixed port for the ranks",
    why="Two trainings on one host cannot have the same port, nor can the second after a crash whose processes still live: "
    "`EADDRINUSE`. torchrun and launch choose a free port and pass it in MASTER_PORT; the script then overwrites it, in "
    "some ranks before and in some after they have read it.",
    bad="""os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl")
""",
    good="""os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("nccl")
""",
    source="torch.distributed's documentation of environment variables; measured with torchrun of torch 2.13.",
    find=find,
    causes=("port-in-use",),
)
