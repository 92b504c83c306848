"""The forms of training data: each good, broken and hostile; and what a model reads of a row."""

import json
import os
import tomllib
from importlib.util import find_spec

import pytest
from testbed.job_programs import ROOT, load

CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def called(arguments):
    """A call of the tool f."""
    return {"type": "function", "function": {"name": "f", "arguments": arguments}}


def calling(calls):
    """A chat whose answer calls tools."""
    return [CHAT[0], {"role": "assistant", "content": None, "tool_calls": calls}]


PAIR = {"prompt": "1 km?", "completion": "1000 m"}
GOOD = {
    "messages": ({"messages": CHAT}, {"messages": CHAT}),
    "tools": ({"messages": CHAT, "tools": '[{"type": "function"}]'}, {"messages": CHAT, "tools": [{"type": "function"}]}),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}], "id": 7},
        {"messages": CHAT},
    ),
    "prompt and completion": (PAIR, PAIR),
    "prompt and answer": ({"prompt": "1 km?", "answer": 1000}, {"prompt": "1 km?", "completion": "1000"}),
    "alpaca": ({"instruction": "Add.", "input": "1 1", "output": "2"}, {"prompt": "Add.\n\n1 1", "completion": "2"}),
    "alpaca, system": (
        {"instruction": "Add.", "input": "", "output": "2", "system": "Be brief.", "history": []},
        {"prompt": "Add.", "completion": "2", "system": "Be brief."},
    ),
    "sharegpt, system": (
        {"system": "Be brief.", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"messages": [{"role": "system", "content": "Be brief."}, *CHAT]},
    ),
    "alpaca, no input": ({"instruction": "Hi", "input": "", "output": "x"}, {"prompt": "Hi", "completion": "x"}),
    "text": ({"text": "once", "url": None}, {"text": "once"}),
}  # fmt: skip
BROKEN = {
    "no object": (3, "not an object"),
    "no form": ({"question": "a"}, "its keys are question; the forms are messages; conversations; prompt"),
    "empty": ({}, "its keys are none"),
    "no answer": ({"prompt": "x", "respons": "y"}, 'no "completion"; its keys are prompt, respons'),
    "no output": ({"instruction": "x"}, 'no "output"'),
    "null": ({"prompt": "x", "answer": None}, 'no "completion"'),
    "blank": ({"prompt": "x", "answer": " "}, "\"answer\" is ' '"),
    "flag": ({"text": True}, '"text" is True'),
    "list": ({"text": ["a"]}, "\"text\" is ['a']"),
    "turns are text": ({"messages": "hi"}, "its turns are 'hi', not a list"),
    "no turns": ({"messages": []}, "its turns are empty"),
    "turn is text": ({"messages": ["hi"]}, "turn 1 is 'hi', not an object"),
    "unknown role": ({"messages": [{"role": "bot", "content": "x"}]}, "turn 1 is of 'bot'"),
    "no content": ({"messages": [{"role": "user"}]}, 'turn 1: no "content"'),
    "a turn without weight": (
        {"messages": [*CHAT, {"role": "assistant", "content": "b", "weight": 0}]},
        'turn 3: "weight": 0 is not read',
    ),
    "history": ({"instruction": "x", "output": "y", "history": [["a", "b"]]}, '"history" is not read'),
    "two systems": (
        {"system": "a", "conversations": [{"from": "system", "value": "b"}, {"from": "gpt", "value": "c"}]},
        'it has a "system" and a first turn of the system',
    ),
    "tools are no list": ({"messages": CHAT, "tools": "{}"}, "\"tools\" is '{}', not a list of objects"),
    "tools are no JSON": ({"messages": CHAT, "tools": "[f"}, "\"tools\": '[f' is not JSON"),
    "calls are text": ({"messages": calling("f")}, "turn 2: \"tool_calls\" is 'f', not a list"),
    "call without a name": (
        {"messages": calling([{"arguments": {}}])},
        "turn 2: a call of a tool is {'arguments': {}}, without",
    ),
    "arguments are a list": (
        {"messages": calling([called("[1]")])},
        "turn 2: the arguments of a call are [1], not an object",
    ),
    "arguments are no JSON": (
        {"messages": calling([called("{")])},
        "turn 2: the arguments of a call: '{' is not JSON",
    ),
    "no number": ({"prompt": "x", "answer": float("nan")}, '"answer" is nan, not a text'),
    "an input that is a list": (
        {"instruction": "x", "input": ["a"], "output": "y"},
        "\"input\" is ['a'], not a text",
    ),
    "half a character": ({"text": "ab\ud800"}, '"text" has half a character (a lone surrogate) at place 2'),
    "nobody answers": ({"messages": CHAT[:1]}, "no turn is the assistant's"),
}


