from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackhand.arguments import flag_name, looks_secret, parse_gpus, scalar_value
from rackhand.errors import PreconditionError, RackhandError, UsageError
from rackhand.inventory import (
    Fleet,
    Host,
    Job,
    PlainSsh,
    ProxmoxLxc,
    ServerSpec,
    Ssh,
    parse_overrides,
    servers_of,
)


def host(*specs: ServerSpec, gpus: tuple[int, ...] | None = None) -> Host:
    return Host("a", ProxmoxLxc(Ssh("pve"), 200), gpus=gpus, servers=specs)


def test_one_spec_puts_a_server_on_every_gpu_that_was_seen() -> None:
    servers = servers_of(host(ServerSpec("m", args={"x": 1})), [1, 0])
    assert [(s.gpu, s.port, s.nccl_port, s.session, s.url) for s in servers] == [
        (0, 30000, 40000, "sglang-gpu0", "http://127.0.0.1:30000"),
        (1, 30001, 40001, "sglang-gpu1", "http://127.0.0.1:30001"),
    ]


def test_listed_gpus_and_single_ports_are_kept() -> None:
    specs = (ServerSpec("m", gpus=(3,), port=8000, nccl_port=9000), ServerSpec("n", gpus=(0, 1)))
    assert [(s.gpu, s.spec.model, s.port) for s in servers_of(host(*specs), range(4))] == [
        (0, "n", 30000),
        (1, "n", 30001),
        (3, "m", 8000),
    ]


def test_the_hosts_own_list_of_gpus_bounds_a_spec_without_one() -> None:
    assert [s.gpu for s in servers_of(host(ServerSpec("m"), gpus=(2, 5)), range(8))] == [2, 5]


def test_overrides_win_over_args_and_gpus_choose() -> None:
    servers = servers_of(host(ServerSpec("m", args={"x": 1, "y": 2})), [0, 1], gpus=(1,), overrides={"y": 3, "z": True})
    assert [(s.gpu, s.args) for s in servers] == [(1, {"x": 1, "y": 3, "z": True})]


def test_a_missing_gpu_stops_only_those_who_want_it() -> None:
    wanting = host(ServerSpec("m"), gpus=(0, 7))
    with pytest.raises(PreconditionError, match=r"^a/ct200: GPU 7 not found: nvidia-smi shows 0, 1;"):
        servers_of(wanting, [0, 1])
    assert [s.gpu for s in servers_of(wanting, [0, 1], gpus=(0,))] == [0]


@pytest.mark.parametrize(
    ("specs", "gpus", "said"),
    [
        ((ServerSpec("m", gpus=(0,)),), (1,), "no server on GPU 1; there is: 0"),
        (
            (ServerSpec("m", nccl_port_base=30010),),
            None,
            "30010 is both port_base of GPU 10 and nccl_port_base of GPU 0",
        ),
        ((ServerSpec("m"), ServerSpec("n")), None, "GPU 0 has two servers"),
    ],
)
def test_servers_that_cannot_be_are_refused(
    specs: tuple[ServerSpec, ...], gpus: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        servers_of(host(*specs), range(12), gpus=gpus)


def test_overrides_are_read_as_flags_with_their_values() -> None:
    words = [
        "mem_fraction_static=0.9",
        "--max-running-requests=128",
        "enable-metrics=true",
        "x=no",
        "l=[1, a]",
        "k=a=b",
    ]
    assert parse_overrides(words) == {
        "mem-fraction-static": 0.9,
        "max-running-requests": 128,
        "enable-metrics": True,
        "x": False,
        "l": (1, "a"),
        "k": "a=b",
    }


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("mem", "has no '='"),
        ("=1", "no flag name"),
        ("port=1", "set port or port_base"),
        ("--api-key=x", "set api_key"),
        ("tp=2", "one server on each GPU"),
        ("admin-api-key=x", "secret"),
    ],
)
def test_an_override_that_cannot_be_is_a_usage_error(word: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_overrides(["a=1", word])
    assert caught.value.exit_code == 2


def test_an_override_given_twice_is_refused_in_any_spelling() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse_overrides(["a-b=1", "--a_b=2"])


@pytest.mark.parametrize("word", ["a=", "a= ", "a"])
def test_an_override_without_a_value_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="has no"):
        parse_overrides([word])


@pytest.mark.parametrize(("text", "gpus"), [(None, None), (" 2, 0", (0, 2)), ("0-2,2,5", (0, 1, 2, 5))])
def test_gpus_are_lists_and_ranges(text: str | None, gpus: tuple[int, ...] | None) -> None:
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["", " ", ",", "a", "1,", "3-1", "-1", "1.5", "1000"])
def test_gpus_that_are_no_list_are_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="no list of GPU numbers"):
        parse_gpus(text)


@given(st.text())
def test_scalar_values_and_flag_names_take_any_text(text: str) -> None:
    value = scalar_value(text)
    assert value == value  # noqa: PLR0124
    try:
        name = flag_name(text)
    except ValueError:
        return
    assert flag_name(f"--{name}") == name


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("openai_api_key", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("ssl-keyfile-password", "x", True),
        ("ANY", "hf_abcdefghijklmnopqrstuvw", True),
        ("MAX_TOKENS", "5", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("AWS_ACCESS_KEY_ID", "x", False),
        ("reasoning-parser", "qwen3", False),
    ],
)
def test_secrets_are_known_by_their_names_and_forms(name: str, value: str, *, secret: bool) -> None:
    assert looks_secret(name, value) is secret


def fleet(*jobs: Job) -> Fleet:
    hosts = tuple(Host(name, PlainSsh(Ssh(name))) for name in ("rack1", "rack2", "b200"))
    return Fleet(Path("inventory/x.yaml"), hosts, jobs)


@pytest.mark.parametrize(
    ("text", "names"),
    [(None, ["rack1", "rack2", "b200"]), ("b200, rack1,rack1", ["rack1", "b200"])],
)
def test_hosts_are_selected_in_the_order_of_the_inventory(text: str | None, names: list[str]) -> None:
    assert [host.name for host in fleet().select(text)] == names


@pytest.mark.parametrize("text", ["", " ", ",", "rack1,", "rack1,,b200"])
def test_an_empty_name_selects_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="empty name"):
        fleet().select(text)


def test_the_only_job_needs_no_name() -> None:
    job = Job("one", "rack1", "/o", "/p")
    assert fleet(job).job() is fleet(job).job("one") is job


ONE, TWO = Job("one", "rack1", "/o", "/p"), Job("two", "rack1", "/o2", "/p")


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: fleet().select("rack1,rakc2"), "inventory/x.yaml: no host 'rakc2'; did you mean rack2?"),
        (lambda: fleet(ONE, TWO).job("tow"), "no job 'tow'; did you mean two?"),
        (lambda: fleet(ONE, TWO).job(), "there are several jobs; choose with --job: one, two"),
        (lambda: fleet().job(), "there is no job; add one under jobs:"),
        (lambda: fleet().job("x"), "no job 'x'; there is: none"),
    ],
)
def test_a_wrong_name_is_a_usage_error_with_the_nearest_right_one(ask: Callable[[], object], said: str) -> None:
    with pytest.raises(RackhandError) as caught:
        ask()
    assert isinstance(caught.value, UsageError)
    assert said in str(caught.value)
