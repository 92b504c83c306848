"""Plans for a real cluster: what its login node is asked, what is refused before anything is sent, and what sbatch says to the same."""

import json
import shlex

import pytest
from testbed.kept import CLEAR_ROOT

pytestmark = pytest.mark.testbed

ONE_CHECKPOINT = """
import launcher_worker as worker
worker.resume_from()
worker.save(1, lambda folder: open(folder + "/step", "w").close())
raise SystemExit(3)
"""


@pytest.fixture
def hive(client, slurm):
    """The cluster as a host of the client, by its second login node."""
    client.script(slurm.logins[1].table("hive", kind="slurm"), "launch.toml")
    slurm.ssh("sh", "-c", CLEAR_ROOT)
    client.script("from accelerate import Accelerator\nAccelerator()\n")
    return slurm


def previewed(client, *words):
    """The plan of a job, and the findings by their codes."""
    shown = json.loads(client.planned("--host", "hive", "--json", *words, "--", "python3", "train.py"))
    return shown["plan"], {one["code"]: one for one in shown["findings"]}


def test_a_probe_shows_the_cluster_and_touches_no_node(client, hive):
    """What it says is what Slurm's own programs say."""
    held = hive.submit("true", "--hold")
    jobs = hive.controller.enter("squeue", "--noheader", "--format=%i %T").split()
    told = json.loads(client.ok("probe", "--host", "hive", "--json"))
    cluster = told["slurm"]
    assert (cluster["name"], cluster["error"], cluster["has_accounting"]) == ("testbed", None, False)
    assert cluster["version"] in hive.ssh("sinfo", "--version")
    names = hive.ssh("sinfo", "--noheader", "--format=%R").split()
    assert {one["name"] for one in cluster["partitions"]} == set(names)
    batch = next(one for one in cluster["partitions"] if one["is_default"])
    assert (batch["name"], batch["max_time_s"], batch["nodes"][0]["count"]) == ("batch", 7 * 86400, 2)
    assert batch["nodes"][0]["gres"] == [{"name": "gpu", "type": "a100", "count": 2}]
    assert (cluster["queued"], cluster["running"]) == (1, 0)
    assert (told["profile"], told["hostname"]) == ("a100_40gb", "login2")
    assert [gpu["name"] for gpu in told["gpus"]] == ["NVIDIA A100-PCIE-40GB"]
    shown = client.ok("probe", "--host", "hive")
    assert "testbed (Slurm " in shown
    assert "batch   7 days at most, default" in shown
    assert "2 with 4 CPUs, gpu:a100:2, 4 GiB, features a100: 2 idle" in shown
    assert (
        hive.controller.enter("squeue", "--noheader", "--format=%i %T").split() == jobs == [held, "PENDING"]
    )


def test_hosts_has_a_row_for_a_cluster(client, hive):
    row = next(one for one in json.loads(client.ok("hosts", "--json"))["hosts"] if one["host"] == "hive")
    assert (row["profile"], row["problem"]) == ("a100_40gb", None)
    assert "cluster testbed (Slurm 22.05.8), 2 of 2 nodes idle in batch, also spare, short" in row["quota"]
    shown = client.ok("hosts")
    assert "2 of 2 nodes idle in batch" in shown
    header, line = (
        next(one for one in shown.splitlines() if one.startswith(word)) for word in ("HOST", "hive")
    )
    assert line[header.index("MEMORY") :].split()[0] == "-"  # that of the login node says nothing of a job's


@pytest.mark.long
def test_a_login_node_that_counts_as_a_machine_is_noted(client, hive):
    """By what lies on it alone; within a job, on a compute node and through a table that says it, there is nothing to note."""
    table = hive.logins[0].table("login")
    client.script(f"{table}{hive.logins[1].table('hive', kind='slurm')}", "launch.toml")
    words = ("--dry-run", "--json", "--profile", "cpu", "--", "python3", "train.py")
    for host, is_noted in (("login", True), ("hive", False)):
        found = {one["code"]: one for one in json.loads(client.ok("--host", host, *words))["findings"]}
        assert ("slurm-login-node" in found) == is_noted
        assert ("a login node of a cluster" in client.ok("probe", "--host", host)) == is_noted
        if is_noted:
            assert found["slurm-login-node"]["level"] == "note"
            assert found["slurm-login-node"]["mend"].endswith('kind = "slurm"   in [hosts.login]')
    assert 'a login node of a Slurm cluster, without kind = "slurm"' in client.ok("hosts")
    assert "the login node's" in client.ok("probe", "--host", "hive")
    own = client.home / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    (client.project / "launch.toml").rename(own)
    done = client.run("init", "--host", "login", "--no-smoke")
    assert "jobs of the cluster, which begin on its nodes" in done.stderr


