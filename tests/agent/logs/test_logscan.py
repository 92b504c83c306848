"""Metrics out of logs: what counts as a metric line, which step it has, and that no bytes end the agent."""

import itertools
import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.agent.logs.log_scanner import LogScanner


def scan(*pieces):
    scanner = LogScanner()
    return [one for piece in pieces for one in scanner.feed(piece)] + scanner.finish()


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"step 1 ppl 9.5\nstep 2 ppl nan\n", False),
        (b"step 1 ppl 9.5\nstep 2 ppl inf\n", True),
        (b"step 1 loss 2.5\nstep 2 ppl nan\n", True),
        (b"step 1 ppl 9.5\nvalid: step 1 ppl nan\n", True),
        (b"[0] step 1 loss: 2.5\n[0] step 2 loss: 2.4\n[1] step 1 loss: nan\n", False),
    ],
    ids=["NaN", "infinite", "beside a loss", "of an evaluation", "epochs as labels"],
)
def test_the_last_loss_is_also_seen_in_a_perplexity_and_behind_a_label(log, expected):
    """A NaN perplexity in a log without a loss, and a NaN behind a number that may be a rank or an epoch."""
    scanner = LogScanner()
    scanner.feed(log)
    scanner.finish()
    assert scanner.last_loss.is_finite == expected


def trainer(step, length, printed):
    """Return what transformers' Trainer writes for a dict: the bar is cleared, the dict printed, the bar drawn again."""
    return b"\r            \r%s\n\r 33%%|###      | %d/%d [00:10<00:20,  9.9it/s]" % (printed, step, length)


@pytest.mark.parametrize(
    "line",
    [
        b"{'loss': '1.5', 'grad_norm': '0.25', 'learning_rate': '0.001', 'epoch': '0.1'}\n",
        b"{'loss': 1.5, 'grad_norm': 0.25, 'learning_rate': 0.001, 'epoch': 0.1}\n",
        b'{"loss": 1.5, "grad_norm": 0.25, "learning_rate": 1e-3, "epoch": 0.1}  \n',
        b"[rank0] {'loss': 1.5, 'grad_norm': 0.25, 'learning_rate': 0.001, 'epoch': 0.1}\r\n",
    ],
    ids=["quoted", "bare", "json", "behind a word"],
)
def test_hugging_faces_lines_are_read_quoted_and_bare(line):
    """Newer transformers quote every number, older ones do not; the values are the same."""
    assert scan(line) == [(None, {"loss": 1.5, "grad_norm": 0.25, "learning_rate": 0.001, "epoch": 0.1})]


@pytest.mark.parametrize("norm", [b"'nan'", b"nan", b"'inf'", b"inf", b"-inf"])
@pytest.mark.parametrize("loss", [b"'0'", b"'0.0'", b"0.0", b"0"])
def test_a_loss_of_zero_beside_a_non_finite_norm_is_nan(loss, norm):
    """transformers prints a NaN loss as 0; the gradient norm gives it away."""
    ((_, values),) = scan(b"{'loss': %s, 'grad_norm': %s}\n" % (loss, norm))
    assert math.isnan(values["loss"])
    assert not math.isfinite(values["grad_norm"])


def test_a_true_zero_stays_zero():
    """Beside a finite norm, or none, a loss of zero is what was measured."""
    assert scan(b"{'loss': '0', 'grad_norm': '0.5'}\n{'eval_loss': '0'}\n") == [
        (None, {"loss": 0.0, "grad_norm": 0.5}),
        (None, {"eval_loss": 0.0}),
    ]


def test_the_step_of_the_trainer_is_that_of_the_bar_drawn_after_its_line():
    """The bar before the line may lag behind; after tqdm's own `write` it is exact."""
    log = (
        b"\r 33%|###      | 99/300 [00:10<00:20, 9.9it/s]"
        + trainer(101, 300, b"{'loss': 2.0, 'epoch': 1.0}")
        + trainer(200, 300, b"{'loss': 1.0, 'epoch': 2.0}")
    )
    assert scan(log) == [(101, {"loss": 2.0, "epoch": 1.0}), (200, {"loss": 1.0, "epoch": 2.0})]


