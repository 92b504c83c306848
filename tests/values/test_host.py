"""Hosts of all kinds: what each may have, and that a run's record keeps them."""

import json

import pytest

from launcher.backends.kaggle.kaggle_host import KAGGLE, KaggleSettings
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.config.host_table import read_host
from launcher.errors import BadFileError
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.values.host import LOCAL, Host
from launcher.values.slurm_settings import SlurmSettings


def read(table, name="k"):
    text = f"[hosts.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    return read_host(name, table, is_here=False, file="launch.toml", text=text)


def complaint(table):
    with pytest.raises(BadFileError) as caught:
        read(table)
    return str(caught.value)


def test_an_account_needs_no_key_but_its_kind():
    """Whose account it is, the credentials say."""
    host = read({"kind": "kaggle"})
    assert host.kaggle == KaggleSettings()
    assert not host.is_local
    assert (host.kaggle.internet, host.kaggle.session_hours, host.kaggle.keep_kernels) == (True, 8.5, False)
    assert host.kaggle.account is host.kaggle.accelerator is None


def test_the_keys_of_an_account_stand_beside_those_that_every_host_has():
    keys = {"account": "alice", "api": "http://127.0.0.1:8080/v1/", "internet": False, "session_hours": 2}
    table = {"kind": "kaggle", **keys, "accelerator": "None", "keep_kernels": True, "profile": "t4x2"}
    host = read(table)
    assert host.kaggle.api == "http://127.0.0.1:8080/v1"
    assert (host.kaggle.account, host.kaggle.accelerator, host.profile) == ("alice", "None", "t4x2")


@pytest.mark.parametrize(
    "host",
    [
        KAGGLE,
        LOCAL,
        Host(name="lab", address="lab", port=7),
        read({"kind": "kaggle"}),
        read({"kind": "lambda-cloud"}),
        read({"kind": "slurm"}),
        read(
            {
                "kind": "slurm",
                "address": "login",
                "hold": 0,
                "extra": ["--exclusive"],
                "build": "job",
                "time": 90,
            }
        ),
        read({"kind": "lambda-cloud", "type": "gpu_1x_a10", "max_cost": 0.07, "user": "me", "env": "~/e"}),
    ],
)
def test_a_host_is_the_same_after_its_record_was_read(host):
    """As JSON and as values, which a run's mirror keeps."""
    assert Host.model_validate_json(host.model_dump_json()) == host
    assert Host.model_validate(json.loads(json.dumps(host.model_dump()))) == host


def test_the_record_of_a_machine_has_no_key_that_an_older_version_refuses():
    assert (
        not {"kind", "kaggle", "lambda_cloud", "slurm"} & Host(name="lab", address="lab").model_dump().keys()
    )
    assert "lambda_cloud" not in KAGGLE.model_dump()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("address", "gpu", "no machine accepts a login"),
        ("port", 22, "no machine accepts a login"),
        ("root", "~/.launch", "on this machine"),
        ("python", "python3", "Kaggle's image"),
        ("environment", "venv", "requirements"),
        ("env", "venv", "requirements"),
        ("engine", "docker", "own container"),
        ("build", {"base": "x"}, "Kaggle's own"),
        ("variables", "listed", "-e NAME=VALUE"),
    ],
)
def test_a_key_of_machines_is_refused_with_the_reason(key, value, why):
    said = complaint({"kind": "kaggle", key: value})
    assert f"launch.toml: hosts.k.{key}: not for kind" in said
    assert why in said


