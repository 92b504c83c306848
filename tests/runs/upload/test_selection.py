"""What stays behind unless it is named: secrets, environments, what git and .launchignore say; and what is refused."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from launcher.base.client_files import open_regular
from launcher.config import resolve
from launcher.config.lookup import Lookup
from launcher.errors import BadFileError, UsageError
from launcher.upload import loading, refused_folders, tree
from launcher.upload.default_exclusions import holds_private_key, of_name
from launcher.upload.upload_history import UploadHistory
from launcher.values.upload_selection import ExclusionReason

KEY = "-----BEGIN {} PRIVATE KEY-----\nbm90IGEga2V5\n-----END {} PRIVATE KEY-----\n"
SERVICE_ACCOUNT = {"type": "service_account", "private_key": KEY.format("RSA", "RSA")}
SECRETS = {
    ".env": "TOKEN=x",
    ".env.local": "TOKEN=x",
    "deep/.ENV": "TOKEN=x",
    ".ssh/config": "Host x",
    ".aws/credentials": "key",
    ".netrc": "machine x",
    ".pypirc": "[pypi]",
    ".git-credentials": "https://a:b@c",
    ".gnupg/secring.gpg": "x",
    ".kaggle/kaggle.json": "{}",
    "kaggle.json": "{}",
    ".lambda_cloud/lambda_keys": "api_key = x",
    ".config/launch/lambda_key": "x",
    ".docker/config.json": "{}",
    ".config/gcloud/credentials.db": "x",
    ".huggingface/token": "hf_x",
    "cache/huggingface/token": "hf_x",
    "id_rsa": "x",
    "id_rsa.bak": "x",
    "keys/id_ed25519_work": "x",
    "tls.pem": "x",
    "client.p12": "x",
    "deploy": KEY.format("OPENSSH", "OPENSSH"),
    "old-key.txt": KEY.format("RSA", "RSA"),
    "ec": KEY.format("EC", "EC"),
    "locked": KEY.format("ENCRYPTED", "ENCRYPTED"),
    "plain": KEY.format("", "").replace("BEGIN  ", "BEGIN ").replace("END  ", "END "),
    "service.json": json.dumps(SERVICE_ACCOUNT),
}
TRAVELS = [
    "id_map.json", "id_embeddings.pt", "ids.txt", "environment.yml", "my.env.py", "token", "tokenizer.json", "config.json",
    ".docker/Dockerfile", "public-key.txt", "certificate.crt", "wandb", "data/wandb.csv", "pems/a.txt", ".gitignore",
    "about-keys.md",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project's folder, in which the command is given."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    path = (tmp_path / "project").resolve()
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def put(folder, **texts):
    """Write files by their paths."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder, *words):
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def load(*settings):
    """What a launch in the working directory would send."""
    return loading.load(resolve.task(None, ["true"], settings, None))


def paths(loaded):
    """The files and links that travel, by their paths on the host."""
    return {entry.path for entry in loaded.tree.entries if entry.folder is None}


def reasons(loaded):
    return {one.path: one.why for one in loaded.selection.left_out}


# secrets


@pytest.mark.parametrize("uses_git", [False, True])
def test_secrets_stay_behind_and_what_only_sounds_like_one_travels(folder, uses_git):
    """By name and by content, tracked or not; `id_map.json` is no key."""
    put(folder, **SECRETS, **dict.fromkeys(TRAVELS, "about -----BEGIN RSA PRIVATE KEY-----"))
    (folder / ".gitignore").write_text("")
    if uses_git:
        git(folder, "init", "-q")
        git(folder, "add", "-f", ".")
    loaded = load()
    assert paths(loaded) == {f"code/{name}" for name in TRAVELS}
    assert all(why.is_secret for path, why in reasons(loaded).items() if path != ".git/")
    assert all(
        not loaded.selection.has(name) and loaded.selection.why_left_out(name).why.is_secret
        for name in SECRETS
    )


def test_secrets_stay_behind_in_a_folder_of_data_too(folder):
    """`data.train = "./data"` sends no `.env`."""
    put(folder, **{"data/a.jsonl": "{}", "data/.env": "T=x", "data/deep/key": KEY.format("EC", "EC")})
    found = paths(load("data.train=./data"))
    assert {path for path in found if path.startswith("data/")} == {"data/train/data/a.jsonl"}


