"""Classify the names of numbers in a log.

A *measure* (loss, accuracy, reward, …) makes its line a metric line. A *companion* (learning rate, gradient
norm) is recorded only with a measure or a step: alone, it looks like a setting. Other names in free text are
ignored: times, memory, throughput, sizes.
"""

from __future__ import annotations

import functools
import re
from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


_MEASURES = _words(
    """
    loss losses ppl perplexity acc accuracy acc1 acc5 acc@1 acc@5 prec@1 prec@5 top1 top5 f1 bleu sacrebleu
    chrf rouge wer cer map map50 map50-95 miou iou dice auc auroc mcc aacc macc map_50 reward rewards kl entropy elbo nll
    xent bpb bpc mse mae rmse logloss psnr ssim fid precision recall score margins chosen rejected error err crossentropy
    mlogloss cross_entropy l1 l2 ap ap50 ap75 sdr snr eer pesq stoi rougel rouge1 rouge2 mrr ndcg r2
    spearman pearson win_rate
    """
)
# Words that also occur in lines without metrics: a name that is only such a word is a companion.
_AMBIGUOUS = _words(
    """
    score error err map recall precision l1 l2 chosen rejected kl entropy iou ap reward rewards
    """
)
_COMPANIONS = _words(
    """
    lr learning_rate grad_norm gnorm gradnorm norm grad gradient_norm lrm total_norm
    """
)
_QUALIFIERS = _words(
    """
    train training trn tr step epoch batch iter lm mean avg average total grad gradient learning running
    current reduced moving nll ce mlm ctc att kl kd distill student teacher policy value actor critic pg vf
    reward aux moe z mtp box cls dfl obj seg rpn bbox giou mask label cross g d gen disc generator
    discriminator smoothed avr per token word char sentence mini minibatch global local rate value
    """
)
_EVALUATIONS = _words(
    """
    eval evaluation val valid validation test testing dev heldout held-out cv
    """
)
_NEVER = _words(
    """
    coef coeff coefficient weight weights scale scaler threshold thresh target clip clipping clipped alpha
    beta type fn func function init initial decay warmup patience delta eps factor scheduler best lambda
    smoothing limit penalty final expected random baseline previous old minimum maximum lowest highest ideal
    min max num log time sec seconds ms size interval every steps count counts version ratio_clip skip
    skipped nan_count multiplier cap tolerance tol mode thr thre thrs thresholds ratio gamma margin temperature
    temp tau epsilon momentum freq frequency period index idx power exponent shape dim dims dtype device
    """
)
_TRAINING_LOSSES = _words(
    """
    loss train_loss training_loss train/loss train/total_loss lm_loss step_loss loss_step train_loss_step
    train_step_loss avr_loss avg_loss loss_avg average_loss mean_loss total_loss running_loss batch_loss
    loss/train loss_train loss/train/total train_loss/train/total reduced_train_loss actor/pg_loss actor/loss train/lm_loss loss/total
    smooth_loss train_step_train_loss loss/current loss/average language_model_loss current_loss
    train/ce_loss tr_loss global_avg_loss loss_metrics/global_avg_loss nll_loss_train avg_train_loss
    average_train_loss mean_train_loss metrics/loss metrics/train/loss metrics/train_loss train/metrics/loss
    """
)
_ACCUMULATION = ({"grad", "acc"}, {"gradient", "acc"})
_PARTS = re.compile(r"[/_\s.:@-]+")
_SUFFIXES = ("loss", "accuracy")
_MAX_NAMES = 1000


class Name(NamedTuple):
    """A name as it is recorded (lower case, words joined by `_`), with its meaning."""

    text: str
    is_measure: bool
    is_evaluation: bool


@functools.lru_cache(maxsize=_MAX_NAMES)
def meaning(words: str) -> Optional[Name]:
    """Return the meaning of a name in free text, None for a name to ignore."""
    parts = words.lower().replace("'s", "").split()
    if any(not _NEVER.isdisjoint(_PARTS.split(part)) for part in parts):
        return None
    kept: List[str] = []
    for part in reversed(parts):
        if not _is_known(part):
            break
        kept.insert(0, part)
    if not kept:
        return None
    text = "_".join(kept).rstrip("-.")
    pieces = [piece for piece in _PARTS.split(text) if piece]
    if set(pieces) in _ACCUMULATION:
        return None
    known = {*pieces, *kept, text, "_".join(pieces[-2:])}
    is_measure = not _MEASURES.isdisjoint(known) or any(piece.endswith(_SUFFIXES) for piece in pieces)
    if not is_measure and _COMPANIONS.isdisjoint(known):
        return None
    is_measure = is_measure and text not in _AMBIGUOUS
    dropped = parts[: len(parts) - len(kept)]
    place = next((place for place, part in enumerate(dropped) if part in _EVALUATIONS), None)
    if is_measure and place is not None:  # `test set loss` is an evaluation's as a whole
        return Name("_".join(parts[place:]).rstrip("-."), True, True)
    return Name(text, is_measure, not _EVALUATIONS.isdisjoint(pieces))


def column_meaning(words: str) -> Optional[Name]:
    """Return the meaning of a table column's name. The name may continue after the measure, as in `loss ner`."""
    name = meaning(words)
    if name is None and words.partition(" ")[0] in _MEASURES and _NEVER.isdisjoint(words.split()):
        return Name(words.replace(" ", "_"), True, False)
    return name


def _is_known(part: str) -> bool:
    """Whether a word belongs to the name of a metric. Other words before the name may be part of a sentence."""
    pieces = [part, *_PARTS.split(part)]
    return any(
        piece in _MEASURES
        or piece in _COMPANIONS
        or piece in _QUALIFIERS
        or piece in _EVALUATIONS
        or piece.endswith(_SUFFIXES)
        for piece in pieces
    )


def is_training_loss(name: str) -> bool:
    """Whether a recorded name is the loss that the training minimises."""
    return name.lower().replace(".", "/") in _TRAINING_LOSSES


def is_measure(key: str) -> bool:
    """Whether a key of a printed dict names a measure."""
    name = meaning(key)
    return name is not None and name.is_measure


@functools.lru_cache(maxsize=_MAX_NAMES)
def is_evaluation(key: str) -> bool:
    """Whether a recorded name is an evaluation's: eval_loss, val/acc, test_wer."""
    return not _EVALUATIONS.isdisjoint(re.split(r"[/_\s.-]", key.lower(), maxsplit=2)[:2])


def loss_of(values: Dict[str, float]) -> Optional[str]:
    """Return the name of the training loss among some values."""
    if "loss" in values:
        return "loss"
    return next(filter(is_training_loss, values), None)


def aside_name(name: str) -> str:
    """Return a name that marks its value as an evaluation's."""
    return name if is_evaluation(name) or name == "epoch" else "eval_" + name


def named(pairs: List[Tuple[Name, float]], epoch: Optional[float], *, is_aside: bool) -> Dict[str, float]:
    """Return the values of a line by name. `is_aside` marks them as an evaluation's."""
    values: Dict[str, float] = {} if epoch is None else {"epoch": epoch}
    for name, value in pairs:
        is_renamed = is_aside and name.is_measure and not name.text.startswith("train")
        values.setdefault(aside_name(name.text) if is_renamed else name.text, value)
    return values