@pytest.mark.parametrize("key", sorted(KaggleSettings.model_fields))
def test_a_key_of_accounts_is_refused_for_a_machine(key):
    """A forgotten `kind` is the likeliest mistake: the line that is missing is shown."""
    said = complaint({key: "x"})
    assert f"hosts.k.{key}" in said
    assert 'kind = "kaggle"' in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"api": "http://example.org/v1"}, ["hosts.k.api", "in the clear", "line 3"]),
        ({"api": "https://me:secretword@example.org/v1"}, ["hosts.k.api", "KAGGLE_API_TOKEN"]),
        ({"api": "kaggle.com"}, ["https://api.kaggle.com/v1"]),
        ({"session_hours": 13}, ["hosts.k.session_hours = 13", "12"]),
        ({"session_hours": 0}, ["hosts.k.session_hours = 0"]),
        ({"session_hours": "8"}, ["expected a number, got text"]),
        ({"account": "Alice Smith"}, ["www.kaggle.com/NAME"]),
        ({"accelerator": "T4 x 2"}, ["NvidiaTeslaT4"]),
        ({"runtime": "docker"}, ["hosts.k.runtime"]),
        ({"acount": "alice"}, ["did you mean 'account'", "allowed: account, api", "profile"]),
        ({"datasets": ["texts"]}, ["hosts.k.datasets", "OWNER/NAME"]),
        ({"models": ["google/gemma"]}, ["hosts.k.models", "OWNER/MODEL/FRAMEWORK/VARIATION"]),
        ({"kaggle": {}}, ["its keys here"]),
    ],
)
def test_a_wrong_value_is_named_by_key_and_line(table, words):
    said = complaint({"kind": "kaggle", **table})
    assert all(word in said for word in words), said
    assert "secretword" not in said


def test_a_kind_that_does_not_exist_is_named_with_those_that_do():
    """Also if its keys are there: they are not called wrong then."""
    for kind, likely in (("kagle", "kaggle"), ("lambda", "lambda-cloud")):
        said = complaint({"kind": kind, "max_hours": 4})
        assert f"hosts.k.kind = \"{kind}\": unknown kind: did you mean '{likely}'?" in said
        assert "known: machine, kaggle, lambda-cloud, slurm" in said
        assert "max_hours" not in said


def test_a_record_of_an_older_version_with_unset_settings_of_other_kinds_is_read():
    host = Host.model_validate({"name": "k", "kaggle": None, "lambda_cloud": None, "slurm": None})
    assert host == Host(name="k")


def test_a_kind_that_is_no_text_is_named_with_its_line():
    assert complaint({"kind": 3}) == (
        "launch.toml: hosts.k.kind = 3: expected text   (line 2)\n  known: machine, kaggle, lambda-cloud, slurm"
    )


@pytest.mark.parametrize(("kind", "runtime"), [("machine", "machine"), ("lambda-cloud", "lambda-cloud")])
def test_a_runtime_that_is_only_the_name_of_a_kind_is_left_to_the_list_of_runtimes(kind, runtime):
    assert read({"kind": kind, "runtime": runtime}).runtime == runtime


def test_the_allowed_keys_of_a_machine_are_those_of_its_table():
    """`kaggle` and `lambda_cloud` are no keys: the settings stand in the table itself."""
    allowed = complaint({"adress": "gpu"}).splitlines()[-1]
    assert "address" in allowed
    assert "kaggle" not in allowed
    assert "lambda" not in allowed


def test_no_machine_has_kaggles_runtime():
    assert 'kind = "kaggle"' in complaint({"runtime": "kaggle"})


@pytest.mark.parametrize(
    "values", [{"kind": "kaggle"}, {"kaggle": KaggleSettings()}, {"kind": "kaggle", "address": "x"}]
)
def test_a_host_is_of_one_kind(values):
    with pytest.raises(ValueError, match="kaggle"):
        Host.model_validate({"name": "k", **values})


def test_where_machines_are_rented_the_keys_of_a_machine_stand_beside_those_of_the_account():
    table = {"type": ["gpu_1x_a100", "gpu_1x_a10"], "region": "us-east-1", "max_hours": 8, "max_cost": 20}
    host = read({"kind": "lambda-cloud", **table, "user": "me", "port": 2222, "env": "~/venv", "sudo": True})
    cloud = host.lambda_cloud
    assert (cloud.type, cloud.region) == (("gpu_1x_a100", "gpu_1x_a10"), ("us-east-1",))
    assert (cloud.max_hours, cloud.max_cents, cloud.keep, cloud.confirm_above) == (8, 2000, False, 10)
    assert (host.user, host.port, host.environment, host.sudo) == ("me", 2222, "~/venv", True)
    assert (host.address, host.is_local) == (None, False)


