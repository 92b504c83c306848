"""What an account cannot do: each verb says so at once, with what to type instead. Nothing is asked of a service."""

import shlex
import time

import pytest
from testbed.client import Client
from testbed.entries import know

from launcher.backends.kaggle.kaggle_backend import LACKS
from launcher.backends.kaggle.kaggle_host import KAGGLE
from launcher.backends.lambda_cloud.lambda_cloud_backend import LACKS as RENTED_LACKS
from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.backends.registry import backend_of
from launcher.backends.slurm.slurm_backend import LACKS as SLURM_LACKS
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.errors import LackingError, UsageError
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.values.host import LOCAL, Host
from launcher.values.slurm_settings import SlurmSettings

RUN = "261125-sft-aaaa11"
SAID = {
    "exec aaaa11 -- nvidia-smi": ("no connection leads into a session", "launch logs aaaa11"),
    "shell aaaa11": ("no connection leads into a session", "launch ls aaaa11"),
    "forward aaaa11 6006": ("no port of a session", "launch plot aaaa11"),
    "sweep --host kaggle": ("Kaggle ends the processes of a session", "launch gc --host kaggle"),
    "image build --host kaggle --job sft": ("Kaggle's own image", "launch probe --host kaggle"),
    "image show --host kaggle --profile t4x2": ("Kaggle's own image", "launch probe --host kaggle"),
    "image list --host kaggle": ("Kaggle's own image", "launch probe --host kaggle"),
    "image prune --host kaggle": ("Kaggle's own image", "launch probe --host kaggle"),
    "init --host kaggle": ("needs no table", "launch --host kaggle -- python train.py"),
    "drill --host kaggle": ("a drill damages a run", "launch drill --host local"),
    "verify --host kaggle --profile t4x2": ("gone with it", "launch verify --host local --rehearse"),
}
TABLE = '[hosts.cloud]\nkind = "lambda-cloud"\nmax_hours = 4\n'
SAID_OF_RENTED = {
    "sweep --host cloud": ("terminated with all files", "launch reconcile"),
    "drill --host cloud": ("break it while you pay for it", "launch drill --host local"),
    "drill --host cloud --dry-run": ("break it while you pay for it", "launch drill --host local"),
    "drill --host cloud --profile a100_40gb --fault agent-killed": (
        "while you pay",
        "launch drill --host local",
    ),
    "verify --host cloud --profile a100_40gb": ("a rented one is gone", "launch verify --rehearse"),
}
HIVE = SlurmHost(name="hive", address="login.invalid", slurm=SlurmSettings())
SAID_OF_SLURM = {
    "image build --host hive --job sft": ("without a container of launcher", "launch --host hive --dry-run"),
    "image list --host hive": ("without a container of launcher", "launch --host hive --dry-run"),
    "verify --host hive --profile a100_80gb": (
        "may get another one",
        "launch verify --host local --rehearse",
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A project with a run in an account of Kaggle's, and no credentials."""
    client = Client(tmp_path_factory.mktemp("lacks"))
    know(RUN, client.runs, home=client.home, host=KAGGLE.model_dump(mode="json"), launched=time.time())
    (client.runs / RUN).mkdir(parents=True)
    return client


@pytest.mark.parametrize("line", SAID)
def test_a_verb_that_the_place_lacks_says_why_and_what_to_type(desk, line):
    done = desk.run(*shlex.split(line))
    why, command = SAID[line]
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert command in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize("line", SAID_OF_RENTED)
def test_an_account_that_rents_lacks_what_would_rent_for_nothing(desk, line):
    """Without a key, and with one that must not be sent: it is refused before any service is asked."""
    desk.script(TABLE, "launch.toml")
    done = desk.run(*shlex.split(line))
    why, command = SAID_OF_RENTED[line]
    assert done.returncode == 2, done.stderr
    assert f"{line.split()[0]}: not on cloud: " in done.stderr
    assert why in done.stderr
    assert command in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    assert not (desk.home / ".local" / "share" / "launch" / "rentals").exists()


@pytest.mark.parametrize("line", SAID_OF_SLURM)
def test_a_cluster_lacks_what_needs_a_container_or_the_same_machine_again(desk, line):
    """Nothing is connected for it."""
    desk.script('[hosts.hive]\nkind = "slurm"\naddress = "login.invalid"\n', "launch.toml")
    done = desk.run(*shlex.split(line))
    why, command = SAID_OF_SLURM[line]
    assert done.returncode == 2, done.stderr
    assert f"{line.split()[0]}: not on hive: " in done.stderr
    assert why in done.stderr
    assert command in done.stderr.splitlines()[-1]


def test_init_for_an_account_that_rents_proposes_a_table(desk):
    """It is in the user's own file: a project's would be there already."""
    (desk.project / "launch.toml").unlink(missing_ok=True)
    own = desk.home / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    own.write_text(TABLE)
    done = desk.run("init", "--host", "cloud")
    assert done.returncode == 2
    assert 'kind = "lambda-cloud"' in done.stderr.splitlines()[-1]
    own.unlink()


def test_stop_without_credentials_says_so_before_it_asks_anything(desk):
    """Whether a session is alive, whose outputs would be lost, only the account's spool and service know."""
    for words in (("stop", "aaaa11"), ("stop", "--now", "aaaa11")):
        done = desk.run(*words)
        assert done.returncode == 4
        assert "no credentials here" in done.stderr
        assert "deleting" not in done.stderr


def test_every_lack_is_said_by_a_verb():
    """A word of the table that no verb says would be dead."""
    assert {line.split()[0] for line in SAID} == LACKS.keys()
    assert {line.split()[0] for line in SAID_OF_SLURM} == SLURM_LACKS.keys()


@pytest.mark.parametrize("verb", LACKS)
def test_a_machine_lacks_none_of_it(verb):
    for host in (LOCAL, Host(name="lab", address="lab")):
        backend_of(host).check_has(host, verb)
    with pytest.raises(LackingError) as caught:
        backend_of(KAGGLE).check_has(KAGGLE, verb)
    assert isinstance(caught.value, UsageError)
    assert (caught.value.host, caught.value.verb, caught.value.exit_code) == ("kaggle", verb, 2)
    assert "{" not in str(caught.value)


@pytest.mark.parametrize("verb", RENTED_LACKS)
def test_an_account_that_rents_lacks_it(verb):
    host = LambdaCloudHost(name="cloud", lambda_cloud=LambdaSettings())
    with pytest.raises(LackingError) as caught:
        backend_of(host).check_has(host, verb)
    assert (caught.value.host, caught.value.verb, caught.value.exit_code) == ("cloud", verb, 2)
    assert "{" not in str(caught.value)


@pytest.mark.parametrize("verb", SLURM_LACKS)
def test_a_cluster_lacks_it(verb):
    with pytest.raises(LackingError) as caught:
        backend_of(HIVE).check_has(HIVE, verb)
    assert (caught.value.host, caught.value.verb, caught.value.exit_code) == ("hive", verb, 2)
    assert "{" not in str(caught.value)
