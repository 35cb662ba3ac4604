"""The rules on what limits a server that works: memory, graphs, drafts, feeding, state, flags."""

from __future__ import annotations

from rackhand.diagnose.rule import Change, If, Rule
from rackhand.diagnose.rules import (
    IS_FULL,
    KV_FREE,
    KV_FULL,
    LIVE,
    NO_QUEUE,
    NOT_FULL,
    QUEUE,
    RESTART,
    RESUME,
    SETTLED,
)

_LOAD = "{running:.1f} running of {cap:.0f}, queue {queue:.1f}"
_AT_FULL_KV = frozenset({"state-bound", "flag-bound", "cap-bound", "prefill-bound", "client-bound", "client-slow"})
"""What says nothing while the KV pool holds requests back."""
_NO_CPU_PART = "the CPU's part of each step goes away"
KNOWN = If("samples", ">=", 1)
"""Always holds: beside it, an unknown figure leaves the advice out."""
_USAGE = "KV usage {kv:.2f}, mamba usage {mamba:.2f}"
_KV = "KV usage {kv:.2f}"
_FP8_KV = Change(
    "--set kv-cache-dtype=fp8_e4m3",
    "twice the KV tokens",
    f"lower precision: compare outputs first; {RESTART}",
    when=((If("fp8_kv", "<", 1),),),
    needs=("on_gpu",),
)
_CONSERVATIVE = Change(
    "--set schedule-conservativeness=1.3",
    "fewer requests are taken in only to be thrown out again",
    f"a few requests fewer run at a time; {RESTART}",
)
_MORE_KV = Change(
    "a larger mem-fraction-static, or a shorter context",
    "more KV tokens",
    f"less memory for activations, or shorter answers; {RESTART}",
)
_FEWER_STATES = Change(
    "a smaller mamba-full-memory-ratio",
    "more KV tokens from memory of states",
    f"fewer state slots; {RESTART}",
    needs=("has_states",),
)
_FEWER_DRAFTS = (If("draft_tokens", ">", 2),)
"""Two are the least: the token itself and one draft."""

MEMORY = (
    Rule(
        name="retraction-storm",
        when=((If("retractions_per_min", ">=", 6),),),
        sure=((If("retractions_per_min", ">=", 12),),),
        says="requests are thrown out again and again: {retractions:.0f} retractions in {seconds:.0f} s",
        evidence=("{retractions_per_min:.0f} retractions a minute", _KV, _LOAD),
        changes=(_CONSERVATIVE, _FP8_KV, _MORE_KV, _FEWER_STATES),
        hides=_AT_FULL_KV | {"kv-bound"},
    ),
    Rule(
        name="kv-bound",
        is_limit=True,
        when=(
            (LIVE, If("kv", ">=", KV_FULL)),
            (LIVE, If("retractions", ">=", 2)),
            (LIVE, IS_FULL, If("capped_by_tokens", ">=", 1)),
        ),
        sure=((If("kv", ">=", KV_FULL), If("seconds", ">=", 10)),),
        says="the KV pool is full",
        evidence=(_KV, "{retractions:.0f} retractions in {seconds:.0f} s", _LOAD),
        changes=(_FP8_KV, _MORE_KV, _FEWER_STATES, _CONSERVATIVE),
        hides=_AT_FULL_KV,
    ),
)

