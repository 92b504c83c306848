"""Check a plan for Kaggle apart from its cards, and add notes for its user.

Nothing can be probed before a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_machines import DATE
from launcher.base.text import hours_text
from launcher.planning.software.installed_packages import unmet
from launcher.values.facts import Facts
from launcher.values.plan import Finding, Plan

_SECRETS = "on Kaggle a user attaches secrets by hand, in the editor, to one kernel, and each session of a run is a new kernel (kaggle-cli#582)"
_WITHOUT_SECRETS = (
    "use a private Kaggle dataset instead of a secret, or a gated model that you "
    "add to your models on Kaggle; name it in the host's table   datasets = […]     models = […]"
)
_INPUT = "/kaggle/input/"


def kaggle_findings(plan: Plan, settings: KaggleSettings, facts: Facts | None) -> list[Finding]:
    """Return the findings of a plan for a Kaggle account; `facts` are the expected ones."""
    found = [
        *no_secrets(plan.host, plan.secrets),
        *_places(plan, settings),
        *_sessions(plan, settings),
    ]
    if facts is not None:
        found += [_expectation(plan, facts), *_packages(plan, settings, facts)]
    return found


def no_secrets(host: str, names: Sequence[str]) -> tuple[Finding, ...]:
    """Return the refusal of a job's secrets, if it has any."""
    if not names:
        return ()
    message = f"{host} cannot be given {', '.join(names)}: {_SECRETS}"
    return (Finding(level="refuse", code="no-secrets", message=message, mend=_WITHOUT_SECRETS),)


def _places(plan: Plan, settings: KaggleSettings) -> list[Finding]:
    """Refuse files of the host except its datasets and models: a session has only the files in its script."""
    sources = {
        "model": plan.model,
        "teacher": plan.teacher,
        **{f"data.{key}": one for key, one in plan.data.items()},
    }
    on_host = {key: one.value for key, one in sources.items() if one is not None and one.kind == "host"}
    has_inputs = bool(settings.datasets or settings.models)
    named = [key for key, path in on_host.items() if not (has_inputs and path.startswith(_INPUT))]
    if not named:
        return []
    message = (
        f"{', '.join(named)}: host:… names a file that is on the host, and a session of {plan.host} has none"
        + (f" except those below {_INPUT}" if has_inputs else "")
    )
    mend = f"a file here is sent   --set {named[0]}=./…     a Kaggle dataset is available if the host's table names it"
    return [Finding(level="refuse", code="no-host-files", message=message, mend=mend)]


def _sessions(plan: Plan, settings: KaggleSettings) -> list[Finding]:
    """Note that a run longer than a session needs a client."""
    hours, limit = settings.session_hours, plan.time_limit_minutes
    if limit is not None and limit <= hours * 60:
        return []
    message = f"{plan.host}: a session lasts {hours_text(hours)} at most; a client continues a longer run in the next one"
    mend = "as long as it is followed, or by   launch attach RUN     launch recover --all"
    return [Finding(level="note", code="sessions", message=message, mend=mend)]


def _expectation(plan: Plan, facts: Facts) -> Finding:
    python = facts.interpreter
    torch = python.packages.get("torch") if python is not None else None
    words = [
        facts.cards or "no card",
        f"Python {python.version}" if python is not None else "",
        f"torch {torch}" if torch else "",
    ]
    message = f"{plan.host}: {', '.join(filter(None, words))} are expected, as of {DATE}: nothing can be probed before a session"
    mend = "the session looks at its card and its torch before the job begins, and ends as wrong-card on another card"
    return Finding(level="note", code="expected-only", message=message, mend=mend)


def _packages(plan: Plan, settings: KaggleSettings, facts: Facts) -> list[Finding]:
    """Note packages that each session installs, or cannot install without the internet."""
    found = []
    if differing := unmet(plan.requirements, facts).differing:
        message = f"{plan.host}: its image is expected to have {'; '.join(differing)}"
        found.append(Finding(level="note", code="packages-differ", message=message))
    if not settings.internet and plan.requirements:
        message = f"{plan.host}: internet = false: a session that lacks one of the job's packages cannot install it, and ends"
        found.append(Finding(level="note", code="no-internet", message=message))
    if not settings.internet and any(
        one is not None and one.kind == "name" for one in (plan.model, plan.teacher)
    ):
        message = f"{plan.host}: internet = false: a model that the script loads by its name cannot be downloaded there"
        found.append(
            Finding(level="note", code="no-internet", message=message, mend="send it   --set model=./…")
        )
    return found
