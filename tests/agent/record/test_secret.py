"""Stars in the place of values: in bytes that arrive in any pieces, and in what becomes JSON."""

import base64
import json
import re
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.agent.record import secret, strict_json
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.record.secret import Redaction, Redactor
from launcher.agent.training.supervise import Supervisor
from launcher.cli.output.say import without_escapes

TEXT = st.text(st.sampled_from('ab\n"\\é%/ '), min_size=4, max_size=12).filter(
    lambda text: len(text.strip()) >= 4
)
ENCODINGS = [
    lambda value: value,
    lambda value: json.dumps(value),
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: repr(value),
    lambda value: urllib.parse.quote(value),
    lambda value: urllib.parse.quote_plus(value),
    lambda value: base64.b64encode(value.encode()).decode(),
    lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    lambda value: value.encode().hex(),
    lambda value: json.dumps(json.dumps(value)),
    lambda value: repr(value.encode()),
    lambda value: re.sub("%..", lambda match: match[0].lower(), urllib.parse.quote(value)),
]


@given(st.lists(TEXT, min_size=1, max_size=3), st.data())
def test_no_value_survives_however_it_is_written_and_torn(values, data):
    """Each encoding, at any place, in pieces of any size; values may overlap, or begin alike."""
    said = ""
    for value in data.draw(st.lists(st.sampled_from(values), max_size=4)):
        said += data.draw(st.text(st.sampled_from("ab#"), max_size=5))
        said += data.draw(st.sampled_from(ENCODINGS))(value)
    whole = said.encode()
    redaction = Redaction(Redactor(values))
    told = b""
    while whole:
        size = data.draw(st.integers(1, 8))
        told += redaction.feed(whole[:size])
        whole = whole[size:]
    told += redaction.finish()
    for value in values:
        assert value.strip().encode() not in told


@given(st.text(min_size=12, max_size=40), st.text(max_size=9), st.text(max_size=4))
def test_a_value_within_base64_is_not_readable_again(value, before, after):
    """As HTTP's `Authorization: Basic` holds user and password: what is left does not give the value back."""
    if len(value.strip()) < 12:
        return
    header = base64.b64encode(f"{before}:{value}{after}".encode())
    left = Redactor([value]).redact_bytes(header)
    for piece in left.split(b"***"):
        for start in range(4):
            code = piece[start : start + (len(piece) - start) // 4 * 4]
            assert value.encode()[3:-3] not in base64.b64decode(code)


@given(st.sampled_from(["1234", "0.66", "1e-4", "true", "None", "-12,5", "auto"]))
def test_a_plain_number_is_left_in_the_log(value):
    """A seed or a rate from a file of variables: stars in each step would falsify the log."""
    log = f"step {value} loss: {value}0\n".encode()
    assert Redactor([value, "long enough"]).redact_bytes(log) == log


@given(TEXT, st.binary(max_size=40))
def test_what_holds_no_value_is_told_as_it_is(value, noise):
    """Byte for byte, and the held end comes with the end of the stream."""
    redaction = Redaction(Redactor([f"<{value}>" + "z" * 40]))
    assert redaction.feed(noise) + redaction.feed(noise) + redaction.finish() == noise * 2
    silent = Redaction(Redactor([]))
    assert silent.feed(noise) == noise


def test_a_line_that_holds_no_beginning_is_told_at_once():
    """Nothing waits for a secret that has not begun."""
    redaction = Redaction(Redactor(["hf_0123456789"]))
    assert redaction.feed(b"Loss: 0.5\n") == b"Loss: 0.5\n"
    assert redaction.feed(b"with hf_01") == b"with "
    assert redaction.feed(b"x\n") == b"hf_01x\n"


def test_a_value_that_is_cut_off_at_the_end_does_not_give_most_of_it_away():
    """A training is killed between two writes of a key. A short beginning is what many a text ends with."""
    ends = {}
    for size in (3, 7, 12, 19):
        redaction = Redaction(Redactor(["hf_0123456789abcdefg"]))
        ends[size] = redaction.feed(b"login with " + b"hf_0123456789abcdefg"[:size]) + redaction.finish()
    assert ends == {
        3: b"login with hf_",
        7: b"login with hf_0123",
        12: b"login with ***",
        19: b"login with ***",
    }


def test_an_event_without_a_value_is_left_alone():
    """The quick look sees that there is nothing to do."""
    assert not Redactor(["hf_0123456789"]).is_in_json('{"kind":"metric","values":{"loss":0.5}}')


def test_a_value_that_begins_another_does_not_give_the_rest_away():
    """The longer of two is waited for."""
    redaction = Redaction(Redactor(["abcd", "abcdefgh"]))
    assert redaction.feed(b"<abcd") == b"<"
    assert redaction.feed(b"efgh>") == b"***>"
    assert redaction.feed(b"abcd!") == b"***!"


@given(TEXT, st.sampled_from(ENCODINGS), st.booleans())
def test_a_value_in_an_event_is_seen_in_its_json(value, encode, is_key):
    """The quick look never misses what the thorough one would change; the result is JSON without the value."""
    said = f"x{encode(value)}y"
    event = {"kind": "metric", "step": 1, "values": {said: 1.0} if is_key else {"a": [said]}}
    redactor = Redactor([value])
    assert redactor.is_in_json(strict_json.encode(event))
    clean = redactor.redact(event)
    assert (clean["kind"], clean["step"]) == ("metric", 1)
    texts = list(clean["values"]) if is_key else clean["values"]["a"]
    assert not [text for text in texts if value.strip() in text]


def test_a_heartbeat_holds_no_value(tmp_path):
    """A loss that is text is what a script says, and the heartbeat repeats it every few seconds."""
    run = Run(str(tmp_path / "runs" / "261122-x-aaaaaa"))
    run.make()
    write_durably(run.plan, '{"secrets": ["HF_TOKEN"]}')
    secret.write(run, b'{"HF_TOKEN": "hf_0123456789"}')
    agent = Supervisor(run, None, None)
    agent.progress.loss = "it is hf_0123456789"
    agent.beat()
    with open(agent.account.folder.heartbeat) as file:
        assert json.load(file)["loss"] == "it is ***"


ESCAPES = (
    *("\x1b[1;35m", "\x1b[0m", "\x1b[2K", "\x1b[1C", "\x1b[?25l", "\x1b(B", "\x1b7", "\x1b[38;2;255;0;0m"),
    *(
        "\x1b]8;;https://example.org/a?b=c\x1b\\",
        "\x1b]0;title\x07",
        "\x1bPq#0\x1b\\",
        "\x9b31m",
        "\x9d8;;x\x9c",
    ),
    *("\r", "\b", "\x00", "\x0e", "\x7f", "\u200b", "\u00ad", "\ufeff"),
)
NO_ESCAPE = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=4, max_size=16)


