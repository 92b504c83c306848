"""Why a command ended, from its log, its status and the kernel's word: what the agent acts on."""

import pytest

from launcher.agent.attempt.progress import AttemptProgress
from launcher.agent.diagnosis.cause import crash, with_own_packages
from launcher.agent.diagnosis.good_exit import diagnose_log
from launcher.agent.logs.log_scanner import LogScanner
from launcher.agent.system import oom

FRAME = b'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'
UNSCALE = FRAME + b"ValueError: Attempting to unscale FP16 gradients.\n"
RANK = (
    FRAME
    + b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n=====\ntrain.py FAILED\n-----\n"
    + b"Root Cause (first observed failure):\n[0]:\n  exitcode  : -9 (pid: 41)\n  traceback : Signal 9 (SIGKILL) received by PID 41\n"
)
CAUGHT = b"loss 0.5\n\xe2\x9d\x8c Training failed: Attempting to unscale FP16 gradients.\n"
PTXAS = (
    FRAME
    + b"RuntimeError: Internal Triton PTX codegen error\n`ptxas` stderr:\nptxas /tmp/src.ptx, line 51; error   : "
    + b"Feature '.bf16' requires .target sm_80 or higher\nptxas fatal   : Ptx assembly aborted due to errors\n"
)
LOSSES = b"{'loss': nan, 'grad_norm': nan}\n"


@pytest.mark.parametrize(
    ("log", "code", "number", "oom_kills", "name", "reason"),
    [
        (b"", 3, None, None, "unknown", "exit-nonzero"),
        (b"", None, 11, None, "unknown", "killed-by-signal"),
        (b"", None, 9, None, "host-oom-killed", None),  # nobody counts: the likeliest
        (b"", None, 9, 0, "preempted", None),
        (b"", None, 9, 1, "host-oom-killed", None),
        (b"", None, 15, None, "preempted", None),
        (RANK, 1, None, 0, "preempted", None),
        (RANK, 1, None, 2, "host-oom-killed", None),
        (UNSCALE, 1, None, 0, "fp16-unscale", None),
        (UNSCALE, 2, None, 0, "fp16-unscale", None),  # the script's own status, after it caught the error
        (CAUGHT, 1, None, 0, "fp16-unscale", None),
        (CAUGHT + b"retrying in float32\n", 1, None, 0, "unknown", "exit-nonzero"),
        (PTXAS, 1, None, 0, "bf16-unsupported", None),
        (LOSSES * 3, 1, None, 0, "unknown", "exit-nonzero"),  # the guard says so, or nobody
        (FRAME + b"KeyError: 'labels'\n", 1, None, 0, "user-code-error", None),
        (b'the job refuses: a.jsonl, line 3: no "text"\n', 1, None, 0, "user-code-error", None),
        (FRAME + b"KeyError: 'labels'\n", 1, None, 1, "user-code-error", None),  # somebody else's kill
        (FRAME + b"MemoryError\n", 1, None, 0, "host-oom-killed", None),  # nobody ended it
        (b"loss 0.5\nTraining completed.\n", 1, None, 0, "unknown", "exit-nonzero"),
    ],
)
def test_status_signal_and_the_kernel_s_word_count_beside_the_log(log, code, number, oom_kills, name, reason):
    """A log that says nothing, or of what the training went on after, is no cause."""
    found = crash(log, code, number, oom_kills)
    assert (found.name, found.reason) == (name, reason)
    assert found.why


@pytest.mark.parametrize(
    ("log", "code", "number"),
    [
        (FRAME + b"KeyboardInterrupt\n", None, 2),
        (FRAME + b"OSError: [Errno 28] No space left on device: 'out/x.pt'\n", 1, None),
        (FRAME + b"MemoryError\n", 1, None),
    ],
    ids=["interrupt", "disk", "memory"],
)
def test_a_log_is_diagnosed_as_its_run(log, code, number):
    """In the same words: `launch diagnose FILE` has no other evidence here."""
    of_run, of_log = crash(log, code, number, 0), diagnose_log(log)
    assert (of_log.name, of_log.line, of_log.why) == (of_run.reason or of_run.name, of_run.line, of_run.why)


