"""A path that a job names obeys the rules of the code folder: no link out of the project, no credential, nothing of the system's."""

import json
import os
import subprocess

import pytest

from launcher.config import resolve
from launcher.upload import loading

KEY_TEXT = "-----BEGIN OPENSSH PRIVATE KEY-----\nbm90IGEga2V5\n-----END OPENSSH PRIVATE KEY-----\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project's folder, in which the command is given, beside a home."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = (tmp_path / "project").resolve()
    for one in (tmp_path / "home", path):
        one.mkdir()
    monkeypatch.chdir(path)
    return path


def put(place, **texts):
    """Write files by their paths."""
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def load(*settings):
    """What a launch in the working directory would send."""
    return loading.load(resolve.task(None, ["true"], settings, None))


def paths(loaded):
    """The files and links that travel, by their paths on the host."""
    assert loaded.selection.findings == ()
    return {entry.path for entry in loaded.tree.entries if entry.folder is None}


def refused(*settings):
    """The one refusal of a launch."""
    loaded = load(*settings)
    assert loaded.tree.entries == []
    (finding,) = loaded.selection.findings
    assert finding.level == "refuse"
    return finding


def git(place, *words):
    person = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *person, *words], cwd=place, check=True, capture_output=True)


@pytest.fixture
def clone(client, tmp_path):
    """A client in a clone of a repository, whose job names as data a link to the private key in that client's home."""
    origin = tmp_path / "origin"
    put(client.home, **{".ssh/id_ed25519": KEY_TEXT, "private/diary.txt": "my own words"})
    put(origin, **{"train.py": "print(1)", "sub/x": "x"})
    (origin / "key.jsonl").symlink_to(client.home / ".ssh" / "id_ed25519")
    (origin / "diary.jsonl").symlink_to(client.home / "private" / "diary.txt")
    (origin / "folder").symlink_to(client.home / "private")
    for name in ("key.jsonl", "diary.jsonl", "folder", "folder/diary.txt", "sub/../diary.jsonl"):
        job = f'command = ["python", "train.py"]\n[data]\ntrain = "./{name}"\n'
        put(origin, **{f"{name.replace('/', '-')}.toml": f'name = "a"\n{job}'})
    git(origin, "init", "-q")
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "x")
    client.project.rmdir()
    git(tmp_path, "clone", "-q", str(origin), str(client.project))
    return client


@pytest.mark.slow(reason="launches six times")
def test_a_link_in_a_clone_takes_no_file_of_mine_to_the_host(clone):
    """The job is refused before anything is sent; in the host's root, if one was made, no file has the words."""
    jobs = sorted(path.name for path in clone.project.glob("*.toml"))
    assert len(jobs) == 5
    for job in jobs:
        done = clone.run("--job", f"./{job}")
        assert done.returncode == 3, done.stderr
        assert "refused before anything was sent: data.train is" in done.stderr
    done = clone.run("--set", "data.eval=./diary.jsonl", "--", "python", "train.py")
    assert done.returncode == 3
    assert f"name its target   --set data.eval={clone.home}/private/diary.txt" in done.stderr
    root = clone.home / ".launch"
    for path in root.rglob("*") if root.exists() else ():
        assert not path.is_file() or b"my own words" not in path.read_bytes()


@pytest.mark.slow(reason="launches a run")
def test_the_mend_of_a_link_out_of_the_project_works(clone):
    """It names the target; the run has the words."""
    mend = ("--set", f"data.eval={clone.home}/private/diary.txt")
    words = clone.ok(*mend, "--", "sh", "-c", "cat ../data/eval/diary.txt")
    assert "my own words" in words


@pytest.mark.slow(reason="makes a batch")
def test_a_batch_refuses_such_a_link_too(clone):
    """Its matrix names data as a job does."""
    put(
        clone.project,
        **{"batch.toml": 'job = "./a.toml"\n[matrix]\n"data.train" = ["./diary.jsonl", "./sub/x"]\n'},
    )
    put(clone.project, **{"a.toml": 'name = "a"\ncommand = ["python", "train.py"]\n'})
    done = clone.run("batch", "batch.toml")
    assert done.returncode != 0
    assert "is a link out of the project" in done.stderr
    assert not (clone.home / ".launch" / "store").exists()