@pytest.mark.parametrize(
    ("dollars", "cents"), [(0.01, 1), (0.29, 29), (1.15, 115), (19.999, 1999), (20, 2000)]
)
def test_a_limit_in_dollars_is_one_in_whole_cents(dollars, cents):
    assert read({"kind": "lambda-cloud", "max_cost": dollars}).lambda_cloud.max_cents == cents


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("address", "10.0.0.1", "which the service reports"),
        ("known_hosts", "/k", "keeps it with the rental"),
        ("variables", "listed", "-e NAME=VALUE"),
    ],
)
def test_a_key_that_a_rented_machine_does_not_have_is_refused_with_the_reason(key, value, why):
    said = complaint({"kind": "lambda-cloud", key: value})
    assert f'launch.toml: hosts.k.{key}: not for kind = "lambda-cloud"' in said
    assert why in said


@pytest.mark.parametrize("key", sorted(LambdaSettings.model_fields.keys() - {"api"}))
@pytest.mark.parametrize("kind", [{}, {"kind": "kaggle"}], ids=["machine", "kaggle"])
def test_a_key_of_rentals_is_refused_elsewhere(kind, key):
    said = complaint({**kind, key: "x"})
    assert f"hosts.k.{key}: only for a Lambda Cloud account" in said
    assert 'kind = "lambda-cloud"' in said.splitlines()[-1]


def test_a_key_of_kaggle_is_refused_where_machines_are_rented():
    assert 'kind = "kaggle"' in complaint({"kind": "lambda-cloud", "accelerator": "None"})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"api": "http://example.org/api/v1"}, ["hosts.k.api", "in the clear", "line 3"]),
        ({"api": "https://me:secretword@example.org/v1"}, ["hosts.k.api", "LAMBDA_API_KEY"]),
        ({"api": "lambda.ai"}, ["https://cloud.lambda.ai/api/v1"]),
        ({"max_hours": 0}, ["hosts.k.max_hours = 0"]),
        ({"max_hours": 9000}, ["hosts.k.max_hours = 9000"]),
        ({"max_cost": 0.001}, ["hosts.k.max_cost = 0.001", "0.01"]),
        ({"confirm_above": -1}, ["hosts.k.confirm_above = -1"]),
        ({"type": "gpu;1"}, ["hosts.k.type", "expected a name"]),
        ({"type": [7]}, ["hosts.k.type", "expected text"]),
        ({"port": 0}, ["hosts.k.port = 0"]),
        ({"user": "-x"}, ["hosts.k.user"]),
        ({"runtime": "kaggle"}, ["hosts.k", 'kind = "kaggle"']),
        ({"env": "a", "environment": "b"}, ["hosts.k", "remove `env`"]),
        ({"max_hour": 8}, ["did you mean 'max_hours'", "allowed: user, port", "max_cost"]),
        ({"lambda_cloud": {}}, ["its keys here"]),
    ],
)
def test_a_wrong_value_of_a_rental_is_named_by_key(table, words):
    said = complaint({"kind": "lambda-cloud", **table})
    assert all(word in said for word in words), said
    assert "secretword" not in said


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "lambda-cloud"},
        {"lambda_cloud": LambdaSettings()},
        {"kind": "lambda-cloud", "lambda_cloud": LambdaSettings(), "address": "x"},
    ],
)
def test_a_host_where_machines_are_rented_is_of_that_kind(values):
    with pytest.raises(ValueError, match=r"lambda.cloud"):
        Host.model_validate({"name": "k", **values})


def test_a_cluster_has_the_keys_of_its_login_node_and_those_of_its_jobs():
    """Its `build` is Slurm's: no image is built there."""
    table = {
        "user": "ada",
        "port": 2222,
        "root": "~/runs/.launch",
        "profile": "a100",
        "environment": "~/venv",
    }
    host = read(
        {
            "kind": "slurm",
            **table,
            "partition": "gpu",
            "time": "2-0",
            "build": "job",
            "modules": ["cuda/12.4"],
        }
    )
    assert (host.user, host.port, host.root, host.profile, host.environment) == tuple(table.values())
    assert (host.address, host.is_local, host.runtime) == ("k", False, "auto")
    assert host.slurm == SlurmSettings(partition="gpu", time="2-0", build="job", modules=("cuda/12.4",))
    assert read({"kind": "slurm", "address": "login.hive.example.org"}).address == "login.hive.example.org"