def test_a_link_to_what_is_left_out_is_left_out_and_named(folder):
    """It would dangle on the host, or carry the secret there under another name."""
    put(folder, **{".env": "T=x", ".ssh/id_rsa": "k", "ok/f": "x"})
    for name, target in (("a", ".env"), ("b", "a"), ("ok/c", "../.ssh"), ("d", "ok/c/id_rsa"), ("e", "ok/f")):
        (folder / name).symlink_to(target)
    loaded = load()
    assert paths(loaded) == {"code/e", "code/ok/f"}
    assert {path for path, why in reasons(loaded).items() if why is ExclusionReason.LINK_TO_LEFT_OUT} == {
        "a",
        "b",
        "d",
        "ok/c",
    }


def test_a_link_by_way_of_a_link_that_is_left_out_leads_on_straight(folder):
    """The target travels, the way there does not."""
    put(folder, **{".launchignore": "/way\n", "target": "x"})
    (folder / "way").symlink_to("target")
    (folder / "link").symlink_to("way")
    links = {entry.path: entry.link for entry in load().tree.entries if entry.link}
    assert links == {"code/link": "target"}


def test_files_are_opened_once_to_be_judged_while_they_do_not_change(folder, monkeypatch):
    """A launch of 10,000 unchanged files opens none of them."""
    put(folder, small="x" * 1000, large="x" * 300_000)
    for name in ("small", "large"):
        os.utime(folder / name, (1, 1))
    monkeypatch.setattr("launcher.upload.digests.SETTLED_NS", -(10**18))
    opened = []
    real = open_regular
    monkeypatch.setattr(
        "launcher.upload.digests.open_regular",
        lambda path, flags: opened.append(Path(path).name) or real(path, flags),
    )
    loaded = load()
    assert paths(loaded) == {"code/small", "code/large"}
    tree.manifest(loaded.tree, loaded.digests, lambda _moved: None)
    loaded.digests.save()
    assert [opened.count(name) for name in ("small", "large")] == [
        1,
        2,
    ]  # the large one is judged before it is hashed
    assert paths(load()) == {"code/small", "code/large"}
    assert [opened.count(name) for name in ("small", "large")] == [1, 2]


def test_a_credential_that_a_rule_includes_is_named(folder):
    """The rule may be in a file that somebody else wrote."""
    put(
        folder, **{".env": "A=1", "sub/.env": "B=2", "sub/.launchignore": "!.env\n!a.txt\n", "sub/a.txt": "x"}
    )
    selection = load().selection
    assert [one.path for one in selection.included] == ["sub/.env"]
    assert [one.path for one in selection.left_out] == [".env"]


def test_a_byte_order_mark_does_not_hide_a_key():
    """Editors of Windows write one."""
    assert holds_private_key(b"\xef\xbb\xbf" + KEY.format("RSA", "RSA").encode())


GIT = '[core]\n\tbare = false\n[remote "origin"]\n\t{}\n'


@pytest.mark.parametrize(
    "line",
    [
        "url = https://me:ghp_0123456789@github.com/a/b",
        "pushurl=HTTPS://x-access-token:t@host/a",
        "url = https://ghp_0123456789abcdef0123@github.com/a/b",
        "[http]\n\textraheader = AUTHORIZATION: basic eDp5",
    ],
)
def test_a_git_configuration_with_a_token_counts_as_one(line):
    """It stays at home even where a rule sends `.git`."""
    assert holds_private_key(GIT.format(line).encode())


@pytest.mark.parametrize(
    "content",
    [
        GIT.format("url = https://github.com/a/b").encode(),
        GIT.format("url = git@github.com:a/b").encode(),
        GIT.format("url = https://me@host/a").encode(),
        b"-----BEGIN PUBLIC KEY-----",
        b"-----BEGIN CERTIFICATE-----",
        b"x -----BEGIN PRIVATE KEY-----",
        b"{}",
        b"",
    ],
)
def test_what_is_no_private_key_is_not_taken_for_one(content):
    """Certificates and public keys are made to be shown."""
    assert not holds_private_key(content)


def test_what_launch_toml_names_for_builds_stays_behind(folder):
    """pip's settings hold a password; launch.toml says where everything is."""
    table = (
        '[hosts.a]\naddress = "a"\nidentity_file = "{0}/key"\n[hosts.a.build]\npip_conf = "conf/pip.conf"\n'
    )
    put(
        folder,
        **{"launch.toml": table.format(folder), "conf/pip.conf": "password", "key": "x", "conf/other": "x"},
    )
    loaded = load()
    assert paths(loaded) == {"code/conf/other"}
    assert reasons(loaded)["conf/pip.conf"] == reasons(loaded)["key"] == ExclusionReason.BUILD_FILE


