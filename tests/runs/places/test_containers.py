"""Runs in containers of a host's own Docker Engine. Witnesses: the docker CLI inside the machine, and plain ssh."""

import errno
import hashlib
import itertools
import json
import re
import signal
import sys
import urllib.request

import pytest
from testbed.between import Between
from testbed.client import LAUNCH, until
from testbed.screen import Screen

pytestmark = pytest.mark.testbed

STEPS = """
import os, time
import launcher_worker as worker
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
print("user", os.getuid(), "home", os.environ["HOME"], os.environ.get("USER"))
for step in range(begin + 1, 2001):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    if step % 5 == 0:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if os.path.exists("enough"):
        break
artifact = os.path.join("..", "artifacts", "made")
open(artifact, "w").write("by the run")
worker.done(step)
"""
JOB = 'name = "train"\ncommand = ["python", "train.py"]\nattempts = 50\n'


def write_project(client, box, user="ada", runtime="docker", **more):
    """Put a job and a host table into a client's project."""
    table = box.machine.table("dock", user=user, runtime=runtime, **more)
    (client.project / "launch.toml").write_text(
        f'{table}\n[hosts.dock.build]\nbase = "launch-testbed/python:bookworm"\n'
    )
    (client.project / "job.toml").write_text(JOB)
    client.script(STEPS)


@pytest.fixture
def box(client, engine):
    """The machine with the engine, known to a client as `dock`; its containers are gone afterwards."""
    write_project(client, engine)
    yield engine
    for name in engine.docker("ps", "-aq").split():
        engine.docker("rm", "-f", name)
    engine.machine.ssh("rm", "-rf", ".launch/runs")


def detached(client, *words):
    return client.detached("--host", "dock", "--job", "./job.toml", *words)


def make_image(client):
    """Make and check the image, so that the next start in the engine is a run's and not the check's."""
    client.ok("image", "build", "--host", "dock", "--job", "./job.toml")


def inspect(engine, run):
    return json.loads(engine.docker("inspect", f"launch-{run}"))[0]


def state(client, run):
    rows = json.loads(client.ok("ps", "--json", "--host", "dock"))["runs"]
    return next(row for row in rows if row["run"] == run)


def more_steps(engine, run, number=4):
    """Wait until a run has come that many steps further."""
    before = steps(engine, run)
    until(lambda: steps(engine, run) >= before + number, f"{number} more steps of {run}")


def steps(engine, run, user="ada"):
    """How many steps are on record, by plain ssh."""
    text = engine.machine.ssh(
        "sh", "-c", f"cat .launch/runs/{run}/record/*/events.jsonl", user=user, check=False
    )
    return text.count('"metric"')


def enough(engine, run, user="ada"):
    engine.machine.ssh("touch", f".launch/runs/{run}/work/code/enough", user=user)


