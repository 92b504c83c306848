"""What a log proves: the exception that ended the script, not whatever words it holds."""

import pytest

from launcher.remote.diagnose import PROVABLE, prove
from launcher.remote.remedy import TABLE

FRAME = 'Traceback (most recent call last):\n  File "/work/train.py", line 7, in <module>\n    go()\n'


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fp16-unscale", "ValueError: Attempting to unscale FP16 gradients."),
        ("bf16-unsupported", "ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu"),
        (
            "bf16-unsupported",
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        ),
        (
            "bf16-unsupported",
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, CUDA_R_16BF)`",
        ),
        ("bf16-dtype-mismatch", "RuntimeError: expected dtype float for `end` but got dtype c10::BFloat16"),
        ("bf16-dtype-mismatch", "RuntimeError: expected dtype c10::BFloat16 for `end` but got dtype float"),
        ("bf16-dtype-mismatch", "RuntimeError: expected scalar type BFloat16 but found Float"),
        (
            "bf16-dtype-mismatch",
            "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
        ),
        (
            "bf16-dtype-mismatch",
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
        ),
        (
            "bf16-dtype-mismatch",
            "NotImplementedError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'",
        ),
        (
            None,
            "RuntimeError: \"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'ComplexFloat'",
        ),
        (None, "RuntimeError: mat1 and mat2 must have the same dtype, but got Long and BFloat16"),
        (None, "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float"),
        (None, "KeyError: 'loss'"),
    ],
)
def test_the_line_that_ends_a_traceback_tells_the_class(name, line):
    """With that line as the proof; what is no precision's failure is none here."""
    found = prove(f"step 1\n{FRAME}{line}\n".encode())
    assert (found.name, found.line) == (name, line) if name else found is None


UNSCALE = "ValueError: Attempting to unscale FP16 gradients.\n"
KEY = "KeyError: 'loss'\n"


@pytest.mark.parametrize(
    ("log", "is_unscale"),
    [
        (UNSCALE, False),
        (f"it printed\n{UNSCALE}{FRAME}{KEY}", False),
        (FRAME + UNSCALE + FRAME + KEY, False),
        (FRAME + KEY + FRAME + UNSCALE, True),
        (f"{FRAME}{UNSCALE}\nDuring handling of the above exception, another exception occurred:\n\n{FRAME}{KEY}", True),
        (f"{FRAME}{KEY}\nDuring handling of the above exception, another exception occurred:\n\n{FRAME}{UNSCALE}", True),
        (f"{FRAME}{UNSCALE}{FRAME}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n", True),
        (f"{FRAME}{UNSCALE}{FRAME}subprocess.CalledProcessError: Command '['python']' returned 1.\n", True),
        (f"{FRAME}{UNSCALE}{FRAME}torch.distributed.DistBackendError: NCCL error\n", True),
        (f"{FRAME}{UNSCALE}" + "{'loss': '1.0', 'grad_norm': '1.0'}\n", False),
        (f"{FRAME}{UNSCALE}  0%|      | 0/30 [00:00<?, ?it/s]\n", True),
        ("\n".join(f"[rank1]: {line}" for line in (FRAME + UNSCALE).splitlines()), True),
        (f"\x1b[31m{FRAME}\x1b[0m\x1b[1m{UNSCALE}", True),
        ("    raise it\n" + FRAME.partition("\n")[2] + UNSCALE, True),
        ("", False),
        (FRAME, False),
    ],
    ids=[
        "printed",
        "printed, then another",
        "caught, then another",
        "another caught, then this",
        "first of a chain",
        "last of a chain",
        "torchrun",
        "accelerate",
        "another rank",
        "trained on",
        "a bar behind it",
        "a rank's prefix",
        "colours",
        "a tail without the head",
        "nothing",
        "no end",
    ],
)  # fmt: skip
def test_what_counts_is_the_exception_that_nobody_caught(log, is_unscale):
    """Wrappers and other ranks aside, and the first that is known of its chain."""
    found = prove(log.encode())
    assert (found is not None and found.name == "fp16-unscale") == is_unscale


def test_a_host_without_a_card_is_no_card_without_bf16():
    """transformers says the same of both; the lines above tell them apart."""
    line = "ValueError: Your setup doesn't support bf16/gpu.\n"
    driver = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.\n"
    assert prove((driver + FRAME + line).encode()) is None


def test_bytes_that_are_no_text_are_no_obstacle():
    """A log holds whatever a script writes."""
    assert prove(b"\xff\xfe\0" + (FRAME + UNSCALE).encode()).name == "fp16-unscale"


def test_every_class_that_a_log_can_prove_has_an_answer():
    """A rule without a row in the table of remedies would be a crash of the agent."""
    assert set(PROVABLE) <= set(TABLE)
