from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackhand.errors import InventoryError, Mistake, UsageError
from rackhand.inventory import Env, FileSpec, PlainSsh, ProxmoxLxc, SecretRef, Ssh
from rackhand.load import find, load, load_text
from rackhand.load.fleet import SECTIONS

DATA = Path(__file__).parent / "inventories"
CHECKOUT = Path(__file__).resolve().parents[1]
ENVIRON = {"SET": "value-of-set", "SET_EMPTY": "", "RACKHAND_PVE_TOKEN": "t", "RACKHAND_SGLANG_KEY": "k"}
EVERYTHING = DATA / "right" / "everything.yaml"


def mistakes_in(path: Path) -> list[str]:
    with pytest.raises(InventoryError) as caught:
        load(path, ENVIRON)
    assert caught.value.exit_code == 2
    shown = (f"{m.line}: {m.what}{'; ' + m.hint if m.hint else ''}" for m in caught.value.mistakes)
    return [line.replace(str(path.parent), "HERE") for line in shown]


@pytest.mark.parametrize("path", sorted(DATA.glob("wrong/*.yaml")), ids=lambda path: path.stem)
def test_a_wrong_inventory_shows_all_its_mistakes_where_they_stand(path: Path) -> None:
    assert mistakes_in(path) == path.with_suffix(".txt").read_text().splitlines()


def test_a_secrets_variable_must_be_set_only_where_secrets_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("hosts: {a: {type: ssh, ssh: a, env: {variables: {HF_TOKEN: {env: UNSET}}}}}\n")
    assert mistakes_in(path)[0].endswith("environment variable UNSET is not set; export UNSET=...")
    variables = load(path, ENVIRON, needs_secrets=False).hosts[0].env.variables
    assert variables == {"HF_TOKEN": SecretRef(env="UNSET")}


def test_no_mistake_repeats_a_secret_that_stands_in_the_file() -> None:
    shown = "\n".join(mistakes_in(DATA / "wrong" / "secrets.yaml") + mistakes_in(DATA / "wrong" / "flags.yaml"))
    for secret in ("0a1b2c", "hf_clear", "AKIAABCDEFGHIJKLMNOP", "sk-abcdefghij", "clear;"):
        assert secret not in shown


@pytest.mark.parametrize("path", sorted((CHECKOUT / "inventory").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_inventory_loads(path: Path) -> None:
    fleet = load(path, ENVIRON)
    assert fleet.hosts and fleet.jobs and fleet.baselines


def test_the_lab_inventory_loads_by_name_from_anywhere_before_the_lab_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = load("lab", {})
    assert fleet.path == CHECKOUT / "inventory" / "lab.yaml"
    assert fleet.hosts[0].where == "lab/ct200"
    assert fleet.job().upload == CHECKOUT / ".lab" / "prompts.jsonl"


def test_an_inventory_of_the_current_directory_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "mine.yaml").write_text("hosts: {a: {type: ssh, ssh: a}}\n")
    monkeypatch.chdir(tmp_path)
    assert load("mine", {}).host("a").where == "a"


@pytest.mark.parametrize(
    ("name", "said"),
    [("labb", "did you mean lab?"), ("gone/lab.yaml", "no such inventory"), ("", "there is: example-b200")],
)
def test_an_inventory_that_is_not_there_is_a_usage_error_with_what_next(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        find(name)


def test_an_inventory_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such inventory"):
        load(tmp_path, {})


def test_a_mistake_names_the_file_as_the_operator_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_text("hosts: 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InventoryError, match=r"^x\.yaml:1: hosts: expected a mapping"):
        load("x.yaml", {})


def test_merge_keys_defaults_and_own_keys_win_in_that_order() -> None:
    host = load(EVERYTHING, ENVIRON).host("merged")
    assert host.road == ProxmoxLxc(Ssh("pve1", config=EVERYTHING.parent / "ssh" / "config"), vmid=200)
    assert (host.gpus, host.python, host.put, host.workspace) == ((2,), "/venv/bin/python", "push", "/data")
    assert (host.servers[0].model, host.servers[0].port_base) == ("default/model", 31000)
    assert host.servers[0].python == "/venv/bin/python"


def test_flag_values_are_what_their_words_look_like() -> None:
    assert load(EVERYTHING, ENVIRON).host("merged").servers[0].args == {
        "enable-metrics": True,
        "mem-fraction-static": 0.8,
        "max-running-requests": 128,
        "stop-words": ("a", 1, 2.5, "yes"),
        "quoted": "30000",
        "off": False,
        "small": 1e-5,
        "clock": "12:30",
        "version-like": "0.5.11",
        "override-args": '{"rope": {"factor": 2.0, "on": true}}',
    }


def test_files_are_relative_to_the_inventory_and_modes_are_octal() -> None:
    assert load(EVERYTHING, ENVIRON).host("merged").files == (
        FileSpec(EVERYTHING, "/data/a.yaml", 0o755, template=True),
        FileSpec(EVERYTHING, "/data/b.yaml", 0o600),
    )


def test_a_plain_host_takes_from_the_defaults_only_what_fits_it() -> None:
    host = load(EVERYTHING, ENVIRON).host("plain")
    assert host.road == PlainSsh(Ssh("me@b200", host_keys="accept-new", connect_timeout_s=2.5))
    assert host.env == Env(
        {
            "EMPTY": "",
            "NUMBER": "0.10",
            "KEY_FROM_ENV": SecretRef(env="SET"),
            "API_KEY": SecretRef(command=("pass", "show", "a b"), cwd=EVERYTHING.parent),
        },
        source="/root/env.sh",
    )
    first, second = host.servers
    assert (first.port, first.nccl_port, first.version) == (8000, 8001, "0.10")
    assert (second.gpus, second.session_prefix, second.ready_timeout_s) == ((0, 1), "s", 5.0)


def test_jobs_take_defaults_and_an_upload_gets_its_place_in_the_workspace() -> None:
    fleet = load(EVERYTHING, ENVIRON)
    upload, plain = fleet.job("upload"), fleet.job("plain")
    assert (upload.prompts, upload.upload, upload.output) == ("/data/p.jsonl", Path.home() / "p.jsonl", "/out")
    assert (upload.concurrency, plain.concurrency, plain.host) == ("auto", 7, "plain")
    assert plain.sampling == {"temperature": 1.0, "stop": ["no"], "seed": None, "something_else": ["no", False]}
    assert fleet.baselines[0].tok_s == 25000.5


@pytest.mark.parametrize(("servers", "models"), [("{}", ["m"]), ("", []), ("[]", []), ("[{}, {model: n}]", ["m", "n"])])
def test_an_empty_server_takes_all_from_the_defaults_and_no_server_nothing(servers: str, models: list[str]) -> None:
    text = f"hosts: {{a: {{type: ssh, ssh: a, servers: {servers}}}}}\ndefaults: {{servers: {{model: m, gpus: [0]}}}}\n"
    text = text.replace("{model: n}", "{model: n, gpus: [1]}")
    assert [spec.model for spec in load_text(text.encode(), EVERYTHING, {}).hosts[0].servers] == models


def test_no_value_of_a_secret_is_in_the_fleet() -> None:
    assert "value-of-set" not in repr(load(EVERYTHING, ENVIRON))


KEYS = sorted({key for keys in SECTIONS.values() for key in keys})
WORDS = st.one_of(
    st.sampled_from(
        [*KEYS, "a", "lab", "<<", "ssh", "proxmox-lxc", "all", "auto", "=x", "/w", "../x", "~x", "", "é", "\t"]
    ),
    st.text(max_size=6),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.dates(),
    st.binary(max_size=4),
)
TREES = st.recursive(
    WORDS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=4)), inner, max_size=5),
    ),
    max_leaves=25,
)
LINES = st.lists(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(
            ["", "  ", "    ", "- ", "  - ", "\t", "? ", "&a ", "*a", "---", "%", "!!", "'", '"', "{", "[", "|", ">"]
        ),
        st.sampled_from([*KEYS, "a", "<<", "&a", "*a", "!x", "\\U00110000", "#"]),
        st.sampled_from(
            [":", ": ", ": a", ": [", ": {", ": *a", ": &a", ": |", ': "\\u', ": !!int x", "", ": 1", ": {a: b}"]
        ),
    ),
    max_size=12,
).map("\n".join)


