"""Closed shards go to an object store while the job runs, in a thread of their own that nothing waits for.

What is verified there stands in uploads.jsonl, a line a shard; a shard that isn't is sent again by the next run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rackhand.contract.job import MANIFEST_FILE, UPLOADS_FILE, JobFile
from remote.output.append_file import AppendFile
from remote.output.done_file import done_lines
from remote.output.index_set import IndexSet
from remote.output.jsonl import cut_torn_line, repair_lines
from remote.output.ledger import utc_now
from remote.output.object_store import ShardError, Store, StoreError
from remote.output.shards import Closed, observe_manifest, observe_shard, shard_number
from remote.output.uploads_file import UPLOADED_FILE, Uploaded, observe_uploads

_POLL_S = 1.0
_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 60.0
PATIENCE_S = 120.0
"""How long a finished job waits for a store that takes nothing."""


class Uploader:
    """`trouble` says why nothing goes there now.

    `owner` names the output: the store's place becomes its own. `delete_local` removes a shard here once it is
    verified there.
    """

    def __init__(
        self,
        output: Path,
        store: Store,
        say: Callable[[str], None],
        *,
        owner: str = "",
        first_shard: int = 0,
        delete_local: bool = False,
    ) -> None:
        self.trouble = ""
        self._output = output
        self._store = store
        self._say = say
        self._owner = owner
        self._claimed = False
        self._wrong: set[str] = set()
        self._first_shard = first_shard
        self._delete_local = delete_local
        repair_lines(output / UPLOADS_FILE)
        self._uploads = AppendFile(output / UPLOADS_FILE)
        self._sent = observe_uploads(output)
        self._manifest_size = -1
        self._closed: list[Closed] = []
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="uploader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def shards(self) -> int:
        """Of this output, verified in the store."""
        return len(self._sent)

    @property
    def size(self) -> int:
        """Their bytes."""
        return sum(entry.size for entry in tuple(self._sent.values()))

    @property
    def left(self) -> int:
        """Closed shards that aren't there yet."""
        return sum(not self._is_sent(entry) for entry in self._look())

    def stop(self, timeout_s: float) -> None:
        """A transfer that isn't over by then is given up; the store shows nothing of it."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            self._send_all()
        finally:
            if not self._stopping.is_set():
                self.trouble = "uploads ended by an error; the next run goes on with them"

    def _send_all(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._stopping.is_set():
            waiting = self._look()
            if not waiting:
                self._stopping.wait(_POLL_S)
                continue
            entry = min(waiting, key=self._turn)
            try:
                self._claim()
                self._send(entry)
                wait_s = _FIRST_WAIT_S
            except (StoreError, OSError) as error:
                if not self.trouble:
                    self._say(f"not uploaded, tried again: {error}")
                self.trouble = str(error)
                if isinstance(error, ShardError):
                    self._wrong.add(entry.shard)
                self._stopping.wait(wait_s)
                wait_s = min(_MAX_WAIT_S, wait_s * 2)

    def _turn(self, entry: Closed) -> tuple[bool, bool, int]:
        """What can't be sent as it stands waits behind the others, and removals behind uploads."""
        return entry.shard in self._wrong, self._is_sent(entry), shard_number(entry.shard)

    def _look(self) -> list[Closed]:
        """The closed shards that wait, to be sent or removed; the manifest is read when it has grown."""
        manifest = self._output / MANIFEST_FILE
        with self._lock:
            size = manifest.stat().st_size if manifest.exists() else 0
            if size != self._manifest_size:
                entries = observe_manifest(manifest).values()
                self._closed = [entry for entry in entries if shard_number(entry.shard) >= self._first_shard]
                self._manifest_size = size
            return [entry for entry in self._closed if not self._is_sent(entry) or self._is_removable(entry)]

    def _is_sent(self, entry: Closed) -> bool:
        sent = self._sent.get(entry.shard)
        if sent is None or sent.sha256 != entry.sha256:
            return False
        return sent.store == self._store.url or not (self._output / entry.shard).exists()

    def _is_removable(self, entry: Closed) -> bool:
        return self._delete_local and (self._output / entry.shard).exists()

    def _claim(self) -> None:
        if not self._claimed:
            self._store.claim(self._owner)
            self._claimed = True

    def _send(self, entry: Closed) -> None:
        path = self._output / entry.shard
        self._store.put(path, entry.size, entry.sha256)
        if not self._is_sent(entry):
            sent = Uploaded(entry.shard, entry.size, entry.sha256, self._store.url, utc_now())
            self._uploads.append(json.dumps(asdict(sent)).encode() + b"\n", sync=True)
            self._sent[entry.shard] = sent
        if self._delete_local:
            self._remove(path)
        self._wrong.discard(entry.shard)
        if self.trouble and not self._wrong:
            self._say(f"uploads go on: {entry.shard}")
            self.trouble = ""

    def _remove(self, path: Path) -> None:
        """Its indices are kept first: they stay finished whatever becomes of the other files."""
        cut_torn_line(self._output / UPLOADED_FILE)
        listed = AppendFile(self._output / UPLOADED_FILE)
        listed.append(done_lines(observe_shard(path, IndexSet()).indices), sync=True)
        listed.close()
        path.unlink()


def owner_of(job: JobFile) -> str:
    """Names an output wherever it lies: the job that was begun then, with those prompts."""
    part = f", part {job.shard} of {job.shards}" if job.shards > 1 else ""
    return f"the one begun at {job.created} with prompts {job.prompts_digest.sha256[:16]}{part}"
