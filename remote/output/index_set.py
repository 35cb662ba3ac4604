"""A set of row indices as a bit array: one bit a row, whatever the number of rows that are in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_INDEX = 4_000_000_000
"""Above every index a prompts file can have; keeps a garbage number from allocating memory."""


_NOT_FULL = re.compile(rb"[^\xff]")


class IndexSet:
    def __init__(self, indices: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        self._count = 0
        self.update(indices)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        byte = index >> 3
        return byte < len(self._bits) and bool(self._bits[byte] & (1 << (index & 7)))

    def __iter__(self) -> Iterator[int]:
        """Ascending."""
        for position, byte in enumerate(self._bits):
            if byte:
                for bit in range(8):
                    if byte & (1 << bit):
                        yield (position << 3) + bit

    def add(self, index: int) -> bool:
        """True when it wasn't there before."""
        bits, byte, mask = self._bits, index >> 3, 1 << (index & 7)
        if byte >= len(bits):
            bits.extend(bytes(byte + 1 - len(bits) + len(bits) // 8))
        if bits[byte] & mask:
            return False
        bits[byte] |= mask
        self._count += 1
        return True

    def same_as(self, other: IndexSet) -> bool:
        return self._count == other._count and self._bits.rstrip(b"\0") == other._bits.rstrip(b"\0")

    def next_missing(self, index: int) -> int:
        """The lowest index from `index` on that isn't in the set."""
        bits, byte = self._bits, index >> 3
        if byte >= len(bits):
            return index
        free = ~bits[byte] & 0xFF & (0xFF << (index & 7))
        if not free:
            found = _NOT_FULL.search(bits, byte + 1)
            if found is None:
                return len(bits) << 3
            byte = found.start()
            free = ~bits[byte] & 0xFF
        return (byte << 3) + (free & -free).bit_length() - 1

    def update(self, indices: Iterable[int]) -> int:
        """How many of them weren't there before."""
        bits, before = self._bits, self._count
        count = before
        for index in indices:
            byte, mask = index >> 3, 1 << (index & 7)
            if byte >= len(bits):
                bits.extend(bytes(byte + 1 - len(bits) + len(bits) // 8))
            if not bits[byte] & mask:
                bits[byte] |= mask
                count += 1
        self._count = count
        return count - before

    def to_bits(self) -> bytes:
        """Eight indices a byte, the lowest in the lowest bit."""
        return bytes(self._bits)

    @classmethod
    def from_bits(cls, bits: bytes) -> IndexSet:
        found = cls()
        found._bits = bytearray(bits)
        found._count = int.from_bytes(bits, "little").bit_count()
        return found

    def discard(self, index: int) -> None:
        if index in self:
            self._bits[index >> 3] &= ~(1 << (index & 7)) & 0xFF
            self._count -= 1
