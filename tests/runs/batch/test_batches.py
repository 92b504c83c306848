"""A batch from its file to its end: each item once, whatever dies, by the items' own ledger."""

import csv
import signal

import pytest
from testbed.batches import names
from testbed.client import until

pytestmark = pytest.mark.slow(reason="each test starts several runs")


def test_items_are_spread_over_hosts_and_each_ends_once(made):
    """Each is on one of its hosts; the list and the exit code say so."""
    file = made.write(made.items(6), host=["A", "B", "local"])
    done = made.client.run("batch", file)
    assert done.returncode == 0, done.stderr + done.stdout
    made.judge(names(6))
    assert all(made.runs_on(host) for host in made.roots)
    rows = made.rows()
    assert {row["state"] for row in rows.values()} == {"succeeded"}
    assert {row["run"]: row["host"] for row in rows.values()} == {
        run: host for host in made.roots for run in made.runs_on(host)
    }
    assert "6 items: 6 succeeded" in done.stderr


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("transition", "count", "hosts"),
    [
        *(pytest.param(n, 1, ["gone", "A"], marks=() if n == 2 else pytest.mark.long) for n in range(1, 6)),
        pytest.param(4, 3, ["A", "local"], marks=pytest.mark.long),
    ],
)
def test_a_worker_that_is_killed_at_any_transition_begins_each_item_once(
    made, transition, count, hosts, when
):
    """One item goes to a host that is silent, back into the queue, to one that answers, and to its end: five transitions.

    Of three items two are on their way; the next command takes over what is there.
    """
    file = made.write(made.items(count, steps=4, pause=0.1), host=hosts)
    made.dying(transition, when)
    process = made.client.start("batch", file)
    process.communicate(timeout=180)
    assert process.returncode == -signal.SIGKILL
    made.living()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr + done.stdout
    made.judge(names(count))


def test_a_detached_batch_goes_on_without_its_command(made):
    """A process of its own runs it; status says which."""
    file = made.write(made.items(2, steps=3, pause=0.1), host="local", max_parallel=1)
    said = made.client.ok("batch", file, "--detach")
    assert "runs sweep" in said
    assert f"process {said.split()[1]} on" in made.client.ok("batch", "status")
    until(lambda: made.noted("end").total() == 2, "the end")
    until(lambda: "runs it" not in made.client.ok("batch", "status"), "its worker's end", every=1)
    made.judge(names(2))


@pytest.mark.long
def test_ctrl_c_leaves_what_runs_and_names_the_command_that_goes_on(made):
    """What is queued waits."""
    file = made.write(made.items(3), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    until(lambda: made.rows()["i1"]["step"], "its first step")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, out + err
    assert "launch batch resume sweep" in err
    assert [row["state"] for row in made.rows().values()] == ["running", "queued", "queued"]
    made.go_on()
    done = made.client.run("batch", "resume")
    assert done.returncode == 0, done.stderr
    made.judge(names(3))


@pytest.mark.long
def test_a_host_that_nobody_reaches_delays_only_its_own_items(made):
    """What can run elsewhere does; the batch gives up on the rest, says so, and can go on later."""
    items = [*made.items(2, host=["gone", "local"]), {**made.items(3)[2], "host": "gone"}]
    file = made.write(items)
    process = made.client.start("batch", file)
    until(lambda: made.noted("end").total() == 2, "the items that can run elsewhere")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=180)
    row = made.rows()["i3"]
    assert (row["state"], row["run"]) == ("queued", None)


@pytest.mark.long
def test_one_failure_stops_nothing(made):
    """The exit code says that some have failed; `--failed` runs them again, and only them."""
    items = made.items(3)
    items[1]["command"] = [*items[1]["command"], "fail"]
    file = made.write(items, host="local", max_parallel=3)
    done = made.client.run("batch", file)
    assert done.returncode == 1
    assert made.noted("end") == {"i1": 1, "i3": 1}
    assert made.rows()["i2"]["state"] == "failed"
    done = made.client.run("batch", "resume")
    assert done.returncode == 1
    assert made.noted("begin").total() == 3
    made.client.run("batch", "resume", "--failed")
    assert made.noted("begin") == {"i1": 1, "i2": 2, "i3": 1}


