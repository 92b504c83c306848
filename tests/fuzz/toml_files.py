"""Generated TOML: of our own keys with values of every kind, and of absurd depth, numbers and names."""

from __future__ import annotations

import random

KEYS = [
    *("name", "command", "code", "requirements", "image", "model", "method", "attention", "compile", "data", "train", "eval"),
    *("batch", "global", "micro", "settings", "variables", "secrets", "steps", "attempts", "outputs", "pull_limit", "hosts"),
    *("host", "profile", "job", "address", "user", "port", "root", "environment", "runtime", "build", "pip_conf", "torch_index"),
    *("identity_file", "known_hosts", "connect_timeout_s", "base_image", "ca_bundle", "time_limit_minutes", "inject", "seed"),
    *("a", "lab", "local", '"x y"', '"\\u00e9"', "''", '"' + "k" * 300 + '"', "a.b", "hosts.lab", "hosts.lab.build"),
]  # fmt: skip
WORDS = [
    *("", "a", "train.py", "./data", "../x", "/", "~", "~root/x", "~nobody/x", "~nosuch/x", "hub:a/b", "host:/x", "a/b", "auto"),
    *("n" * 300, "/" + "n" * 300, "a/" * 3000, "$(id)", "-oProxyCommand=x", "a\\u0000b", "\\ud7ff", "\\u202e", "{}", "%s", "\\n"),
    *("docker", "native", "full", "lora", "python", "*.pt", "!x", "[", "**/a", "HF_TOKEN", "A=B", "127.0.0.1", "::1", "user@h:22"),
]  # fmt: skip
NUMBERS = [
    *("0", "-1", "1", "8", "1.5", "nan", "-inf", "1e308", "9223372036854775807", "9223372036854775808", "-9223372036854775809"),
    *("9" * 400, "9" * 4400, "0x" + "f" * 40, "1e400", "1_000", "0o7", "0b1"),
]  # fmt: skip
OTHERS = ["true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z"]


def value(draw: random.Random, depth: int = 0) -> str:
    """Return a value: a scalar, or a list or table of values."""
    kind = draw.random()
    if depth < 4 and kind < 0.12:
        return "[" + ", ".join(value(draw, depth + 1) for _ in range(draw.randrange(4))) + "]"
    if depth < 4 and kind < 0.22:
        pairs = (f"{draw.choice(KEYS)} = {value(draw, depth + 1)}" for _ in range(draw.randrange(4)))
        return "{" + ", ".join(pairs) + "}"
    if kind < 0.24:
        deep = draw.choice([10, 60, 200, 1200, 6000])
        return "[" * deep + "]" * deep if draw.random() < 0.5 else "{a=" * deep + "1" + "}" * deep
    if kind < 0.6:
        return '"' + draw.choice(WORDS) + '"'
    return draw.choice(NUMBERS) if kind < 0.85 else draw.choice(OTHERS)


def text(seed: int) -> str:
    """Return the content of a file: tables of our keys, with some bytes changed in one of five."""
    draw = random.Random(seed)
    lines = []
    for _ in range(draw.randrange(1, 9)):
        if draw.random() < 0.25:
            lines.append(f"[{draw.choice(KEYS)}]")
        elif draw.random() < 0.01:
            lines.append(".".join(["a"] * draw.choice([40, 60, 3000])) + " = 1")
        else:
            lines.append(f"{draw.choice(KEYS)} = {value(draw)}")
    written = "\n".join(lines) + "\n"
    if draw.random() < 0.2:
        at = draw.randrange(len(written))
        written = (
            written[:at] + draw.choice(['"', "=", "[", "]]", "\x00", "\ufffd", "#", "\\"]) + written[at + 1 :]
        )
    return written
