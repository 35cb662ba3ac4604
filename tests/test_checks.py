"""prompts.check and verify: what they find, what they say, and their exit codes."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackhand.contract.checks import PromptsCheck, Verified
from rackhand.contract.job import PROMPT_COLUMNS, Progress
from rackhand.errors import PreconditionError
from rackhand.inventory import Fleet, Host, Job
from rackhand.load import load_text
from rackhand.render.checks import prompts_lines, tell_checked, verified_lines
from rackhand.report import Checked
from rackhand.transport import Transport
from rackhand.transport.local import Local
from rackhand.workflows.checks import check_file, check_job
from rackhand.workflows.checks import verify as verify_job
from rackhand.workflows.fleet import Roads
from remote.check_prompts import Seen, check_prompts
from remote.generator.quality import DEFAULT, quality_of
from remote.generator.run_loop import put_progress
from remote.output.ledger import Batch
from remote.output.recovery import open_ledger
from remote.prompts.shapes import Reading
from remote.verify import verify

ROWS: list[Any] = [
    {"prompt": "a" * 10},
    {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "b" * 19}], "tools": [{"name": "f"}]},
    "",
    {"prompt": " "},
    {"text": "x"},
    {"prompt": "a" * 10, "id": 7},
]


def _file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\r\n".join(json.dumps(row) if row else "" for row in ROWS) + "\n{")
    return path


def test_a_prompts_file_is_told_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = check_file(str(_file(tmp_path)))
    found = checked.found
    assert isinstance(found, PromptsCheck)
    assert (found.lines, found.blank, found.rows, found.bad_lines, found.empty) == (7, 1, 6, 3, 1)
    assert (found.shapes, found.with_tools, found.with_system) == ({"prompt": 2, "messages": 1}, 1, 1)
    assert [bad.line for bad in found.bad] == [4, 5, 7]
    assert (found.duplicates, [(row.line, row.what) for row in found.duplicated]) == (1, [(6, "asks what line 1 asks")])
    assert found.chars == {"least": 10, "p50": 10, "p90": 20, "p99": 20, "most": 20, "mean": 13.3}
    assert any("no newline" in note for note in found.notes)
    assert tell_checked(checked, as_json=False) == 3
    text = capsys.readouterr().out
    assert "line 5: none of messages" in text
    assert "bad lines                3, of them 1 empty prompts" in text
    assert tell_checked(checked, as_json=True) == 3
    event = json.loads(capsys.readouterr().out)
    assert (event["event"], event["bad_lines"], event["where"]) == ("prompts", 3, "local")


def test_a_good_file_ends_with_0_and_a_jobs_columns_are_used(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "x"}\n')
    job = Job("j", "h", "/out", "/p", columns={"prompt": "question"})
    assert check_file(str(path), job).exit_code == 0
    with pytest.raises(PreconditionError, match=r"none of its 1 rows can be asked; line 1: .* its keys: question"):
        check_file(str(path))
    with pytest.raises(PreconditionError, match="no file"):
        check_file(str(tmp_path / "nowhere.jsonl"))


def test_duplicates_are_found_whatever_the_number_of_rows() -> None:
    seen = Seen()
    rows = [*range(5000), *random.Random(1).sample(range(5000), 300)]  # noqa: S311
    for at, row in enumerate(rows):
        seen.add(at, b"%d" % row)
    count, found = seen.duplicates()
    assert count == 300
    assert found == [(5000 + i, rows[5000 + i]) for i in range(20)]


def _record(index: int, completion: str = "fine", *, tokens: int = 50, finish: str = "stop") -> tuple[int, bytes]:
    record = {"index": index, "completion": completion, "finish_reason": finish, "usage": {"completion_tokens": tokens}}
    return index, json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _output(tmp_path: Path) -> Path:
    ledger = open_ledger(tmp_path, lambda text: None, shard_bytes=400)
    for start in range(0, 20, 5):
        ledger.commit(Batch(records=[_record(i) for i in range(start, start + 5)]))
    rejected = json.dumps({"index": 20, "completion": "", "reason": "empty"}).encode() + b"\n"
    ledger.commit(Batch(rejected=[(20, rejected)]))
    ledger.close_shard()
    ledger.close()
    return tmp_path


def test_a_right_output_is_said_to_be_right(tmp_path: Path) -> None:
    found = verify(_output(tmp_path), DEFAULT)
    assert (found.records, found.listed, found.rejected, found.mean_tokens) == (20, 21, {"empty": 1}, 50)
    assert (found.problems, found.faults, found.finish_reasons) == ((), {}, {"stop": 20})
    assert {shard.state for shard in found.shards} == {"closed"}
    assert Checked("x", found).exit_code == 0
    assert any(line.startswith("ledger") and line.endswith("right") for line in verified_lines(found))


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"fine")] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda out: _flip(out / "completions-00000.jsonl"), "its sha256 isn't the manifest's"),
        (lambda out: (out / "completions-00001.jsonl").unlink(), "in the manifest but not here"),
        (lambda out: (out / ".done_indices").write_text("0\n0\n"), ".done_indices: 1 twice"),
        (lambda out: (out / ".done_indices").write_text("0\n"), ".done_indices: 20, the first 1, 2"),
        (lambda out: (out / "completions-00009.jsonl").write_bytes(_record(3)[1]), "1 indices that stand elsewhere"),
        (lambda out: (out / "completions-00009.jsonl").write_bytes(b'{"index":30'), "1 lines that are no whole record"),
        (lambda out: (out / "completions-00009.jsonl").write_bytes(_record(30)[1]), "indices: 1, the first 30"),
        (lambda out: (out / "completions-00000.jsonl").write_bytes(b""), "0 bytes, the manifest says"),
        (lambda out: (out / "manifest.jsonl").unlink(), "not in the manifest; the next start closes it"),
    ],
)  # fmt: skip
def test_each_harm_to_a_ledger_is_named(tmp_path: Path, harm: Any, words: str) -> None:
    output = _output(tmp_path)
    harm(output)
    found = verify(output, DEFAULT)
    assert any(words in problem for problem in found.problems), found.problems
    assert Checked("x", found).exit_code == 3


def test_lines_of_the_prompts_that_could_not_be_read_are_named_and_end_with_3(tmp_path: Path) -> None:
    unread = Progress(9, 7, 0, 1.0, 0.0, 0, 0, 0.0, 0.1, 0, 0, "done", bad_lines=2, bad_line_numbers=[3, 17])
    put_progress(_output(tmp_path), unread)
    found = verify(tmp_path, DEFAULT)
    assert (found.bad_lines, found.bad_line_numbers, found.problems) == (2, (3, 17), ())
    assert Checked("x", found).exit_code == 3
    assert any(line.endswith("2 lines could not be read (lines 3, 17)") for line in verified_lines(found))


def test_bad_records_are_counted_by_the_jobs_own_options(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, lambda text: None)
    rows = [_record(0), _record(1, tokens=6), _record(2, "so it goes " * 90), _record(3, finish="length")]
    ledger.commit(Batch(records=rows))
    ledger.close()
    found = verify(tmp_path, DEFAULT)
    assert found.faults == {"short": 1, "repetition": 1, "length": 1}
    assert found.examples["short"] == ("completions-00000.jsonl:2: 6 tokens, fewer than 8",)
    assert Checked("x", found).exit_code == 3
    assert any("1 short (25.0%)" in line for line in verified_lines(found))
    lenient = verify(tmp_path, quality_of({"min_tokens": 1, "max_repetition": 1000}))
    assert (lenient.faults, Checked("x", lenient).exit_code) == ({"length": 1}, 0)


@pytest.mark.parametrize(
    ("cut", "of", "options", "meant"),
    [
        (0, 20, {}, 0),
        (1, 20, {}, 0),
        (9, 20, {}, 0),
        (10, 20, {}, 10),
        (20, 20, {}, 20),
        (20, 20, {"reject_length": True}, 0),
    ],
)
def test_answers_cut_by_a_limit_that_was_asked_so_low_are_told_by_their_share(
    tmp_path: Path, cut: int, of: int, options: dict[str, Any], meant: int
) -> None:
    ledger = open_ledger(tmp_path, lambda text: None)
    rows = [_record(index, finish="length" if index < cut else "stop") for index in range(of)]
    ledger.commit(Batch(records=rows))
    ledger.close()
    found = verify(tmp_path, quality_of(options))
    assert found.cut_on_purpose == meant
    assert found.faults == ({"length": cut} if cut and not meant else {})
    assert set(found.examples) == set(found.faults)
    assert any("taken as meant" in line for line in verified_lines(found)) == bool(meant)
    assert Checked("x", found).exit_code == 0


@pytest.mark.parametrize(
    ("cut_rows", "meant", "bad"),
    [
        ({"thinking": 20}, 0, 20),
        ({"thinking": 15}, 0, 15),
        ({"thinking": 6, "text": 6}, 0, 12),
        ({"thinking": 5, "text": 10}, 10, 5),
        ({"call": 10}, 10, 0),
    ],
)
def test_answers_cut_while_thinking_are_bad_whatever_their_share(
    tmp_path: Path, cut_rows: dict[str, int], meant: int, bad: int
) -> None:
    cut: dict[str, Any] = {"finish_reason": "length", "usage": {"completion_tokens": 50}}
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    whole = {**cut, "completion": "a fair answer", "finish_reason": "stop"}
    kinds = {
        "thinking": {**cut, "completion": "", "reasoning": "let me think about this"},
        "text": {**cut, "completion": "a fair answer that goes on"},
        "call": {**cut, "completion": "", "tool_calls": [call]},
    }
    made = [kinds[kind] for kind, count in cut_rows.items() for _ in range(count)]
    rows = [{"index": index, **row} for index, row in enumerate(made + [whole] * (20 - len(made)))]
    ledger = open_ledger(tmp_path, lambda text: None)
    ledger.commit(Batch(records=[(row["index"], json.dumps(row).encode() + b"\n") for row in rows]))
    ledger.close()
    found = verify(tmp_path, quality_of({}))
    assert (found.cut_on_purpose, found.faults) == (meant, {"length": bad} if bad else {})
    assert set(found.examples) == set(found.faults)
    assert all("while thinking" in one for one in found.examples.get("length", ())[: cut_rows.get("thinking", 0)])
    assert Checked("x", found).exit_code == 0


JUNK = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.dictionaries(st.sampled_from([*PROMPT_COLUMNS, "x"]), st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["user", "gpt", "[]"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                st.sampled_from(["role", "content", "from", "value", "tool_calls", "text"]), inner, max_size=3),
            max_leaves=6), max_size=4).map(lambda row: json.dumps(row).encode()),
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(lines=JUNK, last=st.sampled_from(["drop", "continue"]))
def test_no_file_is_too_odd_to_be_read(lines: list[bytes], last: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "junk.jsonl"
    path.write_bytes(b"\n".join(lines))
    found = check_prompts(path, Reading(last_assistant=last, keep=("x",)))
    assert found.rows == found.bad_lines + sum(found.shapes.values())
    assert found.lines == found.blank + found.rows
    assert list(prompts_lines(found))


def test_a_check_of_nothing_and_an_empty_output_have_nothing_wrong(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b"")
    found = check_prompts(tmp_path / "p.jsonl", Reading())
    assert (found.lines, found.chars, list(prompts_lines(found))[-1]) == (0, {}, "characters               none")
    empty = verify(tmp_path, DEFAULT)
    assert isinstance(empty, Verified)
    assert (empty.records, empty.problems) == (0, ())


class _Here(Roads):
    """Every host is this machine."""

    def open(self, host: Host) -> Transport:
        return Local(host.where)


def _fleet(tmp_path: Path) -> Fleet:
    text = f"""