@pytest.fixture(scope="module")
def rows():
    return load("rows")


@pytest.mark.parametrize("name", GOOD)
def test_each_form_is_read(rows, name):
    raw, row = GOOD[name]
    assert rows.formed(raw)[0] == row


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_named_by_file_line_and_reason(rows, tmp_path, name):
    """The line before it is good, and of its form."""
    raw, reason = BROKEN[name]
    path = tmp_path / "train.jsonl"
    path.write_text(f"{json.dumps({'text': 'x'})}\n\n{json.dumps(raw)}\n")
    with pytest.raises(SystemExit) as stopped:
        rows.read_rows(str(path))
    assert str(stopped.value).startswith(f"{path}, line 3: ")
    assert reason in str(stopped.value)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.jsonl", b'{"text": "x"}\n{', "line 2: not JSON"),
        ("a.jsonl", b'{"text": "x"}\n\xff\xfe\n', "line 2: not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"prompt": "x", "answer": "y"}\n', "line 2: it is prompt and completion, and the first row is text"),
        ("a.jsonl", b"[" * 100_000, "line 1: not JSON"),
        ("a.jsonl", b"\n \n", "no rows"),
        ("a.json", b"[1", "not JSON"),
        ("a.csv", b"text\nx,y\n", "line 2: not as many cells"),
        ("a.csv", b"prompt,answer\nx\n", "line 2: not as many cells"),
        ("a.csv", b'text\n"x', "not a table"),
        ("a.csv", b"text\n\xff\n", "not a table"),
        ("a.csv", b"prompt;answer\na;b\n", "its cells are separated by ';'"),
        ("a.txt", b"x", "not one of .jsonl"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named(rows, tmp_path, name, data, reason):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SystemExit, match="a\\.") as stopped:
        rows.read_rows(str(tmp_path / name))
    assert reason in str(stopped.value)


def test_the_same_rows_are_read_from_each_kind_of_file(rows, tmp_path):
    """With the byte order mark that editors write, and from a folder of two files."""
    pairs = [{"prompt": f"{n}?", "answer": f'"{n}", yes'} for n in range(3)]
    lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps(pairs))
    (tmp_path / "c.json").write_text(lines)
    cells = "".join(f'{n}?,"""{n}"", yes"\n' for n in range(3))
    (tmp_path / "d.csv").write_text("prompt,answer\n" + cells)
    (tmp_path / "e.tsv").write_text("prompt\tanswer\n" + cells.replace("?,", "?\t"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "0.jsonl").write_text(json.dumps(pairs[0]) + "\n")
    (tmp_path / "folder" / "1.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs[1:]))
    (tmp_path / "folder" / "README.md").write_text("not rows")
    read = {name: rows.read_rows(str(tmp_path / name)).rows for name in ("a.jsonl", "b.json", "c.json", "d.csv", "e.tsv", "folder")}  # fmt: skip
    wanted = [{"prompt": pair["prompt"], "completion": pair["answer"]} for pair in pairs]
    assert read == dict.fromkeys(read, wanted)


def lines_of(count):
    return "".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(count))


@pytest.mark.parametrize("name", ["b.jsonl.gz", "notes.txt", "more/b.jsonl", "b.jsonl"])
def test_nothing_in_a_folder_is_left_out_in_silence(rows, tmp_path, name):
    """A file of another kind, a folder, an empty file; what is hidden was never meant."""
    (tmp_path / "a.jsonl").write_text(lines_of(2))
    (tmp_path / ".hidden.jsonl").write_text(lines_of(1))
    (tmp_path / ".cache").mkdir()
    assert len(rows.read_rows(str(tmp_path)).rows) == 2
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    with pytest.raises(SystemExit, match=str(tmp_path / name.partition("/")[0])):
        rows.read_rows(str(tmp_path))


def test_what_is_read_and_what_is_not_is_said(rows, tmp_path):
    """Rows, files, files beside them, and keys that belong to no form, also of a turn."""
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"messages": [*CHAT[:1], {**CHAT[1], "refusal": "no"}], "id": 7}) + "\n"
    )
    (tmp_path / "b.json").write_text(json.dumps([{"messages": CHAT, "source": "x", "url": None}] * 2))
    (tmp_path / "LICENSE.txt").write_text("free")
    said = "3 rows of messages from 2 files; left out: LICENSE.txt; not used: a turn's refusal, id, source"
    assert rows.read_rows(str(tmp_path)).said == said


