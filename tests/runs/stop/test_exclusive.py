"""Several ranks on cards in exclusive mode: the race of the field report fails by itself, and passes through us."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from testbed.cards import FOUR_T4
from testbed.client import is_gone, until

pytestmark = pytest.mark.training

# It touches "cuda:0" first, as many do before they choose a card of their own: a barrier, a load without map_location.
RACE = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import context
first = context.open_context(0)
own = context.open_context(int(os.environ.get("LOCAL_RANK", "0")))
with open(os.path.join(sys.argv[2], "rank" + os.environ["RANK"]), "w") as file:
    json.dump({"cards": sorted({first, own}), "visible": os.environ.get("CUDA_VISIBLE_DEVICES")}, file)
if os.environ["RANK"] == "1" and len(sys.argv) > 3 and not os.path.exists(sys.argv[3]):
    open(sys.argv[3], "w").close()
    raise KeyError("a mistake of rank 1")
world = int(os.environ["WORLD_SIZE"])
while len([name for name in os.listdir(sys.argv[2]) if name.startswith("rank")]) < world:
    time.sleep(0.02)  # all of them hold their cards at the same time
time.sleep(0.2)
"""
STEPS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import context
import launcher_worker as worker
context.open_context()
rank = int(os.environ["RANK"])
def done(step, rank):
    return os.path.join(sys.argv[2], "%d-%d" % (rank, step))
for step in range(int(sys.argv[3])):
    with open(done(step, rank), "w") as file:
        file.write(str(os.getpid()))
    while not all(os.path.exists(done(step, other)) for other in range(4)):
        time.sleep(0.01)
    worker.log(step, loss=1.0)
worker.done(int(sys.argv[3]))
"""

STAYS = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
import context
context.open_context()
with open(os.path.join(sys.argv[2], os.environ["RANK"]), "w") as file:
    file.write(str(os.getpid()))
if len(sys.argv) > 3:
    threading.Thread(target=time.sleep, args=(100000,)).start()
"""


@pytest.fixture
def exclusive(cards):
    """Four T4 in exclusive mode."""
    cards.put(*[("t4", {"compute_mode": "Exclusive_Process"})] * 4)
    return cards


@pytest.fixture
def project(client, exclusive):
    """A client with the script, and a profile of four cards."""
    client.script(RACE)
    (client.project / "profiles").mkdir()
    (client.project / "profiles" / "t4x4.toml").write_text(FOUR_T4)
    (client.home / "ranks").mkdir()
    return client


def told(client):
    """What each rank wrote of the cards that it held."""
    return [json.loads(path.read_text()) for path in sorted((client.home / "ranks").iterdir())]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_race_for_the_first_card_fails_by_itself(project, exclusive, ranks):
    """Plain torchrun: each rank sees all cards, and one process alone gets the first."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "train.py"]
    done = subprocess.run(
        [sys.executable, *words, exclusive.folder, project.home / "ranks"],
        cwd=project.project,
        env=exclusive.env(*range(ranks), PATH=os.environ["PATH"]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "busy or unavailable" in done.stderr


@pytest.mark.long
def test_through_us_each_of_four_ranks_sees_its_own_card_and_none_races(project, exclusive):
    """As of two."""
    words = ("--profile", "t4x4", "--", "python", "train.py")
    project.ok(*words, str(exclusive.folder), str(project.home / "ranks"))
    each_has_a_card(project, 4)


def each_has_a_card(project, ranks):
    """Number 0 is another card for each rank, and that card is all that it held."""
    found = told(project)
    assert len(found) == ranks
    held = [uuid for one in found for uuid in one["cards"]]
    assert len(held) == len(set(held)) == ranks
    assert [one["visible"] for one in found] == [one["cards"][0] for one in found]


@pytest.mark.long
def test_a_torchrun_of_one_s_own_gets_a_card_for_each_rank_too(project, exclusive):
    """As many cards as are asked for, by a profile of one; more processes than cards are refused at once."""
    words = ("--profile", "t4", "--gpus", "2", "--")
    script = ("train.py", str(exclusive.folder), str(project.home / "ranks"))
    project.ok(*words, "torchrun", "--nproc-per-node", "2", *script)
    held = [uuid for one in told(project) for uuid in one["cards"]]
    assert len(held) == len(set(held)) == 2
    done = project.run(*words, "torchrun", "--nproc-per-node=4", *script)
    assert done.returncode == 3
    assert (
        "'torchrun' would start 4 processes on 2 cards, and GPU 0 of local accepts one process at a time"
        in done.stderr
    )


def test_through_us_each_rank_sees_its_own_card_and_one_that_fails_frees_all(project, exclusive):
    """The same script, on the same cards, by the plan.

    The run is told by the rank's own mistake, which ends the others, and the next launch finds every card free.
    """
    ranks, mark = str(project.home / "ranks"), str(project.home / "mark")
    words = ("--profile", "t4x2", "--", "python", "train.py")
    done = project.run(*words, str(exclusive.folder), ranks, mark)
    assert done.returncode == 1
    assert "user-code-error" in done.stderr
    assert "a mistake of rank 1" in done.stdout
    until(lambda: not holders(exclusive), "all cards to be free")
    project.ok(*words, str(exclusive.folder), ranks, mark)
    each_has_a_card(project, 2)


@pytest.mark.long
def test_of_torchrun_s_four_ranks_one_hangs_and_all_cards_are_free_again(project, exclusive):
    """The other three wait for it, as in a collective; the silence is found, and the next launch has the four cards."""
    project.script(STEPS)
    ranks = project.home / "ranks"
    words = ("--profile", "t4x4", "--set", f"hang_minutes={2 / 60}")
    train = ("--", "python", "train.py", str(exclusive.folder), str(ranks))
    run = project.detached(*words, *train, "1000000")
    until(lambda: len(list(ranks.glob("*-3"))) == 4, "some steps of all")
    pids = [int((ranks / f"{rank}-3").read_text()) for rank in range(4)]
    assert sorted(holders(exclusive)) == sorted(pids)
    os.kill(pids[2], signal.SIGSTOP)
    until(lambda: project.summary(run)["state"] == "failed", "the end")
    assert project.summary(run)["reason"] == "hang"
    assert all(is_gone(pid) for pid in pids)
    assert holders(exclusive) == []
    shutil.rmtree(ranks)
    ranks.mkdir()
    project.ok(*words, *train, "0")


@pytest.mark.long
def test_ranks_that_have_ended_and_stay_give_their_cards_back(project, exclusive):
    """A thread keeps each on its card, and torchrun waits for them; they leave with their own exit status, and torchrun too."""
    project.script(STAYS)
    ranks = project.home / "ranks"
    words = ("--profile", "t4x2", "--set", f"hang_minutes={2 / 60}")
    train = ("--", "python", "train.py", str(exclusive.folder), str(ranks))
    done = project.run(*words, *train, "stay")
    pids = [int((ranks / str(rank)).read_text()) for rank in range(2)]
    assert done.returncode == 0, done.stderr
    assert "its process stayed" in done.stderr
    assert "its process stayed" in project.ok("ps")
    assert all(is_gone(pid) for pid in pids)
    assert holders(exclusive) == []
    project.ok(*words, *train)


def holders(cards):
    """The pids of all that hold a card."""
    words = [cards.folder / "nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(words, text=True).split()]
