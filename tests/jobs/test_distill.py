"""The distillation program: its pieces, and trainings of a few steps on tiny random models.

The witness of a student is `loss_of`, which asks transformers for the loss of each example alone.
"""

import importlib.util
import itertools
import json
import math

import pytest
from testbed.client import until_left
from testbed.job_programs import load, write_rows

# Looked for, not imported: that takes eight seconds, also where no training is selected.
if not all(map(importlib.util.find_spec, ("torch", "transformers", "accelerate", "peft"))):
    pytest.skip("the training libraries are not installed", allow_module_level=True)
pytestmark = pytest.mark.training

KILLED = """
import os, runpy, signal
import launcher_worker as worker

due = worker.due

def killed_once(step):
    if step == 7 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return due(step)

worker.due = killed_once
runpy.run_path("distill.py", run_name="__main__")
"""
WORDS = ("--job", "./job.toml", "--set", "batch.global=4", "--set", "steps=12", "--set", "save_every_steps=5")


@pytest.fixture(scope="module")
def distill():
    return load("distill")


@pytest.fixture(scope="module")
def tokenizer():
    return load("demo").tokenizer()


def ended(client, run, state="succeeded"):
    """Wait for the end of a run, and return its folder on the host."""
    folder = client.home / ".launch" / "runs" / run
    until_left(folder)
    assert client.summary(run)["state"] == state, client.ok("logs", run)
    return folder


def metrics(client, run, name):
    """A metric's values by step."""
    lines = [json.loads(line) for line in client.ok("metrics", run, "--json").splitlines()]
    return {line["step"]: line["value"] for line in lines if line["name"] == name}


