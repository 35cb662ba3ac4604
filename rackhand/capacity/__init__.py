"""What SGLang will do with a model, a GPU, a version and flags, before anything is launched. Pure.

`predict` sizes the pools, `rate` says how fast they are, `advice` which flags would serve a job better.
"""

from __future__ import annotations

from rackhand.capacity.errors import CapacityError, DoesNotFit, FlagsRefused, UnknownModel, UnsupportedVersion
from rackhand.capacity.fraction import auto_fraction
from rackhand.capacity.limits import CappedBy, slots_per_request
from rackhand.capacity.predict import Capacity, predict
from rackhand.capacity.read import Flags, FlagValue
from rackhand.capacity.regimes import SUPPORTED, regime_of, release_of
from rackhand.capacity.shapes import (
    B200,
    GIB,
    QWEN3_6_27B,
    QWEN3_6_27B_FP8,
    QWEN3_6_27B_NVFP4,
    RTX_PRO_6000,
    Gpu,
    ModelShape,
    conv_bytes,
    kv_token_bytes,
    ssm_bytes,
)

__all__ = [
    "B200",
    "GIB",
    "QWEN3_6_27B",
    "QWEN3_6_27B_FP8",
    "QWEN3_6_27B_NVFP4",
    "RTX_PRO_6000",
    "SUPPORTED",
    "Capacity",
    "CapacityError",
    "CappedBy",
    "DoesNotFit",
    "FlagValue",
    "Flags",
    "FlagsRefused",
    "Gpu",
    "ModelShape",
    "UnknownModel",
    "UnsupportedVersion",
    "auto_fraction",
    "conv_bytes",
    "kv_token_bytes",
    "predict",
    "regime_of",
    "release_of",
    "slots_per_request",
    "ssm_bytes",
]
