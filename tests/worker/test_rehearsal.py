"""A card that is not there: what torch answers under a rehearsal, in processes that are forked from one that has imported it."""

import json
import os
from pathlib import Path

import pytest
from testbed.warm_python import WarmPython

pytestmark = pytest.mark.training

WORKER = Path(__file__).parents[2] / "launcher" / "worker"
CARDS = {
    "titan_rtx": {"name": "NVIDIA TITAN RTX", "capability": "7.5", "memory_bytes": 24217 << 20, "count": 1},
    "p100": {"name": "Tesla P100-PCIE-16GB", "capability": "6.0", "memory_bytes": 16276 << 20, "count": 1},
    "l40s": {"name": "NVIDIA L40S", "capability": "8.9", "memory_bytes": 45372 << 20, "count": 2},
}


def environment(folder):
    """The variables of a training whose attempt is described in this folder."""
    paths = [WORKER / "launcher_worker" / "startup", WORKER]
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LAUNCH_HOOK": "rehearse", "LAUNCH_ATTEMPT": str(folder), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def python_of(tmp_path_factory):
    """Give the Python that has imported torch with the imitation of a card."""
    started = {}

    def of(card):
        if card not in started:
            folder = tmp_path_factory.mktemp(card)
            (folder / "attempt.json").write_text(json.dumps({"card": CARDS[card]}))
            started[card] = WarmPython(environment(folder), "import torch._dynamo")
        return started[card]

    yield of
    for python in started.values():
        python.end()


@pytest.fixture
def rehearsed(tmp_path, python_of):
    """Run a script with the imitation of a card; give its end."""

    def run(text, card="titan_rtx"):
        (tmp_path / "attempt.json").write_text(json.dumps({"card": CARDS[card]}))
        (tmp_path / "train.py").write_text(text)
        return python_of(card).run("train.py", folder=tmp_path, variables=environment(tmp_path))

    return run


def said(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ANSWERS = """
import json, torch
properties = torch.cuda.get_device_properties(0)
print(json.dumps([
    torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.get_device_name(0),
    torch.cuda.get_device_capability(), torch.cuda.is_bf16_supported(), torch.cuda.is_bf16_supported(False),
    properties.total_memory, torch.cuda.mem_get_info()[1], torch.accelerator.current_accelerator().type,
]))
"""


@pytest.mark.parametrize(
    ("card", "computes_bf16"), [("titan_rtx", False), pytest.param("l40s", True, marks=pytest.mark.long)]
)
def test_torch_answers_as_with_the_card(rehearsed, card, computes_bf16):
    """A Turing card says that it has bf16, for torch counts emulation: that is what misleads scripts."""
    of = CARDS[card]
    memory = of["memory_bytes"]
    capability = [int(part) for part in of["capability"].split(".")]
    assert said(rehearsed(ANSWERS, card)) == [
        True, of["count"], of["name"], capability, True, computes_bf16, memory, memory, "cuda",
    ]  # fmt: skip


EVERY_WAY = """
import io, json, pickle, torch
device = torch.device("cuda:0")
model = torch.nn.Linear(4, 4).to(device).half()
tensors = [
    torch.zeros(2, device="cuda"), torch.tensor([1.0], device=device), torch.randn(2, 2, device=0), torch.ones(2).cuda(),
    torch.ones(2).to("cuda:0", torch.float16), torch.zeros_like(torch.ones(2), device="cuda"),
    torch.ones(2).new_zeros(2, device="cuda"), torch.randn(2, generator=torch.Generator("cuda").manual_seed(1), device="cuda"),
]
with torch.device("cuda"):
    tensors.append(torch.arange(3))
torch.set_default_device("cuda")
tensors.append(torch.eye(2))
torch.set_default_device("cpu")
with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
    with torch.autocast("cuda"):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        asked = torch.is_autocast_enabled(), str(torch.get_autocast_dtype("cuda"))
with torch.amp.autocast("cuda", dtype=torch.bfloat16):
    other = torch.ones(2, 2) @ torch.ones(2, 2)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record(); end.record(); torch.cuda.synchronize()
file = io.BytesIO()
torch.save(model.state_dict(), file); file.seek(0)
loaded = torch.load(file, map_location="cuda")
loader = torch.utils.data.DataLoader(list(range(4)), batch_size=2, pin_memory=True)
snapshot = model.weight.detach().cpu()
before = snapshot.clone()
model.weight.data.add_(1)
print(json.dumps([
    sorted({str(one.device) for one in tensors}), str(product.dtype), asked, str(other.dtype), begin.elapsed_time(end) >= 0,
    sorted(loaded), [batch.tolist() for batch in loader], bool((snapshot == before).all()),
    pickle.loads(pickle.dumps(device)).type, isinstance(device, torch.device), torch.device(0).type, torch.cuda.memory_allocated(),
]))
"""


def test_every_way_to_the_card_leads_to_the_cpu(rehearsed):
    """Tensors, modules, generators, autocast, streams, files, loaders; and what comes back from it is a copy."""
    assert said(rehearsed(EVERY_WAY)) == [
        ["cpu"], "torch.float16", [True, "torch.float16"], "torch.bfloat16", True, ["bias", "weight"],
        [[0, 1], [2, 3]], True, "cuda", True, "cuda", 0,
    ]  # fmt: skip


SCALED = """
import json, torch
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.cuda.amp.GradScaler(init_scale=2.0**24)
with torch.cuda.amp.autocast():
    loss = model(torch.full((2, 4), 200.0, device="cuda")).pow(2).mean()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
print(json.dumps([scaler.is_enabled(), scaler.get_scale()]))
"""


def test_a_scaler_scales_and_notices_what_overflows(rehearsed):
    """On a plain CPU it would be switched off."""
    assert said(rehearsed(SCALED)) == [True, 2.0**23]


NEEDS_A_CARD = {
    "a graph": "torch.cuda.CUDAGraph()",
    "a graphed module": "torch.cuda.make_graphed_callables(torch.nn.Linear(1, 1), ())",
    "a legacy tensor": "torch.cuda.FloatTensor(1)",
    "a library of its own": "raise OSError('libcudart.so.12: cannot open shared object file')",
}


@pytest.mark.parametrize("what", NEEDS_A_CARD)
def test_what_needs_a_real_card_is_named(rehearsed, what):
    """The last lines of the log say it, after the script's own traceback."""
    done = rehearsed(f"import torch\n{NEEDS_A_CARD[what]}\n")
    assert done.returncode == 1
    assert "not rehearsable: " in done.stderr.splitlines()[-1]


COMPILED = """
import json, torch
model = torch.compile(torch.nn.Linear(4, 1).cuda())
step = torch.compile(lambda batch: model(batch).square().mean(), mode="reduce-overhead")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = step(torch.ones(2, 4, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(json.dumps([losses[2] < losses[0], sorted(model.state_dict())]))
"""


def test_a_compiled_model_trains_uncompiled(rehearsed):
    """Its weights keep the names that a compiled model gives them."""
    done = rehearsed(COMPILED)
    assert said(done) == [True, ["_orig_mod.bias", "_orig_mod.weight"]]
    assert done.stderr.count("torch.compile is left out") == 1


@pytest.mark.long
def test_a_card_that_triton_does_not_support_refuses_to_compile(rehearsed):
    """With the words of torch, which the table of failures knows."""
    done = rehearsed(COMPILED, "p100")
    assert done.returncode == 1
    assert "Tesla P100-PCIE-16GB which is too old to be supported by the triton GPU compiler" in done.stderr
    assert "not rehearsable" not in done.stderr