def test_a_dry_run_shows_what_sbatch_would_be_given(client, hive):
    """Slurm itself accepts it, word by word."""
    plan, findings = previewed(client, "--set", "slurm.time=90", "--set", 'slurm.extra=["--mem=1G"]')
    assert plan["slurm"]["flags"] == ["--time=90", "--nodes=1", "--gres=gpu:a100:1", "--mem=1G"]
    assert (plan["runtime"], plan["allocation"]["how"]) == ("slurm", "scheduled")
    assert [cards["title"] for cards in plan["slurm"]["cards"]] == ["A100 40 GB", "A100 80 GB"]
    assert findings["cannot-go-on"]["mend"] == "if it resumes from its own file   --set restart=true"
    assert not [one for one in findings.values() if one["level"] == "refuse"]
    shown = client.ok("--host", "hive", "--dry-run", "--set", "slurm.time=90", "--", "python3", "train.py")
    (line,) = [line for line in shown.splitlines() if "sbatch" in line]
    words = shlex.split(line.partition("sbatch")[2])
    said = hive.ssh("sh", "-c", f"sbatch --test-only {shlex.join(words)} --wrap=true 2>&1")
    assert "to start at" in said
    assert hive.ssh("squeue", "--noheader") == ""


@pytest.mark.parametrize(
    ("minutes", "grace_s", "is_noted"),
    [(1, 30, True), (30, 30, False), pytest.param(10, 600, True, marks=pytest.mark.long)],
)
def test_a_time_that_leaves_little_to_train_in_is_noted(client, hive, minutes, grace_s, is_noted):
    """Slurm may say that the time is nearly up a minute before it was asked to."""
    client.script("import launcher_worker as worker\nworker.resume_from()\n")
    asked = ("--set", f"slurm.time={minutes}", "--set", f"stop_grace_s={grace_s}")
    _, findings = previewed(client, *asked)
    assert ("short-time" in findings) == is_noted
    assert "cannot-go-on" not in findings


@pytest.mark.long
def test_explain_shows_it_too(client, hive):
    shown = client.ok("explain", "--host", "hive", "--set", "slurm.partition=short")
    assert "sbatch --partition=short --nodes=1 --gres=gpu:a100:1" in shown
    told = json.loads(client.ok("explain", "--host", "hive", "--json"))
    assert told["slurm"]["flags"] == ["--nodes=1", "--gres=gpu:a100:1"]


def test_a_rehearsal_asks_for_no_card(client, hive):
    """Its CPU is a node's too."""
    plan, findings = previewed(client, "--rehearse", "--profile", "l40s", "--adapt")
    assert (plan["rehearsed"], plan["slurm"]["flags"], plan["slurm"]["cards"]) == (True, ["--nodes=1"], [])
    assert (plan["allocation"]["how"], plan["allocation"]["cards"]) == ("scheduled", 0)
    assert not [one for one in findings.values() if one["level"] == "refuse"]


def test_two_nodes_share_the_batch(client, hive):
    plan, findings = previewed(client, "--gpus", "2", "--set", "slurm.nodes=2", "--profile", "a100_80gb")
    assert plan["nodes"] == [{"ranks": 2}, {"ranks": 2}]
    assert plan["slurm"]["flags"] == ["--nodes=2", "--gres=gpu:a100:2"]
    assert not [one for one in findings.values() if one["level"] == "refuse"]
    words = ("--gpus", "2", "--set", "slurm.nodes=2", "--profile", "a100_80gb", "--", "python3", "train.py")
    shown = client.ok("--host", "hive", "--dry-run", *words)
    assert shown.startswith("train on 2 nodes of hive · 2 x A100 80 GB on each · ")


def test_a_script_that_is_one_process_is_not_sent_to_two_nodes(client, hive):
    """Each of them would train all of it, into one folder."""
    client.script("print('hello')\n")
    words = ("--host", "hive", "--profile", "cpu", "--set", "slurm.nodes=2", "--", "python", "train.py")
    done = client.run(*words)
    assert done.returncode == 3
    assert "each of the 2 nodes would train all of it, into one folder" in done.stderr
    assert "--set slurm.nodes=1" in done.stderr
    assert hive.ssh("squeue", "--me", "--noheader") == ""


