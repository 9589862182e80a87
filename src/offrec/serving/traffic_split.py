"""Split traffic among policies: a keyed hash of the session id chooses the policy, the same one in every request."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

from offrec.errors import InputError

HASH_BYTES = 8
ROUNDING = 1e-9  # of the sum of shares


@dataclass(frozen=True)
class TrafficSplit:
    """The shares of policies, and the key of the hash.

    A session's place in [0, 1) depends only on the key and the session id. Each policy has an interval of that length,
    in the order of the shares, so that a session stays with its policy as long as the limits do not pass its place.

    Attributes:
        shares: Policy → share; the sum is 1.
        key: Another key assigns all sessions anew.
    """

    shares: dict[str, float]
    key: str

    def __str__(self) -> str:
        """Return the shares as in --split, for the decision log."""
        return ",".join(f"{name}={share:g}" for name, share in self.shares.items())

    def assign(self, session_id: str) -> str:
        """Return the policy of a session."""
        key = hashlib.blake2b(self.key.encode(errors="surrogatepass")).digest()  # BLAKE2 keys have at most 64 bytes
        digest = hashlib.blake2b(session_id.encode(errors="surrogatepass"), digest_size=HASH_BYTES, key=key).digest()
        place = int.from_bytes(digest) / 2 ** (8 * HASH_BYTES)
        end = 0.0
        for name, share in self.shares.items():
            end += share
            if place < end:
                return name
        return name


def parse_split(text: str, policies: Iterable[str], key: str = "") -> TrafficSplit | None:
    """Read the value of --split.

    Args:
        text: Shares such as `a=0.9,b=0.1`; empty for no split.
        policies: The names of the served policies.
        key: The key of the hash; by default the names of the policies.

    Returns:
        The split, or None.

    Raises:
        InputError: If a policy is not served or named twice, or the shares are not positive or do not add up to 1.
    """
    if not text:
        if key:
            raise InputError("--split-key has no effect without --split; add --split or remove it.")
        return None
    known, shares = list(policies), {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.rpartition("="))
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if not name or math.isnan(share):
            raise InputError(f"--split must be NAME=SHARE,…, such as a=0.9,b=0.1; got {part!r}.")
        if name not in known:
            raise InputError(f"--split names {name!r}, which is not served; the policies are {', '.join(known)}.")
        if not 0 < share < 1:
            raise InputError(
                f"--split {name}={value}: a share must be above 0 and below 1; for a single policy, remove --split."
            )
        if name in shares:
            raise InputError(f"--split names {name!r} twice; give each policy one share.")
        shares[name] = share
    if abs(math.fsum(shares.values()) - 1) > ROUNDING:
        raise InputError(f"The shares of --split must add up to 1; got {math.fsum(shares.values()):g}.")
    return TrafficSplit(shares, key or ",".join(shares))
