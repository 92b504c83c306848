"""Every code block of README.md and docs/ is run, parsed, or marked with the reason why not.

A page is typed from top to bottom by one person, in one project folder with an empty home. A block is fenced and says what
it is:

    sh        commands; each must succeed
    console   commands behind `$ `, and what they print: compared with figures, ids and folders made equal;
              a line `…` stands for any lines
    python    a program, run outside a run
    toml      its title is the file's name, and the product's own reader reads it
    json      parsed
    text      a picture or a tree; every path of a tree must exist

A comment directly above a block says more: `<!-- not run: why -->`, `<!-- slow -->` (not in `make quick`), `<!-- long -->` (only in `make long`),
`<!-- on lab -->` (needs the testbed's SSH host, which is called lab then), `<!-- on kaggle -->` (an account at the testbed's
stand-in for Kaggle, whose sessions have two simulated T4), `<!-- on lambda -->` (an account at the testbed's stand-in for
Lambda Cloud, whose instances are machines with a simulated A100), `<!-- exits with 3 -->`,
`<!-- first: COMMAND -->` (typed before, not shown) and `<!-- with: OPTIONS -->` (added to each launch).
"""

from __future__ import annotations

import calendar
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from testbed.client import REPOSITORY, Client, fork_server
from testbed.kaggle_image import habits_with_two_t4
from testbed.kaggle_service import KaggleService
from testbed.lambda_cloud import LambdaCloud

from launcher.batch.input.batch_file import read_batch
from launcher.config import resolve
from launcher.config.lookup import Lookup

DESK = Path(__file__).parent / "desk"
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
KINDS = ("sh", "console", "python", "toml", "json", "text")
FENCE = re.compile(r"^( *)```(.*)$")
SLOW = re.compile(r"(?m)^ *· [0-9:]+ +nothing new for .*\n")
"""What a slow machine says besides."""
CACHE = re.compile(r"(?m)^ *left out +__pycache__/ +\(cache\)\n")
"""What other tests leave beside our jobs, which a fresh clone does not have."""
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
SHELL = re.compile(r"[|&;<>$`()*?~\\\"']")
"""What only a shell understands, outside of quotes."""
MARKER = re.compile(
    r"<!-- (not run|slow|long|on lab|on kaggle|on lambda|exits with|first|with|tree):? ?(.*?) ?-->"
)


