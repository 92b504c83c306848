"""What a probe tells, kept in a file, and what is made of it: plans without a host, profiles by what is there."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testbed.cards import uuid_of
from testbed.profiles import profiles

from launcher.backends.base.probing import Probing, choose_profile
from launcher.backends.slurm.slurm_probing import SlurmProbing
from launcher.cli.commands.hosts.probe import rows
from launcher.errors import BadFileError, HostError, LaunchError, UnknownNameError
from launcher.runs.host_probes import saved_probe
from launcher.transport.channel import AgentReply
from launcher.transport.client.host_client import HostClient
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import Job

RIGHT = {
    "host_id": "0", "boot_id": "b", "hostname": "h", "user": "u", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "free_gb": 100.0, "root": "/r", "python": "3.11.2", "gpus": [],
    "interpreter": {"path": "/usr/bin/python3", "version": "3.11.2"},
}  # fmt: skip


@pytest.fixture
def saved(client):
    """Keep a probe in a file, with some fields changed."""

    def save(**changed):
        client.script(json.dumps({"version": 1, **RIGHT, **changed}), "probe.json")
        return "probe.json"

    return save


def preview(client, *words):
    return json.loads(client.planned("--json", *words))


def test_a_saved_probe_gives_the_plan_and_findings_of_the_host_itself(client, cards):
    """Byte for byte, though no host is asked: the one that is named cannot be reached."""
    cards.put("l40s")
    client.script(client.ok("probe", "--json"), "l40s.json")
    here = client.planned("--json", "--", "true")
    cards.put()  # the machine has changed since
    assert client.planned("--json", "--probe", "l40s.json", "--", "true") == here
    client.script('[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n', "launch.toml")
    there = preview(client, "--host", "gone", "--probe", "l40s.json", "--", "true")
    assert (there["plan"]["profile"]["name"], there["findings"]) == ("l40s", [])


def test_a_saved_probe_says_what_it_was_not_asked(client, saved):
    """The demo needs packages; the gate does not guess."""
    assert [one["code"] for one in preview(client, "--probe", saved())["findings"]] == ["packages-unknown"]


def test_unknown_fields_of_a_saved_probe_are_ignored(client, saved):
    """A newer client's file is read; an older one's lacks fields."""
    assert preview(
        client, "--probe", saved(news={"x": [1]}, engines=[{"name": "docker", "x": 1}]), "--", "true"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cpus": "two"}, 'probe.json: cpus = "two": expected a whole number, got text'),
        ({"free_gb": "much"}, 'free_gb = "much": expected a number, got text'),
        (
            {"gpus": [{"index": 0, "uuid": "u", "name": 7}]},
            "gpus.0.name = 7: expected text, got a whole number",
        ),
        ({"file_system": 3}, "file_system = 3: expected a table"),
        ({"version": 2}, "probe.json: version = 2: expected 1"),
        ({"version": "1"}, 'version = "1": expected 1'),
        ({"host_id": None}, "host_id = null"),
    ],
)
def test_a_wrong_value_in_a_saved_probe_is_named(client, saved, changed, said):
    """File, key and value."""
    with pytest.raises(BadFileError) as caught:
        saved_probe(client.project / saved(**changed))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read"), ("", "is not JSON"), ("[1]", "is not a probe"), ("[" * 9999, "is not JSON")],
    ids=["missing", "empty", "a list", "deep"],
)
def test_a_file_that_is_no_probe_says_how_one_is_made(tmp_path, text, said):
    """What is in the way, and the line to type."""
    path = tmp_path / "it.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadFileError, match=f"it.json: {said}") as caught:
        saved_probe(path)
    assert text is None or "launch probe --json > FILE" in str(caught.value)


def test_a_saved_probe_that_cannot_be_used_is_a_usage_error(client, saved):
    """A wrong file, and one for a launch, which asks its host itself: exit code 2, and nothing begins."""
    name = saved(cpus="two")
    for words, said in ((["--dry-run"], 'probe.json: cpus = "two"'), ([], "--probe needs --dry-run")):
        done = client.run(*words, "--probe", name, "--", "true")
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert not client.runs.exists()


def test_a_name_that_means_several_profiles_is_decided_by_the_probe(client, cards):
    """a100 is the one of 40 or 80 GB that is there; a name that means one profile is that one."""
    cards.put("titan_rtx", "a100_80gb")
    assert preview(client, "--profile", "a100", "--", "true")["plan"]["profile"]["name"] == "a100_80gb"
    assert preview(client, "--profile", "titan", "--", "true")["plan"]["profile"]["name"] == "titan_rtx"


def test_a_family_that_is_not_there_is_refused_by_the_gate(client, cards):
    """What is there is named; exit code 3, and nothing was sent."""
    cards.put("titan_rtx")
    done = client.run("--profile", "a100", "--", "true")
    assert done.returncode == 3
    assert "local has NVIDIA TITAN RTX, not a A100" in done.stderr
    assert not list((client.home / ".launch" / "runs").glob("*"))


def test_a_name_that_means_several_profiles_needs_a_probe(client):
    """Without one they are named."""
    client.script('[hosts.gone]\naddress = "127.0.0.1"\nport = 1\n', "launch.toml")
    done = client.run("--dry-run", "--host", "gone", "--profile", "a100")
    assert done.returncode == 4
    assert "name a100_40gb or a100_80gb" in done.stderr
    shown = client.run("profile", "show", "a100")
    assert shown.returncode == 2
    assert "'a100' means a100_40gb or a100_80gb" in shown.stderr
    assert "titan_rtx" in client.ok("profile", "show", "titan")


def test_a_mixed_host_says_which_card_is_taken_and_why(client, cards):
    """In the stage's line; the job sees that card alone."""
    cards.put("titan_rtx", "l40s", "l40s")
    said = client.seen("--", "sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES")
    assert "1 x NVIDIA TITAN RTX, 2 x NVIDIA L40S, driver 580.65.06" in said
    assert "L40S 48 GB (GPU 1) is chosen: it has the most memory" in said
    assert f"sees {uuid_of(1)}" in client.ok("logs", "last")