def test_a_run_in_a_container_is_as_the_design_says(client, box):
    """User, mounts, labels, limits and the rest, as the docker CLI tells; its files belong to who launched it."""
    run = detached(client)
    more_steps(box, run, 4)
    told = inspect(box, run)
    uid = box.machine.ssh("id", "-u").strip()
    gid = box.machine.ssh("id", "-g").strip()
    path = f"/home/ada/.launch/runs/{run}"
    assert told["Config"]["User"] == f"{uid}:{gid}"
    assert told["Config"]["Labels"]["launcher.run"] == run
    assert told["Config"]["Labels"]["launcher.attempt"] == "1"
    digest = box.machine.ssh("sha256sum", f"{path}/control/plan.json").split()[0]
    plan = box.machine.ssh("cat", f"{path}/control/plan.json")
    assert told["Config"]["Labels"]["launcher.plan"] == _digest(plan)
    assert digest != _digest(plan)  # the file ends with a line break, the digest is of the JSON
    mounts = {one["Destination"]: one["RW"] for one in told["Mounts"]}
    written = {one for one, is_written in mounts.items() if is_written}
    assert written == {f"{path}/record", f"{path}/work", "/home/ada/.launch/cache"}
    assert mounts[path] is False
    assert not [one for one in mounts if one.startswith("/home/ada/.launch/hosts/")]  # it has no card
    host = told["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert host["Init"] is True
    assert host["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 0}
    assert host["ShmSize"] >= 1 << 30
    environment = dict(one.split("=", 1) for one in told["Config"]["Env"])
    assert environment["HOME"] == f"{path}/work/home"
    assert environment["USER"] == environment["LOGNAME"] == "ada"
    enough(box, run)
    out = client.seen("attach", run)
    assert "succeeded" in out
    assert (client.runs / run / "artifacts" / "made").read_text() == "by the run"
    owners = box.machine.ssh("find", path, "-printf", "%U\n").split()
    assert set(owners) == {uid}
    box.machine.ssh("rm", "-r", path)


COUNTING = """
import builtins, runpy, sys
compiled, compile_it = [], compile
BEFORE = ("launch_agent/__init__.py", "launch_agent/compiled_code.py")
def counting(source, name, *more, **words):
    if "launch_agent" in str(name) and not str(name).endswith(BEFORE):
        compiled.append(name)
    return compile_it(source, name, *more, **words)
builtins.compile = counting
sys.argv = [sys.argv[1], "serve", sys.argv[2]]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print(len(compiled))
"""
"""A start of the agent that prints how many of its modules it had to compile."""


@pytest.mark.long
def test_an_image_compiles_the_agent_once_for_all_its_containers(client, box):
    """Whatever build of Python it has. What it has compiled belongs to the user, and no run's container can write there."""
    make_image(client)
    place = ".launch/agent/*/images/*/code-*"

    def there():
        return box.machine.ssh("sh", "-c", f"stat -c '%n %i %s %y %a %U' {place}").splitlines()

    before = there()  # of other tests' images too
    assert {tuple(line.split()[-2:]) for line in before} == {("600", "ada")}
    run = detached(client)
    more_steps(box, run)
    (variable,) = [one for one in inspect(box, run)["Config"]["Env"] if one.startswith("LAUNCH_CODE=")]
    folder = variable.partition("=")[2]
    image = json.loads(box.docker("inspect", f"launch-{run}"))[0]["Image"]
    assert folder.rpartition("/")[2] == image.partition(":")[2]
    agent = f"{folder.partition('/images/')[0]}/agent.pyz"
    words = ("exec", f"launch-{run}", "python3", "-I", "-c", COUNTING, agent, "/tmp")
    assert box.docker(*words) == "0\n"
    written = f"touch {folder}/more && echo written"
    assert box.docker("exec", f"launch-{run}", "sh", "-c", written, check=False) == ""
    enough(box, run)
    assert "succeeded" in client.seen("attach", run)
    assert there() == before


def _digest(plan):
    return hashlib.sha256(plan.strip().encode()).hexdigest()


@pytest.mark.long
def test_a_finished_and_a_stopped_run_stay_down_a_running_one_comes_back(client, box):
    """Through a graceful restart of the engine, a killed one, and a reboot of its machine."""
    finished, stopped = detached(client), detached(client)
    running = detached(client)
    for run in (finished, stopped, running):
        more_steps(box, run, 7)
    enough(box, finished)
    until(lambda: state(client, finished)["state"] == "succeeded", "its end")
    assert "stopped" in client.ok("stop", stopped)
    assert inspect(box, stopped)["State"]["Running"] is False
    attempt = 1
    for restart in (_restart_gracefully, _restart_after_a_kill, _reboot):
        restart(box)
        attempt += 1
        attempt = running_attempt(client, running, attempt)["attempt"]
        for run, end in ((finished, "succeeded"), (stopped, "stopped")):
            assert inspect(box, run)["State"]["Running"] is False
            assert state(client, run)["state"] == end
        more_steps(box, running, 4)
    enough(box, running)
    out = client.seen("attach", running)
    assert "succeeded" in out
    made = _steps_by_attempt(box, running)
    for earlier, later in itertools.pairwise(made):
        assert len(set(earlier)) == len(earlier)
        assert later[0] > 1, "it began from a checkpoint"
        assert later[0] % 5 == 1
        assert later[0] <= earlier[-1] + 2
    assert max(step for one in made for step in one) == made[-1][-1]


@pytest.mark.long
def test_a_restart_of_the_engine_is_no_shutdown_of_the_host(client, box):
    """The reason says what is known: its container was stopped."""
    run = detached(client)
    more_steps(box, run, 2)
    _restart_gracefully(box)
    running_attempt(client, run, 2)
    ended = json.loads(box.machine.ssh("cat", f".launch/runs/{run}/record/0002/state.json"))
    assert (ended["state"], ended["reason"]) == ("resuming", "container-stopped")
    assert "stopped" in client.ok("stop", "--now", run)


def running_attempt(client, run, attempt):
    """Wait for an attempt, or one behind it, to run; return what `ps` says of it."""

    def look():
        row = state(client, run)
        return row if row["state"] == "running" and row["attempt"] >= attempt else None

    return until(look, f"attempt {attempt} of {run}")


def _steps_by_attempt(engine, run):
    files = engine.machine.ssh("sh", "-c", f"ls .launch/runs/{run}/record/*/events.jsonl").split()
    found = []
    for file in files:
        events = [
            json.loads(line) for line in engine.machine.ssh("cat", file).splitlines() if line.endswith("}")
        ]
        found.append([event["step"] for event in events if event["kind"] == "metric"])
    return [one for one in found if one]


def _restart_gracefully(engine):
    engine.stop_gracefully()
    engine.start()


def _restart_after_a_kill(engine):
    engine.kill(has_containerd=True)
    engine.start()


def _reboot(engine):
    engine.machine.kill()
    engine.machine.up()
    engine.wait()


@pytest.mark.long
def test_what_strangers_do_to_a_container_is_told_as_it_is(client, box):
    """A killed pid comes back; `docker kill` and `docker stop` hold; a removed one is made anew by attach."""
    run = detached(client)
    more_steps(box, run, 7)
    pid = inspect(box, run)["State"]["Pid"]
    box.machine.enter("kill", "-KILL", str(pid))
    running_attempt(client, run, 2)
    for number, words in enumerate((("kill",), ("stop", "-t", "20"), ("rm", "-f")), start=3):
        more_steps(box, run, 7)
        box.docker(*words, f"launch-{run}")
        assert interrupted(client, run)["attempt"] == number - 1
        if words[0] == "stop":  # it holds until the engine restarts
            _restart_gracefully(box)
            running_attempt(client, run, number)
            continue
        client_side = client.start("attach", run)
        running_attempt(client, run, number)
        client_side.kill()
        client_side.communicate()
    previous = [
        json.loads(line).get("previous")
        for line in box.machine.ssh("sh", "-c", f"cat .launch/runs/{run}/record/*/attempt.json").splitlines()
    ]
    told = [one["evidence"]["container"] for one in previous if one and "evidence" in one]
    assert [one if one == "removed" else one["exit"] for one in told] == [137, "removed"]
    assert "stopped" in client.ok("stop", "--now", run)


def interrupted(client, run):
    """Wait until a run is interrupted; return what `ps` says of it."""

    def look():
        row = state(client, run)
        return row if row["state"] == "interrupted" else None

    return until(look, f"{run} to be interrupted")


@pytest.mark.long
def test_stop_leaves_a_checkpoint_and_nothing_running(client, box):
    """The container is down when `launch stop` returns, by docker's word, and no process of it is left."""
    run = detached(client)
    more_steps(box, run, 7)
    pid = inspect(box, run)["State"]["Pid"]
    assert "stopped: by-user" in client.ok("stop", run)
    told = inspect(box, run)["State"]
    assert told["Running"] is False
    assert told["ExitCode"] == 0
    assert box.machine.enter("sh", "-c", f"test -e /proc/{pid} || echo gone").strip() == "gone"


@pytest.mark.long
def test_a_stop_while_the_engine_is_down_is_heeded_when_it_is_back(client, box):
    """The wish is on the host's disk: whoever comes back reads it first."""
    run = detached(client)
    more_steps(box, run, 4)
    box.kill(has_containerd=True)
    pid = inspect_pid(box, run)
    box.machine.enter("kill", "-KILL", str(pid))
    done = client.run("stop", run)
    assert done.returncode == 4
    assert "docker does not answer" in done.stderr
    box.start()
    until(lambda: state(client, run)["state"] == "stopped", "its end")


def inspect_pid(engine, run):
    """The pid of a container's init, while its engine is dead: from the process table."""
    pids = engine.machine.enter("pgrep", "-f", f"contain /home/ada/.launch/runs/{run}").split()
    return min(int(pid) for pid in pids)


def test_exec_runs_in_the_container_and_ends_with_its_client(client, box):
    """In a running container in there; beside an ended one in a container that goes with it."""
    run = detached(client)
    out = client.ok("exec", run, "--", "sh", "-c", "cat /proc/1/comm; id -u; pwd; echo $LAUNCH_RUN")
    assert out.split() == [
        "docker-init", box.machine.ssh("id", "-u").strip(), f"/home/ada/.launch/runs/{run}/work/code", run,
    ]  # fmt: skip
    assert client.run("exec", run, "--", "sh", "-c", "exit 7").returncode == 7
    sleeper = client.start("exec", run, "--", "sleep", "4321")
    until(lambda: "sleep 4321" in box.docker("top", f"launch-{run}"), "the command")
    sleeper.kill()
    sleeper.communicate()
    until(lambda: "sleep 4321" not in box.docker("top", f"launch-{run}"), "the command's end")
    client.ok("stop", "--now", run)
    before = box.docker("ps", "-aq").split()
    assert client.ok("exec", run, "--", "sh", "-c", "ls ..").split()
    until(lambda: box.docker("ps", "-aq").split() == before, "nothing left beside")
    client.ok("rm", "--force", run)  # its checkpoints go too
    assert box.docker("ps", "-aq").split() == []


@pytest.mark.long
def test_a_shell_is_in_the_container_too(client, box):
    """With a terminal of its own, in a running container and beside an ended one."""
    run = detached(client)
    asks = 'cat /proc/1/comm; id -u; pwd; stty size; test -t 0 && echo "on a terminal"'
    for state in ("running", "ended"):
        with Screen([*LAUNCH, "shell", run], client.env, client.project, 133, 41) as screen:
            screen.until(lambda lines: lines[-1].endswith(("#", "$")))
            screen.type(f"{asks}; exit 5\n")
            screen.to_the_end()
        assert screen.process.returncode == 5, state
        said = screen.raw.decode()
        for words in (
            "docker-init",
            box.machine.ssh("id", "-u").strip(),
            "work/code",
            "41 133",
            "on a terminal",
        ):
            assert words in said, state
        if state == "running":
            client.ok("stop", "--now", run)


@pytest.mark.long
def test_a_port_in_the_container_is_reached(client, box):
    """The container's own loopback, not the host's; an ended one has no ports. Where sshd forwards nothing, that too."""
    run = detached(client)
    serves = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8765, bind='127.0.0.1')"
    with client.start("forward", run, "8765", "--", "python", "-c", serves) as process:
        address = process.stdout.readline().strip()
        until(lambda: "8765" in process.stdout.readline(), "the server")
        with urllib.request.urlopen(f"{address}/train.py", timeout=60) as answer:
            assert answer.read() == STEPS.encode()
        asks = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 8765)))"
        assert box.machine.ssh("python3", "-c", asks) == f"{errno.ECONNREFUSED}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=180) == 130
    until(lambda: " relay " not in box.docker("top", f"launch-{run}"), "the end of the relays")
    client.ok("stop", "--now", run)
    done = client.run("forward", run, "8765")
    assert (done.returncode, "does not run" in done.stderr) == (4, True)