def test_a_loss_that_diverged_has_one_cause_in_its_log_and_its_run():
    """The agent ends the run at the second such line."""
    log = "".join(f"step {step} loss {0.5 if step < 4 else 'nan'}\n" for step in range(8)).encode()
    scanner = LogScanner()
    scanner.feed(log)
    change = AttemptProgress().learn_divergence(scanner.divergence)
    found = diagnose_log(log)
    assert (found.name, found.line, found.why) == change.failure[:3]


CHAIN = b"\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(
    ("last", "name"),
    [
        (b"ValueError: bad config: lr must be > 0", "user-code-error"),
        (b"app.ConfigError: 4 GB of rows do not fit", "user-code-error"),
        (b"ValueError: training failed", "host-oom-killed"),
        (b"ValueError: rows: x of rows", "host-oom-killed"),
        (b"RuntimeError: the step ended", "host-oom-killed"),
    ],
)
def test_an_exception_that_says_what_another_means_decides(last, name):
    """One that quotes it, or only says that something failed, does not."""
    log = FRAME + b"MemoryError: x of rows\n" + CHAIN + FRAME + last + b"\n"
    found = crash(log, 1, None, 0)
    assert found.name == name
    assert "kernel" not in found.why


def test_what_the_kernel_counts_is_read_where_it_counts():
    """A number on any Linux of today."""
    assert isinstance(oom.kills(), int)


def test_others_on_the_card_are_named_where_they_hold_more_than_we():
    """By the numbers of torch's own message."""
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB of "
        "which 12.00 MiB is free. Process 881 has {} memory in use. Including non-PyTorch memory, this process has {} "
        "memory in use. Of the allocated memory 1.10 GiB is allocated by PyTorch.\n"
    )
    found = crash(FRAME + message.format("20.10 GiB", "512.00 MiB").encode(), 1, None, 0)
    assert "process 881 with 20.1 GiB" in found.others
    assert crash(FRAME + message.format("300.00 MiB", "20.10 GiB").encode(), 1, None, 0).others is None
    twice = message.format("20.10 GiB", "512.00 MiB") * 2
    assert crash(FRAME + twice.encode(), 1, None, 0).others.count("881") == 1


@pytest.mark.parametrize(
    ("rest", "others"),
    [("", None), ("Process 881 has 20.10 GiB memory in use. ", "process 881 with 20.1 GiB")],
)
def test_in_a_container_torch_names_its_own_process_like_any_other(rest, others):
    """The one that holds what PyTorch has allocated is the job's own, as in chatdoc-com/OCRFlux#42."""
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB of "
        f"which 12.00 MiB is free. {rest}Process 77 has 2.42 GiB memory in use. "
        "Of the allocated memory 1.35 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated.\n"
    )
    found = crash(FRAME + message.encode(), 1, None, 0).others
    assert (found and found.partition("(")[2].partition(")")[0]) == others


@pytest.mark.parametrize(
    ("line", "environment", "mend"),
    [
        ("ModuleNotFoundError: No module named 'sklearn'", "/v", "on the host   /v/bin/python -m pip install scikit-learn"),
        ("ModuleNotFoundError: No module named 'sklearn'", None, "in your image   pip install scikit-learn"),
        ("TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'no_cuda'", "/v", "use use_cpu; or install a version that has it   on the host   /v/bin/python -m pip install 'transformers<5'"),
        ("ValueError: Couldn't instantiate the backend tokenizer", "/v", "on the host   /v/bin/python -m pip install sentencepiece protobuf tiktoken"),
        ("KeyError: 'a'", "/v", "fix the script at the last line of the traceback that is in your own code"),
    ],
)  # fmt: skip
def test_where_launch_installs_nothing_the_advice_installs_by_hand(line, environment, mend):
    """It refuses `--with` for a host with its own environment, and for the user's image."""
    found = with_own_packages(crash(FRAME + line.encode() + b"\n", 1, None, None), environment)
    assert found.mend == mend
