"""A script that knows nothing of launcher gets the plan: loops in plain torch, accelerate and Trainer, each in a process.

The scripts of one card are forked from a Python that has imported their libraries under the hook.
"""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.llama import save_small_llama
from testbed.warm_python import WarmPython

from launcher.config.lookup import Lookup
from launcher.planning.precision.ladder import LadderInputs, ladder

pytestmark = pytest.mark.training

TESTS = Path(__file__).parents[1]
WORKER = TESTS.parent / "launcher" / "worker"
BEGIN = """
import json, sys, torch
from small_data import batches, fingerprint, collate, rows
from transformers import AutoModelForCausalLM
torch.manual_seed(0)
def batch_of(size=16, steps=1):
    for batch in batches(size, steps):
        yield {name: part.cuda() for name, part in batch.items()}
def end(**values):
    with open("ledger", "w") as file:
        json.dump(values, file)
"""


LIBRARIES = """
import peft, small_data, torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model of Llama's kind."""
    folder = tmp_path_factory.mktemp("model") / "model"
    save_small_llama(folder)
    return folder


def environment(folder):
    """The variables of a training whose attempt is described in this folder."""
    paths = [WORKER / "launcher_worker" / "startup", WORKER, TESTS / "seeds"]
    return {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LAUNCH_HOOK": "rehearse adapt observe", "LAUNCH_ATTEMPT": str(folder), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def describe(folder, card, method="full", *, split=False, halvings=0, rung=0, **more):
    """Write the attempt of a card's rung."""
    profile = Lookup().profile(card)
    precision = ladder(LadderInputs(profile, method)).rungs[rung]
    names = ("artifacts", "checkpoints", "cache")
    values = {
        "run": "261123-x-abcdef", "attempt": 1, "seed": 0, "rehearsed": True, "method": method, "model": None, "data": {},
        "settings": {}, "steps": None, "save_every_steps": None, "loader_workers": 0,
        "precision": precision.model_dump(mode="json"),
        "split": {"global_batch": 8, "ranks": 1, "micro_batch": 2, "accumulation": 4},
        "folders": {name: str(folder / name) for name in names},
        "adapt": {"split": split, "halvings": halvings},
        "card": {"name": profile.title, "capability": profile.capability, "memory_bytes": 24 << 30, "count": 1},
        **more,
    }  # fmt: skip
    (folder / "checkpoints").mkdir(exist_ok=True)
    (folder / "attempt.json").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def python_of(tmp_path_factory):
    """Give the Python that has imported the libraries under the hook of a card."""
    started = {}

    def of(card):
        if card not in started:
            folder = tmp_path_factory.mktemp(card)
            describe(folder, card)
            started[card] = WarmPython(environment(folder), LIBRARIES)
        return started[card]

    yield of
    for python in started.values():
        python.end()


def train_adapted(start, folder, script, card="titan_rtx", method="full", **more):
    """Train in a folder under a card's rung by `start`; return the end, what the script wrote, and what was adapted."""
    describe(folder, card, method, **more)
    (folder / "train.py").write_text(BEGIN + script)
    done = start(card, folder)
    # a progress bar of another rank may stand before it in the line
    lines = re.findall(r"adapted: (.*)$", done.stderr, re.MULTILINE)
    ledger = folder / "ledger"
    return done, json.loads(ledger.read_text()) if ledger.exists() else None, lines


@pytest.fixture(scope="module")
def forked(model, python_of):
    """Start the script of a folder, under the hook and a card."""

    def start(card, folder):
        return python_of(card).run("train.py", str(model), folder=folder, variables=environment(folder))

    return start


@pytest.fixture
def adapted(tmp_path, forked):
    """Run a script under a card's first rung with the hook; give its end, what it wrote, and what was adapted."""
    return functools.partial(train_adapted, forked, tmp_path)


PLAIN = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
losses, norms = [], []
for batch in batch_of(steps=10):
    out = model(**batch)
    out.loss.backward()
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    optimizer.step()
    optimizer.zero_grad()
    losses.append(out.loss.item())
from launcher_worker.precision.precision_watch import _watches
end(losses=losses, norms=norms, dtype=str(out.logits.dtype), weights=fingerprint(model), seen=_watches[0]._sent)
"""


@pytest.fixture(scope="module")
def plain_in_fp16(forked, tmp_path_factory):
    """The plain loop under a TITAN RTX, which saves its model as a whole: its folder, its end, what it wrote, what was adapted."""
    folder = tmp_path_factory.mktemp("plain")
    return folder, *train_adapted(forked, folder, PLAIN + 'torch.save(model, "whole.pt")\n')


def test_a_loop_without_mixed_precision_gets_autocast_and_a_scaler_and_learns_the_same(
    adapted, plain_in_fp16
):
    """What it clips and steps is unscaled: norms, losses and weights are those of fp32, but for rounding."""
    _, done, of_fp16, lines = plain_in_fp16
    assert done.returncode == 0, done.stderr
    assert {"forward pass: under autocast float16", "gradients: scaled during the backward pass"} <= set(
        lines
    )
    done, of_fp32, lines = adapted(PLAIN, card="p100")
    assert done.returncode == 0, done.stderr
    assert not [line for line in lines if "autocast" in line or "scaled" in line]
    assert of_fp16["dtype"] == of_fp32["dtype"] == "torch.float32"
    assert [one["seen"]["scaler"] for one in (of_fp16, of_fp32)] == [True, False]
    for name in ("losses", "norms", "weights"):
        assert of_fp16[name] == pytest.approx(of_fp32[name], rel=0.01)
        assert of_fp16[name] != of_fp32[name]  # it was another precision


OVERFLOWS = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
moved = []
for step, batch in enumerate(batch_of(steps=6)):
    before = fingerprint(model)
    (model(**batch).loss * (1e4 if step == 3 else 1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    moved.append(fingerprint(model) != before)
from launcher_worker.guard import process_guard
end(moved=moved, counted=process_guard._step)
"""


def test_a_step_that_overflows_is_left_out_in_a_loop_that_knows_no_scaler(adapted):
    """The one before it and the one after it are made, and the guard counts each once, of the loop and of the scaler."""
    done, told, _ = adapted(OVERFLOWS)
    assert done.returncode == 0, done.stderr
    assert told["counted"] == 6
    assert told["moved"] == [True, True, True, False, True, True]


OWN = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.cuda.amp.GradScaler(enabled=IS_OWN)
seen = []
for batch in batch_of(steps=3):
    with torch.cuda.amp.autocast(dtype=torch.OWN_DTYPE):
        out = model(**batch)
    seen.append(str(out.logits.dtype))
    scaler.scale(out.loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
end(seen=seen, enabled=scaler.is_enabled(), dtypes=sorted({str(part.dtype) for part in model.parameters()}))
"""


@pytest.mark.parametrize(
    ("card", "own", "planned", "is_scaled"),
    [("titan_rtx", "bfloat16", "float16", True), pytest.param("l40s", "float16", "bfloat16", False, marks=pytest.mark.long)],
)  # fmt: skip
def test_a_loop_s_own_autocast_and_scaler_follow_the_plan(adapted, card, own, planned, is_scaled):
    """A TITAN RTX wants scaled gradients, although the script's scaler is off; an L40S wants none, although it is on."""
    script = OWN.replace("OWN_DTYPE", own).replace("IS_OWN", str(not is_scaled))
    done, told, lines = adapted(script, card=card)
    assert done.returncode == 0, done.stderr
    assert told == {"seen": [f"torch.{planned}"] * 3, "enabled": False, "dtypes": ["torch.float32"]}
    expected = [
        *(f"from_pretrained: dtype bfloat16 -> {planned}" for _ in range(is_scaled)),
        *("GradScaler: enabled True -> False" for _ in range(not is_scaled)),
        f"autocast: dtype {own} -> {planned}",
    ]
    assert lines[: len(expected)] == expected
    assert ("gradients: scaled during the backward pass" in lines) == is_scaled


ACCELERATE = """
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
accelerator = Accelerator(mixed_precision="no")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer = accelerator.prepare(model, optimizer)
losses = []
for batch in batch_of(steps=8):
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
torch.save(model, "whole.pt")
of = lambda trained: sorted({str(part.dtype) for part in model.parameters() if part.requires_grad == trained})
end(losses=losses, scaler=accelerator.scaler is not None, frozen=of(False), trained=of(True))
"""


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_loop_with_accelerate_follows_the_plan(adapted, method):
    """LoRA with a saved head over an fp16 base: what is trained is fp32, whatever method the job names."""
    done, told, lines = adapted(ACCELERATE, method=method)
    assert done.returncode == 0, done.stderr
    assert (told["scaler"], told["frozen"], told["trained"]) == (True, ["torch.float16"], ["torch.float32"])
    assert told["losses"][-1] < 0.9 * told["losses"][0]
    assert "Accelerator: mixed_precision no -> fp16" in lines
    assert "from_pretrained: dtype bfloat16 -> float16" in lines


REPLICAS = """
import gc, os
from peft import LoraConfig, get_peft_model
torch.distributed.init_process_group("nccl")
rank = torch.distributed.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float16).cuda()
model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"]))
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for batch in batch_of(steps=8):
    loss = model(**{name: part[rank::2] for name, part in batch.items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
weights = [None, None]
torch.distributed.all_gather_object(weights, fingerprint(model))
if rank == 0:
    end(losses=losses, weights=weights)
del model, optimizer, loss
gc.collect()  # gloo's threads must end before the interpreter does: pytorch/pytorch#179291
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_replicas_are_made_of_a_model_that_is_safe_to_train(model, tmp_path):
    """Two ranks, NCCL replaced by gloo: the gradients of a head that was fp16 are averaged in fp32, and the replicas stay equal."""

    def start(_, folder):
        return subprocess.run(
            [sys.executable, *TORCHRUN, "train.py", str(model)], cwd=folder, env=environment(folder),
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip

    done, told, lines = train_adapted(start, tmp_path, REPLICAS, card="t4x2", method="lora")
    assert done.returncode == 0, done.stderr
    assert told["weights"][0] == told["weights"][1]
    assert told["losses"][-1] < 0.9 * told["losses"][0]
    assert lines.count("trainable weights: 1 tensor is float32 now") == 1


@pytest.mark.long
def test_a_saved_model_loads_where_launcher_is_not(plain_in_fp16):
    """A whole model, pickled with all of its hooks."""
    folder, *_ = plain_in_fp16
    read = "import sys, torch; torch.load('whole.pt', weights_only=False); print([one for one in sys.modules if one.startswith('launcher')])"
    done = subprocess.run(
        [sys.executable, "-c", read], cwd=folder, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr


TRAINER = """
from transformers import Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
arguments = TrainingArguments("out", per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=4, report_to="none",
    save_strategy="no", bf16=True)
trainer = Trainer(model, arguments, train_dataset=rows(), data_collator=collate)
trainer.train()
end(micro=arguments.per_device_train_batch_size, accumulation=arguments.gradient_accumulation_steps, fp16=arguments.fp16,
    bf16=arguments.bf16, step=trainer.state.global_step, left=sorted(__import__("os").listdir("out") if __import__("os").path.exists("out") else []))
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, (8, 2), marks=pytest.mark.long),
        ({"halvings": 1}, (4, 4)),
        pytest.param({"halvings": 5}, (1, 16), marks=pytest.mark.long),
        ({"split": True}, (2, 4)),
    ],
    ids=["its own", "halved once", "as far as it can be", "the job names one"],
)
def test_the_batch_is_the_script_s_unless_the_job_names_one(adapted, more, expected):
    """After running out of memory the micro-batch is halved, and the batch of a step stays."""
    done, told, _ = adapted(TRAINER, **more)
    assert done.returncode == 0, done.stderr
    assert (told["micro"], told["accumulation"]) == expected
    assert (told["fp16"], told["bf16"]) == (True, False)


