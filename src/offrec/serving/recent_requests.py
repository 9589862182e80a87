"""Which request ids the lists of the last minutes or hours have, so that events with a wrong id are noticed at once."""

import hashlib
import mmap
import zlib
from collections.abc import Iterable

BUCKETS, PLACES, HASH_BYTES, FILTER_BYTES = 1 << 18, 8, 8, 16
ENTRY_BYTES = HASH_BYTES + FILTER_BYTES
BUCKET_BYTES = PLACES * ENTRY_BYTES
ITEM_BITS = 3  # set in the filter per item: a list of 10 items matches 1 % of the other items, one of 20 matches 5 %

Id = int | str


class RecentRequests:
    """Hashes of request ids in 48 MiB of memory that all workers share. Create it before the workers are forked.

    An id belongs to one bucket, which holds the last 8 ids. With 500,000 newer ids, 99.9 % of the ids are still known.
    Each id has a Bloom filter of the items of its list: an item that the filter excludes was not in the list.
    Two workers that write to one bucket at the same moment can lose an id or an item; no wrong id becomes known by
    that.
    """

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, BUCKETS * BUCKET_BYTES)  # pages that are never written need no memory

    def add(self, request_id: str, items: Iterable[Id] = ()) -> None:
        """Remember an id and the items of its list. The items of a repeated id are added to those before."""
        start, key = _place(request_id)
        bucket = self.memory[start : start + BUCKET_BYTES]
        at, bits = _find(bucket, key), 0
        for item in items:
            bits |= _bits(item)
        if at is None:
            entry = key + bits.to_bytes(FILTER_BYTES)
            self.memory[start : start + BUCKET_BYTES] = entry + bucket[:-ENTRY_BYTES]
        elif bits & ~(before := _filter(bucket, at)):
            begin = start + at + HASH_BYTES
            self.memory[begin : begin + FILTER_BYTES] = (before | bits).to_bytes(FILTER_BYTES)

    def __contains__(self, request_id: str) -> bool:
        start, key = _place(request_id)
        return _find(self.memory[start : start + BUCKET_BYTES], key) is not None

    def may_contain(self, request_id: str, item: Id) -> bool | None:
        """Return whether the list of an id may have contained an item. False is certain; None: the id is not known."""
        start, key = _place(request_id)
        bucket = self.memory[start : start + BUCKET_BYTES]
        at = _find(bucket, key)
        return None if at is None else not _bits(item) & ~_filter(bucket, at)


def _place(request_id: str) -> tuple[int, bytes]:
    """Return where the bucket of an id begins, and its hash."""
    digest = hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=HASH_BYTES + 4).digest()
    return int.from_bytes(digest[HASH_BYTES:]) % BUCKETS * BUCKET_BYTES, digest[:HASH_BYTES]


def _find(bucket: bytes, key: bytes) -> int | None:
    return next((at for at in range(0, BUCKET_BYTES, ENTRY_BYTES) if bucket[at : at + HASH_BYTES] == key), None)


def _filter(bucket: bytes, at: int) -> int:
    return int.from_bytes(bucket[at + HASH_BYTES : at + ENTRY_BYTES])


def _bits(item: Id) -> int:
    """Return the bits of an item in the filter of a list."""
    number, bits = zlib.crc32(str(item).encode(errors="surrogatepass")), 0
    for _ in range(ITEM_BITS):
        number, position = divmod(number, 8 * FILTER_BYTES)
        bits |= 1 << position
    return bits
