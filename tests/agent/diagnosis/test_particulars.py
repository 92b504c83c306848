"""The words for particular failures: of a line in a log, of how a command ended, of a command that cannot be started."""

import errno
import os
import signal

import pytest

from launcher.agent.diagnosis.cause import crash
from launcher.agent.diagnosis.diagnose import ProcessEnd, diagnose
from launcher.agent.diagnosis.not_started import refusal_of_image, words_of_start

FRAME = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in <module>\n    go()\n'


@pytest.mark.parametrize(
    ("name", "line", "mend"),
    [
        ("needs-terminal", "EOFError: EOF when reading a line", "sh -c"),
        ("needs-terminal", "termios.error: (25, 'Inappropriate ioctl for device')", "sh -c"),
        (
            "needs-terminal",
            "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            "--secret WANDB_API_KEY",
        ),
        ("user-code-error", "train.py: error: unrecognized arguments: --host lab --dry-run", "launch --host HOST -- COMMAND"),
        ("user-code-error", "Error: No such option: --host", "launch --host HOST -- COMMAND"),
        ("user-code-error", "train.py: error: the following arguments are required: --data", "after --"),
        ("download-failed", "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>", "the folder that is sent"),
        (
            "download-failed",
            "Exception: URL fetch failure on https://storage.googleapis.com/mnist.npz: None -- [Errno -2] Name or service not known",
            "the folder that is sent",
        ),
        ("download-failed", "urllib.error.HTTPError: HTTP Error 403: Forbidden", "the folder that is sent"),
        ("download-failed", "RuntimeError: Error downloading train-images-idx3-ubyte.gz", "the folder that is sent"),
        (
            "download-failed",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443): Max retries exceeded with url: /x",
            "the folder that is sent",
        ),
        (
            "hub-access",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x",
            "HF_TOKEN",
        ),
        (
            "user-code-error",
            "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            "use eval_strategy; or install a version that has it   launch … --with 'transformers<4.46'",
        ),
        (
            "user-code-error",
            "TypeError: __init__() got an unexpected keyword argument 'evaluation_strategy'",
            "use eval_strategy",
        ),
        (
            "user-code-error",
            "TypeError: Box.__init__() got an unexpected keyword argument 'colour'. Did you mean 'color'?",
            "use color",
        ),
        (
            "user-code-error",
            "TypeError: ReduceLROnPlateau.__init__() got an unexpected keyword argument 'verbose'",
            "leave it out, and print get_last_lr()",
        ),
        ("missing-dependency", "ImportError: cannot import name 'AdamW' from 'transformers' (/x/__init__.py)", "torch.optim.AdamW"),
        (
            "missing-dependency",
            "ImportError: cannot import name 'fit' from 'box' (/x/box.py). Did you mean: 'fits'?",
            "use fits",
        ),
        ("missing-dependency", "ModuleNotFoundError: No module named 'torch._six'", "collections.abc"),
        ("user-code-error", "AttributeError: module 'numpy' has no attribute 'float'.", "numpy<1.24"),
        (
            "missing-dependency",
            "Exception: data did not match any variant of untagged enum ModelWrapper at line 250373 column 3",
            "--with 'tokenizers'",
        ),
        ("nccl-error", "RuntimeError: NCCL Error 1: unhandled cuda error", "NCCL_DEBUG"),
        ("shm-too-small", "[launch.py:319:sigkill_handler] ['python'] exits with return code = -7", "--shm-size"),
    ],
)  # fmt: skip
def test_a_line_gets_its_own_words(name, line, mend):
    """With the class that it has."""
    found = diagnose(f"{FRAME}{line}\n".encode())
    assert (found.name, found.line) == (name, line)
    assert mend in found.mend
    assert "nothing" not in found.mend


@pytest.mark.parametrize(
    ("line", "mend"),
    [
        ("ModuleNotFoundError: No module named 'einops'", "launch --with einops …"),
        ("ModuleNotFoundError: No module named 'einops.layers'", "launch … --with 'einops<…'"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "launch --with flash-attn …"),
        ("ModuleNotFoundError: No module named 'sklearn'", "launch --with scikit-learn …"),
        ("ModuleNotFoundError: No module named 'sklearn.externals.six'", "launch … --with 'scikit-learn<…'"),
        ("ModuleNotFoundError: No module named 'google.protobuf'", "launch --with protobuf …"),
        ("ModuleNotFoundError: No module named 'cv2'", "launch --with opencv-python-headless …"),
        ("ModuleNotFoundError: No module named 'PIL'", "launch --with pillow …"),
        ("ModuleNotFoundError: No module named 'yaml'", "launch --with pyyaml …"),
        ("ModuleNotFoundError: No module named 'bs4'", "launch --with beautifulsoup4 …"),
        (
            "ModuleNotFoundError: Requirement 'requests>=2' not met. HINT: Try running `pip install -U 'requests>=2'`",
            "launch --with requests …",
        ),
        ("/usr/bin/python3: No module named trl", "launch --with trl …"),
        ("ModuleNotFoundError: No module named 'clip'", "launch --with 'clip @ git+https://"),
        ("ModuleNotFoundError: No module named 'utils.data'", "launch -e PYTHONPATH="),
        ("ModuleNotFoundError: No module named 'apex'", "an environment of your own"),
        ("ModuleNotFoundError: No module named '_lzma'", "add it to the job's requirements"),
    ],
)
def test_a_missing_module_names_the_line_that_adds_it(line, mend):
    """By its distribution's name, which is often another; a module of one's own is in no package."""
    found = diagnose(f"{FRAME}{line}\n".encode())
    assert (found.name, found.line) == ("missing-dependency", line)
    assert mend in found.mend


