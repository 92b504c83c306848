"""Fine-tune a language model on your own data, with TRL's SFTTrainer: LoRA, QLoRA or in full, on any card.

    launch --host local                             # the demo: makes its own small model and data
    launch --host lab --job sft --set model=Qwen/Qwen2.5-0.5B --set data.train=./chats.jsonl
    python sft.py                                   # by hand, outside a run: the demo again, results in ./out
    torchrun --nproc-per-node 2 sft.py              # several cards

The data may be chats, prompts with answers, or plain text, see rows.py. By default the loss counts the assistant's
turns of a chat, the answer after a prompt, and all of a text. Precision, batch, resume, checkpoints, guard and
metrics come from launcher's worker; tokens, masks, collation and loss from TRL.

What comes out, in the artifacts folder: `adapter/` (or `model/`), `merged/` if asked, `samples.jsonl` if answers are
generated, and `result.json`. SIGTERM ends the current step and saves; the next start continues from there.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import datasets
import launcher_worker as worker
from models import adapter_of, merge, own_name, save
from rows import IGNORED, Row, check_calls, fitted, for_model, form_of, lengths_of, train_and_held
from scoring import HOW, Held, scores
from shared import StepSampler, check_settings, read_settings
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
)
from trl import SFTConfig, SFTTrainer

# ---- settings: the table [settings] of the job file


@dataclass(frozen=True)
class Settings:
    """What can be set, and what it is if nobody says."""

    learning_rate: float = 2e-4  # usual for LoRA on a model of billions; ten times less for a full fine-tune
    scheduler: str = "cosine"  # transformers' lr_scheduler_type
    warmup_steps: float = 0.03  # steps, or a share of all steps if below 1
    optim: str | None = None  # Trainer's name of an optimizer, where not the plan's AdamW
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    neftune_noise: float = 0.0  # NEFTune's alpha; 5 is usual
    epochs: float = 1.0  # passes over the data, where the job names no steps
    lora_rank: int = 16
    lora_alpha: int = 32  # twice the rank
    lora_dropout: float = 0.0
    lora_targets: str = "all-linear"  # or names of modules, separated by commas
    dora: bool = False
    rslora: bool = False
    max_length: int = 1024  # tokens of a row
    long_rows: str = "drop"  # what becomes of longer rows: "drop", "cut" or "split"
    loss_on: str = "auto"  # "answers" or "all"; auto: answers, but for plain text
    packing: bool = False  # the rows of a micro-batch as one row without padding; no row sees another
    system_prompt: str | None = None  # for rows without one
    chat_template: str | None = None  # a file, or a model whose template is taken
    answer_tags: bool = False  # train answers between <answer> tags; the demo does
    eval_share: float = 0.05  # of the rows, held out where the job has no data.eval; 0 for none
    eval_steps: int = 0  # steps between evaluations; 0: before and after the training alone
    eval_limit: int = 100  # held-out rows
    generate: str = "no"  # how generated answers are judged: "text" or "tags"; the demo: "tags"
    max_new_tokens: int = 64  # for one answer
    patience: int = 0  # evaluations without a better eval_loss after which training ends; 0: never
    merge: bool = False  # write the base with the adapter in it too
    merge_dtype: str = "auto"  # of the merged weights; auto: the base's own
    logging_steps: int = 10


DEMO_SETTINGS = {
    "learning_rate": 5e-3,
    "answer_tags": True,
    "generate": "tags",
}  # a model this small wants a large rate
RULES = {
    "long_rows": (lambda value: value in ("drop", "cut", "split"), '"drop", "cut" or "split"'),
    "loss_on": (lambda value: value in ("auto", "answers", "all"), '"auto", "answers" or "all"'),
    "generate": (lambda value: value in HOW, '"no", "text" or "tags"'),
    "eval_share": (lambda value: 0 <= value < 1, "a share from 0 to below 1"),
    "max_length": (lambda value: value > 1, "above 1"),
    "eval_limit": (lambda value: value > 0, "above 0"),
}


# ---- data


def show_first(tokenizer: PreTrainedTokenizerBase, row: Row) -> None:
    """Print a row as the model reads it; what it learns stands between ⟦ and ⟧."""
    text, is_learnt = "", False
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        if (label != IGNORED) != is_learnt:
            is_learnt = not is_learnt
            text += "⟦" if is_learnt else "⟧"
        text += tokenizer.decode([token])
    learnt = sum(label != IGNORED for label in row["labels"])
    print(f"first row: {len(row['input_ids'])} tokens, {learnt} of them learnt, between ⟦ and ⟧:")
    print(text + "⟧" * is_learnt, flush=True)


# ---- the job


class Finetune(SFTTrainer):
    """TRL's trainer, with the rows of each step drawn by a sampler, and an evaluation of its own."""

    sampler: StepSampler
    held: Held
    settings: Settings
    scored: tuple[int, dict[str, float]] = (-1, {})  # the step of the last evaluation, and its scores

    def _get_train_sampler(self, dataset: object = None) -> StepSampler:  # Trainer passes it
        return self.sampler

    def evaluate(self, *_args: object, **_more: object) -> dict[str, float]:
        """Report the scores on the held-out rows, once a step."""
        chosen = self.settings
        if self.scored[0] == self.state.global_step:
            return self.scored[1]
        found = scores(self, self.held, chosen.generate, chosen.eval_limit, chosen.max_new_tokens)
        if self.is_world_process_zero():
            worker.log(self.state.global_step, **found)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        self.scored = self.state.global_step, found
        return found


