"""LC501: reentrant checkpointing over frozen inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.check.edit import replace
from launcher.check.inference.value import Made, Mapping
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Model, Script

_ADAPTED = re.compile(r"peft(\.\w+)*\.(get_peft_model|PeftModel\w*\.from_pretrained)")
_TEXT = re.compile(
    r"Auto\w*(CausalLM|LM|SequenceClassification|TokenClassification|Seq2SeqLM|MaskedLM|QuestionAnswering)|AutoModel"
)
_GIVES_GRADIENTS = re.compile(
    rb"enable_input_require_grads|prepare_model_for_kbit_training|prepare_model_for_int8_training|make_inputs_require_grad|requires_grad_\(True\)"
)


def find(script: Script) -> Iterator[Problem]:
    """Find it in scripts with adapters and without a Trainer, which makes the inputs require gradients."""
    if script.trainings or not any(True for _ in script.calls(_ADAPTED)):
        return
    if any(_GIVES_GRADIENTS.search(module.source) for module in script.sources):
        return
    for call, holder in script.methods("gradient_checkpointing_enable", "activation_checkpointing_enable"):
        models = script.models(script.values(holder))
        if any(_is_text(one) or not one.adapters for one in models):
            continue
        frame = script.inference.frame(script.module, call)
        made = Made(".enable", call, frame)
        given = [
            *script.argument(made, 0, "gradient_checkpointing_kwargs"),
            *script.keyword(made, "activation_checkpointing_kwargs"),
        ]
        for one in given:
            if isinstance(one, Mapping) and script.is_on(one.entries.get("use_reentrant", ())):
                value = one.entries["use_reentrant"][0].at
                message = "reentrant checkpointing over a frozen base: no input requires a gradient, so the adapters get none"
                if value is not None:
                    yield Problem.at(value, message, '"use_reentrant": False', (replace(value, "False"),))


def _is_text(model: Model) -> bool:
    """Whether transformers makes the inputs require gradients itself: it does where they are `input_ids`."""
    load = model.load.name if model.load is not None else ""
    return bool(_TEXT.fullmatch(load.removesuffix(".from_pretrained").rpartition(".")[2]))


RULE = Rule(
    code="LC501",
    name="lora-reentrant",
    what="LoRA with reentrant checkpointing over images or sound",
    why="Reentrant checkpointing runs a layer again only if one of its inputs requires a gradient. Under LoRA the first layers "
    "are frozen, so none does: torch warns `None of the inputs have requires_grad=True`, and the adapters get no gradient, or "
    "the backward pass fails. transformers makes the inputs of models of text require gradients, and the Trainer those of "
    "all models. Pictures (ViT) and sound (Whisper) in a loop of your own are left.",
    bad="""model = get_peft_model(ViTForImageClassification.from_pretrained(name), LoraConfig())
model.gradient_checkpointing_enable({"use_reentrant": True})
""",
    good="""model = get_peft_model(ViTForImageClassification.from_pretrained(name), LoraConfig())
model.gradient_checkpointing_enable({"use_reentrant": False})
""",
    source="torch 2.13, torch/utils/checkpoint.py; measured.",
    find=find,
)
