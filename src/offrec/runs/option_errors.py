"""The sentence for an option that does not exist: what was probably meant, and where all are listed."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches


def sentence(key: str, algorithm: str, known: Mapping[str, Sequence[str]]) -> str:
    """`known`: the dotted keys of each learner."""
    where = f"`offrec options --algorithm {algorithm}` lists all"
    if owners := [name for name, keys in known.items() if key in keys]:
        return f"There is no option {key!r} of {algorithm}, only of {', '.join(owners)}; {where}."
    if near := nearest(key, known[algorithm]):
        verb = "is" if len(near) == 1 else "are"
        return f"There is no option {key!r}; the nearest {verb} {' and '.join(near)}; {where}."
    return f"There is no option {key!r}; {where}."


def nearest(key: str, among: Sequence[str]) -> list[str]:
    """One or two: with a name like this one's in its section, or with its very name in another, or spelled alike."""
    section, _, name = key.rpartition(".")
    names = {one: one.rpartition(".")[2] for one in among}
    close = get_close_matches(name, set(names.values()), n=2)
    found = [one for wanted in close for one in among if names[one] == wanted]
    here = [one for one in found if one.rpartition(".")[0] == section]
    there = [one for one in found if names[one] == name or not section]
    return (here or there or get_close_matches(key, among, n=1, cutoff=0.8))[:2]
