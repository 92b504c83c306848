"""Fine-tune a language model on prompts and answers, with LoRA, QLoRA or in full, on any card.

    launch --host local                             # the demo: makes its own small model and data
    launch --host lab --profile titan_rtx --job sft
    python sft.py                                   # by hand, outside a run: the demo again, results in ./out
    torchrun --nproc-per-node 2 sft.py              # several cards; only rank 0 evaluates and saves

Data is JSONL with {"prompt": ..., "answer": ...} a line. The loss counts the answer alone, which is trained
as `<answer>...</answer>` and an end mark. Held-out prompts are answered greedily before and after the training:
`accuracy` is the share whose text between the tags is exactly right (numbers too are compared as text), and
`answer_rate` the share with one well-formed pair of tags.

What comes out, in the artifacts folder: `adapter/` (or `model/` for a full fine-tune) and `result.json`.
SIGTERM ends the current step, saves a checkpoint and exits with 0; the next start continues from there.

Not covered: several turns, packing, sharded models, preference data.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import launcher_worker as worker
import torch
from shared import (
    IGNORED,
    Row,
    StepSampler,
    add_adapter,
    collate,
    encode_answer,
    encode_prompt,
    expect_one_example_a_row,
    keep_short,
    pad,
    read_examples,
    read_settings,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

# ---- settings: the table [settings] of the job file


@dataclass(frozen=True)
class Settings:
    """What can be set, and what it is if nobody says."""

    learning_rate: float = 2e-4  # usual for LoRA on a model of billions; ten times less for a full fine-tune
    scheduler: str = "cosine"  # transformers' lr_scheduler_type
    warmup_steps: float = 0.03  # steps, or a share of all steps if below 1
    optim: str | None = None  # Trainer's name of an optimizer, where not the plan's AdamW
    epochs: float = 1.0  # passes over the data, where the job names no steps
    lora_rank: int = 16
    lora_alpha: int = 32  # twice the rank
    lora_dropout: float = 0.0
    max_length: int = 1024  # tokens; longer examples are left out
    logging_steps: int = 10
    eval_limit: int = 100  # held-out prompts to answer
    max_new_tokens: int = 64  # for one answer


DEMO_SETTINGS = {"learning_rate": 5e-3}  # a model this small wants a large rate


# ---- data


def encode_example(tokenizer: PreTrainedTokenizerBase, example: dict[str, str]) -> Row:
    """Give tokens and labels of an example, whose answer stands between tags."""
    return encode_answer(tokenizer, example["prompt"], f"<answer>{example['answer']}</answer>")


# ---- evaluation


def read_answer(text: str) -> str | None:
    """Give what stands between the tags of an output, stripped; None without one well-formed pair."""
    found = ANSWER.findall(text)
    well_formed = len(found) == 1 and text.count("<answer>") == text.count("</answer>") == 1
    return found[0].strip() if well_formed else None


@torch.inference_mode()
def answer_prompts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], max_new_tokens: int
) -> list[str]:
    """Generate greedily, all prompts as one batch padded on the left."""
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    tokens = pad(encoded, tokenizer.pad_token_id, side="left").to(model.device)
    mask = pad([[1] * len(row) for row in encoded], 0, side="left").to(model.device)
    output = model.generate(
        input_ids=tokens,
        attention_mask=mask,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return tokenizer.batch_decode(output[:, tokens.shape[1] :], skip_special_tokens=True)


@torch.inference_mode()
def mean_loss(model: PreTrainedModel, rows: list[Row], pad_id: int) -> tuple[float, int]:
    """Give the loss a counted token, and how many tokens were counted."""
    batch = {name: tensor.to(model.device) for name, tensor in collate(rows, pad_id).items()}
    counted = int((batch["labels"] != IGNORED).sum())
    return model(**batch).loss.item(), counted


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: list[dict[str, str]],
    batch: int,
    settings: Settings,
) -> dict[str, float]:
    """Give eval_loss, accuracy and answer_rate on held-out examples."""
    model.eval()
    loss_sum, counted, right, answered = 0.0, 0, 0, 0
    for start in range(0, len(examples), batch):
        part = examples[start : start + batch]
        rows = [encode_example(tokenizer, example) for example in part]
        loss, tokens = mean_loss(model, rows, tokenizer.pad_token_id)
        loss_sum, counted = loss_sum + loss * tokens, counted + tokens
        prompts = [example["prompt"] for example in part]
        outputs = answer_prompts(model, tokenizer, prompts, settings.max_new_tokens)
        answers = [read_answer(output) for output in outputs]
        answered += sum(answer is not None for answer in answers)
        right += sum(answer == example["answer"] for answer, example in zip(answers, part, strict=True))
        worker.progress("evaluation", start + len(part), len(examples))
    return {
        "eval_loss": loss_sum / counted,
        "accuracy": right / len(examples),
        "answer_rate": answered / len(examples),
    }


# ---- the job


class StepTrainer(Trainer):
    """A Trainer whose steps have the examples that a sampler draws."""

    def __init__(self, *args: Any, sampler: StepSampler, **kwargs: Any) -> None:
        """Take a Trainer's arguments, and the sampler."""
        super().__init__(*args, **kwargs)
        self._sampler = sampler

    def _get_train_sampler(self, dataset: object = None) -> StepSampler:
        return self._sampler


