"""What a job may ask Slurm for: what is read, what is refused and why, and the flags of sbatch that it becomes."""

import json

import pytest

from launcher.errors import BadFileError
from launcher.values.parsing import build
from launcher.values.slurm_settings import SlurmSettings

ALL = {
    "partition": "gpu,gpu-long",
    "account": "lab_x",
    "qos": "high",
    "time": "1-12:30",
    "nodes": 2,
    "gres": "gpu:a100:2,nvme:1",
    "constraint": "[rack1*2&a100]",
    "reservation": "course",
    "extra": ["--exclusive", "--mem=64G", "--mail-user=ada@example.org"],
    "build": "job",
}


def read(**table):
    return build(SlurmSettings, table, file="launch.toml", prefix="hosts.hive.")


def complaint(**table):
    with pytest.raises(BadFileError) as caught:
        read(**table)
    return str(caught.value)


def test_every_key_becomes_one_word_and_further_flags_follow():
    """No word is for launcher alone to read but `build`, which sbatch is not told of."""
    assert read(**ALL).flags == (
        "--partition=gpu,gpu-long",
        "--account=lab_x",
        "--qos=high",
        "--time=1-12:30",
        "--nodes=2",
        "--gres=gpu:a100:2,nvme:1",
        "--constraint=[rack1*2&a100]",
        "--reservation=course",
        "--exclusive",
        "--mem=64G",
        "--mail-user=ada@example.org",
    )


def test_what_is_not_asked_for_is_left_to_the_cluster():
    """A job has one node, and an environment from the login node, unless the table says otherwise."""
    settings = read()
    assert settings.flags == ("--nodes=1",)
    assert (settings.build, settings.time_s) == ("login", None)


def test_the_record_has_no_image_that_an_older_version_refuses():
    """Unless the job runs in one. A job's table may still take it away from a host's."""
    assert "image" not in read(**ALL).model_dump()
    host = read(image="/shared/torch.sif")
    assert host.model_dump()["image"] == "/shared/torch.sif"
    assert host.changed_by(read(partition="gpu")).image == "/shared/torch.sif"
    assert host.changed_by(SlurmSettings(image=None)).image is None


def test_settings_are_the_same_after_their_record_was_read():
    """As JSON, which a run's record keeps."""
    settings = read(**ALL)
    assert SlurmSettings.model_validate_json(settings.model_dump_json()) == settings
    assert SlurmSettings.model_validate(json.loads(json.dumps(settings.model_dump()))) == settings


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("1", 60),
        ("90", 5400),
        ("90:30", 5460),
        ("1:30:00", 5400),
        ("100:00:00", 360_000),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("0-0:1:30", 120),
        ("7-00:00:00", 604_800),
    ],
)
def test_a_time_is_read_as_slurm_reads_it(time, seconds):
    """A lone number is minutes, two are minutes and seconds; hours come first after days. Slurm counts whole minutes."""
    assert read(time=time).time_s == seconds


@pytest.mark.parametrize(
    "time", ["", "0", "0:30", "4h", "1:90", "1-25", "-1", "1:2:3:4", "٣", "UNLIMITED", "90\n"]
)
def test_another_time_is_refused_with_examples(time):
    """Also one below a minute, which Slurm would round."""
    assert '"1:30:00"' in complaint(time=time)


@pytest.mark.parametrize("gres", ["gpu", "gpu:2", "gpu:a100", "gpu:1080ti:2", "gpu:3090:1", "gpu:2,tmp:200G"])
def test_resources_of_a_node_are_named_as_slurm_names_them(gres):
    """With a type, a count, both or neither; several with commas between."""
    assert read(gres=gres).flags == ("--nodes=1", f"--gres={gres}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("partition", "account", "qos", "reservation", "constraint", "gres")
          for value in ("", "-x", "--wrap=id", "a\nb", "a b", "$(id)", "a;b", "a'b", "x\n", "é", "x" * 400)),
        ("partition", "a,"),
        ("partition", "a,-b"),
        ("account", "a,b"),
        ("gres", "gpu:0"),
        ("gres", "gpu:a100:-1"),
        ("gres", "gpu:a100:2:3"),
        ("nodes", 0),
        ("nodes", -1),
        ("nodes", "2"),
        ("nodes", "1-4"),
        ("build", "node"),
    ],
)  # fmt: skip
def test_a_value_that_is_none_of_its_kind_is_refused_by_its_key(key, value):
    """No value begins with a dash, ends with a line or means anything to a shell."""
    assert f"launch.toml: hosts.hive.{key} = " in complaint(**{key: value})


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--output=x", "launcher sets it"),
        ("--wrap=id", "launcher sets it"),
        ("--wra=id", "launcher sets it"),
        ("--no-requeue", "launcher sets it"),
        ("--array=1-3", "each run is a separate job; several are a batch"),
        ("--no-kill", "too few for another attempt"),
        ("--no-kill=off", "too few for another attempt"),
        ("--no-k", "too few for another attempt"),
        ("-k", "one whole flag"),
        ("--mem-bind=help", "without submitting"),
        ("--gpu-bind=help", "without submitting"),
        ("--cpu-bind=verbose,Help", "without submitting"),
        ("--partition=gpu", "a separate key"),
        ("--tim=5", "a separate key"),
        ("--ntasks=4", "one process on each node"),
        ("--gpus=2", "as `gres`"),
        ("--test-only", "without submitting"),
        ("--clusters=other", "a separate host"),
        ("--uid=0", "the user who logs in"),
        ("-p gpu", "one whole flag"),
        ("-N2", "one whole flag"),
        ("--mem 64G", "one whole flag"),
        ("--mem=64G\n--uid=0", "one whole flag"),
        ("mem=64G", "one whole flag"),
        ("--", "one whole flag"),
        ("", "one whole flag"),
        ("--Mem=1", "one whole flag"),
    ],
)
def test_a_flag_that_launcher_sets_or_cannot_read_is_refused_with_the_reason(flag, why):
    """Also by a beginning of its name, which sbatch would take for it."""
    assert why in complaint(extra=["--exclusive", flag])


