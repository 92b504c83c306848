"""What stands before the command of a run in an image of its cluster, once the paths of its node are known."""

from launcher.agent.record.rundir import Run
from launcher.agent.training.container_words import words_of
from launcher.backends.slurm.apptainer import container_words

RUN = Run("/home/ada/.launch/runs/261126-train-aaaaaa")


def test_the_places_of_a_run_are_put_into_the_line_of_its_plan():
    line = container_words("/shared/torch.sif", has_cards=True, paths=["/data/{root}"])
    assert words_of(RUN, {"slurm": {"container": [*line]}}, "/tmp/launch-x/s") == [
        *("apptainer", "exec", "--nv"),
        *("--bind", "/home/ada/.launch", "--bind", "/tmp/launch-x", "--bind", "/data/{root}"),
        *("--pwd", "/home/ada/.launch/runs/261126-train-aaaaaa/work/code", "/shared/torch.sif"),
    ]


def test_a_run_without_an_image_begins_with_its_command():
    for plan in ({}, {"slurm": None}, {"slurm": {"flags": []}}):
        assert words_of(RUN, plan, "/tmp/launch-x/s") == []
