"""What speaks against a plan for Kaggle: secrets, files of a host, packages without the internet; and what its user must know."""

import pytest
from testbed.profiles import profiles

from launcher.backends.kaggle.kaggle_host import KAGGLE, KaggleHost, KaggleSettings
from launcher.backends.kaggle.kaggle_machines import choose_machine, expected_facts, planned_machine
from launcher.backends.kaggle.kaggle_planning import SESSION
from launcher.backends.kaggle.kaggle_session import session
from launcher.backends.registry import backend_of
from launcher.config.resolve import wheels
from launcher.planning.assembly import plan
from launcher.values.job import Job

KNOWN = profiles()
CHOICE = choose_machine("kaggle", KaggleSettings(), (), KNOWN)
FACTS = expected_facts("kaggle-alice", CHOICE.machine, CHOICE.profiles[0])


def job(**values):
    return Job(name="sft", command=("python", "train.py"), **values)


def found(asked, host=KAGGLE, facts=FACTS):
    made = plan(CHOICE.profiles[0], host, asked, runtime="kaggle", resources=SESSION)
    return {finding.code: finding for finding in backend_of(host).planning.check(made, facts, host, wheels())}


def test_a_sane_plan_is_refused_nothing_and_its_user_knows_what_is_only_expected():
    said = found(job(requirements=("torch", "peft==0.19.1")))
    assert {code for code, one in said.items() if one.level == "refuse"} == set()
    assert {"expected-only", "sessions"} <= said.keys()
    assert "2 x Tesla T4, Python 3.13" in said["expected-only"].message
    assert "launch recover --all" in said["sessions"].mend


def test_a_session_of_another_length_is_named():
    assert (
        "2.5 h"
        in found(job(), KaggleHost(name="k", kaggle=KaggleSettings(session_hours=2.5)))["sessions"].message
    )


def test_a_run_that_one_session_can_hold_needs_no_client():
    assert "sessions" not in found(job(time_limit_minutes=60))


@pytest.mark.parametrize("facts", [FACTS, None])
def test_secrets_are_refused_with_the_ways_that_work(facts):
    said = found(job(secrets=("HF_TOKEN",)), facts=facts)["no-secrets"]
    assert said.level == "refuse"
    assert "HF_TOKEN" in said.message
    assert "kaggle-cli#582" in said.message
    assert "private Kaggle dataset" in said.mend
    assert "gated model" in said.mend


def test_a_file_of_the_host_is_refused():
    said = found(job(model="host:/models/llama", data={"train": "host:/data/x.jsonl"}))["no-host-files"]
    assert said.level == "refuse"
    assert "model, data.train" in said.message


@pytest.mark.parametrize(("internet", "codes"), [(True, set()), (False, {"no-internet"})])
def test_packages_that_may_have_to_be_installed_need_the_internet(internet, codes):
    host = KaggleHost(name="k", kaggle=KaggleSettings(internet=internet))
    for asked in (job(requirements=("peft",)), job(model="org/name")):
        assert found(asked, host).keys() & {"no-internet"} == codes


def test_packages_that_the_image_has_in_another_version_are_noted():
    said = found(job(requirements=("torch==2.13.0",)))["packages-differ"]
    assert "torch 2.10.0+cu128, not ==2.13.0" in said.message


def test_the_machine_of_a_recorded_plan_is_the_one_that_was_asked_for():
    """A resumed run expects what its parent had, whatever the host's table says by now."""
    made = plan(CHOICE.profiles[0], KAGGLE, job(), runtime="kaggle", resources=SESSION)
    assert planned_machine(made) is None
    given = made.model_copy(update={"session": session(CHOICE, (), (), wheels())})
    assert planned_machine(given).machine == CHOICE.machine
    assert planned_machine(given).profiles == CHOICE.profiles


def test_files_of_a_dataset_that_the_table_names_are_there():
    """Below /kaggle/input; no other path is, and without a dataset none at all."""
    with_data = KaggleHost(name="k", kaggle=KaggleSettings(datasets=("alice/texts",)))
    inside = job(model="host:/kaggle/input/datasets/alice/texts/base")
    assert "no-host-files" not in found(inside, with_data)
    assert "no-host-files" in found(inside)
    said = found(job(model="host:/models/base"), with_data)["no-host-files"]
    assert "except those below /kaggle/input/" in said.message
