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

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import launcher_worker as worker
import quiet  # noqa: F401
import torch
from card import training_facts, write_card
from models import check_adapter, merge, save, take_weights
from rows import (
    IGNORED,
    Row,
    check_tools,
    fitted,
    for_model,
    form_of,
    lengths_of,
    train_and_held,
)
from scoring import Held, check_questions, forget_samples, scores
from settings import Sft, read_settings
from sharding import ShardedTrainer, loading
from shared import (
    StepSampler,
    adapter_of,
    encode_chat,
    expect_one_example_a_row,
    quieten,
    refused_by_trl,
    refusing,
)
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
)
from trl import SFTConfig

# ---- data


def show_first(tokenizer: PreTrainedTokenizerBase, row: Row) -> None:
    """Print a row as the model reads it; what it learns stands between ⟦ and ⟧."""
    text = ""
    for is_learnt, part in itertools.groupby(
        zip(row["input_ids"], row["labels"], strict=True), key=lambda pair: pair[1] != IGNORED
    ):  # decoded together: a character may take several tokens
        written = tokenizer.decode([token for token, _ in part])
        text += f"⟦{written}⟧" if is_learnt else written
    learnt = sum(label != IGNORED for label in row["labels"])
    print(f"first row: {len(row['input_ids'])} tokens, {learnt} of them learnt, between ⟦ and ⟧:")
    print(text, flush=True)


# ---- the job


CHAT = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "."}]
"""By a chat, TRL chooses and checks the template."""


class LogLastStep(TrainerCallback):
    """Log the last step too: its loss is the end of the curve."""

    def on_step_end(self, _args: object, _state: object, control: TrainerControl, **_more: object) -> None:
        """Log a step after which the training stops."""
        control.should_log |= control.should_training_stop


