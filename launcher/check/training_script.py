"""One training script as the rules see it: its trainers, models, optimizers and scalers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from launcher.check.edit import Edit, replace, set_keyword
from launcher.check.inference.card_calls import Card, value_of_card
from launcher.check.inference.definitions import path_of
from launcher.check.inference.infer import Inference
from launcher.check.inference.operations import Values
from launcher.check.inference.value import (
    UNKNOWN,
    Class,
    Const,
    Instance,
    Made,
    Mapping,
    Name,
    Place,
    Unknown,
    Value,
)  # fmt: skip
from launcher.check.reading.module import Module
from launcher.check.reading.time_limit import tick
from launcher.check.required_versions import Requirements

_MAX_BASES = 6
_TRAIN_DATASET = 3
"""The place of a Trainer's `train_dataset` among its arguments."""
_TRAINER = re.compile(r"(transformers|trl|sentence_transformers|optimum|unsloth|peft)(\.\w+)*\.\w*Trainer")
_ARGUMENTS = re.compile(
    r"(transformers|trl|sentence_transformers|optimum|unsloth)(\.\w+)*\.\w*(TrainingArguments|Config)"
)
_ACCELERATOR = re.compile(r"accelerate(\.\w+)*\.Accelerator")
_SCALER = re.compile(r"torch(\.cuda)?\.amp(\.grad_scaler)?\.GradScaler")
_OPTIMIZER = re.compile(
    r"(torch\.optim(\.(?!lr_scheduler\b|swa_utils\b)\w+)*|bitsandbytes\.optim(\.\w+)*|lion_pytorch)\.[A-Z]\w+"
    r"|transformers(\.\w+)*\.(Ada|Lion)\w+"
)
_LOADED = re.compile(r"(transformers|diffusers|optimum|unsloth|trl)(\.\w+)*\.from_pretrained")
_ADAPTED = re.compile(
    r"(peft|unsloth)(\.\w+)*\.(get_peft_model|PeftModel\w*\.from_pretrained|inject_adapter_in_model)|\.get_peft_model"
)
_WRAPPED = re.compile(
    r"torch\.compile|torch\.nn(\.\w+)*\.(DataParallel|DistributedDataParallel)|torch\.distributed\.fsdp(\.\w+)*\.FullyShardedDataParallel|peft(\.\w+)*\.prepare_model_for_(kbit|int8)_training|copy\.(deepcopy|copy)"
)
_CASTS = {".half": "float16", ".bfloat16": "bfloat16", ".float": "float32", ".double": "float64"}
_DTYPES = {
    "torch.float16": "float16", "torch.half": "float16", "float16": "float16", "fp16": "float16",
    "torch.bfloat16": "bfloat16", "bfloat16": "bfloat16", "bf16": "bfloat16",
    "torch.float32": "float32", "torch.float": "float32", "float32": "float32", "torch.float64": "float64",
}  # fmt: skip


class Model(NamedTuple):
    """A model as the source shows it.

    `dtype` is the name of its parameters' type, empty if unknown; `dtype_at` is where that is written. `load` is the
    call of `from_pretrained`, `adapters` are the calls that gave it adapters.
    """

    dtype: str = ""
    dtype_at: Place | None = None
    load: Made | None = None
    adapters: tuple[Made, ...] = ()
    is_copy: bool = False


class Training(NamedTuple):
    """A call of a Trainer, or of a subclass of one: its model, arguments and configuration of adapters."""

    call: ast.Call
    module: Module
    name: str
    keywords: dict[str, Values]
    arguments: Values
    models: tuple[Model, ...]

    @property
    def made_arguments(self) -> tuple[Made | Instance, ...]:
        """The objects that may be its arguments, of the library's class or of a subclass; empty if one is unknown."""
        made = tuple(one for one in self.arguments if isinstance(one, Made | Instance))
        return made if len(made) == len(self.arguments) else ()


