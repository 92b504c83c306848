"""LC601: an argument that a library no longer has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.agent.diagnosis.library_changes import ARGUMENTS, LibraryChange
from launcher.check.edit import Edit, remove_keyword, rename_keyword, replace_node
from launcher.check.inference.value import Class, Made, Place
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

DATED = {"transformers": "5.23.0", "trl": "1.16.0"}
"""The versions whose signatures the table was compared with, in November 2026; a test compares it with those installed."""
_TRL_TRAINER = re.compile(r"trl(\.\w+)*\.\w*Trainer")
REMOVED: tuple[tuple[re.Pattern[str], frozenset[str]], ...] = (
    (
        re.compile(r"transformers(\.\w+)*\.(Seq2Seq)?TrainingArguments|trl(\.\w+)*\.(SFT|DPO|GRPO|Reward|KTO)Config"),
        frozenset((
            "evaluation_strategy", "no_cuda", "per_gpu_train_batch_size", "per_gpu_eval_batch_size", "push_to_hub_model_id",
            "group_by_length", "warmup_ratio", "logging_dir", "overwrite_output_dir", "save_safetensors", "use_mps_device",
            "include_inputs_for_metrics", "fp16_backend", "half_precision_backend", "fp16_opt_level", "torchdynamo",
        )),
    ),
    (re.compile(r"trl(\.\w+)*\.SFTConfig"), frozenset(("max_seq_length",))),
    (re.compile(r"transformers(\.\w+)*\.(Seq2Seq)?Trainer|trl(\.\w+)*\.(SFT|DPO|GRPO|Reward|KTO)Trainer"), frozenset(("tokenizer",))),
    (re.compile(r"trl(\.\w+)*\.SFTTrainer"), frozenset(("max_seq_length", "dataset_text_field", "packing"))),
    (
        re.compile(r"transformers(\.\w+)*\.(Auto\w+|\w+(For[A-Z]\w+|Model))\.from_pretrained"),
        frozenset(("use_auth_token", "load_in_4bit", "load_in_8bit", "use_flash_attention_2")),
    ),
)  # fmt: skip
"""The removed arguments, by the calls that took them."""
_KEPT_BY_UNSLOTH = frozenset(("tokenizer", "max_seq_length", "dataset_text_field", "packing"))
"""What unsloth's own trainers and configurations, which it puts in the place of TRL's, still take."""
_OF_LIBRARY = re.compile(r"(transformers|trl)\.")
_MAX_BASES = 6
_ASKS_VERSION = re.compile(
    r"__version__|\bversion\(|\bVersion\(|version\.parse|(transformers|trl)_v\w+|\bis_\w*(version|greater|at_least)\w*\("
    r"|signature\(|getfullargspec|__dataclass_fields__|co_varnames|hasattr\(\w*(Trainer|Arguments|Config)\b"
    r"|['\"]\w+['\"] (not )?in \w*(param|sig|field|arg)"
)


def find(script: Script) -> Iterator[Problem]:
    """Find the arguments of calls, also those in a dict that is passed as `**`."""
    for call, full in script.module.calls:
        frame = script.inference.frame(script.module, call)
        name = full or next((training.name for training in script.trainings if training.call is call), "")
        removed = frozenset().union(
            *(names for pattern, names in REMOVED if name and pattern.fullmatch(name))
        )
        if removed and not _OF_LIBRARY.match(full):
            removed -= _own_parameters(script, call)
        if name.startswith("trl.") and _imports_unsloth(script):
            removed -= _KEPT_BY_UNSLOTH
        if removed and not _has_two_ways(script, Place(script.module, call)):
            yield from _problems(script, Made(name, call, frame), removed)


def _own_parameters(script: Script, call: ast.Call) -> set[str]:
    """Return the parameters that a subclass of the script takes itself."""
    waiting = [one for one in script.values(call.func) if isinstance(one, Class)]
    found: set[str] = set()
    for one in waiting[:_MAX_BASES]:
        for method in one.node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                found |= {given.arg for given in (*method.args.args, *method.args.kwonlyargs)}
        waiting += [
            base
            for written in one.node.bases
            for base in script.inference.values(written, one.frame)
            if isinstance(base, Class)
        ]
    return found


def _imports_unsloth(script: Script) -> bool:
    return any(name.partition(".")[0] == "unsloth" for name in script.module.imports.values())


def _has_two_ways(script: Script, place: Place) -> bool:
    """Whether a script chooses between old and new arguments: by what the library has, or after a call that failed."""
    for one in place.module.above(place.node):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            return False
        if isinstance(one, ast.If | ast.IfExp) and _asks_version(script, one.test, place):
            return True
        if isinstance(one, ast.ExceptHandler) and _names(one) & {"TypeError", "Exception", ""}:
            return True
        if isinstance(one, ast.Try) and any("TypeError" in _names(handler) for handler in one.handlers):
            return True
    return False


def _asks_version(script: Script, test: ast.expr, place: Place) -> bool:
    names = [one for one in ast.walk(test) if isinstance(one, ast.Name)]
    frame = script.inference.frame(place.module, test)
    written = [test, *(one for name in names for one in script.inference.definitions(name, frame))]
    return any(_ASKS_VERSION.search(ast.unparse(one)) for one in written)


def _names(handler: ast.ExceptHandler) -> set[str]:
    """Return the exceptions that a handler takes; an empty name for all."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {"" if one is None else ast.unparse(one).rpartition(".")[2] for one in kinds}