def test_a_login_node_may_be_this_machine():
    """As `local` may be any other."""
    host = read_host("local", {"kind": "slurm"}, is_here=True, file="launch.toml", text="")
    assert (host.is_local, host.address, host.slurm) == (True, None, SlurmSettings())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"engine": "docker"}, ["hosts.k.engine: not for kind", "without a container of launcher"]),
        ({"sudo": True}, ["hosts.k.sudo: not for kind", "without a container of launcher   (line 3)"]),
        ({"variables": "inherit"}, ["hosts.k.variables: not for kind", "-e NAME=VALUE"]),
        ({"build": {"base": "x"}}, ["hosts.k.build", "'login' or 'job'"]),
        ({"runtime": "native"}, ["hosts.k.runtime", "expected auto or slurm"]),
        ({"time": "4h"}, ["hosts.k.time", "1:30:00", "line 3"]),
        (
            {"extra": "--mem=1G"},
            ['hosts.k.extra = "--mem=1G": expected a list, as in ["--mem=1G"]   (line 3)'],
        ),
        ({"modules": ["cuda; id"]}, ["hosts.k.modules", "cuda/12.4"]),
        ({"modules": ["-f"]}, ["hosts.k.modules", "cuda/12.4"]),
        ({"partitions": "gpu"}, ["did you mean 'partition'"]),
        ({"account": "a b"}, ["hosts.k.account", "expected a name that Slurm knows"]),
        ({"address": "-x"}, ["hosts.k.address"]),
        ({"slurm": {}}, ["its keys here"]),
    ],
)
def test_a_wrong_key_of_a_cluster_is_named(table, words):
    said = complaint({"kind": "slurm", **table})
    assert all(word in said for word in words), said


def test_an_unknown_key_of_a_cluster_is_answered_with_those_that_it_may_have():
    """What would be refused next is not named; a machine has all of that."""
    allowed = complaint({"kind": "slurm", "nonsense": 1}).partition("allowed: ")[2].split(", ")
    assert {"partition", "extra", "address", "root"} <= {*allowed}
    assert not {"engine", "sudo", "runtime", "variables"} & {*allowed}
    assert {"engine", "sudo", "runtime"} <= {
        *complaint({"nonsense": 1}).partition("allowed: ")[2].split(", ")
    }


@pytest.mark.parametrize("key", ["partition", "qos", "gres", "nodes", "modules"])
def test_a_key_of_a_cluster_is_refused_for_a_machine(key):
    said = complaint({key: "x"})
    assert f"hosts.k.{key}: only for a Slurm cluster   (line 2)" in said
    assert 'kind = "slurm"' in said.splitlines()[-1]


def test_no_machine_has_slurms_runtime():
    assert 'kind = "slurm"' in complaint({"runtime": "slurm"})


@pytest.mark.parametrize("values", [{"kind": "slurm"}, {"slurm": SlurmSettings()}])
def test_a_cluster_is_of_one_kind(values):
    with pytest.raises(ValueError, match="slurm"):
        Host.model_validate({"name": "k", **values})


def test_a_cluster_of_this_machine_inherits_no_variables():
    with pytest.raises(ValueError, match="-e NAME=VALUE"):
        SlurmHost(name="k", slurm=SlurmSettings(), variables="inherit")


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ({}, "ls /data"),
        ({"address": "lab"}, "ssh lab ls /data"),
        (
            {"address": "lab", "user": "ada", "port": 7, "identity_file": "~/key", "known_hosts": "/k/hosts"},
            "ssh -i '~/key' -o UserKnownHostsFile=/k/hosts -p 7 ada@lab ls /data",
        ),
        (
            {"address": "lab", "known_hosts": "/my k/hosts"},
            """ssh -o 'UserKnownHostsFile="/my k/hosts"' lab ls /data""",
        ),
    ],
)
def test_a_command_by_hand_reaches_a_host_as_its_table_says(keys, command):
    """With the key and the known hosts that launcher itself uses."""
    assert Host(name="lab", **keys).by_hand("ls /data") == command
