"""Distill a language model: a small student learns what a larger teacher would say, on any card.

    launch --host local --job distill               # the demo: makes its own teacher, student and data
    launch --host lab --profile titan_rtx --job distill --set teacher=org/large --set model=org/small
    python distill.py                               # by hand, outside a run: the demo again, results in ./out

A plain loop with Accelerate. The loss of a token is

    kl_weight * temperature² * KL(teacher || student) + (1 - kl_weight) * CE(label)

where both distributions of the KL are softened by the temperature, and its square keeps the gradient's size
(Hinton et al. 2015, arXiv:1503.02531). The data has the forms of rows.py: answers and the assistant's turns count,
and all of a text. Student and teacher need the same tokenizer.

The student's perplexity on held-out data is measured before the first step, every `eval_steps`, and after the
last. Each best one so far is saved, and the best student is what comes out.

The precision is the plan's, `launch --precision NAME`:

    auto          what the card does best; `launch explain` says why
    fp16          mixed: float32 weights, products in float16 under autocast, gradients scaled
    fp32          all in float32: always sound, and slow on a card with tensor cores
    on a CPU      `--profile cpu`: all in float32; `--rehearse` tries a card's plan there

The teacher is only asked: it is in evaluation mode, gets no gradients, and has a dtype of its own.

What comes out, in the artifacts folder: `model/` (or `adapter/` for a LoRA) and `result.json`.
SIGTERM ends the current step, saves a checkpoint and exits with 0; the next start continues from there. The
examples of a step depend on seed and step alone, so that a resumed training, or one on more cards, sees the same.

Not covered: teachers with another tokenizer, logits stored before, sharded models.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import launcher_worker as worker
import quiet  # noqa: F401
import torch
from accelerate import Accelerator
from card import own_name, training_facts, write_card
from peft import get_peft_model
from rows import check_tools, train_and_held
from settings import Distill, read_settings
from shared import (
    IGNORED,
    Row,
    adapter_of,
    collate,
    encode,
    expect_one_example_a_row,
    keep_short,
    length_of,
    order_of,
    quieten,
    refusing,
)
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    get_scheduler,
    set_seed,
)

FORMS = {"adamw_torch": None, "adamw_torch_fused": True}  # of AdamW by Trainer's names, and torch's `fused`

# ---- data


def counted(rows: list[Row]) -> int:
    """Give how many tokens carry loss. Nothing predicts the first one."""
    return sum(label != IGNORED for row in rows for label in row["labels"][1:])


def rows_of_step(rows: list[Row], step: int, batch: int, seed: int) -> list[Row]:
    """Give the examples of a step, by length. Epochs follow each other without a gap."""
    drawn: list[Row] = []
    order: tuple[int, ...] = ()
    for position in range((step - 1) * batch, step * batch):
        epoch, index = divmod(position, len(rows))
        if index == 0 or not drawn:
            order = order_of(len(rows), seed, epoch)
        drawn.append(rows[order[index]])
    return sorted(drawn, key=length_of)


# ---- the loss


def logits_of(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Give a model's logits for the tokens that carry loss: tokens x vocabulary."""
    logits = model(input_ids=batch["input_ids"], use_cache=False).logits
    return logits[:, :-1].flatten(0, 1).index_select(0, batch["predicted"])


def labels_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Give the tokens that carry loss."""
    return batch["labels"][:, 1:].flatten().index_select(0, batch["predicted"])


def distillation_loss(
    student: torch.Tensor, teacher: torch.Tensor, labels: torch.Tensor, settings: Distill
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Give the loss, KL and CE, each summed over the tokens; logits are tokens x vocabulary of any dtype.

    Vocabularies are often padded to different sizes; what one of them lacks is left out.
    """
    shared = min(student.shape[-1], teacher.shape[-1])
    student, teacher = student[:, :shared].float(), teacher[:, :shared].float()
    heat = settings.temperature
    wanted, given = (functional.log_softmax(logits / heat, dim=-1) for logits in (teacher, student))
    kl = functional.kl_div(given, wanted, reduction="sum", log_target=True) * heat**2
    ce = functional.cross_entropy(student, labels, reduction="sum")
    return settings.kl_weight * kl + (1 - settings.kl_weight) * ce, kl, ce


