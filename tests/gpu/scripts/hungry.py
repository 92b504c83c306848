"""A training that needs so many bytes an example: with the micro-batch of its plan it may not fit on the card.

In a rehearsal, on a CPU, it raises an error with torch's words where the micro-batch is larger than `room`.
"""

import launcher_worker as worker
import torch

LAYERS, WIDTH = 8, 1024
ALIVE = (
    LAYERS + 6
)  # tensors of a micro-batch at the peak, as tests/bench/live_bytes.py counts them: the layers keep one each

plan = worker.knobs()
micro, settings = plan.split.micro_batch, plan.settings
device = "cpu" if settings["is_rehearsed"] else "cuda"
length = max(1, settings["bytes_an_example"] // (ALIVE * WIDTH * 4))


class Layer(torch.nn.Module):
    """A scale and a bend."""

    def __init__(self) -> None:
        """Begin near one."""
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Keep the output, which is the next one's input."""
        return torch.tanh(x * self.scale)


torch.manual_seed(plan.seed)
model = worker.prepare(torch.nn.Sequential(*(Layer() for _ in range(LAYERS))).to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
worker.resume_from()  # it saves nothing, and begins again
for step in range(1, plan.steps + 1):
    for _ in range(plan.split.accumulation):
        if settings["is_rehearsed"] and micro > settings["room"]:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 23.64 GiB of which 412.00 MiB "
                "is free. Including non-PyTorch memory, this process has 22.80 GiB memory in use."
            )
        inputs = torch.rand(micro, length, WIDTH, device=device)
        loss = (model(inputs) - 0.5).pow(2).mean() / plan.split.accumulation
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    worker.log(step, loss=loss.item() * plan.split.accumulation)
worker.done(plan.steps)
