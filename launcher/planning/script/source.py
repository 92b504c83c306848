"""Read and write the text that names a model or data in a job."""

from __future__ import annotations

from launcher.values.plan import Source


def source(written: str) -> Source:
    """Classify a text: a local path (`./x`, `/x`, `~/x`), a path on the host (`host:/x`), or a name for the script.

    `hub:org/name` always means the name `org/name`.
    """
    if written.startswith("host:"):
        return Source(kind="host", value=written.removeprefix("host:"))
    if written.startswith(("./", "../", "/", "~")) or written in (".", ".."):
        return Source(kind="local", value=written)
    return Source(kind="name", value=written.removeprefix("hub:"))


def written(source: Source) -> str:
    """Return the text of a source in a job."""
    prefix = {"host": "host:", "local": "", "name": "hub:"}[source.kind]
    return f"{prefix}{source.value}"