@pytest.mark.parametrize("given", ["prod.txt", "./conf/../prod.txt", "link.txt"])
def test_a_file_that_the_command_line_gives_values_from_stays_behind(folder, given):
    """Whatever it is called, and however its path is written."""
    put(folder, **{"prod.txt": "TOKEN=1", "conf/a.txt": "kept"})
    (folder / "link.txt").symlink_to("prod.txt")
    loaded = loading.load(resolve.task(None, ["true"], [], None), [given])
    assert paths(loaded) == {"code/conf/a.txt"}
    assert reasons(loaded)["prod.txt"] == ExclusionReason.ENV_FILE


def test_environments_caches_and_records_stay_behind(folder):
    """An environment by its pyvenv.cfg, whatever its name."""
    put(
        folder,
        **{
            "my env/pyvenv.cfg": "",
            "my env/lib/a.py": "x" * 5000,
            "wandb/run/x": "x",
            "a/__pycache__/x.pyc": "x",
            "runs/r/log.txt": "x",
            "train.py": "x",
        },
    )
    loaded = load()
    assert paths(loaded) == {"code/train.py"}
    assert reasons(loaded) == {
        "my env/": ExclusionReason.ENVIRONMENT,
        "wandb/": ExclusionReason.TRACKER,
        "a/__pycache__/": ExclusionReason.CACHE,
        "runs/": ExclusionReason.RUNS,
    }
    (environment,) = [one for one in loaded.selection.left_out if one.path == "my env/"]
    assert environment.size.bytes == 5000


def test_records_of_runs_stay_behind_wherever_they_were_kept(folder, monkeypatch):
    """By their count of launches: LAUNCH_RUNS may have been another one, or the working directory."""
    monkeypatch.setenv("LAUNCH_RUNS", str(folder.parent / "elsewhere"))
    put(folder, **{"train.py": "x", "other/y": "y"})
    for name in ("runs", "deep/runs"):
        put(folder, **{f"{name}/.launches": "1\n", f"{name}/r/log.txt": "x"})
    assert paths(load()) == {"code/train.py", "code/other/y"}
    assert reasons(load()) == {"runs/": ExclusionReason.RUNS, "deep/runs/": ExclusionReason.RUNS}


def test_a_root_stays_behind_wherever_it_lies_and_whatever_a_rule_says(folder):
    """What an agent keeps there grows with each launch; its id, a link that leads nowhere, tells it."""
    rules = {".launchignore": "!here/*\n!here/.runs/**\n!root-id\n", "data/.launchignore": "!*\n"}
    put(folder, **rules, **{"here/train.py": "x", "data/a": "x"})
    for root in ("here/.runs", "data/deep/root"):
        put(folder, **{f"{root}/store/x": "x"})
        (folder / root / "root-id").symlink_to("0123456789abcdef" * 2)
    loaded = load("data.train=./data")
    assert paths(loaded) == {
        *(f"code/{name}" for name in (".launchignore", "here/train.py", "data/.launchignore", "data/a")),
        "data/train/data/.launchignore",
        "data/train/data/a",
    }
    assert {path for path, why in reasons(loaded).items() if why is ExclusionReason.ROOT} == {
        "here/.runs/",
        "data/deep/root/",
        "deep/root/",
    }
    assert "a root of launch" in load("data.train=./data/deep/root").selection.findings[0].message
    assert load("data.train=./data/deep/root/store").selection.findings == ()


# .launchignore


def test_launchignore_leaves_out_and_includes_beside_git(folder):
    """Its word comes first: it includes what git ignores and what we leave out."""
    git(folder, "init", "-q")
    put(
        folder,
        **{
            ".gitignore": "/data/raw/\n*.bin\n",
            ".launchignore": "# mine\n*.csv\n!keep.csv\n!data/raw/small.txt\n!/.env\n!model.bin\nnotes/\n",
            **dict.fromkeys(
                ("a.csv", "keep.csv", "deep/b.csv", "data/raw/small.txt", "data/raw/large.txt"), "x"
            ),
            **dict.fromkeys((".env", "deep/.env", "model.bin", "other.bin", "notes/n.txt", "train.py"), "x"),
        },
    )
    loaded = load()
    assert paths(loaded) == {
        f"code/{name}"
        for name in (
            ".gitignore",
            ".launchignore",
            "keep.csv",
            "data/raw/small.txt",
            ".env",
            "model.bin",
            "train.py",
        )
    }
    assert reasons(loaded)["a.csv"] is reasons(loaded)["notes/"] is ExclusionReason.RULE
    assert reasons(loaded)["other.bin"] is reasons(loaded)["data/raw/"] is ExclusionReason.GIT


