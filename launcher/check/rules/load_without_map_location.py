"""LC303: torch.load that puts tensors where they were saved."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launcher.check.edit import set_keyword
from launcher.check.rule import Problem, Rule
from launcher.check.training_script import Script

_LOAD = re.compile(r"torch\.load")


def find(script: Script) -> Iterator[Problem]:
    """Find calls of torch.load without a place for the tensors."""
    for made in script.calls(_LOAD):
        if len(made.call.args) > 1 or not made.call.args or script.keyword(made, "map_location"):
            continue
        message = "torch.load puts each tensor on the card it was saved from: every rank takes cuda:0, a CPU host fails"
        edits = (set_keyword(script.module, made.call, "map_location", '"cpu"'),)
        yield Problem(script.module, made.call, message, 'map_location="cpu"', edits)


RULE = Rule(
    code="LC303",
    name="load-without-map-location",
    what="torch.load without map_location",
    why="A checkpoint remembers its card. Without map_location each rank loads it to cuda:0: memory for two copies, and on "
    "a card in exclusive mode `CUDA-capable device(s) is/are busy or unavailable`. On a host without CUDA the load fails.",
    bad="""state = torch.load("checkpoint.pt")
""",
    good="""state = torch.load("checkpoint.pt", map_location="cpu")
""",
    source="torch.load's documentation; nanoGPT issue 116, timm issue 1033.",
    find=find,
    causes=("gpu-busy-exclusive",),
)