def test_a_host_that_forwards_no_ports_says_so(client, engine):
    """`AllowTcpForwarding no`: exit code 4, and the setting's name."""
    write_project(client, engine, user="dan", runtime="native")
    client.detached("--host", "dock", "--", "true")
    done = client.run("forward", "last", "8765")
    assert (done.returncode, done.stdout) == (4, "")
    assert "AllowTcpForwarding" in done.stderr


@pytest.mark.long
def test_an_edited_script_rebuilds_nothing(client, box):
    """Code is mounted: the image keeps its name and its id."""
    client.ok("--host", "dock", "--job", "./job.toml", "--set", 'command=["true"]')
    images = box.docker("images", "-q", "--no-trunc", "launcher/cpu")
    client.script("print('another')\n")
    out = client.seen("--host", "dock", "--job", "./job.toml")
    assert re.search(r"image .*there", out)
    assert box.docker("images", "-q", "--no-trunc", "launcher/cpu") == images


def test_who_may_not_use_the_engine_is_told_what_to_do(client, engine):
    """Refused by the gate, before anything was sent; without a word about the runtime it runs natively."""
    write_project(client, engine, user="eve")
    done = client.run("--host", "dock", "--job", "./job.toml")
    assert done.returncode == 3
    assert "Permission denied" in done.stderr
    assert "usermod -aG docker eve" in done.stderr
    assert engine.machine.ssh("ls", ".launch/runs", user="eve", check=False) == ""
    write_project(client, engine, user="eve", runtime="auto")
    assert "succeeded" in client.seen("--host", "dock", "--", "true")


