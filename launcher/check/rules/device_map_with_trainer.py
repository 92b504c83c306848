"""LC201: a model that is spread over cards, and trained by something that places it itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from launcher.check.edit import Edit, import_of, remove_keyword, replace
from launcher.check.inference.value import Made, Place
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script

_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")
_PARALLEL = re.compile(r"torch\.nn(\.\w+)*\.DistributedDataParallel")
_OWN = '{"": int(os.environ.get("LOCAL_RANK", 0))}'


def find(script: Script) -> Iterator[Problem]:
    """Find such a model that a Trainer, accelerate or DDP gets."""
    seen: set[ast.Call] = set()
    for trainer, models in _trained(script):
        for model in models:
            load = model.load
            if load is None or load.call in seen or load.name.startswith("unsloth"):
                continue
            place = script.written(load, "device_map")
            if place is not None and script.are(script.keyword(load, "device_map"), *_SPREADING):
                seen.add(load.call)
                yield _problem(script, load, place, trainer)


def _trained(script: Script) -> Iterator[tuple[str, tuple[Model, ...]]]:
    for training in script.trained:
        yield "the Trainer", training.models
    for call, _ in script.methods("prepare"):
        for argument in call.args:
            yield "accelerate", script.models(script.values(argument))
    for made in script.calls(_PARALLEL):
        yield "DistributedDataParallel", script.models(script.argument(made, 0, "module"))


def _problem(script: Script, load: Made, place: Place, trainer: str) -> Problem:
    word = ast.unparse(place.node).strip("\"'")
    is_quantized = bool(script.written(load, "quantization_config", "load_in_4bit", "load_in_8bit"))
    edits: tuple[Edit, ...]
    if is_quantized:
        imported = import_of(place.module, "os", place.node)
        edits = () if imported is None else (replace(place, _OWN), *imported)
    elif any(one.arg == "device_map" for one in load.call.keywords):
        removed = remove_keyword(load.frame.module, load.call, "device_map")
        edits = (removed,) if removed else ()
    else:
        edits = (replace(place, "None"),)
    message = f'device_map="{word}" spreads the model over the cards, and {trainer} places it too'
    return Problem.at(place, message, f"device_map={_OWN}" if is_quantized else "leave device_map out", edits)


RULE = Rule(
    code="LC201",
    name="device-map-with-trainer",
    what='device_map="auto" on a model that is trained',
    why='device_map="auto" divides the layers among all cards that the process sees, and moves what does not fit to the '
    "CPU. It is for inference. Under torchrun every process spreads its copy over all cards, and runs out of memory or is "
    "refused; with one process on two cards, one card waits for the other. A quantized model cannot be moved later, so it "
    "is put on the process's own card.",
    bad="""model = AutoModelForCausalLM.from_pretrained(name, device_map="auto")
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    good="""model = AutoModelForCausalLM.from_pretrained(name)
Trainer(model=model, args=arguments, train_dataset=rows).train()
""",
    source="accelerate's guide to big model inference; transformers 5.23, trainer.py.",
    find=find,
    causes=("device-map-conflict",),
)
