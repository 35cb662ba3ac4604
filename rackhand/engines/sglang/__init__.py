"""SGLang: flags by version, log lines, trouble signs, endpoints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rackhand.contract.servers import FlagFacts, Load
from rackhand.engines import Cause, FlagMistake, Flags, Generation, Launch
from rackhand.engines.seen import Event as Event
from rackhand.engines.seen import Reading
from rackhand.engines.sglang import endpoints, exposition, flags, trouble, tuning
from rackhand.engines.sglang.log import parse_line as parse_line
from rackhand.engines.sglang.log import read_line as read_line

_VERSION = "import importlib.metadata as m\ntry: print(m.version('sglang'))\nexcept m.PackageNotFoundError: "
_VERSION += "print(__import__('sglang').__version__)"


class Sglang:
    """`rackhand.engines.Engine` for SGLang."""

    name = "sglang"
    health_path = endpoints.HEALTH
    load_paths: tuple[str, ...] = (endpoints.LOADS, endpoints.SERVER_INFO, endpoints.OLD_SERVER_INFO)
    generation_path = endpoints.CHAT
    watch_paths: tuple[str, ...] = (exposition.LOADS, exposition.METRICS)

    def launch_argv(self, launch: Launch) -> tuple[str, ...]:
        return flags.launch_argv(launch)

    def render_config(self, api_key: str) -> str:
        return f"api-key: {json.dumps(api_key)}\n"

    def help_argv(self, python: str) -> tuple[str, ...]:
        return (python, "-m", "sglang.launch_server", "--help")

    def version_argv(self, python: str) -> tuple[str, ...]:
        return (python, "-c", _VERSION)

    def parse_help(self, text: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        return flags.parse_help(text)

    def translate(self, args: Flags, *, version: str | None, known: frozenset[str] | None = None) -> Flags:
        return flags.translate(args, version=version, known=known)

    def check_flags(self, args: Flags, facts: FlagFacts) -> tuple[FlagMistake, ...]:
        return flags.check_flags(args, facts)

    def find_cause(self, lines: Iterable[str], exit_status: int | None = None) -> Cause:
        return trouble.find_cause(lines, exit_status)

    def parse_stage(self, line: str) -> str | None:
        return endpoints.parse_stage(line)

    def parse_log_capacity(self, lines: Iterable[str]) -> Load | None:
        return endpoints.parse_log_capacity(lines)

    def parse_load(self, path: str, text: str) -> Load | None:
        return endpoints.parse_load(path, text)

    def read_line(self, text: str) -> tuple[Event | None, int]:
        return read_line(text)

    def parse_reading(self, path: str, body: bytes) -> Reading | None:
        return exposition.parse_loads(body) if path == exposition.LOADS else exposition.parse_metrics(body)

    def generation_request(self) -> dict[str, object]:
        return endpoints.generation_request()

    def parse_generation(self, text: str) -> Generation:
        return endpoints.parse_generation(text)

    def parse_tuning(self, cmdline: Sequence[str]) -> dict[str, str]:
        return tuning.parse_tuning(cmdline)

    def is_server(self, cmdline: tuple[str, ...]) -> bool:
        return endpoints.is_server(cmdline)

    def is_main(self, cmdline: tuple[str, ...]) -> bool:
        return endpoints.is_main(cmdline)


SGLANG = Sglang()