@pytest.mark.parametrize(
    ("words", "code", "accepts"),
    [
        (["slurm.partition=none"], "no-partition", False),
        pytest.param(["slurm.gres=a100:2"], "no-such-gres", False, marks=pytest.mark.long),
        pytest.param(["slurm.constraint=h100"], "no-such-feature", False, marks=pytest.mark.long),
        pytest.param(
            ["slurm.partition=short", "slurm.time=60"], "time-over-limit", True, marks=pytest.mark.long
        ),
        pytest.param(["slurm.time=99-0"], "time-over-limit", True, marks=pytest.mark.long),
        (['slurm.extra=["--cpus-per-task=64"]'], "nodes-too-small", True),
        pytest.param(['slurm.extra=["--mem=64G"]'], "nodes-too-small", False, marks=pytest.mark.long),
    ],
)
def test_what_could_never_start_is_refused_before_anything_is_sent(client, hive, words, code, accepts):
    """Slurm refuses the same, or takes it and lets it wait for ever, for a reason that names the limit."""
    settings = [word for one in words for word in ("--set", one)]
    plan, findings = previewed(client, *settings)
    assert findings[code]["level"] == "refuse"
    done = client.run("--host", "hive", *settings, "--", "python3", "train.py")
    assert done.returncode == 3
    assert findings[code]["message"] in done.stderr
    assert hive.ssh("ls", ".launch/runs", check=False) == ""
    assert hive.ssh("squeue", "--noheader") == ""
    flags = shlex.join(plan["slurm"]["flags"])
    said = hive.ssh("sh", "-c", f"sbatch --parsable {flags} --wrap=true 2>&1", check=False).strip()
    assert said.isdigit() == accepts
    if accepts:
        reason = hive.until_state(said, "PENDING")["Reason"]
        assert reason in ("PartitionTimeLimit", "PartitionConfig", "PartitionNodeLimit")