def test_a_dict_that_a_script_prints_beside_a_bar_has_no_step():
    """Whether the bar has counted the step by then is not known."""
    log = b"\r 33%|###      | 100/300 [00:10<00:20, 9.9it/s]{'loss': 2.0, 'epoch': 1.0}\n\r 34%|###   | 101/300 [00:10<00:20]"
    assert scan(log) == [(None, {"loss": 2.0, "epoch": 1.0})]


def test_another_bar_after_the_line_is_not_the_trainers():
    """A bar with a name, a nested bar, and a bar of another length are somebody else's."""
    first = trainer(10, 40, b"{'loss': 2.0, 'epoch': 0.1}")
    other = (
        b"\r      \r{'eval_loss': 1.0, 'epoch': 0.1}\n\rEval: 50%|##| 20/40 [00:01<00:01]"
        b"\r 50%|##| 20/40 [00:01<00:01]\x1b[A\r100%|####| 8/8 [00:01<00:00]\r 25%|##| 10/40 [00:01<00:01]\n"
    )
    assert [step for step, _ in scan(first + other)] == [10, 10]
    assert [step for step, _ in scan(first + other[:-40] + b"\nwords\n")] == [10, None]


@pytest.mark.parametrize(
    "line",
    [
        b"{'loss': }",
        b"{'loss': __import__('os').getcwd()}",
        b"{'loss': 1.0",
        b"{'loss'}",
        b"{'config': 1, 'rate': 2}",
        b"{'loss': {'deep': 1}}",
        b"{'loss': True}",
        b"{'loss': 'high'}",
        b"{'loss': 1, []: 2}",
        b"{'loss': 1, {}: 2}",
        b"{'loss': 1" + b"0" * 400 + b"}",
        b"{'loss': 1" + b"0" * 400 + b" + 2j}",
        b"{'loss': 1" + b"0" * 5000 + b"}",
        b"{'loss': '\\x'}",
        b"{'loss': '\0'}",
        b"{'loss': " + b"[" * 9000 + b"}",
        b"{'loss': " + b"-" * 9000 + b"1}",
    ],
    ids=lambda line: line[:24].decode(),
)
def test_lines_that_look_like_metrics_and_are_none_are_passed_over(line):
    """An ordinary line of the log has no loss, and the next metric is found."""
    found = scan(line + b"\n{'loss': 0.5}\n")
    assert found[-1][1] == {"loss": 0.5}
    assert all("loss" not in values for _, values in found[:-1])


@pytest.mark.parametrize(
    "bar", ["1" * 5000 + "/3 [00:01", "1/" + "3" * 5000 + " [00:01", "²/³ [00:01", "/ [00:01"]
)
def test_a_bar_that_no_tqdm_wrote_ends_nothing(bar):
    """Digits without end are no step."""
    assert scan(f"{bar}\n".encode() + b"{'loss': 0.5}\n")[0][1] == {"loss": 0.5}


def test_a_trainer_inside_of_a_scripts_own_bar_has_no_step():
    """Both bars are drawn after the line, and the outer one counts something else."""
    log = b"\r  0%|   | 0/5 [00:00<?, ?it/s]"
    for fold in range(2):
        for step in (10, 20):
            log += b"\r       \r{'loss': 2.0, 'epoch': 0.5}\n\r 10%%|#  | %d/5 [00:01<00:09]" % fold
            log += b"\n\r 50%%|##  | %d/40 [00:01<00:09]\x1b[A" % step
    assert [step for step, _ in scan(log)] == [None] * 4