class Script:
    """One script, and what its expressions may be on one card."""

    def __init__(self, module: Module, inference: Inference, requirements: Requirements) -> None:
        self.module = module
        self.inference = inference
        self._requirements = requirements

    @property
    def card(self) -> Card:
        """The card that the check is made for."""
        return self.inference.card

    def admits(self, library: str, version: str) -> bool:
        """Return whether the script may find this version of a library."""
        return self._requirements.admits(library, version)

    def values(self, node: ast.expr) -> Values:
        """Return the possible values of an expression of the script, where it stands."""
        return self.inference.at(self.module, node)

    def calls(self, pattern: re.Pattern[str]) -> Iterator[Made]:
        """Yield the calls of a library's function or class by its full name."""
        for call, name in self.module.calls:
            if name and pattern.fullmatch(name):
                tick()
                frame = self.inference.frame(self.module, call)
                yield Made(name, call, frame, at=Place(self.module, call))

    def methods(self, *names: str) -> Iterator[tuple[ast.Call, ast.expr]]:
        """Yield the calls of methods of these names, each with the expression of its object."""
        for call, _ in self.module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                tick()
                yield call, call.func.value

    def keyword(self, made: Made, name: str) -> Values:
        """Return the values of a keyword argument of a call; empty if it is not given, `UNKNOWN` if that is unclear.

        An attribute that is assigned later counts too: `arguments.fp16 = True`.
        """
        found = self.inference.keywords(made.call, made.frame)
        later = self._set_later(made, name)
        if later:
            return (*later, *found.get(name, ()))
        return found.get(name) or found.get("**", ())

    def _set_later(self, made: Made, name: str) -> Values:
        module = made.frame.module
        return tuple(
            one
            for holder, value in module.attributes_set.get(name, ())
            if any(isinstance(it, Made) and it.call is made.call for it in self.inference.at(module, holder))
            for one in self.inference.at(module, value)
        )

    def written(self, made: Made | Instance, *names: str) -> Place | None:
        """Return where the value of an argument is written: in the call, in the dict that is its `**`, in the class."""
        tick()
        module = made.frame.module
        for keyword in made.call.keywords if made.call is not None else ():
            if keyword.arg in names:
                return Place(module, keyword.value)
            if keyword.arg is None:
                for holder in self.inference.values(keyword.value, made.frame):
                    found = holder.at and _written_in(holder.at, names, path_of(keyword.value), module)
                    if found:
                        return found
        return _field(made.cls, names) if isinstance(made, Instance) else None

    def set_argument(self, made: Made | Instance, name: str, text: str) -> tuple[Edit, ...]:
        """Return the edits that give a call an argument, where its present value is written if it has one.

        Empty for a subclass that has no field of that name.
        """
        place = self.written(made, name)
        if place is not None:
            return (replace(place, text),)
        if isinstance(made, Instance) or made.call is None:
            return ()
        return (set_keyword(made.frame.module, made.call, name, text),)

    def place(self, made: Made | Instance) -> Place:
        """Return where an object is made; its class, if a parser of options makes it."""
        if made.call is None:
            assert isinstance(made, Instance)  # noqa: S101 - only these have no call
            return Place(made.cls.frame.module, made.cls.node)
        return Place(made.frame.module, made.call)

    def argument(self, made: Made, index: int, name: str) -> Values:
        """Return the values of an argument by its place or its name; empty if it is not given."""
        if len(made.call.args) > index and not any(isinstance(one, ast.Starred) for one in made.call.args):
            return self.inference.values(made.call.args[index], made.frame)
        return self.keyword(made, name)

    def is_reached(self, node: ast.AST, module: Module) -> bool | None:
        """Return whether the conditions around a node hold; None if that is unknown."""
        answer: bool | None = True
        for test, side in _conditions(node, module):
            holds = self.inference.test(test, self.inference.frame(module, test))
            if holds is None:
                answer = None
            elif holds is not side:
                return False
        return answer

    def is_excluded(self, node: ast.AST, module: Module) -> bool:
        """Whether a question about the card keeps a node from being executed on this card."""
        return any(
            self.inference.test(test, self.inference.frame(module, test)) is (not side)
            and self._asks_card(test, module)
            for test, side in _conditions(node, module)
        )

    def _asks_card(self, test: ast.expr, module: Module) -> bool:
        frame = self.inference.frame(module, test)
        names = [one for one in ast.walk(test) if isinstance(one, ast.Name)]
        written = [test, *(one for name in names for one in self.inference.definitions(name, frame))]
        calls = [one for node in written for one in ast.walk(node) if isinstance(one, ast.Call)]
        return any(value_of_card(module.full_name(one.func), one, self.card) is not None for one in calls)

    # what a script has

    @cached_property
    def trainings(self) -> list[Training]:
        """The trainers of transformers and TRL that the script makes."""
        found = []
        for call, full in self.module.calls:
            name = full if full and _TRAINER.fullmatch(full) else ""
            is_own = not full or full.endswith("Trainer")
            if not name and is_own and isinstance(call.func, ast.Name | ast.Attribute):
                for one in self.values(call.func):
                    name = self.base_of(one, _TRAINER) or name
                    if not name and isinstance(one, Name) and self._takes_arguments(call):
                        name = "transformers.Trainer"  # a subclass in a file that is not here
            if name:
                found.append(self._training(call, name))
        return found

    @cached_property
    def trained(self) -> list[Training]:
        """The trainers that the script makes, without those that only evaluate or predict."""
        trains = any("trainer" in path_of(holder).lower() for _, holder in self.methods("train"))
        return [
            one
            for one in self.trainings
            if trains
            or "eval_dataset" not in one.keywords
            or len(one.call.args) > _TRAIN_DATASET
            or one.keywords.keys() & {"train_dataset", "**"}
        ]

    def _takes_arguments(self, call: ast.Call) -> bool:
        """Whether a call is given training arguments of transformers as `args`."""
        given = self.inference.keywords(call, self.inference.frame(self.module, call)).get("args", ())
        return bool(given) and all(
            bool(_ARGUMENTS.fullmatch(one.name))
            if isinstance(one, Made)
            else isinstance(one, Instance) and bool(self.base_of(one.cls, _ARGUMENTS))
            for one in given
        )

    def base_of(self, value: Value, pattern: re.Pattern[str], depth: int = 0) -> str:
        """Return the library's class that a value is, or that a class of the script is a subclass of; empty if it is none."""
        if isinstance(value, Name):
            return value.name if pattern.fullmatch(value.name) else ""
        if isinstance(value, Class) and depth < _MAX_BASES:
            bases = (one for base in value.node.bases for one in self.inference.values(base, value.frame))
            return next(filter(None, (self.base_of(one, pattern, depth + 1) for one in bases)), "")
        return ""

    def _training(self, call: ast.Call, name: str) -> Training:
        frame = self.inference.frame(self.module, call)
        keywords = self.inference.keywords(call, frame)
        model = self.inference.values(call.args[0], frame) if call.args else keywords.get("model", (UNKNOWN,))
        second = call.args[1:2]
        arguments = (
            self.inference.values(second[0], frame)
            if second
            else keywords.get("args", keywords.get("**", ()))
        )
        return Training(call, self.module, name, keywords, arguments, self._of_trainer(model, arguments))

    def _of_trainer(self, model: Values, arguments: Values) -> tuple[Model, ...]:
        """Return a trainer's models. TRL loads one that is given by its name, with `model_init_kwargs`."""
        if not all(isinstance(one, Const) and isinstance(one.value, str) for one in model):
            return self.models(model)
        for made in arguments:
            for options in self.keyword(made, "model_init_kwargs") if isinstance(made, Made) else ():
                given = (
                    options.entries.get("dtype") or options.entries.get("torch_dtype")
                    if isinstance(options, Mapping)
                    else None
                )
                if given and len({dtype_of(one) for one in given}) == 1:
                    return (Model(dtype_of(given[0]), given[0].at),)
        return ()

    def flag(self, training: Training, name: str) -> Values:
        """Return the values of a training argument of a Trainer; empty if none is given."""
        if not training.arguments:
            return ()
        found: list[Value] = []
        for one in training.arguments:
            if isinstance(one, Made) and _ARGUMENTS.fullmatch(one.name):
                found += self.keyword(one, name) or (Const(None),)
            elif isinstance(one, Instance):
                given = self.inference.member(one, name)
                found += given if is_known(given) or self.written(one, name) else (Const(None),)
            else:
                found.append(UNKNOWN)
        return tuple(found)

    @cached_property
    def accelerators(self) -> list[Made]:
        """The calls of accelerate's Accelerator."""
        return [*self.calls(_ACCELERATOR)]

    @cached_property
    def scalers(self) -> list[Made]:
        """The calls of torch's GradScaler that are not switched off."""
        return [one for one in self.calls(_SCALER) if not self.are(self.keyword(one, "enabled"), False)]

    def is_scaler(self, node: ast.expr) -> bool:
        """Whether an expression certainly is a GradScaler that is switched on."""
        found = self.values(node)
        return bool(found) and all(
            isinstance(one, Made)
            and bool(_SCALER.fullmatch(one.name))
            and (not (given := self.keyword(one, "enabled")) or self.are(given, True))
            for one in found
        )

    def optimizers(self, node: ast.expr) -> tuple[Made, ...]:
        """Return the calls that made an optimizer; empty if that is unknown."""
        made: list[Made] = []
        for value in self.values(node):
            one = value
            while isinstance(one, Made) and one.name == ".prepare" and one.base:
                one = one.base[0]
            if not isinstance(one, Made) or not _OPTIMIZER.fullmatch(one.name):
                return ()
            made.append(one)
        return tuple(made)

    def trained_by(self, optimizer: Made) -> tuple[Model, ...]:
        """Return the models whose parameters an optimizer was given."""
        given = self.argument(optimizer, 0, "params")
        first = optimizer.call.args[0] if optimizer.call.args else None
        bases = [one.base for one in given if isinstance(one, Made) and one.name == ".parameters"]
        if not bases and first is not None:
            written = [first, *self.inference.definitions(first, optimizer.frame)]
            inner = (one for node in written for one in ast.walk(node) if isinstance(one, ast.Call))
            bases = [
                value.base
                for call in inner
                if isinstance(call.func, ast.Attribute)
                and call.func.attr in ("parameters", "named_parameters")
                for value in self.inference.values(call, optimizer.frame)
                if isinstance(value, Made)
            ]
        return self.models(tuple(one for base in bases for one in base)) if bases else ()

    @cached_property
    def prepared(self) -> list[Made | Value]:
        """The values that `accelerator.prepare` is given."""
        return [
            one
            for call, _ in self.methods("prepare")
            for argument in call.args
            for one in self.values(argument)
        ]

    @cached_property
    def sources(self) -> list[Module]:
        """The script and the modules of its folder that it imports, directly or not."""
        found = [self.module]
        for module in found:
            for name in module.imports.values():
                for candidate in (name, name.rpartition(".")[0]):
                    own = self.inference.own_module(module, candidate) if candidate.strip(".") else None
                    if own is not None and own not in found:
                        found.append(own)
        return found

    def has_name(self, path: str, known: ast.AST, node: ast.AST) -> bool:
        """Whether `path`, a name at the node `known`, is the same at another: in one function, or a global name."""
        root = path.partition(".")[0].partition("[")[0]
        here, there = (self._function(one) for one in (node, known))
        if here is there:
            return True
        if root == "self":
            outer = [
                next((o for o in self.module.above(one) if isinstance(o, ast.ClassDef)), None)
                for one in (node, known)
            ]
            return outer[0] is outer[1] is not None
        stored = [
            one for one in self.module.nodes if isinstance(one, ast.Name | ast.arg) and _stores(one, root)
        ]
        return bool(stored) and all(self._function(one) is None for one in stored)

    def _function(self, node: ast.AST) -> ast.AST | None:
        functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        return next((one for one in self.module.above(node) if isinstance(one, functions)), None)

    def text_of(self, node: ast.expr, module: Module | None = None) -> str:
        """Return the source of an expression."""
        module = module or self.module
        return module.source[slice(*module.span(node))].decode()

    # models

    def models(self, values: Values) -> tuple[Model, ...]:
        """Return what is known of each possible model."""
        return tuple(self._model(one, 0) for one in values)

    def _model(self, value: Value, depth: int) -> Model:
        if not isinstance(value, Made) or depth > 30:
            return Model()
        below = value.base
        if (
            not below
            and value.call.args
            and (_WRAPPED.fullmatch(value.name) or _ADAPTED.fullmatch(value.name))
        ):
            below = self.inference.values(value.call.args[0], value.frame)
        if _LOADED.fullmatch(value.name):
            return self._loaded(value)
        model = self._alike([self._model(one, depth + 1) for one in below])
        if _ADAPTED.fullmatch(value.name):
            return model._replace(adapters=(*model.adapters, value))
        if value.name.startswith("copy."):
            return model._replace(is_copy=True)
        if value.name.endswith(
            ("prepare_model_for_kbit_training", "prepare_model_for_int8_training")
        ):  # it makes all that it does not quantize float32
            return model._replace(dtype="", dtype_at=None)
        if value.name in _CASTS:
            return model._replace(dtype=_CASTS[value.name], dtype_at=value.at)
        if value.name == ".to":
            return self._moved(model, value)
        if value.name.startswith(".") or _WRAPPED.fullmatch(value.name):
            is_kept = value.name in _KEEPING or not value.name.startswith(".")
            return model if is_kept else Model()
        return Model()

    def _alike(self, models: list[Model]) -> Model:
        """Return the one model of several possible ones if they have one type and the same adapters, else an unknown one."""
        if not models or len({(one.dtype, one.adapters, one.is_copy) for one in models}) > 1:
            return Model()
        return models[0]

    def _loaded(self, made: Made) -> Model:
        given = self.keyword(made, "dtype") or self.keyword(made, "torch_dtype")
        names = {dtype_of(one) for one in given}
        if len(names) != 1:
            return Model(load=made)
        return Model(names.pop(), self.written(made, "dtype", "torch_dtype"), made)

    def _moved(self, model: Model, made: Made) -> Model:
        """Return a model after `.to(…)`, whose argument may be a type or a device."""
        nodes = [*made.call.args, *(one.value for one in made.call.keywords if one.arg == "dtype")]
        for node in nodes:
            values = self.inference.values(node, made.frame)
            names = {dtype_of(one) for one in values}
            if names == {""}:
                is_device = re.search(r"device|cuda|rank|gpu|cpu|mps", ast.unparse(node).lower())
                known = all(isinstance(one, Const) for one in values)
                if not is_device and not known:
                    return model._replace(dtype="", dtype_at=None)
            elif len(names) == 1:
                return model._replace(dtype=names.pop(), dtype_at=Place(made.frame.module, node))
            else:
                return model._replace(dtype="", dtype_at=None)
        return model

    def config_of(self, training: Training, model: Model) -> tuple[Made, ...]:
        """Return the calls of peft's configuration classes for a model: of its adapters, or of the trainer."""
        found: list[Made] = []
        for made in model.adapters:
            found += [one for one in self.argument(made, 1, "peft_config") if isinstance(one, Made)]
        given = training.keywords.get("peft_config", ())
        return (*found, *(one for one in given if isinstance(one, Made)))

    # values

    @staticmethod
    def are(values: Values, *plain: object) -> bool:
        """Whether all possible values are one of some constants; False if there are none."""
        return bool(values) and all(
            isinstance(one, Const) and any(type(one.value) is type(p) and one.value == p for p in plain)
            for one in values
        )

    @staticmethod
    def is_on(values: Values) -> bool:
        """Whether a value is certainly given, and true."""
        return bool(values) and all(isinstance(one, Const) and bool(one.value) for one in values)


