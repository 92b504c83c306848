"""A line to a host: many desks on one connection, which is counted by the kernel and by sshd, not by us."""

import concurrent.futures
import contextlib
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest
from testbed.client import is_gone, missing, until
from testbed.missing_part import MissingPartError
from testbed.sshd import SshHost
from testbed.toy import recorded_run

from launcher.backends.lambda_cloud.lambda_cloud_host import LambdaCloudHost
from launcher.backends.registry import backend_of
from launcher.errors import (
    AgentError,
    ConnectionLostError,
    PortClosedError,
    RefusedStreamError,
    UnreachableError,
    UsageError,
)
from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.transport import channel_pool
from launcher.transport.connecting import open_shared_connection
from launcher.transport.shared_connection import SharedConnection
from launcher.values.host import Host

DESKS = 12
NAMES = [f"261125-many-{number:06}" for number in range(DESKS)]
PATIENCE_S = 60


@pytest.fixture(
    params=[pytest.param("here", marks=pytest.mark.long), pytest.param("over ssh", marks=pytest.mark.testbed)]
)
def place(request, tmp_path):
    """A host with recorded runs, here and over SSH, and the root that they are in."""
    if request.param == "here":
        root = tmp_path / "root"
        yield Host(name="local", root=str(root)), root
        return
    sshd = request.getfixturevalue("ssh_host")
    folder = Path(tempfile.mkdtemp(prefix="launch-line-"))
    shutil.chown(folder, sshd.user)
    yield sshd.host(root=str(folder / "root")), folder / "root"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def line(place):
    """A line to it."""
    with open_shared_connection(place[0]) as line:
        yield line


@pytest.fixture
def threads():
    """Threads that end with the test."""
    with concurrent.futures.ThreadPoolExecutor(4 * DESKS) as pool:
        yield pool


