"""Find columns that look as if they were meant for offrec but are not read, such as `timestamp` or `behavior`."""

from collections.abc import Mapping, Sequence

NAMES = {  # offrec's name of a column → other names for the same thing, without case, spaces and punctuation
    "session": ("sessionid", "visit", "visitid"),
    "user": ("userid", "uid", "visitor", "visitorid", "customer", "customerid", "clientid", "memberid"),
    "item": ("itemid", "product", "productid", "sku", "article", "articleid", "movieid", "trackid", "contentid"),
    "time": ("timestamp", "ts", "date", "datetime", "eventtime", "eventtimestamp", "createdat", "when", "unixtime"),
    "position": ("step", "sequence", "eventnumber"),
    "behaviour": ("behavior", "behaviourtype", "behaviortype", "action", "event", "eventtype", "eventname", "type"),
    "reward": ("rating", "stars", "revenue"),
    "offered": ("shown", "slate", "impressions"),
    "propensity": ("probability", "prob", "pscore", "actionprob"),
}


def describe_unused(
    available: Sequence[str], resolved: Mapping[str, str], given: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Return a sentence for each column that is not read although its name suggests it.

    Args:
        available: The names of the table's columns.
        resolved: offrec's names of the columns that are read → their names.
        given: Those of offrec's names for which the user named a column.
        names: offrec's names of all columns that could be read.
    """
    sentences = []
    for name in names:
        # A column `item` may be a title, so an item id next to it is mentioned unless the user chose the column.
        if name in given or (name in resolved and name != "item") or (name == "position" and "time" in resolved):
            continue
        column = find_similar(name, [column for column in available if column not in resolved.values()])
        if column is not None:
            instead = f"; {resolved[name]!r} is read as the {name}" if name in resolved else ""
            sentences.append(f"The column {column!r} is not used{instead}. If it is the {name}, add --{name} {column}.")
    return sentences


def find_similar(name: str, columns: Sequence[str]) -> str | None:
    """Return the first column whose name looks like one of offrec's columns, or None."""
    similar = {name, *NAMES.get(name, ())}
    for column in columns:
        if _plain(column) in similar or _plain(column.rpartition(".")[2]) in similar:
            return column
    return None


def _plain(name: str) -> str:
    return "".join(character for character in name.casefold() if character.isalnum())
