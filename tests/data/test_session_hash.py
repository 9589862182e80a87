"""The hash of session ids is fixed: datasets that are prepared years apart have the same splits."""

import numpy as np
import polars as pl

from offrec.data.session_hash import hash_groups, hash_ids


def hash_one(*texts: str, key: int = 0) -> int:
    return int(hash_ids(pl.DataFrame({str(at): [text] for at, text in enumerate(texts)}), key)[0])


def splitmix(state: int) -> int:
    """SplitMix64 as published, in integers of Python."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_the_first_output_is_that_of_the_published_generator() -> None:
    without_ids = pl.DataFrame({"id": ["a"]}).drop("id")
    assert hash_ids(without_ids, 0).tolist() == [splitmix(0)] == [0xE220A8397B1DCDAF]


def test_words_of_eight_bytes_are_mixed_after_the_length() -> None:
    text = "session-12ä"  # 12 bytes: one whole word and one that is padded with zeros
    data = text.encode()
    state = splitmix(splitmix(7) ^ len(data))
    for first in (0, 8):
        state = splitmix(state ^ int.from_bytes(data[first : first + 8].ljust(8, b"\0"), "little"))
    assert hash_one(text, key=7) == state


def test_similar_ids_have_different_hashes() -> None:
    texts = ["", "a", "a\0", "b", "aaaaaaaa", "aaaaaaaa\0", "aaaaaaaab", "1", "01", "x" * 256, "x" * 257, "x" * 258]
    assert len({hash_one(text) for text in texts}) == len(texts)
    assert hash_one("ab", "c") != hash_one("a", "bc")
    assert hash_one("a", key=1) != hash_one("a", key=2)


def test_the_hash_of_a_row_does_not_depend_on_other_rows() -> None:
    texts = [str(number) * (1 + number % 20) for number in range(50)]
    together = hash_ids(pl.DataFrame({"id": texts}), 3)
    assert together.tolist() == [hash_one(text, key=3) for text in texts]


def test_groups_have_the_requested_shares() -> None:
    groups = hash_groups(pl.DataFrame({"id": [str(number) for number in range(20_000)]}), 0, (8.0, 1.0, 1.0))
    shares = np.bincount(groups) / len(groups)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)  # 3.5 standard deviations of the first
