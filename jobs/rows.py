"""Read training data in the forms that people have, and say which row is wrong: file, line and reason.

A row becomes one of the forms that TRL knows: `messages`, `prompt` with `completion`, or `text`. `read_rows` takes

    {"messages": [{"role": "user", "content": …}, …]}           OpenAI's chats
    {"conversations": [{"from": "human", "value": …}, …]}       ShareGPT
    {"prompt": …, "completion": …} or {"prompt": …, "answer": …}
    {"instruction": …, "input": …, "output": …}                 alpaca; `input` may be missing
    {"text": …}                                                 plain text

from JSONL, JSON (a list), CSV, TSV, Parquet, a folder of such files, or a data set of the hub.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # launch checks rows before they travel, where these libraries may be missing
    import datasets
    from transformers import PreTrainedTokenizerBase

Row = dict[str, Any]
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
"""The names of a turn's speaker, in all forms."""
PROMPTED = (("prompt", "completion"), ("prompt", "answer"), ("instruction", "output"))
"""The pairs of keys that hold a question and its answer."""
SEPARATOR = "\n"
"""It stands between prompt and answer where the tokenizer has no chat template."""
TAGS = "<answer>{}</answer>"
IGNORED = -100
"""The label of a token that is not learnt."""


class RowError(Exception):
    """Raised for a row that is not of a known form; the text is the reason."""


# ---- from files to rows


def read_rows(source: str, most: int | None = None) -> list[Row]:
    """Read the rows of a file, a folder or a data set of the hub, in TRL's forms. SystemExit names the row that is wrong.

    All rows must have the form of the first one. `most` is a number of rows after which to stop.
    """
    rows: list[Row] = []
    for where, raw in itertools.islice(_raw_rows(source), most):
        try:
            rows.append(formed(raw))
            if form_of(rows[-1]) != form_of(rows[0]):
                raise RowError(f"it is {form_of(rows[-1])}, and the first row is {form_of(rows[0])}")
        except RowError as error:
            raise SystemExit(f"{where}: {error}") from None
    if not rows:
        raise SystemExit(f"{source}: no rows")
    return rows


def _raw_rows(source: str) -> Iterator[tuple[str, object]]:
    """Yield where each row is, and the row as written."""
    path = Path(source)
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.suffix in READERS and one.is_file())
        if not files:
            raise SystemExit(f"{source}: the folder has no file with rows ({' '.join(READERS)})")
        for file in files:
            yield from READERS[file.suffix](file)
    elif path.exists():
        if path.suffix not in READERS:
            raise SystemExit(f"{source}: not one of {' '.join(READERS)}")
        yield from READERS[path.suffix](path)
    else:
        import datasets  # only data of the hub and Parquet need it

        for number, row in enumerate(datasets.load_dataset(source, split="train"), start=1):
            yield f"{source}, row {number}", row


def _json_lines(path: Path) -> Iterator[tuple[str, object]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")


def _json(path: Path) -> Iterator[tuple[str, object]]:
    """Read a list of rows; a file of JSON lines is often called .json too."""
    text = path.read_bytes()
    if not text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        yield from _json_lines(path)
        return
    rows: Any = _parsed(text, str(path))
    for number, row in enumerate(rows, start=1):
        yield f"{path}, row {number}", row


def _parsed(text: bytes, where: str) -> object:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise SystemExit(f"{where}: not UTF-8") from None
    except ValueError as error:
        raise SystemExit(f"{where}: not JSON: {error}") from None
    except RecursionError:
        raise SystemExit(f"{where}: not JSON that can be read: it is nested too deeply") from None


def _table(path: Path) -> Iterator[tuple[str, object]]:
    csv.field_size_limit(1 << 30)  # a row may hold a book
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise SystemExit(f"{path}, line {reader.line_num}: not as many cells as the first line")
                yield f"{path}, line {reader.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise SystemExit(f"{path}, after line {reader.line_num}: not a table: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, object]]:
    import datasets

    for number, row in enumerate(datasets.Dataset.from_parquet(str(path), keep_in_memory=True), start=1):
        yield f"{path}, row {number}", row


READERS: dict[str, Callable[[Path], Iterator[tuple[str, object]]]] = {
    ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _table, ".tsv": _table, ".parquet": _parquet,
}  # fmt: skip


# ---- forms


def formed(raw: object) -> Row:
    """Return a row in one of TRL's forms. Raises RowError."""
    if not isinstance(raw, dict):
        raise RowError("not an object")
    given = {str(key): value for key, value in raw.items() if value is not None}
    for key in ("messages", "conversations"):
        if key in given:
            return {"messages": turns(given[key]), **({"tools": given["tools"]} if "tools" in given else {})}
    for asked, answered in PROMPTED:
        if asked in given and answered in given:
            prompt, more = (
                text_of(given, asked),
                str(given.get("input", "")).strip() if asked == "instruction" else "",
            )
            return {
                "prompt": f"{prompt}\n\n{more}" if more else prompt,
                "completion": text_of(given, answered),
            }
    if "text" in given:
        return {"text": text_of(given, "text")}
    for asked, answered in PROMPTED:
        if asked in given:
            raise RowError(f'no "{answered}"')
    raise RowError(
        f"its keys are {', '.join(sorted(given)[:8]) or 'none'}: none of the forms that rows.py names"
    )


