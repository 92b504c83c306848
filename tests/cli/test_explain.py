"""explain: the ladder of a card and a job, and where what is known of the model comes from."""

import json
import re

from testbed.pty_run import in_terminal, without_style
from testbed.tables import mostly_long

QWEN = {
    "dtype": "bfloat16", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 151936,
}  # fmt: skip


def told(client, *words):
    return json.loads(client.ok("explain", "--json", *words))


def bases(one):
    return [rung["base_dtype"] for rung in one["ladder"]]


def test_a_person_sees_each_rung_and_why_not_the_others(client):
    """No host is asked where the card is named."""
    out = client.ok("explain", "--profile", "titan_rtx", "--job", "sft")
    rows = out.splitlines()
    assert rows[0].split() == ["rung", "precision", "base", "trained", "scaler", "why", "here"]
    assert [row.split()[0] for row in rows[1:-1]] == ["1", "2", "3", "-"]
    assert "excluded: capability 7.5 < 8.0 emulates it in software (torch reports it as supported)" in out
    assert "the model's configuration is not known here" in rows[-1]


def test_a_script_gets_rungs_and_what_is_excluded(client):
    """The first rung is the best; each has its reason."""
    one = told(client, "--profile", "titan_rtx", "--job", "sft")
    assert one["version"] == 1
    assert one["ladder"][0] == {
        "mode": "fp16", "device": "cuda", "capability": "7.5", "platform": None, "base_dtype": "float16",
        "trainable_dtype": "float32", "autocast_dtype": "float16", "scaler": True, "tf32": False, "adam_eps": 1e-8,
        "attention": "sdpa", "compile": False, "why": one["ladder"][0]["why"],
    }  # fmt: skip
    assert [(no["mode"], no["on_request"]) for no in one["excluded"]] == [("bf16", False)]


@mostly_long(
    "place", ["a folder that travels", "the hub's cache here", "the host", "the hub's cache there"], ci=(0, 2)
)
def test_what_a_model_says_of_itself_orders_the_rungs(client, place):
    """One born in bf16 begins over a wide base, wherever its config lies."""
    snapshot = "hub/models--org--born/snapshots/1f2e"
    folder, model = {
        "a folder that travels": (client.project / "born", "./born"),
        "the hub's cache here": (client.home / ".cache/huggingface" / snapshot, "org/born"),
        "the host": (client.home / "there", "host:~/there"),
        "the hub's cache there": (client.home / ".launch/cache/huggingface" / snapshot, "hub:org/born"),
    }[place]
    words = ("--job", "sft", "--profile", "titan_rtx", "--set", f"model={model}")
    assert bases(told(client, *words)) == ["float16", "float32", "float32"]
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(QWEN))
    plan = json.loads(client.planned("--json", *words))["plan"]
    assert plan["model_facts"]["dtype"] == "bfloat16"
    assert bases(plan) == ["float32", "float32"]


