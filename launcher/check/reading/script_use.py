"""Find the sources that a command starts, from its words and from the sources themselves."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

from launcher.check.reading.rank_use import rank_use
from launcher.check.reading.sources import Sources
from launcher.check.reading.worker_use import values_taken
from launcher.planning.script.script import starts_python
from launcher.values.job import Job
from launcher.values.plan import ScriptUse

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
_WORKER = re.compile(r"\blauncher_worker\b|\bLAUNCH_ATTEMPT\b")
_SENT_DATA = re.compile(r"\.\./data\b")
_RESUMES = re.compile(r"\bresume_from\b")
_QUANTIZES = re.compile(r"\b(quantization_config(?!\s*=\s*None\b)|load_in_[48]bit|BitsAndBytesConfig)\b")
_ADAPTS = re.compile(r"\b(get_peft_model|PeftModel\w*|LoraConfig|peft_config|use_peft)\b")
_PUBLIC = frozenset(
    (
        "PIL", "absl", "accelerate", "bitsandbytes", "cv2", "datasets", "deepspeed", "einops", "evaluate", "huggingface_hub",
        "lightning", "matplotlib", "numpy", "pandas", "peft", "pytorch_lightning", "rich", "safetensors", "scipy",
        "sentencepiece", "sklearn", "tensorboard", "tiktoken", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics",
        "torchvision", "tqdm", "transformers", "trl", "wandb", "yaml",
    )
)  # fmt: skip
"""Modules of public packages, which do not use the worker. Any other package may be the user's own."""


def script_use(job: Job, folder: Path) -> ScriptUse:
    """Return the values that a job's scripts take from the plan, and their use of ranks; `folder` is the code folder.

    An adapted script takes precision and checkpointing. Its batch is changed only if the job sets one,
    because a plan's default may differ from the script's intent. A script that quantizes a model decides how
    large its base is. So does an adapted script that makes an adapter with peft while the job does not set
    `method`.
    """
    files = [*Sources(folder).files(job.command)]
    taken = {*values_taken(files)}
    if job.adapt:
        taken |= {"precision", "checkpointing"}
        taken |= {"split"} if job.batch.model_fields_set else set()
    has_own_adapter = job.adapt and job.method == "full" and any(_ADAPTS.search(one.text) for one in files)
    if "precision" in taken and not has_own_adapter and not any(_QUANTIZES.search(one.text) for one in files):
        taken.add("base")
    return ScriptUse(tuple(sorted(taken)), rank_use(job.command, files))


def seems_to_resume(job: Job, folder: Path) -> bool | None:
    """Return whether a job's scripts name the worker's `resume_from`, or are adapted; `None` if none can be read."""
    sources = [one.text for one in Sources(folder).files(job.command)]
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
    for file in Sources(folder).files(job.command):
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
    reading = Sources(folder)
    sources = [one.text for one in reading.files(job.command)]
    if any(map(_WORKER.search, sources)):
        return WorkerUse(True, True)
    is_known = reading.installed <= sys.stdlib_module_names | _PUBLIC
    names_data = any(map(_SENT_DATA.search, (*job.command, *sources)))
    return WorkerUse(False, reading.is_whole and is_known and starts_python(job.command), names_data)