def turns(value: object) -> list[dict[str, str]]:
    """Return the turns of a chat. Raises RowError for one that a model cannot learn from."""
    if not isinstance(value, list) or not value:
        raise RowError(f"its turns are {value!r:.60}, not a list")
    found = []
    for number, turn in enumerate(value, start=1):
        if not isinstance(turn, dict):
            raise RowError(f"turn {number} is {turn!r:.60}, not an object")
        said = turn.get("role", turn.get("from"))
        if said not in ROLES:
            raise RowError(f"turn {number} is of {said!r:.40}; there are {', '.join(ROLES)}")
        key = "content" if "content" in turn else "value"
        more = {name: turn[name] for name in ("tool_calls", "name") if turn.get(name)}
        content = "" if more and not turn.get(key) else text_of(turn, key, f"turn {number}: ")
        found.append({"role": ROLES[said], "content": content, **more})
    if not any(turn["role"] == "assistant" for turn in found):
        raise RowError("no turn is the assistant's: there is nothing to learn")
    return found


def text_of(row: dict[str, Any], key: str, where: str = "") -> str:
    """Return a value as text; a number counts as one. Raises RowError if it is missing, empty or of another kind."""
    if key not in row:
        raise RowError(f'{where}no "{key}"')
    value = row[key]
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise RowError(f'{where}"{key}" is {value!r:.60}, not a text')
    return str(value)


def form_of(row: Row) -> str:
    """Return the name of a row's form."""
    return "messages" if "messages" in row else "prompt and completion" if "prompt" in row else "text"


# ---- what a model reads


def for_model(row: Row, tokenizer: PreTrainedTokenizerBase, system: str | None, tagged: bool) -> Row:
    """Return a row as the model is asked: as a chat if the tokenizer has a template, with the system prompt if there is none.

    `tagged` puts the answer of a prompt between <answer> tags.
    """
    if "text" in row:
        return row
    if "messages" in row:
        first = row["messages"][0]["role"]
        begin = [{"role": "system", "content": system}] if system and first != "system" else []
        return {**row, "messages": [*begin, *row["messages"]]}
    answer = TAGS.format(row["completion"].strip()) if tagged else row["completion"]
    if not tokenizer.chat_template:
        return {
            "prompt": (f"{system}\n\n" if system else "") + row["prompt"] + SEPARATOR,
            "completion": answer,
        }
    begin = [{"role": "system", "content": system}] if system else []
    return {
        "prompt": [*begin, {"role": "user", "content": row["prompt"]}],
        "completion": [{"role": "assistant", "content": answer}],
    }


def question_of(row: Row) -> tuple[object, str] | None:
    """Return what is asked in a row made by `for_model`, and the answer expected: a chat's last turn of the assistant.

    None for plain text, and for a chat that begins with the assistant.
    """
    if "text" in row:
        return None
    if "messages" in row:
        last = max(n for n, turn in enumerate(row["messages"]) if turn["role"] == "assistant")
        return (row["messages"][:last], row["messages"][last]["content"]) if last else None
    if isinstance(row["prompt"], str):
        return row["prompt"], row["completion"]
    return row["prompt"], row["completion"][0]["content"]


def lengths_of(encoded: datasets.Dataset) -> list[int]:
    """Return the number of tokens of each row, without reading the tokens."""
    import pyarrow.compute

    return pyarrow.compute.list_value_length(encoded.flatten_indices().data.column("input_ids")).to_pylist()


def fitted(encoded: datasets.Dataset, max_length: int, how: str) -> tuple[datasets.Dataset, str]:
    """Return the tokenized rows within `max_length` tokens, and what was done to the longer ones, as one line; "" if none is.

    `how` is "drop", "cut" (the end is lost) or "split" (into rows of their own, which begin without what came before).
    A part of which nothing would be learnt is left out and counted.
    """
    lengths = lengths_of(encoded)
    long = sum(length > max_length for length in lengths)
    if not long:
        return encoded, ""
    done = {"drop": "left out", "cut": "cut off at the end", "split": "split"}[how]
    said = f"{long} of {len(lengths)} rows are longer than max_length = {max_length} tokens: {done}"
    if how == "drop":
        return encoded.select([n for n, length in enumerate(lengths) if length <= max_length]), said

    def parts(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        ends = [range(0, len(ids) if how == "split" else 1, max_length) for ids in rows["input_ids"]]
        return {
            key: [
                row[begin : begin + max_length]
                for row, begins in zip(rows[key], ends, strict=True)
                for begin in begins
            ]
            for key in ("input_ids", "labels")
        }

    whole = encoded.map(parts, batched=True, remove_columns=encoded.column_names)
    learnt = whole.filter(lambda row: any(label != IGNORED for label in row["labels"]))
    unlearnt = len(whole) - len(learnt)
    return learnt, f"{said}; {unlearnt} parts have nothing to learn from: left out" if unlearnt else said