@pytest.mark.long
def test_root_s_run_is_root_s_and_said_aloud(client, box):
    """As root on the host it is root inside; what it writes is root's."""
    write_project(client, box, user="root")
    out = client.seen("--host", "dock", "--job", "./job.toml", "--set", 'command=["touch","../artifacts/x"]')
    assert "as root" in out
    run = next(path.name for path in client.runs.iterdir() if path.name[0] != ".")
    assert inspect(box, run)["Config"]["User"] == "0:0"
    client.ok("rm", run)


@pytest.mark.long
def test_a_rootless_engine_s_run_belongs_to_its_user(client, box, rootless_engine):
    """The engine of her docker context: root inside is she herself, and what it wrote she can delete."""
    write_project(client, box, user=rootless_engine.user)
    words = ["--job", "./job.toml", "--set", 'command=["touch","../artifacts/x"]']
    assert "succeeded" in client.seen("--host", "dock", *words)
    run = next(path.name for path in client.runs.iterdir() if path.name[0] != ".")
    told = json.loads(rootless_engine.docker("inspect", f"launch-{run}"))[0]
    assert told["Config"]["User"] == "0:0"
    path = f".launch/runs/{run}"
    owners = box.machine.ssh("find", path, "-printf", "%u\n", user=rootless_engine.user).split()
    assert set(owners) == {rootless_engine.user}
    compiled = "stat -c %U .launch/agent/*/images/*/code-*"
    assert box.machine.ssh("sh", "-c", compiled, user=rootless_engine.user) == f"{rootless_engine.user}\n"
    box.machine.ssh("rm", "-r", path, user=rootless_engine.user)