@pytest.mark.parametrize(
    ("key", "said", "mend"),
    [
        ("nodes=3", "hive: nodes = 3, and partition batch has 2", "--set slurm.nodes=2"),
        pytest.param(
            "gres=gpu:a100:3",
            "hive: partition batch has no node with gpu:a100:3",
            "gpu:a100:2 (2 nodes)",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "gres=gpu:k80:1",
            "hive: partition batch has no node with gpu:k80:1",
            "gpu:a100:2 (2 nodes)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_clusters_limit_is_said_before_the_batch_that_does_not_divide(client, hive, key, said, mend):
    """The batch of 8 does not divide among 3 cards, but another one would not help."""
    for words in ((), ("--dry-run",)):
        done = client.run("--host", "hive", "--set", f"slurm.{key}", *words, "--", "python3", "train.py")
        assert done.returncode == 3
        assert said in done.stderr
        assert mend in done.stderr
        assert "does not divide" not in done.stderr


def test_a_root_that_no_node_sees_is_refused(client, hive):
    """Each machine of the cluster has a /tmp of its own."""
    client.script(hive.logins[1].table("hive", kind="slurm", root="/tmp/ada-launch"), "launch.toml")
    done = client.run("--host", "hive", "--", "python3", "train.py")
    assert done.returncode == 3
    assert "compute nodes cannot read files there" in done.stderr


def test_a_python_without_torch_is_noted_before_the_job_waits(client, hive):
    """It is the login node's, which has no packages. A folder of packages for the script changes nothing."""
    client.script("import torch\n")
    _, findings = previewed(client)
    assert "lacks torch, which train.py imports" in findings["import-missing"]["message"]
    client.script("print('hello')\n")
    assert "import-missing" not in previewed(client)[1]


def test_a_job_that_names_slurms_keys_runs_on_a_cluster_alone(client, hive):
    """By its file or by --set."""
    client.script('name = "a"\ncommand = ["true"]\n[slurm]\ntime = "60"\n', "a.toml")
    assert "--time=60" in client.ok("--host", "hive", "--job", "a.toml", "--dry-run")
    for words, where in (
        (("--job", "a.toml"), "a.toml: [slurm]"),
        (("--set", "slurm.time=9", "--", "true"), "--set slurm.time"),
    ):
        done = client.run("--host", "local", "--dry-run", *words)
        assert done.returncode == 2
        assert f"{where}: local is not a Slurm cluster" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--gpus", "GPU-0000", "--dry-run"], "Slurm chooses the cards of a job"),
        pytest.param(["--runtime", "native"], "expected auto or slurm", marks=pytest.mark.long),
        pytest.param(
            ["--allow-substitute"],
            "a plan for each card that may be assigned is made automatically",
            marks=pytest.mark.long,
        ),
        (["--set", "image=lab/torch:1", "--dry-run"], "--set slurm.image=docker://lab/torch:1"),
        (["--profile", "l40s", "--dry-run"], "gives gpu:a100, and the plan is for L40S"),
    ],
)
def test_what_a_cluster_does_not_offer_is_said(client, hive, words, why):
    done = client.run("--host", "hive", *words, "--", "python3", "train.py")
    assert why in done.stdout + done.stderr


@pytest.mark.long
def test_a_controller_that_is_gone_is_named_with_what_was_asked(client, hive):
    """Of every verb that plans; nothing is left on the login node."""
    with hive.no_controller():
        for words in (("probe", "--host", "hive"), ("--host", "hive", "--", "python3", "train.py")):
            done = client.run(*words)
            assert done.returncode == 4
            assert "hive: login2 has no answer of Slurm's: scontrol show config" in done.stderr
            assert "scontrol ping" in done.stderr
        assert "has no answer of Slurm's" in client.ok("hosts")
        shown = client.ok("explain", "--host", "hive", "--profile", "a100_80gb")
        assert "sbatch --nodes=1 --gres=gpu:1" in shown  # the name of its cards is not known


def test_a_controller_that_is_stuck_is_given_up_in_time(client, hive):
    """It takes connections and answers none, as one does that is out of memory."""
    with hive.silent_controller():
        done = client.run("probe", "--host", "hive")
    assert done.returncode == 4
    assert "scontrol show config did not answer within 8 s" in done.stderr


@pytest.mark.long
def test_init_writes_a_projects_file_for_a_cluster(client, hive):
    """Its table is the user's own; the card is the partition's."""
    own = client.home / ".config" / "launch" / "hosts.toml"
    own.parent.mkdir(parents=True)
    (client.project / "launch.toml").rename(own)
    done = client.run("init", "--host", "hive", "--yes")
    assert done.returncode == 0, done.stderr
    assert "hello from node" in done.stdout + done.stderr
    assert "a100_40gb" in done.stderr
    assert "the Python found there" in done.stderr
    assert (client.project / "launch.toml").read_text() == 'host = "hive"\n'


def test_what_slurm_refuses_is_shown_in_its_words_and_leaves_no_run(client, hive):
    """Of what the gate cannot know: exit code 3, nothing on the login node, nothing here."""
    words = (
        "--host",
        "hive",
        "--profile",
        "cpu",
        "--set",
        "slurm.reservation=none",
        "--",
        "python3",
        "train.py",
    )
    done = client.run(*words)
    assert done.returncode == 3
    assert "Requested reservation is invalid" in done.stderr
    assert "launch probe --host hive" in done.stderr
    assert hive.ssh("ls", ".launch/runs", check=False) == ""
    assert not [*client.runs.glob("2*")]
    assert hive.ssh("squeue", "--noheader") == ""


@pytest.mark.long
def test_a_run_that_is_resumed_asks_for_what_its_parent_did(client, hive):
    """With the keys that are changed; those that its batch hangs on stay."""
    words = ("--set", "slurm.time=30", "--set", "slurm.modules=[]", "--name", "a")
    client.script(ONE_CHECKPOINT)
    done = client.run("--host", "hive", "--profile", "cpu", *words, "--", "python3", "train.py")
    assert done.returncode == 1, done.stderr
    for key in ("nodes=2", "gres=gpu:1", "build=job"):
        done = client.run("resume", "last", "--set", f"slurm.{key}")
        assert done.returncode == 2
        assert "a resumed run keeps" in done.stderr
    (parent,) = client.runs.glob("2*")
    done = client.run("resume", "last", "--set", "slurm.time=60")
    assert done.returncode == 1, done.stderr
    (child,) = {*client.runs.glob("2*")} - {parent}
    plan = json.loads((child / "plan.json").read_text())
    assert plan["slurm"]["flags"] == ["--time=60", "--nodes=1"], done.stderr


def test_the_doctor_shows_the_login_node_and_what_the_table_s_settings_lack(client, hive):
    """A partition that the cluster lacks is named, with the next step."""
    table = hive.logins[1].table
    client.script(
        table("hive", kind="slurm") + table("typo", kind="slurm", partition="nowhere"), "launch.toml"
    )
    hosts = json.loads(client.run("doctor", "--json").stdout)["hosts"]
    rows = {one["host"]: {row["name"]: row for row in one["rows"]} for one in hosts}
    assert [*rows["hive"]] == ["connection", "python", "environment", "disk", "slurm"]
    assert {row["state"] for row in rows["hive"].values()} == {"ok"}
    assert (rows["typo"]["slurm"]["state"], rows["typo"]["disk"]["state"]) == ("lacking", "ok")
    assert "nowhere" in rows["typo"]["slurm"]["found"]
    assert rows["typo"]["slurm"]["next"]