@pytest.mark.parametrize(
    ("count", "share", "limit", "held"),
    [(40, 0.1, 100, 4), (40, 0.5, 3, 3), (3, 0.05, 9, 1), (1, 0.5, 9, 0), (9, 0, 9, 0)],
)
def test_rows_are_held_out_for_both_jobs_by_one_function(rows, tmp_path, count, share, limit, held):
    """None of them is trained on, the seed draws them, and the log has their number."""
    (tmp_path / "a.jsonl").write_text(lines_of(count))
    data = {"train": str(tmp_path / "a.jsonl")}
    trained, kept, lines = rows.train_and_held(data, share, limit, 0)
    assert (len(kept), len(trained)) == (held, count - held)
    assert not [row for row in kept if row in trained]
    assert (trained, kept) == rows.train_and_held(data, share, limit, 0)[:2]
    said = f"held out: {held} of {count} rows, drawn by seed 0" if held else "held out: none"
    assert lines[0] == f"data.train: {count} rows of prompt and completion"
    assert lines[1].startswith(said)
    trained, kept, lines = rows.train_and_held({**data, "eval": data["train"]}, share, 2, 0)
    assert (len(trained), kept) == (count, trained[:2])
    assert lines[1].startswith(f"data.eval: {count} rows")


def test_calls_of_tools_that_the_template_does_not_write_are_refused(rows):
    """The turn would be empty, and the model would learn to answer nothing."""

    class Tokenizer:
        def apply_chat_template(self, chat, tools, *, chat_template, tokenize):
            is_whole = chat_template == "with"
            return str(tools) * is_whole + "".join(
                turn["content"] + str(turn.get("tool_calls", "")) * is_whole for turn in chat
            )

    raw = {"messages": calling([called("{}")])}
    chats = [{"messages": CHAT}, rows.formed(raw)[0]]
    assert rows.question_of(chats[1]) is None
    rows.check_tools(chats, Tokenizer(), "with")
    rows.check_tools(chats[:1], Tokenizer(), "without")
    with pytest.raises(SystemExit, match="tool_calls"):
        rows.check_tools(chats, Tokenizer(), "without")
    told = [{"messages": CHAT, "tools": [{"type": "function"}]}]
    assert rows.check_tools(told, Tokenizer(), "with") == ""
    assert "the model is not told of them" in rows.check_tools(told, Tokenizer(), "without")


def test_an_input_of_zero_is_an_input(rows):
    assert rows.formed({"instruction": "Add.", "input": 0, "output": "2"})[0]["prompt"] == "Add.\n\n0"


def test_a_chat_that_ends_in_a_call_asks_for_no_answer_of_text(rows):
    calls = {"role": "assistant", "content": "look", "tool_calls": [called({})]}
    assert rows.question_of(rows.formed({"messages": [CHAT[0], calls]})[0]) is None


def test_files_that_are_none_and_columns_of_one_name_are_refused(rows, tmp_path):
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(SystemExit, match="neither a file nor a folder"):
        rows.read_rows(str(tmp_path / "x.jsonl"))
    (tmp_path / "x.csv").write_text("prompt,completion,completion\na,b,c\n")
    with pytest.raises(SystemExit, match="two columns have the same name"):
        rows.read_rows(str(tmp_path / "x.csv"))


def test_held_out_rows_have_the_form_of_the_others(rows, tmp_path):
    for name, row in (("train", PAIR), ("eval", {"text": "x"})):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    data = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "eval")}
    with pytest.raises(
        SystemExit, match=r"data\.eval has rows of text, data\.train of prompt and completion"
    ):
        rows.train_and_held(data, 0.0, 10, 0)


NEEDS_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")


