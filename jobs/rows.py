"""Read training data in the forms that people have, and say which row is wrong: file, line and reason.

A row becomes one of the forms that TRL knows: `messages`, `prompt` with `completion`, or `text`. `read_rows` takes

    {"messages": [{"role": "user", "content": …}, …]}           OpenAI's chats
    {"conversations": [{"from": "human", "value": …}, …]}       ShareGPT
    {"prompt": …, "completion": …} or {"prompt": …, "answer": …}
    {"instruction": …, "input": …, "output": …}                 alpaca; `input` may be missing
    {"text": …}                                                 plain text

from JSONL, JSON (a list), CSV, TSV, Parquet, a folder of such files, or a data set of the hub. `system` beside a chat or
an instruction is its system prompt. Keys of no form are left out, and named.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
FORMS = "messages; conversations; prompt with completion or answer; instruction with output; text"
TURN_KEYS = {"role", "from", "content", "value", "tool_calls", "tool_call_id", "name", "weight"}
NO_DATA = ("readme", "license", "licence", "notice")
"""The names of files that may lie beside the data in a folder."""
SEPARATOR = "\n"
"""It stands between prompt and answer where the tokenizer has no chat template."""
TAGS = "<answer>{}</answer>"
IGNORED = -100
"""The label of a token that is not learnt."""


class RowError(Exception):
    """Raised for a row that is not of a known form; the text is the reason."""


# ---- from files to rows


class Read(NamedTuple):
    """The rows of a source, in TRL's forms, and a line that says what was read and what was left out."""

    rows: list[Row]
    said: str


def read_rows(source: str, most: int | None = None) -> Read:
    """Read a file, a folder or a data set of the hub. SystemExit names the row or the file that is wrong.

    All rows must have the form of the first one. `most` is a number of rows after which to stop.
    """
    path = Path(source)
    if not path.exists():
        return read_parts([(source, _hub(source))], most)
    files, beside = files_of(path)
    return read_parts([(str(file), READERS[file.suffix.lower()](file)) for file in files], most, beside)


def read_parts(
    parts: list[tuple[str, Iterator[tuple[str, object]]]],
    most: int | None = None,
    beside: tuple[str, ...] = (),
) -> Read:
    """Read rows from parts: names, and iterators over places and rows as written. See `read_rows`."""
    rows: list[Row] = []
    unused: set[str] = set()
    for name, raws in parts:
        before = len(rows)
        for where, raw in raws:
            if len(rows) == most:
                break
            try:
                row, left = formed(raw)
                if rows and form_of(row) != form_of(rows[0]):
                    raise RowError(f"it is {form_of(row)}, and the first row is {form_of(rows[0])}")
            except RowError as error:
                raise SystemExit(f"{where}: {error}") from None
            rows.append(row)
            unused |= left
        if len(rows) == before != most:
            raise SystemExit(f"{name}: no rows")
    said = f"{len(rows)} rows of {form_of(rows[0])}"
    said += f" from {len(parts)} files" if len(parts) > 1 else ""
    said += f"; left out: {', '.join(beside)}" if beside else ""
    return Read(rows, said + (f"; not used: {', '.join(sorted(unused))}" if unused else ""))