def loss_of(folder, rows, adapter=None):
    """The loss a token of the answers, measured one example at a time in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, adapter) if adapter else model
    total = count = 0
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        prompt, answer = (
            tokens(f"{row['prompt']}\n")["input_ids"],
            tokens(f"{row['answer']}<eos>")["input_ids"],
        )
        labels = torch.tensor([[-100] * len(prompt) + answer])
        with torch.no_grad():
            total += model(input_ids=torch.tensor([prompt + answer]), labels=labels).loss.item() * len(answer)
        count += len(answer)
    return total / count


# ---- its pieces


def test_the_loss_is_that_of_the_formula(distill):
    """Worked out a second way, by probabilities in float64; a vocabulary padded further changes nothing."""
    import torch

    torch.manual_seed(0)
    student, teacher, labels = torch.randn(5, 7), torch.randn(5, 9), torch.tensor([0, 1, 2, 3, 6])
    settings = distill.Distill(temperature=3.0, kl_weight=0.7)
    q = (teacher[:, :7].double() / 3).softmax(-1)
    p = (student.double() / 3).softmax(-1)
    kl = 9 * (q * (q / p).log()).sum()
    ce = -student.double().softmax(-1).log()[range(5), labels].sum()
    loss, kl_found, ce_found = distill.distillation_loss(student, teacher, labels, settings)
    assert (kl_found.item(), ce_found.item()) == pytest.approx((kl.item(), ce.item()))
    assert loss.item() == pytest.approx(0.7 * kl.item() + 0.3 * ce.item())
    _, nothing, _ = distill.distillation_loss(teacher.half(), teacher.half(), labels, settings)
    assert nothing.item() == pytest.approx(0, abs=1e-6)


def test_each_epoch_has_every_example_once_whatever_the_batch(distill):
    """Steps of any size go through the same order, and within a step the short ones come first."""
    rows = [{"input_ids": [number] * (number % 5 + 1), "labels": []} for number in range(12)]

    def seen(batch):
        drawn = [distill.rows_of_step(rows, step, batch, seed=3) for step in range(1, 36 // batch + 1)]
        assert all(
            len(a["input_ids"]) <= len(b["input_ids"]) for one in drawn for a, b in itertools.pairwise(one)
        )
        return [[row["input_ids"][0] for row in one] for one in drawn]

    for batch in (2, 3, 12):
        flat = [number for one in seen(batch) for number in one]
        assert [sorted(flat[at : at + 12]) for at in (0, 12, 24)] == [list(range(12))] * 3
    assert [sorted(one) for one in seen(12)] == [list(range(12))] * 3
    assert sorted(seen(2)[0] + seen(2)[1]) == sorted(seen(4)[0])
    assert seen(3) != [
        [row["input_ids"][0] for row in distill.rows_of_step(rows, step, 3, seed=4)] for step in range(1, 13)
    ]


def test_all_of_a_text_counts_and_of_a_prompt_and_answer_the_answer(distill, tokenizer):
    """Nothing predicts the first token of a text."""
    text = distill.encode(tokenizer, {"text": "1 km"})
    answer = distill.encode(tokenizer, {"prompt": "1 km in m?", "completion": "1000"})
    assert tokenizer.decode(text["input_ids"]) == "1 km<eos>"
    assert (distill.counted([text]), distill.counted([answer]), distill.counted([text, answer])) == (4, 5, 9)


@pytest.mark.long
def test_a_teacher_of_another_family_is_refused(distill_project):
    """Its logits would be about other tokens."""
    client = distill_project
    path = client.project / "teacher" / "tokenizer.json"
    path.write_text(path.read_text().replace('"z":', '"Z":'))
    out = client.run(*WORDS, "--profile", "cpu")
    assert "student and teacher have different tokenizers" in out.stdout + out.stderr
    assert out.returncode == 1


# ---- trainings


@pytest.mark.parametrize("method", [pytest.param("full", marks=pytest.mark.long), "lora"])
def test_the_best_student_is_what_comes_out(distill_project, method):
    """Learned by heart, the few examples spoil the student for others: its last state is not its best one."""
    client = distill_project
    write_rows(client.project / "rows.jsonl", range(4))
    words = (
        "--set",
        "steps=40",
        "--set",
        f"method={method}",
        "--set",
        "settings.kl_weight=0.0",
        "--set",
        "settings.scheduler=constant",
    )
    run = client.detached(*WORDS, "--profile", "cpu", *words, "--set", "settings.learning_rate=0.03")
    folder = ended(client, run)
    measured = metrics(client, run, "eval_loss")
    assert sorted(measured) == [0, *range(4, 41, 4)]
    best = min(measured, key=measured.get)
    assert 0 < best < 40
    held, artifacts = client.project / "held.jsonl", folder / "work" / "artifacts"
    assert measured[0] == pytest.approx(loss_of(client.project / "base", held), rel=1e-5)
    found = (
        loss_of(artifacts / "model", held)
        if method == "full"
        else loss_of(client.project / "base", held, artifacts / "adapter")
    )
    assert found == pytest.approx(measured[best], rel=1e-5)
    result = json.loads((artifacts / "result.json").read_text())
    assert result["best_step"] == best
    assert result["perplexity_best"] == pytest.approx(math.exp(found), rel=1e-5)
    assert result["perplexity_teacher"] == pytest.approx(
        math.exp(loss_of(client.project / "teacher", held)), rel=1e-5
    )
    figures = (
        f"best perplexity {math.exp(found):.4g} at step {best}, teacher {result['perplexity_teacher']:.4g}"
    )
    assert figures in client.run("attach", run).stderr


@pytest.mark.long
def test_compiled_it_learns_the_same_and_its_files_are_those_of_any_student(distill_project):
    """The losses are those of the model as it was written, and a resumed training goes on with the same ones."""
    client = distill_project
    words = ("--profile", "cpu", "--set", "settings.lora_dropout=0.0")
    plain = client.detached(*WORDS, *words)
    expected = ended(client, plain)
    client.script(KILLED, "killed.py")
    job = client.project / "job.toml"
    job.write_text(job.read_text().replace('"distill.py"', '"killed.py"'))
    run = client.detached(*WORDS, *words, "--set", "compile=true")
    folder = ended(client, run)
    assert client.summary(run)["attempt"] == 2
    for name in ("loss", "kl", "grad_norm", "eval_loss"):
        assert metrics(client, run, name) == pytest.approx(metrics(client, plain, name), rel=1e-3), name
    assert names_in(folder) == names_in(expected)


def names_in(folder):
    """The names of the weights in the student that came out, and in its checkpoints."""
    import torch
    from safetensors.torch import load_file

    (weights,) = (folder / "work" / "artifacts").glob("*/*.safetensors")
    checkpoints = sorted((folder / "work" / "checkpoints").glob("step-*/student.pt"))
    assert checkpoints
    return {*load_file(weights)}, [{*torch.load(one)} for one in checkpoints]


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "headline"),
    [
        (("--profile", "l40s"), "precision bf16, rehearsed on the CPU: bf16 autocast over an fp32 base, fp32 trainables, scaler off"),
        (("--profile", "p100", "--precision", "fp16"), "fp16 autocast over an fp32 base, fp32 trainables, scaler on"),
    ],
    ids=["report 002", "report 004, mixed"],
)  # fmt: skip
def test_the_trainings_of_two_field_reports_run_as_it(distill_project, words, headline):
    """What ended in errors of dtypes and scalers; perplexity from step 0 on, a micro-batch of one, a better student in the end."""
    client = distill_project
    steps = ("--set", "batch.micro=1", "--set", "settings.eval_steps=6")
    run = client.detached(*WORDS, *words, "--rehearse", *steps)
    ended(client, run)
    assert headline in client.ok("logs", run)
    measured = metrics(client, run, "perplexity")
    assert sorted(measured) == [0, 6, 12]
    assert measured[12] < measured[0]


@pytest.mark.long
def test_two_ranks_have_the_losses_of_one(distill_project):
    """Each has half of the examples and as many tokens as they happen to have; the gradient is that of the whole batch."""
    client = distill_project
    words = (*WORDS, "--rehearse", "--precision", "fp32")
    one = client.detached(*words, "--profile", "t4")
    ended(client, one)
    two = client.detached(*words, "--profile", "t4x2")
    ended(client, two)
    for name in ("loss", "kl", "ce", "grad_norm", "eval_loss"):
        alone = metrics(client, one, name)
        assert len(alone) >= 4
        assert metrics(client, two, name) == pytest.approx(alone, rel=1e-3), name


@pytest.mark.long
def test_the_demo_s_student_comes_near_its_teacher(client):
    """A student of a quarter of its teacher's size, from random weights; measured by transformers on the held-out data."""
    run = client.detached("--job", "distill", "--profile", "cpu")
    folder = ended(client, run)
    (demo,) = (client.home / ".launch" / "cache").glob("demo-*")
    held = demo / "eval.jsonl"
    first, teacher = (math.exp(loss_of(demo / name, held)) for name in ("student", "model"))
    last = math.exp(loss_of(folder / "work" / "artifacts" / "model", held))
    assert first > 40
    assert teacher < last < 1.02 or last < teacher