def test_a_card_that_no_profile_names_runs_a_program_and_its_profile_can_be_kept(client, cards):
    """It is derived, the headline says so, and its printed file makes a profile of one's own."""
    cards.put("titan_v")
    said = client.seen("--", "sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES")
    assert "TITAN V 12 GB (derived)" in said
    assert f"sees {uuid_of(0)}" in client.ok("logs", "last")
    assert "profile  titan_v_12gb (derived)" in client.ok("probe")
    shown = client.ok("profile", "show", "--host", "local")
    assert shown.startswith("titan_v_12gb   TITAN V 12 GB (derived), capability 7.0\n  memory     12,066 MiB")
    assert client.ok("profile", "show", "--host", "local", "titan_v_12gb") == shown
    assert "peak" not in shown
    done = client.run("--profile", "titan_v_12gb", "--", "true")
    assert (done.returncode, "for a card without a profile, leave out --profile" in done.stderr) == (2, True)
    file = client.ok("profile", "show", "--host", "local", "--toml")
    (client.project / "profiles").mkdir()
    client.script(file, "profiles/titan_v_12gb.toml")
    assert preview(client, "--", "true")["plan"]["profile"]["title"] == "TITAN V 12 GB"


def test_a_card_that_is_named_or_there_is_shown(client, cards):
    cards.put("l40s")
    assert client.ok("profile", "show", "--host", "local").startswith("l40s   L40S 48 GB")
    assert client.ok("profile", "show", "--host", "local", "--toml") == client.ok(
        "profile", "show", "l40s", "--toml"
    )
    for words in ((), ("--host", "local", "x50"), ("--toml", "--json", "l40s")):
        assert client.run("profile", "show", *words).returncode == 2


def test_a_gpu_of_another_maker_is_told_and_what_works_there(client, saved):
    """The plan is for the CPU; a script may use the GPU all the same."""
    shown = preview(client, "--probe", saved(other_gpus=["AMD GPU 1002:74a1 (206 GB)"] * 2), "--", "true")
    (found,) = [one for one in shown["findings"] if one["code"] == "gpu-not-planned"]
    assert (shown["plan"]["profile"]["name"], found["level"]) == ("cpu", "note")
    assert (
        "local has AMD GPU 1002:74a1 (206 GB): plans are made for GPUs of NVIDIA and Apple"
        in found["message"]
    )
    told = Facts.model_validate({**RIGHT, "other_gpus": ["AMD GPU 1002:74a1 (206 GB)"] * 2})
    assert ("gpu", "2 x AMD GPU 1002:74a1 (206 GB), not planned for") in list(rows(Probing(), told))
    assert Probing().describe(told).startswith("2 x AMD GPU 1002:74a1 (206 GB), not planned for, 2 CPUs")


def test_a_probe_shows_what_a_person_wants_to_know(client, cards):
    """Ids, room with its kind, the interpreters that are there, the cards."""
    cards.put("l40s")
    said = client.ok("probe")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert f"boot {boot_id}" in said
    assert " GB free, " in said
    assert "gpu 0    NVIDIA L40S, capability 8.9, 45,372 MiB, 1 used, driver 580.65.06: free" in said
    told = json.loads(client.ok("probe", "--json"))
    assert (told["version"], told["profile"], told["boot_id"]) == (1, "l40s", boot_id)
    assert told["pythons"]


