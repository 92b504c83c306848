"""Judge a model on held-out rows: the loss a token, perplexity, and, if asked, the answers that it generates."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import launcher_worker as worker
import torch
from accelerate.utils import gather_object
from rows import IGNORED, Question, Row, question_of
from transformers import PreTrainedTokenizerBase
from trl import SFTTrainer

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class Held(NamedTuple):
    """Held-out rows: those that are asked, as the model is, and all as tokens with labels."""

    rows: list[Row]
    encoded: list[Row]

    def stops(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Return the tokens that end an answer: the end mark, and the one with which most turns of these rows end.

        A template may end a turn by another mark than the tokenizer's, and write a newline after it.
        """
        marks = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        ends: Counter[int] = Counter()
        for row in self.encoded:
            learnt = [
                token
                for token, label in zip(row["input_ids"], row["labels"], strict=True)
                if label != IGNORED
            ]
            ends.update([token for token in learnt[-2:] if token in marks][-1:])
        return [
            tokenizer.eos_token_id,
            *(token for token, _ in ends.most_common(1) if token != tokenizer.eos_token_id),
        ]


def read_answer(text: str) -> str | None:
    """Return the text between the tags of an output, stripped; None without exactly one well-formed pair."""
    found = ANSWER.findall(text)
    well_formed = len(found) == 1 and text.count("<answer>") == text.count("</answer>") == 1
    return found[0].strip() if well_formed else None


def check_questions(rows: list[Row], how: str, max_length: int) -> None:
    """SystemExit if answers are to be judged, and no row can be."""
    if how == "no":
        return
    asked = [question for row in rows if (question := question_of(row)) is not None]
    if not asked:
        raise SystemExit(
            f"settings.generate: no held-out row of at most {max_length} tokens ends in an answer of text"
        )
    if how == "tags" and not any(read_answer(question.answer) for question in asked):
        raise SystemExit("settings.generate=tags: no held-out answer has <answer> tags: settings.generate=text compares whole answers")  # fmt: skip


def forget_samples(artifacts: Path, checkpoint: str | None) -> None:
    """Remove the samples of evaluations that come after a checkpoint, and come again; without one, all."""
    path, step = artifacts / "samples.jsonl", -1
    if checkpoint is not None:
        step = json.loads((Path(checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))[
            "global_step"
        ]
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if json.loads(line)["step"] <= step), encoding="utf-8")


def batches(trainer: SFTTrainer, values: list[Any]) -> Iterator[tuple[list[Any], bool]]:
    """Yield this rank's part of a list in batches, each with whether it counts.

    There are as many on every rank, for a divided model computes on all of them at once: where a rank has no more, it
    gets a value that does not count.
    """
    world, batch = trainer.args.world_size, trainer.args.per_device_train_batch_size
    part = values[trainer.args.process_index :: world]
    for start in range(0, -(-len(values) // world), batch):
        yield part[start : start + batch] or values[:1], start < len(part)
        worker.progress("evaluation", min(start + batch, len(part)), len(part))


@torch.no_grad()
def loss_of(trainer: SFTTrainer, encoded: list[Row]) -> float:
    """Return the loss a trained token over rows of tokens: the same for any batch and any number of ranks."""
    device = trainer.args.device
    total = torch.zeros(2, dtype=torch.float64, device="cpu")
    for rows, counts in batches(trainer, sorted(encoded, key=lambda row: len(row["input_ids"]))):
        inputs = trainer.data_collator(rows)
        inputs = {
            name: tensor.to(device) if hasattr(tensor, "to") else tensor for name, tensor in inputs.items()
        }
        with trainer.compute_loss_context_manager():
            outputs = trainer.model(**inputs, fused_lm_head=True)
        total += counts * torch.stack([-outputs.log_probs.sum(), outputs.label_mask.sum()]).double().cpu()
    loss, tokens = trainer.accelerator.reduce(total.float().to(device), "sum").tolist()
    return loss / tokens


@torch.no_grad()
def generated(trainer: Any, questions: list[Question], max_new_tokens: int) -> list[str]:
    """Answer questions greedily. One batch, padded on the left."""
    tokenizer: PreTrainedTokenizerBase = trainer.processing_class
    template = trainer.chat_template  # TRL's own, where it has replaced the tokenizer's
    stops = trainer.held.stops(tokenizer)
    encoded = [
        tokenizer(question.asked)["input_ids"]
        if isinstance(question.asked, str)
        else tokenizer.apply_chat_template(
            question.asked,
            question.tools,
            add_generation_prompt=True,
            chat_template=template,
            return_dict=True,
        )["input_ids"]
        for question in questions
    ]
    batch = tokenizer.pad({"input_ids": encoded}, padding_side="left", return_tensors="pt").to(
        trainer.args.device
    )
    output = trainer.accelerator.unwrap_model(trainer.model).generate(
        **batch,
        max_new_tokens=max_new_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=stops,
    )
    answers = output[:, batch["input_ids"].shape[1] :].tolist()
    left_out = {*stops, tokenizer.pad_token_id}
    return [tokenizer.decode([token for token in answer if token not in left_out]) for answer in answers]


def scores(trainer: SFTTrainer, held: Held, how: str, limit: int, max_new_tokens: int) -> dict[str, float]:
    """Return eval_loss and perplexity; and, if `how` judges answers, the share of right ones, over the first `limit` rows.

    The answers are added to the artifacts' `samples.jsonl`.
    """
    trainer.model.eval()
    loss = loss_of(trainer, held.encoded)
    found = {"eval_loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    asked = [question for row in held.rows[:limit] if (question := question_of(row)) is not None]
    if how != "no" and asked:
        found |= _judged(trainer, asked, how, max_new_tokens)
    trainer.model.train()
    return found


def _judged(trainer: SFTTrainer, asked: list[Question], how: str, max_new_tokens: int) -> dict[str, float]:
    samples: list[dict[str, object]] = []
    for questions, counts in batches(trainer, asked):
        texts = generated(trainer, questions, max_new_tokens)
        for question, text in zip(questions, texts, strict=True) if counts else ():
            answer = read_answer(text) if how == "tags" else text.strip()
            wanted = (read_answer(question.answer) if how == "tags" else None) or question.answer
            samples.append({
                "step": trainer.state.global_step, "prompt": question.asked, **({"tools": question.tools} if question.tools else {}), "expected": wanted.strip(), "output": text,
                "right": answer == wanted.strip(), "answered": answer is not None,
            })  # fmt: skip
    samples = gather_object(samples)
    if trainer.is_world_process_zero():
        folder = Path(worker.knobs().artifacts)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "samples.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(sample, ensure_ascii=False) + "\n" for sample in samples)
    share = {"accuracy": sum(bool(one["right"]) for one in samples) / len(samples)}
    if how == "tags":
        share["answer_rate"] = sum(bool(one["answered"]) for one in samples) / len(samples)
    return share