@pytest.mark.long
def test_an_item_that_every_host_refuses_says_what_each_has_said(made):
    """None of them has such a card; the line of a table has both reasons."""
    file = made.write(made.items(1), host=["A", "local"], profile="l40s")
    assert made.client.run("batch", file).returncode == 3
    first = made.rows()["i1"]["why"].splitlines()[0]
    assert "A has no GPU" in first
    assert "local has no GPU" in first
    assert not made.noted("begin")


def test_stop_ends_what_is_queued_then_the_runs(made):
    """Its worker ends too, before the command does; nothing is begun afterwards, until a person asks for that."""
    file = made.write(made.items(3), host="local", max_parallel=1)
    made.hold()
    process = made.client.start("batch", file)
    until(lambda: made.noted("begin").total() == 1, "the first item")
    done = made.client.run("batch", "stop", "--yes")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "launch batch resume sweep --failed" in done.stdout
    said = made.client.ok("batch", "status")
    assert ("1 stopped, 2 dropped" in said, "runs it" in said) == (True, False)
    process.communicate(timeout=180)
    assert made.noted("begin") == {"i1": 1}
    assert made.noted("end") == {}
    assert [row["state"] for row in made.rows().values()] == ["stopped", "dropped", "dropped"]
    assert [*made.runs_on("local").values()] == ["stopped"]
    made.go_on()
    done = made.client.run("batch", "resume", "--failed")
    assert done.returncode == 0, done.stderr
    assert made.noted("end") == {"i1": 1, "i2": 1, "i3": 1}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({}, 0, marks=pytest.mark.long),
        pytest.param({"fail": True}, 1, marks=pytest.mark.long),
        ({"precision": "fp16", "profile": "cpu"}, 3),
        pytest.param({"host": "gone"}, 4, marks=pytest.mark.long),
    ],
    ids=["succeeds", "fails", "refused", "unreachable"],
)
def test_a_batch_of_one_has_the_exit_code_of_launch(made, change, code):
    """As `launch` has it for the same."""
    (item,) = made.items(1)
    if change.pop("fail", False):
        item["command"] = [*item["command"], "fail"]
    keys = {"host": "local", "profile": "cpu", **change}
    file = made.write([item], **keys)
    words = [
        "--host",
        keys["host"],
        "--profile",
        keys["profile"],
        *(["--precision", keys["precision"]] if "precision" in keys else []),
    ]
    alone = made.client.run(*words, "--", *item["command"])
    assert alone.returncode == code, alone.stderr
    assert made.client.run("batch", file).returncode == code


@pytest.mark.long
def test_a_batch_ends_with_a_table_a_picture_and_its_best_run(made):
    """Of the items' own numbers; only the files of the best come home."""
    items = made.items(3, steps=4)
    items[1]["command"] = [*items[1]["command"], "fail"]
    items[2]["command"][2] = "longest-name"  # the loss of an item grows with its name
    file = made.write(items, host="local", best="loss:max", artifacts="best")
    done = made.client.run("batch", file)
    assert done.returncode == 1
    with (made.client.runs / "batches" / "sweep" / "results.csv").open(newline="") as table:
        rows = {row["item"]: row for row in csv.DictReader(table)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "i1": "succeeded",
        "i2": "failed",
        "i3": "succeeded",
    }
    last, first = round(1 / 4 + 2, 4), round(1 / 1 + 2, 4)
    assert [float(rows["i1"][key]) for key in ("loss final", "loss best")] == [last, first]
    assert rows["i2"]["loss final"] == ""
    assert float(rows["i1"]["seconds"]) > 0
    assert rows["i1"]["run"] in made.runs_on("local")
    assert "best     i3" in done.stderr
    assert (made.client.runs / "batches" / "sweep" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert [path.read_text() for path in made.client.runs.glob("[0-9]*/outputs/out/result")] == [
        "longest-name"
    ]
