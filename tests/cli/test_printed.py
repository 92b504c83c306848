"""What a training prints, as a person reads it: whole lines, a bar's last state, a burst thinned, a silence noticed."""

import json

import pytest

from launcher.cli.follow import idle_notice
from launcher.cli.follow.log_view import JsonLogView, LogView
from launcher.cli.follow.plain_view import PlainView
from launcher.cli.output import line_throttle
from launcher.cli.text.log_text import readable
from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import Printed, PrintedLines
from launcher.copy.record_sync import News
from launcher.copy.run_files import RunFiles
from launcher.runs.follow.following import finish
from launcher.runs.follow.view import Result
from launcher.values.record import Event, PlanSummary, RunState

RUN = "261122-train-abcdef"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("epoch 1: loss 2.31\nepoch 2", "epoch 1: loss 2.31\nepoch 2"),
        ("\x1b[32mgreen\x1b[0m\ttab", "green\ttab"),
        ("of Windows\r\nas well\r", "of Windows\nas well"),
        ("\r  0%|   | 0/9\r100%|###| 9/9 [00:01]", "100%|###| 9/9 [00:01]"),
        ("\r 33%|#  | 3/9\r          \r{'loss': 1.5}", "{'loss': 1.5}"),
        ("a\r\r", "a"),
        ("\r \r", ""),
        ("\r50%\n\r 10%|#\x1b[A\r60%\n\r 20%|##\x1b[A\nend", " 20%|##\nend"),
        ("größe 日本\u3000語\u202e", "größe 日本 語"),
        ("\x1b]0;title\x07\x9b2Jtext\x00", "text"),
        ("", ""),
    ],
)
def test_a_line_is_what_a_terminal_shows_of_it_in_the_end(printed, shown):
    """Without escapes, and of text that a return overwrites the last; a bar below a bar is one line with it."""
    assert readable(printed) == shown


def test_a_log_in_any_pieces_gives_the_same_whole_lines(tmp_path):
    """Cut anywhere, also within a character; the unfinished end comes when nothing follows."""
    data = "one\ntwö €\r3\n\nfour".encode()
    for cut in range(len(data)):
        for other in range(cut, len(data)):
            lines = PrintedLines(RunFiles(tmp_path))
            found = []
            for piece in (data[:cut], data[cut:other], data[other:]):
                found += lines.take("0002/log.txt", piece)
            assert lines.unfinished == "four"
            found += lines.finish()
            assert "\n".join(printed.text for printed in found) == "one\ntwö €\r3\n\nfour"
            assert lines.finish() == []


def test_the_unfinished_line_of_an_attempt_comes_before_the_next_attempt(tmp_path):
    """Each with its attempt's number, which is not its folder's."""
    for number, attempt in (("0002", 1), ("0003", 2)):
        (tmp_path / number).mkdir()
        (tmp_path / number / "attempt.json").write_text(json.dumps({"attempt": attempt}))
    lines = PrintedLines(RunFiles(tmp_path))
    assert lines.take("0002/log.txt", b"killed he") == []
    assert lines.take("0003/log.txt", b"again\n") == [Printed(1, "", "killed he"), Printed(2, "", "again")]
    assert lines.take("0003/b/log.txt", b"of node b\n") == [Printed(2, "b", "of node b")]


def test_a_bar_of_many_megabytes_takes_little_memory(tmp_path):
    """It is one line for hours: its last state is known, its first ones are not kept."""
    lines = PrintedLines(RunFiles(tmp_path))
    for number in range(2000):
        lines.take("0002/log.txt", b"\r%6d/2000 " % number + b"#" * 1000)
    assert len(lines.unfinished) <= 64 * 1024
    assert readable(lines.unfinished).startswith("  1999/2000")


def test_a_long_line_comes_whole_in_pieces(tmp_path):
    """Megabytes of JSON in one line, cut anywhere within its characters: nothing is left out."""
    data = ("{" + "€x" * 700_000 + "}").encode()
    lines = PrintedLines(RunFiles(tmp_path))
    found = []
    for start in range(0, len(data), 99_991):
        found += lines.take("0002/log.txt", data[start : start + 99_991])
    found += lines.take("0002/log.txt", b"\nnext\n")
    assert (
        "".join(one.text if one.continues else f"{one.text}\n" for one in found) == data.decode() + "\nnext\n"
    )
    assert max(len(one.text) for one in found) < 200_000


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def monotonic(self):
        """Return the time."""
        return self.now

    time = monotonic


