"""Arguments and names that libraries have removed, and their replacements.

Sources: the signatures and modules of transformers 4.41 to 5.23, TRL 0.20 to 1.16, peft 0.21, huggingface_hub
2.4, accelerate 1.15, torch 2.13, numpy 2, Pillow 10 and Python 3.10 to 3.13.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional


class LibraryChange(NamedTuple):
    """A removal from a library: its replacement in words, and the last versions before it in pip's syntax."""

    replacement: str
    older: Optional[str] = None


_ARGUMENT = re.compile(r"TypeError: (?:([\w.]+)\.)?(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_IMPORT = re.compile(r"ImportError: cannot import name '(\w+)' from '([\w.]+)'")
_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_ATTRIBUTE = re.compile(r"AttributeError: module '([\w.]+)' has no attribute '(\w+)'")
_SUGGESTION = re.compile(r"Did you mean:? '(\w+)'\?")  # Python 3.12 for imports, 3.13 for arguments
_DEPRECATED = re.compile(
    r"`(\w+)` is deprecated[^`\n]{0,200}(?:for `[\w.]+`)?[^`\n]{0,80}[Uu]se `(\w+)` instead"
)

_TRAINER_5 = "transformers<5"
ARGUMENTS = {
    "evaluation_strategy": LibraryChange("eval_strategy", "transformers<4.46"),
    "tokenizer": LibraryChange("processing_class", _TRAINER_5),
    "no_cuda": LibraryChange("use_cpu", _TRAINER_5),
    "per_gpu_train_batch_size": LibraryChange("per_device_train_batch_size", _TRAINER_5),
    "per_gpu_eval_batch_size": LibraryChange("per_device_eval_batch_size", _TRAINER_5),
    "push_to_hub_model_id": LibraryChange("hub_model_id", _TRAINER_5),
    "group_by_length": LibraryChange('train_sampling_strategy="group_by_length"', _TRAINER_5),
    "warmup_ratio": LibraryChange("warmup_steps, which takes a share below 1 as well", _TRAINER_5),
    "logging_dir": LibraryChange("the variable TENSORBOARD_LOGGING_DIR", _TRAINER_5),
    "overwrite_output_dir": LibraryChange("nothing: leave it out", _TRAINER_5),
    "save_safetensors": LibraryChange("nothing: leave it out, it is always on", _TRAINER_5),
    "fp16_backend": LibraryChange("nothing: leave it out", _TRAINER_5),
    "half_precision_backend": LibraryChange("nothing: leave it out", _TRAINER_5),
    "fp16_opt_level": LibraryChange("nothing: leave it out", _TRAINER_5),
    "torchdynamo": LibraryChange("torch_compile_backend", _TRAINER_5),
    "use_mps_device": LibraryChange("nothing: leave it out", _TRAINER_5),
    "include_inputs_for_metrics": LibraryChange('include_for_metrics=["inputs"]', _TRAINER_5),
    "use_auth_token": LibraryChange("token", _TRAINER_5),
    "use_flash_attention_2": LibraryChange('attn_implementation="flash_attention_2"', _TRAINER_5),
    "load_in_4bit": LibraryChange("quantization_config=BitsAndBytesConfig(load_in_4bit=True)", _TRAINER_5),
    "load_in_8bit": LibraryChange("quantization_config=BitsAndBytesConfig(load_in_8bit=True)", _TRAINER_5),
    "max_seq_length": LibraryChange("max_length, an argument of SFTConfig", "trl<0.20"),
    "dataset_text_field": LibraryChange("dataset_text_field of SFTConfig: args=SFTConfig(…)", "trl<0.13"),
    "packing": LibraryChange("packing of SFTConfig: args=SFTConfig(…)", "trl<0.13"),
    "verbose": LibraryChange("nothing: leave it out, and print get_last_lr()"),
}
"""The removals by argument. Each counts only for a callable of the libraries above, as matched by `_CALLABLES`."""
_CALLABLES = re.compile(
    r"\w*(?:Trainer|TrainingArguments|Config|ForCausalLM|ForConditionalGeneration|ForSequenceClassification"
    r"|ForTokenClassification|ForMaskedLM|ForQuestionAnswering|Model|LR|LROnPlateau|Scheduler)"
)

NAMES = {
    ("transformers", "AdamW"): LibraryChange("torch.optim.AdamW", _TRAINER_5),
    ("transformers.optimization", "AdamW"): LibraryChange("torch.optim.AdamW", _TRAINER_5),
    ("transformers", "AutoModelWithLMHead"): LibraryChange("AutoModelForCausalLM", _TRAINER_5),
    ("transformers", "AutoModelForVision2Seq"): LibraryChange("AutoModelForImageTextToText", _TRAINER_5),
    ("transformers", "TextDataset"): LibraryChange("datasets.load_dataset", _TRAINER_5),
    ("transformers.modeling_utils", "apply_chunking_to_forward"): LibraryChange(
        "transformers.pytorch_utils.apply_chunking_to_forward", _TRAINER_5
    ),
    ("peft", "prepare_model_for_int8_training"): LibraryChange(
        "prepare_model_for_kbit_training", "peft<0.10"
    ),
    ("huggingface_hub", "cached_download"): LibraryChange("hf_hub_download", "huggingface_hub<0.26"),
    ("huggingface_hub", "HfFolder"): LibraryChange("get_token", "huggingface_hub<1"),
    ("huggingface_hub", "Repository"): LibraryChange("HfApi.upload_folder", "huggingface_hub<1"),
    ("datasets", "load_metric"): LibraryChange("evaluate.load", "datasets<3"),
    ("collections", "Mapping"): LibraryChange("collections.abc.Mapping"),
    ("collections", "Iterable"): LibraryChange("collections.abc.Iterable"),
    ("collections", "Sequence"): LibraryChange("collections.abc.Sequence"),
    ("collections", "Callable"): LibraryChange("collections.abc.Callable"),
    ("numpy", "float"): LibraryChange("float", "numpy<1.24"),
    ("numpy", "int"): LibraryChange("int", "numpy<1.24"),
    ("numpy", "bool"): LibraryChange("bool", "numpy<1.24"),
    ("numpy", "object"): LibraryChange("object", "numpy<1.24"),
    ("numpy", "float_"): LibraryChange("numpy.float64", "numpy<2"),
    ("numpy", "Inf"): LibraryChange("numpy.inf", "numpy<2"),
    ("numpy", "NaN"): LibraryChange("numpy.nan", "numpy<2"),
    ("PIL.Image", "ANTIALIAS"): LibraryChange("PIL.Image.LANCZOS", "pillow<10"),
}
"""The removals by module and name."""
MODULES = {
    "transformers.deepspeed": LibraryChange("transformers.integrations", _TRAINER_5),
    "torch._six": LibraryChange("Python's own str, int and collections.abc"),
    "torchvision.transforms.functional_tensor": LibraryChange(
        "torchvision.transforms.functional", "torchvision<0.17"
    ),
    "distutils": LibraryChange("setuptools: install it with the script", "setuptools"),
    "pkg_resources": LibraryChange("importlib.metadata, or an older setuptools", "setuptools<81"),
    "imp": LibraryChange("importlib"),
}


class RemovedName(NamedTuple):
    """A name that the installed library lacks, its replacement, and older versions that had it, if known."""

    name: str
    change: LibraryChange


def removed(line: str, log: str) -> Optional[RemovedName]:
    """Return the removed name that an exception's line shows; None if it shows none.

    Python's own suggestion counts first, then a deprecation earlier in the log, then the tables.
    """
    argument = _ARGUMENT.search(line)
    if argument:
        owner = argument[1] or argument[2]
        known = ARGUMENTS.get(argument[3]) if owner == "__init__" or _CALLABLES.fullmatch(owner) else None
        return _removed(argument[3], line, log, known)
    imported = _IMPORT.search(line)
    if imported:
        return _removed(imported[1], line, log, NAMES.get((imported[2], imported[1])))
    attribute = _ATTRIBUTE.search(line)
    if attribute:
        return _removed("%s.%s" % attribute.groups(), line, log, NAMES.get((attribute[1], attribute[2])))
    module = _MODULE.search(line)
    known = MODULES.get(module[1]) if module else None
    return RemovedName(module[1], known) if module and known is not None else None


def _removed(name: str, line: str, log: str, known: Optional[LibraryChange]) -> Optional[RemovedName]:
    suggested = _SUGGESTION.search(line)
    deprecated = (found[2] for found in _DEPRECATED.finditer(log) if found[1] == name.rpartition(".")[2])
    replacement = suggested[1] if suggested else next(deprecated, None)
    if replacement is not None:
        return RemovedName(name, LibraryChange(replacement, known.older if known else None))
    return RemovedName(name, known) if known is not None else None