STEPS = (
    Rule(
        name="graph-bound",
        when=((LIVE, If("graph_off", ">=", 0.5)),),
        sure=((If("graph_off", ">=", 0.9), If("seconds", ">=", 10)),),
        says="decode steps run without a captured graph",
        evidence=("cuda graph: False in {graph_off:.0%} of the samples", _LOAD),
        changes=(
            Change(
                "--set cuda-graph-max-bs={cap:.0f}",
                _NO_CPU_PART,
                f"some hundred MiB for graphs, a longer start; {RESTART}",
                when=((If("graph_max", "<", "cap"),),),
                needs=("graphs_on",),
            ),
            Change(
                "--set disable-cuda-graph=false",
                _NO_CPU_PART,
                RESTART,
                when=((If("has_disable-cuda-graph", ">=", 1),),),
            ),
            *(
                Change(f"--set {flag}=false", _NO_CPU_PART, RESTART, when=((KNOWN, If(f"has_{flag}", ">=", 1)),))
                for flag in ("disable-decode-cuda-graph", "cuda-graph-backend-decode")
            ),
            Change(
                "look in the server's start-up log for why no graph was captured",
                "the cause",
                "nothing",
                when=((If("graph_max", ">=", "cap"),),),
                needs=("graphs_on",),
            ),
        ),
        needs=("on_gpu",),
    ),
    Rule(
        name="drafts-do-not-pay",
        when=((LIVE, If("accept_len", "<", 1.3), If("accept_len", ">", 0)),),
        sure=((If("accept_len", "<", 1.15), If("seconds", ">=", 10)),),
        says="speculation does not pay: {accept_len:.2f} tokens a step",
        evidence=("accept len {accept_len:.2f}; 1.00 is what a step gives without drafts",),
        changes=(
            Change(
                "--set speculative-algorithm=false",
                "each step does less work, and the memory of drafts and intermediate states becomes slots and tokens",
                RESTART,
            ),
            Change("fewer draft tokens", "the same in part", RESTART, when=(_FEWER_DRAFTS,)),
        ),
        needs=("drafts",),
    ),
    Rule(
        name="prefill-bound",
        when=((LIVE, If("queue", ">=", 1), NOT_FULL, KV_FREE, If("pending_tokens", ">=", "chunk")),),
        sure=((If("pending_tokens", ">=", "four_chunks"),),),
        says="prompts wait to be read in: {pending_tokens:,.0f} tokens are pending",
        evidence=(_LOAD, "{pending_tokens:,.0f} prompt tokens wait, {chunk:,.0f} are read a step", _KV),
        changes=(
            Change(
                "--set chunked-prefill-size={two_chunks:.0f}",
                "requests come in faster: at most x{gain:.2f} running",
                f"more memory for activations, longer pauses of the decoding; {RESTART}",
                needs=("has_chunks",),
            ),
            Change(
                "order prompts so that equal beginnings follow each other",
                "prefix hits",
                "a new prompts file",
                needs=("has_radix",),
            ),
        ),
    ),
)

FEEDING = (
    Rule(
        name="client-slow",
        when=((LIVE, SETTLED, NO_QUEUE, NOT_FULL, If("client_lags", ">=", 1)),),
        says="the generator can't keep up: {empty:.0f} slots per GPU stand empty though it may send {sent:.0f}",
        evidence=(_LOAD, "{arrived_share:.0%} of the requests that the generator may send are at the server"),
        changes=(
            Change(
                "look at the generator: its log, its CPU, its disk; several hosts' servers want several generators",
                "at most x{gain:.2f} running",
                RESUME,
            ),
        ),
    ),
    Rule(
        name="client-bound",
        when=(
            (
                LIVE,
                SETTLED,
                NO_QUEUE,
                NOT_FULL,
                If("running", ">=", 0.5),
                If("draining", "<", 1),
                If("client_lags", "<", 1),
            ),
        ),
        sure=(
            (If("sent", "<", "cap"), If("arrived_share", ">=", 0.9)),
            (If("queue_max", "<=", 0), If("seconds", ">=", 20)),
        ),
        says="the client sends too little: {empty:.0f} slots per GPU stand empty",
        evidence=(_LOAD, _USAGE, _KV, "the generator sends {sent:.0f} per server"),
        changes=(
            Change(
                "./inv resume --concurrency auto, or {cap:.0f}",
                "{cap:.0f} running instead of {running:.0f}: at most x{gain:.2f} tok/s",
                "nothing: the generator takes it within a second, and asks nothing again",
            ),
        ),
    ),
)