COUNTED = """
from transformers.models.llama import modeling_llama
forward, calls = modeling_llama.LlamaMLP.forward, []
def counted(self, *words, **more):
    calls.append(1)
    return forward(self, *words, **more)
modeling_llama.LlamaMLP.forward = counted
"""


@pytest.mark.parametrize(
    "script", [TRAINER, pytest.param(PLAIN, marks=pytest.mark.long)], ids=["Trainer", "a loop"]
)
def test_activations_are_computed_again_where_the_plan_says_so(adapted, script):
    """Each layer sees a micro-batch twice; losses are the same."""
    script = COUNTED + script.replace("\nend(", "\nend(calls=len(calls), ").replace(
        ".cuda()\n", ".cuda().train()\n"
    )
    seen = {}
    for again in (False, True):
        done, told, _ = adapted(script, activation_checkpointing=again)
        assert done.returncode == 0, done.stderr
        seen[again] = told
    assert seen[True]["calls"] == 2 * seen[False]["calls"]
    assert seen[True].get("losses") == pytest.approx(seen[False].get("losses"))


@pytest.mark.parametrize(
    ("card", "is_replaced"), [("titan_rtx", True), pytest.param("l40s", False, marks=pytest.mark.long)]
)
def test_a_fused_optimizer_is_replaced_only_where_it_would_hide_a_skipped_step(adapted, card, is_replaced):
    """It is Trainer's default, and faster; beside a scaler it skips a step that Trainer counts."""
    done, _, lines = adapted(TRAINER, card)
    assert done.returncode == 0, done.stderr
    assert ("TrainingArguments: optim adamw_torch_fused -> adamw_torch" in lines) is is_replaced


