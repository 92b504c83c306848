"""Each rule finds its own bad example, mends it into its good one, and has nothing against that."""

import re

import pytest
from testbed.profiles import profile

from launcher.agent.diagnosis.failures import BY_NAME
from launcher.check.fixing import mend
from launcher.check.inference.card_calls import Card
from launcher.check.many_files import Settings, check_files, findings_of
from launcher.check.rules.table import RULES

PRELUDE = """import os

import torch
import torch.distributed as dist
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, ViTForImageClassification
from trl import DataCollatorForCompletionOnlyLM

"""
BEFORE = {
    "LC105": "optimizer = torch.optim.AdamW(model.parameters())\n",
    "LC106": "def step():\n    optimizer.step()\n    torch.save(model, 'model.pt')\n\n\n",
    "LC109": "optimizer = torch.optim.AdamW(model.parameters())\nscaler = torch.amp.GradScaler()\n",
}
"""What an example needs around it to be a script."""


def checked(tmp_path, rule, text):
    """Write an example as a script; return the check of files, and its first reports."""
    card = re.search(r"--profile (\w+)", rule.bad)
    chosen = Settings(Card.of(profile(card[1]) if card else None), frozenset({rule.code}))
    (tmp_path / "gemma").mkdir(exist_ok=True)
    (tmp_path / "gemma" / "config.json").write_text('{"dtype": "bfloat16"}')
    script = tmp_path / "train.py"
    trains = (
        "\nTrainer(model=model, args=arguments).train()\n"
        if "arguments =" in text and "Trainer(" not in text
        else ""
    )
    script.write_text(PRELUDE + BEFORE.get(rule.code, "") + re.sub(r" +# --profile \w+", "", text) + trains)

    def check(paths, texts):
        return check_files(paths, chosen, texts, lambda _: None)

    return script, check, check([script], {})


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_bad_example_is_found_and_mended_into_the_good_one(tmp_path, rule):
    """To the byte, for a rule that mends."""
    script, check, reports = checked(tmp_path, rule, rule.bad)
    found = findings_of(reports)
    assert [one.code for one in found] == [rule.code]
    bad = script.read_text()
    mended = mend(reports, check).after
    good, _, _ = checked(tmp_path, rule, rule.good)
    if rule.is_mended:
        assert mended[script].decode() == good.read_text()
    else:
        assert not mended
        assert bad != good.read_text()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_good_example_is_clean(tmp_path, rule):
    """By its own rule."""
    _, _, reports = checked(tmp_path, rule, rule.good)
    assert not findings_of(reports)


def test_rules_name_classes_of_failure_that_exist():
    """And no two rules have one name."""
    assert {cause for rule in RULES.values() for cause in rule.causes} <= set(BY_NAME)
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