def test_a_second_training_of_the_same_length_has_no_steps():
    """Its steps would hide those of the first."""
    first = b"".join(trainer(step, 40, b"{'loss': 2.0, 'epoch': 0.5}") for step in (20, 40))
    assert [step for step, _ in scan(first + first)] == [20, 40, None, None]


METRIC_LOG = (
    trainer(10, 100, b"{'loss': '2.0', 'grad_norm': '1', 'epoch': 1}")
    + b"\nwords {\n\xff\xfe{'loss': nan, 'step': 11}\n{'loss': '0', 'step': 12, 'grad_norm': 'nan'}\r\n"
    + trainer(20, 100, b"{'eval_loss': 1, 'epoch': 2}")
    + b"\nstep 21 loss 2.5\nrest"
)


def comparable(found):
    return repr(found)  # NaN equals nothing, its name itself


def cut(log, cuts):
    edges = [0, *sorted(min(one, len(log)) for one in cuts), len(log)]
    return [log[a:b] for a, b in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, len(METRIC_LOG)), max_size=12))
def test_where_the_pipe_cuts_the_log_does_not_matter(cuts):
    """Any pieces of the same bytes give the same metrics at the same steps."""
    whole = scan(METRIC_LOG)
    assert [step for step, _ in whole] == [10, None, None, 20, None]  # `loss` has the Trainer's steps by then
    assert comparable(scan(*cut(METRIC_LOG, cuts))) == comparable(whole)


@given(st.integers(15_000, 30_000), st.integers(0, 30_020))
@example(25_000, 25_013)
@example(25_000, 12_000)
def test_where_the_pipe_cuts_a_long_line_does_not_matter(width, edge):
    """A line longer than we keep is judged alike however it arrives."""
    log = b"x" * width + b"{'loss': 1.0}\n{'loss': 0.5}\n"
    assert scan(log[:edge], log[edge:]) == scan(log)


@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"{'loss': ", b"}\n", b"'grad_norm'", b": 1", b"9/9 [00:01", b"\r"])
    )
)
def test_no_bytes_whatever_end_the_scanner(pieces):
    """A log may hold anything; the scanner takes it, and finds the next metric."""
    assert scan(*pieces, b"\n{'loss': 0.5}\n")[-1][1] == {"loss": 0.5}


@pytest.mark.parametrize("piece", [1 << 20, 4096], ids=["in one piece", "in small ones"])
def test_a_megabyte_without_a_newline_is_not_kept(piece):
    """What is held back of an unfinished line is bounded, and the line after it is read."""
    scanner = LogScanner()
    for begin in range(0, 1 << 20, piece):
        assert scanner.feed(b"a" * min(piece, (1 << 20) - begin)) == []
    assert len(scanner._segments._parts) < 100_000
    assert scanner.feed(b"\n{'loss': 0.5}\n") == [(None, {"loss": 0.5})]


HOSTILE = (
    "1|{|}|{'| }|1/|loss |loss: |a |a/|a.|step 1 |epoch 1 [|epoch 1/|%\x7f|1it [|loss 1it [|loss: 1it [00:01, |\"\\\\\"|'a': 1,|[1]:|[INFO]|  loss|loss\t|1,111|1.1"
    "|tensor(|nan |loss=1, |- loss: 1 |\x1b[|test |batch 1/1 |2026-11-20 10:00:00 |━|10/10 ━━━━━━━━━|a'a |a(a=1|np.float64("
)