def _problems(script: Script, made: Made, removed: frozenset[str]) -> Iterator[Problem]:
    for argument in sorted(removed & set(script.inference.keywords(made.call, made.frame))):
        change = ARGUMENTS[argument]
        library = (change.older or "").partition("<")[0] or made.name.partition(".")[0]
        if (
            made.name.endswith("from_pretrained")
            and argument.startswith("use_auth")
            and "Tokenizer" in made.name
        ):
            continue
        if not script.admits(library, DATED.get(library, "")):
            continue
        place = script.written(made, argument)
        if place is not None and not _has_two_ways(script, place):
            taker = made.name.removesuffix(".from_pretrained").rpartition(".")[2]
            owner = made.name.partition(".")[0]
            message = f"{owner} {DATED.get(owner, '')}: {taker} has no argument {argument} any more"
            edits = _edits(script, made, argument, change)
            yield Problem.at(place, message, change.replacement, edits)


def _edits(script: Script, made: Made, argument: str, change: LibraryChange) -> tuple[Edit, ...]:
    """Return the edits if the argument has a new name, or is to be left out; empty if a person must decide."""
    keyword = next((one for one in made.call.keywords if one.arg == argument), None)
    if keyword is None:
        return ()
    taken = {one.arg for one in made.call.keywords}
    new, equals, value = change.replacement.partition("=")
    new = (
        "max_length"
        if argument == "max_seq_length" and made.name.endswith("Config")
        else new.partition(",")[0]
    )
    if re.fullmatch(r"\w+", new) and new not in taken and not equals:
        return (rename_keyword(made.frame.module, keyword, new),)
    is_off = script.are(script.inference.values(keyword.value, made.frame), False, None)
    if change.replacement.startswith("nothing") or is_off:
        removed = remove_keyword(made.frame.module, made.call, argument)
        return () if removed is None else (removed,)
    if argument == "group_by_length" and new not in taken:
        return (replace_node(made.frame.module, keyword, f"{new}={value}"),)
    return ()


RULE = Rule(
    code="LC601",
    name="removed-argument",
    what="an argument that the library has renamed or removed",
    why="The call ends with `TypeError: … got an unexpected keyword argument`, often after minutes of loading. The versions "
    "are those that the script's folder requires (requirements.txt, pyproject.toml, `pip install` in a notebook), else "
    "those of this Python, else those of November 2026.",
    bad="""arguments = TrainingArguments("out", evaluation_strategy="steps")
""",
    good="""arguments = TrainingArguments("out", eval_strategy="steps")
""",
    source="The signatures of transformers 5.23 and TRL 1.16.",
    find=find,
)
