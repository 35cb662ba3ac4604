"""The operator's verbs. `./inv --list` shows them; `./inv --help VERB` shows flags and an example."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.context import Context

from rackhand.program import adopt_house_rules, verb

adopt_house_rules()

HELP = {
    "slow": "also the longer proofs (the demo, fresh clones)",
    "only": "pytest's -k: run only the tests whose names match",
    "args": "more words for pytest, as one string",
    "upgrade": "take newer versions where pyproject.toml allows",
}


@verb(help=HELP, name="test")
def run_tests(c: Context, slow: bool = False, only: str = "", args: str = "") -> int:
    """Set everything up and run the tests; starts labs of its own and ends them.

    Installs missing system packages after saying so.
    Example: ./inv test --only ledger --args "-x -q"
    """
    from dev.suite import run_suite

    return run_suite(slow=slow, only=only, args=args)


@verb(help=HELP)
def check(c: Context) -> int:
    """Run every gate (ruff, mypy, import contracts, shellcheck); changes nothing.

    Example: ./inv dev.check
    """
    from dev.check import check as run_gates

    return run_gates(print)


@verb(help=HELP)
def lock(c: Context, upgrade: bool = False) -> int:
    """Write requirements.lock anew from pyproject.toml.

    Example: ./inv dev.lock --upgrade
    """
    from dev.lock import lock as write_lock

    return write_lock(upgrade=upgrade)


@verb(help=HELP)
def hooks(c: Context) -> int:
    """Install a git pre-commit hook that runs dev.check.

    Example: ./inv dev.hooks
    """
    from dev.hooks import install_hook

    print(f"wrote {install_hook()}")
    return 0


ns = Collection(run_tests, Collection("dev", check, lock, hooks))
