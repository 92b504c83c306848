"""Find the sources that a command starts, from its words and from the sources themselves."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.base.bounded_read import read_bounded
from launcher.errors import BadFileError
from launcher.planning.script.rank_use import rank_use
from launcher.planning.script.script import STARTER_MODULES, starts_python
from launcher.planning.script.worker_use import python_tree, values_taken
from launcher.values.job import Job
from launcher.values.plan import ScriptUse

MAX_FILES = 400
MAX_BYTES = 1_000_000
BY_THE_WORKER = (
    "attention",
    "batch",
    "compile",
    "loader_workers",
    "method",
    "save_every_steps",
    "seed",
    "settings",
    "steps",
)
"""The job keys that reach the script only through the worker."""
BY_ADAPTATION = ("attention", "batch", "method", "save_every_steps", "steps")
"""Those of them that also reach an adapted script, if it uses transformers."""
_WORD = re.compile(r"[\w./-]+")
_WORKER = re.compile(r"\blauncher_worker\b|\bLAUNCH_ATTEMPT\b")
_SENT_DATA = re.compile(r"\.\./data\b")
_RESUMES = re.compile(r"\bresume_from\b")
_QUANTIZES = re.compile(r"\b(quantization_config(?!\s*=\s*None\b)|load_in_[48]bit|BitsAndBytesConfig)\b")
_ADAPTS = re.compile(r"\b(get_peft_model|PeftModel\w*|LoraConfig|peft_config|use_peft)\b")
_COMPUTED = re.compile(
    r"\bexec\(|\bos\.(system|popen|exec|spawn|posix_spawn)|\b(import_module|__import__|run_path|run_module|spec_from_file_location"
    r"|entry_points|subprocess|locate|LightningCLI)\b"
)
"""The names by which a source starts code that it does not import."""
_PUBLIC = frozenset(
    (
        "PIL", "absl", "accelerate", "bitsandbytes", "cv2", "datasets", "deepspeed", "einops", "evaluate", "huggingface_hub",
        "lightning", "matplotlib", "numpy", "pandas", "peft", "pytorch_lightning", "rich", "safetensors", "scipy",
        "sentencepiece", "sklearn", "tensorboard", "tiktoken", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics",
        "torchvision", "tqdm", "transformers", "trl", "wandb", "yaml",
    )
)  # fmt: skip
"""Modules of public packages, which do not use the worker. Any other package may be the user's own."""
_SUFFIXES = (".py", ".sh", ".bash")


def script_use(job: Job, folder: Path) -> ScriptUse:
    """Return the values that a job's scripts take from the plan, and their use of ranks; `folder` is the code folder.

    An adapted script takes precision and checkpointing. Its batch is changed only if the job sets one,
    because a plan's default may differ from the script's intent. A script that quantizes a model decides how
    large its base is. So does an adapted script that makes an adapter with peft while the job does not set
    `method`.
    """
    files = [*_Reading(folder).files(job.command)]
    taken = {*values_taken(one.text for one in files)}
    if job.adapt:
        taken |= {"precision", "checkpointing"}
        taken |= {"split"} if job.batch.model_fields_set else set()
    has_own_adapter = job.adapt and job.method == "full" and any(_ADAPTS.search(one.text) for one in files)
    if "precision" in taken and not has_own_adapter and not any(_QUANTIZES.search(one.text) for one in files):
        taken.add("base")
    return ScriptUse(tuple(sorted(taken)), rank_use(job.command, ((one.name, one.tree) for one in files)))


def seems_to_resume(job: Job, folder: Path) -> bool | None:
    """Return whether a job's scripts name the worker's `resume_from`, or are adapted; `None` if none can be read."""
    sources = [*_Reading(folder).sources(job.command)]
    if job.adapt or any(_RESUMES.search(source) for source in sources):
        return True
    return False if sources else None


def imported(job: Job, folder: Path) -> dict[str, str]:
    """Return the modules that a job's Python imports at the top of its files, each with the first such file.

    An import in a function, or one that may fail, does not count.
    """
    if not starts_python(job.command):
        return {}
    found: dict[str, str] = {}
    for file in _Reading(folder).files(job.command):
        for node in file.tree.body:
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                found.setdefault(name.partition(".")[0], file.name)
    return found


class WorkerUse(NamedTuple):
    """Whether a job's scripts name the worker, which passes a run's seed and settings to them.

    `is_certain`: they do, or all of the code that the command starts was read, except for packages that do not use it.
    `names_data`: they or the command name the folder beside the code that holds the data.
    """

    uses_worker: bool
    is_certain: bool
    names_data: bool = False


