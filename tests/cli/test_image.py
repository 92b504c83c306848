"""launch image show: what a job runs in, told without a host."""

import json
import re

import pytest
from testbed.pty_run import in_terminal, without_style
from testbed.tables import mostly_long


def test_it_prints_the_name_each_choice_and_the_dockerfile(client):
    """What is printed is what would be built: no host is asked, nothing is made."""
    client.script(
        '[hosts.lab]\naddress = "x.invalid"\nprofile = "p100"\n[hosts.lab.build]\nbase = "lab/py:3"\n',
        "launch.toml",
    )
    said = client.ok("image", "show", "--host", "lab")
    assert said.startswith("launcher/p100:")
    assert "lab/py:3   (lab's build options)" in said
    assert "whl/cu126   (torch 2.14.1 is the last with code for capability 6.0" in said
    assert re.search(
        r"torch==2\.14\.1, accelerate==\S+, datasets==\S+, peft==\S+, transformers==\S+, trl==\S+   \(sft",
        said,
    )
    assert "\nFROM lab/py:3\n" in said
    assert not client.runs.exists()


def test_its_json_is_the_image(client):
    """Name, Dockerfile and requirements, for scripts."""
    told = json.loads(client.ok("image", "show", "--profile", "cpu", "--json"))
    assert told["name"].startswith("launcher/cpu:")
    assert told["dockerfile"].endswith("\n")
    assert told["requirements"][0] == "torch==2.13.0"
    assert told["wheels"]["url"].endswith("/whl/cpu")


def test_an_image_of_the_jobs_own_is_named(client):
    """There is nothing to print but its name."""
    client.script('name = "x"\ncommand = ["true"]\nimage = "team/own:1"\n', "my.toml")
    said = client.ok("image", "show", "--profile", "l40s", "--job", "my.toml")
    assert said.startswith("team/own:1\n")
    assert "FROM" not in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "next   launch image show --profile PROFILE"),
        (("--profile", "auto"), 2, "next   launch image show --profile PROFILE"),
        (("--profile", "a100"), 2, "a100_40gb or a100_80gb"),
        (("--profile", "mps"), 3, "no container sees an Apple GPU"),
    ],
)
def test_a_card_must_be_named_that_a_container_can_have(client, words, code, said):
    """The message says which word to add."""
    done = client.run("image", "show", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@mostly_long("columns", [80, 120], ci=(0,))
def test_the_choices_fit_the_terminal_and_the_dockerfile_is_whole(client, columns):
    """What is there to be copied is not broken."""
    whole = client.ok("image", "show", "--profile", "titan_rtx")
    said = without_style(in_terminal(client, "image", "show", "--profile", "titan_rtx", columns=columns))
    head, _, dockerfile = said.partition("\n\n")
    assert dockerfile == whole.partition("\n\n")[2]
    assert max(map(len, head.splitlines())) <= columns
    assert "".join(head.split()) == "".join(whole.partition("\n\n")[0].split())