class Finetune(ShardedTrainer):
    """TRL's trainer, with the rows of each step drawn by a sampler, and an evaluation of its own."""

    sampler: StepSampler
    held: Held
    settings: Sft
    scored: tuple[int, dict[str, float]] = (-1, {})  # the step of the last evaluation, and its scores

    def _get_train_sampler(self, dataset: object = None) -> StepSampler:  # Trainer passes it
        return self.sampler

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return TRL's loss, without its metrics, for which the host waits for the card after each micro-batch.

        No mask either: padding stands on the right, where no token of an example attends to it. Without a mask,
        attention has its fastest kernel.
        """
        if self.aux_loss_enabled:  # a mixture of experts has another term, which reads the mask
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs.pop("attention_mask", None)
        outputs = model(**inputs, fused_lm_head=True)
        tokens = torch.as_tensor(num_items_in_batch).clamp(
            min=1
        )  # of the step, on all ranks, which DDP averages
        return -outputs.log_probs.sum() / tokens * self.accelerator.num_processes

    def evaluate(self, *_args: object, **_more: object) -> dict[str, float]:
        """Report the scores on the held-out rows, once a step."""
        chosen = self.settings
        if self.scored[0] == self.state.global_step:
            return self.scored[1]
        found = scores(self, self.held, chosen.generate, chosen.eval_limit, chosen.max_new_tokens)
        self.reshard()
        if self.is_world_process_zero():
            worker.log(self.state.global_step, **found)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        best = self.state.best_metric
        if chosen.patience and self.state.global_step and (best is None or found["eval_loss"] < best):
            self.control.should_save = True  # the checkpoint is kept, and shipped if it stays the best
        self.state.log_history.append({**found, "step": self.state.global_step})
        self.scored = self.state.global_step, found
        return found


def main() -> None:
    """Train, evaluate, save."""
    # set-up
    plan = worker.knobs()
    is_demo = plan.model in (None, "demo")
    settings = read_settings(Sft, plan.settings, plan, plan.data)
    quieten()
    datasets.disable_progress_bars()
    given = dict(plan.data)
    evaluates = bool(settings.eval_steps and ("eval" in given or settings.eval_share))
    with refused_by_trl():
        arguments = SFTConfig(
            **{
                "activation_checkpointing": False,  # TRL turns it on unless told; the plan decides
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
            # the evaluations that patience has counted
            restore_callback_states_from_checkpoint=bool(settings.patience),
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
    if settings.chat_template is not None:
        is_text = "{" in settings.chat_template
        named = None if is_text else AutoTokenizer.from_pretrained(settings.chat_template)
        tokenizer.chat_template = settings.chat_template if named is None else named.chat_template
    train_rows, eval_rows = (
        [for_model(row, tokenizer, settings.system_prompt, settings.answer_tags) for row in part]
        for part in (train_rows, eval_rows)
    )
    form = form_of(train_rows[0])
    if form == "messages" and not tokenizer.chat_template:
        raise SystemExit(
            "the rows are chats, and the model has no chat template: name one   settings.chat_template"
        )
    if settings.answer_tags and form != "prompt and completion":
        raise SystemExit(f"settings.answer_tags is for prompts with answers, and the rows are {form}")
    arguments.assistant_only_loss = form == "messages" and settings.loss_on != "all"

    # model
    checkpoint = worker.resume_from()
    if plan.sharding:
        model_arguments, loaded = (
            worker.model_arguments(**loading(plan.split.ranks)),
            checkpoint or model_path,
        )
    else:
        model_arguments, loaded = worker.model_arguments(), model_path
    model = AutoModelForCausalLM.from_pretrained(loaded, **model_arguments)
    adapter = adapter_of(
        settings.lora_rank, settings.lora_alpha, settings.lora_dropout, settings.lora_targets, settings.dora, settings.rslora
    )  # fmt: skip
    parts = train_rows, eval_rows
    of_trl = [[{"messages": CHAT}] * bool(part) if form == "messages" else part for part in parts]
    # a template without marks for the assistant's turns, targets that the model lacks, …
    with refused_by_trl():
        trainer = Finetune(
            model,
            arguments,
            train_dataset=datasets.Dataset.from_list(of_trl[0]),
            eval_dataset=datasets.Dataset.from_list(of_trl[1]) if eval_rows else None,
            processing_class=tokenizer,
            peft_config=adapter if plan.trains_adapter else None,
            callbacks=[
                LogLastStep,
                *([EarlyStoppingCallback(settings.patience)] if settings.patience and evaluates else []),
            ],
        )
    trainer.remove_callback(PrinterCallback)  # the worker shows the same lines
    if plan.trains_adapter:
        check_adapter(trainer.model, settings.lora_targets, merge=settings.merge)
    untold = check_tools([*train_rows, *eval_rows], tokenizer, trainer.chat_template)
    worker.prepare(trainer.model)
    is_main = trainer.is_world_process_zero()

    # rows of tokens, in the order of the run
    if form == "messages":
        learns_all = settings.loss_on == "all"
        trainer.train_dataset, trainer.eval_dataset = (
            datasets.Dataset.from_list(
                [encode_chat(tokenizer, row, trainer.chat_template, learns_all=learns_all) for row in part]
            )
            for part in parts
        )
    trainer.train_dataset, said = fitted(trainer.train_dataset, settings.max_length, settings.long_rows)
    if not len(trainer.train_dataset):
        raise SystemExit(f"no row is left to train on: {said}")
    lines += filter(None, [said, untold])
    trainer.held = Held([], [])
    if eval_rows:
        is_short = [length <= settings.max_length for length in lengths_of(trainer.eval_dataset)]
        held, said = fitted(trainer.eval_dataset, settings.max_length, settings.long_rows)
        if not len(held):
            raise SystemExit(f"no held-out row is left to judge by: {said}")
        lines += [f"held out: {said}"] if said else []
        trainer.held = Held([*itertools.compress(eval_rows, is_short)], list(held))
        check_questions(trainer.held.rows[: settings.eval_limit], settings.generate, settings.max_length)
    if is_main:
        print(*lines, sep="\n")
        show_first(tokenizer, trainer.train_dataset[0])
    trainer.sampler = StepSampler(lengths_of(trainer.train_dataset), plan.split.global_batch, plan.seed)
    trainer.add_callback(worker.trainer_callback(tokens=trainer.sampler.tokens_of))
    trainer.settings = settings
    if not settings.packing:
        expect_one_example_a_row()

    # training
    if is_main:
        forget_samples(Path(plan.artifacts), checkpoint)
    if eval_rows and checkpoint is None:
        trainer.evaluate()
    trainer.train(resume_from_checkpoint=checkpoint)
    if worker.stopping():
        return

    # evaluation and saving
    found = trainer.evaluate() if eval_rows else {}
    artifacts = Path(plan.artifacts)
    folder = artifacts / ("adapter" if plan.trains_adapter else "model")
    step = trainer.state.global_step
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, folder, model_path, is_main)
    if not is_main:
        return
    if settings.patience and found:
        best = worker.best()
        if best is not None and best.eval_loss < found["eval_loss"]:
            take_weights(Path(best.path), folder)
            found = next(
                line
                for line in trainer.state.log_history
                if line["step"] == best.step and "eval_loss" in line
            )
        found = {
            **{name: value for name, value in found.items() if name != "step"},
            "best_step": found.get("step", step),
        }
        worker.log(step, perplexity_best=found["perplexity"], best_step=found["best_step"])
    result = {"steps": step, "loss_first": losses[0], "loss_last": losses[-1], **found}
    counts = (len(train_rows), len(trainer.train_dataset)), (len(eval_rows), len(trainer.held.encoded))
    facts = training_facts(model_path, given, counts, step, found)
    library = "peft" if plan.trains_adapter else "transformers"
    write_card(folder, folder.name.title(), library, "sft", facts, asdict(settings))
    if settings.merge and plan.trains_adapter:
        merge(model_path, folder, artifacts / "merged", settings.merge_dtype)
        tokenizer.save_pretrained(artifacts / "merged")
        write_card(
            artifacts / "merged",
            "Model, with its adapter merged",
            "transformers",
            "sft",
            facts,
            asdict(settings),
        )
    (artifacts / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    worker.done(step)


if __name__ == "__main__":
    with refusing():
        main()
