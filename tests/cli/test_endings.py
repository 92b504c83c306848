"""The next command at the end of a run: one that can work."""

import pytest

from launcher.cli.follow.ending import ending
from launcher.cli.follow.progress import Progress
from launcher.runs.follow.view import Result
from launcher.values.record import RunState

RUN = "20261130-080000-train-w8q2"


def shown(reason, checkpoint, rents_at=None):
    """The last line for a failed run of 60 steps."""
    state = RunState(state="failed", reason=reason, checkpoint=checkpoint)
    result = Result(None, {}, None, {}, None, 1.0, rents_at=rents_at)
    return [line.text.strip() for line in ending(RUN, state, result, Progress(RUN, 60), [])][-1]


@pytest.mark.parametrize(
    ("reason", "checkpoint", "rents_at", "command"),
    [
        pytest.param("exit-nonzero", 40, None, "resume   launch resume w8q2     from step 40", id="steps are left"),
        pytest.param("exit-nonzero", 60, None, "resume   launch resume w8q2     does what follows its training", id="no step is left"),
        pytest.param("user-code-error", 40, None, "rerun    launch rerun w8q2     with your corrected code", id="a mistake in the code"),
        pytest.param("user-code-error", 40, "lambda", "rerun    launch rerun w8q2 --host lambda ", id="rented"),
        pytest.param("user-code-error", None, None, "launch diagnose w8q2 ", id="no checkpoint"),
    ],
)  # fmt: skip
def test_a_resume_is_offered_only_where_it_can_help(reason, checkpoint, rents_at, command):
    assert shown(reason, checkpoint, rents_at).startswith(command)


@pytest.mark.parametrize(
    ("reason", "is_trainers", "command"),
    [
        ("signal", True, "resume   launch resume w8q2     from its own out/checkpoint-20"),
        (
            "signal",
            False,
            "resume   launch resume w8q2 -- COMMAND     with your script's option that loads out/ch",
        ),
        ("user-code-error", True, "next     launch logs w8q2"),
    ],
)
def test_a_resume_from_a_scripts_own_checkpoint_is_offered(reason, is_trainers, command):
    own = {"path": "out/checkpoint-20", "step": 20, "is_trainers": is_trainers}
    evidence = {"own_checkpoint": own, "class": reason, "why": "x"}
    state = RunState(state="failed", reason=reason, evidence=evidence)
    lines = ending(RUN, state, Result(None, {}, None, {}, None, 1.0), Progress(RUN, 60), [])
    assert [line.text.strip() for line in lines][-1].startswith(command)


@pytest.mark.parametrize(
    ("own", "command"),
    [
        (("out/model.bin", False), "launch resume w8q2 -- COMMAND     does what follows its training, beside out/model.bin and the other files that it wrote"),
        (("out/checkpoint-60", True), "launch resume w8q2     from its own out/checkpoint-60, to do what follows its training"),
    ],
)  # fmt: skip
def test_a_failure_after_the_training_offers_only_the_rest(own, command):
    """An upload that found no network, for example: the training need not be repeated."""
    found = {"path": own[0], "step": 60, "is_trainers": own[1]}
    evidence = {"own_checkpoint": found, "class": "network", "why": "x"}
    state = RunState(state="failed", reason="network", evidence=evidence)
    progress = Progress(RUN, 60)
    progress.step = 60
    lines = ending(RUN, state, Result(None, {}, None, {}, None, 1.0), progress, [])
    assert [line.text.strip() for line in lines][-1] == f"resume   {command}"


@pytest.mark.parametrize(
    ("own", "steps", "command"),
    [
        (("ckpt.pt", False), None, "launch resume w8q2 -- COMMAND     does what follows its training, beside ckpt.pt"),
        (("out/checkpoint-60", True), 60, "launch resume w8q2 -- COMMAND     only uploads"),
        (("ckpt.pt", False), 90, "launch resume w8q2 -- COMMAND     with your script's option that loads ckpt.pt"),
    ],
)  # fmt: skip
def test_a_failed_upload_offers_the_upload_alone(own, steps, command):
    """Also where the number of steps is not known. In the middle of a training it does not."""
    found = {"path": own[0], "step": 60, "is_trainers": own[1]}
    state = RunState(state="failed", reason="upload-failed", evidence={"own_checkpoint": found})
    progress = Progress(RUN, steps)
    progress.step = 60
    lines = ending(RUN, state, Result(None, {}, None, {}, None, 1.0), progress, [])
    assert [line.text.strip().removeprefix("resume   ") for line in lines][-1].startswith(command)


def test_records_that_wandb_wrote_offline_can_be_uploaded(tmp_path):
    """By the command for the first folder of them; other files need none."""
    folder = tmp_path / "wandb" / "offline-run-20261130_080000-abc"
    home = {folder / "run-abc.wandb": 100, folder / "files" / "config.yaml": 10, tmp_path / "out.txt": 1}
    result = Result(None, {}, None, {}, None, 1.0)._replace(home=home)
    lines = [line.text for line in ending(RUN, RunState(state="succeeded"), result, Progress(RUN, 60), [])]
    assert [line for line in lines if "wandb sync" in line] == [f"  wandb    wandb sync {folder}"]
    without = result._replace(home={tmp_path / "out.txt": 1})
    lines = [line.text for line in ending(RUN, RunState(state="succeeded"), without, Progress(RUN, 60), [])]
    assert not [line for line in lines if "wandb sync" in line]


def test_the_use_of_a_slurm_job_is_shown_at_its_end():
    """Only figures that are numbers: a job can write what it likes."""
    use = {"cpu_percent": 12.3, "cpus": 4, "process_gib": 1.5, "memory_gib": 8.0}
    for used, shown in (
        (use, "12 % of 4 CPUs; its largest process 1.5 of 8 GiB"),
        ({**use, "cpus": "4"}, ""),
    ):
        state = RunState(state="succeeded", evidence={"used": used})
        lines = [
            line.text
            for line in ending(RUN, state, Result(None, {}, None, {}, None, 1.0), Progress(RUN, 60), [])
        ]
        assert [line.removeprefix("    used   ") for line in lines if line.startswith("    used")] == (
            [shown] if shown else []
        )
