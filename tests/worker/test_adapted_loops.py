"""Healthy loops of every form: adapted to each precision, they end as they do in fp32 without launcher.

A loop writes its error on other data at its end. It differs by at most 1 % from that of the plain run.
"""

import json
import os

import pytest
from testbed.tables import mostly_long
from testbed.warm_python import WarmPython
from worker.test_adaptation import describe, environment

pytestmark = pytest.mark.training

BEGIN = """
import json, torch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh())
        self.head = torch.nn.Linear(32, 1)
    def forward(self, x):
        return self.head(self.body(x))
net = Net().to(device)
def examples(steps=150, size=32, seed=1):
    source = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(size, 8, generator=source)
        noise = torch.randn(size, 1, generator=source)
        yield x.to(device), (x.sum(1, keepdim=True) / 2 + 3 + noise).to(device)
def error(x, y):
    return (predict(x).float() - y).pow(2).mean()
predict = net
held_out = next(examples(1, 4096, 2))
with torch.no_grad():
    before = error(*held_out).item()
"""
END = """
with torch.no_grad():
    after = error(*held_out).item()
with open("ledger", "w") as file:
    json.dump([before, after], file)
"""
LOOPS = {
    "a closure": """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in examples():
    def closure():
        optimizer.zero_grad()
        loss = error(x, y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "a closure that clips, of SGD": """
optimizer = torch.optim.SGD(net.parameters(), lr=3e-2, momentum=0.9)
for x, y in examples():
    def closure():
        optimizer.zero_grad()
        loss = error(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        return loss
    optimizer.step(closure=closure)
""",
    "LBFGS": """
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
x, y = next(examples(1, 8192))
for _ in range(20):
    def closure():
        optimizer.zero_grad()
        loss = error(x, y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "gradients accumulated, and clamped by hand": """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for number, (x, y) in enumerate(examples(300, 16)):
    loss = error(x, y)
    (loss / 2).backward()
    if number % 2:
        for part in net.parameters():
            part.grad.clamp_(-0.1, 0.1)
        optimizer.step()
        optimizer.zero_grad()
""",
    "steps by hand": """
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    with torch.no_grad():
        for part in net.parameters():
            part -= 2e-2 * part.grad
            part.grad = None
""",
    "an optimizer for each half of the model": """
first = torch.optim.AdamW(net.body.parameters(), lr=1e-2)
second = torch.optim.SGD(net.head.parameters(), lr=1e-2)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    for optimizer in (first, second):
        optimizer.step()
        optimizer.zero_grad()
""",
    "an optimizer that is made again": """
kept = [torch.optim.AdamW(net.parameters(), lr=1e-3)]
kept.append(torch.optim.AdamW(net.parameters(), lr=1e-2))
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    kept[-1].step()
    kept[-1].zero_grad()
""",
    "two scalers": """
parts = [
    (torch.optim.AdamW(net.body.parameters(), lr=1e-2), torch.amp.GradScaler(device, enabled=device == "cuda")),
    (torch.optim.AdamW(net.head.parameters(), lr=1e-2), torch.amp.GradScaler(device, enabled=device == "cuda")),
]
for x, y in examples():
    for optimizer, scaler in parts:
        with torch.autocast(device, torch.float16, enabled=device == "cuda"):
            loss = error(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        for other, _ in parts:
            other.zero_grad()
""",
    "a scaler that is not used": """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler(device, enabled=False)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a step in the hook of a gradient": """
optimizers = {part: torch.optim.AdamW([part], lr=1e-2) for part in net.parameters()}
def step(part):
    optimizers[part].step()
    optimizers[part].zero_grad()
for part in net.parameters():
    part.register_post_accumulate_grad_hook(step)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
""",
    "a gradient penalty": """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in examples():
    x.requires_grad_()
    loss = error(x, y)
    slope, = torch.autograd.grad(loss, x, create_graph=True)
    (loss + 0.1 * slope.pow(2).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a half-precision weight beside the model": """
scale = torch.nn.Parameter(torch.ones(1, dtype=torch.float16, device=device))
predict = lambda x: net(x).float() * scale
optimizer = torch.optim.AdamW([*net.parameters(), scale], lr=1e-2)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
assert scale.dtype == torch.float16 and scale.item() != 1
""",
    "a half-precision buffer": """
net.register_buffer("mix", (torch.eye(8) * 0.5).half().to(device))
predict = lambda x: net(x @ net.mix.float())
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a model of two halves, with an average of its weights": """
import copy
average = copy.deepcopy(net).requires_grad_(False)
predict = lambda x: net.head(net.body(x))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)
    optimizer.step()
    rates.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for own, other in zip(average.parameters(), net.parameters()):
            own.lerp_(other, 0.1)
predict = average
""",
    "master weights by hand": """
masters = [part.detach().clone().requires_grad_() for part in net.parameters()]
optimizer = torch.optim.SGD(masters, lr=3e-2)
for x, y in examples():
    net.zero_grad()
    error(x, y).backward()
    for master, part in zip(masters, net.parameters()):
        master.grad = part.grad.float()
    optimizer.step()
    with torch.no_grad():
        for master, part in zip(masters, net.parameters()):
            part.copy_(master)
""",
    "a trained head, and gradients of all clipped": """
optimizer = torch.optim.SGD(net.head.parameters(), lr=3e-2)
for x, y in examples():
    net.zero_grad()
    error(x, y).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    optimizer.step()
""",
    "gradients of the inputs": """
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in examples():
    x.requires_grad_()
    error(x, y).backward()
    moved = (x + 0.1 * x.grad.clamp(-1, 1)).detach()
    optimizer.zero_grad()
    error(moved, y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "hooks that clamp gradients": """
for part in net.parameters():
    part.register_hook(lambda gradient: gradient.clamp(-1, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=3e-2)
for x, y in examples():
    loss = error(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "steps that the script leaves out": """
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for x, y in examples():
    loss = error(x, y) * 32
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 100.0, error_if_nonfinite=True)
    if torch.isfinite(norm):
        optimizer.step()
""",
    "gradients that share one buffer": """
flat = torch.zeros(sum(part.numel() for part in net.parameters()), device=device)
start = 0
for part in net.parameters():
    part.grad = flat[start:start + part.numel()].view_as(part)
    start += part.numel()
optimizer = torch.optim.SGD(net.parameters(), lr=3e-2)
for x, y in examples():
    flat.zero_()
    error(x, y).backward()
    flat.clamp_(-1, 1)
    optimizer.step()
""",
    "a scaler that is off, and clipping": """
optimizer = torch.optim.SGD(net.parameters(), lr=3e-2)
scaler = torch.amp.GradScaler(device, enabled=False)
scaler.load_state_dict({})
for x, y in examples():
    loss = error(x, y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
""",
    "another view of a half-precision weight": """
weight = torch.nn.Parameter(torch.zeros(8, 1, dtype=torch.bfloat16, device=device))
table = weight.detach()
predict = lambda x: net(x).float() + x @ table.float()
optimizer = torch.optim.AdamW([*net.parameters(), weight], lr=1e-2)
for x, y in examples():
    loss = (net(x).float() + x @ weight.float() - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a compiled model": """
predict = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in examples():
    loss = error(x, y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.fixture(scope="module")
def plain():
    """A Python without launcher's hook, which has imported torch."""
    python = WarmPython({"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}, "import torch, torch._dynamo")
    yield python
    python.end()


@pytest.fixture(scope="module")
def hooked(tmp_path_factory):
    """A Python under the hook of a card, which has imported torch."""
    folder = tmp_path_factory.mktemp("hooked")
    describe(folder, "titan_rtx")
    python = WarmPython(environment(folder), "import torch, torch._dynamo, torch.optim._functional")
    yield python
    python.end()


def errors_of(python, folder, variables):
    """The error before and after the training, on data that it has not seen, and what was said."""
    done = python.run("train.py", folder=folder, variables=variables)
    assert done.returncode == 0, done.stderr
    return *json.loads((folder / "ledger").read_text()), done.stderr


RUNGS = [("titan_rtx", 0), ("titan_rtx", 1), ("l40s", 0)]
"""fp16 with scaling, fp32, and bf16."""


@mostly_long("name", LOOPS, ci=(0, 3, 5, 9, 11))
def test_a_healthy_loop_ends_the_same_in_every_precision(name, plain, hooked, tmp_path):
    """The noise of the data is 1.0: no training gets below it."""
    (tmp_path / "train.py").write_text(BEGIN + LOOPS[name].replace("torch.compile(net)", "net") + END)
    before, expected, _ = errors_of(plain, tmp_path, {})
    assert expected < 0.2 * before
    (tmp_path / "train.py").write_text(BEGIN + LOOPS[name] + END)
    for card, rung in RUNGS:
        describe(tmp_path, card, rung=rung)
        _, found, said = errors_of(hooked, tmp_path, environment(tmp_path))
        assert found == pytest.approx(expected, rel=0.01), (card, rung, said)
