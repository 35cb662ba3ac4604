"""A simulated SGLang 0.5.11: its command line, log, endpoints, signals and sizes, without a model or a GPU.

Sizes come from `rackhand.capacity`, GPUs and their memory from `lab.gpu.state`, the pace from `lab.gpu.kinds`.
"""

__version__ = "0.5.11"
