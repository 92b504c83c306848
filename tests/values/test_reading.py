"""Files that people write: every mistake is named with file, key, value, what is allowed and the nearest match."""

import pytest

from launcher.base.toml import read_toml
from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.parsing import build
from launcher.values.profile import Profile


def complaint(model, data, text=""):
    with pytest.raises(BadFileError) as caught:
        build(model, data, file="it.toml", text=text)
    return str(caught.value)


def test_text_is_no_number_and_the_line_is_named():
    """A number in quotes is refused with key, value, both kinds and its line."""
    text = 'name = "x"\n\n[batch]\n# four\nglobal = "64"\n'
    said = complaint(Job, {"name": "x", "command": ["a"], "batch": {"global": "64"}}, text)
    assert said == 'it.toml: batch.global = "64": expected a whole number, got text   (line 5)'


def test_an_unknown_key_names_the_nearest_and_all_that_are_allowed():
    """A misspelt key is refused with a guess and the list."""
    said = complaint(Job, {"name": "x", "command": ["a"], "stps": 3})
    assert "unknown key 'stps': did you mean 'steps'?" in said
    assert "allowed: name, command" in said


def test_an_unknown_key_in_a_table_lists_that_tables_keys():
    """The allowed keys are those of the table, under the names that people write."""
    said = complaint(Job, {"name": "x", "command": ["a"], "batch": {"size": 3}})
    assert "unknown key 'batch.size'" in said
    assert "allowed: global, micro" in said


def test_every_mistake_of_a_file_is_told_at_once():
    """Two mistakes give two lines."""
    said = complaint(Host, {"name": "x", "port": 99999, "rooot": "/x"})
    assert "port = 99999" in said
    assert "did you mean 'root'?" in said


@pytest.mark.parametrize(
    "written",
    [{"HF_TOKEN": "hf_value"}, "hf_value", ["HF_TOKEN", 4711], [["hf_value"]], {"hf_value": {}}, 4711],
)
def test_what_stands_where_the_names_of_secrets_belong_is_never_repeated(written):
    """A table, a text or a number there may be a value; the line is named all the same."""
    text = 'name = "x"\nsecrets = …\n'
    said = complaint(Job, {"name": "x", "command": ["a"], "secrets": written}, text)
    assert said.startswith("it.toml: secrets: expected a list of names")
    assert "(line 2)" in said or isinstance(written, (dict, list))
    assert not [word for word in ("hf_value", "4711") if word in said]


@pytest.mark.parametrize("address", ["-oProxyCommand=evil", "a b", ""])
def test_an_address_that_ssh_could_take_for_an_option_is_refused(address):
    """No host's address begins with a dash or holds white space."""
    assert "address" in complaint(Host, {"name": "x", "address": address})


@pytest.mark.parametrize("name", ["../up", "-rf", "a b", "A", "", "a/b", "x" * 60])
def test_a_name_is_safe_in_a_path(name):
    """A job's name becomes part of a folder's name."""
    assert "name" in complaint(Job, {"name": name, "command": ["a"]})


def test_a_profile_may_not_claim_what_is_derived():
    """What a card can do follows from what it is."""
    said = complaint(Profile, {"name": "x", "title": "X", "kind": "cpu", "has_bf16": True})
    assert "unknown key 'has_bf16'" in said


def test_a_file_that_is_no_toml_says_where(tmp_path):
    """The parser's line and column reach the user."""
    path = tmp_path / "bad.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(BadFileError, match=r"bad\.toml: is not TOML: .*line"):
        read_toml(path)
