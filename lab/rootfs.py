"""The containers' writable layer: what makes an overlay of this machine's root look like a fresh GPU machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import sysconfig
from pathlib import Path

from lab.place import LabError, Place

INIT = "/usr/local/sbin/rackhand-lab-init"
FRESH = ("root", "home", "tmp", "var/tmp", "workspace", "opt", "srv", "mnt", "media")
"""Directories that show nothing of this machine; what the interpreter needs of them is bound back in."""

LIBRARIES = ("cu13", "cublas", "cuda_nvrtc", "cuda_runtime", "cudnn", "cufft", "cusparselt", "nccl", "nvshmem")

INIT_SCRIPT = """\
#!/bin/sh
# PID 1 of a lab container: reaps, and ends like an init when LXC asks (SIGPWR) or the machine goes down.
halt() {
    kill -TERM -1 2>/dev/null
    n=0
    while set -- /proc/[0-9]* && [ $# -gt 1 ] && [ "$n" -lt 50 ]; do n=$((n + 1)); sleep 0.1; done
    exit 0
}
trap halt PWR TERM INT RTMIN+3
ip link set lo up 2>/dev/null
while :; do sleep 86400 & wait $!; done
"""


def interpreter() -> Path:
    """The base interpreter of the running virtual environment, all links resolved."""
    return Path(sys.executable).resolve()


def site_packages() -> Path:
    return Path(sysconfig.get_path("purelib")).resolve()


def read_only_paths(place: Place) -> tuple[Path, ...]:
    """What is bound read-only into a container at its own path: the checkout, its packages, their interpreter."""
    prefix = Path(sys.base_prefix).resolve()
    paths = [place.checkout, site_packages()]
    if not prefix.is_relative_to("/usr"):
        paths.append(prefix)
    return tuple(path for path in paths if not any(path != one and path.is_relative_to(one) for one in paths))


def seed(place: Place, vmid: int) -> None:
    """Makes the writable layer of one container, and its workspace."""
    if importlib.util.find_spec("aiohttp") is None:
        raise LabError(f"{sys.executable} has no aiohttp, which the container borrows; use the checkout's ./inv")
    upper = place.upper(vmid)
    for name in FRESH:
        folder = upper / name
        folder.mkdir(parents=True, exist_ok=True)
        os.setxattr(folder, "trusted.overlay.opaque", b"y")
    for name, mode in (("root", 0o700), ("root/.ssh", 0o700), ("tmp", 0o1777), ("var/tmp", 0o1777)):
        (upper / name).mkdir(exist_ok=True)
        (upper / name).chmod(mode)
    for folder in (place.workspace(vmid), place.gpu_dir(vmid)):
        folder.mkdir(parents=True, exist_ok=True)
    _put(upper / INIT.lstrip("/"), INIT_SCRIPT)
    _put(upper / "etc/hostname", f"gpu{vmid}\n", mode=0o644)
    _put(upper / "etc/hosts", f"127.0.0.1 localhost gpu{vmid}\n::1 localhost\n", mode=0o644)
    _put(upper / "usr/bin/nvidia-smi", _module_script(place, "lab.gpu.nvidia_smi"))
    _seed_python(place, upper)


def _seed_python(place: Place, upper: Path) -> None:
    """/opt/sglang: a virtual environment with the checkout's packages and the simulated sglang, which needs the lab."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    venv, site = upper / "opt/sglang", f"opt/sglang/lib/python{version}/site-packages"
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", f"python{version}"):
        link = venv / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(interpreter())
    _put(
        venv / "pyvenv.cfg",
        f"home = {interpreter().parent}\ninclude-system-site-packages = false\nversion = {version}\n",
        mode=0o644,
    )
    _put(upper / site / "lab.pth", f"{site_packages()}\n{place.checkout / 'lab/site'}\n{place.checkout}\n", mode=0o644)
    nvidia = f"/{site}/nvidia"
    for name in LIBRARIES:
        (upper / nvidia.lstrip("/") / name / "lib").mkdir(parents=True, exist_ok=True)
    (upper / nvidia.lstrip("/") / "cu13/bin").mkdir(exist_ok=True)
    paths = ":".join(f"{nvidia}/{name}/lib" for name in LIBRARIES)
    _put(
        upper / "root/sglang_env.sh",
        f"export CUDA_HOME={nvidia}/cu13\nexport LD_LIBRARY_PATH={paths}\n"
        'echo "CUDA_HOME=$CUDA_HOME"\necho "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"\n',
        mode=0o644,
    )


def _module_script(place: Place, module: str) -> str:
    """A command that runs a module of the checkout; -S leaves the site packages out, which halves its start."""
    checkout, python = shlex.quote(str(place.checkout)), shlex.quote(str(interpreter()))
    return f'#!/bin/sh\nPYTHONPATH={checkout} exec {python} -S -m {module} "$@"\n'


def _put(path: Path, text: str, *, mode: int = 0o755) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