def assert_sound(data: bytes) -> None:
    mistakes: tuple[Mistake, ...] = ()
    try:
        load_text(data, DATA / "any.yaml", ENVIRON)
    except InventoryError as error:
        mistakes = error.mistakes
        str(error).encode()
        if not mistakes:
            raise
    lines = len(data.split(b"\n"))
    assert all(1 <= mistake.line <= lines for mistake in mistakes)
    assert list(mistakes) == sorted(mistakes, key=lambda mistake: mistake.line)


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SECTIONS["inventory"], TREES)) | TREES)
def test_any_structure_loads_or_has_mistakes_within_the_file(tree: object) -> None:
    assert_sound(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_good_inventory_with_one_value_replaced_loads_or_has_mistakes_within_the_file(data: st.DataObject) -> None:
    tree = node = yaml.safe_load(EVERYTHING.read_bytes())
    while True:
        places = sorted(node, key=str) if isinstance(node, dict) else range(len(node))
        place = data.draw(st.sampled_from(list(places)))
        if not isinstance(node[place], (dict, list)) or not node[place] or data.draw(st.integers(0, 5)) == 0:
            break
        node = node[place]
    node[place] = data.draw(TREES)
    assert_sound(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, EVERYTHING.stat().st_size),
    st.integers(0, 9),
    st.sampled_from([b"", b" ", b"\n", b"\t", b":", b"*common", b"\xff"]),
)
def test_a_good_inventory_cut_or_pasted_into_loads_or_has_mistakes_within_the_file(
    at: int, cut: int, put: bytes
) -> None:
    text = EVERYTHING.read_bytes()
    assert_sound(text[:at] + put + text[at + cut :])


@settings(max_examples=150, deadline=None)
@given(LINES.map(str.encode) | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary())
@example(b'hosts: {a: {type: ssh, ssh: a, workspace: "\\0"}}')
@example(b"\xef\xbb\xbfhosts:\n")
@example(b"a: !<tag:yaml.org,2002:int> x")
def test_any_text_loads_or_has_mistakes_within_the_file(data: bytes) -> None:
    assert_sound(data)


def documented() -> dict[str, list[str]]:
    """Section → the keys in the first column of its table in docs/inventory.md."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in (CHECKOUT / "docs" / "inventory.md").read_text().splitlines():
        if heading := re.match(r"## .*\(`([a-z]+)`\)$", line):
            section = heading[1]
        elif row := re.match(r"\| `([a-z_]+)` \|", line):
            found.setdefault(section, []).append(row[1])
    return found


def test_the_page_documents_exactly_the_keys_that_the_loader_knows() -> None:
    assert documented() == {section: list(keys) for section, keys in SECTIONS.items()}


def test_every_complete_example_on_the_page_loads(tmp_path: Path) -> None:
    page = (CHECKOUT / "docs" / "inventory.md").read_text()
    examples = re.findall(r"^```yaml\n(hosts:.*?|defaults:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(examples) >= 2
    for text in examples:
        assert load_text(text.encode(), tmp_path / "page.yaml", ENVIRON).hosts[0].servers
