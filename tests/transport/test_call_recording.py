"""A recording of calls has their form, and no secret: 50 values are planted where a service or a user may put one."""

import base64
import http.server
import json
import random
import string
import threading
import uuid
from urllib.parse import quote

import pytest

from launcher.errors import UsageError
from launcher.transport.http import call_recording
from launcher.transport.http.call_recording import MAX_BYTES, record_calls
from launcher.transport.http.service_wire import ServiceWire, WireError

PLANTS = 50
ALPHABET = string.ascii_letters + string.digits


def values(dice):
    """Fifty secrets of the kinds that people have, none twice."""
    kinds = (
        lambda: "".join(dice.choices(ALPHABET, k=dice.randint(16, 40))),
        lambda: "KGAT_" + "".join(dice.choices(ALPHABET, k=32)),
        lambda: f"{dice.getrandbits(128):032x}",
        lambda: str(uuid.UUID(int=dice.getrandbits(128))),
        lambda: base64.b64encode(dice.randbytes(30)).decode(),
        lambda: "secret_" + "_".join("".join(dice.choices(ALPHABET, k=20)) for _ in range(2)),
        lambda: ".".join(base64.urlsafe_b64encode(dice.randbytes(30)).decode() for _ in range(3)),
        lambda: "hf_" + "".join(dice.choices(string.ascii_letters, k=34)),
    )
    return [kinds[number % len(kinds)]() for number in range(PLANTS)]


def private_key(value):
    lines = [base64.b64encode(f"{number}{value}".encode()).decode() for number in range(3)]
    return "\n".join(
        ["-----BEGIN OPENSSH PRIVATE KEY-----", value, *lines, "-----END OPENSSH PRIVATE KEY-----"]
    )


def bodies(left):
    """Bodies with a secret each at its place, most below keys whose texts are kept."""
    take = lambda: next(left)  # noqa: E731
    return [
        {"token": take(), "username": "alice"},
        {"message": f"the token {take()} has expired"},
        {"error": {"code": "global/invalid-api-key", "message": take(), "suggestion": f"not '{take()}'"}},
        {"code": take(), "status": take(), "name": take(), "description": f"a key ({take()})"},
        {"data": [{"name": "gpu_1x_a10", "deep": {"er": [{"message": take()}, [take(), [take()]]]}}]},
        {take(): {"name": 1}, "name": {take(): "x"}},
        {"message": json.dumps({"token": take(), "inner": json.dumps({"api_key": take()})})},
        {"message": base64.b64encode(take().encode()).decode(), "status": base64.b64encode(take().encode()).decode()},
        {"message": f"export HF_TOKEN={take()}\nWANDB_API_KEY='{take()}'\nDB_PASSWORD: {take()}"},
        {"message": private_key(take()), "text": private_key(take()), "private_key": private_key(take())},
        {"user_data": f"#cloud-config\nwrite_files: [{take()}]", "errors": [take(), {"error": take()}]},
        {"message": f"curl -H 'Authorization: Bearer {take()}' https://bob:{take()}@x.example/?sig={quote(take())}"},
        {"jupyter_token": take(), "jupyter_url": f"https://x.example/?token={take()}", "url": f"https://s/{take()}"},
        {"version": take(), "family": take(), "region": take(), "machineShape": take(), "type": take()},
        {"invalidDatasetSources": [take()], "failureMessage": f"{take()}{take()}", "protocol": take()},
    ]  # fmt: skip


@pytest.fixture
def echo():
    """A service that answers with the body that it got; its address."""

    class Echo(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.send_header("Set-Cookie", self.headers.get("Authorization", ""))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A recording that ends with the test; its file."""
    monkeypatch.setattr(call_recording, "_recording", None)
    record_calls(tmp_path / "calls.jsonl")
    return tmp_path / "calls.jsonl"


@pytest.mark.parametrize("seed", range(5))
def test_of_50_planted_values_none_is_in_a_recording(echo, recording, monkeypatch, seed):
    planted = values(random.Random(seed))
    left = iter(planted)
    monkeypatch.setenv("SOME_API_TOKEN", hunted := "hunter-two")  # too plain to be seen as a secret
    wire = ServiceWire(f"{echo}/v1")
    plain = next(left)
    basic = base64.b64encode(f"alice:{plain}".encode()).decode()
    sent = bodies(left)
    rest = [*left]
    for number, body in enumerate([*sent, {"message": f"{hunted} and {plain}"}]):
        wire.post(f"op{number}", body, [f"Bearer {rest[0]}", f"Basic {basic}"][number % 2])
    with wire.get(f"/{rest[1]}/log?sig={rest[2]}&{rest[3]}=1", f"Bearer {rest[0]}") as download:
        assert [*download.pieces()] == []
    with pytest.raises(WireError):
        ServiceWire("http://127.0.0.1:1/v1").post(f"{rest[4]}", {"token": rest[5]}, f"Bearer {rest[0]}")
    text = recording.read_text()
    everything = [*planted, hunted, basic]
    everything += [base64.b64encode(value.encode()).decode().rstrip("=") for value in planted]
    everything += [quote(value, safe="") for value in planted]
    assert len(rest) >= 6
    assert [value for value in everything if value in text or value in json.loads(json.dumps(text))] == []
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == len(sent) + 3
    assert lines[2]["answer"]["error"]["code"] == "global/invalid-api-key"
    assert lines[4]["answer"]["data"][0]["name"] == "gpu_1x_a10"
    assert lines[0]["answer"]["username"] == "<5 characters>"
    assert (lines[0]["status"], lines[-2]["status"]) == (200, 404)
    assert "cannot be reached" in lines[-1]["failed"]


def test_a_recording_stays_small_and_is_its_owners_alone(echo, recording):
    """Large bodies are left out, then whole calls."""
    wire = ServiceWire(echo)
    for _ in range(30):
        wire.post("x", {f"key_{number}": {"message": "word " * 50} for number in range(100)})
    for _ in range(400):
        wire.post("x", {"message": "word " * 50})
    assert 0.9 * MAX_BYTES < recording.stat().st_size <= MAX_BYTES
    assert recording.stat().st_mode & 0o777 == 0o600
    assert json.loads(recording.read_text().splitlines()[0])["answer"] == "left out: too large"


def test_a_file_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UsageError, match="name a new file"):
        record_calls(tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"