@pytest.mark.long
def test_two_users_of_one_engine_keep_apart(client, box):
    """Both may launch; each gets what is theirs, and neither's gc takes the other's containers or images."""
    write_project(client, box, user="ada")
    client.ok("--host", "dock", "--job", "./job.toml", "--set", 'command=["true"]')
    (adas,) = box.docker("ps", "-aq").split()
    image = box.docker("images", "-q", "launcher/cpu")
    write_project(client, box, user="bob")
    client.ok("--host", "dock", "--job", "./job.toml", "--set", 'command=["true"]')
    client.ok("gc", "--host", "dock")
    assert box.docker("ps", "-aq").split() == [adas]
    assert box.docker("images", "-q", "launcher/cpu") == image
    box.docker("rm", adas)


@pytest.mark.long
def test_a_client_that_dies_before_the_start_leaves_a_run_that_attach_starts(client, box):
    """Its container was made and never started: the run is interrupted, and goes on by attach."""
    make_image(client)
    with Between(box.machine.homes / "ada" / "between.sock", box.socket, b"/start") as between:
        write_project(client, box, engine="/home/ada/between.sock")
        process = client.start("--host", "dock", "--job", "./job.toml")
        until(between.is_asked.is_set, "the start")
        process.kill()
        process.communicate()
        until(between.is_dropped.is_set, "sshd to leave")
        (run,) = box.machine.ssh("ls", ".launch/runs").split()
        assert inspect(box, run)["State"]["Status"] == "created"
        interrupted(client, run)
        between.gate.set()
        follower = client.start("attach", run)
        running_attempt(client, run, 1)
        more_steps(box, run, 4)
        enough(box, run)
        out, err = follower.communicate(timeout=180)
        assert follower.returncode == 0, out + err


@pytest.mark.long
def test_a_link_that_dies_in_the_start_says_that_the_run_may_have_begun(client, box):
    """The engine had not answered yet: the client cannot know, and names the command that can."""
    make_image(client)
    with Between(box.machine.homes / "ada" / "between.sock", box.socket, b"/start") as between:
        write_project(client, box, engine="/home/ada/between.sock")
        process = client.start("--host", "dock", "--job", "./job.toml")
        until(between.is_asked.is_set, "the start")
        box.machine.cut()
        _, err = process.communicate(timeout=180)
        assert "Traceback" not in err, err
        assert process.returncode == 4
        (run,) = box.machine.ssh("ls", ".launch/runs").split()
        assert "may have begun   launch attach" in err
        interrupted(client, run)
        between.gate.set()
        assert "stopped" in client.ok("stop", "--now", run)


@pytest.mark.long
def test_of_two_attaches_at_once_one_starts_the_run(client, box):
    """Both follow it; there is one new attempt, by the host's own record and the container's count of starts."""
    run = detached(client)
    more_steps(box, run, 7)
    box.docker("kill", f"launch-{run}")
    interrupted(client, run)
    followers = [client.start("attach", run) for _ in range(2)]
    running_attempt(client, run, 2)
    more_steps(box, run, 4)
    enough(box, run)
    for follower in followers:
        out, err = follower.communicate(timeout=180)
        assert follower.returncode == 0, out + err
    kinds = [
        json.loads(line)["kind"]
        for line in box.machine.ssh("sh", "-c", f"cat .launch/runs/{run}/record/*/attempt.json").splitlines()
    ]
    assert kinds == ["prepare", "attempt", "contact", "attempt"]


@pytest.mark.long
def test_a_stop_reaches_a_container_that_waits_for_its_next_start(client, box):
    """Its agent was killed so often that the engine waits before it brings it back."""
    run = detached(client)
    more_steps(box, run, 4)

    def waits():
        state = inspect(box, run)["State"]
        if state["Status"] == "running" and state["Pid"]:
            box.machine.enter("kill", "-KILL", str(state["Pid"]), check=False)
        return state["Status"] == "restarting"

    restarts = f"launch-{run}"
    until(lambda: waits() and int(_restarts(box, restarts)) >= 5, "the engine to wait")
    assert "stopped" in client.ok("stop", run)
    assert inspect(box, run)["State"]["Running"] is False
    assert inspect(box, run)["State"]["Restarting"] is False


def _restarts(engine, name):
    return engine.docker("inspect", "--format", "{{.RestartCount}}", name)


