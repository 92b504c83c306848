"""LC401: flash attention on a card that its kernels do not support."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.check.edit import replace
from launcher.check.inference.value import Const
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_LOADED = re.compile(r"(transformers|trl|unsloth)(\.\w+)*\.(from_pretrained|from_config)")
_KERNELS = re.compile(r"flash_attn(\.(?!bert_padding\b)\w+)*")


def find(script: Script) -> Iterator[Problem]:
    """Find models loaded with flash attention, and calls of its kernels."""
    card = script.card
    if not card.is_before_ampere:
        return
    for made in script.calls(_LOADED):
        given = script.keyword(made, "attn_implementation")
        place = script.written(made, "attn_implementation")
        if (
            place is not None
            and given
            and all(isinstance(one, Const) and "flash_attention" in str(one.value) for one in given)
        ):
            yield Problem.at(
                place, _message(card.title), 'attn_implementation="sdpa"', (replace(place, '"sdpa"'),)
            )
        place = script.written(made, "use_flash_attention_2")
        if place is not None and script.is_on(script.keyword(made, "use_flash_attention_2")):
            yield Problem.at(place, _message(card.title), "False", (replace(place, "False"),))
    for made in script.calls(_KERNELS):
        yield Problem(
            script.module, made.call, _message(card.title), "torch.nn.functional.scaled_dot_product_attention"
        )


def _message(title: str) -> str:
    return f"flash attention needs an NVIDIA card of capability 8.0 (Ampere); {title} is none"


RULE = Rule(
    code="LC401",
    name="flash-attention-unsupported",
    what="flash attention on a card before Ampere",
    why="transformers checks the package, not the card: the load succeeds, and the first forward pass fails with "
    "`FlashAttention only supports Ampere GPUs or newer`. torch's own attention (sdpa) runs on every card.",
    bad="""model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flash_attention_2")  # --profile t4
""",
    good="""model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")
""",
    source="flash-attention's README; transformers 5.23, modeling_utils.py; flash-attention issues 720 and 1230.",
    find=find,
    is_adapted=True,
    needs_card=True,
)