class Block(NamedTuple):
    """A fenced block: its page and first line, its kind, the title of a file, its text and its markers."""

    page: str
    line: int
    kind: str
    title: str | None
    text: str
    markers: tuple[tuple[str, str], ...]

    def has(self, name: str) -> bool:
        """Whether a marker stands above it."""
        return any(marker == name for marker, _ in self.markers)

    def value(self, name: str) -> str:
        """Return what a marker says, "" without it."""
        return next((value for marker, value in self.markers if marker == name), "")

    @property
    def needs(self) -> str:
        """Where it is run: quick, slow, long, lab, kaggle, lambda, or nowhere."""
        marks = ("lab", "kaggle", "lambda")
        places = {
            "not run": "nowhere",
            **{f"on {mark}": mark for mark in marks},
            "slow": "slow",
            "long": "long",
        }
        return next((place for name, place in places.items() if self.has(name)), "quick")

    @property
    def where(self) -> str:
        """Its page and line, for a message."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    markers: list[tuple[str, str]] = []
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, body = (number, fence[2].strip()), []
        elif opened is not None and fence:
            kind, _, rest = opened[1].partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            yield Block(
                page.name, opened[0], kind, title and title[1], "\n".join(body) + "\n", tuple(markers)
            )
            opened, markers = None, []
        elif opened is not None:
            body.append(line)
        else:
            found = MARKER.findall(line)
            markers = [*markers, *found] if found else []
    assert opened is None, f"{page.name}:{opened[0]}: a fence that nobody closes"


PAGE_TEXT = {page.name: page.read_text() for page in PAGES}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


class Desk:
    """A person at a machine: a project folder, an empty home, and `launch` on the PATH."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.ids: set[str] = set()
        shutil.copytree(DESK, client.project, dirs_exist_ok=True)
        self.env = {
            **client.env,
            "COLUMNS": "110",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HF_TOKEN": "hf_example",
        }

    def type(self, command: str) -> tuple[int, str]:
        """Run a line in the project; return its exit code, and what it printed on both streams.

        A line that is `launch` alone needs no shell.
        """
        if command.startswith("launch ") and not SHELL.search(QUOTED.sub("", command.partition(" #")[0])):
            words = shlex.split(command, comments=True)[1:]
            code, output, _ = fork_server().run(
                words, str(self.client.project), self.env, timeout=400, is_merged=True
            )
            return code, output
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.client.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=400,
        )
        return done.returncode, done.stdout

    def run(self, block: Block) -> None:
        """Do what a block says."""
        for name, command in block.markers:
            if name == "first":
                code, output = self.type(command)
                assert code == 0, f"{block.where}: first: {command}\n{output}"
        getattr(self, f"_{block.kind}")(block)

    def _sh(self, block: Block) -> None:
        for command in joined(block.text.splitlines()):
            if command.strip() and not command.lstrip().startswith("#"):
                self._expect(block, command)

    def _console(self, block: Block) -> None:
        for command, shown in typed(block.text):
            output = self._expect(block, command)
            folders = {
                str(self.client.project): "/home/me/project",
                str(self.client.home): "/home/me",
                str(REPOSITORY): "/home/me/launcher",
            }
            for folder, name in folders.items():
                output = output.replace(folder, name)
            ids = run_ids(f"{output}\n{PAGE_TEXT[block.page]}") | self.ids
            self.ids = ids
            output = CACHE.sub("", SLOW.sub("", output))
            expected, actual = normal("\n".join(shown), ids), normal(output, ids)
            assert matches(expected, actual), f"{block.where}: $ {command}\n{output}\n" + "\n".join(actual)

    def _expect(self, block: Block, command: str) -> str:
        options = block.value("with")
        ran = re.sub(r"^launch\b", f"launch {options}", command) if options else command
        code, output = self.type(ran)
        assert 'Traceback (most recent call last):\n  File "' + str(REPOSITORY) not in output, output
        expected = int(block.value("exits with") or 0)
        assert code == expected, f"{block.where}: $ {ran}\nexit {code}, expected {expected}\n{output}"
        return output

    def _python(self, block: Block) -> None:
        (self.client.project / "block.py").write_text(block.text)
        code, output = self.type("python block.py")
        assert code == 0, f"{block.where}:\n{output}"

    def _toml(self, block: Block) -> None:
        assert block.title, f'{block.where}: say which file it is: ```toml title="launch.toml"'
        path = self.client.project / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() if path.exists() else None
        path.write_text(block.text)
        try:
            self._read(path)
        finally:
            if before is None:
                path.unlink()
            else:
                path.write_text(before)

    def _read(self, path: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.client.project)
            patch.setenv("HOME", str(self.client.home))
            if path.name == "launch.toml":
                _ = Lookup().project, Lookup().hosts
            elif path.parent.name == "profiles":
                Lookup().profile(path.stem)
            elif path.name == "torch.toml":
                resolve.wheels()
            elif path.name == "sweep.toml":
                read_batch(path, {})
            else:
                resolve.task(str(path), (), (), None)

    def _json(self, block: Block) -> None:
        json.loads(block.text)

    def _text(self, block: Block) -> None:
        assert block.has("tree"), f"{block.where}: a text block is a tree, or is marked as not run"
        for path in tree(block.text):
            assert (REPOSITORY / path).exists(), f"{block.where}: there is no {path}"


