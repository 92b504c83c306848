"""The card of a model: a README.md beside its weights that says how it was made."""

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import launcher_worker as worker

CARD = """---
base_model: {base}
library_name: {library}
tags: [launcher, {job}]
---

# {title}

Trained by launcher's `{job}` (run {run}) with {versions}.

| | |
| --- | --- |
{rows}

```json
{settings}
```
"""


def own_name(path: str) -> str:
    """Return the own name of a model or of data: a path's last part, or a name at the hub. The host's path says nothing elsewhere."""
    return Path(path).name if Path(path).exists() else path


def training_facts(
    base: str,
    data: Mapping[str, str],
    counts: tuple[tuple[int, int], tuple[int, int]],
    step: int,
    results: Mapping[str, float],
) -> dict[str, object]:
    """Return what a card says of a training; `counts` are rows and the examples made of them: trained on, and held out."""
    trained, held_out = (f"{rows} rows" + f", as {made} examples" * (made != rows) for rows, made in counts)
    plan = worker.knobs()
    held = own_name(data["eval"]) if "eval" in data else "of the data, drawn by the seed"
    return {
        "base": own_name(base),
        "method": plan.method,
        "data": f"{own_name(data['train'])}, {trained}",
        "held out": f"{held}, {held_out}" if counts[1][0] else "none",
        "steps": step,
        "batch": f"{plan.split.global_batch} examples a step",
        "seed": plan.seed,
        "precision": plan.precision.mode,
        "results": ", ".join(f"{name} {value:.4g}" for name, value in results.items()) or "not evaluated",
    }


def write_card(
    folder: Path,
    title: str,
    library: str,
    job: str,
    facts: Mapping[str, object],
    settings: Mapping[str, object],
) -> None:
    """Write the card into the folder of a model; `facts` are of `training_facts`, and `auto` settings are None."""
    found = {}
    for name in ("torch", "transformers", "trl", "peft"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # distill needs no trl
            continue
    card = CARD.format(
        base=facts["base"],
        library=library,
        job=job,
        title=title,
        run=worker.knobs().run,
        versions=", ".join(f"{name} {number}" for name, number in found.items()),
        rows="\n".join(f"| {name} | {value} |" for name, value in facts.items()),
        settings=json.dumps(
            {name: "auto" if value is None else value for name, value in settings.items()}, indent=2
        ),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
