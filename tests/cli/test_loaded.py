"""What a launch loads: nothing that only other launches need."""

import json
import shutil
import signal
import subprocess
import sys

import pytest
from testbed.client import until
from testbed.tables import mostly_long
from typer.testing import CliRunner

from launcher.cli import app as app_module

LOADED = """
import json, sys
from launcher.cli import main
try:
    main()
finally:
    open("loaded.json", "w").write(json.dumps(sorted(sys.modules)))
"""
OF_OTHERS = (
    "cryptography",
    "docker",
    "fabric",
    "launcher.cli.json_output",
    "launcher.cli.follow.terminal_view",
    "launcher.transport.persistent_connection",
    "launcher.backends.kaggle.kaggle_service",
    "launcher.transport.ssh.ssh_config",
    "launcher.transport.ssh.ssh_keys",
    "launcher.transport.ssh.ssh_wire",
    "launcher.rental.providers.lambda_cloud",
    "launcher.rental.lease.renter",
    "matplotlib",
    "paramiko",
    "requests",
    "tensorboardX",
)


@pytest.mark.slow(reason="a launch")
def test_a_launch_on_this_machine_loads_no_account_no_provider_no_ssh_and_no_other_view(client):
    """From its words to its end, in a pipe, and in a dry run: each of these takes 5 to 150 ms."""
    client.is_forked = False
    client.program = [sys.executable, "-c", LOADED]
    for words, own in (
        ((), "launcher.runs.follow.following"),
        (("--dry-run",), "launcher.runs.launch.dry_run"),
    ):
        client.ok(*words, "--", "true")
        loaded = json.loads((client.project / "loaded.json").read_text())
        assert own in loaded
        assert not [name for name in loaded if name.startswith(OF_OTHERS)]


OF_A_LAUNCH = (
    *OF_OTHERS,
    "asyncio",
    "launcher.planning",
    "launcher.runs.follow.following",
    "launcher.values.job",
    "packaging",
    "rich",
)


@pytest.mark.slow(reason="a launch, and three commands about its run")
def test_a_look_at_a_run_loads_nothing_of_a_launch(client):
    """`ps`, `logs` and `stop` ask a host and show its answer in a pipe; what plans and follows runs takes as long as they do."""
    run = client.detached("--", "sleep", "600")
    client.is_forked = False
    client.program = [sys.executable, "-c", LOADED]
    for words in (["ps", "--host", "local"], ["logs", run], ["stop", "--now", run]):
        client.ok(*words)
        loaded = json.loads((client.project / "loaded.json").read_text())
        assert "launcher.transport.connecting" in loaded
        of_a_launch = [name for name in loaded if name.startswith(OF_A_LAUNCH)]
        assert not of_a_launch, words


AGENTS = """
import sys
started = []
def note(event, arguments):
    if event == "subprocess.Popen" and "binascii" in str(arguments[1]):
        started.append(str(arguments[1]))
sys.addaudithook(note)
from launcher.cli import main
try:
    main()
finally:
    open("agents", "w").write(str(len(started)))
"""


@pytest.mark.slow(reason="a launch, and two commands about its run")
@mostly_long("verb", ["logs", "attach"], ci=(0,))
def test_a_run_that_is_found_on_its_host_is_reached_by_the_same_agent(client, verb):
    """A client without its record looks for it there first: a second connection would take as long again."""
    run = client.detached("--", "sh", "-c", "echo seen; sleep 600")
    until(lambda: "seen" in client.ok("logs", run), "its line")
    shutil.rmtree(client.runs)
    client.is_forked = False
    client.program = [sys.executable, "-c", AGENTS]
    process = client.start(verb, run, "--host", "local")
    if verb == "attach":
        assert any("seen" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    assert process.returncode == 0
    assert (client.project / "agents").read_text() == "1"


def test_what_follows_a_run_loads_nothing_that_plans():
    """Whoever attaches waits for the first line; a plan is read for the end."""
    code = "import sys, launcher.cli.follow.follow, launcher.runs.rented.lost_machines; assert 'launcher.planning' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


UNBUILT = """
from launcher.copy import ended_rows
from launcher.runs import run_listing
from launcher.values.record import Event
assert not Event.__pydantic_complete__
assert not ended_rows._ROWS.pydantic_complete
Event(version=1, kind="beat", time=0.0)
assert Event.__pydantic_complete__
"""


def test_what_checks_records_is_built_when_it_is_first_used():
    """To build it takes longer than to import the rest of its module, and most commands read no event."""
    subprocess.run([sys.executable, "-c", UNBUILT], check=True, timeout=60)


VERBS = sorted({name for verbs in app_module._TASKS.values() for name in verbs} - {app_module.DEFAULT})


@pytest.mark.parametrize("word", ["--help", "-h", "help", "--version"])
def test_a_look_at_all_verbs_shows_what_it_shows_when_all_are_built(word):
    """Their arguments are left unread; nobody can tell."""
    overview = app_module.app_for([word])
    assert overview is not app_module.whole_app()
    shown = [
        CliRunner().invoke(one, [word], prog_name="launch") for one in (overview, app_module.whole_app())
    ]
    assert [one.exit_code for one in shown] == [0, 0]
    assert shown[0].output == shown[1].output
    assert "launch" in shown[0].output


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_alone_has_the_help_that_it_has_among_all(verb):
    """Only the verb that is typed is built; nobody can tell."""
    alone, words = app_module.app_for([verb, "--help"]), [verb, "--help"]
    assert alone is not app_module.whole_app()
    shown = [CliRunner().invoke(one, words, prog_name="launch") for one in (alone, app_module.whole_app())]
    assert [one.exit_code for one in shown] == [0, 0]
    assert shown[0].output == shown[1].output
    assert verb in shown[0].output


@pytest.mark.parametrize(
    ("words", "built"),
    [
        (["ps"], ["ps"]),
        (["batch", "status"], ["batch"]),
        (["--host", "local", "--", "ps"], ["run"]),
        ([], ["run"]),
        (["--"], ["run"]),
        (["--help"], None),
        (["--version"], None),
        (["help", "ps"], None),
        (["sp"], None),
    ],
)
def test_only_the_verb_that_is_typed_is_built(words, built):
    """All of them for help, and where a wrong word is to be told with the nearest right one."""
    app = app_module.app_for(words)
    names = [one.name for one in (*app.registered_commands, *app.registered_groups)]
    assert sorted(names) == (built or sorted([*VERBS, "run"]))
