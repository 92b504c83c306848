"""The packages of a job that names none: which file counts, what is read of it, and what cannot travel. Nothing is installed."""

import pytest

from launcher.config import resolve
from launcher.copy.request import Request
from launcher.errors import BadFileError, UsageError
from launcher.runs.launch import package_sources
from launcher.runs.launch.resolved_request import understand
from launcher.values.host import Host

LAB = Host(name="lab", address="lab")
BLOCK = """\
# /// script
# requires-python = ">=3.9"
# dependencies = [
#   "of-block>=1",
# ]
# ///
print("hello")
"""
SCRIPT_TOML = '[project]\nname = "mine"\ndependencies = ["of-project", "mine[more]"]\n[project.optional-dependencies]\nmore = ["of-extra"]\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project, on a machine without uv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "train.py").write_text("print()\n")
    return tmp_path


def packages(*words, added=(), host=LAB, settings=()):
    """What a task would get: its requirements, where they are from, and the codes of what is said."""
    task = resolve.task(None, words or ["python", "train.py"], settings, None)
    task = package_sources.with_packages(task, host, added)
    return (
        task.job.requirements,
        task.packages_from,
        [(one.level, one.message) for one in task.package_findings],
    )


def test_the_first_source_counts_alone(folder):
    """Script block, requirements.txt, uv.lock, pyproject.toml; without any, none."""
    assert packages() == ((), None, [])
    (folder / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
    assert packages() == ((), None, [])
    (folder / "pyproject.toml").write_text(SCRIPT_TOML)
    assert packages()[:2] == (("of-project",), "pyproject.toml")
    (folder / "requirements.txt").write_text("of-file\n")
    assert packages()[:2] == (("of-file",), "requirements.txt")
    (folder / "train.py").write_text(BLOCK)
    assert packages()[:2] == (("of-block>=1",), "the script block of train.py")
    assert packages("torchrun", "--nproc-per-node", "2", "train.py")[1] == "the script block of train.py"
    assert packages("python", "other.py")[1] == "requirements.txt"


@pytest.mark.parametrize(
    ("words", "settings", "host", "is_read"),
    [
        (("python", "-m", "pkg.train"), (), LAB, True),
        (("bash", "run.sh"), (), LAB, True),
        (("env", "A=1", "python", "train.py"), (), LAB, True),
        (("trl", "sft"), (), LAB, True),
        (("nvidia-smi",), (), LAB, False),
        (("/bin/ls", "-l"), (), LAB, False),
        (("python", "train.py"), ("requirements=[]",), LAB, False),
        (("python", "train.py"), ('image="mine:1"',), LAB, False),
        (("python", "train.py"), (), LAB.model_copy(update={"environment": "~/venv"}), False),
    ],
)
def test_whether_a_folder_is_asked(folder, words, settings, host, is_read):
    """Not for a command that looks at the host, nor where the job or the host says what there is."""
    (folder / "requirements.txt").write_text("of-file\n")
    requirements, origin, said = packages(*words, settings=settings, host=host)
    assert (requirements == ("of-file",), origin == "requirements.txt") == (is_read, is_read)
    assert any("names its own environment" in message for _, message in said) == (host is not LAB)


def test_a_launch_asks_the_folder(folder):
    """The whole way of a command line: its outputs and variables leave the question open."""
    (folder / "requirements.txt").write_text("of-file\n")
    more = {"outputs": ("out/",), "variables": ("A=1",), "packages": ("peft",)}
    task = understand(Request(words=("python", "train.py"), **more)).task
    assert (task.job.requirements, task.packages_from) == (("of-file", "peft"), "requirements.txt and --with")
    named = understand(Request(words=("python", "train.py"), settings=("requirements=[]",), **more)).task
    assert (named.job.requirements, named.packages_from) == (("peft",), "--with")


def test_with_adds_and_replaces(folder):
    """A package of the same name is replaced; what the job itself names is kept."""
    (folder / "requirements.txt").write_text("torch>=2.6\nScikit_Learn==1.0\n")
    added = ("scikit-learn==1.5", "peft")
    assert packages(added=added)[:2] == (("torch>=2.6", *added), "requirements.txt and --with")
    assert packages("nvidia-smi", added=("peft",))[1] == "requirements.txt and --with"
    named = packages(added=("peft",), settings=('requirements=["trl"]',))
    assert named[:2] == (("trl", "peft"), "--with")
    own = Host(name="lab", address="lab", environment="~/venv")
    assert packages(added=("peft",), host=own)[:2] == (("peft",), "--with")
    for word, said in (
        ("./pkg", "--with ./pkg"),
        ("a b", "--with a b"),
        ("x @ https://u:SESAME@h/x.whl", "pip_conf"),
    ):
        with pytest.raises(UsageError, match=said) as error:
            packages(added=(word,))
        assert "SESAME" not in str(error.value)
    with pytest.raises(UsageError, match="launch installs nothing into it"):
        packages(added=("peft",), settings=('image="mine:1"',))


LINES = [
    ("torch>=2.6  # why", ("torch>=2.6",)),
    ("torch \\\n  >=2.6", ("torch>=2.6",)),
    ('peft==0.11 ; python_version < "3.12"', ('peft==0.11; python_version < "3.12"',)),
    ("trl[peft,vllm]>=1", ("trl[peft,vllm]>=1",)),
    ("a==1 --hash=sha256:00 \\\n    --hash=sha256:11\nb", ("a==1", "b")),
    ("-r more/base.txt\nb", ("of-base", "b")),
    ("--requirement=more/base.txt", ("of-base",)),
    ("-r more/loop.txt", ("of-loop",)),
    ("a\n-c limits.txt", ("a<2",)),
    ("-i https://pypi.org/simple\na", ("a",)),
    ("--extra-index-url https://download.pytorch.org/whl/cu121\ntorch", ("torch",)),
    ("--pre\na", ("a",)),
    ("x @ https://h/x-1-py3-none-any.whl", ("x @ https://h/x-1-py3-none-any.whl",)),
    ("https://h/a/x_y-1-py3-none-any.whl", ("x-y @ https://h/a/x_y-1-py3-none-any.whl",)),
    ("git+https://h/x.git@v1#egg=x", ("x @ git+https://h/x.git@v1",)),
    ("-e git+https://h/x.git@v1#egg=x", ("x @ git+https://h/x.git@v1",)),
    ("git+https://h/x.git#egg=x&subdirectory=py", ("x @ git+https://h/x.git#subdirectory=py",)),
    ("-e git+https://h/x.git#subdirectory=py&egg=x", ("x @ git+https://h/x.git#subdirectory=py",)),
    ("-e .", ("of-project",)),
    (".[more]\nb", ("b", "of-project", "of-extra")),
    (
        "torch==2.6.0\nnvidia-cublas-cu12==12.6.4.1\nnvidia-ml-py\ntriton==3.2.0",
        ("torch==2.6.0", "nvidia-ml-py"),
    ),
    ("\ufeffa\r\nb\r\n", ("a", "b")),
    ("", ()),
]


@pytest.mark.parametrize(("text", "wanted"), LINES)
def test_a_file_of_requirements_is_read_as_pip_reads_it(folder, text, wanted):
    """Continuations, comments, -r, -c, markers, extras, URLs, editable ones; hashes and options are left out."""
    (folder / "more").mkdir()
    (folder / "more" / "base.txt").write_text("of-base\n")
    (folder / "more" / "loop.txt").write_text("of-loop\n-r ../requirements.txt\n")
    (folder / "limits.txt").write_text("a<2\nother<3\n")
    (folder / "pyproject.toml").write_text(SCRIPT_TOML)
    (folder / "requirements.txt").write_bytes(text.encode())
    requirements, _, said = packages()
    assert requirements == wanted
    assert [level for level, _ in said if level != "note"] == []
    whats = [
        what
        for what in ("--hash", "--pre", "other", "nvidia-cublas-cu12", "download.pytorch.org")
        if what in text
    ]
    assert all(any(what in message for _, message in said) for what in whats)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n./pkg", "requirements.txt: line 2: ./pkg: a path here cannot be installed on the host"),
        ("-e ../pkg", "line 1: ../pkg"),
        ("a @ file:///home/x/a.whl", "begins with https"),
        ("/wheels/a.whl", "line 1: /wheels/a.whl"),
        ("-r ../other.txt", "copy it into the folder"),
        ("-r https://h/r.txt", "copy it into the folder"),
        ("-r nosuch.txt", "nosuch.txt: cannot be read"),
        ("-e .", "no pyproject.toml lists its dependencies"),
        ("git+https://h/x.git", "NAME @ git+https://h/x.git"),
        ("a==$VERSION", "may not hold"),
        ("a b", "line 1: a b: expected a requirement"),
        ("x @ https://u:SESAME@h/x.whl", "pip_conf"),
    ],
)
def test_what_cannot_travel_is_refused_with_its_line(folder, text, said):
    """And what to write instead; a password is not repeated."""
    (folder / "requirements.txt").write_text(text)
    with pytest.raises(BadFileError) as error:
        packages()
    assert said in str(error.value)
    assert "SESAME" not in str(error.value)


