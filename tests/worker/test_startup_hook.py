"""The start-up hook in a process of a training: a script is the same with it and without it."""

import glob
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from testbed.client import until

from launcher.agent.system.process import catches

WORKER = Path(__file__).parents[2] / "launcher" / "worker"
HOOK = WORKER / "launcher_worker" / "startup"
PATHS = {False: [WORKER], True: [HOOK, WORKER]}
"""What the agent puts on PYTHONPATH, with the hook and without it."""

SPAWN = """
import multiprocessing, sys
def square(number):
    return number * number, "sitecustomize" in sys.modules
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(square, range(3)))
"""
CHILDREN = """
import subprocess, sys
for flags in (["-I"], ["-E"], ["-S"], ["-P"], []):
    code = "import sys; print(sys.argv, [name for name in sys.modules if 'customize' in name])"
    done = subprocess.run([sys.executable, *flags, "-c", code, "x"], capture_output=True, text=True)
    print(flags, done)
"""
LOOK = """
import pkgutil, sys
print(sys.path, [name for name in sys.modules if "launcher" in name or "customize" in name])
print([module.name for module in pkgutil.iter_modules() if "customize" in module.name])
"""
SCRIPTS = {
    "exit code": "import sys; sys.exit(3)",
    "traceback": "def inner():\n    raise ValueError('the reason')\ntry:\n    1 / 0\nfinally:\n    inner()",
    "arguments": "import sys; print(sys.argv, sys.orig_argv[1:], sys.flags)",
    "input": "print(repr(input())); print(open(0).read())",
    "spawned processes": SPAWN,
    "children without PYTHONPATH": CHILDREN,
    "a forked child": "import os; pid = os.fork(); print(bool(pid)); pid and os.waitpid(pid, 0)",
    "threads and functions at exit": (
        "import atexit, threading; atexit.register(print, 'bye')\nthreading.Thread(target=print, args=('hello',)).start()"
    ),
    "Ctrl-C while threads end": (
        "import os, signal, threading, time\ndef thread():\n    time.sleep(0.3); os.kill(os.getpid(), signal.SIGINT); time.sleep(0.3)\n"
        "threading.Thread(target=thread).start()\nsys = __import__('sys'); sys.unraisablehook = lambda one: print(one.exc_type)\nsys.exit(4)"
    ),
    "its own handlers of signals": "import signal; print([signal.getsignal(number) for number in signal.valid_signals() if number < 34])",
    "signal": "import os; print('so far', flush=True); os.kill(os.getpid(), 15)",
    "what a script sees": LOOK,
    "a module that fails to import": "import transformers.trainer",
    "a name that it lacks": "from transformers.trainer import Nothing",
    "a library without callbacks": "import transformers.other, transformers.trainer as t; print(vars(t).keys())",
    "a reload": "import importlib, transformers.trainer as t; print(vars(importlib.reload(t).__loader__))",
}
FAILURES = {"a module that fails to import": "import nothing_of_that_name"}


def run(folder, *, hook, words=(), python=sys.executable, **more):
    """Run a script as the agent starts it, and give its exit code, its output and its errors."""
    paths = os.pathsep.join(map(str, [*PATHS[hook], folder / "mine"]))
    variables = {
        "PYTHONPATH": paths,
        "PATH": os.environ["PATH"],
        "LAUNCH_SOCKET": str(folder / "none"),
        "LAUNCH_HOOK": "observe",
    }
    variables["HOME"] = str(folder)
    variables["LAUNCH_STACKS"] = str(folder / "stacks.txt")
    (folder / "stacks.txt").touch()
    done = subprocess.run(
        [python, *words, "train.py", "--lr", "a b"],
        cwd=folder, env={**variables, **more}, input=b"first\nsecond\n", capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def library(tmp_path):
    """A stand-in for transformers: what the hook does is known by its import alone."""
    package = tmp_path / "transformers"
    package.mkdir()
    for name in ("__init__", "trainer", "other"):
        (package / f"{name}.py").write_text("")
    return package


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_the_same_with_the_hook(tmp_path, library, name):
    """Exit code, output and errors have the same bytes: tracebacks, arguments, children and what can be imported too."""
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    (library / "trainer.py").write_text(FAILURES.get(name, ""))
    plain = run(tmp_path, hook=False)
    assert run(tmp_path, hook=True) == plain


@pytest.mark.parametrize("failure", ["import nothing_of_that_name", "1 / 0", "raise SystemExit(5)", "def"])
def test_the_traceback_of_a_module_that_fails_names_nothing_of_the_hook(tmp_path, library, failure):
    """As Python leaves out the frames of its own imports."""
    (library / "trainer.py").write_text(failure)
    (tmp_path / "train.py").write_text("import transformers.trainer")
    plain = run(tmp_path, hook=False)
    assert run(tmp_path, hook=True) == plain


@pytest.mark.parametrize("words", [("-X", "dev"), ("-W", "error"), ("-b",), ("-O",), ("-s",)], ids=" ".join)
def test_a_strict_python_says_nothing_of_the_hook(tmp_path, library, words):
    """No warning of an open socket, and none that becomes an error."""
    (library / "trainer.py").write_text("DEFAULT_CALLBACKS = []")
    (tmp_path / "train.py").write_text("import transformers.trainer, sys; print(sys.warnoptions)")
    plain = run(tmp_path, hook=False, words=words)
    assert run(tmp_path, hook=True, words=words) == plain


def pythons():
    """One Python of each version that is installed beside ours by pyenv."""
    return sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")))


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parts[-3])
def test_every_python_3_reads_the_hook(tmp_path, library, python):
    """Scripts start other Pythons. Before 3.8 the hook does nothing, and says nothing."""
    (library / "trainer.py").write_text("DEFAULT_CALLBACKS = []\ndef fail():\n    1 / 0")
    (tmp_path / "train.py").write_text(
        "from transformers.trainer import *; print(len(DEFAULT_CALLBACKS)); fail()"
    )
    code, output, errors = run(tmp_path, hook=False, python=python)
    version = tuple(map(int, Path(python).parts[-3].split(".")[:2]))
    is_observed = version >= (3, 8)
    assert output == b"0\n"
    assert run(tmp_path, hook=True, python=python) == (code, b"1\n" if is_observed else output, errors)


