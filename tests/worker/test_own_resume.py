"""A script's own Trainer continues from its own checkpoint, given by the start-up hook."""

import types

import pytest
from launcher_worker import own_resume


class Trainer:
    """What the hook sees of transformers' Trainer."""

    def __init__(self, folder):
        self.args = types.SimpleNamespace(output_dir=str(folder))

    def train(self, resume_from_checkpoint=None):
        """Return the checkpoint that is loaded."""
        return resume_from_checkpoint


@pytest.fixture
def hooked(tmp_path, monkeypatch):
    """A Trainer under the hook, the checkpoint that it is to load, and the events that the hook sent."""
    (tmp_path / "out" / "checkpoint-5").mkdir(parents=True)
    path, sent = str(tmp_path / "out" / "checkpoint-5"), []
    monkeypatch.setattr(own_resume, "knobs", lambda: types.SimpleNamespace(own_checkpoint=path))
    monkeypatch.setattr(own_resume, "send", lambda *_, values, **__: sent.append(values))
    kind = type("Trainer", (Trainer,), {"train": Trainer.train})
    own_resume.resume_trainer(types.SimpleNamespace(Trainer=kind))
    return kind, path, sent


def test_the_first_trainer_of_the_folder_gets_the_checkpoint_once(hooked, tmp_path, capsys):
    """A second one, as of the next fold, trains what the first has not."""
    kind, path, sent = hooked
    assert kind(tmp_path / "out").train() == path
    assert kind(tmp_path / "out").train() is None
    assert "resumed: Trainer.train: " in capsys.readouterr().out
    assert sent


def test_a_trainer_of_another_folder_begins_anew_and_that_is_said(hooked, tmp_path, capsys):
    """The agent hears of no resume, so the end is in doubt."""
    kind, path, sent = hooked
    assert kind(tmp_path / "out-2").train() is None
    assert "not resumed: this Trainer saves into" in capsys.readouterr().out
    assert not sent
    assert kind(tmp_path / "out").train() == path


@pytest.mark.parametrize("named", [False, True, "out/checkpoint-1"])
def test_what_a_script_names_itself_is_left(hooked, tmp_path, named):
    kind, _, sent = hooked
    assert kind(tmp_path / "out").train(named) is named
    assert sent


def test_a_checkpoint_that_the_script_has_removed_is_not_given(hooked, tmp_path):
    """A script that empties its folder at its start, for example."""
    kind, _, sent = hooked
    (tmp_path / "out" / "checkpoint-5").rmdir()
    assert kind(tmp_path / "out").train() is None
    assert not sent