def test_a_private_index_is_not_left_out_silently(folder):
    """On PyPI a package of its name may be another one; the host's pip_conf is where an index belongs."""
    (folder / "requirements.txt").write_text("--extra-index-url https://u:SESAME@pypi.example/simple\na\n")
    ((level, message),) = packages()[2]
    assert level == "refuse"
    assert "SESAME" not in message
    with_index = LAB.model_copy(update={"build": LAB.build.model_copy(update={"pip_conf": "/x/pip.conf"})})
    assert [level for level, _ in packages(host=with_index)[2]] == ["note"]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (BLOCK + BLOCK, "occurs twice"),
        (BLOCK.replace('">=3.9"', ">=3.9"), ": is not TOML"),
        (BLOCK.replace('"of-block>=1"', '"of block"'), "of block: expected a requirement"),
        (BLOCK.replace('"of-block>=1"', "1"), "expected a list of requirements"),
        (BLOCK.replace("# ///\n", "# tool = 3\n# ///\n"), "tool: expected a table"),
        (BLOCK.replace("# ///\n", "# [tool]\n# uv = 3\n# ///\n"), "uv: expected a table"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(folder, block, said):
    """Its file, and what is wrong with it."""
    (folder / "train.py").write_text(block)
    with pytest.raises(BadFileError, match=r"train\.py: its block") as error:
        packages()
    assert said in str(error.value)


@pytest.mark.parametrize(
    "block", ["\ufeff" + BLOCK, BLOCK.replace("///\n", "///  \n").replace("script\n", "script  \n")]
)
def test_a_block_is_found_behind_what_editors_leave(folder, block):
    """A byte order mark, blanks at the end of its marks; the Python that it wants is not passed over in silence."""
    (folder / "train.py").write_text(block, "utf-8")
    names, origin, said = packages()
    assert (names, origin) == (("of-block>=1",), "the script block of train.py")
    assert ["requires-python >=3.9" in message for _, message in said] == [True]


@pytest.mark.parametrize(
    "text", ["[project]\nname = 3\n[tool]\nuv = 3\n", "[project]\ndynamic = 3\n", "tool = 3\n[project]\n"]
)
def test_a_project_of_odd_types_is_named(folder, text):
    """No traceback for a file that a person wrote."""
    (folder / "pyproject.toml").write_text(text)
    with pytest.raises(BadFileError, match=r"pyproject\.toml"):
        packages()


UV = """#!/bin/sh
[ "$1 $2" = "export --frozen" ] && [ ! -e uv.toml ] && [ -z "$UV_CACHE_DIR" ] || exit 9
[ -z "$SAYS" ] || { echo "error: $SAYS" >&2; exit 2; }
printf 'of-lock==1.0\\ntorch==2.6.0\\nnvidia-nccl-cu12==2.21.5 ; sys_platform == '"'linux'"'\\n'
"""


def test_a_lock_is_exported_by_uv(folder, monkeypatch):
    """uv alone reads its lock: without uv the ranges of pyproject.toml count, and a note says so."""
    (folder / "pyproject.toml").write_text(SCRIPT_TOML)
    (folder / "uv.lock").write_text("version = 1\n")
    requirements, origin, said = packages()
    assert (requirements, origin) == (("of-project",), "pyproject.toml")
    assert "uv is not installed here" in said[0][1]
    (folder / "uv.toml").write_text('cache-dir = "/elsewhere"')  # the folder's, which may be a stranger's
    monkeypatch.setenv("UV_CACHE_DIR", "/elsewhere")
    (folder / "bin").mkdir()
    (folder / "bin" / "uv").write_text(UV)
    (folder / "bin" / "uv").chmod(0o755)
    requirements, origin, said = packages()
    assert (requirements, origin) == (("of-lock==1.0", "torch==2.6.0"), "uv.lock")
    assert "nvidia-nccl-cu12" in said[0][1]
    monkeypatch.setenv("SAYS", "the lockfile needs to be updated")
    with pytest.raises(BadFileError, match="the lockfile needs to be updated"):
        packages()


def test_a_base_in_4_bits_adds_what_quantizes_it(folder):
    """To packages that there are: a script without any uses the host's own Python, where the gate looks for it."""
    qlora = ["method=qlora"]
    assert packages(settings=qlora)[0] == ()
    (folder / "requirements.txt").write_text("torch\n")
    assert packages(settings=qlora)[0] == ("torch", "bitsandbytes>=0.46.1")
    assert packages(settings=["method=lora"])[0] == ("torch",)
    assert packages(added=["bitsandbytes==0.50.2"], settings=qlora)[0] == ("torch", "bitsandbytes==0.50.2")
    assert packages(settings=[*qlora, "image=mine:1"])[0] == ()
