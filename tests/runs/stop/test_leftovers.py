"""What a crash leaves on a host of exclusive cards: each is made, natively and in a container, and the next launch has its card.

A leftover that held the card would make the next training fail, which opens a context. Before and after are told by `ps`, `docker ps`,
nvidia-smi and the files of the leases, never by our own report.
"""

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from testbed.between import Between
from testbed.cards import FOUR_T4, Cards, uuid_of
from testbed.client import RECORDER, until
from testbed.engine import BASE

pytestmark = pytest.mark.testbed
IN_BOTH = pytest.mark.parametrize("place", ["native", "docker"], indirect=True)

MODE = {"compute_mode": "Exclusive_Process"}
EXCLUSIVE = ("titan_rtx", MODE)
JOB = f"""
name = "train"
command = ["python", "train.py", "brief"]
image = "{BASE}"
attempts = 9
stop_grace_s = 1.0
"""
TRAIN = """
import os, subprocess, sys, time
sys.path.insert(0, "{folder}")
import context

def hold():
    context.open_context()
    while not os.path.exists("enough"):
        time.sleep(0.05)

def train(rank, steps):  # the first rank tells a step when all have done it
    import launcher_worker as worker
    context.open_context(rank)
    for step in range(steps):
        open(f"{{step}}-{{rank}}", "w").close()
        while rank == 0 and not all(os.path.exists(f"{{step}}-{{other}}") for other in range(4)):
            time.sleep(0.01)
        time.sleep(0.02)
        if rank == 0:
            worker.log(step, loss=1.0)
    if rank == 0:
        worker.done(steps)

layout, more = sys.argv[1], list(map(int, sys.argv[2:]))
if layout == "brief":
    context.open_context()
elif layout == "stays":
    import threading
    context.open_context()
    threading.Thread(target=time.sleep, args=(10000,)).start()
elif layout == "alone":
    hold()
elif layout == "loaders":
    for _ in range(2):
        if os.fork() == 0:
            time.sleep(10000)
    hold()
elif layout == "tree":  # a zombie, a session of its own, and one forked twice, which holds the card
    if os.fork() == 0:
        os._exit(0)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10000)"], start_new_session=True)
    between = os.fork()
    if between == 0:
        os.setsid()
        if os.fork() == 0:
            hold()
        os._exit(0)
    os.waitpid(between, 0)
    time.sleep(10000)
elif layout == "ranks":
    words = [sys.executable, __file__, "rank"]
    ranks = [subprocess.Popen([*words, str(rank), *sys.argv[2:]]) for rank in range(4)]
    sys.exit(max(one.wait() for one in ranks))
elif layout == "rank":
    train(*more)
"""
HOLDS = """
import sys
sys.path.insert(0, "{folder}")
import context
context.open_context()
"""


class Crash(NamedTuple):
    """How a training is laid out, which of its processes (by their names in Begun) are killed, and which are stopped before.

    `left` of them live on where nobody is there to end them: natively. In a container the keeper is its first program, with which
    all ends, and so it is spared.
    """

    layout: str
    killed: tuple[str, ...]
    stopped: tuple[str, ...] = ()
    left: int = 0
    places: tuple[str, ...] = ("native", "docker")


CRASHES = {
    "trainer": Crash("loaders", ("trainer",)),
    "all but orphaned loader workers": Crash("loaders", ("keeper", "agent", "trainer"), left=2),
    # in a container: test_an_agent_that_is_killed_comes_back_to_its_card
    "agent and keeper of a tree": Crash("tree", ("keeper", "agent"), left=3, places=("native",)),
    "agent and keeper of a stopped tree": Crash("tree", ("keeper", "agent"), ("trained",), left=3),
}

IN_CI = {("docker", "agent and keeper of a stopped tree")}


class Process(NamedTuple):
    """A process as `ps` shows it; `words` are its command line and its environment."""

    pid: int
    parent: int
    words: str


class Begun(NamedTuple):
    """A run whose training holds its cards, and who is who among its processes; `trained` are all below the agent."""

    run: str
    agent: int
    keeper: int
    trainer: int
    trained: list[int]
    holders: dict[str, int]

    def pids(self, names):
        """The pids of those names."""
        found = [getattr(self, name) for name in names]
        return [pid for one in found for pid in (one if isinstance(one, list) else [one])]