def main() -> None:
    """Train, evaluate, save."""
    # set-up
    plan = worker.knobs()
    is_demo = plan.model in (None, "demo")
    settings = read_settings(Settings, plan.settings, DEMO_SETTINGS if is_demo else {})
    arguments = TrainingArguments(
        **worker.training_arguments(
            learning_rate=settings.learning_rate,
            lr_scheduler_type=settings.scheduler,
            warmup_steps=settings.warmup_steps,
            **({} if settings.optim is None else {"optim": settings.optim}),
            num_train_epochs=settings.epochs,
            logging_steps=settings.logging_steps,
            logging_first_step=True,
            include_num_input_tokens_seen="no",  # the sampler knows; Trainer would ask the card after each micro-batch
            remove_unused_columns=False,
        )
    )
    set_seed(plan.seed)
    expect_one_example_a_row()

    # data and model; the demo is made by one rank while the others wait
    model_path, data = plan.model, dict(plan.data)
    if is_demo or "demo" in data.values():
        import demo

        with arguments.main_process_first(
            local=False
        ):  # where each rank sees its own card, all are the local main one
            parts = demo.ensure(plan.cache)
        model_path = parts.model if is_demo else model_path
        defaults = data or {"train": "demo", "eval": "demo"}
        data = {use: getattr(parts, use) if name == "demo" else name for use, name in defaults.items()}
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    encoded = [encode_example(tokenizer, example) for example in read_examples(data["train"])]
    train_rows = keep_short(encoded, settings.max_length)
    held_out = read_examples(data["eval"])[: settings.eval_limit] if "eval" in data else []
    model = AutoModelForCausalLM.from_pretrained(model_path, **worker.model_arguments())
    if plan.trains_adapter:
        model = add_adapter(model, settings.lora_rank, settings.lora_alpha, settings.lora_dropout)
    model = worker.prepare(model)

    # training
    sampler = StepSampler(train_rows, plan.split.global_batch, plan.seed)
    trainer = StepTrainer(
        model,
        arguments,
        sampler=sampler,
        train_dataset=train_rows,
        data_collator=lambda rows: collate(rows, tokenizer.pad_token_id),
        processing_class=tokenizer,
        callbacks=[worker.trainer_callback(tokens=sampler.tokens_of)],
    )
    trainer.remove_callback(PrinterCallback)  # the worker shows the same lines
    is_main = trainer.is_world_process_zero()
    checkpoint = worker.resume_from()
    if is_main and held_out and checkpoint is None:
        worker.log(0, **evaluate(model, tokenizer, held_out, plan.split.micro_batch, settings))
    trainer.train(resume_from_checkpoint=checkpoint)
    if worker.stopping() or not is_main:
        return

    # evaluation and saving
    artifacts = Path(plan.artifacts)
    folder = artifacts / ("adapter" if plan.trains_adapter else "model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    step = trainer.state.global_step
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    result = {"steps": step, "loss_first": losses[0], "loss_last": losses[-1]}
    if held_out:
        scores = evaluate(model, tokenizer, held_out, plan.split.micro_batch, settings)
        worker.log(step, **scores)
        result.update(scores)
    (artifacts / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    worker.done(step)


if __name__ == "__main__":
    main()