@pytest.mark.parametrize(
    "name",
    [
        ".ssh/id_ed25519", ".aws/credentials", ".netrc", ".config/gcloud/legacy", ".kube/config", ".cargo/credentials.toml",
        "keys/deploy.pem", "prod.env", ".bash_history", "anything.txt", "large.bin",
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["plain", "home", "link"])
def test_a_credential_that_is_named_outright_is_refused(folder, tmp_path, name, way):
    """By its name, its folder or its content, and by a link as well."""
    home = tmp_path / "home"
    put(home, **{name: KEY_TEXT + "\n" * (300_000 if name == "large.bin" else 0)})
    written = {"plain": home / name, "home": f"~/{name}", "link": "./mine.jsonl"}[way]
    (folder / "mine.jsonl").symlink_to(home / name)
    for key in ("model", "teacher", "data.train", "data.eval"):
        finding = refused(f"{key}={written}")
        assert finding.message.startswith(f"{key} is ")
        assert "launch --secret" in finding.mend or "copy the needed files" in finding.mend


@pytest.mark.parametrize("name", ["/etc/shadow", "/etc/passwd", "/proc/self/environ"])
def test_a_file_of_the_system_is_refused(folder, name):
    """Also where the one who launches may read it, and by a link."""
    (folder / "mine").symlink_to(name)
    for written in (name, "./mine"):
        assert "which belongs to the system" in refused(f"data.train={written}").message


def test_a_file_that_a_host_or_a_command_line_names_for_itself_is_refused(folder):
    """As in the code folder: the key of a host, under any name, and the values of --env-file."""
    put(
        folder,
        **{
            "launch.toml": '[hosts.a]\naddress = "a"\nidentity_file = "./mykey"\n',
            "mykey": "x",
            "values": "x",
        },
    )
    assert "named for builds" in refused("data.train=./mykey").message
    loaded = loading.load(resolve.task(None, ["true"], ["data.train=./values"], None), ["values"])
    assert "given by --env-file" in loaded.selection.findings[0].message


def test_the_mend_of_what_only_looks_like_a_secret_works(folder):
    """One line of a .launchignore beside the file, as for the code folder."""
    put(folder, **{"certs/ca [1].pem": "public"})
    mend = refused("data.train=./certs/ca [1].pem").mend
    command = mend.partition("echo ")[2]
    subprocess.run(["sh", "-c", f"echo {command}"], check=True)
    assert paths(load("data.train=./certs/ca [1].pem")) >= {"data/train/ca [1].pem", "code/certs/ca [1].pem"}


@pytest.mark.parametrize("written", ["./in.jsonl", "./in/a.jsonl", "./in/../in.jsonl", "./sub/up.jsonl"])
def test_a_link_that_stays_in_the_project_is_data_as_before(folder, written):
    """To a file, through a folder, upwards within the project."""
    put(folder, **{"data/a.jsonl": "{}", "sub/x": "x"})
    (folder / "in.jsonl").symlink_to("data/a.jsonl")
    (folder / "in").symlink_to(folder / "data")
    (folder / "sub" / "up.jsonl").symlink_to("../data/a.jsonl")
    assert any(path.startswith("data/train/") for path in paths(load(f"data.train={written}")))


def test_a_link_within_the_repository_is_data_where_the_code_is_a_part_of_it(folder, monkeypatch):
    """The project is the whole work tree, and no more than that."""
    git(folder, "init", "-q")
    put(folder, **{"data/a.jsonl": "{}", "code/train.py": "x"})
    put(folder.parent, **{"beside/b.jsonl": "{}"})
    (folder / "code" / "a.jsonl").symlink_to("../data/a.jsonl")
    (folder / "data" / "b.jsonl").symlink_to("../../beside/b.jsonl")
    monkeypatch.chdir(folder / "code")
    assert "data/train/a.jsonl" in paths(load("data.train=./a.jsonl"))
    assert refused("data.train=../data/b.jsonl").code == "link-out"


def test_data_outside_the_project_may_be_a_link_and_lie_behind_links(folder, tmp_path):
    """What a user has made there is meant: `~/datasets` leads to another disk. Also where the home is a work tree."""
    home, disk = tmp_path / "home", tmp_path / "disk"
    put(disk, **{"x/a.jsonl": "{}", "b.jsonl": "{}"})
    git(home, "init", "-q")
    (home / "datasets").symlink_to(disk)
    (home / "b.jsonl").symlink_to(disk / "b.jsonl")
    assert "data/train/x/a.jsonl" in paths(load("data.train=~/datasets/x"))
    assert "data/train/b.jsonl" in paths(load("data.train=~/b.jsonl"))
    assert "data/train/a.jsonl" in paths(load(f"data.train={home}/datasets/x/a.jsonl"))


def test_a_project_that_is_reached_by_a_link_is_the_same_project(folder, tmp_path):
    """The link above it is not in it."""
    put(folder, **{"data/a.jsonl": "{}"})
    (tmp_path / "short").symlink_to(folder)
    assert "data/train/a.jsonl" in paths(load(f"data.train={tmp_path}/short/data/a.jsonl"))


def test_the_code_of_a_job_is_no_link_out_of_the_project_either(folder, tmp_path):
    """It would send a folder that the job file does not name."""
    put(tmp_path, **{"elsewhere/notes.txt": "x"})
    (folder / "src").symlink_to(tmp_path / "elsewhere")
    put(folder, **{"a.toml": 'name = "a"\ncommand = ["true"]\ncode = "./src"\n'})
    loaded = loading.load(resolve.task("./a.toml", [], [], None))
    assert [one.code for one in loaded.selection.findings] == ["link-out"]
    assert loaded.tree.entries == []


def test_a_dry_run_says_that_such_a_launch_would_be_refused(clone):
    """In its JSON too; nothing is sent."""
    found = json.loads(clone.planned("--json", "--set", "data.train=./folder", "--", "true"))["findings"]
    assert [one["code"] for one in found if one["level"] == "refuse"] == ["link-out"]
    assert not os.path.exists(clone.home / ".launch" / "store")


@pytest.mark.slow(reason="launches twice")
def test_a_root_in_the_project_is_not_sent_with_the_next_launch(client):
    """`root = "$PWD/.runs"`: each launch sent all launches before it."""
    put(client.home, **{".config/launch/hosts.toml": f'[hosts.local]\nroot = "{client.project}/.runs"\n'})
    client.script("print(1)")
    for _ in range(2):
        client.ok("--", "python", "train.py")
        selection = json.loads(client.planned("--json", "--", "true"))["cargo"]
        assert selection["paths"] == ["train.py"]
    assert list((client.project / ".runs").rglob("train.py"))
