"""Jinja2 as rackhand uses it: a missing value is an error, and in shell scripts every value is quoted. Pure.

`render_script` renders a file of templates/: whatever `{{ }}` holds comes out as one shell word. Filters:
`words` (a sequence as several quoted words), `name` (an identifier, checked and left bare), `number`.
`render_file` renders a user's own template, which may be in any language: nothing is quoted there unless it says
`| quote`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import jinja2

from rackhand.errors import PreconditionError
from rackhand.place import SHARE

TEMPLATES = SHARE / "templates"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class Quoted(str):
    """Text that is a shell word, or several, already."""

    __slots__ = ()


def quote(value: object) -> Quoted:
    """One shell word; ValueError for what no word can hold."""
    if isinstance(value, Quoted):
        return value
    text = str(value)
    if "\0" in text:
        raise ValueError("a NUL byte can't stand in a shell word")
    return Quoted(shlex.quote(text))


def words(values: Iterable[object], between: str = " ") -> Quoted:
    """`between` is blanks, or a continued line's end."""
    return Quoted(between.join(quote(value) for value in values))


def comment(value: object) -> Quoted:
    """Text for behind a `#`: control characters, which could end the comment, become `?`."""
    return Quoted("".join(letter if letter.isprintable() else "?" for letter in str(value)))


def name(value: object) -> Quoted:
    """A shell identifier, such as a variable's name, unquoted."""
    if not _NAME.fullmatch(str(value)):
        raise ValueError(f"{value!r} is no shell name")
    return Quoted(value)


def number(value: object) -> Quoted:
    return Quoted(float(str(value))) if "." in str(value) else Quoted(int(str(value)))


def render_script(template: str, values: Mapping[str, Any]) -> str:
    """A script of templates/, e.g. `env.sh.j2`. Errors are jinja2's, or ValueError for a bad value."""
    return _shell().get_template(template).render(**values)


def render_file(text: str, values: Mapping[str, Any], where: str) -> str:
    """A user's template. PreconditionError with `where` and the line when it is wrong or asks for what isn't there."""
    try:
        return _plain().from_string(text).render(**values)
    except jinja2.TemplateSyntaxError as error:
        raise PreconditionError(
            f"{error.message}", where=f"{where}:{error.lineno}", hint="mend the template"
        ) from error
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
        hint = f"a template may use: {', '.join(sorted(values))}"
        raise PreconditionError(f"the template can't be rendered: {error}", where=where, hint=hint) from error


@cache
def _shell() -> jinja2.Environment:
    environment = _environment(jinja2.FileSystemLoader(TEMPLATES))
    environment.finalize = lambda value: value if isinstance(value, Quoted) else quote(value)
    environment.filters.update(quote=quote, words=words, name=name, number=number, comment=comment)
    return environment


@cache
def _plain() -> jinja2.Environment:
    environment = _environment(None)
    environment.filters.update(quote=quote, words=words)
    return environment


def _environment(loader: jinja2.BaseLoader | None) -> jinja2.Environment:
    return jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  shell, not HTML: `finalize` quotes
    )