def test_a_person_sees_what_a_step_takes_and_what_a_plan_uses_of_the_card(client):
    """Where the model is known; where nothing fits, the share is named too, and what would fit, as a dry run says it."""
    large = {**QWEN, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
    for name, config in (("small", QWEN), ("large", large)):
        (client.project / name).mkdir()
        (client.project / name / "config.json").write_text(json.dumps(config))
    words = ("explain", "--profile", "titan_rtx", "--job", "sft", "--set")
    small, large = client.ok(*words, "model=./small"), client.ok(*words, "model=./large")
    share = re.search(r"a plan uses [\d.]+ GB of the card's 2\d\.\d GB", small)[0]
    assert "nothing fits" not in small
    assert re.search(r"rung +weights +gradients +optimizer +activations +reserve +GB in all", small)
    parts = told(client, *words[1:], "model=./small")["memory"][0]
    written = [f"{part / 1e9:.2f}" for part in (*parts.values(), sum(parts.values()))]
    assert ["1", *written] in [row.split() for row in small.splitlines()]
    assert "nothing fits; this is the leanest: it needs about" in large
    assert share in large
    refusal = told(client, *words[1:], "model=./large")["findings"][-1]
    assert (refusal["code"], refusal["level"]) == ("model-too-large", "refuse")
    assert "a larger card, on a host that has one   --profile " in refusal["mend"]
    assert refusal in json.loads(client.planned("--json", *words[1:], "model=./large"))["findings"]


def test_a_setting_of_the_plan_is_taken_by_a_script_that_does_not_declare_it(client):
    """`sft` has no setting of that name: the plan reads it. Another name is refused as before."""
    words = ("--job", "sft", "--profile", "titan_rtx", "--set")
    for key, is_on in (
        ("settings.gradient_checkpointing", True),
        ("settings.activation_checkpointing", False),
    ):
        one = told(client, *words, f"{key}={str(is_on).lower()}")
        assert one["checkpointing"] is is_on
        assert one["findings"] == []
    (found,) = told(client, *words, "settings.gradient_checkpoint=true")["findings"]
    assert found["code"] == "undeclared-setting"


def test_the_teacher_of_a_distillation_is_read_as_the_model_is(client):
    """Its shape is in the plan, and it takes memory."""
    (client.project / "small").mkdir()
    (client.project / "small" / "config.json").write_text(json.dumps(QWEN))
    words = ("--json", "--job", "sft", "--profile", "t4", "--set", "model=./small")
    plain = json.loads(client.planned(*words))["plan"]
    taught = json.loads(client.planned(*words, "--set", "settings.teacher=./small"))["plan"]
    assert (plain["teacher_facts"], taught["teacher_facts"]) == (None, taught["model_facts"])
    assert taught["split"]["micro_batch"] < plain["split"]["micro_batch"]
    named = json.loads(client.planned(*words, "--set", "teacher=./small"))["plan"]
    assert named["teacher"] == {"kind": "local", "value": "./small"}
    assert (named["teacher_facts"], named["split"]) == (taught["teacher_facts"], taught["split"])


def test_what_is_excluded_is_refused_with_its_reason(client):
    """The exit code is the gate's; a dry run shows a plan all the same, and says it."""
    words = ("--profile", "titan_rtx", "--precision", "bf16")
    done = client.run("explain", *words)
    assert done.returncode == 3
    assert "capability 7.5 < 8.0 emulates it" in done.stderr
    assert "would refuse: bf16 is excluded on TITAN RTX 24 GB" in client.planned(*words)


def test_a_rehearsal_names_its_card(client):
    """There is nothing to rehearse of the CPU that is there."""
    done = client.run("--rehearse")
    assert done.returncode == 2
    assert "--profile titan_rtx --rehearse" in done.stderr
    plan = json.loads(client.planned("--json", "--rehearse", "--profile", "titan_rtx"))
    assert (plan["plan"]["rehearsed"], plan["findings"]) == (True, [])
    assert plan["plan"]["profile"]["name"] == "titan_rtx"


def test_the_start_up_hook_is_named_where_it_is_on(client):
    """In a dry run and by `explain`; our job `sft` uses the worker and has none."""
    client.script("")
    hook = "reads steps and metrics of a Hugging Face Trainer"
    words = ("--profile", "cpu")
    assert hook in client.planned(*words, "--", "python", "train.py")
    assert hook not in client.planned(*words, "--set", "inject=false", "--", "python", "train.py")
    assert hook in client.ok("explain", *words, "--set", "inject=true")
    assert not told(client, *words)["inject"]


@mostly_long("columns", [80, 120, 200], ci=(0,))
def test_the_reasons_wrap_below_themselves_in_a_terminal(client, columns):
    """No line is longer than the terminal, and no word of a reason is lost; a pipe has a line for each rung."""
    words = ("explain", "--profile", "titan_rtx", "--job", "sft")
    whole = client.ok(*words)
    said = without_style(in_terminal(client, *words, columns=columns))
    assert max(map(len, said.splitlines())) <= columns
    assert sorted(said.split()) == sorted(
        word for word in whole.split() if columns > 100 or word not in ("why", "here")
    )
    assert max(map(len, whole.splitlines())) > 80