@pytest.mark.parametrize(
    "line",
    [
        "TypeError: mine() got an unexpected keyword argument 'tokenizer'",
        "AttributeError: module 'mine' has no attribute 'float'",
        "ImportError: cannot import name 'AdamW' from 'mine' (/x/mine.py)",
        "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'epochs'",
    ],
)
def test_a_mistake_that_only_looks_like_a_removed_name_keeps_the_words_of_its_class(line):
    """No replacement is invented."""
    assert " use " not in f" {diagnose(f'{FRAME}{line}'.encode()).mend}"


def test_a_deprecation_earlier_in_the_log_names_the_replacement():
    """As transformers words it: `old` is deprecated … Use `new` instead."""
    log = "FutureWarning: `width` is deprecated and will be removed in version 5.0.0 for `Box.__init__`. Use `size` instead.\n"
    line = "TypeError: Box.__init__() got an unexpected keyword argument 'width'\n"
    assert "use size" in diagnose((log + FRAME + line).encode()).mend


@pytest.mark.parametrize(
    ("code", "number", "words"),
    [
        (3, None, "exit status 3"),
        (None, signal.SIGSEGV, "SIGSEGV (signal 11)"),
        (128 + 11, None, "SIGSEGV (signal 11)"),
        (None, signal.SIGILL, "instruction"),
        (None, signal.SIGXCPU, "ulimit -t"),
        (None, signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}"),
        (127, None, "did not find a program"),
    ],
)
def test_an_end_without_a_word_says_how_it_ended(code, number, words):
    """Nothing of ranks, which a single process does not have."""
    for found in (crash(b"", code, number, 0), diagnose(b"loss 0.5\n", ProcessEnd(code, number))):
        assert found.name == "unknown"
        assert words in found.why
        assert "rank" not in found.why + found.mend


def test_the_line_that_says_what_failed_stands_beside_the_exit_status():
    """The log shows an error: it is not said to show none."""
    found = crash(b"loss 0.5\nerror: data folder is empty\n", 3, None, 0)
    assert (found.name, found.reason, found.line) == (
        "unknown",
        "exit-nonzero",
        "error: data folder is empty",
    )
    assert found.why == "it ended with exit status 3"


def test_what_a_script_said_by_sys_exit_is_the_line():
    """Such a script prints its text last and ends with 1. Another status is not that of a text."""
    text = b'loss 0.5\nmine/bad.jsonl, line 1: no "answer"\n\n'
    found, of_file = crash(text, 1, None, 0), diagnose(text, ProcessEnd(1))
    assert (found.name, found.reason, found.line) == (
        "unknown",
        "exit-nonzero",
        'mine/bad.jsonl, line 1: no "answer"',
    )
    assert "last line" in found.why
    assert 'sys.exit("text")' in found.mend
    assert (of_file.line, of_file.number, of_file.why) == (found.line, 2, found.why)
    assert crash(text, 2, None, 0).line is None
    assert crash(b"", 1, None, 0).line is None


@pytest.mark.parametrize(
    ("said", "why", "is_certain"),
    [
        (
            'FATAL:   "python3": executable file not found in $PATH',
            "the image has no program 'python3'",
            True,
        ),
        (
            "FATAL:   While checking container encryption: could not open image /shared/none.sif: failed to retrieve path",
            "the node cannot open the image",
            True,
        ),
        (
            "\x1b[31mFATAL:  \x1b[0m Couldn't determine user account information: user: unknown userid 20001",
            "apptainer could not start the command in the image",
            False,
        ),
        ("INFO:    fuse2fs not found, will not be able to mount EXT3 filesystems", None, None),
    ],
)
def test_what_apptainer_says_of_an_image_that_it_cannot_start_is_said_again(said, why, is_certain):
    """Lines of Apptainer 1.4.5; a script's own line before does not count."""
    refusal = refusal_of_image(f"FATAL: of the script\n{said}\n" if why else f"{said}\n")
    assert (refusal and (refusal.words.why, refusal.is_certain)) == (why and (why, is_certain))


def test_a_command_that_cannot_be_started_says_what_to_type(tmp_path):
    """By the name of a program that the host has, or by what is wrong with a file."""
    (tmp_path / "python").touch()
    missing, refused = FileNotFoundError(errno.ENOENT, "x"), PermissionError(errno.EACCES, "x")
    path = f"/nothing{os.pathsep}{tmp_path}"
    assert words_of_start("pyhton", missing, "/", path).mend == "did you mean 'python'?"
    assert "requirements" in words_of_start("fairseq-train", missing, "/", path).mend
    assert 'modules = ["apptainer"]' in words_of_start("apptainer", missing, "/", path).mend
    assert "chmod +x ./train.py" in words_of_start("./train.py", refused, "/", path).mend
    (tmp_path / "a.py").write_text("#!/opt/none/python\n")
    (tmp_path / "b.py").write_text("import torch\n")
    code = str(tmp_path)
    assert "/opt/none/python" in words_of_start("./a.py", missing, code, path).why
    assert "line #!" in words_of_start("./b.py", OSError(errno.ENOEXEC, "x"), code, path).why
    assert "the host has no './c.py'" in words_of_start("./c.py", missing, code, path).why