class Place:
    """A machine with cards, in which runs are native or in containers."""

    def __init__(self, client, engine, cards, runtime):
        self.client, self.engine, self.cards = client, engine, cards
        self.machine = engine.machine
        self.is_native = runtime == "native"
        self.name(runtime=runtime)
        (client.project / "job.toml").write_text(JOB)
        client.script(TRAIN.format(folder=cards.folder))

    def name(self, **more):
        """Let the client know the machine as `dock`."""
        (self.client.project / "launch.toml").write_text(self.machine.table("dock", **more))

    @staticmethod
    def words(*train, profile="titan_rtx", more=()):
        """The words of a launch, whose training is laid out like that."""
        command = json.dumps(["env", "python3", "train.py", *train])
        place = ("--host", "dock", "--profile", profile, "--job", "./job.toml")
        return (*place, "--set", f"command={command}", *more)

    def begin(self, *train, count=1, **more):
        """Launch detached, and wait for so many contexts of the training."""
        run = self.client.detached(*self.words(*train, **more))
        return self.begun(run, count)

    def begun(self, run, count=1):
        """Look at a run, once its training holds so many cards."""
        agent = until(
            lambda: next((one for one in self.processes(run) if " supervise " in one.words), None),
            "the agent, which may have to wait for its image",
            timeout=300,
        )

        def holders():
            below = self.below(agent.pid)
            found = {uuid: pid for uuid, pid in self.holders().items() if pid in below}
            return found if len(found) == count else None

        held = until(holders, "the contexts")
        below = self.below(agent.pid)
        return Begun(run, agent.pid, agent.parent, min(below), below, held)

    # witnesses

    def processes(self, run=""):
        """The processes there, of those the ones that name a run in their command line or environment."""
        listed = self.machine.enter("ps", "axeww", "-o", "pid=,ppid=,args=").splitlines()
        rows = [line.split(None, 2) for line in listed if run in line]
        return [Process(int(pid), int(parent), words) for pid, parent, words in rows]

    def below(self, pid):
        """Everything below a process, zombies too."""
        table, found = self.processes(), [pid]
        for one in found:
            found += [other.pid for other in table if other.parent == one]
        return found[1:]

    def living(self, pids):
        """Those of some pids that are there, but for zombies."""
        return {one.pid for one in self.processes() if one.pid in pids and "<defunct>" not in one.words}

    def holders(self):
        """Who holds which card: pids by UUID."""
        smi = f"{self.cards.folder}/nvidia-smi"
        told = self.machine.enter(smi, "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits")
        return {uuid: int(pid) for uuid, pid in (line.split(", ") for line in told.splitlines())}

    def containers(self, run):
        """The containers of a run that are up."""
        return self.engine.docker("ps", "--quiet", "--filter", f"name={run}").split()

    def leases(self):
        """Which run has which card."""
        told = self.machine.ssh("sh", "-c", "cat .launch/hosts/*/leases/GPU-*[0-9]", check=False)
        return {one["gpu"]: one["run"] for one in map(json.loads, told.splitlines())}

    def record(self, run, name):
        """What the files of that name in a run's folders hold, the latest last."""
        return self.machine.enter("sh", "-c", f"cat /home/ada/.launch/runs/{run}/record/*/{name}")

    def state(self, run):
        """State and reason of a run."""
        told = json.loads(self.record(run, "state.json").splitlines()[-1])
        return [told["state"], told["reason"]]

    def steps(self, run):
        """How many steps of a run are on record."""
        return self.record(run, "events.jsonl").count('"metric"')

    # what happens there

    def signal(self, name, pids):
        """Send a signal to each, as root; one that ended with another that was killed just before is no failure."""
        if pids:
            self.machine.enter("kill", f"-{name}", *map(str, pids), check=name != "KILL")

    def kill_client(self, process):
        """Kill a client, and what serves it on the host."""
        self.signal("KILL", [one.pid for one in self.processes(" serve ")])
        process.kill()
        process.communicate()

    def next_launch_has_its_cards(self, dead, *train, **more):
        """As it is typed, untouched; and of the dead run nothing is left."""
        self.client.ok(*self.words(*(train or ("brief",)), **more))
        assert not self.living(dead.trained)
        until(
            lambda: not {one.pid for one in self.processes()} & {*dead.trained}, "init to collect the zombies"
        )
        until(lambda: not self.processes(dead.run), "the agent to leave")
        assert self.containers(dead.run) == []
        assert dead.run not in self.leases().values()
        assert self.holders() == {}


