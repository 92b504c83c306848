"""A root that another user could change is refused, by sshd's rules for authorized_keys; what he held open runs nothing."""

import os
import subprocess
from typing import NamedTuple

import pytest

from launcher.errors import HostError
from launcher.transport.connecting import connect
from launcher.values.host import Host

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="to be another user, and to give him folders, needs root"
)

OTHER = 65534
HOLDER = 'echo open; read line; printf %0100d 0 >&"$0"'


class Place(NamedTuple):
    """A folder below the test's own: who has it, its mode, and what is said; "" where the root is taken."""

    path: str
    owner: int = 0
    group: int = 0
    mode: int = 0o755
    says: str = ""


PLACES = {
    "ours": Place("a/b"),
    "another user's parent": Place("a/b", owner=OTHER, says="/a/b: it belongs to another user (uid 65534)"),
    "another user's grandparent": Place("a", owner=OTHER, says="/a: it belongs to another user (uid 65534)"),
    "open to all": Place("a/b", mode=0o777, says="/a/b: other users can write to it"),
    "open to all above": Place("a", mode=0o777, says="/a: other users can write to it|chmod go-w"),
    "open to another group": Place("a/b", group=OTHER, mode=0o775, says="/a/b: other users can write to it"),
    "open to our own group": Place("a/b", mode=0o775),
    "sticky": Place("a", mode=0o1777),
    "another's sticky folder": Place("a", owner=OTHER, mode=0o1777, says="/a: it belongs to another user"),
    "readable": Place("a/b/root", mode=0o755),
    "another user's root": Place(
        "a/b/root", owner=OTHER, says="/root: it belongs to another user (uid 65534)"
    ),
    "another user's runs in ours": Place(
        "a/b/root/runs", owner=OTHER, says="/root/runs: it belongs to another user"
    ),
    "another user's agents in ours": Place(
        "a/b/root/agent", owner=OTHER, says="/root/agent: it belongs to another"
    ),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_root_that_another_user_could_change_is_refused(tmp_path, place):
    """The folder is named, and the way out; nothing is made in it."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / place.path
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, place.owner, place.group)
    path.chmod(place.mode)
    before = sorted(tmp_path.rglob("*"))
    host = Host(name="local", root=str(tmp_path / "a" / "b" / "root"))
    if not place.says:
        connect(host).close()
        return
    with pytest.raises(HostError) as refused:
        connect(host)
    assert not [part for part in place.says.split("|") if part not in str(refused.value)], str(refused.value)
    assert "root" in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_way_to_a_root_through_a_link_is_judged_at_both_ends(tmp_path):
    """Where the link stands, and where it leads."""
    for name in ("open", "ours"):
        (tmp_path / name).mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "ours" / "link").symlink_to(tmp_path / "open")
    (tmp_path / "open" / "link").symlink_to(tmp_path / "ours")
    for way in ("ours", "open"):
        with pytest.raises(HostError, match=r"(open|ours/link): other users can write to it"):
            connect(Host(name="local", root=str(tmp_path / way / "link" / "root")))


def test_above_the_home_nothing_is_judged(tmp_path, monkeypatch):
    """As sshd stops at the home: who can change that has everything."""
    home = tmp_path / "open" / "home"
    home.mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("HOME", str(home))
    connect(Host(name="local")).close()


def test_what_another_user_holds_open_is_not_what_runs(tmp_path):
    """A root that was open to all is ours again; he still has the agent's file, and changes it behind the check."""
    root = tmp_path / "root"
    connect(Host(name="local", root=str(root))).close()
    (agent,) = root.glob("agent/*/agent.pyz")
    agent.chmod(0o666)
    for folder in (*agent.parents,)[:3]:
        folder.chmod(0o777)
    data = agent.read_bytes()
    descriptor = os.open(agent, os.O_RDWR)  # his, of the time when he could reach the file
    holder = subprocess.Popen(
        ["/bin/bash", "-c", HOLDER, str(descriptor)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[descriptor],
        user=OTHER,
        text=True,
    )
    assert holder.stdout.readline() == "open\n"
    connect(Host(name="local", root=str(root))).close()
    holder.communicate("\n")
    os.close(descriptor)
    assert holder.returncode == 0
    assert agent.read_bytes() == data
    assert [path.stat().st_mode & 0o022 for path in (root, agent.parent.parent, agent.parent, agent)] == [
        0
    ] * 4