_KEEPING = (
    ".cuda", ".cpu", ".train", ".eval", ".prepare", ".requires_grad_", ".gradient_checkpointing_enable",
    ".enable_input_require_grads", ".add_adapter", ".to_empty",
)  # fmt: skip
"""Methods that return the same model, with the same type."""


def _stores(node: ast.Name | ast.arg, name: str) -> bool:
    return (
        node.arg == name if isinstance(node, ast.arg) else node.id == name and isinstance(node.ctx, ast.Store)
    )


def _written_in(holder: Place, names: Sequence[str], path: str, module: Module) -> Place | None:
    """Return where a key of a dict has its value: in a later statement of the module, or where the dict is made."""
    for node in module.nodes:
        if isinstance(node, ast.Assign) and any(
            path_of(one) in [f"{path}[{name!r}]" for name in names] for one in node.targets
        ):
            return Place(module, node.value)
    match holder.node:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value in names:
                    return Place(holder.module, value)
        case ast.Call(keywords=keywords):
            return next((Place(holder.module, one.value) for one in keywords if one.arg in names), None)
    return None


def _conditions(node: ast.AST, module: Module) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the conditions around a node, each with the answer with which the node is executed."""
    for one in module.above(node):
        if isinstance(one, ast.If):
            if node in one.body or node in one.orelse:
                yield one.test, node in one.body
        elif isinstance(one, ast.IfExp) and node is not one.test:
            yield one.test, node is one.body
        node = one


def _field(cls: Class, names: Sequence[str]) -> Place | None:
    """Return where a dataclass has the default of one of its fields."""
    for node in cls.node.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id in names and node.value is not None:  # type: ignore[attr-defined]
            value = node.value  # type: ignore[attr-defined]
            if isinstance(value, ast.Call):
                value = next((one.value for one in value.keywords if one.arg == "default"), value)
            return Place(cls.frame.module, value)
    return None


def dtype_of(value: Value) -> str:
    """Return the name of a torch type: `float16` for `torch.half` or `"fp16"`; empty for anything else."""
    if isinstance(value, Name):
        return _DTYPES.get(value.name, "")
    return _DTYPES.get(value.value, "") if isinstance(value, Const) and isinstance(value.value, str) else ""


def is_known(values: Values) -> bool:
    """Whether all possible values are known."""
    return bool(values) and not any(isinstance(one, Unknown) for one in values)