def worker_use(job: Job, folder: Path) -> WorkerUse:
    """Return the use of the worker by a job's scripts."""
    reading = _Reading(folder)
    sources = [*reading.sources(job.command)]
    if any(map(_WORKER.search, sources)):
        return WorkerUse(True, True)
    is_known = reading.installed <= sys.stdlib_module_names | _PUBLIC
    names_data = any(map(_SENT_DATA.search, (*job.command, *sources)))
    return WorkerUse(False, reading.is_whole and is_known and starts_python(job.command), names_data)


class _PythonFile(NamedTuple):
    """A source that was read: its path below the code folder (or `-c`), its text, and its syntax tree."""

    name: str
    text: str
    tree: ast.Module


class _Reading:
    """Follows a command through scripts and imports; each file is read once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: deque[Path] = deque()
        self._seen: set[Path] = set()
        self._packages: dict[Path, bool] = {}
        self._has_python = False
        self.is_whole = True
        """Whether all of the code was found and read so far."""
        self.installed: set[str] = set()
        """The first names of the imported modules that the code folder does not have."""

    def sources(self, command: Sequence[str]) -> Iterator[str]:
        """Yield the texts of the Python code that a command starts."""
        yield from (one.text for one in self.files(command))

    def files(self, command: Sequence[str]) -> Iterator[_PythonFile]:
        """Yield the Python code that a command starts: in its words, in files, and in their imports."""
        for word, following in itertools.pairwise([*command, ""]):
            if word == "-c":
                yield from self._take(word, following, self._folder)
            elif word == "-m":
                before = len(self._waiting)
                self._import(following, self._folder)
                if len(self._waiting) == before and following not in STARTER_MODULES:
                    self.is_whole = False
            self._name(word, self._folder)
            if "/" in word:  # a program without a suffix
                self._wait_for(self._folder / word)
        for _ in range(MAX_FILES):
            if not self._waiting:
                self.is_whole = self.is_whole and self._has_python
                return
            path = self._waiting.popleft()
            try:
                text = read_bounded(path, MAX_BYTES, cuts=True).decode(errors="replace")
            except (OSError, BadFileError):
                self.is_whole = False
                continue
            name = os.path.relpath(path, self._folder)
            yield from self._take(name, text, path.parent)
        self.is_whole = False

    def _take(self, name: str, text: str, folder: Path) -> Iterator[_PythonFile]:
        """Yield a text if it is Python, and queue the files that it names and imports."""
        tree = python_tree(text)
        if tree is None or _COMPUTED.search(text):
            self.is_whole = False
        if tree is None:
            self._read_shell(text, folder)
            return
        self._has_python = True
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for one in node.names:
                    self._import(one.name, folder)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node, folder)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._name(node.value, folder)
        yield _PythonFile(name, text, tree)

    def _read_shell(self, text: str, folder: Path) -> None:
        for line in text.splitlines():
            words = _words(line)
            for word, following in itertools.pairwise([*words, ""]):
                self._name(word, folder)
                if word == "-m":
                    self._import(following, self._folder)

    def _import_from(self, node: ast.ImportFrom, folder: Path) -> None:
        module = node.module or ""
        names = [f"{module}.{one.name}".strip(".") for one in node.names]
        if not node.level:
            for name in (module, *names):
                self._import(name, folder)
            return
        above = folder
        for _ in range(node.level - 1):
            above = above.parent
        for name in filter(None, (module, *names)):
            self._wait_for_module(above, name)

    def _import(self, module: str, folder: Path) -> None:
        """Queue a module of the code folder, and the packages that contain it."""
        if not re.fullmatch(r"\w+(\.\w+)*", module):
            return
        bases = {folder, self._folder, self._folder / "src"}
        found = [self._wait_for_module(base, module) for base in bases]
        if not any(found):
            self.installed.add(module.partition(".")[0])

    def _wait_for_module(self, base: Path, module: str) -> bool:
        """Queue a module below a folder; return whether its first package is there."""
        path, first = base, base / module.partition(".")[0]
        if first not in self._packages:
            self._packages[first] = first.is_dir() or first.with_suffix(".py").is_file()
        if not self._packages[first]:
            return False
        for part in module.split("."):
            self._wait_for(path / part / "__init__.py")
            self._wait_for(path / f"{part}.py")
            path /= part
        self._wait_for(path / "__main__.py")
        return True

    def _name(self, word: str, folder: Path) -> None:
        """Queue the script that a word names, relative to the code folder or to the file that contains the word."""
        if word.endswith(_SUFFIXES):
            for base in {self._folder, folder}:
                self._wait_for(base / word)

    def _wait_for(self, path: Path) -> None:
        if path in self._seen:
            return
        self._seen.add(path)
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if path.is_file() and path.resolve().is_relative_to(self._folder.resolve()):
                self._waiting.append(path)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return _WORD.findall(line)