@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("--now",)])
def test_a_paused_container_is_stopped_all_the_same(client, box, words):
    """Somebody's `docker pause` holds the agent: stop ends the run, and nothing of it is left frozen."""
    run = detached(client, "--set", "stop_grace_s=2")
    more_steps(box, run, 7)
    box.docker("pause", f"launch-{run}")
    assert state(client, run)["trouble"]["kind"] == "paused"
    if not words:
        assert "paused" in client.ok("ps", "--host", "dock")
        assert f"docker unpause launch-{run}" in client.run("exec", run, "--", "true").stderr
        assert "stop it before" in client.run("rm", "--force", run).stderr
        client.ok("gc", "--host", "dock")
    assert "stopped" in client.ok("stop", run, *words)
    told = inspect(box, run)["State"]
    assert (told["Running"], told["Paused"]) == (False, False)


class SmallDisk:
    """A file system in the machine that is filled up and given room again, the root of a run."""

    def __init__(self, box):
        self.box, self.place = box, "/home/ada/full"
        owner = f"uid={box.machine.ssh('id', '-u').strip()},mode=700"
        box.machine.ssh("mkdir", "-p", self.place)
        box.machine.enter("mount", "-t", "tmpfs", "-o", f"{owner},size=1300m", "tmpfs", self.place)

    def fill(self):
        """Take its room away."""
        fill = f"for turn in 1 2 3 4 5; do mount -o remount,size=$(df --output=used -B1 {self.place} | tail -n 1) {self.place} && exit; done; exit 1"
        self.box.machine.enter("sh", "-c", fill)  # the run may write meanwhile

    def empty(self):
        """Give it room again."""
        self.box.machine.enter("mount", "-o", "remount,size=1300m", self.place)


@pytest.fixture
def disk(client, box):
    disk = SmallDisk(box)
    write_project(client, box, root=disk.place)
    yield disk
    for name in box.docker("ps", "-aq").split():
        box.docker("rm", "-f", name)
    box.machine.enter("umount", "--lazy", disk.place)


def on_full_disk(client, box, disk, saves):
    """Start a run and fill its disk: it goes on training, or, if it saves, fails and waits between two attempts."""
    if not saves:
        client.script(STEPS.replace("step % 5 == 0", "False"))
    run = detached(client, "--set", "stop_grace_s=2")
    until(lambda: (client.summary(run)["step"] or 0) > 6, "checkpoint")
    disk.fill()
    if saves:
        until(lambda: (now := inspect(box, run))["RestartCount"] and now["State"]["Running"], "its restart")
    until(lambda: "disk full on dock" in client.ok("ps"), "a full disk", every=0.5)
    return run


@pytest.mark.long
@pytest.mark.parametrize("saves", [False, True], ids=["in an attempt", "between two"])
def test_a_run_on_a_full_disk_is_stopped_and_removed(client, box, disk, saves):
    """Its agent, inside, cannot record the end, or there is none: the wish says it."""
    run = on_full_disk(client, box, disk, saves)
    assert client.ok("exec", run, "--", "echo", "there") == "there\n"
    assert "stop it before" in client.run("rm", "--force", run).stderr
    assert "stopped" in client.ok("stop", run)
    client.ok("gc", "--host", "dock")
    client.ok("rm", "--force", run)
    assert run not in box.docker("ps", "-a") + box.machine.ssh("ls", f"{disk.place}/runs")


@pytest.mark.long
def test_a_run_goes_on_by_itself_once_its_disk_has_room(client, box, disk):
    """It waits in its container between two attempts, however long, and resumes from its checkpoint."""
    run = on_full_disk(client, box, disk, saves=True)
    disk.empty()
    summary = until(lambda: (now := client.summary(run))["attempt"] == 2 and now["step"] and now, "attempt 2")
    assert summary["step"] > 5
    assert inspect(box, run)["RestartCount"] == 1
    client.ok("stop", run)


@pytest.mark.long
def test_attach_makes_the_image_again_when_it_was_pruned(client, box):
    """The host was rebooted, its containers and images pruned: attach builds, and the run goes on from its checkpoint."""
    run = detached(client)
    more_steps(box, run, 7)
    image = inspect(box, run)["Config"]["Image"]
    box.docker("rm", "-f", f"launch-{run}")
    box.docker("rmi", image)
    _reboot(box)
    interrupted(client, run)
    follower = client.start("attach", run)
    running_attempt(client, run, 2)
    assert box.docker("images", "-q", image)
    more_steps(box, run, 4)
    enough(box, run)
    out, err = follower.communicate(timeout=180)
    assert follower.returncode == 0, out + err
    earlier, later = _steps_by_attempt(box, run)
    assert later[0] % 5 == 1
    assert 1 < later[0] <= earlier[-1] + 2