@pytest.mark.parametrize(
    "flag",
    [
        "--time-min=10", "--gres-flags=enforce-binding", "--nodelist=n[1-2]", "--exclude=n3", "--cpus-per-task=8",
        "--begin=now+1hour", "--dependency=afterok:7", "--hold", "--nice=100", "--licenses=", "--wait-all-nodes=1",
        "--mail-type=END,FAIL", "--mcs-label=a b", "--no-bell", "--mem-bind=local",
    "--mail-user=help@example.org",
    ],
)  # fmt: skip
def test_any_other_flag_is_slurms_to_judge(flag):
    """Its value may have spaces: it is one word of a command, which no shell reads."""
    assert read(extra=[flag]).extra == (flag,)


def test_a_credential_is_refused_and_not_repeated():
    """What sbatch is told, everybody on the cluster sees."""
    said = complaint(extra=["--bb=https://me:hunter2@store.example.org/x"])
    assert "holds a credential" in said
    assert "hunter2" not in said


def test_an_unknown_key_is_refused_with_the_nearest():
    """As in every table."""
    assert "did you mean 'partition'?" in complaint(partitions="gpu")


def test_minutes_may_be_a_number():
    """As in `--set slurm.time=90`."""
    assert read(time=90) == read(time="90")
    assert '"90" (minutes)' in complaint(time=0)
    assert "expected text" in complaint(time=True)


def test_modules_are_for_the_job_and_no_flag():
    assert read(modules=["cuda/12.4", "gcc@13"]).flags == ("--nodes=1",)
    for name in ("", "-f", "a b", "a;b", "$(id)", "a\nb"):
        assert "cuda/12.4" in complaint(modules=[name])


@pytest.mark.parametrize(
    "image",
    ["/shared/torch.sif", "/shared/sandbox/", "docker://ghcr.io/org/name:1.2", "oras://r:5000/a@sha256:0f"],
)
def test_an_image_is_a_path_or_a_registrys_name_and_no_flag(image):
    assert (read(image=image).image, read(image=image).flags) == (image, ("--nodes=1",))


@pytest.mark.parametrize(
    "image",
    [
        "",
        "torch.sif",
        "./a.sif",
        "~/a.sif",
        "-B",
        "--nv",
        "/a b",
        "/a,b",
        "/a\n",
        "{root}",
        "http://a",
        "docker://-x",
    ],
)
def test_another_image_is_refused_with_examples(image):
    assert "docker://ORG/NAME:TAG" in complaint(image=image)


def test_an_image_with_a_password_is_refused_and_not_repeated():
    said = complaint(image="docker://me:hunter2@registry.example.org/a")
    assert "holds a credential" in said
    assert "hunter2" not in said


def test_settings_are_read_back_from_the_flags_that_they_became():
    """All but what sbatch is not told."""
    settings = read(**{**ALL, "build": "login"})
    assert SlurmSettings.from_flags(settings.flags) == settings
    assert SlurmSettings.from_flags(()) == SlurmSettings()


def test_a_job_changes_the_keys_that_it_names():
    """A value that is the default counts too, if it is written."""
    settings = read(**ALL)
    assert settings.changed_by(None) is settings
    after = settings.changed_by(read(nodes=1, time="60", extra=[]))
    assert after == SlurmSettings(**{**ALL, "nodes": 1, "time": "60", "extra": ()})
