"""The models of the seeds, small and made here."""

import pytest
from testbed.llama import save_small_llama


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with `small`, and with `wide`: saved in bf16, and with residuals beyond the range of fp16."""
    folder = tmp_path_factory.mktemp("models")
    save_small_llama(folder / "small")
    save_small_llama(folder / "wide", _widen)
    return folder


def _widen(model):
    import torch

    embedding = model.model.embed_tokens.weight
    embedding.mul_(3.5e4 / embedding.std()).clamp_(-6.2e4, 6.2e4)
    for layer in model.model.layers:
        layer.mlp.gate_proj.weight.mul_(50)
        layer.mlp.up_proj.weight.mul_(50)
        layer.mlp.down_proj.weight.mul_(800)
    model.to(torch.bfloat16)
