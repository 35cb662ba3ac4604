"""Completion of verbs, flags and inventories' names in bash, zsh and fish.

The scripts ask the program that is being typed, wherever it stands; Invoke's own ask one fixed name of the PATH.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke.exceptions import Exit
from invoke.parser.argument import Argument

from rackhand.place import IN_CHECKOUT, SHARE
from rackhand.words_given import WrongUsage

_BASH = """_rackhand_complete() {
    local IFS=$'\\n' program=${COMP_WORDS[0]/#\\~/$HOME}
    COMPREPLY=($(compgen -W "$("$program" --complete -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null)" \\
        -- "${COMP_WORDS[COMP_CWORD]#=}"))
}
complete -o default -F _rackhand_complete NAME
"""
_ZSH = """(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_rackhand_complete() {
    local -a found
    found=(${(f)"$(${~words[1]} --complete -- "${(@)words[1,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _rackhand_complete NAME
"""
_FISH = """function __rackhand_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l found ($program --complete -- $words 2>/dev/null)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command NAME --no-files --arguments '(__rackhand_complete)'
"""
_ASKS_FOR_A_VERB = ("-h", "--help")
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def print_script(shell: str, names: Sequence[str]) -> None:
    """For Invoke's print_completion_script. WrongUsage for a shell that isn't known."""
    if shell not in _SCRIPTS:
        raise WrongUsage(f"no completion for {shell!r}, only for {', '.join(_SCRIPTS)}")
    print(_SCRIPTS[shell].replace("NAME", names[0]), end="")  # noqa: T201


def complete(*, core: Any, initial_context: Any, parser: Any, **_: object) -> None:
    """For Invoke's complete: prints what can stand where the cursor is, and ends with 0."""
    words = core.remainder.split(" ")[1:]
    verbs = {name: _flags(context) for name, context in parser.contexts.items() if name}
    print(*candidates(words, verbs, initial_context.flags, inventories()), sep="\n")  # noqa: T201
    raise Exit(code=0)


def _flags(context: Any) -> dict[str, Argument]:
    """Also those that switch off, such as --no-compare."""
    off = {name: context.flags[on] for name, on in context.inverse_flags.items()}
    return {**context.flags, **off}


def candidates(
    words: Sequence[str],
    verbs: Mapping[str, Mapping[str, Argument]],
    common: Mapping[str, Argument],
    inventories: Sequence[str],
) -> list[str]:
    """What can stand for the last of `words`, which follow the program's name; nothing where a file may stand.

    `verbs` are the flags by verb, `common` those without one.
    """
    *before, last = ["" if word == "=" else word for word in words] or [""]  # bash makes a word of each =
    before = [word for word in before if word]
    verb = next((word for word in reversed(before) if word in verbs), "")
    flags = verbs.get(verb, common)
    if last.startswith("-"):
        flag, joined, _ = last.partition("=")
        if joined:
            return [f"{flag}={name}" for name in inventories if flag == "--inventory"]
        return sorted(name for name in flags if name.startswith("--"))
    if before and before[-1] in flags and flags[before[-1]].takes_value:
        return list(inventories) if before[-1] == "--inventory" else []
    return [] if verb and before[-1] not in _ASKS_FOR_A_VERB else sorted(verbs)


def inventories() -> list[str]:
    """Their names, as --inventory takes them."""
    folders: Iterable[Path] = (Path.cwd(), SHARE) if IN_CHECKOUT else (Path.cwd(),)
    return sorted({path.stem for folder in folders for path in (folder / "inventory").glob("*.yaml")})
