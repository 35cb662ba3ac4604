"""`python -m sglang.launch_server`: parse, load in the foreground, bind the port at the end, warm up, serve."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from typing import TYPE_CHECKING

from lab.gpu import state
from rackhand.capacity import CapacityError

from .failures import kill_children, refuse
from .lines import Log, raw
from .loading import Loaded, Loader
from .server_args import ServerArgs, parse

if TYPE_CHECKING:
    from .life import Life

WARNING = (
    "<frozen runpy>:198: UserWarning: 'python -m sglang.launch_server' is still supported, "
    "but 'sglang serve' is the recommended entrypoint.\n"
    "  Example: sglang serve --model-path <model> [options]\n"
)
WARMUP_TOKENS = 8


def main(argv: list[str]) -> int:
    """The exit status: 2 for a wrong flag, 1 for a failed start or a taken port, 137 after a drain."""
    raw(WARNING)
    try:
        args = parse(argv)
    except ValueError as problem:
        return refuse(problem)
    lines = Log(args.log_level, args.log_level_http)
    loader = Loader(args, state.state_dir(), lines)
    try:
        loaded = loader.load()
        return _run(args, loader, loaded)
    except CapacityError as problem:
        return refuse(problem)
    except KeyboardInterrupt:
        raw("KeyboardInterrupt\n")
        return 130
    finally:
        kill_children(loader.children)


def _run(args: ServerArgs, loader: Loader, loaded: Loaded) -> int:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(args, loader, loaded))


async def _serve(args: ServerArgs, loader: Loader, loaded: Loaded) -> int:
    from aiohttp import web

    from .app import make_app
    from .life import Life

    lines = loader.lines
    life = Life(args, loaded, loader.children, loader.gpu, lines)
    lines.uvicorn(f"Started server process [{os.getpid()}]")
    lines.uvicorn("Waiting for application startup.")
    lines.uvicorn("Application startup complete.")
    runner = web.AppRunner(make_app(life), access_log=None, handler_cancellation=True, shutdown_timeout=3600.0)
    await runner.setup()
    try:
        await web.SockSite(runner, _bind(args)).start()
    except OSError as problem:
        lines.uvicorn(
            f"[Errno {problem.errno}] error while attempting to bind on address ('{args.host}', {args.port}): "
            f"{(problem.strerror or '').lower()}",
            error=True,
        )
        lines.uvicorn("Waiting for application shutdown.")
        lines.uvicorn("Application shutdown complete.")
        return 1
    lines.uvicorn(f"Uvicorn running on http://{args.host}:{args.port} (Press CTRL+C to quit)")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    life.start_tasks()
    warming = asyncio.create_task(_warm_up(life))
    await stop.wait()
    warming.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await warming
    lines.uvicorn("Shutting down")
    if life.in_flight:
        lines.uvicorn("Waiting for connections to close. (CTRL+C to force quit)")
    await runner.cleanup()
    lines.uvicorn("Application shutdown complete.")
    lines.uvicorn(f"Finished server process [{os.getpid()}]")
    return 0


def _bind(args: ServerArgs) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((args.host, args.port))
    except OSError:
        sock.close()
        raise
    return sock


async def _warm_up(life: Life) -> None:
    """A second's pause, the information request, one short generation; then the server is Up."""
    from .batch import Request

    if not life.args.skip_server_warmup:
        await asyncio.sleep(1.0 * life.scale)
        port = random.randint(32768, 60999)  # noqa: S311 - a client port in an access line
        life.lines.uvicorn(f'127.0.0.1:{port} - "GET /model_info HTTP/1.1" 200 OK')
        life.set_handlers()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        life.scheduler.submit(Request(81, WARMUP_TOKENS, WARMUP_TOKENS, done))
        await done
        life.lines.uvicorn(f'127.0.0.1:{port + 2} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
    life.up = True
    life.lines.info("The server is fired up and ready to roll!")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
