"""The script that a command starts, by its words alone."""

import shlex

import pytest

from launcher.planning.script.script import interpreter_of, script_of, starts_python


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python train.py --lr 1", "train.py"),
        ("python3.11 -u -W ignore -Xdev ./src/train.py x.py", "src/train.py"),
        ("/usr/bin/python3 -uB train.py", "train.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", "train.py"),
        ("torchrun --standalone --nproc-per-node=2 deep/train.py --x y.py", "deep/train.py"),
        ("accelerate launch --config_file a.yaml train.py", "train.py"),
        ("deepspeed --num_gpus 2 train.py", "train.py"),
        ("bash -eux run.sh", "run.sh"),
        ("bash -euo pipefail scripts/run", "scripts/run"),
        ("./train.py", "train.py"),
        ("bin/run a b", "bin/run"),
        ("env FOO=1 python train.py", "train.py"),
        ("FOO=1 python train.py", "train.py"),
        ("python -m pkg.mod", "pkg.mod"),
        ("python ../train.py", "../train.py"),
    ],
)
def test_a_script_is_found_behind_the_options_of_its_program(command, path):
    found = script_of(shlex.split(command))
    assert found is not None
    assert found.path == path
    assert found.is_module == ("-m pkg" in command)
    assert found.is_program == (command in ("./train.py", "bin/run a b"))


@pytest.mark.parametrize(
    "command",
    [
        "python", "python -", "python -c 'import x' train.py", "python -uc 'import x'", "python --version",
        "python -m 'not a module'", "python /opt/train.py", "python ~/train.py", "python --unheard-of train.py",
        "torchrun -m pkg.train", "torchrun --no-python ./x", "accelerate config", "accelerate config --config_file x.py", "accelerate launch -m pkg train.py",
        "bash -c 'python train.py'", "bash -lc 'python train.py'", "bash -s", "bash tool", "bash --rcfile x run.sh",
        "/opt/run.sh", "~/run.sh", "train.py", "nvidia-smi", "env -i python train.py", "env", "uv run train.py", "FOO=1",
    ],
)  # fmt: skip
def test_a_command_that_shows_no_script_has_none(command):
    """What may be installed on the host, or in an image, is not looked for here."""
    assert script_of(shlex.split(command)) is None


def test_an_interpreter_below_the_folder_is_one_that_must_travel():
    assert interpreter_of([".venv/bin/python", "x.py"]).path == ".venv/bin/python"
    assert interpreter_of(["/usr/bin/python", "x.py"]) is None
    assert interpreter_of(["python", "x.py"]) is None
    assert interpreter_of(["./train.py"]) is None


@pytest.mark.parametrize(
    ("words", "starts"),
    [
        ("python train.py", True),
        ("FOO=1 python3.12 -u -m pkg.train", True),
        ("env A=1 .venv/bin/python train.py", True),
        ("torchrun --nproc-per-node 2 train.py", True),
        ("./train.py", True),
        ("python -I train.py", False),
        ("python -uE train.py", False),
        ("bash run.sh", False),
        ("echo python", False),
        ("env", False),
    ],
)
def test_what_starts_python_with_its_path_is_read_from_the_words(words, starts):
    """A launch says that the start-up hook is there only where it is."""
    assert starts_python(words.split()) == starts
