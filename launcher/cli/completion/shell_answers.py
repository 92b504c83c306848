"""Completions in the format of each shell, and the shells' completion scripts."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Sequence
from typing import NamedTuple


class Completion(NamedTuple):
    """A word that may replace the typed one, and the help that a shell shows beside it."""

    value: str
    help: str = ""
    type: str = "plain"


_OPEN = ("=", ":", ".")
"""Last characters of a word that continues: the shell adds no space after it."""
_PLAIN_WORD = re.compile(r"[\w@%+=:,./-]+")
"""Words that are safe in bash. It does not quote completions, and a cloned repository may choose a name."""
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
    """Make `--show-completion` and `--install-completion` use our scripts: our order, no space after `=`, no errors.

    typer has no public way for it. In a typer version that keeps its scripts elsewhere, typer's scripts stay in use: they
    work, but sort the answers.
    """
    try:
        scripts = importlib.import_module("typer._completion_shared")._completion_scripts  # noqa: SLF001
    except (ImportError, AttributeError):
        return
    scripts.update({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})


def asking_shell() -> str:
    """Return the shell that asks for completions: `bash`, `zsh`, `fish` or `powershell`; empty outside a completion."""
    return os.environ.get("_LAUNCH_COMPLETE", "").removeprefix("complete_")


def tell(offers: Sequence[Completion], word: str) -> Sequence[Completion]:
    """Print the completions for zsh or fish and exit, or return them to typer, which prints their values without help.

    Raises SystemExit after printing.
    """
    shell = asking_shell()
    if shell == "bash":
        start = len(
            (re.match(r".*[=:]", word) or [""])[0]
        )  # bash replaces only the text after the last of these
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
    """Return the zsh commands that show the words in our order, each on a separate line with its help.

    If a word does not start with the typed text, the words replace it: the first one at once, the next one at each Tab.
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
    r"""Quote a text as $'…' without spaces: zsh splits our output, and joins it again with single spaces."""
    letters = (
        letter if not letter.isascii() or re.match(r"[\w=:.,/@+-]", letter) else f"\\x{ord(letter):02x}"
        for letter in text
    )
    return f"$'{''.join(letters)}'"


def _option_prefix() -> str:
    """Return the `--host=` of a word such as `--host=la`: zsh and fish replace the complete word."""
    option, is_joined, _ = os.environ.get("_TYPER_COMPLETE_ARGS", "").rpartition(" ")[2].partition("=")
    return f"{option}=" if is_joined and option.startswith("--") else ""


def rejoin_words() -> None:
    """Join the words that bash splits at `=` and `:`: `--set`, `batch.micro`, `=`, `4` were typed as two words."""
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