def record(root, *names):
    """Make runs below a root, as its owner would. Agents may be unpacking their worker beside them."""
    found = [recorded_run(root, name) for name in names]
    owner, runs = root.stat(), root / "runs"
    for path in (runs, *runs.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return found


def agents(root):
    """The pids of the agents that serve a root."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words[-3:-1] == [b"serve", os.fsencode(root)]:
                found.append(int(entry.name))
    return found


def known(desk, run):
    """The arguments with which a read of a recorded run has no news."""
    reply = desk.runs.read(run, {"cursors": {}, "plan": True}, 1.0)
    state = reply.values["state"]
    return {"cursors": {}, "from": 2, "plan": True, "state": [state["state"], state["reason"], None, False]}


def test_many_desks_read_and_ask_over_one_connection_and_few_agents(line, place, threads, request):
    """Each thread has a desk of its own; the kernel counts one TCP connection, and there are five agents at most."""
    with line.client() as first:
        runs = record(place[1], *NAMES)
        waits = {name: known(first, name) for name in NAMES}
        began = threading.Barrier(DESKS)

        def work(name):
            with line.client() as desk:
                began.wait(PATIENCE_S)
                assert [summary.run for summary in desk.runs.summaries(name)] == [name]
                assert desk.root_id == first.root_id
                reply = desk.runs.read(name, waits[name], 20.0)
                return reply.values["last"], agents(place[1])

        pending = [threads.submit(work, name) for name in NAMES]
        assert not concurrent.futures.wait(pending, 1.0).done
        if not place[0].is_local:
            assert request.getfixturevalue("ssh_host").streams() == 1
        assert len(agents(place[1])) <= channel_pool.MOST + 1
        for run in runs:
            folder = run.new_folder()
            folder.write_state("stopped")
            folder.release()
            os.chown(folder.path, *[place[1].stat().st_uid] * 2)
        ended = [one.result(PATIENCE_S) for one in pending]
    assert [last for last, _ in ended] == [[2]] * DESKS
    assert max(len(pids) for _, pids in ended) <= channel_pool.MOST + 1


def test_a_question_does_not_wait_for_those_before_it(line, place, threads):
    """While one waits for news of a quiet run, a second one is asked, and is answered at once."""
    with line.client() as quiet, line.client() as other:
        record(place[1], *NAMES[:2])
        waits = known(quiet, NAMES[0])
        pending = threads.submit(quiet.runs.read, NAMES[0], waits, 20.0)
        assert not concurrent.futures.wait([pending], 0.5).done
        began = time.monotonic()
        for _ in range(20):
            assert other.runs.read(NAMES[1], {"cursors": {}}, 20.0).values["parts"]
        assert time.monotonic() - began < 10
        assert not pending.done()
        line.close()
        with pytest.raises(ConnectionLostError):
            pending.result(PATIENCE_S)


def test_what_is_wrong_with_one_run_is_said_where_it_is_read(line, place, threads):
    """The others go on waiting."""
    with line.client() as desk, line.client() as other:
        record(place[1], NAMES[0])
        pending = threads.submit(desk.runs.read, NAMES[0], known(desk, NAMES[0]), 2.0)
        with pytest.raises(AgentError) as caught:
            other.runs.read(NAMES[1], {"cursors": {}}, 20.0)
        assert caught.value.code == "no-run"
        assert not pending.done()
        assert pending.result(PATIENCE_S).values["state"]["state"] == "interrupted"


def test_a_thread_that_is_interrupted_leaves_its_question(line, place, threads):
    """Nobody waits for its answer: the reader asks about the others only."""
    with line.client() as desk, line.client() as other:
        record(place[1], *NAMES[:2])
        waits = known(desk, NAMES[0])

        class StopError(Exception):
            pass

        asked = desk.runs._reader._joined

        def read():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(
                    concurrent.futures.Future, "result", lambda _self: (_ for _ in ()).throw(StopError)
                )
                desk.runs.read(NAMES[0], waits, 20.0)

        with pytest.raises(StopError):
            read()
        assert not asked._asked
        assert other.runs.read(NAMES[1], {"cursors": {}}, 20.0).values["parts"]


def create(desk, run):
    """Have a desk prepare a run."""
    desk._channel.call("create", b"{}", run=run)


def test_a_prepared_run_goes_with_its_desk_and_with_no_other(line, place):
    """A desk that prepares has an agent for itself. Its neighbours come and go, and can neither fill nor start it."""
    there = place[1] / "runs"
    with line.client() as first:
        create(first, NAMES[0])
        with line.client() as second:
            create(second, NAMES[1])
            with pytest.raises(AgentError) as caught:
                second.preparation.start(NAMES[0])
            assert caught.value.code == "not-prepared"
            assert sorted(path.name for path in there.iterdir()) == NAMES[:2]
        until(lambda: [path.name for path in there.iterdir()] == NAMES[:1], "the end of the second")
        with line.client() as third:
            assert [summary.run for summary in third.runs.summaries()] == NAMES[:1]
    until(lambda: not list(there.iterdir()), "the end of the first")


def test_a_desk_whose_agent_holds_nothing_any_more_shares_it_again(line, place):
    """So that a followed run keeps no agent after its start: here a lock is let go, and a run could not be made."""
    with line.client() as desk:
        assert desk.making.hold("image-a").held
        with line.client() as other:
            assert not other.making.hold("image-a").held
            assert other._channel._kept is None
        kept = desk._channel._kept
        assert kept is not None
        desk.making.let_go("image-a")
        assert desk._channel._kept is None
        record(place[1], NAMES[0])
        with pytest.raises(AgentError) as caught:
            create(desk, NAMES[0])
        assert caught.value.code == "run-exists"
        assert desk._channel._kept is None
        assert desk.runs.summaries()
        assert len(agents(place[1])) <= 3


def test_those_who_prepare_leave_an_agent_for_the_others(line, place, threads):
    """More desks prepare than may: the last one waits for its turn, and a list of runs waits for nobody."""
    there = place[1] / "runs"
    with contextlib.ExitStack() as desks:
        opened = [desks.enter_context(line.client()) for _ in range(channel_pool.MAX_KEPT + 1)]
        for desk, name in zip(opened[:-1], NAMES, strict=False):
            create(desk, name)
        pending = threads.submit(create, opened[-1], NAMES[-1])
        assert not concurrent.futures.wait([pending], 0.5).done
        with line.client() as other:
            assert len(other.runs.summaries()) == channel_pool.MAX_KEPT
        opened[0].close()
        pending.result(PATIENCE_S)
        until(lambda: not (there / NAMES[0]).exists(), "the end of the first")
        assert (there / NAMES[-1]).exists()
    until(lambda: not list(there.iterdir()), "the end of all")


def test_closing_a_line_leaves_no_agent(place):
    """Nor does a desk that was not closed, or one that prepares."""
    with open_shared_connection(place[0]) as line:
        desks = [line.client() for _ in range(3)]
        create(desks[0], NAMES[0])
        desks[1].runs.summaries()
        pids = agents(place[1])
        assert pids
    until(lambda: all(is_gone(pid) for pid in pids), "the end of the agents")
    assert not list((place[1] / "runs").iterdir())
    for desk in desks:
        with pytest.raises(ConnectionLostError):
            desk.runs.summaries()
        desk.close()
    with pytest.raises(ConnectionLostError):
        line.client()


def test_a_severed_connection_fails_all_desks_and_the_next_desk_connects_anew(line, place, threads):
    """Whether they wait for news, prepare, or ask; one thread connects for all who ask."""
    with contextlib.ExitStack() as stack:
        desks = [stack.enter_context(line.client()) for _ in range(4)]
        record(place[1], *NAMES[:2])
        create(desks[0], NAMES[5])
        waits = known(desks[1], NAMES[0])
        pending = [threads.submit(desk.runs.read, NAMES[0], waits, 20.0) for desk in desks[1:3]]
        assert not concurrent.futures.wait(pending, 0.3).done
        before = agents(place[1])
        desks[3].sever()
        for one in pending:
            with pytest.raises(ConnectionLostError):
                one.result(PATIENCE_S)
        with pytest.raises(ConnectionLostError):
            desks[0].preparation.start(NAMES[5])
        with pytest.raises(ConnectionLostError):
            desks[3].runs.summaries()
        until(lambda: all(is_gone(pid) for pid in before), "the end of the agents")
        new = [one.result(PATIENCE_S) for one in [threads.submit(line.client) for _ in range(8)]]
        assert len({desk._channel._circuit for desk in new}) == 1
        assert {summary.run for summary in new[0].runs.summaries()} == {*NAMES[:2]}
        with pytest.raises(ConnectionLostError):
            desks[3].runs.summaries()


def test_an_agent_that_dies_takes_no_other_with_it(line, place, threads):
    """Who reads hears of it, and reads again over the same connection with a new agent."""
    with line.client() as desk:
        (reading,) = until(lambda: agents(place[1]), "the one agent, as nothing was asked yet")
        record(place[1], NAMES[0])
        waits = known(desk, NAMES[0])
        pending = threads.submit(desk.runs.read, NAMES[0], waits, 20.0)
        assert not concurrent.futures.wait([pending], 0.3).done
        os.kill(reading, 9)
        with pytest.raises(ConnectionLostError):
            pending.result(PATIENCE_S)
        assert desk.runs.summaries()
        circuit = desk._channel._circuit
        with line.client() as again:
            assert again._channel._circuit is circuit
            assert again.runs.read(NAMES[0], {"cursors": {}}, 20.0).values["parts"]


def test_a_root_that_was_replaced_is_another_host(line, place):
    """The agents of one desk are never in two roots: the connection ends, and the next desk is in the new one."""
    with line.client() as desk:
        before = desk.root_id
        (place[1] / "root-id").unlink()
        with pytest.raises(ConnectionLostError, match="was replaced during the connection"):
            desk.runs.summaries()
        with line.client() as again:
            assert again.root_id not in (before, "")
            assert again.runs.summaries() == []


def test_streams_end_with_their_desk(line):
    """A program and a port that one desk opened; another desk's stay."""
    with line.client() as first, line.client() as second:
        streams = [desk.open_program(["cat"]) for desk in (first, second)]
        for stream in streams:
            stream.settimeout(PATIENCE_S)
            stream.sendall(b"x")
            assert stream.recv(1) == b"x"
        first.close()
        with contextlib.suppress(OSError):  # a socket of ours is closed, a channel has come to its end
            assert streams[0].recv(1) == b""
        streams[1].sendall(b"y")
        assert streams[1].recv(1) == b"y"
        with pytest.raises(ConnectionLostError, match="its client was closed"):
            first.runs.summaries()
        with pytest.raises(PortClosedError):
            second.open_port(1)
        with pytest.raises(RefusedStreamError):
            second.open_socket("/nothing/there")


class Refusing:
    """A way to a host that does not answer; it counts the tries."""

    def __init__(self):
        self.tries = 0
        self.go = threading.Event()

    def connect(self):
        """Refuse, once it may."""
        self.tries += 1
        assert self.go.wait(PATIENCE_S)
        raise UnreachableError("box", "box: it does not answer")


def test_however_many_ask_at_once_one_thread_tries(threads):
    """All get the same error, and so do those who come right after; later ones try again."""
    way = Refusing()
    line = SharedConnection(Host(name="box", address="box"), way.connect, None)
    pending = [threads.submit(line.client) for _ in range(20)]
    until(lambda: way.tries, "the first to try")
    way.go.set()
    errors = {one.exception(PATIENCE_S) for one in pending}
    with pytest.raises(UnreachableError) as caught:
        line.client()
    assert errors == {caught.value}
    assert way.tries == 1

    def tries_again():
        with pytest.raises(UnreachableError):
            line.client()
        return way.tries == 2

    until(tries_again, "another try")


def test_an_account_where_machines_are_rented_has_no_line():
    """As it has no desk."""
    host = LambdaCloudHost(name="cloud", lambda_cloud=LambdaSettings())
    with pytest.raises(UsageError, match="one is rented for each launch"):
        backend_of(host).open_shared_connection(host)


def test_a_line_leads_to_its_host_and_to_no_other_of_its_name():
    """Whatever changes only how runs are run there is the same place."""
    host = Host(name="box", address="box")
    line = open_shared_connection(host)
    assert line.leads_to(host.model_copy(update={"runtime": "native", "profile": "cpu"}))
    assert not line.leads_to(host.model_copy(update={"root": "/elsewhere"}))
    assert not line.leads_to(host.model_copy(update={"address": "box2"}))


@pytest.fixture
def strict_host(tmp_path):
    """An sshd that allows so many sessions on a connection."""
    hosts = []

    def up(sessions):
        host = SshHost(Path(tempfile.mkdtemp(prefix="launch-testbed-")))
        hosts.append(host)
        host.more = f"MaxSessions {sessions}"
        try:
            host.up()
        except MissingPartError as error:
            missing(str(error))
        return host

    yield up
    for host in hosts:
        host.down()
        shutil.rmtree(host.folder)


@pytest.mark.testbed
def test_a_host_that_allows_few_sessions_is_used_with_those(strict_host, threads):
    """With two, one reads runs, and the desks take turns with the other; with one there is a word about it."""
    sshd = strict_host(2)
    with open_shared_connection(sshd.host()) as line:
        with line.client() as desk:
            desk.runs.summaries()

        def work(number):
            with line.client() as desk, pytest.raises(AgentError) as caught:
                desk.runs.read(NAMES[number], {"cursors": {}}, 20.0)
            assert caught.value.code == "no-run"
            with line.client() as desk:
                create(desk, NAMES[number])
                return desk.runs.summaries(NAMES[number])

        found = [one.result(PATIENCE_S) for one in [threads.submit(work, number) for number in range(6)]]
        assert [summary.run for (summary,) in found] == NAMES[:6]
        assert sshd.streams() == 1
    sshd.more = "MaxSessions 1"
    with sshd.away():
        pass
    with (
        open_shared_connection(sshd.host()) as line,
        line.client() as desk,
        pytest.raises(RefusedStreamError, match="MaxSessions"),
    ):
        desk.runs.summaries()


@pytest.mark.testbed
def test_a_cut_connection_is_one_loss_and_one_new_connection(ssh_host, threads):
    """While the host is away, all who ask are told the same; when it is back, one connection serves them."""
    with open_shared_connection(ssh_host.host()) as line:
        desks = [line.client() for _ in range(8)]
        assert ssh_host.streams() == 1
        with ssh_host.away():
            for desk in desks:
                with pytest.raises(ConnectionLostError):
                    desk.runs.summaries()
            for one in [threads.submit(line.client) for _ in range(8)]:
                with pytest.raises(UnreachableError):
                    one.result(PATIENCE_S)
        host = ssh_host.host()
        with open_shared_connection(host) as again:
            for one in [threads.submit(again.client) for _ in range(8)]:
                assert one.result(PATIENCE_S).runs.summaries() is not None
            assert ssh_host.streams() == 1
            assert len(ssh_host.connections()) == 1