# ---- models


def load_teacher(path: str, dtype: str) -> PreTrainedModel:
    """Load the teacher, frozen, in evaluation mode and never in 4 bits; "base" is the dtype of the student's base."""
    own = {} if dtype == "base" else {"dtype": getattr(torch, dtype)}
    arguments = worker.model_arguments(quantization_config=None, **own)
    teacher = AutoModelForCausalLM.from_pretrained(path, **arguments)
    return teacher.eval().requires_grad_(False)


def check_tokenizers(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase) -> None:
    """Raise SystemExit unless a token means the same to both."""
    if student.get_vocab() != teacher.get_vocab():
        raise SystemExit(
            f"student and teacher have different tokenizers ({len(student)} and {len(teacher)} tokens): "
            "a teacher's logits mean nothing for other tokens. Take two models of one family"
        )


# ---- the training


def adamw_arguments(settings: Distill) -> dict[str, object]:
    """Give the keywords of AdamW."""
    own: dict[str, object] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if settings.optim is not None:
        own["fused"] = FORMS[settings.optim]
    return own


class Distillation:
    """Student, teacher and optimizer, and what is done with them: a step, an evaluation, a checkpoint."""

    def __init__(
        self,
        accelerator: Accelerator,
        settings: Distill,
        student: PreTrainedModel,
        teacher: PreTrainedModel,
        steps: int,
        pad_id: int,
    ) -> None:
        """Make the optimizer and its schedule; `student` is prepared by the worker already."""
        self.plan = worker.knobs()
        self.accelerator, self.settings, self.pad_id = accelerator, settings, pad_id
        trained = [value for value in student.parameters() if value.requires_grad]
        optimizer = worker.adamw(trained, **adamw_arguments(settings))
        warmup = settings.warmup_steps if settings.warmup_steps >= 1 else settings.warmup_steps * steps
        self.scheduler = get_scheduler(settings.scheduler, optimizer, int(warmup), steps)
        # from_pretrained gives it in evaluation mode: without dropout, and without checkpointing
        self.model, self.optimizer = accelerator.prepare(student.train(), optimizer)
        self.student, self.teacher = student, worker.compiled(teacher.to(accelerator.device))
        self.result: dict[str, float] = {}
        self.meter, self.speed = Meter(), worker.Speedometer(student, [teacher])

    def step(self, rows: list[Row]) -> None:
        """Train on the examples of one step."""
        accelerator, split = self.accelerator, self.plan.split
        tokens = counted(rows)
        # accelerate divides by the accumulation, and several ranks give the mean of their gradients.
        share = split.accumulation * accelerator.num_processes / tokens
        for batch in self.micro_batches(rows):
            with accelerator.accumulate(self.model):
                with torch.no_grad(), worker.autocast():
                    wanted = logits_of(self.teacher, batch)
                loss, kl, ce = distillation_loss(
                    logits_of(self.model, batch), wanted, labels_of(batch), self.settings
                )
                accelerator.backward(loss * share)
                if accelerator.sync_gradients:
                    most = self.settings.max_grad_norm or math.inf  # 0 clips nothing, as in Trainer
                    norm = accelerator.clip_grad_norm_(self.model.parameters(), most)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.meter.add(loss, kl, ce)
        self.meter.end_step(norm, tokens)
        self.speed.add(sum(map(length_of, rows)))
        if not accelerator.optimizer_step_was_skipped:
            self.scheduler.step()

    def micro_batches(self, rows: list[Row]) -> Iterator[dict[str, torch.Tensor]]:
        """Make this rank's share of some examples, on its device."""
        accelerator = self.accelerator
        own, size = rows[accelerator.process_index :: accelerator.num_processes], self.plan.split.micro_batch
        for start in range(0, len(own), size):
            batch = collate(own[start : start + size], self.pad_id)
            # Found here, not on the card, which would have to tell the host how many there are.
            batch["predicted"] = (batch["labels"][:, 1:] != IGNORED).flatten().nonzero().squeeze(1)
            yield {name: tensor.to(accelerator.device, non_blocking=True) for name, tensor in batch.items()}

    def log(self, step: int) -> None:
        """Report the means since the last line."""
        metrics = self.meter.read(self.accelerator)  # waits for the card, so that the speed is the card's
        metrics["learning_rate"] = self.scheduler.get_last_lr()[0]
        if self.accelerator.is_main_process:
            worker.log(step, **metrics, **self.speed.read())

    @torch.no_grad()
    def mean_loss(self, model: PreTrainedModel, rows: list[Row]) -> float:
        """Give the loss a token of a model; all ranks work on it, and all get it."""
        was_training = model.training
        model.eval()
        total = torch.zeros((), device=self.accelerator.device)
        for batch in self.micro_batches(sorted(rows, key=length_of)):
            with worker.autocast():
                logits = logits_of(model, batch)
            total += functional.cross_entropy(logits.float(), labels_of(batch), reduction="sum")
        model.train(was_training)
        return self.accelerator.reduce(total, "sum").item() / counted(rows)

    def evaluate(self, step: int, rows: list[Row]) -> bool:
        """Report the student's perplexity, and return whether it is the best so far."""
        loss = self.mean_loss(self.student, rows)
        if self.accelerator.is_main_process:
            worker.log(step, eval_loss=loss, perplexity=math.exp(loss))
        self.speed.restart()  # not the time that this took
        self.result.setdefault("perplexity_first", math.exp(loss))
        self.result["perplexity_last"] = math.exp(loss)
        is_best = math.exp(loss) < self.result.get("perplexity_best", math.inf)
        if is_best:
            self.result.update(perplexity_best=math.exp(loss), best_step=step)
        return is_best

    def write(self, folder: str) -> None:
        """Write a checkpoint: the student alone, and what else a resume needs."""
        trained = {name: value for name, value in self.student.named_parameters() if value.requires_grad}
        torch.save(trained, Path(folder) / "student.pt")
        scaler = self.accelerator.scaler
        state = {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": scaler.state_dict() if scaler is not None else {},
            "result": self.result,
        }
        torch.save(state, Path(folder) / "training.pt")

    def read(self, folder: str) -> None:
        """Go on from a checkpoint, which may be of an attempt at another precision."""
        self.read_student(folder)
        state = torch.load(Path(folder) / "training.pt", map_location="cpu")
        self.optimizer.load_state_dict(state["optimizer"])
        worker.restore_form(self.optimizer)
        self.scheduler.load_state_dict(state["scheduler"])
        if self.accelerator.scaler is not None and state["scaler"]:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.result = state["result"]

    def read_student(self, folder: str) -> None:
        """Give the student the weights of a checkpoint."""
        state = torch.load(Path(folder) / "student.pt", map_location="cpu")
        self.student.load_state_dict(state, strict=False)