@pytest.fixture(scope="module")
def there(engine):
    """The engine, and cards that its machine's user and its containers see."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    cards = Cards(folder)
    with cards.on(engine.machine.homes / "ada"), engine.handing_on(cards):
        yield engine, cards
    cards.close()


@pytest.fixture
def place(client, there, request):
    """A place with one exclusive card, for containers unless a test says else; what runs there is ended afterwards."""
    engine, cards = there
    cards.put(EXCLUSIVE)
    made = Place(client, engine, cards, getattr(request, "param", "docker"))
    yield made
    for name in engine.docker("ps", "--all", "--quiet").split():
        engine.docker("rm", "--force", name)
    left = [one.pid for one in made.processes("/.launch/runs/")]
    engine.machine.enter("kill", "-KILL", *map(str, left), check=False)
    engine.machine.ssh("sh", "-c", "rm -rf .launch/runs .launch/hosts/*/leases")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        pytest.param(one, name, marks=() if (one, name) in IN_CI else pytest.mark.long)
        for name in CRASHES
        for one in CRASHES[name].places
    ],
    indirect=["place"],
)
def test_after_a_crash_the_next_launch_has_the_card(place, name):
    """What neither agent nor keeper is there to end is the launch's to end: it holds the card until then."""
    crash = CRASHES[name]
    dead = place.begin(crash.layout)
    assert len(dead.trained) - len(place.living(dead.trained)) == (crash.layout == "tree"), "its zombie"
    killed = dead.pids(one for one in crash.killed if place.is_native or one != "keeper")
    place.signal("STOP", dead.pids(crash.stopped))
    place.signal("KILL", killed)
    if place.is_native and crash.left:
        until(lambda: not place.living(killed), "their end")
        until(  # what reports the cards is ended by the kernel, a moment after its agent
            lambda: len(place.living(dead.trained)) == crash.left, "the processes that nobody ends"
        )
        assert {*place.holders().values()} == {*dead.holders.values()} - {*killed}
    else:
        until(lambda: place.state(dead.run)[0] == "failed", "the end of the run")
    place.next_launch_has_its_cards(dead)


@pytest.mark.long
@IN_BOTH
def test_an_agent_that_is_killed_comes_back_to_its_card(place):
    """Whoever keeps it has ended what held the card before; the training holds it again, and the run can be stopped."""
    dead = place.begin("tree", more=("--set", "restart=true"))
    place.signal("KILL", [dead.agent])
    until(lambda: not place.living([dead.agent, *dead.trained]), "their end")
    again = place.begun(dead.run)
    assert again.holders.keys() == dead.holders.keys()
    place.client.ok("stop", "--now", "--host", "dock", dead.run)
    place.next_launch_has_its_cards(again)


@pytest.mark.long
def test_a_run_goes_on_without_its_client_and_keeps_its_card(place):
    """Client and `serve` killed: it is named to who wants its card, and left alone by who takes another; see test_leases.py."""
    follower = place.client.start(*place.words("alone"))
    run = until(lambda: next(iter(place.leases().values()), None), "the lease")
    live = place.begun(run)
    until(lambda: place.state(run)[0] == "running", "its state")
    place.kill_client(follower)
    done = place.client.run(*place.words("brief"))
    assert done.returncode == 3
    assert f"leased by run {run} (running) on GPU 0" in done.stderr
    waits = place.client.start(*place.words("brief", more=("--wait", "1m")))
    while f"wait: leased by run {run}" not in (line := waits.stderr.readline()):
        assert line
    place.cards.put(EXCLUSIVE, EXCLUSIVE)
    place.client.ok(*place.words("brief"))
    place.cards.put(EXCLUSIVE)
    assert place.begun(run) == live
    assert len(place.containers(run)) == 1
    place.machine.ssh("touch", f".launch/runs/{run}/work/code/enough")
    out, err = waits.communicate(timeout=180)
    assert waits.returncode == 0, out + err
    assert place.state(run)[0] == "succeeded"
    until(lambda: not place.processes(run), "the agent to leave")
    assert run not in place.leases().values()


