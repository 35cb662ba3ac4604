"""The command line of 0.5.11: every flag it knows (flags.json), --config, and the values it settles on."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from rackhand.capacity import FlagValue, Gpu, ModelShape, auto_fraction

from .lines import Log

KINDS = {"int": int, "float": float, "str": str, "json": json.loads}
SHORT_NAMES = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "attention_context_parallel_size": "attn_cp_size",
    "moe_data_parallel_size": "moe_dp_size",
}
"""How the server's arguments call what the flags call by a longer name."""
SPECULATION_NOTE = (
    "Max running requests is reset to 48 for speculative decoding. "
    "You can override this by explicitly setting --max-running-requests."
)
NO_BUFFER_NOTE = (
    "Disabling overlap schedule since mamba no_buffer is not compatible with overlap schedule, "
    "try to use --disable-radix-cache if overlap schedule is necessary"
)


class ServerArgs(argparse.Namespace):
    """The flags by their Python names. Its repr is the one that 0.5.11 logs, API key and all."""

    def __repr__(self) -> str:
        return f"ServerArgs({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


def make_parser() -> argparse.ArgumentParser:
    """The parser with 0.5.11's names, types, choices and defaults; its prog is what that version prints."""
    parser = argparse.ArgumentParser(prog="sglang serve")
    for flag in json.loads(Path(__file__).with_name("flags.json").read_text()):
        options: dict[str, Any] = {k: flag[k] for k in ("dest", "default", "required") if k in flag}
        if flag["kind"] == "flag":
            options["action"] = "store_true"
        elif flag["kind"] == "bool":
            options["action"] = argparse.BooleanOptionalAction
        else:
            options |= {"type": KINDS[flag["kind"]]}
            options |= {k: flag[k] for k in ("choices", "nargs") if k in flag}
        parser.add_argument(*flag["names"], **options)
    return parser


def parse(argv: list[str]) -> ServerArgs:
    """Parses and exits as argparse does (2); ValueError for a wrong --config."""
    parser = make_parser()
    args = parser.parse_args(_merge_config(parser, argv), namespace=ServerArgs())
    for long, short in SHORT_NAMES.items():
        setattr(args, short, getattr(args, long))
        delattr(args, long)
    return args


def _merge_config(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    if "--config" not in argv:
        return argv
    at = argv.index("--config")
    if argv.count("--config") > 1:
        raise ValueError("Multiple config files specified! Only one allowed.")
    if at == len(argv) - 1:
        raise ValueError("No config file specified after --config flag!")
    return [*_config_words(parser, Path(argv[at + 1])), *argv[:at], *argv[at + 2 :]]


def _config_words(parser: argparse.ArgumentParser, path: Path) -> list[str]:
    import yaml

    if path.suffix.lower() not in (".yaml", ".yml"):
        raise ValueError(f"Config file must be YAML format, got: {path.suffix}")
    if not path.exists():
        raise ValueError(f"Config file not found: {path}")
    found = yaml.safe_load(path.read_text()) or {}
    if not isinstance(found, dict):
        raise ValueError("Config file must contain a dictionary at root level")
    switches = {a.dest for a in parser._actions if isinstance(a, argparse._StoreTrueAction)}  # noqa: SLF001
    words: list[str] = []
    for key, value in found.items():
        if isinstance(value, bool) and key.replace("-", "_") in switches:
            words += [f"--{key}"] if value else []
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        else:
            words += [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def sizing_flags(args: ServerArgs) -> dict[str, FlagValue]:
    """The flags that the memory model reads, as set on the command line or by `settle`."""
    names = (
        "tp_size pp_size dp_size speculative_algorithm speculative_num_draft_tokens mamba_scheduler_strategy "
        "disable_radix_cache disable_overlap_schedule max_running_requests max_mamba_cache_size mem_fraction_static "
        "mamba_full_memory_ratio mamba_ssm_dtype kv_cache_dtype max_total_tokens page_size attention_backend "
        "chunked_prefill_size cuda_graph_max_bs disable_piecewise_cuda_graph"
    )
    return {name: getattr(args, name) for name in names.split()}


def settle(args: ServerArgs, gpu: Gpu, model: ModelShape, lines: Log) -> None:
    """Fills in what 0.5.11 decides by itself, with the notes that it logs."""
    args.tokenizer_path = args.tokenizer_path or args.model_path
    args.served_model_name = args.served_model_name or args.model_path
    args.random_seed = args.random_seed if args.random_seed is not None else random.randint(0, 2**30)  # noqa: S311
    large = gpu.memory_mib >= 160 * 1024
    if args.mem_fraction_static is None:
        sizing = {k.replace("_", "-"): v for k, v in sizing_flags(args).items()}
        args.mem_fraction_static = auto_fraction(gpu, model, sizing)
    args.chunked_prefill_size = args.chunked_prefill_size or (16384 if large else 8192)
    args.cuda_graph_max_bs = args.cuda_graph_max_bs or (512 if large else 256)
    if args.attention_backend is None and not gpu.compute_capability.startswith("10."):
        args.attention_backend = "flashinfer"
    if args.speculative_algorithm:
        _settle_speculation(args, lines)
    if args.mamba_scheduler_strategy == "auto":
        args.mamba_scheduler_strategy = "no_buffer"
    if args.mamba_scheduler_strategy == "no_buffer" and not (args.disable_radix_cache or args.speculative_algorithm):
        lines.warning(NO_BUFFER_NOTE)
        args.disable_overlap_schedule = True


def _settle_speculation(args: ServerArgs, lines: Log) -> None:
    if args.speculative_algorithm == "NEXTN":
        args.speculative_algorithm = "EAGLE"
    if args.max_running_requests is None:
        args.max_running_requests = 48
        lines.warning(SPECULATION_NOTE)
    if args.speculative_num_steps is None:
        args.speculative_num_steps, args.speculative_eagle_topk = 3, 1
    if args.speculative_num_draft_tokens is None or args.speculative_eagle_topk == 1:
        args.speculative_num_draft_tokens = args.speculative_num_steps + 1