def test_a_burst_is_thinned_and_nothing_is_lost_from_the_count(monkeypatch):
    """In each second some lines; then how many were left out, and the last of them."""
    clock = Clock()
    monkeypatch.setattr(line_throttle, "time", clock)
    thinned = line_throttle.LineThrottle()
    shown, left_out = [], 0
    for burst in range(50):
        clock.now += 0.1
        shown += thinned.take([f"{burst}.{number}" for number in range(100)], "launch logs x")
    clock.now += 2
    shown += thinned.take([], "launch logs x")
    counts = [line for line in shown if line.endswith(" more lines   launch logs x shows all")]
    left_out = sum(int(line.split()[1].replace(",", "")) for line in counts)
    lines = [line for line in shown if line not in counts]
    assert left_out + len(lines) == 5000
    assert len(lines) < 6 * (line_throttle.MAX_LINES + line_throttle.LAST_LINES)
    assert lines[0] == "0.0"
    assert lines[-1] == "49.99"
    assert lines == sorted(lines, key=lambda line: [int(part) for part in line.split(".")])


def test_few_lines_are_all_shown_at_once(monkeypatch):
    """And after a pause as many again."""
    clock = Clock()
    monkeypatch.setattr(line_throttle, "time", clock)
    thinned = line_throttle.LineThrottle()
    for _ in range(3):
        clock.now += 1.5
        lines = [str(number) for number in range(line_throttle.MAX_LINES)]
        assert thinned.take(lines, "") == lines
        assert thinned.pending("") == []


def news(*printed, events=(), unfinished=""):
    """Return an answer with lines of attempt 1."""
    log = [Printed(1, "", text) for text in printed]
    return News(RunState(state="running"), list(events), log, is_all=True, unfinished=unfinished)


def test_in_a_pipe_a_silence_is_noted_after_10_s_and_ever_more_rarely(monkeypatch, capsys):
    """With the elapsed time and the last line, on standard error; a new line begins it again."""
    clock = Clock()
    monkeypatch.setattr(idle_notice, "time", clock)
    view = PlainView()
    view.begin(RUN, PlanSummary(), [])
    view.news(news("loading the model"))
    figures = {"cpu_percent": 97.6, "gpu0.use_percent": 96, "memory_gb": 3.1, "gpu0.power_w": "none"}
    host = Event(version=1, kind="host", attempt=1, time=1.0, values=figures)
    for _ in range(30):
        clock.now += 5
        view.news(news(unfinished="\r40%\r41%", events=[host]))
    said = capsys.readouterr()
    assert said.out == "loading the model\n"
    notes = said.err.splitlines()
    assert len(notes) == 4
    assert notes[0] == "  · 0:15   nothing new for 0:10   CPU 98 %   card 96 %   last: 41%"
    clock.now += 5
    view.news(news("loaded"))
    clock.now += 5
    view.news(news())
    assert capsys.readouterr().err == ""


def test_a_session_that_ends_is_no_stop_by_anybody(capsys):
    """Its training is asked to save, once for each session; a person's stop reads as one."""
    view = PlainView()
    view.begin(RUN, PlanSummary(), [])
    told = [
        ("stopping", "session-limit"),
        ("stopping", "session-limit"),
        ("running", None),
        ("stopping", None),
    ]
    for state, reason in told:
        view.news(News(RunState(state=state, reason=reason, attempt=1), [], [], is_all=True))
    said = capsys.readouterr().err
    assert said.count("its session ends: it is asked to save") == 1
    assert said.count("stopping") == 1


def metric(source=None):
    """Return a metric event of step 1."""
    return Event(version=1, kind="metric", attempt=1, step=1, time=1.0, values={"loss": 2.5}, source=source)


@pytest.mark.parametrize("source", ["log", "hook", None])
def test_a_metric_that_the_training_prints_itself_is_not_shown_twice(source, capsys):
    """Its line is on standard output already; what is only reported has a line on standard error."""
    view = PlainView()
    view.begin(RUN, PlanSummary(), [])
    view.news(news("loss 2.5", events=[metric(source)]))
    said = capsys.readouterr()
    assert said.out == "loss 2.5\n"
    assert ("loss 2.5" in said.err) is (source is None)
    assert view.progress.step == 1


