"""Arguments and names that libraries have removed, and what replaces them.

Sources: the signatures and modules of transformers 4.41 to 5.23, TRL 0.20 to 1.16, peft 0.21, huggingface_hub 2.4,
accelerate 1.15, torch 2.13, numpy 2, Pillow 10 and Python 3.10 to 3.13.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional


class Change(NamedTuple):
    """What a library no longer has: the words for its replacement, and the last versions that had it, as pip takes them."""

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
    "evaluation_strategy": Change("eval_strategy", "transformers<4.46"),
    "tokenizer": Change("processing_class", _TRAINER_5),
    "no_cuda": Change("use_cpu", _TRAINER_5),
    "per_gpu_train_batch_size": Change("per_device_train_batch_size", _TRAINER_5),
    "per_gpu_eval_batch_size": Change("per_device_eval_batch_size", _TRAINER_5),
    "push_to_hub_model_id": Change("hub_model_id", _TRAINER_5),
    "group_by_length": Change('train_sampling_strategy="group_by_length"', _TRAINER_5),
    "warmup_ratio": Change("warmup_steps, which takes a share below 1 as well", _TRAINER_5),
    "logging_dir": Change("the variable TENSORBOARD_LOGGING_DIR", _TRAINER_5),
    "overwrite_output_dir": Change("nothing: leave it out", _TRAINER_5),
    "save_safetensors": Change("nothing: leave it out, it is always on", _TRAINER_5),
    "use_mps_device": Change("nothing: leave it out", _TRAINER_5),
    "include_inputs_for_metrics": Change('include_for_metrics=["inputs"]', _TRAINER_5),
    "use_auth_token": Change("token", _TRAINER_5),
    "use_flash_attention_2": Change('attn_implementation="flash_attention_2"', _TRAINER_5),
    "load_in_4bit": Change("quantization_config=BitsAndBytesConfig(load_in_4bit=True)", _TRAINER_5),
    "load_in_8bit": Change("quantization_config=BitsAndBytesConfig(load_in_8bit=True)", _TRAINER_5),
    "max_seq_length": Change("max_length, an argument of SFTConfig", "trl<0.20"),
    "dataset_text_field": Change("dataset_text_field of SFTConfig: args=SFTConfig(…)", "trl<0.13"),
    "packing": Change("packing of SFTConfig: args=SFTConfig(…)", "trl<0.13"),
    "verbose": Change("nothing: leave it out, and print get_last_lr()"),
}
"""By argument. Each counts only for a callable of the libraries above, as `_CALLABLES` knows them."""
_CALLABLES = re.compile(
    r"\w*(?:Trainer|TrainingArguments|Config|ForCausalLM|ForConditionalGeneration|ForSequenceClassification"
    r"|ForTokenClassification|ForMaskedLM|ForQuestionAnswering|Model|LR|LROnPlateau|Scheduler)"
)

NAMES = {
    ("transformers", "AdamW"): Change("torch.optim.AdamW", _TRAINER_5),
    ("transformers.optimization", "AdamW"): Change("torch.optim.AdamW", _TRAINER_5),
    ("transformers", "AutoModelWithLMHead"): Change("AutoModelForCausalLM", _TRAINER_5),
    ("transformers", "AutoModelForVision2Seq"): Change("AutoModelForImageTextToText", _TRAINER_5),
    ("transformers", "TextDataset"): Change("datasets.load_dataset", _TRAINER_5),
    ("transformers.modeling_utils", "apply_chunking_to_forward"): Change(
        "transformers.pytorch_utils.apply_chunking_to_forward", _TRAINER_5
    ),
    ("peft", "prepare_model_for_int8_training"): Change("prepare_model_for_kbit_training", "peft<0.10"),
    ("huggingface_hub", "cached_download"): Change("hf_hub_download", "huggingface_hub<0.26"),
    ("huggingface_hub", "HfFolder"): Change("get_token", "huggingface_hub<1"),
    ("huggingface_hub", "Repository"): Change("HfApi.upload_folder", "huggingface_hub<1"),
    ("datasets", "load_metric"): Change("evaluate.load", "datasets<3"),
    ("collections", "Mapping"): Change("collections.abc.Mapping"),
    ("collections", "Iterable"): Change("collections.abc.Iterable"),
    ("collections", "Sequence"): Change("collections.abc.Sequence"),
    ("collections", "Callable"): Change("collections.abc.Callable"),
    ("numpy", "float"): Change("float", "numpy<1.24"),
    ("numpy", "int"): Change("int", "numpy<1.24"),
    ("numpy", "bool"): Change("bool", "numpy<1.24"),
    ("numpy", "object"): Change("object", "numpy<1.24"),
    ("numpy", "float_"): Change("numpy.float64", "numpy<2"),
    ("numpy", "Inf"): Change("numpy.inf", "numpy<2"),
    ("numpy", "NaN"): Change("numpy.nan", "numpy<2"),
    ("PIL.Image", "ANTIALIAS"): Change("PIL.Image.LANCZOS", "pillow<10"),
}
"""By module and name."""
MODULES = {
    "transformers.deepspeed": Change("transformers.integrations", _TRAINER_5),
    "torch._six": Change("Python's own str, int and collections.abc"),
    "torchvision.transforms.functional_tensor": Change(
        "torchvision.transforms.functional", "torchvision<0.17"
    ),
    "distutils": Change("setuptools: install it with the script", "setuptools"),
    "pkg_resources": Change("importlib.metadata, or an older setuptools", "setuptools<81"),
    "imp": Change("importlib"),
}


class Removed(NamedTuple):
    """What the installed library no longer has, what replaces it, and the older versions that had it, if known."""

    name: str
    change: Change


def removed(line: str, log: str) -> Optional[Removed]:
    """Return what an exception's line shows to have been removed; None if it shows no such thing.

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
    return Removed(module[1], known) if module and known is not None else None


def _removed(name: str, line: str, log: str, known: Optional[Change]) -> Optional[Removed]:
    suggested = _SUGGESTION.search(line)
    deprecated = (found[2] for found in _DEPRECATED.finditer(log) if found[1] == name.rpartition(".")[2])
    replacement = suggested[1] if suggested else next(deprecated, None)
    if replacement is not None:
        return Removed(name, Change(replacement, known.older if known else None))
    return Removed(name, known) if known is not None else None
