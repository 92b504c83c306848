"""The live view on a real terminal, at three widths: what a person sees of a run, of a lost link and of the end.

python tests/cli/live/test_live.py      # writes what is seen now to seen_at_*.txt, to be read before it is committed
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PROGRAM = [sys.executable, str(HERE / "followed.py")]
SCENES = ("eta 18:48", "link to lambda lost", "eta 0:02", "launch logs")
"""What shows that a scene has come."""
WIDTHS = (80, 120, 200)


def environment(**more):
    """Return the environment of a UTF-8 terminal that has colours."""
    plain = {
        name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")
    }
    return {**plain, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **more}


def seen(width, expected=None, **more):
    """Return what is on the screen in each scene, and all bytes that were written.

    Drawing takes several writes, so a scene is there once it looks as `expected`; by default, once its words are there.
    """
    from testbed.screen import Screen

    scenes = []
    with Screen(PROGRAM, environment(**more), width=width) as screen:
        for number, words in enumerate(SCENES):
            scenes.append(
                screen.until(
                    lambda lines, words=words, number=number: (
                        any(words in line for line in lines)
                        and (expected is None or words == SCENES[-1] or lines == expected[number])
                    )
                )
            )
            if words != SCENES[-1]:
                screen.type("\n")
        return [*scenes[:-1], screen.to_the_end()], screen.raw


def written(width):
    """Return where the screens of a width are written down."""
    return HERE / f"seen_at_{width}.txt"


def as_text(scenes):
    """Return screens as one text."""
    return "\n--\n".join("\n".join(lines) for lines in scenes) + "\n"


@pytest.mark.parametrize("width", WIDTHS)
def test_each_scene_is_as_written_down(width):
    """A headline, a bar as wide as there is room, the time left last; a lost link in one line; an end with commands."""
    text = written(width).read_text(encoding="utf-8")
    scenes, _ = seen(width, [scene.rstrip("\n").split("\n") for scene in text.split("\n--\n")])
    assert as_text(scenes) == text
    for lines in scenes:
        assert sum("sft-k3f9w2 on lambda" in line for line in lines) == (lines is not scenes[-1])
        assert all(line.split()[-2] == "eta" for line in lines if "eta" in line)
        assert max(map(len, lines)) <= width


def test_without_colour_nothing_is_coloured():
    """The bar still shows how far the run has come."""
    scenes, raw = seen(80, NO_COLOR="1")
    assert [lines[:-1] for lines in scenes[:1]] == [seen(80)[0][0][:-1]]
    assert scenes[0][-1].count("━") < seen(80)[0][0][-1].count("━")
    assert not any(f"\x1b[{code}".encode() in raw for code in (3, 4, 9, 10))


def test_in_a_pipe_there_are_plain_lines_and_a_lost_link_is_noted_at_once_and_after_10_s():
    """Nothing is drawn anew, and nothing steers a terminal."""
    done = subprocess.run(
        PROGRAM,
        input="\n\n\n",
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert (done.stdout, "\x1b" in done.stderr) == ("", False)
    assert done.stderr.count("link to lambda lost; the run is not affected. Retrying (1) in 1 s") == 1
    assert (
        done.stderr.count("link to lambda lost 0:12 ago; the run is not affected. Retrying (3) in 4 s") == 1
    )
    assert done.stderr.count("the link is back after 0:12") == 1
    assert "    step   412/900  loss 1.284  grad 0.91" in done.stderr
    assert done.stderr.endswith("  output   launch logs k3f9w2\n")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1]))
    for columns in WIDTHS:
        written(columns).write_text(as_text(seen(columns)[0]), encoding="utf-8")