@pytest.mark.parametrize("kind", [LogView, JsonLogView])
@pytest.mark.parametrize("source", ["log", "hook", None])
@pytest.mark.parametrize("prints", [True, False])
def test_a_log_without_its_steps_says_once_where_they_are(tmp_path, capsys, kind, source, prints):
    """On standard error, where a worker reports what nothing prints; whoever reads records is not told."""
    local_copy = LocalCopy(RUN, tmp_path)
    (local_copy.folder / "0001").mkdir(parents=True)
    log = local_copy.folder / "0001" / "log.txt"
    log.write_text("loading\n")
    view = kind(local_copy)
    view.show()
    for step in range(9):
        log.write_text(log.read_text() + f"step {step}\n" * prints)
        view.news(news(events=[metric(source)]))
    said = capsys.readouterr()
    assert said.out.count("step") == 9 * prints
    is_told = kind is LogView and source is None and not prints
    assert said.err.count("launch attach abcdef · launch metrics abcdef") == is_told


def test_a_quiet_view_shows_the_last_lines_of_a_failure_only(capsys):
    """Nothing of the script while it runs."""
    view = PlainView(is_quiet=True)
    view.begin(RUN, PlanSummary(), [])
    view.news(news("\n".join(f"line {number}" for number in range(100)), events=[metric()]))
    assert capsys.readouterr() == ("", "")
    view.end(RUN, RunState(state="failed"), Result(None, {}, None, {}, None, None))
    said = capsys.readouterr().err
    assert "    | line 99\n" in said
    assert "    | line 84\n" not in said


def test_a_distillation_ends_with_its_best_student_and_its_teacher(tmp_path, capsys):
    """The perplexity on held-out data, and of which step the student is that came home."""
    view = PlainView()
    metrics = {
        "loss": 1.957,
        "perplexity": 7.4,
        "perplexity_best": 7.08,
        "best_step": 180.0,
        "perplexity_teacher": 5.21,
    }
    view.end(RUN, RunState(state="succeeded"), Result(tmp_path / "model", {}, None, metrics, 11.52, 54.0))
    said = capsys.readouterr().err
    assert "loss 11.52 → 1.957, best perplexity 7.08 at step 180, teacher 5.21\n" in said
    assert f"  model    {tmp_path}/model   of step 180, the best\n" in said


@pytest.mark.parametrize(
    ("takes", "consumed", "says"),
    [
        ([], [], None),
        (["precision", "split"], ["checkpoints", "precision", "split"], None),
        (["precision", "split"], ["split"], "no precision from the plan"),
        (["precision"], [], "no precision from the plan"),
        ([], ["precision", "resume"], "took its precision from the plan"),
        (None, [], None),
        (["precision"], None, None),
    ],
)
def test_the_end_says_what_the_script_has_taken_otherwise_than_expected(
    tmp_path, capsys, takes, consumed, says
):
    """By what the run has recorded; an older run, which did not record it, says nothing."""
    local_copy = LocalCopy(RUN, tmp_path)
    local_copy.folder.mkdir()
    (local_copy.folder / "plan.json").write_text(json.dumps({"takes": takes, "rehearsed": True}))
    finish(local_copy, RunState(state="succeeded", consumed=consumed, rehearsed=True), PlainView())
    said = capsys.readouterr().err
    assert (says is None) == ("your script took" not in said)
    assert says is None or says in said
    shows_card = takes == [] or consumed is None or bool({"precision", "split"} & {*consumed})
    assert ("rehearsed" in said) == shows_card


def test_the_last_line_of_an_ended_run_is_not_shown_again(tmp_path):
    """Though it was never finished; that of a run under way may go on."""
    local_copy = LocalCopy(RUN, tmp_path)
    (local_copy.folder / "0002").mkdir(parents=True)
    (local_copy.folder / "0002" / "log.txt").write_text("all\nof it")
    for state, unfinished in (("running", "of it"), ("succeeded", "")):
        (local_copy.folder / "0002" / "state.json").write_text(json.dumps({"state": state}))
        local_copy.sync.load()
        assert local_copy.sync._printed.unfinished == unfinished