def main() -> None:
    """Train, evaluate, save."""
    # set-up
    plan = worker.knobs()
    is_demo = plan.model in (None, "demo")
    settings = read_settings(Settings, plan.settings, DEMO_SETTINGS if is_demo else {})
    check_settings(settings, RULES)
    datasets.disable_progress_bars()
    given = dict(plan.data)
    evaluates = bool(settings.eval_steps and ("eval" in given or settings.eval_share))
    arguments = SFTConfig(
        **{
            "gradient_checkpointing": False,  # TRL turns it on unless told; the plan decides
            **worker.training_arguments(
                learning_rate=settings.learning_rate,
                lr_scheduler_type=settings.scheduler,
                warmup_steps=settings.warmup_steps,
                weight_decay=settings.weight_decay,
                max_grad_norm=settings.max_grad_norm,
                **({} if settings.optim is None else {"optim": settings.optim}),
                num_train_epochs=settings.epochs,
                logging_steps=settings.logging_steps,
                logging_first_step=True,
                include_num_input_tokens_seen="no",  # the sampler knows; Trainer would ask the card after each micro-batch
            ),
        },
        neftune_noise_alpha=settings.neftune_noise or None,
        max_length=None,  # `fitted` decides, and says what it leaves out
        padding_free=settings.packing,
        completion_only_loss=settings.loss_on != "all",
        eval_strategy="steps" if evaluates else "no",
        eval_steps=settings.eval_steps or None,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
    )
    # data: the demo is made by one rank while the others wait
    model_path = plan.model
    if is_demo or "demo" in given.values():
        import demo

        with arguments.main_process_first(
            local=False
        ):  # where each rank sees its own card, all are the local main one
            parts = demo.ensure(plan.cache)
        model_path = parts.model if is_demo else model_path
        given = {"train": "demo", **given}
        if given["train"] == "demo":
            given.setdefault("eval", "demo")
        given = {use: getattr(parts, use) if name == "demo" else name for use, name in given.items()}
    train_rows, eval_rows, lines = train_and_held(given, settings.eval_share, settings.eval_limit, plan.seed)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    train_rows, eval_rows = (
        [for_model(row, tokenizer, settings.system_prompt, settings.answer_tags) for row in part]
        for part in (train_rows, eval_rows)
    )
    form = form_of(train_rows[0])
    if form == "messages" and not tokenizer.chat_template and settings.chat_template is None:
        raise SystemExit(
            "the rows are chats, and the model has no chat template: name one   settings.chat_template"
        )
    arguments.assistant_only_loss = form == "messages" and settings.loss_on != "all"
    arguments.chat_template_path = settings.chat_template

    # model
    model = AutoModelForCausalLM.from_pretrained(model_path, **worker.model_arguments())
    adapter = adapter_of(
        settings.lora_rank, settings.lora_alpha, settings.lora_dropout, settings.lora_targets, settings.dora, settings.rslora
    )  # fmt: skip
    try:
        trainer = Finetune(
            model,
            arguments,
            train_dataset=datasets.Dataset.from_list(train_rows),
            eval_dataset=datasets.Dataset.from_list(eval_rows) if eval_rows else None,
            processing_class=tokenizer,
            peft_config=adapter if plan.trains_adapter else None,
            callbacks=[EarlyStoppingCallback(settings.patience)] if settings.patience and evaluates else [],
        )
    except (
        ValueError
    ) as error:  # a template without marks for the assistant's turns, targets that the model lacks, …
        raise SystemExit(f"TRL refuses this training: {error}") from None
    trainer.remove_callback(PrinterCallback)  # the worker shows the same lines
    check_calls([*train_rows, *eval_rows], tokenizer, trainer.chat_template)
    worker.prepare(trainer.model)
    is_main = trainer.is_world_process_zero()

    # rows of tokens, in the order of the run
    trainer.train_dataset, said = fitted(trainer.train_dataset, settings.max_length, settings.long_rows)
    if not len(trainer.train_dataset):
        raise SystemExit(f"no row is left to train on: {said}")
    if is_main:
        print(*lines, *filter(None, [said]), sep="\n")
        show_first(tokenizer, trainer.train_dataset[0])
    trainer.sampler = StepSampler(lengths_of(trainer.train_dataset), plan.split.global_batch, plan.seed)
    trainer.add_callback(worker.trainer_callback(tokens=trainer.sampler.tokens_of))
    held = list(fitted(trainer.eval_dataset, settings.max_length, "cut")[0]) if eval_rows else []
    eval_rows = eval_rows if held else []  # nothing of them can be learnt
    trainer.held = Held(eval_rows, held)
    trainer.settings = settings

    # training
    checkpoint = worker.resume_from()
    if eval_rows and checkpoint is None:
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=checkpoint)
    if worker.stopping():
        return

    # evaluation and saving
    found = trainer.evaluate() if eval_rows else {}
    if not is_main:
        return
    artifacts = Path(plan.artifacts)
    folder = artifacts / ("adapter" if plan.trains_adapter else "model")
    step = trainer.state.global_step
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    result = {"steps": step, "loss_first": losses[0], "loss_last": losses[-1], **found}
    about = {
        "run": plan.run,
        "data": own_name(given["train"]),
        "steps": step,
        "results": ", ".join(f"{name} {value:.4g}" for name, value in found.items()) or "not evaluated",
        "settings": asdict(settings),
    }
    save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, folder, model_path, about)
    if settings.merge and plan.trains_adapter:
        merge(model_path, folder, artifacts / "merged", settings.merge_dtype)
        tokenizer.save_pretrained(artifacts / "merged")
    (artifacts / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    worker.done(step)


if __name__ == "__main__":
    main()
