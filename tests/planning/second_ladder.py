"""The ladder, derived a second time from docs/precision.md alone ("The ladder's rules", "Memory"): no code of launcher is used.

A rung is a pair such as ("fp16", "fp32"): what computes, and the base's dtype.
"""

from typing import Any

Rung = tuple[str, str]
TOKENS = 1024
RANK = 16
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
QUANTIZED = (4 + 8 / 64 + 32 / 16384) / 8


def second_ladder(card: dict[str, Any], method: str, born: str, config: dict[str, Any]) -> list[Rung]:
    """Return the rungs of a profile's TOML table, for a Llama of this config that was saved in the dtype `born`."""

    def fits(rung: Rung) -> bool:
        if card["kind"] != "cuda":
            return True
        return peak(method, rung, config) <= 0.96 * memory(card) - 1e9

    table = _table(card, method, fits)
    wide = ("fp16", "fp32")
    if born == "bf16" and wide in table and fits(wide):
        table = [rung for rung in table if rung != ("fp16", "fp16")]
    fitting = [rung for rung in table if fits(rung)]
    return fitting or (table and [min(table, key=lambda rung: peak(method, rung, config))])


def memory(card: dict[str, Any]) -> float:
    """Return a card's memory in bytes: by its driver, else the nominal one."""
    return card["memory_mib"] * 2**20 if "memory_mib" in card else card["memory_gb"] * 1e9


def _table(card: dict[str, Any], method: str, fits: Any) -> list[Rung]:
    fp32 = ("fp32", "fp32")
    if card["kind"] != "cuda":  # software that is not known: neither macOS 14 nor torch 2.6
        return [] if card["kind"] == "mps" and method == "qlora" else [fp32]
    capability = float(card["capability"])
    if capability >= 8:
        return [("bf16", "fp32" if method == "full" else "bf16"), ("tf32", "fp32"), fp32]
    halves = [] if method == "full" else [("fp16", "fp16")]
    scaled = [*halves, ("fp16", "fp32")]
    if capability >= 7:
        return [*scaled, fp32]
    return [fp32] if fits(fp32) else [fp32, *scaled]


def peak(method: str, rung: Rung, config: dict[str, Any]) -> float:
    """Return the peak of a step with a micro-batch of one, in bytes, with AdamW."""
    compute, base = rung
    lora, autocast = method != "full", compute in ("fp16", "bf16")
    c, b = (2 if autocast else 4), BYTES[base]
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head = hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    embedding = config["vocab_size"] * hidden
    body = layers * (2 * hidden * queries + 2 * hidden * keys + 3 * hidden * inner)
    everything = body + embedding * (1 if config["tie_word_embeddings"] else 2)
    multiplied = embedding + (0 if method == "qlora" else body)
    adapter = RANK * layers * (2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + inner))
    trained = adapter if lora else everything

    copies = 0
    if autocast:
        copies = 2 * trained + (2 * multiplied if base == "fp32" else 0) if lora else 2 * multiplied
    inputs = (10 * hidden + (2 * queries if lora else 0)) if autocast else 2 * c * hidden
    layer = (
        8 * hidden
        + inputs
        + c * (2 * queries + 2 * keys)
        + (14 if method == "qlora" and rung == ("fp16", "fp32") else 4 * c) * inner
    )
    layer += 7 * c * RANK if lora else 8 * hidden
    passes = copies + TOKENS * (layers * layer + 12 * config["vocab_size"])
    frozen = QUANTIZED * body + b * (everything - body) if method == "qlora" else b * everything
    states = 16 * trained + (frozen if lora else 0)
    return states + max(passes, 4 * trained)