hosts: {{h: {{type: ssh, ssh: h, python: {sys.executable}}}}}
jobs:
  j:
    {{host: h, prompts: {tmp_path}/p.jsonl,
     output: {tmp_path}/out, columns: {{prompt: q}}, quality: {{min_tokens: 60}}}}
"""
    return load_text(text.encode(), tmp_path / "i.yaml", {})


def test_a_jobs_prompts_and_output_are_read_where_they_are(tmp_path: Path) -> None:
    said: list[str] = []
    fleet = _fleet(tmp_path)
    job, roads = fleet.job(), _Here()
    with pytest.raises(PreconditionError, match="no prompts file"):
        check_job(fleet, job, say=lambda where, text: said.append(text), roads=roads)
    with pytest.raises(PreconditionError, match="no output"):
        verify_job(fleet, job, say=lambda where, text: said.append(text), roads=roads)
    (tmp_path / "p.jsonl").write_text('{"q": "x"}\n')
    (tmp_path / "out").mkdir()
    _output(tmp_path / "out")
    prompts = check_job(fleet, job, say=lambda where, text: said.append(text), roads=roads)
    assert (prompts.where, prompts.exit_code) == ("h", 0)
    output = verify_job(fleet, job, say=lambda where, text: said.append(text), roads=roads)
    assert isinstance(output.found, Verified)
    assert (output.exit_code, output.found.faults, output.found.problems) == (3, {"short": 20}, ())
    assert f"reading {tmp_path}/out" in said
