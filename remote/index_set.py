"""A set of row indices as a bit array: one bit a row, whatever the number of rows that are in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_INDEX = 4_000_000_000
"""Above every index a prompts file can have; keeps a garbage number from allocating memory."""


class IndexSet:
    def __init__(self, indices: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        self._count = 0
        for index in indices:
            self.add(index)

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

    def discard(self, index: int) -> None:
        if index in self:
            self._bits[index >> 3] &= ~(1 << (index & 7)) & 0xFF
            self._count -= 1