def torn(text, value, data):
    """A redacted stream of a text that comes in pieces of any size."""
    redaction, whole, told = Redaction(Redactor([value])), text.encode(), b""
    while whole:
        size = data.draw(st.integers(1, 20))
        told += redaction.feed(whole[:size])
        whole = whole[size:]
    return (told + redaction.finish()).decode()


@given(NO_ESCAPE, st.data())
def test_no_value_is_seen_through_escapes(value, data):
    """Colours, links, the cursor and a return within it, in pieces of any size: the reader is the client's own, and one that removes control characters alone."""
    if not Redactor([value])._text.all:
        return
    said = data.draw(st.sampled_from(["", "key ", "\x1b[32m"]))
    for char in value:
        said += char + "".join(data.draw(st.lists(st.sampled_from(ESCAPES), max_size=2)))
    told = torn(said + data.draw(st.sampled_from(["", "\n", " end\x1b[0m\n"])), value, data)
    assert "***" in told
    assert value not in without_escapes(told).replace("\r", "")
    assert value not in re.sub(r"\x1b\[[0-9;]*m|[\x00-\x1f]", "", told)
    assert value not in without_escapes(Redactor([value]).redact(said)).replace("\r", "")


@given(st.lists(st.sampled_from([*ESCAPES, "\x1b", "\x1b[", "\x1b]8;", "é", "█", "ab", "\n"])), st.data())
def test_escapes_without_a_value_are_told_as_they_are(parts, data):
    """Byte for byte, in pieces of any size: colours and progress bars look as before."""
    said = "".join(parts)
    assert torn(said, "hf_0123456789", data) == said
    assert Redactor(["hf_0123456789"]).redact(said) == said


def test_a_value_in_bold_as_printers_make_it_is_not_told():
    """Each letter twice with a backspace between, or a wrong letter taken back."""
    redactor = Redactor(["hf_0123456789"])
    assert redactor.redact_bytes("".join(f"{char}\b{char}" for char in "hf_0123456789").encode()) == b"h\b***"
    assert redactor.redact_bytes(b"key hf_01x\b23456789\n") == b"key ***\n"


def test_a_value_in_the_address_of_a_link_is_not_told():
    """An address is not shown, but is in the file."""
    said = b"\x1b]8;;https://example.org/?token=hf_0123456789\x1b\\page\x1b]8;;\x1b\\\n"
    redaction = Redaction(Redactor(["hf_0123456789"]))
    told = b"".join(redaction.feed(said[place : place + 3]) for place in range(0, len(said), 3))
    assert told + redaction.finish() == said.replace(b"hf_0123456789", b"***")


@pytest.mark.parametrize("filler", [b"\x1b[0m", b"\b", b"\x1b]8;;x\x07"], ids=repr)
def test_a_value_is_awaited_through_any_number_of_escapes_with_little_held_back(filler):
    """So that a stream of them is neither kept nor read again and again."""
    redaction = Redaction(Redactor(["hf_0123456789"]))
    told = redaction.feed(b"hf_01")
    for _ in range(40):
        told += redaction.feed(filler * 1000)
    assert 40_000 * len(filler) - len(told) < 8192 + 1000 * len(filler)
    told += redaction.feed(b"23456789\n") + redaction.finish()
    assert b"***" in told
    assert "hf_01" not in without_escapes(told.decode())


def test_an_escape_without_end_is_not_held_back_for_ever():
    """A binary file on the screen begins many."""
    redaction = Redaction(Redactor(["hf_0123456789"]))
    assert len(redaction.feed(b"\x1b]" + b"x" * 5000)) > 0


def test_an_event_with_escapes_is_seen_in_its_json():
    """The quick look does not know what is behind an escape."""
    redactor = Redactor(["hf_0123456789"])
    event = {"kind": "evidence", "values": {"said": "hf_01\x1b[0m23456789"}}
    assert redactor.is_in_json(strict_json.encode(event))
    assert redactor.redact(event)["values"] == {"said": "***"}