def test_a_sweep_removes_the_containers_of_ended_runs_and_no_others(client, box):
    """Not at the next launch, for somebody may look into it; a live run's, an interrupted one's and a stranger's stay."""
    ended, lost = detached(client), detached(client)
    more_steps(box, lost, 2)
    client.ok("stop", "--now", "--host", "dock", ended)
    box.docker("kill", f"launch-{lost}")
    until(lambda: state(client, lost)["state"] == "interrupted", "the interruption")
    live = detached(client)
    box.docker("create", "--name", "launch-stranger", "launch-testbed/python:bookworm", "true")

    def there():
        return set(box.docker("ps", "-a", "--format", "{{.Names}}").split())

    stay = {f"launch-{lost}", f"launch-{live}", "launch-stranger"}
    assert there() == {f"launch-{ended}", *stay}
    (item,) = json.loads(client.ok("sweep", "--host", "dock", "--json", "--dry-run"))["items"]
    assert (item["kind"], item["run"], item["did"]) == ("container", ended, "removed")
    assert there() == {f"launch-{ended}", *stay}
    assert ended[-6:] in client.ok("sweep", "--host", "dock")
    assert there() == stay


IMPATIENT = """
from launcher.backends.machine import docker_runtime
docker_runtime.CHECK_S = -60.0
from launcher.cli import main
main()
"""
"""A client for which a container in which an image is checked is late at once."""


@pytest.mark.long
def test_gc_leaves_what_somebody_made_of_an_image_of_ours_and_takes_a_check_that_was_cut_off(client, box):
    """The engine gives a container the labels of its image. A check whose client died before it began is nobody's."""
    make_image(client)
    image = box.docker("images", "--format", "{{.Repository}}:{{.Tag}}", "launcher/cpu").split()[0]
    box.docker("create", "--name", "theirs", image, "true")
    path = box.machine.homes / "ada" / "between.sock"
    with Between(path, box.socket, b"/start") as between:
        write_project(client, box, engine="/home/ada/between.sock", root="/home/ada/checks")
        process = client.start("--host", "dock", "--job", "./job.toml")
        until(between.is_asked.is_set, "the start of the check")
        process.kill()
        process.communicate()
        until(between.is_dropped.is_set, "sshd to leave")
    write_project(client, box, root="/home/ada/checks")
    names = set(box.docker("ps", "-a", "--format", "{{.Names}}").split())
    assert len(names) == 2
    client.ok("gc", "--host", "dock")
    assert set(box.docker("ps", "-a", "--format", "{{.Names}}").split()) == names  # it may be about to begin
    client.is_forked, client.program = False, [sys.executable, "-c", IMPATIENT]
    client.ok("gc", "--host", "dock")
    assert box.docker("ps", "-a", "--format", "{{.Names}}").split() == ["theirs"]


def test_a_stranger_s_container_of_that_name_is_left_alone(client, box):
    """The label is the proof, not the name: neither `stop`, `attach`, `exec` nor `rm` touches it."""
    run = detached(client)
    more_steps(box, run)
    box.docker("rm", "-f", f"launch-{run}")
    stranger = box.docker(
        "run", "-d", "--name", f"launch-{run}", "launch-testbed/python:bookworm", "sleep", "9999"
    )
    for words in (["attach", run], ["exec", run, "--", "true"]):
        done = client.run(*words)
        assert done.returncode == 4, words
        assert f"launch-{run} is not of run {run}" in done.stderr
    assert "stopped" in client.ok("stop", "--now", run)
    told = json.loads(box.docker("inspect", stranger.strip()))[0]
    assert told["State"]["Status"] == "running"


@pytest.mark.long
def test_a_stopped_run_goes_on_as_another_one_in_the_same_image(client, box):
    """From its checkpoint, with its code, in a container of its own; nothing is built or pulled again."""
    parent = detached(client)
    more_steps(box, parent, 7)
    client.ok("stop", parent)
    sums = "cd .launch/runs/{} && find code checkpoints/{} -type f | xargs sha256sum"
    images = box.docker("images", "-aq", "--no-trunc")
    client.script("raise SystemExit('not the code of that run')")
    child = client.ok("resume", parent, "--set", "keep_checkpoints=500", "--detach", timeout=300).split()[-1]
    assert child != parent
    told = state(client, child)["parent"]
    name, step = told["checkpoint"], told["step"]
    assert told["run"] == parent
    assert step >= 5
    there = [box.machine.ssh("sh", "-c", sums.format(run, name)).splitlines() for run in (parent, child)]
    assert sorted(there[0]) == sorted(there[1])
    assert inspect(box, child)["Image"] == inspect(box, parent)["Image"]
    assert box.docker("images", "-aq", "--no-trunc") == images
    more_steps(box, child, 2)
    enough(box, child)
    assert f"continues {parent} from step {step}" in client.seen("attach", child)
    lines = [json.loads(line) for line in client.ok("metrics", child, "--json").splitlines()]
    steps_told = [line["step"] for line in lines if line["name"] == "loss"]
    assert steps_told == list(range(1, len(steps_told) + 1))
    assert (
        min(line["step"] for line in lines if line["run"] == child and line["step"] is not None) == step + 1
    )