@pytest.mark.parametrize(
    "char", [part.replace("\x7f", "|").encode() for part in HOSTILE.split("|")], ids=repr
)
def test_a_long_line_costs_no_more_than_its_length(char):
    """No pattern is tried from every place to every end: twice the line is not four times the work."""

    def cost(size):
        began = time.process_time()
        scan(b"{'loss': 1, " * (char == b"'a': 1,") + b"loss 1 " + char * (size // len(char)) + b"\n")
        return time.process_time() - began

    short, long = (min(cost(size) for _ in range(3)) for size in (4_500, 18_000))
    assert long < 10 * short or long < 0.1


def diverges(*losses):
    scanner = LogScanner()
    lines = [
        f"{{'step': {step}, 'loss': {loss}, 'grad_norm': nan}}\n" for step, loss in enumerate(losses, start=1)
    ]
    scanner.feed("".join(lines).encode())
    return scanner.divergence


def test_two_losses_running_that_are_not_finite_are_a_divergence_from_the_step_behind_the_last_good_one():
    """The first of the two lines is the proof."""
    assert diverges("2.1", "2.0", "nan", "0.0") == ("{'step': 3, 'loss': nan, 'grad_norm': nan}", 3)
    assert diverges("inf", "nan").since == 1
    assert diverges("2.1", "nan", "nan", "2.0").since == 2


def test_a_single_lost_loss_and_a_lost_norm_are_none():
    """A scaler's first steps overflow, and are skipped."""
    assert diverges("2.1", "2.0", "1.9") is None
    assert diverges("nan", "2.0", "nan", "2.0", "nan") is None


def test_an_evaluation_or_a_summary_in_between_neither_makes_nor_hides_a_divergence():
    """Only the training's own loss is judged."""
    scanner = LogScanner()
    scanner.feed(b"{'loss': nan, 'grad_norm': nan}\n{'eval_loss': 2.0, 'epoch': 1.0}\n")
    assert scanner.divergence is None
    scanner.feed(b"{'loss': nan, 'grad_norm': nan}\n")
    assert scanner.divergence is not None


NAN = math.nan
LINES = {
    "a NaN among values without marks": (
        b"step 5 loss 2.5 lr 0.1\nstep 6 loss nan lr 0.1\n",
        [(5, {"loss": 2.5, "lr": 0.1}), (6, {"loss": NAN, "lr": 0.1})],
    ),
    "a NaN behind an epoch": (b"epoch 2 loss nan acc 0.1\n", [(None, {"epoch": 2.0, "loss": NAN, "acc": 0.1})]),
    "an infinity": (b"iter 3 Loss Inf Acc 0.5\n", [(3, {"loss": math.inf, "acc": 0.5})]),
    "two names with NaN": (b"iter 2 total_loss nan cls_loss NaN\n", [(2, {"loss": NAN, "cls_loss": NAN})]),
    "steps in thousands": (
        b"step 1,000 loss 2.1\nstep 2,000/10,000 loss 2.0\nStep: 12,345 loss: 1.5\n",
        [(1000, {"loss": 2.1}), (2000, {"loss": 2.0}), (12345, {"loss": 1.5})],
    ),
    "steps in thousands with blanks": (b"step 1 000: loss=2.1\n", [(None, {"loss": 2.1})]),
    "steps with a fraction": (b"step 1,5: loss=2.1\n", [(None, {"loss": 2.1})]),
    "epochs in thousands": (b"epoch 1,000: loss=2.1\n", [(None, {"loss": 2.1})]),
    "a decimal comma": (b"step 1 loss 0,693 acc 0,51\nstep 2 loss: 2,345\nstep 3 loss 2,3, acc 0.5\n", [(3, {"acc": 0.5})]),
    "a thousand or a fraction": (b"step 1 loss: 2.5, ppl: 12,345\n", [(1, {"loss": 2.5})]),
    "thousands": (
        b"step 1 loss: 2,345.6, ppl: 1,234,567, acc 0.1\n",
        [(1, {"loss": 2345.6, "ppl": 1234567.0, "acc": 0.1})],
    ),
    "a loss beside an evaluation": (b"step 1 train/loss=1.5 val/loss=2.5\n", [(1, {"loss": 1.5, "val/loss": 2.5})]),
    "two bars without names": (
        b"".join(
            b"\r 50%%|##  | 1/%d [00:01<00:01, 1.0it/s, loss=%d]\r100%%|####| %d/%d [00:02<00:00, 1.0it/s, loss=%d]\n"
            % (length, first, length, length, first + 1)
            for length, first in ((4, 10), (2, 20), (4, 30))
        ),
        [(1, {"loss": 10.0}), (4, {"loss": 11.0}), *((None, {"loss": float(loss)}) for loss in (20, 21, 30, 31))],
    ),
    "training behind an evaluation": (
        b"Train 10/100 loss 2.1\nVal 10/10 loss 5\nTrain 20/100 loss 2.0\n",
        [(None, {"loss": 2.1}), (None, {"eval_loss": 5.0}), (None, {"loss": 2.0})],
    ),
    "heads of phases": (
        b"Epoch 1 train\nloss: 2.0\nEpoch 1 val\nloss: 3.0\nEpoch 2 train\nloss: 1.9\n",
        [(None, {"loss": 2.0}), (None, {"eval_loss": 3.0}), (None, {"loss": 1.9})],
    ),
    "heads without numbers": (
        b"loss: 2.0\nEvaluating...\nloss: nan\nTraining...\nloss: 1.9\n=== Validation ===\nloss: 3.0\nEpoch 2\nloss: 1.8\nTest:\nloss: 4\n",
        [
            (None, {"loss": 2.0}), (None, {"eval_loss": NAN}), (None, {"loss": 1.9}), (None, {"eval_loss": 3.0}),
            (None, {"loss": 1.8}), (None, {"eval_loss": 4.0}),
        ],
    ),
    "PyTorch's quickstart": (
        b"Epoch 1\n-------\nloss: 2.25  [ 6400/60000]\nTest Error: \n Accuracy: 50.9%, Avg loss: nan \n\nEpoch 2\n-------\nloss: 2.0  [   64/60000]\n",
        [(None, {"loss": 2.25}), (None, {"eval_accuracy": 50.9, "eval_avg_loss": NAN}), (None, {"loss": 2.0})],
    ),
    "no heads": (
        b"eval:\n  size: 4\nmode: test\nTraining finished, now testing 1,000 files\nmodel.eval()\nloss: 2.0\n",
        [(None, {"loss": 2.0})],
    ),
    **{
        f"an evaluation by {key}": (
            b'{"step": 1, "loss": 2.0, "%s": "train"}\n{"%s": "%s", "step": 1, "loss": NaN}\n' % (key, key, value),
            [(1, {"loss": 2.0}), (1, {"eval_loss": NAN})],
        )
        for key, value in ((b"split", b"val"), (b"mode", b"val"), (b"phase", b"test"), (b"event", b"eval"), (b"stage", b"validation"))
    },
    "an evaluation at the end of a line": (
        b"step=1 loss=2 split=train\nstep=1 loss=nan split=val\n", [(1, {"loss": 2.0}), (1, {"eval_loss": NAN})],
    ),
    "the steps of an evaluation": (
        b"step 1: loss 2\neval_step 1: loss nan\nval_step 2: loss nan\n",
        [(1, {"loss": 2.0}), (None, {"eval_loss": NAN}), (None, {"eval_loss": NAN})],
    ),
    "names behind an evaluation's": (
        b"epoch 0: eval_loss=0.09 accuracy=0.50\neval: loss=0.1 ppl=1.2\n",
        [(None, {"epoch": 0.0, "eval_loss": 0.09, "accuracy": 0.5}), (None, {"eval_loss": 0.1, "eval_ppl": 1.2})],
    ),
    **{
        f"ranks as {name}": (
            b"".join(form % (rank, step, rank + 2) + b"\n" for step in (1, 2, 3) for rank in (0, 1)),
            [(step, {"loss": 2.0}) for step in (1, 2, 3)],
        )
        for name, form in (
            ("words", b"rank %d: step %d loss %d"), ("brackets", b"[%d] step %d loss %d"), ("srun labels", b"%d: step %d loss %d"),
            ("keys", b"rank=%d step=%d loss=%d"), ("JSON", b'{"rank": %d, "step": %d, "loss": %d}'),
        )
    },
    "a rank within the line": (b"step 1 rank 0 loss 2.0\nstep 1 rank 1 loss 2.5\n", [(1, {"loss": 2.0})]),
    "a rank of an adapter": (
        b"{'rank': 16, 'alpha': 32, 'lr': 0.1}\n[rank0]: step 1 loss 2.0\n", [(1, {"loss": 2.0})],
    ),
    "a rank of an accuracy": (b"step 1 loss 2.0\nstep 2 loss 1.0 rank 5 accuracy 0.5\n", [(1, {"loss": 2.0}), (2, {"loss": 1.0, "accuracy": 0.5})]),
    "columns with commas": (b"step,loss\n1,2.0\n2,nan\n", [(1, {"loss": 2.0}), (2, {"loss": NAN})]),
    "three columns with commas": (
        b"epoch,train_loss,lr\n1,2.0,0.1\nSaved, as model.pt, now\n2,nan,0.1\n",
        [(None, {"epoch": 1.0, "loss": 2.0, "lr": 0.1}), (None, {"epoch": 2.0, "loss": NAN, "lr": 0.1})],
    ),
    "a drawn row": ("│ 2 │ loss │ nan │\n│ 2 │ bce_weight │ 1.0 │\n│ loss │ CrossEntropyLoss │ 0 │\n".encode(), [(None, {"loss": NAN})]),
    "boxed tables, the second one cut off": (
        b"""Using cpu
-----------------------------
| rollout/          |       |
|    ep_rew_mean    | 20.5  |
| time/             |       |
|    total_timesteps| 256   |
-----------------------------
-----------------------------
| eval/             |       |
|    mean_reward    | 30    |
| time/             |       |
|    total_timesteps| 500   |
-----------------------------
---------------------------------------
| train/                    |         |
|    loss                   | nan     |
|    a_name_that_is_too_lo... | 2     |
| time/                     |         |
|    total_timesteps        | 512     |
""",
        [
            (256, {"rollout/ep_rew_mean": 20.5}),
            (500, {"eval/mean_reward": 30.0}),
            (512, {"loss": NAN}),
        ],
    ),
    "the same loss at the next step beside a bar": (
        b"1|1|Loss: 2.5:  50%|##  | 1/2 [00:01<00:01,  1.00s/it]\r1|2|Loss: 2.5: 100%|####| 2/2 [00:02<00:00,  1.00s/it]\n",
        [(1, {"loss": 2.5}), (2, {"loss": 2.5})],
    ),
    "a boxed table of an evaluation": (
        "┏━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┓\n┃ Validate metric ┃ DataLoader 0 ┃\n┡━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━┩\n"
        "│       acc       │     0.5      │\n│    val_loss     │     1.5      │\n└─────────────────┴──────────────┘\n".encode(),
        [(None, {"eval_acc": 0.5, "val_loss": 1.5})],
    ),
    "a grid of settings, then one of results": (
        b"+------+------+\n| lr   | 0.1  |\n+------+------+\n| seed | 3    |\n+------+------+\ndone\n| step | 5 |\n+------+------+\n| loss | 2.5 |\n",
        [(5, {"loss": 2.5})],
    ),
    "a boxed table of parts of a model": (b"| Name | Type | Params |\n| loss | CrossEntropyLoss | 0 |\n| encoder | 3.2 M |\n", []),
    "thousands with blanks": (b"step 1 loss: 2.5, ppl: 1 234\n", [(1, {"loss": 2.5})]),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_what_a_few_lines_say(name):
    """Names, numbers and steps are those of the lines, or absent."""
    log, expected = LINES[name]
    assert comparable([tuple(metric) for metric in scan(log)]) == comparable(expected)
