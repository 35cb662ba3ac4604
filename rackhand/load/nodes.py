"""YAML text → a tree in which every value knows its line and its dotted name. Merge keys and aliases are unfolded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import yaml

from rackhand.errors import Mistake

_MOST_VALUES = 50_000
_MOST_DEPTH = 64
_PREFIX = "tag:yaml.org,2002:"
_SCALARS = frozenset(_PREFIX + kind for kind in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge"))


@dataclass(frozen=True, slots=True)
class Scalar:
    """One word or text as it was written. `plain`: without quotes; `null`: nothing, `~` or `null`."""

    text: str
    line: int
    name: str
    plain: bool = True
    null: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    values: tuple[Value, ...]
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's line and its value."""

    line: int
    value: Value


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; `line` is the line of the key that holds it."""

    entries: Mapping[str, Entry]
    line: int
    name: str

    def line_of(self, key: str) -> int:
        return self.entries[key].line if key in self.entries else self.line


Value = Scalar | Items | Table


@dataclass(slots=True)
class Mistakes:
    """What was found wrong so far; the same words about the same line count once."""

    file: str
    lines: int
    found: dict[Mistake, None] = field(default_factory=dict)

    def add(self, line: int, what: str, hint: str = "") -> None:
        self.found[Mistake(self.file, min(max(line, 1), max(self.lines, 1)), what, hint)] = None

    def sorted(self) -> tuple[Mistake, ...]:
        return tuple(sorted(self.found, key=lambda mistake: (mistake.line, mistake.what)))


def parse_yaml(data: bytes, file: str) -> tuple[Value | None, Mistakes]:
    """The tree, or None with the reason among the mistakes. Raises nothing."""
    mistakes = Mistakes(file, data.count(b"\n") + (not data.endswith(b"\n")))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        mistakes.add(data.count(b"\n", 0, error.start) + 1, "not UTF-8 text", "save the file as UTF-8")
        return None, mistakes
    root = _compose(text, mistakes)
    if root is None:
        return None, mistakes
    try:
        return _Unfolding(mistakes).value(root, _line(root), "", 0), mistakes
    except _TooMuchError as error:
        mistakes.add(error.line, str(error), "write it out with fewer aliases and levels")
        return None, mistakes


def _compose(text: str, mistakes: Mistakes) -> yaml.Node | None:
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        root: yaml.Node | None = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        mistakes.add(line, f"the character U+{int(error.character):04X} can't stand in YAML", "remove it")
    except yaml.MarkedYAMLError as error:
        _add_syntax(error, mistakes)
    except RecursionError:
        mistakes.add(loader.line + 1 if loader else 1, "nested too deeply", f"at most {_MOST_DEPTH} levels")
    except (ValueError, OverflowError):
        mistakes.add(loader.line + 1 if loader else 1, "a backslash escape that names no character", "correct it")
    else:
        if root is None:
            mistakes.add(1, "the inventory is empty", "start with hosts:")
        return root
    return None


def _add_syntax(error: yaml.MarkedYAMLError, mistakes: Mistakes) -> None:
    mark = error.problem_mark or error.context_mark
    problem = " ".join(part for part in (error.problem, error.context) if part) or "not YAML"
    hint = ""
    if "\\t" in problem:
        problem, hint = "a tab, which YAML doesn't take as indentation", "indent with blanks"
    elif "mapping values are not allowed" in problem:
        hint = "look at the indentation and at colons in unquoted text"
    elif "expected a single document" in problem:
        problem, hint = "a second document begins", "one inventory, one document: remove the ---"
    mistakes.add(mark.line + 1 if mark else 1, problem.replace("\n", " "), hint)


class _TooMuchError(Exception):
    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.line = line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Unfolding:
    """Nodes → values. An alias is unfolded where it stands, within a budget that a 'billion laughs' file exceeds."""

    def __init__(self, mistakes: Mistakes) -> None:
        self.mistakes = mistakes
        self.left = _MOST_VALUES
        self.open: set[int] = set()

    def value(self, node: yaml.Node, line: int, name: str, depth: int) -> Value:
        self.left -= 1
        if self.left < 0:
            raise _TooMuchError(f"unfolds to more than {_MOST_VALUES} values", line)
        if depth > _MOST_DEPTH:
            raise _TooMuchError(f"nested more than {_MOST_DEPTH} levels deep", line)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, name)
        if id(node) in self.open:
            raise _TooMuchError("an alias stands inside its own anchor", line)
        self.open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                self._check_tag(node, "map")
                return Table(self._entries(node, name, depth), line, name)
            self._check_tag(node, "seq")
            values = (self.value(item, _line(item), f"{name}[{i}]", depth + 1) for i, item in enumerate(node.value))
            return Items(tuple(values), line, name)
        finally:
            self.open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, name: str) -> Scalar:
        if node.tag not in _SCALARS:
            self.mistakes.add(
                _line(node), f"{name}: the tag {node.tag.removeprefix(_PREFIX)} is not used here", "remove it"
            )
        text = str(node.value)
        if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
            self.mistakes.add(_line(node), f"{name}: holds a character that no file or command can hold", "remove it")
            text = ascii(text)
        return Scalar(text, _line(node), name, node.style is None, node.tag == _PREFIX + "null")

    def _check_tag(self, node: yaml.Node, kind: str) -> None:
        if node.tag != _PREFIX + kind:
            self.mistakes.add(_line(node), f"the tag {node.tag.removeprefix(_PREFIX)} is not used here", "remove it")

    def _entries(self, node: yaml.MappingNode, name: str, depth: int) -> dict[str, Entry]:
        own: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, item in node.value:
            if key.tag == _PREFIX + "merge":
                for entries in self._merged(item, _line(key), name, depth):
                    merged = {**entries, **merged}
            elif not isinstance(key, yaml.ScalarNode):
                self.mistakes.add(_line(key), f"{name or 'inventory'}: a key must be one word", "")
            else:
                self._add(own, key, item, name, depth)
        return {**merged, **own}

    def _add(self, own: dict[str, Entry], key: yaml.ScalarNode, item: yaml.Node, name: str, depth: int) -> None:
        scalar = self._scalar(key, name or "inventory")
        word, line = scalar.text, scalar.line
        full = ".".join(filter(None, (name, word if word.isprintable() and word else ascii(word))))
        if word in own:
            self.mistakes.add(line, f"{full}: is there twice", f"the first stands in line {own[word].line}")
        own.setdefault(word, Entry(line, self.value(item, line, full, depth + 1)))

    def _merged(self, node: yaml.Node, line: int, name: str, depth: int) -> Iterator[Mapping[str, Entry]]:
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(part, yaml.MappingNode):
                value = self.value(part, line, name, depth + 1)
                if isinstance(value, Table):
                    yield value.entries
            else:
                self.mistakes.add(line, f"{name or 'inventory'}: << takes a mapping or a list of mappings", "")
