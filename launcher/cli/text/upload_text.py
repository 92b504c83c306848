"""An upload as text: the files to send, the excluded files with reasons, and the sources of model and data."""

from __future__ import annotations

from launcher.base.text import files_text
from launcher.cli.output.figures import size_text
from launcher.cli.output.say import say
from launcher.upload.excluded_text import path_of, size_words
from launcher.values.upload_selection import ExcludedPath, JobSource, UploadSelection

MAX_LARGEST = 3
MAX_LEFT_OUT = 20


def show_selection(selection: UploadSelection) -> None:
    """Print an upload selection. Print nothing for a folder that is refused."""
    if selection.findings:
        return
    say(f"  upload     {files_text(selection.files)}, {size_text(selection.bytes)}, from {selection.folder}")
    for path, size in selection.largest[:MAX_LARGEST]:
        say(f"             {size_text(size):>9}  {path}")
    if (more := selection.files - len(selection.largest[:MAX_LARGEST])) > 0:
        say(f"             {more:,} more (all: --json)")
    for credential in selection.included:
        say(f"  included   {_left_out(credential)}, named by a .launchignore")
    for one in selection.sources:
        say(f"  {one.key:<10} {one.written}   {_source(one)}")
    shown = selection.left_out[:MAX_LEFT_OUT]
    for number, entry in enumerate(shown):
        say(f"  {'' if number else 'left out':<10} {_left_out(entry)}")
    if len(selection.left_out) > len(shown):
        say(f"             {len(selection.left_out) - len(shown):,} more (all: --json)")


def _source(one: JobSource) -> str:
    if one.source.kind == "host":
        return "on the host"
    if one.source.kind == "name":
        return "left to the script"
    files = "" if one.files == 1 else f"{one.files:,} files, "
    return f"here, {files}{size_text(one.bytes)}"


def _left_out(one: ExcludedPath) -> str:
    link = f" -> {one.link}" if one.link is not None else ""
    size = f", {size_words(one.size)}" if one.size is not None else ""
    return f"{path_of(one)}{link}   ({one.why.value}{size})"