@pytest.mark.parametrize("rule", ["!data/", "!data/**", "!/data", "!*", "!**", "*\n!data/"])
def test_including_a_folder_does_not_include_the_secrets_in_it(folder, rule):
    """Only a rule that names a secret sends it."""
    git(folder, "init", "-q")
    rules = {".gitignore": "data\n", ".launchignore": f"{rule}\n"}
    put(folder, **rules, **{".env": "T", "data/deep/x": "x", "data/deep/.env": "T"})
    found = paths(load())
    assert "code/data/deep/x" in found
    assert not {"code/.env", "code/data/deep/.env"} & found


@pytest.mark.parametrize(
    "rule",
    ["!*.*", "!.*", "!?*", "![.a-z]*", "!*[a-z]*", "!*.json", "!*/*", "!*/*.json", "!**/*", "!*.*\n!*/*"],
)
def test_a_wildcard_names_no_secret(folder, rule):
    """It includes what git ignores, and no more: every one of these was meant for something else."""
    put(folder, **{".launchignore": f"{rule}\n", "train.py": "x", "conf/small.json": "{}"})
    secrets = (".env", ".netrc", "tls.pem", "id_rsa", "kaggle.json", "service.json", ".kaggle/kaggle.json")
    put(folder, **{name: SECRETS[name] for name in (*secrets, ".ssh/config", ".aws/credentials")})
    assert paths(load()) == {"code/.launchignore", "code/train.py", "code/conf/small.json"}


@pytest.mark.parametrize(
    ("rule", "name"),
    [("!*.pem", "tls.pem"), ("!.env*", ".env"), ("!.aws/*", ".aws/credentials"), ("!**/.netrc", ".netrc")],
)
def test_a_rule_that_names_a_secret_sends_it(folder, rule, name):
    """By its ending, its beginning, its folder."""
    put(folder, **{".launchignore": f"{rule}\n", name: SECRETS[name]})
    assert f"code/{name}" in paths(load())


def test_a_repository_in_a_plain_folder_has_its_own_rules(folder):
    """As in a folder of several clones."""
    put(
        folder,
        **{"clone/.gitignore": "creds.yaml\n", "clone/creds.yaml": "x", "clone/a.py": "x", "b.py": "x"},
    )
    git(folder / "clone", "init", "-q")
    assert paths(load()) == {"code/clone/.gitignore", "code/clone/a.py", "code/b.py"}


def test_a_hooks_variables_do_not_turn_gits_rules_off(folder, monkeypatch):
    """Git sets them for a hook; `git -C` does not take them back."""
    git(folder, "init", "-q")
    put(folder, **{".gitignore": "creds.yaml\n", "deep/creds.yaml": "x", "deep/a.py": "x"})
    monkeypatch.chdir(folder / "deep")
    for name in (".git", str(folder / ".git"), "/nonexistent/.git"):
        monkeypatch.setenv("GIT_DIR", name)
        assert paths(load()) == {"code/a.py"}


def test_a_repository_that_git_cannot_read_is_refused(folder):
    """A work tree whose main repository is gone: what it ignores would be sent."""
    put(
        folder,
        **{".git": "gitdir: /nonexistent/worktrees/x\n", ".gitignore": "creds.yaml\n", "creds.yaml": "x"},
    )
    with pytest.raises(UsageError, match="git does not list"):
        load()


def test_everything_but_what_is_named(folder):
    """`*` and what is needed, as one writes it for a home."""
    put(
        folder,
        **{".launchignore": "*\n!src/\n!*.toml\n", "src/a/b.py": "x", "big/x": "x", "deep/job.toml": "x"},
    )
    put(folder, **{".venv/pyvenv.cfg": "", ".venv/a.toml": "x"})
    assert paths(load()) == {"code/src/a/b.py", "code/deep/job.toml"}