def files_of(path: Path) -> tuple[list[Path], tuple[str, ...]]:
    """Return the data files of a path, and the names of files that may lie beside them. SystemExit names any other.

    Of a folder these are the visible files directly in it: a file that is left out in silence is missed by no one.
    """
    kinds = " ".join(READERS)
    if not path.is_dir():
        if path.suffix.lower() not in READERS or not path.is_file():
            raise SystemExit(
                f"{path}: not one of {kinds}" if path.is_file() else f"{path}: neither a file nor a folder"
            )
        return [path], ()
    files, beside = [], []
    for entry in sorted(path.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file() and entry.suffix.lower() in READERS:
            files.append(entry)
        elif entry.is_file() and entry.stem.lower() in NO_DATA:
            beside.append(entry.name)
        else:
            kind = "a folder in a folder is not read" if entry.is_dir() else f"not one of {kinds}"
            raise SystemExit(f"{entry}: {kind}: move it away, or name a file in place of the folder")
    if not files:
        raise SystemExit(f"{path}: the folder has no file with rows ({kinds})")
    return files, tuple(beside)


def train_and_held(
    data: dict[str, str], share: float, limit: int, seed: int
) -> tuple[list[Row], list[Row], list[str]]:
    """Return the rows to train on, those that are held out, and lines that say so.

    Held out are the first `limit` rows of `eval`; without it a share of the rows of `train`, at most `limit`, drawn by
    the seed.
    """
    rows, said = read_rows(data["train"])
    lines = [f"data.train: {said}"]
    if "eval" in data:
        held, said = read_rows(data["eval"])
        if form_of(held[0]) != form_of(rows[0]):
            raise SystemExit(
                f"data.eval has rows of {form_of(held[0])}, data.train of {form_of(rows[0])}: give both the same form"
            )
        used = f", of which the first {limit} are used" if len(held) > limit else ""
        lines.append(f"data.eval: {said}{used}")
        return rows, held[:limit], lines + known(rows, held[:limit])
    count = min(max(1, round(share * len(rows))), limit, len(rows) - 1) if share else 0
    if not count:
        return rows, [], [*lines, "held out: none"]
    places = set(random.Random(seed).sample(range(len(rows)), count))  # noqa: S311  # no secret
    lines.append(
        f"held out: {count} of {len(rows)} rows, drawn by seed {seed}   (data.eval names rows of your own)"
    )
    held = [rows[n] for n in sorted(places)]
    rows = [row for n, row in enumerate(rows) if n not in places]
    return rows, held, lines + known(rows, held)


def known(rows: list[Row], held: list[Row]) -> list[str]:
    """Return a line if held-out rows are trained on too, which makes every score look better."""
    trained = {json.dumps(row) for row in rows}
    count = sum(json.dumps(row) in trained for row in held)
    return [f"{count} of {len(held)} held-out rows are also trained on"] if count else []


def _hub(name: str) -> Iterator[tuple[str, object]]:
    import datasets  # only data of the hub and Parquet need it

    for number, row in enumerate(datasets.load_dataset(name, split="train"), start=1):
        yield f"{name}, row {number}", without_none(row)


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
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            if len(reader.fieldnames or ()) == 1 and ";" in reader.fieldnames[0]:
                raise SystemExit(f"{path}: its cells are separated by ';': write commas, or tabs in a .tsv")
            if len({*(reader.fieldnames or ())}) < len(reader.fieldnames or ()):
                raise SystemExit(f"{path}: two columns have the same name: {', '.join(reader.fieldnames)}")
            for row in reader:
                if None in row or None in row.values():
                    raise SystemExit(f"{path}, line {reader.line_num}: not as many cells as the first line")
                yield f"{path}, line {reader.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise SystemExit(f"{path}, after line {reader.line_num}: not a table: {error}") from None


def _parquet(path: Path) -> Iterator[tuple[str, object]]:
    import datasets

    for number, row in enumerate(datasets.Dataset.from_parquet(str(path), keep_in_memory=True), start=1):
        yield f"{path}, row {number}", without_none(row)


def without_none(value: Any) -> Any:
    """Leave out keys with None: Arrow gives each object the keys that another row's has."""
    if isinstance(value, list):
        return [without_none(one) for one in value]
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return value


READERS: dict[str, Callable[[Path], Iterator[tuple[str, object]]]] = {
    ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json, ".csv": _table, ".tsv": _table, ".parquet": _parquet,
}  # fmt: skip


# ---- forms


def formed(raw: object) -> tuple[Row, set[str]]:
    """Return a row in one of TRL's forms, and the names of what it does not use. Raises RowError."""
    if not isinstance(raw, dict):
        raise RowError("not an object")
    given = {str(key) for key, value in raw.items() if value not in (None, "", [])}
    row, used, unused = _formed(raw, given)
    return row, unused | (given - used)


def _formed(raw: dict[str, Any], keys: set[str]) -> tuple[Row, set[str], set[str]]:
    """Return a row in TRL's form, the keys that it uses, and the keys of turns that it does not use."""
    system = text_of(raw, "system") if "system" in keys else None
    for key in ("messages", "conversations"):
        if key in raw and raw[key] is not None:
            found, unused = turns(raw[key])
            if system and found[0]["role"] == "system":
                raise RowError('it has a "system" and a first turn of the system')
            begin = [{"role": "system", "content": system}] if system else []
            tools = {"tools": tools_of(raw["tools"])} if "tools" in keys else {}
            return {"messages": [*begin, *found], **tools}, {key, "system", "tools"}, unused
    for asked, answered in PROMPTED:
        if raw.get(asked) is not None and raw.get(answered) is not None:
            prompt, used = text_of(raw, asked), {asked, answered, "system"}
            if asked == "instruction":
                if "history" in keys:
                    raise RowError('"history" is not read: write all turns as "messages"')
                used.add("input")
                more = raw.get("input")
                if more is not None and str(more).strip():
                    prompt += f"\n\n{text_of(raw, 'input').strip()}"
            row = {"prompt": prompt, "completion": text_of(raw, answered)}
            return {**row, **({"system": system} if system else {})}, used, set()
    if raw.get("text") is not None:
        return {"text": text_of(raw, "text")}, {"text"}, set()
    for asked, answered in PROMPTED:
        if raw.get(asked) is not None:
            raise RowError(f'no "{answered}"; its keys are {", ".join(sorted(keys)[:8])}')
    raise RowError(f"its keys are {', '.join(sorted(keys)[:8]) or 'none'}; the forms are {FORMS}")


def turns(value: object) -> tuple[list[dict[str, Any]], set[str]]:
    """Return the turns of a chat, and the names of what they do not use.

    Raises RowError for a turn that a model cannot learn from.
    """
    if not isinstance(value, list):
        raise RowError(f"its turns are {value!r:.60}, not a list")
    if not value:
        raise RowError("its turns are empty")
    found, unused = [], set()
    for number, turn in enumerate(value, start=1):
        if not isinstance(turn, dict):
            raise RowError(f"turn {number} is {turn!r:.60}, not an object")
        said = turn.get("role", turn.get("from"))
        if said not in ROLES:
            raise RowError(f"turn {number} is of {said!r:.40}; there are {', '.join(ROLES)}")
        if ROLES[said] == "assistant" and turn.get("weight", 1) not in (None, 1):
            raise RowError(
                f'turn {number}: "weight": {turn["weight"]!r:.20} is not read: every turn of the assistant is learnt'
            )
        key = "value" if "content" not in turn and "from" in turn else "content"
        more = {name: turn[name] for name in ("tool_calls", "tool_call_id", "name") if turn.get(name)}
        if "tool_calls" in more:
            more["tool_calls"] = calls_of(more["tool_calls"], f"turn {number}: ")
        has_calls = "tool_calls" in more and not turn.get(key)
        found.append(
            {
                "role": ROLES[said],
                "content": "" if has_calls else text_of(turn, key, f"turn {number}: "),
                **more,
            }
        )
        unused |= {f"a turn's {name}" for name, value in turn.items() if value and name not in TURN_KEYS}
    if not any(turn["role"] == "assistant" for turn in found):
        raise RowError("no turn is the assistant's: there is nothing to learn")
    return found, unused


def text_of(row: dict[str, Any], key: str, where: str = "") -> str:
    """Return a value as text; a number counts as one. Raises RowError if it is missing, empty or of another kind."""
    if key not in row:
        raise RowError(f'{where}no "{key}"')
    value = row[key]
    is_text = (
        isinstance(value, (str, int, float)) and not isinstance(value, bool) and bool(str(value).strip())
    )
    if not is_text or (isinstance(value, float) and not math.isfinite(value)):
        raise RowError(f'{where}"{key}" is {value!r:.60}, not a text')
    try:
        str(value).encode()
    except UnicodeEncodeError as error:
        raise RowError(
            f'{where}"{key}" has half a character (a lone surrogate) at place {error.start}'
        ) from None
    return str(value)


def tools_of(value: object) -> list[dict[str, Any]]:
    """Return the tools that a chat may call: a list, or JSON text of one. Raises RowError for anything else."""
    tools = parsed_text(value, '"tools"')
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError(f'"tools" is {value!r:.60}, not a list of objects')
    return tools


def calls_of(calls: object, where: str) -> list[dict[str, Any]]:
    """Return the calls of tools of a turn, their arguments as objects: OpenAI writes JSON text, templates read objects.

    The source is https://huggingface.co/docs/transformers/chat_extras. Raises RowError for calls of another form.
    """
    if not isinstance(calls, list):
        raise RowError(f'{where}"tool_calls" is {calls!r:.60}, not a list')
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RowError(f"{where}a call of a tool is {call!r:.60}, without a function and its name")
        arguments = parsed_text(function.get("arguments") or {}, f"{where}the arguments of a call")
        if not isinstance(arguments, dict):
            raise RowError(f"{where}the arguments of a call are {arguments!r:.60}, not an object")
        found.append({**call, "function": {**function, "arguments": arguments}})
    return found


def parsed_text(value: object, what: str) -> object:
    """Return what JSON text says, and any other value as it is. Raises RowError for text that is not JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        raise RowError(f"{what}: {value!r:.60} is not JSON") from None


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
    system = row.get("system", system)
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


class Question(NamedTuple):
    """What a row asks: a text or the turns before the answer, with the tools that may be called."""

    asked: str | list[dict[str, Any]]
    answer: str
    tools: list[dict[str, Any]] | None = None


def question_of(row: Row) -> Question | None:
    """Return what is asked in a row made by `for_model`; of a chat, before the last turn of the assistant.

    None for plain text, and for a chat that begins with the assistant, or whose last turn of it calls tools.
    """
    if "text" in row:
        return None
    if "messages" in row:
        last = max(n for n, turn in enumerate(row["messages"]) if turn["role"] == "assistant")
        answer = "" if "tool_calls" in row["messages"][last] else row["messages"][last]["content"]
        return Question(row["messages"][:last], answer, row.get("tools")) if last and answer else None
    if isinstance(row["prompt"], str):
        return Question(row["prompt"], row["completion"])
    return Question(row["prompt"], row["completion"][0]["content"])


def check_tools(rows: list[Row], tokenizer: PreTrainedTokenizerBase, template: str | None = None) -> str:
    """SystemExit if the template leaves out the calls of tools: the model would learn to answer nothing.

    Return a line if it leaves out the tools themselves; "" if not.
    """

    def written(row: Row, *without: str) -> str:
        turns = [
            {name: value for name, value in turn.items() if name not in without} for turn in row["messages"]
        ]
        tools = None if "tools" in without else row.get("tools")
        return tokenizer.apply_chat_template(turns, tools, chat_template=template, tokenize=False)

    chats = [row for row in rows if "messages" in row]
    calling = next((row for row in chats if any("tool_calls" in turn for turn in row["messages"])), None)
    if calling and written(calling) == written(calling, "tool_calls"):
        raise SystemExit("the data has tool_calls, and the chat template does not write them: take a template that does, or leave these rows out")  # fmt: skip
    given = next((row for row in chats if row.get("tools")), None)
    is_told = given is None or written(given) != written(given, "tools")
    return (
        ""
        if is_told
        else "the chat template does not write the tools of a row: the model is not told of them"
    )


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