STAYS = "import sys, threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signals")
@pytest.mark.parametrize(
    ("words", "status", "number"), [("sys.exit(3)", 3, 45), ("pass", 0, 45), ("1 / 0", 1, 46)]
)
@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).parts[-3])
def test_once_its_main_thread_has_ended_a_process_leaves_when_it_is_asked(
    tmp_path, python, words, status, number
):
    """With its own exit status, though a thread would keep it; a signal of its own says whether an exception ended it."""
    if Path(python).parts[-3].startswith(("3.6", "3.7")):
        pytest.skip("the hook does nothing in so old a Python")
    (tmp_path / "train.py").write_text(STAYS + words)
    variables = {"PYTHONPATH": str(HOOK), "LAUNCH_HOOK": "observe"}
    process = subprocess.Popen([python, "train.py"], cwd=tmp_path, env=variables, stderr=subprocess.PIPE)
    try:
        until(lambda: catches(process.pid, 45) or catches(process.pid, 46), "the end of the main thread")
        assert catches(process.pid, number)
        process.send_signal(number)
        process.communicate(timeout=180)
        assert process.returncode == status
    finally:
        process.kill()
        process.communicate()


CLOSES_ALL = """
import os, threading
os.closerange(3, 400)
files = [open("mine.txt", "w") for _ in range(200)]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signals")
@pytest.mark.parametrize(
    ("words", "told"), [(CLOSES_ALL, b""), ("import threading", b"launch: the main thread")]
)
def test_the_end_of_a_main_thread_is_written_to_the_file_for_stacks_alone(tmp_path, words, told):
    """A script may have closed it, and have a file of its own at its descriptor."""
    (tmp_path / "train.py").write_text(words)
    assert run(tmp_path, hook=True) == (0, b"", b"")
    assert (tmp_path / "stacks.txt").read_bytes().startswith(told)
    assert bool((tmp_path / "stacks.txt").read_bytes()) is bool(told)
    assert words != CLOSES_ALL or (tmp_path / "mine.txt").read_bytes() == b""


MINE = {
    "one that prints": "print('mine', __name__, __file__)",
    "one that fails": "raise ValueError('bad')",
    "one that lacks a module": "import nothing_of_that_name",
    "one that waits for imports itself": "import sys, site; sys.meta_path.insert(0, type('F', (), {'find_spec': lambda *_: None})())",
}


@pytest.mark.parametrize("name", MINE)
def test_the_user_s_own_sitecustomize_still_runs(tmp_path, library, name):
    """Whatever it does; usercustomize follows, and the script sees it as the only one."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").write_text(MINE[name])
    user = Path(sysconfig.get_path("purelib", "posix_user", {"userbase": str(tmp_path / "base")}))
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("print('this is usercustomize')")
    (tmp_path / "train.py").write_text(LOOK + "import sitecustomize; print(sitecustomize.__spec__.origin)")
    more = {"PYTHONUSERBASE": str(tmp_path / "base")}
    python = os.path.realpath(sys.executable)  # a virtual environment has no usercustomize
    plain = run(tmp_path, hook=False, python=python, **more)
    assert run(tmp_path, hook=True, python=python, **more) == plain
    assert b"this is usercustomize" in plain[1]


def test_the_hook_is_there(tmp_path, library):
    """The tests above are not vacuous: the library is observed, and only in a training."""
    (library / "trainer.py").write_text("DEFAULT_CALLBACKS = []")
    (tmp_path / "train.py").write_text("from transformers import trainer; print(trainer.DEFAULT_CALLBACKS)")
    assert run(tmp_path, hook=False)[1] == b"[]\n"
    assert run(tmp_path, hook=True)[1] == b"[<class 'launcher_worker.observer.Observer'>]\n"


def test_two_hooks_observe_once(tmp_path, library):
    """A run may be launched within a training of another."""
    (library / "trainer.py").write_text("DEFAULT_CALLBACKS = []")
    (tmp_path / "train.py").write_text("from transformers import trainer; print(trainer.DEFAULT_CALLBACKS)")
    other = tmp_path / "mine"
    other.mkdir()
    (other / "sitecustomize.py").write_text((HOOK / "sitecustomize.py").read_text())
    assert run(tmp_path, hook=True) == (0, b"[<class 'launcher_worker.observer.Observer'>]\n", b"")


def test_a_script_without_torch_pays_less_than_20_ms(tmp_path):
    """The median difference of a Python that does nothing, with the hook and without it in turn."""
    (tmp_path / "train.py").write_text("")

    def seconds(hook):
        began = time.perf_counter()
        run(tmp_path, hook=hook)
        return time.perf_counter() - began

    assert statistics.median(seconds(True) - seconds(False) for _ in range(11)) < 0.02