def joined(lines: list[str]) -> list[str]:
    """Join lines that end with a backslash to the next."""
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def typed(text: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a console block, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in joined(text.splitlines()):
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def run_ids(text: str) -> set[str]:
    """Return the last parts of the run ids in a text, by which a run may be named."""
    return set(re.findall(r"\b\d{4,6}-[a-z0-9-]+-([a-z0-9]{4,8})\b", text))


def normal(text: str, ids: set[str]) -> list[str]:
    """Make figures, ids and blanks equal, and leave out empty lines."""
    for run in ids:
        text = re.sub(rf"\b{run}\b", "RUN", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "HEX", text)
    text = re.sub(r"\d[\d,]*(\.\d+)?(e[-+]?\d+)?", "0", text)
    text = re.sub(rf"\b0 ({'|'.join(calendar.month_abbr[1:])})\b", "0 MONTH", text)
    text = re.sub(r"\b0 (s|m|h|B|bytes|kB|MB|GB)\b", "0 UNIT", text)
    lines = (re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def matches(expected: list[str], actual: list[str]) -> bool:
    """Whether lines are as expected; `…` stands for any lines, also none."""
    if "…" not in expected:
        return expected == actual
    head = expected.index("…")
    rest = expected[head + 1 :]
    if expected[:head] != actual[:head]:
        return False
    return any(matches(rest, actual[start:]) for start in range(head, len(actual) + 1))


def tree(text: str) -> Iterator[Path]:
    """Yield the paths of a tree whose levels are indented by two blanks; words after two blanks are a caption."""
    folders: list[str] = []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0].split()
        for name in names:
            yield Path(*folders[:depth], name)
        if names:
            folders = [*folders[:depth], names[-1]]


def pages_with(need: str) -> list[str]:
    """Return the pages with a block that is run there."""
    return sorted({block.page for block in BLOCKS if block.needs == need})


def run_all(desk: Desk, page: str, need: str) -> None:
    """Run a page's blocks of one need, from top to bottom."""
    for block in BLOCKS:
        if block.page == page and block.needs == need:
            desk.run(block)


@pytest.fixture
def desk(client: Client) -> Desk:
    """A person's project folder, as the pages assume it."""
    if shutil.which("nvidia-smi"):
        pytest.skip("the screens are of a machine without a card")
    return Desk(client)


def test_every_block_says_what_it_is() -> None:
    """A kind that is run, or the reason why not; no block that is only indented."""
    for block in BLOCKS:
        assert block.kind in KINDS, f"{block.where}: ```{block.kind}: expected one of {', '.join(KINDS)}"
        if block.has("not run"):
            assert len(block.value("not run")) > 10, f"{block.where}: say why it is not run"
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"\n\n {4,}\S", text), f"{page.name}: an indented block: fence it"


@pytest.mark.slow(reason="starts a client for each command of each page")
@pytest.mark.parametrize("page", pages_with("quick"))
def test_what_a_page_shows_happens(desk: Desk, page: str) -> None:
    """Its commands work, print what is shown, and its files are read."""
    run_all(desk, page, "quick")


@pytest.mark.training
@pytest.mark.parametrize(
    ("page", "need"),
    [
        *((page, "slow") for page in pages_with("slow")),
        *(pytest.param(page, "long", marks=pytest.mark.long) for page in pages_with("long")),
    ],
)
def test_what_a_page_trains_happens(
    desk: Desk, copy_demo: Callable[[Path], None], page: str, need: str
) -> None:
    """The blocks that train a model; the demo's model and data are made before."""
    copy_demo(desk.client.home / ".launch")
    run_all(desk, page, need)


@pytest.mark.testbed
@pytest.mark.parametrize("page", pages_with("lab"))
def test_what_a_page_does_on_a_host_happens(desk: Desk, ssh_host, page: str) -> None:
    """The blocks with `--host lab`, on the testbed's SSH host."""
    (desk.client.project / "launch.toml").write_text(ssh_host.table("lab"))
    run_all(desk, page, "lab")


@pytest.mark.testbed
@pytest.mark.slow(reason="waits for several sessions")
@pytest.mark.parametrize("page", pages_with("kaggle"))
def test_what_a_page_does_at_kaggle_happens(desk: Desk, page: str, tmp_path: Path) -> None:
    """The blocks with `--host kaggle`, at the stand-in for its service; the token is one of the stand-in's."""
    with KaggleService(tmp_path / "service", habits_with_two_t4(tmp_path)) as service:
        service.account()
        desk.env["KAGGLE_API_TOKEN"] = "KGAT_alice"
        table = f'[hosts.kaggle]\nkind = "kaggle"\napi = "{service.base}"\n'
        (desk.client.project / "launch.toml").write_text(table)
        run_all(desk, page, "kaggle")


@pytest.mark.testbed
@pytest.mark.slow(reason="rents several machines")
@pytest.mark.parametrize("page", pages_with("lambda"))
def test_what_a_page_does_at_lambda_happens(desk: Desk, page: str, lambda_cloud: LambdaCloud) -> None:
    """The blocks with `--host lambda`, at the stand-in for its service; the key is one of the stand-in's."""
    desk.env |= lambda_cloud.client.variables
    table = f'[hosts.lambda]\nkind = "lambda-cloud"\napi = "{lambda_cloud.service.base}"\nmax_hours = 4\n'
    (desk.client.project / "launch.toml").write_text(table)
    run_all(desk, page, "lambda")
    lambda_cloud.until_gone()
