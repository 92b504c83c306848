"""The `#SBATCH` lines of a job script, as keys of `slurm`; what sbatch itself makes of them is in runs/slurm/test_slurm_truth.py."""

import re

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


JOB = {"name": "j", "command": ["bash", "job.sbatch"]}
HIVE = SlurmHost(name="hive", address="hive", slurm=SlurmSettings())


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
    """Without its value, which may be a secret."""
    script = read(
        tmp_path,
        "#SBATCH --array=1-4 --ntasks-per-node=4 --requeue\n#SBATCH hetjob\n#SBATCH -k -J x -v --comment=hunter2\n",
    )
    assert script.taken == ()
    named = [option.partition(" ")[0] for option in script.left_out]
    assert named == [
        "--array",
        "--ntasks-per-node",
        "--requeue",
        "--hetjob",
        "--no-kill",
        "--verbose",
        "--comment",
    ]
    assert "launch batch --help" in script.words
    assert "hunter2" not in script.words


@pytest.mark.parametrize(
    ("lines", "nodes", "gres", "left_out"),
    [
        ("--gpus=4", 1, "gpu:4", ()),
        ("--gpus=4 -N 2", 2, "gpu:2", ()),
        ("-N 2 -G a100:4", 2, "gpu:a100:2", ()),
        ("--gpus-per-node=2 --gpus=4 -N 2", 2, "gpu:2", ("--gpus",)),
        ("--gpus=2 --gres=gpu:4", 1, "gpu:2", ("--gres",)),
        ("--gres=gpu:2 --gpus-per-node=4", 1, "gpu:2", ("--gpus-per-node",)),
    ],
)
def test_cards_are_those_of_each_node(tmp_path, lines, nodes, gres, left_out):
    """Of several options the first one counts, and the others are named."""
    script = read(tmp_path, f"#SBATCH {lines}\n")
    asked = with_batch_script(Job.model_validate(JOB), script, HIVE).slurm
    assert (asked.nodes, asked.gres) == (nodes, gres)
    assert tuple(option.partition(" ")[0] for option in script.left_out) == left_out


def test_cards_on_all_nodes_are_divided_among_those_of_set(tmp_path):
    """Also where another one than the script says how many nodes there are."""
    script = read(tmp_path, "#SBATCH --gpus=4\n")
    two = Job.model_validate({**JOB, "slurm": {"nodes": 2}})
    assert with_batch_script(two, script, HIVE).slurm.gres == "gpu:2"
    three = Job.model_validate({**JOB, "slurm": {"nodes": 3}})
    with pytest.raises(BadFileError, match="the same number on each"):
        with_batch_script(three, script, HIVE)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--time=soon", ':1: time = "soon": expected a minute or more'),
        ("--partition='gpu", ":1: #SBATCH: no closing quotation"),
        ("--nodes=1-2", ":1: nodes"),
        ("--partition", ":1: #SBATCH --partition: its value is missing"),
        ("--time=30 more words", ":1: #SBATCH: 'more' is no option of sbatch"),
        ("--part=short", ":1: #SBATCH --part: write it in full   --partition"),
        ("--wckey=hf_abcdefghijklmnopqrstuvwxyzabcdefgh", "credential"),
    ],
)
def test_a_line_that_cannot_be_passed_on_is_refused_by_its_number(tmp_path, line, said):
    with pytest.raises(BadFileError, match=re.escape(said)):
        read(tmp_path, f"#SBATCH {line}\n")


def test_short_options_may_stand_together(tmp_path):
    script = read(tmp_path, "#SBATCH -Hvp spare\n#SBATCH -t 0\n")
    assert (script.settings.partition, script.settings.extra) == ("spare", ("--hold",))
    assert [option.partition(" ")[0] for option in script.left_out] == ["--verbose", "--time"]


def test_a_line_whose_key_is_set_does_not_count(tmp_path):
    """Then its value need not be one that launcher has a key for."""
    (tmp_path / "job.sbatch").write_text("#SBATCH -N 1-2 --time=UNLIMITED\n")
    script = read_batch_script(("bash", "job.sbatch"), tmp_path, {"nodes"})
    assert script.settings == SlurmSettings()
    assert script.left_out == ("--time (without a limit; the partition's counts)",)


def test_a_script_with_lines_as_on_dos_is_refused(tmp_path):
    """By bash too, whose commands would end with a carriage return."""
    (tmp_path / "job.sbatch").write_bytes(b"#!/bin/bash\r\n#SBATCH -N 1\r\n")
    with pytest.raises(BadFileError, match="as on DOS"):
        read_batch_script(("bash", "job.sbatch"), tmp_path)


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
    (finding,) = batch_script_findings(("sbatch", "--parsable", "job.sbatch"), tmp_path, 1)
    assert "this run only submits it" in finding.message
    assert finding.mend.endswith("launch … -- bash job.sbatch")
    assert [*batch_script_findings(("python", "train.py"), tmp_path, 1)] == []


def test_a_script_that_starts_processes_on_all_nodes_is_refused_on_several(tmp_path):
    """launcher starts it once on each."""
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH-N 2\n # indented\n#SBATCH -t 5\nsrun python train.py\n"
    )
    command = ("bash", "job.sbatch")
    assert read_batch_script(command, tmp_path).settings.nodes == 2
    codes = [[one.code for one in batch_script_findings(command, tmp_path, nodes)] for nodes in (1, 2)]
    assert codes == [["batch-script"], ["batch-script", "starts-on-all-nodes"]]


def test_options_that_set_replaces_are_named(tmp_path):
    (tmp_path / "job.sbatch").write_text(SCRIPT)
    script = read_batch_script(("bash", "job.sbatch"), tmp_path, {"time", "extra"})
    assert not {"time", "extra"} & script.settings.model_fields_set
    assert [option.partition(" ")[0] for option in script.left_out] == ["--mem", "--mail-type", "--exclusive"]
