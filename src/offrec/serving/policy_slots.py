"""The policies that a server currently uses, and how they are reloaded."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from offrec.console import Console
from offrec.errors import first_line
from offrec.policy import Id
from offrec.serving.errors import RequestError
from offrec.serving.item_search import ItemSearch
from offrec.serving.memory import release_memory
from offrec.serving.metrics import Metrics
from offrec.serving.micro_batching import MicroBatcher
from offrec.serving.options import BatchingOptions
from offrec.serving.served_policy import ServedPolicy

RELEASE_SECONDS = 1.0  # after a reload; by then, requests to the old policies have been answered
LoadPolicy = Callable[[str], ServedPolicy]  # loads and checks the policy of a name


class PolicySlot:
    """The current policy of a name, with its batcher and its item search.

    Args:
        served: The policy.
        batcher: Answers its queries.
    """

    def __init__(self, served: ServedPolicy, batcher: MicroBatcher) -> None:
        self.served, self.batcher = served, batcher
        self._search: asyncio.Future[ItemSearch] | None = None

    async def item_search(self) -> ItemSearch:
        """Return the item search, which is built on the first call."""
        if self._search is None:
            self._search = asyncio.ensure_future(asyncio.to_thread(ItemSearch, self.served.policy))
        return await asyncio.shield(self._search)


class PolicySlots:
    """The current policies of a server, by name.

    Args:
        served: The policies; the first one is the default.
        load: Loads a policy again.
        batching: How requests are grouped into batches.
        metrics: Counts batches and reloads.
        console: Prints reloads.
    """

    def __init__(
        self,
        served: list[ServedPolicy],
        load: LoadPolicy,
        batching: BatchingOptions,
        metrics: Metrics,
        console: Console,
    ) -> None:
        self.load, self.batching, self.metrics, self.console = load, batching, metrics, console
        self.slots = {one.name: self._create_slot(one) for one in served}
        self.default = served[0].name
        self._reload_lock = asyncio.Lock()
        metrics.report_policies(lambda: {name: slot.served.fingerprint for name, slot in self.slots.items()})
        metrics.report_passes(lambda: {name: slot.served.engine.passes for name, slot in self.slots.items()})

    def _create_slot(self, served: ServedPolicy) -> PolicySlot:
        options = self.batching
        batcher = MicroBatcher(
            served.engine,
            max_batch=options.max_batch,
            max_waiting=options.max_waiting,
            wait_seconds=options.wait_ms / 1000,
            observe=partial(self.metrics.observe_batch, served.name),
        )
        return PolicySlot(served, batcher)

    def get(self, policy: str | None) -> PolicySlot:
        """Return the slot of a policy; None names the default policy.

        Raises:
            RequestError: If the policy does not exist (404).
        """
        if policy is not None and policy not in self.slots:
            raise RequestError(404, f"policy {policy[:80]!r} does not exist; the policies are {', '.join(self.slots)}.")
        return self.slots[policy or self.default]

    def catalogue_id(self, item: Id) -> Id | None:
        """Return an item id as the first catalogue that contains it spells it ("12" becomes 12); None if none does."""
        for slot in self.slots.values():
            vocabulary = slot.served.policy.vocabulary
            if (index := vocabulary.index(item)) is not None:
                return vocabulary.id(index)
        return None

    async def reload(self, policy: str | None) -> dict[str, Any]:
        """Load policies again. All are loaded and checked before the first one is swapped.

        Args:
            policy: The policy; None for all.

        Returns:
            The fields of `ReloadResponse`.

        Raises:
            RequestError: If a policy cannot be loaded (409); then none is swapped.
        """
        async with self._reload_lock:
            loaded = []
            for name in [policy] if policy is not None else list(self.slots):
                try:
                    loaded.append(await asyncio.to_thread(self.load, name))
                except Exception as error:  # the old policy must remain if the new run is invalid
                    self.metrics.count_reload(succeeded=False)
                    reason = first_line(error).rstrip(".")
                    self.console.line(f"reload of {name} failed, the old policy remains: {reason}")
                    shown = self.slots[name].served.public_reason(reason)
                    raise RequestError(409, f"The reload failed and the old policy remains: {shown}.") from error
            for served in loaded:
                old = self.slots[served.name].served
                self.console.line(f"reloaded {served.name}: {old.fingerprint} → {served.fingerprint}")
            self.swap(loaded)
        return {"reloaded": {served.name: served.fingerprint for served in loaded}}

    def swap(self, loaded: list[ServedPolicy]) -> None:
        """Replace policies in one step. Requests that are being computed finish with the old ones.

        Args:
            loaded: The new policies, under the names of old ones.
        """
        for served in loaded:
            old = self.slots[served.name]
            self.slots[served.name] = self._create_slot(served)
            old.batcher.close()
        self.metrics.count_reload(succeeded=True)
        loop = asyncio.get_running_loop()
        loop.call_later(RELEASE_SECONDS, loop.run_in_executor, None, release_memory)

    def longest_batch(self) -> float:
        """Return for how many seconds the oldest batch of the current policies has been computed."""
        return max(slot.batcher.seconds_computing() for slot in self.slots.values())

    def close(self) -> None:
        """Answer the waiting queries."""
        for slot in self.slots.values():
            slot.batcher.close()
