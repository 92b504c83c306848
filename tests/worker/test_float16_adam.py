"""Adam over float16 weights: no eps makes its step that of float32, which is why `--precision` does not offer it."""

import pytest

from launcher.values.precision import FP16_SQUARED_GRADIENT

GRADIENTS = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 5e-3, 6e-3, 1e-2, 1e-1)
RATIOS = {
    1e-3: (0.001, 0.01, 0.1, 1, 3, 5, 0.7, 0.8, 1),
    1e-4: (0.01, 0.1, 1, 10, 30, 50, 0.8, 0.9, 1),
    6e-5: (0.02, 0.2, 1.7, 17, 50, 83, 0.8, 0.9, 1),
    1e-5: (0.1, 1, 10, 100, 300, 500, 0.8, 0.9, 1),
    1e-7: (9, 85, 840, 8_400, 25_000, 42_000, 0.8, 0.9, 1),
}
"""The table of docs/precision.md."""


@pytest.fixture(scope="module")
def torch():
    """Torch: loaded here, not where the tests are collected."""
    return pytest.importorskip("torch")


def step(torch, dtype, gradient, eps):
    """Return the mean of ten steps with a constant gradient, in learning rates."""
    weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, eps=eps, weight_decay=0)
    for _ in range(10):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    return -weight[0].item() / 10 / 1e-3


@pytest.mark.parametrize("eps", RATIOS)
def test_a_step_over_float16_weights_beside_that_over_float32(torch, eps):
    """Each eps is right for one size of gradient, and wrong by its distance to it."""
    found = [
        step(torch, torch.float16, one, eps) / step(torch, torch.float32, one, 1e-8) for one in GRADIENTS
    ]
    assert found == [pytest.approx(ratio, rel=0.2) for ratio in RATIOS[eps]]


def test_below_one_size_of_gradient_the_step_is_the_gradient_over_eps(torch):
    """Its square is zero in float16 there; above, the step is that of float32."""
    below, above = 0.98 * FP16_SQUARED_GRADIENT, 1.02 * FP16_SQUARED_GRADIENT
    assert step(torch, torch.float16, below, 1e-4) == pytest.approx(below / 1e-4, rel=0.02)
    assert step(torch, torch.float16, above, 1e-4) < 1