def test_a_probe_tells_whose_a_holder_is_and_what_its_state_means():
    """Under its card, with memory, age and container; what is wrong with the card stands beside its name."""
    base = {
        "pid": 7,
        "user": "eve",
        "command": "python x.py",
        "memory_mib": 1200,
        "age_s": 7300.0,
        "state": "S",
    }
    gpu = {
        "index": 0, "uuid": "u", "name": "NVIDIA L40S", "capability": "8.9", "memory_mib": 45372, "driver": "580",
        "compute_mode": "exclusive-process", "mig": True, "ecc_errors": 2, "xids": [79, 79],
        "holders": [{**base, "container": "0123456789ab"}, {**base, "pid": 8, "state": "D", "means": "waits"}],
    }  # fmt: skip
    told = Facts.model_validate({**RIGHT, "gpus": [gpu], "nvidia_mps": True, "holders_error": "silence"})
    shown = [value for name, value in rows(Probing(), told) if name in ("gpu 0", "")]
    assert shown == [
        "NVIDIA L40S, capability 8.9, 45,372 MiB, driver 580, exclusive-process, MIG, 2 uncorrected ECC errors, Xid 79: held",
        "  pid 7 (eve, python x.py, container 0123456789ab, 1.3 GB, for 2 h) holds GPU 0: ask eve to end it",
        "  pid 8 (eve, python x.py, 1.3 GB, for 2 h) holds GPU 0: it cannot be killed until its pending I/O ends",
        "    waits",
        "the processes on them are unknown: silence",
        "NVIDIA's MPS daemon is running: processes of one user share an exclusive card",
    ]


class Told:
    """An agent that answers with whatever it is given."""

    host = "lab"

    def __init__(self, values):
        self._values = values

    def call(self, _verb, *_payload, **_args):
        """Answer."""
        return AgentReply(self._values, b"")


WORDS = st.text(max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
HOLDER = st.fixed_dictionaries(
    {"pid": st.integers()},
    optional={
        **{
            name: st.none() | WORDS
            for name in ("user", "command", "container", "state", "means", "run", "receiver")
        },
        "ownership": WORDS | st.sampled_from(["ours-live", "ours-leftover", "handed-over", "stranger"]),
        "age_s": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "memory_mib": JSON,
    },
)
GPU = st.fixed_dictionaries(
    {"index": st.integers(), "uuid": WORDS, "name": WORDS | st.sampled_from(["NVIDIA L40S", "Tesla T4"])},
    optional={
        **dict.fromkeys(("memory_mib", "capability", "driver", "compute_mode", "mig", "ecc_errors"), JSON),
        "xids": st.lists(st.integers(), max_size=3),
        "holders": st.lists(HOLDER, max_size=3),
    },
)
TOLD = st.builds(
    lambda gpus, changed: {**RIGHT, "gpus": gpus, **changed},
    st.lists(GPU, max_size=3),
    st.dictionaries(st.sampled_from([*Facts.model_fields, "news"]), JSON, max_size=3),
)


def outcome(function, *words):
    """What a function returns, or which of our errors it raises; any other error is a traceback at the user."""
    try:
        return function(*words), None
    except LaunchError as error:
        return None, error


@given(JSON.map(lambda value: value if isinstance(value, dict) else {"": value}) | TOLD)
def test_whatever_a_host_tells_of_itself_is_facts_or_its_error(values):
    """Never a traceback, and never a line of its own in the message; what is shown of facts can be shown."""
    found, error = outcome(
        Probing().probe, HostClient(Told(values)), Host(name="lab"), Job(name="x", command=("a",))
    )
    if error is not None:
        assert isinstance(error, HostError)
        assert str(error).startswith("lab's probe: ")
        assert str(error).isprintable()
        return
    for probing in (Probing(), SlurmProbing()):
        assert probing.describe(found)
        assert list(rows(probing, found))
    json.dumps(found.model_dump(mode="json"), allow_nan=False)
    _, error = outcome(choose_profile, (), found, profiles())
    assert error is None or isinstance(error, UnknownNameError)


@given(st.text() | JSON.map(json.dumps) | TOLD.map(lambda told: json.dumps({"version": 1, **told})))
def test_whatever_a_file_holds_is_facts_or_its_mistake(tmp_path_factory, text):
    """Never a traceback."""
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    _, error = outcome(saved_probe, path)
    assert error is None or (isinstance(error, BadFileError) and str(error).startswith(str(path)))
