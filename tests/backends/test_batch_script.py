"""The `#SBATCH` lines of a job script, as keys of `slurm`; what sbatch itself makes of them is in runs/slurm/test_slurm_truth.py."""

import pytest

from launcher.backends.slurm.batch_script import batch_script_findings, read_batch_script, with_batch_script
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.errors import BadFileError
from launcher.values.job import Job
from launcher.values.slurm_settings import SlurmSettings

SCRIPT = """#!/bin/bash
#SBATCH --job-name=hello --output=%j.out
#SBATCH -p gpu -t1:00:00   # an hour
#SBATCH -N 2
#SBATCH --gpus-per-node=a100:2
#SBATCH --mem 64G
#SBATCH --ntasks-per-node=1
##SBATCH --qos=commented

# a comment
#SBATCH --mail-type=END --exclusive
python train.py
#SBATCH --qos=late
"""


def read(folder, text, *command):
    """What is read of a script job.sbatch with this text."""
    (folder / "job.sbatch").write_text(text)
    return read_batch_script(command or ("bash", "job.sbatch"), folder)


def test_each_way_to_write_an_option_is_read(tmp_path):
    """Up to the first command, as sbatch does it."""
    script = read(tmp_path, SCRIPT)
    assert script.settings == SlurmSettings(
        partition="gpu",
        time="1:00:00",
        nodes=2,
        gres="gpu:a100:2",
        extra=("--mem=64G", "--mail-type=END", "--exclusive"),
    )
    assert script.words == (
        "job.sbatch: its #SBATCH lines ask for --partition=gpu --time=1:00:00 --nodes=2 --gpus-per-node=a100:2 "
        "--mem=64G --mail-type=END --exclusive"
    )


@pytest.mark.parametrize(
    "command", [("bash", "-e", "job.sbatch"), ("/bin/sh", "job.sbatch", "7"), ("./job.sbatch",)]
)
def test_a_script_is_found_behind_its_shell(tmp_path, command):
    assert read(tmp_path, SCRIPT, *command).settings.partition == "gpu"


@pytest.mark.parametrize(
    "command",
    [("python", "job.sbatch"), ("bash", "-c", "job.sbatch"), ("bash",), ("job.sbatch",), ("bash", "no.sh")],
)
def test_other_commands_have_no_lines(tmp_path, command):
    assert read(tmp_path, SCRIPT, *command) is None


def test_what_launcher_sets_itself_is_named(tmp_path):
    script = read(tmp_path, "#SBATCH --array=1-4 --ntasks-per-node=4 --requeue\n#SBATCH hetjob\n")
    assert script.taken == ()
    assert [option.partition(" ")[0] for option in script.left_out] == [
        "--array=1-4",
        "--ntasks-per-node=4",
        "--requeue",
        "--hetjob",
    ]
    assert "launch batch --help" in script.words


def test_a_number_of_cards_for_all_nodes_is_left_out(tmp_path):
    """It would be taken for the number on each node."""
    script = read(tmp_path, "#SBATCH --gpus=4\n#SBATCH --nodes=2\n")
    assert (script.settings.gres, script.settings.nodes) == (None, 2)
    assert script.left_out == ("--gpus=4 (launcher plans the cards of each node: --gpus-per-node)",)
    assert read(tmp_path, "#SBATCH --gpus=4\n").settings.gres == "gpu:4"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--time=soon", ':1: time = "soon": expected a minute or more'),
        ("--partition='gpu", ":1: #SBATCH: no closing quotation"),
        ("--nodes=1-2", ":1: nodes"),
        ("--comment=hf_abcdefghijklmnopqrstuvwxyzabcdefgh", "launcher sets it"),
        ("--wckey=hf_abcdefghijklmnopqrstuvwxyzabcdefgh", "credential"),
    ],
)
def test_a_line_that_cannot_be_passed_on_is_refused_by_its_number(tmp_path, line, said):
    try:
        told = read(tmp_path, f"#SBATCH {line}\n").words
    except BadFileError as error:
        told = str(error)
    assert said in told


def test_lines_replace_the_hosts_keys_and_the_jobs_own_keys_replace_them(tmp_path):
    script = read(tmp_path, SCRIPT)
    host = SlurmHost(
        name="hive",
        address="hive",
        slurm=SlurmSettings(partition="batch", qos="low", extra=("--mem=8G", "--nice")),
    )
    job = Job.model_validate({"name": "j", "command": ["bash", "job.sbatch"], "slurm": {"time": "30"}})
    asked = with_batch_script(job, script, host).slurm
    merged = host.slurm.changed_by(asked)
    assert (merged.partition, merged.qos, merged.time) == ("gpu", "low", "30")
    assert merged.extra == ("--nice", "--mem=64G", "--mail-type=END", "--exclusive")


def test_a_command_that_submits_a_job_itself_is_noted(tmp_path):
    (finding,) = batch_script_findings(("sbatch", "--parsable", "job.sbatch"), tmp_path)
    assert "this run only submits it" in finding.message
    assert finding.mend.endswith("launch … -- bash job.sbatch")
    assert [*batch_script_findings(("python", "train.py"), tmp_path)] == []
