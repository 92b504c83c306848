"""Two cards and one script: how many processes train, by a ledger that each of them writes outside the run."""

import json

import pytest

LEDGER = """
import json, os, sys
def note():
    with open(sys.argv[1], "a") as file:
        found = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")}
        file.write(json.dumps(found) + "\\n")
"""
PLAIN = f"{LEDGER}\nnote()\n"
TAKES = f"{LEDGER}\nint(os.environ['WORLD_SIZE'])\nnote()\n"
STARTS = f"""{LEDGER}
def main(index):
    note()
if __name__ == "__main__":
    import torch.multiprocessing as mp
    mp.spawn(main, nprocs=2)
"""


@pytest.fixture
def trained(client, listed_cards):
    """Launch a script with two cards; return what each of its processes noted, and what the launch said."""
    listed_cards(2)

    def launch(script):
        client.script(script)
        words = ("--profile", "titan_rtx", "--gpus", "2", "--")
        done = client.run(*words, "python", "train.py", str(client.home / "ledger"))
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (client.home / "ledger").read_text().splitlines()
        return [json.loads(line) for line in lines], done.stderr

    return launch


def test_a_plain_script_trains_once_and_sees_both_cards(trained):
    """It was started twice, into one folder."""
    (found,), told = trained(PLAIN)
    assert found == {"RANK": None, "WORLD_SIZE": None, "CUDA_VISIBLE_DEVICES": "GPU-card-0,GPU-card-1"}
    assert "! 'python' is started once and sees 2 cards: train.py takes no rank from its environment" in told


@pytest.mark.long
def test_a_script_that_takes_its_rank_is_started_for_each_card(trained):
    """Each process has a card of its own."""
    found, told = trained(TAKES)
    assert sorted(one["RANK"] for one in found) == ["0", "1"]
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in found) == ["GPU-card-0", "GPU-card-1"]
    assert "is started once" not in told


@pytest.mark.long
@pytest.mark.slow(reason="loads torch in each of three processes")
def test_a_script_that_starts_its_processes_is_started_once(trained):
    """Two processes in all, by its own hand, and both cards for each."""
    found, told = trained(STARTS)
    assert [one["RANK"] for one in found] == [None, None]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in found} == {"GPU-card-0,GPU-card-1"}
    assert "it must start 2 processes itself; train.py starts its processes itself" in told
