"""What a shell is told of the words that it may offer, and the scripts by which it asks."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple


class Completion(NamedTuple):
    """A word that a shell may put in the place of what was typed, and what it shows beside it."""

    value: str
    help: str = ""
    type: str = "plain"


_OPEN = ("=", ":", ".")
"""How a word ends that goes on, so that no space follows it."""
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+")
"""What bash takes as it is. It does not quote what it is offered, and a name may be a cloned repository's."""
_BASH = """\
_launch_completion() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _LAUNCH_COMPLETE=complete_bash $1 2>/dev/null ) )
    case ${COMPREPLY[0]} in *[=:.]) compopt -o nospace ;; esac
    return 0
}

complete -o default -o nosort -F _launch_completion launch"""
_ZSH = """\
#compdef launch

_launch_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _LAUNCH_COMPLETE=complete_zsh launch 2>/dev/null)
}

compdef _launch_completion launch
[[ $funcstack[1] == _launch ]] && _launch_completion "$@" || true"""
_FISH = (
    "complete --command launch --no-files --keep-order"
    ' --arguments "(env _LAUNCH_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) launch 2>/dev/null)"'
    ' --condition "env _LAUNCH_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args'
    ' _TYPER_COMPLETE_ARGS=(commandline -cp) launch 2>/dev/null"'
)


def use_our_scripts() -> None:
    """Let `--show-completion` and `--install-completion` give our scripts: in our order, no space after `=`, no errors.

    typer has no public way. Where it keeps its scripts elsewhere, they stay: they ask the same, and sort the answers.
    """
    try:
        scripts = importlib.import_module("typer._completion_shared")._completion_scripts  # noqa: SLF001
    except (ImportError, AttributeError):
        return
    scripts.update({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})


def asking_shell() -> str:
    """Return the shell that asks: `bash`, `zsh`, `fish` or `powershell`; empty if none does."""
    return os.environ.get("_LAUNCH_COMPLETE", "").removeprefix("complete_")


def tell(offers: Sequence[Completion], word: str) -> Sequence[Completion]:
    """Print what the asking shell needs and end, or return the offers to typer, which prints them without what they say.

    Raises SystemExit.
    """
    shell = asking_shell()
    if shell == "bash":
        start = len((re.match(r".*[=:]", word) or [""])[0])  # bash replaces what follows the last of these
        safe = [offer for offer in offers if _PLAIN_WORD.fullmatch(offer.value)]
        return [offer._replace(value=offer.value[start:]) for offer in safe]
    if shell not in ("zsh", "fish") or not offers:
        return offers
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") != "is-args":
        prefix = _option_prefix()
        offers = [offer._replace(value=prefix + offer.value) for offer in offers]
        print(_for_zsh(offers, prefix + word) if shell == "zsh" else "\n".join(map(_for_fish, offers)))
    raise SystemExit(0)


def _for_fish(offer: Completion) -> str:
    return f"{offer.value}\t{_plain(offer.help)}" if offer.help else offer.value


def _for_zsh(offers: Sequence[Completion], word: str) -> str:
    """Return the commands that zsh runs: words in our order, each on a line of its own with what it is.

    Words that do not begin with what was typed replace it, the first one at once and the next ones at the next Tab.
    """
    width = max(len(offer.value) for offer in offers)
    shown = [f"{offer.value:<{width}}  {_plain(offer.help)}".rstrip() for offer in offers]
    replaces = not all(offer.value.startswith(word) for offer in offers)
    options = ["-U"] * replaces + ["-S", "''"] * offers[0].value.endswith(_OPEN)
    return "; ".join(
        [
            "local -a launch_words launch_shown",
            f"launch_words=({' '.join(_zsh_word(offer.value) for offer in offers)})",
            f"launch_shown=({' '.join(map(_zsh_word, shown))})",
            f"compadd {' '.join(options)} -V launch -l -d launch_shown -a launch_words",
            *(["compstate[insert]=menu"] if replaces and len(offers) > 1 else []),
        ]
    )


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _zsh_word(text: str) -> str:
    r"""Quote a text as $'…' without spaces: zsh splits what we print, and joins it again with single spaces."""
    letters = (
        letter if not letter.isascii() or re.match(r"[\w=:.,/@+-]", letter) else f"\\x{ord(letter):02x}"
        for letter in text
    )
    return f"$'{''.join(letters)}'"


def _option_prefix() -> str:
    """Return the `--host=` of a word `--host=la`: zsh and fish replace the whole word."""
    option, is_joined, _ = os.environ.get("_TYPER_COMPLETE_ARGS", "").rpartition(" ")[2].partition("=")
    return f"{option}=" if is_joined and option.startswith("--") else ""


def rejoin_words() -> None:
    """Join again the words that bash splits at `=` and `:`: `--set`, `batch.micro`, `=`, `4` are two words of a person."""
    if "COMP_WORDS" not in os.environ or not os.environ.get("COMP_CWORD", "").isdigit():
        return
    words, joined, is_joined = os.environ["COMP_WORDS"].split("\n"), [""], False
    for word in words[: int(os.environ["COMP_CWORD"]) + 1]:
        is_sign = bool(word) and set(word) <= {"=", ":"}
        if is_sign or is_joined:
            joined[-1] += word
        else:
            joined.append(word)
        is_joined = is_sign
    os.environ["COMP_WORDS"] = "\n".join(joined[1:])
    os.environ["COMP_CWORD"] = str(len(joined) - 2)