def test_the_rules_of_the_project_count_in_its_data(folder):
    """What it leaves out stays behind, even if `data` as a whole is named; the folder itself may be left out as code."""
    put(
        folder,
        **{
            ".launchignore": "data/\nprivate/\n*.tmp\n",
            "data/x": "1",
            "data/private/y": "2",
            "data/z.tmp": "3",
        },
    )
    assert paths(load("data.train=./data")) == {"code/.launchignore", "data/train/data/x"}


INNER = {
    ".launchignore": "*.log\n/top.txt\nb/skip.txt\n!/a/kept.log\n",
    "a/.launchignore": "# mine\n!*.log\n/top.txt\nc/only.txt\n*.tmp\n!keep.tmp\nsub/\n",
    "a/c/.launchignore": "*.log\n!top.txt\n!/d/x.tmp\n",
    "b/.launchignore": "*.txt\n!skip.txt\n*.py\n!m.py\n/sub/*\n",
    "b/sub/.launchignore": "!*\n",
}
"""Rules in folders of folders, of each kind: anchored, with a slash, for a folder, negated, in several orders."""


def test_rules_in_folders_count_as_gits_own_do(folder):
    """Git is the witness: it lists the same files for the same rules in its own files."""
    names = (
        "top.txt",
        "skip.txt",
        "only.txt",
        "kept.log",
        "x.tmp",
        "keep.tmp",
        "m.py",
        "d/x.tmp",
        "sub/m.py",
    )
    places = ("", "a/", "a/c/", "a/c/d/", "b/")
    put(folder, **INNER, **{f"{place}{name}": "x" for place in places for name in names})
    witness = folder.parent / "witness"
    for path in filter(Path.is_file, folder.rglob("*")):
        name = str(path.relative_to(folder)).replace(".launchignore", ".gitignore")
        put(witness, **{name: path.read_text().replace(".launchignore", ".gitignore")})
    git(witness, "init", "-q")
    listing = ["git", "ls-files", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=witness, check=True, capture_output=True, text=True).stdout.split()
    expected = {f"code/{name.replace('.gitignore', '.launchignore')}" for name in listed}
    assert 15 < len(expected) < len(places) * len(names)
    assert paths(load()) == expected


def test_rules_in_a_folder_include_what_git_ignores_and_name_secrets_there(folder):
    """As those at the top do, and nowhere else."""
    git(folder, "init", "-q")
    put(folder, **{".gitignore": "*.bin\n", "a/.launchignore": "!*\n!small.bin\n!.env\n"})
    put(
        folder,
        **{f"{place}{name}": "x" for place in ("", "a/", "b/") for name in ("small.bin", ".env", "id_rsa")},
    )
    expected = {".gitignore", "a/.launchignore", "a/small.bin", "a/.env"}
    assert paths(load()) == {f"code/{name}" for name in expected}


def test_rules_in_a_folder_that_is_left_out_include_nothing_and_still_leave_out(folder):
    """Git does not read them; but one file of theirs that a rule above includes may still be left out by them."""
    put(folder, **{".launchignore": "/vendor\n!/vendor/a.txt\n!/vendor/b.txt\n"})
    put(
        folder,
        **{
            "vendor/.launchignore": "!*\nb.txt\n",
            "vendor/a.txt": "x",
            "vendor/b.txt": "x",
            "vendor/c.txt": "x",
        },
    )
    assert paths(load()) == {"code/.launchignore", "code/vendor/a.txt"}


def test_rules_between_the_project_and_its_data_count_for_the_data(folder):
    """Innermost first: the data's own, those of the folder between, the project's."""
    put(
        folder,
        **{
            ".launchignore": "*.a\n*.b\n*.c\n",
            "deep/.launchignore": "!*.b\n!*.c\n/data/x.txt\n",
            "deep/data/.launchignore": "*.c\n",
            **{f"deep/data/{name}": "x" for name in ("1.a", "1.b", "1.c", "x.txt", "in/x.txt")},
        },
    )
    found = {path for path in paths(load("data.train=./deep/data")) if path.startswith("data/")}
    assert found == {f"data/train/data/{name}" for name in (".launchignore", "1.b", "in/x.txt")}


@pytest.mark.parametrize("place", ["", "deep/"])
def test_a_rule_that_cannot_be_read_is_named(folder, place):
    """The file and the rule."""
    put(folder, **{f"{place}.launchignore": "ok\n!\n"})
    with pytest.raises(BadFileError, match=rf"{place}\.launchignore: .*'!'"):
        load()