def test_a_trainer_saves_for_a_resume_and_resumes(adapted, tmp_path):
    """Its own folder has nothing of it; the next attempt begins where the checkpoint ends."""
    done, told, _ = adapted(TRAINER, save_every_steps=2)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-2", "step-4"]
    assert told["left"] == []
    checkpoint = {"path": str(tmp_path / "checkpoints" / "step-2"), "step": 2}
    done, told, lines = adapted(TRAINER, checkpoint=checkpoint)
    assert done.returncode == 0, done.stderr
    assert told["step"] == 4
    assert done.stdout.count("'loss'") == 0
    assert any(line.startswith("Trainer.train: resume_from_checkpoint None -> ") for line in lines)


HALF_INPUTS = """
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).half().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(20):
    inputs = torch.ones(4, 8, device="cuda").half()
    loss = (model(inputs).float() - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
end(losses=losses, dtypes=sorted({str(part.dtype) for part in model.parameters()}))
"""


@pytest.mark.parametrize("card", ["p100", pytest.param("l40s", marks=pytest.mark.long)])
def test_a_model_that_was_cast_by_hand_is_trained_in_fp32_and_takes_the_script_s_half_inputs(adapted, card):
    """With autocast and without it; from the first forward pass on."""
    done, told, _ = adapted(HALF_INPUTS, card=card)
    assert done.returncode == 0, done.stderr
    assert told["dtypes"] == ["torch.float32"]
    assert told["losses"][-1] < 0.1 * told["losses"][0]