@pytest.mark.long
def test_a_client_that_dies_between_lease_and_start_leaves_the_card_free(place):
    """With `serve`, when the container is made and not yet begun; natively it is a test of test_leases.py."""
    with Between(place.machine.homes / "ada" / "between.sock", place.engine.socket, b"/start") as between:
        place.name(runtime="docker", engine="/home/ada/between.sock")
        dies = place.client.start(*place.words("brief"))
        until(between.is_asked.is_set, "the start")
        ((card, run),) = place.leases().items()
        assert card == uuid_of(0)
        place.kill_client(dies)
        until(between.is_dropped.is_set, "sshd to leave")
    place.name(runtime="docker")
    place.next_launch_has_its_cards(Begun(run, 0, 0, 0, [], {}))


@pytest.mark.long
@IN_BOTH
def test_of_four_ranks_one_hangs_and_all_four_cards_are_free_again(place):
    """In a container by the silence of the steps (natively: test_exclusive.py), else by a person: no rank is forgotten."""
    place.cards.put(*[("t4", MODE)] * 4)
    (place.client.project / "profiles").mkdir()
    (place.client.project / "profiles" / "t4x4.toml").write_text(FOUR_T4)
    more = () if place.is_native else ("--set", f"hang_minutes={2 / 60}")
    dead = place.begin("ranks", "100000", profile="t4x4", count=4, more=more)
    assert sorted(dead.holders) == [uuid_of(index) for index in range(4)]
    until(lambda: place.steps(dead.run) > 3, "some steps")
    place.signal("STOP", [dead.holders[uuid_of(2)]])
    if place.is_native:
        place.client.ok("stop", "--host", "dock", dead.run)
    end = ["stopped", "by-user"] if place.is_native else ["failed", "hang"]
    until(lambda: place.state(dead.run) == end, "the end of the run")
    place.next_launch_has_its_cards(dead, "ranks", "0", profile="t4x4")


@pytest.mark.long
@IN_BOTH
def test_a_script_that_has_ended_and_stays_gives_its_card_back(place):
    """A thread holds the process, and that the card; it is ended as what it is, a success, and the next launch has the card."""
    place.cards.put(EXCLUSIVE)
    dead = place.begin("stays", more=("--set", f"hang_minutes={2 / 60}"))
    until(lambda: place.state(dead.run) == ["succeeded", "exit-only"], "the end of the run")
    assert "its process stayed" in place.record(dead.run, "state.json")
    place.next_launch_has_its_cards(dead)


@pytest.mark.long
def test_strangers_hold_their_cards_and_are_left_alone(place):
    """Another user's container, started by hand, and a process: neither gets a signal, and a free card is taken."""
    client, engine, machine, cards = place.client, place.engine, place.machine, place.cards
    cards.put(EXCLUSIVE, EXCLUSIVE)
    code = HOLDS.format(folder=cards.folder) + RECORDER
    (machine.homes / "bob" / "code.py").write_text(code)
    options = (
        f"--user $(id -u) --gpus device={uuid_of(0)} -e CUDA_VISIBLE_DEVICES={uuid_of(0)} -v /home/bob:/mnt"
    )
    run = f"docker run -d {options} {BASE} python3 -B /mnt/code.py"
    name = machine.ssh("sh", "-c", run, user="bob").strip()
    log = machine.homes / "bob" / "log"
    start = f"CUDA_VISIBLE_DEVICES={uuid_of(1)} setsid python3 -B code.py >log 2>&1 </dev/null &"
    machine.ssh("sh", "-c", start, user="bob")
    until(lambda: len(place.holders()) == 2, "the strangers")
    held = place.holders()
    assert held[uuid_of(0)] == int(engine.docker("inspect", "--format", "{{.State.Pid}}", name))
    try:
        done = client.run(*place.words("brief"))
        assert done.returncode == 3
        for index, pid in enumerate(held.values()):
            assert f"pid {pid} (bob, python3 -B " in done.stderr
            assert f"holds GPU {index}: ask bob to end it" in done.stderr
        cards.put(EXCLUSIVE, EXCLUSIVE, EXCLUSIVE)
        client.ok(*place.words("brief"))
        items = json.loads(client.ok("sweep", "--host", "dock", "--json"))["items"]
        left = [
            one["why"] for one in items if one["did"] == "left"
        ]  # not the container of the run that has ended
        assert left == [f"holds GPU {index}: ask bob to end it" for index in range(2)]
        client.ok("gc", "--host", "dock")
        assert place.holders() == held
        assert engine.docker("logs", name) == log.read_text() == "ready\n"
        assert engine.docker("ps", "--quiet", "--no-trunc").split() == [name]
    finally:
        machine.enter("kill", "-KILL", *map(str, held.values()), check=False)
        engine.docker("rm", "--force", name)
