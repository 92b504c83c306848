"""The model of a fine-tune: its adapter, the files that come home, and the merge."""

import json
from pathlib import Path

import torch
import transformers
import trl
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

CARD = """---
base_model: {base}
library_name: {library}
tags: [launcher, sft]
---

# {title}

Trained by launcher's `sft` (run {run}) with transformers {transformers}, trl {trl} and torch {torch}.

| | |
| --- | --- |
| base | {base} |
| data | {data} |
| steps | {steps} |
| results | {results} |

```json
{settings}
```
"""


def adapter_of(rank: int, alpha: int, dropout: float, targets: str, dora: bool, rslora: bool) -> LoraConfig:
    """Return the adapter: `targets` is "all-linear", or names of modules separated by commas."""
    names = [name.strip() for name in targets.split(",")]
    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=names[0] if names == ["all-linear"] else names,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        use_dora=dora,
        use_rslora=rslora,
    )


def own_name(path: str) -> str:
    """Return the own name of a model or of data: a path's last part, or a name at the hub. The host's path says nothing elsewhere."""
    return Path(path).name if Path(path).exists() else path


def save(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    base: str,
    about: dict[str, object],
) -> None:
    """Write an adapter or a model with its tokenizer, and a card that says how it was made."""
    is_adapter = isinstance(model, PeftModel)
    model.save_pretrained(folder)
    if is_adapter:
        written = folder / "adapter_config.json"
        config = json.loads(written.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = own_name(base)
        written.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tokenizer.save_pretrained(folder)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, trl)}
    card = CARD.format(
        base=own_name(base),
        library="peft" if is_adapter else "transformers",
        title="Adapter" if is_adapter else "Model",
        **versions,
        **{name: value for name, value in about.items() if name != "settings"},
        settings=json.dumps(about["settings"], indent=2),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def merge(base: str, adapter: Path, target: Path, dtype: str) -> None:
    """Write the base with the adapter added to its weights, in shards; transformers alone loads it.

    It is computed in float32 on the CPU, so that a half-precision base is rounded once. `dtype` is that of the files;
    "auto" is the base's own.
    """
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    stored = model.dtype if dtype == "auto" else getattr(torch, dtype)
    merged = PeftModel.from_pretrained(model.float(), adapter).merge_and_unload()
    merged.to(stored)
    merged.save_pretrained(target, max_shard_size="5GB")
