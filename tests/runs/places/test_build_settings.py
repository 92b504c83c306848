"""What a build is given beside its content: read from files here, told by file and key, never repeated."""

import pytest

from launcher.config import build_settings, resolve
from launcher.config.lookup import Lookup
from launcher.errors import BadFileError
from launcher.planning.software.image_plan import image
from launcher.planning.software.recipe import classic
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.software.image import CA_BUNDLE_AT, Build, BuildOptions

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
SECRET = "hunter2"


@pytest.fixture
def place(tmp_path):
    """Put texts into files, by the key that names them; return what a host `lab` that names them is built with."""

    def put(environment=None, /, **texts):
        paths = {}
        for key, text in texts.items():
            (tmp_path / key).write_text(text)
            paths[key] = str(tmp_path / key)
        build = Build(**paths, proxy=environment is not None)
        return build_settings.read(Host(name="lab", address="lab", build=build), environment or {})

    return put


def complaint(place, **texts):
    with pytest.raises(BadFileError) as caught:
        place(**texts)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_a_host_that_says_nothing_gives_nothing(place):
    """A build needs no settings; the environment's proxies are not taken unasked."""
    assert place() == BuildOptions()


def test_pips_settings_are_kept_and_the_certificates_named_in_them(place):
    """One secret tells pip all: its `cert` is the bundle, wherever another one was named; percent signs stay."""
    pip_conf = (
        "[global]\nindex-url = https://me:a%40b@h/s  \n[install]\ncert = /elsewhere\nfind-links =\n  a\n  b\n"
    )
    settings = place(pip_conf=pip_conf, ca_bundle=CERTIFICATE)
    assert settings.ca_bundle == CERTIFICATE.encode()
    assert "index-url = https://me:a%40b@h/s\n" in settings.pip_conf
    assert f"cert = {CA_BUNDLE_AT}\n" in settings.pip_conf
    assert "/elsewhere" not in settings.pip_conf
    assert place(ca_bundle=CERTIFICATE).pip_conf == f"[global]\ncert = {CA_BUNDLE_AT}\n\n"
    assert "cert" not in place(pip_conf="[global]\nindex-url = x\n").pip_conf


def test_what_was_read_reaches_the_classic_builder(place):
    """A list of links on lines of its own is one argument."""
    settings = place(pip_conf="[install]\nfind-links =\n  https://a\n  https://b\n", ca_bundle=CERTIFICATE)
    one = image(Lookup().profile("cpu"), Job(name="x", command=("a",)), Build(), resolve.image_sources())
    assert classic(one, settings).arguments == {
        "PIP_FIND_LINKS": "https://a https://b",
        "PIP_CERT": CA_BUNDLE_AT,
    }


def test_proxies_are_handed_on_where_the_host_says_so(place):
    """Either spelling, the small one first; nothing else of the environment."""
    told = {
        "HTTP_PROXY": "http://a",
        "https_proxy": "http://b",
        "HTTPS_PROXY": "http://c",
        "no_proxy": "",
        "X": "1",
    }
    assert place(told).proxies == {"http_proxy": "http://a", "https_proxy": "http://b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"index-url = https://me:{SECRET}@h", "line 1: expected"),
        (f"[global]\nindex-url = x\n{SECRET}\n", "line 3: expected"),
        (f"[global]\na = 1\na = {SECRET}\n", "line 3 repeats an earlier setting"),
        (f"[global]\n{SECRET}/x = 1\n", "is not an option of pip"),
    ],
)
def test_a_settings_file_that_pip_could_not_read_is_told_without_what_it_holds(place, text, said):
    """Key, file and line; never the line itself."""
    message = complaint(place, pip_conf=text)
    assert message.startswith('hosts.lab.build.pip_conf = "/')
    assert said in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{CERTIFICATE}-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
            "holds a private key, which must not be sent",
        ),
        ("", "holds no certificate in PEM"),
    ],
)
def test_a_bundle_is_certificates_alone(place, text, said):
    """A bundle may end up in an image; a private key never may."""
    message = complaint(place, ca_bundle=text)
    assert message.startswith('hosts.lab.build.ca_bundle = "/')
    assert said in message


@pytest.mark.parametrize("key", ["pip_conf", "ca_bundle"])
def test_a_file_that_is_not_there_is_told_by_its_key(tmp_path, key):
    """With the path that was looked at."""
    host = Host(name="lab", address="lab", build=Build(**{key: str(tmp_path / "no")}))
    with pytest.raises(
        BadFileError, match=rf'hosts\.lab\.build\.{key} = "{tmp_path}/no": cannot be read: No such'
    ):
        build_settings.read(host, {})