class Meter:
    """Sums of losses since the last line, kept on the device: to read one makes the host wait for the card."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._reset()

    def add(self, *losses: torch.Tensor) -> None:
        """Add a micro-batch: its loss, KL and CE, each summed over its tokens."""
        sums = torch.stack([loss.detach() for loss in losses])
        self._sums = sums if self._sums is None else self._sums + sums

    def end_step(self, norm: torch.Tensor, tokens: int) -> None:
        """End a step: its gradient norm, and the tokens of all ranks that carry loss."""
        self._norm = norm
        self._tokens += tokens

    def read(self, accelerator: Accelerator) -> dict[str, float]:
        """Give the means a token since the last line, and the last gradient norm."""
        loss, kl, ce = (accelerator.reduce(self._sums, "sum") / self._tokens).tolist()
        metrics = {"loss": loss, "kl": kl, "ce": ce, "grad_norm": float(self._norm)}
        self._reset()
        return metrics

    def _reset(self) -> None:
        self._sums: torch.Tensor | None = None
        self._norm: torch.Tensor | None = None
        self._tokens = 0


# ---- the job


def main() -> None:
    """Distill, evaluate, save."""
    # set-up
    plan = worker.knobs()
    is_demo = plan.model in (None, "demo")
    trains_adapter = plan.trains_adapter and plan.run is not None  # by hand a new student is trained whole
    settings = read_settings(Distill, plan.settings, plan, plan.data)
    quieten()
    accelerator = worker.accelerator()
    is_main = accelerator.is_main_process
    set_seed(plan.seed)
    expect_one_example_a_row()

    # data and models; the demo is made by one rank while the others wait
    student_path, teacher_path, data = plan.model, plan.teacher, dict(plan.data)
    if is_demo or teacher_path in (None, "demo") or "demo" in data.values():
        import demo

        with accelerator.main_process_first():
            parts = demo.ensure(plan.cache)
        student_path = parts.student if is_demo else student_path
        teacher_path = parts.model if teacher_path in (None, "demo") else teacher_path
        data = {"train": "demo", **data}
        if data["train"] == "demo":
            data.setdefault("eval", "demo")
        data = {use: getattr(parts, use) if name == "demo" else name for use, name in data.items()}
    tokenizer = AutoTokenizer.from_pretrained(student_path)
    check_tokenizers(tokenizer, AutoTokenizer.from_pretrained(teacher_path))
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if "train" not in data:
        raise SystemExit("[data] has no 'train': a distillation needs examples")
    train_rows, held_out, lines = train_and_held(data, settings.eval_share, settings.eval_limit, plan.seed)
    if not held_out:
        raise SystemExit(
            "one row is not enough: some are held out to judge the student   data.eval=./held.jsonl"
        )
    if not tokenizer.chat_template and "messages" in train_rows[0]:
        raise SystemExit("the rows are chats, and the model has no chat template")
    untold = check_tools([*train_rows, *held_out], tokenizer)
    if is_main:
        print(*lines, *filter(None, [untold]), sep="\n")
    read = len(train_rows), len(held_out)
    train_rows, held_out = (
        keep_short([encode(tokenizer, row) for row in part], settings.max_length)
        for part in (train_rows, held_out)
    )
    student = AutoModelForCausalLM.from_pretrained(student_path, **worker.model_arguments())
    if trains_adapter:
        student = get_peft_model(
            student, adapter_of(settings.lora_rank, settings.lora_alpha, settings.lora_dropout)
        )
    student = worker.prepare(student)
    teacher = load_teacher(teacher_path, settings.teacher_dtype)
    batch = plan.split.global_batch
    steps = plan.steps or math.ceil(settings.epochs * len(train_rows) / batch)
    training = Distillation(accelerator, settings, student, teacher, steps, tokenizer.pad_token_id)

    # training
    start, checkpoint = 0, worker.resume_from()
    if checkpoint is None:
        training.result["perplexity_teacher"] = math.exp(training.mean_loss(teacher, held_out))
        training.evaluate(0, held_out)
    else:
        training.read(checkpoint)
        start = training.result["step"]
    if is_main:
        worker.begin(start, steps)
    for step in range(start + 1, steps + 1):
        # Dropout: a resumed training draws the same, and each rank its own.
        torch.manual_seed(
            plan.seed * 1_000_003 + step * accelerator.num_processes + accelerator.process_index
        )
        training.step(rows_of_step(train_rows, step, batch, plan.seed))
        if step % settings.logging_steps == 0 or step in (1, steps):
            training.log(step)
        is_best = (step % settings.eval_steps == 0 or step == steps) and training.evaluate(step, held_out)
        training.result["step"] = step
        if worker.due(step) or is_best:
            worker.save(step, training.write)
        if worker.stopping():
            return
    if not is_main:
        return

    # the best student
    best, result = worker.best(), training.result
    if best is not None:
        training.read_student(best.path)
        result.update(perplexity_best=math.exp(best.eval_loss), best_step=best.step)
    artifacts = Path(plan.artifacts)
    folder = artifacts / ("adapter" if trains_adapter else "model")
    student.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (artifacts / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    facts = training_facts(
        student_path, data, ((read[0], len(train_rows)), (read[1], len(held_out))), steps, result
    )
    facts["teacher"] = own_name(teacher_path)
    library = "peft" if trains_adapter else "transformers"
    write_card(folder, "Student", library, "distill", facts, asdict(settings))
    figures = ("perplexity_best", "best_step") if best is not None else ()
    worker.log(steps, **{name: result[name] for name in (*figures, "perplexity_teacher")})
    worker.done(steps)


if __name__ == "__main__":
    with refusing():
        main()