LIAR = """
import json, os, time
record = os.path.join(os.path.dirname(os.path.dirname(os.getcwd())), "record")
while True:
    with open(os.path.join(record, "0002", "lie"), "w") as file:
        json.dump({"state": "succeeded", "time": time.time() + 1e9}, file)
    os.rename(os.path.join(record, "0002", "lie"), os.path.join(record, "0002", "state.json"))
    time.sleep(0.1)
"""


@pytest.mark.long
def test_a_container_whose_job_has_written_that_the_run_has_ended_is_stopped(client, box):
    """What is up the engine knows."""
    client.script(LIAR)
    run = detached(client)
    until(lambda: state(client, run)["state"] == "succeeded", "the lie")
    assert inspect(box, run)["State"]["Running"]
    client.ok("stop", "--now", run)
    assert not inspect(box, run)["State"]["Running"]


HOSTILE = """
import json, os, socket, time
run = os.path.dirname(os.path.dirname(os.getcwd()))
keys = "/home/ada/.ssh/authorized_keys"
said = {}

def attempt(name, act):
    try:
        act()
        said[name] = "done"
    except OSError as error:
        said[name] = error.strerror

def flood():
    for number in range(60000):
        os.symlink(keys, os.path.join(run, "control", "wish.%d.tmp" % number))

def write(*names):
    open(os.path.join(run, *names), "w").write("mine")

def engine():
    path = os.path.join(run, "record", "0001", "attempt.json")
    record = json.load(open(path))
    record["runtime"]["engine"] = {"name": "docker", "program": os.path.join(run, "work", "code", "evil")}
    json.dump(record, open(path, "w"))

def artifacts():
    os.rename(os.path.join(run, "work", "artifacts"), os.path.join(run, "work", "away"))
    os.symlink("/home/ada/.ssh", os.path.join(run, "work", "artifacts"))

open("evil", "w").write("#!/bin/sh\\ntouch %s/work/code/was-run\\n" % run)
os.chmod("evil", 0o755)
attempt("flood", flood)
for name in ("wish", "plan.json", "prepared.json", "token"):
    attempt(name, lambda: write("control", name))
attempt("beside", lambda: os.mkdir(os.path.join(run, "beside")))
attempt("move", lambda: os.rename(os.path.join(run, "control"), os.path.join(run, "away")))
attempt("engine", engine)
attempt("artifacts", artifacts)
attempt("temporary", lambda: os.symlink(keys, os.path.join(run, "record", "0002", "state.json.1.tmp")))
json.dump(said, open("said", "w"))
while True:
    time.sleep(0.1)
"""


def test_a_hostile_job_in_a_container_controls_nothing(client, box):
    """It writes to its record and its work alone, which is data to us: nothing of the user's is changed or brought home."""
    client.script(HOSTILE)
    box.machine.ssh("sh", "-c", "mkdir -p .ssh; touch .ssh/authorized_keys; echo key > .ssh/id_secret")
    keys = box.machine.ssh("cat", ".ssh/authorized_keys")
    client.variables.update(TOKEN_OF_MINE="value-of-it")
    run = detached(client, "--secret", "TOKEN_OF_MINE")
    path = f".launch/runs/{run}"
    until(
        lambda: box.machine.ssh("cat", f"{path}/work/code/said", check=False).endswith("}"), "the job's words"
    )
    said = json.loads(box.machine.ssh("cat", f"{path}/work/code/said"))
    assert [name for name, word in said.items() if word == "done"] == ["engine", "artifacts", "temporary"]
    assert box.machine.ssh("ls", f"{path}/record/secrets.env")
    assert state(client, run)["state"] == "running"
    client.run("stop", run)
    assert state(client, run)["state"] in ("stopped", "failed")
    assert box.machine.ssh("cat", ".ssh/authorized_keys") == keys
    assert not box.machine.ssh("ls", f"{path}/work/code/was-run", check=False)
    assert not box.machine.ssh("ls", f"{path}/record/secrets.env", check=False)  # erased inside
    client.run("pull", run, "--all")
    assert not list(client.runs.rglob("id_secret"))
    assert box.machine.ssh("cat", f"{path}/control/wish").strip() == "stop"