def test_calls_keep_their_arguments_as_they_are_written(rows):
    """Numbers too; JSON text becomes an object, and the tools are with the question."""
    given = ({"city": "x", "rate": 1e-12}, {"city": 3, "day": None, "lat": 48.858370123456789, "id": 2**70})
    first = rows.formed({"messages": calling([called(json.dumps(given[0]))])})[0]
    second = rows.formed(
        {"messages": [*calling([called(given[1])]), CHAT[1]], "tools": [{"type": "function"}]}
    )[0]
    assert first["messages"][1]["tool_calls"] == [called(given[0])]
    assert second["messages"][1]["tool_calls"] == [called(given[1])]
    assert rows.question_of(second).tools == [{"type": "function"}]


@NEEDS_DATASETS
def test_a_call_in_parquet_keeps_the_arguments_that_it_has(rows, tmp_path):
    """The file's columns give each call the arguments of all."""
    import datasets

    chats = [{"messages": calling([called(arguments)])} for arguments in ({"city": "x"}, {"day": 3})]
    datasets.Dataset.from_list(chats).to_parquet(str(tmp_path / "a.parquet"))
    read = rows.read_rows(str(tmp_path / "a.parquet")).rows
    assert read == [rows.formed(chat)[0] for chat in chats]


@NEEDS_DATASETS
def test_parquet_is_read(rows, tmp_path):
    import datasets

    datasets.Dataset.from_list([{"messages": CHAT}] * 2).to_parquet(str(tmp_path / "a.parquet"))
    assert rows.read_rows(str(tmp_path / "a.parquet")).rows == [{"messages": CHAT}] * 2


@pytest.mark.parametrize(
    ("how", "lengths", "said"),
    [
        ("drop", [3], "2 of 3 rows are longer than max_length = 4 tokens: left out"),
        ("cut", [3, 4], "2 of 3 rows are longer than max_length = 4 tokens: cut off at the end; 1 parts have nothing to learn from: left out"),
        ("split", [3, 4, 4, 1, 2], "2 of 3 rows are longer than max_length = 4 tokens: split; 1 parts have nothing to learn from: left out"),
    ],
)  # fmt: skip
@NEEDS_DATASETS
def test_long_rows_are_counted_whatever_becomes_of_them(rows, how, lengths, said):
    """A row of 3 tokens, one of 9, and one of 6 of which only the last two are learnt."""
    encoded = [{"input_ids": [*range(size)], "labels": [*range(size)]} for size in (3, 9, 6)]
    encoded[2]["labels"] = [-100] * 4 + [4, 5]
    import datasets

    fitting, words = rows.fitted(datasets.Dataset.from_list(encoded), 4, how)
    assert (rows.lengths_of(fitting), words) == (lengths, said)
    assert rows.fitted(fitting, 4, how) == (fitting, "")


def test_a_row_is_asked_as_the_model_is(rows):
    """By its template where it has one; the system prompt comes first, unless the row has its own."""

    class Chatty:
        chat_template = "x"

    class Plain:
        chat_template = None

    assert rows.for_model(PAIR, Plain(), None, False) == {"prompt": "1 km?\n", "completion": "1000 m"}
    assert rows.for_model(PAIR, Plain(), "Be brief.", True) == {
        "prompt": "Be brief.\n\n1 km?\n",
        "completion": "<answer>1000 m</answer>",
    }
    made = rows.for_model(PAIR, Chatty(), "Be brief.", False)
    assert [turn["role"] for turn in made["prompt"]] == ["system", "user"]
    assert rows.question_of(made) == (made["prompt"], "1000 m", None)
    own = rows.for_model({**PAIR, "system": "Own."}, Chatty(), "Be brief.", False)
    assert own == {**made, "prompt": [{"role": "system", "content": "Own."}, made["prompt"][1]]}
    told = [{"role": "system", "content": "own"}, *CHAT]
    assert rows.for_model({"messages": told}, Chatty(), "Be brief.", False) == {"messages": told}
    assert (
        rows.for_model({"messages": CHAT}, Chatty(), "Be brief.", False)["messages"][0]["content"]
        == "Be brief."
    )
    assert rows.question_of({"messages": CHAT}) == (CHAT[:1], "hello", None)
    assert rows.question_of({"text": "x"}) is None


@pytest.mark.parametrize("name", ["sft", "distill"])
def test_a_job_with_data_of_its_own_is_not_judged_by_the_demo_s(name):
    """Held-out rows are named, or drawn from the rows to train on."""
    job = tomllib.loads((ROOT / "jobs" / f"{name}.toml").read_text())
    assert job["data"] == {"train": "demo"}
    assert 0 < job["settings"]["eval_share"] < 1
