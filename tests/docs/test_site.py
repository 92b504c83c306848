"""The docs site: it builds strictly, and a page that is read loads nothing from another host."""

import re
import subprocess
import sys

import pytest
from testbed.client import REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site):
    """Strict: no broken link, no page that the navigation forgets."""
    pages = {page.stem for page in (REPOSITORY / "docs").glob("*.md")}
    assert pages <= {page.stem for page in site.glob("*.html")}


def test_every_page_is_linked_from_the_first():
    """So that a reader finds it without the navigation."""
    text = (REPOSITORY / "docs" / "index.md").read_text()
    pages = {page.name for page in (REPOSITORY / "docs").glob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page})" not in text} == set()


def test_no_page_loads_anything_from_another_host(site):
    """No font, script, style or picture: links that a reader may follow are all that leads away."""
    for page in site.glob("**/*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe|font|source)\b[^>]*>", page.read_text()):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), f"{page.name}: {tag}"
    for style in site.glob("**/*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", style.read_text()), style.name