# what else


def test_empty_folders_travel_with_their_modes(folder):
    """In a git work tree too, where git knows nothing of them; not those that it ignores."""
    git(folder, "init", "-q")
    put(folder, **{".gitignore": "gone/\n*.log\n", "logs/x.log": "x"})
    for name in ("out/deep", "gone/deep", "private"):
        (folder / name).mkdir(parents=True)
    (folder / "private").chmod(0o700)
    (folder / "out" / "deep").chmod(0o775)
    folders = {entry.path: entry.folder for entry in load().tree.entries if entry.folder is not None}
    assert folders == {"code/out/deep": 0o775, "code/private": 0o700, "code/logs": 0o755}


def test_the_cargo_says_how_much_and_from_where(folder):
    """Each file counts once, also one that is code and data; every entry of model and data has its source."""
    put(folder, **{"data/a": "x" * 1000, "b": "y" * 10})
    selection = load("data.train=./data", "data.eval=host:/there", "model=org/name").selection
    assert (selection.files, selection.bytes) == (3, 1010)
    assert selection.largest[0][1] == 1000
    assert [(one.key, one.source.kind, one.bytes) for one in selection.sources] == [
        ("model", "name", 0),
        ("data.train", "local", 1000),
        ("data.eval", "host", 0),
    ]
    assert selection.has("data")
    assert selection.has("data/a")
    assert not selection.has("dat")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/etc/ssl",
        "/usr",
        "/usr/lib",
        "/var",
        "/tmp",
        "/home",
        "/proc",
        "/private/etc",
        "/System/Library",
    ],
)
def test_folders_of_the_system_are_refused(path):
    """None of them is a project."""
    found = refused_folders.refusal(Path(path), "x")
    assert found.level == "refuse"
    assert "cd into the project's folder" in found.mend


def test_the_home_is_refused_unless_it_names_what_is_needed(folder, tmp_path, monkeypatch):
    """And every folder above it; a project in it is not."""
    home = tmp_path / "home"
    put(home, **{".ssh/id_rsa": "x", ".netrc": "x", "train.py": "x", "project/a": "x"})
    monkeypatch.chdir(home)
    (found,) = load().selection.findings
    assert "your home (.netrc, .ssh in it)" in found.message
    assert ".launchignore" in found.mend
    assert load().tree.entries == []
    for rules in ("*.log\n", "!train.py\n", "*.log\n!train.py\n"):
        (home / ".launchignore").write_text(rules)
        assert load().selection.findings
    (home / ".launchignore").write_text("*\n!train.py\n")
    assert paths(load()) == {"code/train.py"}
    monkeypatch.chdir(tmp_path)
    assert "your home is in it" in load().selection.findings[0].message
    monkeypatch.chdir(home / "project")
    assert load().selection.findings == ()


@pytest.mark.parametrize("name", [".ssh", ".aws", ".config/gcloud", ".gnupg/private-keys-v1.d"])
def test_folders_for_credentials_are_refused_as_code_and_as_data(folder, tmp_path, monkeypatch, name):
    """Also what is below them."""
    path = tmp_path / "home" / name
    path.mkdir(parents=True)
    assert "for credentials" in load(f"data.train={path}").selection.findings[0].message
    monkeypatch.chdir(path)
    assert "for credentials" in load().selection.findings[0].message


def test_the_names_of_keys():
    """`id_` alone is none."""
    names = ("id_rsa", "id_rsa.pub", "ID_RSA", "id_ed25519_sk", "id_dsa", "a.pem")
    assert {of_name(name, "", is_folder=False) for name in names} == {ExclusionReason.KEY_NAME}
    assert of_name("id_map.json", "", is_folder=False) is None


def test_a_large_folder_that_was_shipped_is_not_new_however_young_its_files_are(folder):
    """A digest of a file that was written just now is not kept: it is read again, not asked about again."""
    host = Lookup().host("local")
    put(folder, **{"train.py": "x"})
    (folder / "weights.bin").write_bytes(b"")
    os.truncate(folder / "weights.bin", 201_000_000)
    loaded = load()
    before = UploadHistory(folder, host)
    assert "weights.bin" in before.question(loaded).message
    before.record(tree.manifest(loaded.tree, loaded.digests, lambda _moved: None).values())
    assert UploadHistory(folder, host).question(load()) is None
