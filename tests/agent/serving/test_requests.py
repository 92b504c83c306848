"""What the agent makes of a request: its arguments are checked by type and name, and its verb's module is found."""

import importlib
import json

import pytest

from launcher.agent.serving import client_connection, serve
from launcher.agent.serving.requests import RequestError, parse, read_request
from launcher.agent.serving.session import ClientSession
from launcher.agent.verbs import preparing, reading, running, starting

RUN = "0101-sft-w8q2"


def test_each_verb_is_answered_by_the_module_that_is_named_for_it():
    """No verb is listed without an answer, and none can be answered that is not listed."""
    for name, verbs in serve.MODULES.items():
        module = importlib.import_module(f"launcher.agent.verbs.{name}")
        assert set(module.VERBS) == set(verbs)


def test_arguments_have_their_types_and_defaults():
    """A null counts as absent, an unknown key is ignored, and a whole number is a number."""
    values = {"run": RUN, "from": 3, "wait_s": 1, "state": None, "unknown": 7}
    assert parse(reading.RunQuestion, "read", values) == (RUN, 1, None, 3, None, False)
    assert parse(starting.Await, "await", {"run": RUN}).wait_s == 20.0


@pytest.mark.parametrize(
    ("shape", "values", "code", "words"),
    [
        (reading.RunQuestion, {}, "bad-run", "run: None is not a run id"),
        (reading.RunQuestion, {"run": "../x"}, "bad-run", "run: '../x' is not a run id"),
        (reading.RunQuestion, {"wait_s": "1"}, "bad-argument", "verb: wait_s must be a number, not '1'"),
        (reading.RunQuestion, {"wait_s": True}, "bad-argument", "verb: wait_s must be a number, not True"),
        (reading.RunQuestion, {"from": 1.5}, "bad-argument", "verb: from must be a whole number, not 1.5"),
        (reading.RunQuestion, {"cursors": []}, "bad-argument", "verb: cursors must be an object, not []"),
        (running.Execute, {}, "bad-argument", "verb: command is missing"),
        (
            running.Execute,
            {"command": ["ls", 7]},
            "bad-argument",
            "verb: command: each item must be a text, not 7",
        ),
        (preparing.Create, {"queues": 1}, "bad-argument", "verb: queues must be true or false, not 1"),
        (preparing.Create, {"gpus": "GPU-1"}, "bad-argument", "verb: gpus must be a list, not 'GPU-1'"),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(shape, values, code, words):
    """It is the client's mistake; the connection goes on."""
    if code == "bad-argument":
        values = {"run": RUN, **values}
    with pytest.raises(RequestError) as caught:
        parse(shape, "verb", values)
    assert (caught.value.code, str(caught.value)) == (code, words)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"7", b'{"verb":"ping","size":-1}', b'{"size":"9"}', b'{"size":1e9}', b'{"args":[1]}'],
)
def test_a_line_that_is_not_a_request_ends_the_connection(line, monkeypatch):
    """What follows it cannot be told from a payload: the client is given up, without a traceback."""
    with pytest.raises(ValueError, match=r"."):
        read_request(line)
    monkeypatch.setattr(client_connection.ClientConnection, "__init__", lambda *_: None)
    connection = client_connection.ClientConnection(0, 1)
    monkeypatch.setattr(connection, "read_line", lambda: line, raising=False)
    with pytest.raises(EOFError):
        serve.serve_one(ClientSession("/nowhere", connection))


def test_a_runtime_that_the_agent_does_not_know_makes_no_run(tmp_path):
    """Nobody could say what became of it."""
    with pytest.raises(RequestError) as caught:
        serve.answer(ClientSession(str(tmp_path), None), "create", {"run": RUN, "runtime": "pbs"}, b"{}")
    assert caught.value.code == "bad-runtime"
    assert str(caught.value) == "runtime: 'pbs' is not known to this agent"
    assert not list(tmp_path.iterdir())


def test_the_sources_of_a_plan_are_looked_for_before_a_run_is_made(tmp_path):
    """A move asks before it stops a run."""
    session = ClientSession(str(tmp_path), None)
    there, gone = ({"kind": "host", "value": str(path)} for path in (tmp_path, tmp_path / "gone"))
    asked = {"model": there, "data": {"train": there, "eval": None}}
    assert serve.answer(session, "sources", {}, json.dumps(asked).encode()).values == {}
    with pytest.raises(RequestError) as caught:
        serve.answer(session, "sources", {}, json.dumps({**asked, "teacher": gone}).encode())
    assert caught.value.code == "no-source"