CAPS = (
    Rule(
        name="state-bound",
        is_limit=True,
        when=(
            (LIVE, IS_FULL, KV_FREE, If("capped_by_slots", ">=", 1)),
            (LIVE, IS_FULL, KV_FREE, If("cap_unexplained", ">=", 1), If("mamba_at_cap", ">", "kv_at_cap")),
        ),
        sure=((QUEUE, If("capped_by_slots", ">=", 1)), (If("projected", ">=", 1), If("capped_by_slots", ">=", 1))),
        says="the state pool limits the requests at a time: cap {cap:.0f}",
        evidence=(
            "cap {cap:.0f} = {slots:.0f} state slots // {slots_each:.0f}",
            "cap {cap:.0f} at slots // {slots_each_told:.0f}, as its strategy says",
            _LOAD,
            "KV usage {kv_at_cap:.2f} and mamba usage {mamba_at_cap:.2f} with all slots in use",
        ),
        changes=(
            Change(
                "--set mamba-ssm-dtype=bfloat16",
                "nearly twice the slots",
                f"changes the state's numerics: compare outputs first; {RESTART}",
                when=((If("bf16_state", "<", 1),),),
            ),
            Change(
                "--set mamba-scheduler-strategy=no_buffer --set disable-overlap-schedule=true",
                "cap {cap_no_buffer:.0f} instead of {cap:.0f}: x{gain_no_buffer:.2f} running",
                f"steps without overlap are slower: measure; {RESTART}",
                when=((If("slots_each", ">", 3), If("drafts", "<", 1)),),
            ),
            Change(
                "a larger mem-fraction-static and mamba-full-memory-ratio, e.g. 0.90 and 1.2",
                "more slots from memory that KV does not use",
                f"less memory for activations and KV; {RESTART}",
                when=((If("past_example", "<", 1),),),
            ),
            Change(
                "a larger mamba-full-memory-ratio",
                "more slots from memory that KV does not use",
                f"less memory for KV; {RESTART}",
                when=((KNOWN, If("past_example", ">=", 1)),),
            ),
            Change(
                "--set disable-radix-cache=true --set max-running-requests={slots:.0f}",
                "one slot a request",
                f"no prefix hits; {RESTART}",
                when=((KNOWN, If("slots_each", ">", 1), If("slots_each", "<=", 3)),),
                needs=("has_radix",),
            ),
            Change(
                "--set disable-radix-cache=true --set mamba-scheduler-strategy=no_buffer"
                " --set max-running-requests={slots:.0f}",
                "one slot a request",
                f"no prefix hits; {RESTART}",
                when=((If("slots_each", ">", 3),),),
                needs=("has_radix",),
            ),
            Change(
                "fewer draft tokens",
                "their intermediate states become slots",
                f"fewer tokens a step; {RESTART}",
                when=(_FEWER_DRAFTS,),
                needs=("drafts",),
            ),
        ),
        needs=("has_states",),
        hides=frozenset({"cap-bound"}),
    ),
    Rule(
        name="flag-bound",
        is_limit=True,
        when=((LIVE, IS_FULL, If("capped_by_asked", ">=", 1)),),
        sure=((QUEUE,), (If("projected", ">=", 1),)),
        says="max-running-requests={asked:.0f} is the limit",
        evidence=(_LOAD, "{slots:.0f} state slots // {slots_each:.0f} would carry {cap_by_slots:.0f}", _KV),
        changes=(
            Change(
                "--set max-running-requests={cap_by_slots:.0f}",
                "{cap_by_slots:.0f} running instead of {cap:.0f}",
                RESTART,
            ),
            Change("a larger max-running-requests", "more running; KV usage is {kv:.2f}", RESTART),
        ),
        hides=frozenset({"cap-bound"}),
    ),
    Rule(
        name="cap-bound",
        when=((LIVE, IS_FULL, KV_FREE, QUEUE),),
        says="the server is full at its cap {cap:.0f}; what sets the cap is not known",
        evidence=(_LOAD, _USAGE, _KV),
        changes=(Change("look for max_running_requests in the server's start-up log", "", "nothing"),),
    ),
)
