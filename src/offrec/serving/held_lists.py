"""The operations on lists of items, independent of HTTP. Files are read and written in threads."""

import asyncio
from typing import Any

from offrec.console import Console
from offrec.serving.engine import AllowedItems
from offrec.serving.item_lists import ItemLists
from offrec.serving.policy_slots import PolicySlots
from offrec.serving.served_policy import ServedPolicy


class HeldLists:
    """The lists of items that requests can name.

    Args:
        files: The files of the lists.
        policies: The policies of the server.
        console: Prints changes.
    """

    def __init__(self, files: ItemLists, policies: PolicySlots, console: Console) -> None:
        self.files, self.policies, self.console = files, policies, console

    async def allowed(self, served: ServedPolicy, allow: list[str], deny: list[str]) -> AllowedItems | None:
        """Return the items that the lists of a request leave; None if it names no list."""
        if not allow and not deny:
            return None
        cached = self.files.cached(served, allow, deny)
        return cached or await asyncio.to_thread(self.files.allowed, served, allow, deny)

    async def put(self, name: str, content: bytes, is_json: bool, may_be_empty: bool = False) -> dict[str, Any]:
        """Create or replace a list, and read it for each policy.

        Args:
            name: The name of the list.
            content: Its ids: a JSON array, or text with one id per line.
            is_json: Whether the content is JSON.
            may_be_empty: Whether a list without ids is valid.

        Returns:
            The fields of `ChangedListResponse`.
        """
        description = await asyncio.to_thread(self.files.put, name, content, is_json, may_be_empty)
        known = {}
        for slot in list(self.policies.slots.values()):
            allowed = await asyncio.to_thread(self.files.allowed, slot.served, [name], [])
            known[slot.served.name] = allowed.count
        self.console.line(f"list {name} has {description.items:,} items")
        return {**description.as_json(), "known": known}

    async def read(self, name: str, offset: int, limit: int) -> dict[str, Any]:
        """Return the fields of `ListItemsResponse`: a list, with `limit` ids from number `offset` on."""
        description = await asyncio.to_thread(self.files.describe, name)
        ids = await asyncio.to_thread(self.files.ids, name) if limit else []
        return {**description.as_json(), "ids": ids[offset : offset + limit]}

    async def describe_all(self) -> dict[str, Any]:
        """Return the fields of `ListsResponse`."""
        return {"lists": [one.as_json() for one in await asyncio.to_thread(self.files.describe_all)]}

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete a list; return the fields of `DeletedResponse`."""
        self.files.delete(name)
        self.console.line(f"list {name} is deleted")
        return {"deleted": name}

    def close(self) -> None:
        """Remove the folder, if it is temporary."""
        self.files.close()
