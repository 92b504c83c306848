"""What the programs in this folder share: refusals, examples as tokens, batches, the adapter."""

import functools
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jinja2 import TemplateError
from peft import LoraConfig
from rows import IGNORED, for_model, question_of
from transformers import PreTrainedTokenizerBase, masking_utils
from transformers.utils import logging

Row = dict[str, list[int]]  # an example's `input_ids` and `labels`
# ---- the job


def quieten() -> None:
    """Leave out what says nothing about the training: bars of loading, and libraries' deprecations of one another."""
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


@contextmanager
def refusing() -> Iterator[None]:
    """Mark a SystemExit with a text as the job's own refusal: launcher does not take it for a crash."""
    try:
        yield
    except TemplateError as error:
        raise SystemExit(f"the job refuses: the chat template refuses a row: {error}") from None
    except SystemExit as end:
        if isinstance(end.code, str):
            raise SystemExit(f"the job refuses: {end.code}") from None
        raise


@contextmanager
def refused_by_trl() -> Iterator[None]:
    """Make a ValueError of the libraries, which check what they are given, a refusal."""
    try:
        yield
    except ValueError as error:
        mend = "\n  learn whole chats   settings.loss_on=all" if "{% generation" in str(error) else ""
        raise SystemExit(f"TRL refuses this training: {error}{mend}") from None


def adapter_of(
    rank: int,
    alpha: int,
    dropout: float,
    targets: str = "all-linear",
    dora: bool = False,
    rslora: bool = False,
) -> LoraConfig:
    """Return the adapter: `targets` is "all-linear", all linear layers but the head, or names of modules separated by commas."""
    names = [name.strip() for name in targets.split(",")]
    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=names[0] if names == ["all-linear"] else names,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        use_dora=dora,
        use_rslora=rslora,
    )


# ---- data


def encode(tokenizer: PreTrainedTokenizerBase, row: dict[str, Any]) -> Row:
    """Give tokens and labels of a row of rows.py: the answer counts, the assistant's turns, or all of a text."""
    if "text" in row:
        tokens = [*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]
        return {"input_ids": tokens, "labels": tokens}
    if "messages" in row:
        return encode_chat(tokenizer, row)
    question = question_of(for_model(row, tokenizer, None, tagged=False))
    answer = question.answer.strip()
    if isinstance(question.asked, str):
        before = tokenizer(question.asked)["input_ids"]
        whole = [*before, *tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    else:
        chat = [*question.asked, {"role": "assistant", "content": answer}]
        before = tokenizer.apply_chat_template(question.asked, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        whole = tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"]
    pairs = enumerate(zip(before, whole, strict=False))
    asked = next((place for place, (one, other) in pairs if one != other), min(len(before), len(whole)))
    return {"input_ids": whole, "labels": [IGNORED] * asked + whole[asked:]}


def encode_chat(
    tokenizer: PreTrainedTokenizerBase,
    row: dict[str, Any],
    template: str | None = None,
    *,
    learns_all: bool = False,
) -> Row:
    """Give tokens and labels of a chat by the tokenizer's template, or another: the assistant's turns count, or all.

    Chats are not left to TRL: its data set, in Arrow, gives all calls of tools one set of arguments.
    """
    try:
        chat = tokenizer.apply_chat_template(
            row["messages"],
            row.get("tools"),
            chat_template=template,
            return_dict=True,
            return_assistant_tokens_mask=not learns_all,
        )
    except TemplateError as error:
        begins = next((turn["content"] for turn in row["messages"] if turn["content"]), "")
        raise SystemExit(f"the chat template refuses the row that begins {begins[:60]!r}: {error}") from None
    if not learns_all and 1 not in chat["assistant_masks"]:
        raise SystemExit("the chat template does not mark the assistant's turns by {% generation %}")
    learnt = chat.get("assistant_masks", [1] * len(chat["input_ids"]))
    labels = [token if mask else IGNORED for token, mask in zip(chat["input_ids"], learnt, strict=True)]
    return {"input_ids": chat["input_ids"], "labels": labels}


def keep_short(rows: list[Row], max_length: int) -> list[Row]:
    """Give the rows that fit: a cut example would teach to stop in the middle."""
    fitting = [row for row in rows if len(row["input_ids"]) <= max_length]
    if len(fitting) < len(rows):
        print(f"left out {len(rows) - len(fitting)} of {len(rows)} examples: longer than {max_length} tokens")
    if not fitting:
        raise SystemExit(f"all {len(rows)} examples are longer than max_length = {max_length} tokens")
    return fitting


def length_of(row: Row) -> int:
    """Give the tokens of an example."""
    return len(row["input_ids"])


@functools.lru_cache(maxsize=2)
def order_of(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Draw the order of an epoch: the same on every rank and machine, and after a resume."""
    order = list(range(count))
    random.Random(f"{seed} {epoch}").shuffle(order)  # noqa: S311  # no secret
    return tuple(order)


class StepSampler(torch.utils.data.Sampler[int]):
    """The order of an epoch for a Trainer, in which the examples of each step lie by length.

    The examples of a step stay what they were drawn, and a Trainer weighs each token of a step alike, so that only the
    padding changes: with lengths as in chats and a micro-batch of 8, to a half. The first examples of an epoch complete
    its last step, so that this one too is the same on any number of ranks.
    """

    def __init__(self, lengths: list[int], batch: int, seed: int) -> None:
        """Take the number of tokens of each row; `batch` is the number of examples a step, of all ranks."""
        self.lengths, self.batch, self.seed, self.epoch = lengths, batch, seed, 0

    def __len__(self) -> int:
        """Give how many examples the steps of an epoch have."""
        return -(-len(self.lengths) // self.batch) * self.batch

    def __iter__(self) -> Iterator[int]:
        """Give the places of an epoch's examples among the rows."""
        for index in range(len(self) // self.batch):
            yield from self.places_of(self.epoch, index)

    def places_of(self, epoch: int, index: int) -> list[int]:
        """Give the places of the examples of an epoch's step, the first of which has index 0."""
        order = order_of(len(self.lengths), self.seed, epoch)
        step = [order[place % len(order)] for place in range(index * self.batch, (index + 1) * self.batch)]
        return sorted(step, key=self.lengths.__getitem__)

    def tokens_of(self, step: int) -> int:
        """Give how many tokens the examples of a training's step have; the first step is 1."""
        epoch, index = divmod(step - 1, len(self) // self.batch)
        return sum(self.lengths[place] for place in self.places_of(epoch, index))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; accelerate calls it."""
        self.epoch = epoch


def pad(rows: list[list[int]], value: int, side: str = "right") -> torch.Tensor:
    """Make one tensor of rows of different lengths."""
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows], batch_first=True, padding_value=value, padding_side=side
    )


def collate(rows: list[Row], pad_id: int) -> dict[str, torch.Tensor]:
    """Make a batch; padding is not counted in the loss.

    It stands on the right, where no token of an example attends to it. So there is no mask: without one, attention has
    its fastest kernel, and transformers need not look into a mask, for which the host would wait for the card.
    """
    return {
        "input_ids": pad([row["input_ids"] for row in rows], pad_id),
        "labels": pad([row["labels"] for row in rows], IGNORED),
    }


def expect_one_example_a_row() -> None:
    """Spare transformers the question whether rows hold several examples, for which the host would wait for the card."""
    masking_utils.find_packed_sequence_indices = lambda _positions: None