WITHOUT_STEP = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in batch_of(steps=2):
    model(**batch).loss.backward()
"""


def test_a_script_that_never_steps_is_told(adapted, plain_in_fp16):
    """At its end, and its exit code stays its own."""
    done, _, _ = adapted(WITHOUT_STEP)
    assert done.returncode == 0
    assert "launch: 2 backward passes and no optimizer step: nothing was trained" in done.stderr
    _, done, *_ = plain_in_fp16
    assert "no optimizer step" not in done.stderr


IN_4_BITS = """
import peft
from transformers import BitsAndBytesConfig
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], quantization_config=config, dtype=torch.bfloat16)
model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear"))
optimizer = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], lr=3e-3)
losses = []
for batch in batch_of(steps=5):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
layers = [one for one in model.modules() if type(one).__name__ == "Linear4bit" and hasattr(one, "compute_dtype")]
end(losses=losses, compute=sorted({str(one.compute_dtype) for one in layers}), count=len(layers),
    trained=sorted({str(one.dtype) for one in model.parameters() if one.requires_grad}))
"""


@pytest.mark.parametrize(
    ("card", "method", "compute", "rest"),
    [("titan_rtx", "qlora", "float16", "float16"), ("titan_rtx", "full", "float16", "float32"), ("p100", "qlora", "float32", "float32")],
)  # fmt: skip
def test_a_base_in_4_bits_computes_in_the_plan_s_dtype(adapted, card, method, compute, rest):
    """A script that was written for a card with bf16; what it trains is float32."""
    done, told, lines = adapted(IN_4_BITS, card=card, method=method)
    assert done.returncode == 0, done.stderr
    assert f"from_pretrained: bnb_4bit_compute_dtype bfloat16 -> {compute}" in lines
    assert f"from_pretrained: dtype bfloat16 -> {rest}" in lines
    assert told["compute"] == [f"torch.{compute}"]
    assert told["count"] > 0
    assert told["trained"] == ["torch.float32"]
    assert told["losses"][-1] < told["losses"][0]


def test_what_cannot_be_adapted_is_named_with_its_line(adapted):
    """Frozen weights that the script has cast by hand stay as they are."""
    script = PLAIN.replace("steps=10", "steps=1").replace(
        ".cuda()\n",
        ".cuda()\nmodel.model.embed_tokens.requires_grad_(False)\nmodel.model.embed_tokens.half()\n",
        1,
    )
    done, _, lines = adapted(script, card="p100")
    left = [line for line in lines if line.startswith("left as it is: frozen weights of float16")]
    assert len(left) == 1, (lines, done.stderr)
    assert "train.py:" in left[0]
