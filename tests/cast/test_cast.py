"""The picture of a first session: it is whole, plays, and has the commands that `make cast` records."""

import html
import re
from xml.etree import ElementTree as ET

from cast.make import PICTURE, SESSION


def test_the_picture_has_the_session():
    """As XML without anything from elsewhere; each line has a time, later than the one before."""
    text = PICTURE.read_text()
    root = ET.fromstring(text)  # noqa: S314 - it is our own file
    words = html.unescape("".join(root.itertext())).replace("\xa0", " ")
    for command in SESSION:
        assert command in words
    assert "succeeded" in words
    assert "Traceback" not in words
    assert not re.search(r"(?:href|src|url)\s*[=(]\s*['\"]?https?:", text)
    times = [float(found) for found in re.findall(r"appear 1ms ([0-9.]+)s", text)]
    assert len(times) > 50
    assert times == sorted(times)
