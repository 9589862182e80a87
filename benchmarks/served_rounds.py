"""Two rounds of serving and training in a simulated shop, with torch and numpy alone.

    world, seed → first log (the shop's policy) → served policy, sampled → served logs with exact propensities
                → policies of the next round → their ground truth, alone and blended with the served policy

Policies read the visitor's last picks only, so their probabilities are exact functions of the log.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from estimate_plan import Recipe
from offrec.shop import Shop
from offrec.shop.players import Logging, Player
from offrec.shop.randomness import Purpose, generator, outcome_uniforms
from offrec.shop.rollout import run_sessions
from offrec.shop.visitors import Step, Visitors
from offrec.types import Doubles, Longs

WIDTH, DECAY, UPDATES, BATCH, LEARNING_RATE, WEIGHT_DECAY = 16, 0.8, 150, 512, 0.02, 1e-4
PSEUDO_COUNT = 20.0  # of the shrinkage of an item's mean reward
MAX_STEPS = 1000
CHUNK, DRAWS = 256, 16  # states per batch, which then stay in the cache; draws with replacement per list


@dataclass(frozen=True)
class PickPolicy:
    """A softmax over the catalogue whose logits are linear in the visitor's last picks."""

    inputs: Tensor  # [A + 1, d] the last row, for "no pick", is 0
    table: Tensor  # [A, d]
    bias: Tensor  # [A]

    def logits(self, memory: Tensor) -> Tensor:
        """[n, A] logits for the last picks [n, m], most recent first, padded with A."""
        return summarise(self.inputs, memory) @ self.table.T + self.bias


def summarise(inputs: Tensor, memory: Tensor) -> Tensor:
    """[n, d] the weighted sum of the vectors of the last picks."""
    weight = DECAY ** torch.arange(memory.shape[1], device=memory.device).to(inputs)
    return (inputs[memory] * weight[:, None]).sum(1)


@dataclass(frozen=True)
class ServedLog:
    """Decisions in the order of sessions and steps."""

    offsets: Longs  # [S + 1]
    memory: Tensor  # [D, m] last picks before the decision
    lists: Tensor  # [D, k]
    item: Tensor  # [D] the pick; A for none
    reward: Doubles  # [D]
    steps_per_session: float

    def __len__(self) -> int:
        return len(self.offsets) - 1


def train(
    logs: list[ServedLog], n_items: int, recipes: dict[str, Recipe], seed: int, served: PickPolicy | None = None
) -> dict[str, PickPolicy]:
    """Train supervised learning and mean rewards on the picks of all logs, and return a policy per recipe."""
    memory, item, reward = _picks(logs, n_items)
    imitation = _imitate(memory, item, n_items, seed)
    count = torch.bincount(item, minlength=n_items).float()
    total = torch.bincount(item, reward, minlength=n_items).float()
    rate = (total + PSEUDO_COUNT * reward.mean().float()) / (count + PSEUDO_COUNT)
    rate = (rate - rate.mean()) / rate.std()
    bases = {"imitation": imitation, "served": served or imitation}
    return {name: _tilt(bases[one.base], one.strength * rate, one.temperature) for name, one in recipes.items()}


def _tilt(base: PickPolicy, bonus: Tensor, temperature: float) -> PickPolicy:
    return PickPolicy(base.inputs, base.table / temperature, (base.bias + bonus) / temperature)


def _picks(logs: list[ServedLog], n_items: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the last picks [N, m], the picks [N] and the rewards [N] of all decisions with a pick."""
    memory, item = torch.cat([log.memory for log in logs]), torch.cat([log.item for log in logs])
    reward = torch.from_numpy(np.concatenate([log.reward for log in logs]))
    picked = item < n_items
    return memory[picked], item[picked], reward[picked]


def _imitate(memory: Tensor, item: Tensor, n_items: int, seed: int) -> PickPolicy:
    random = torch.Generator().manual_seed(seed)
    inputs = nn.Parameter(0.1 * torch.randn(n_items + 1, WIDTH, generator=random))
    table = nn.Parameter(0.1 * torch.randn(n_items, WIDTH, generator=random))
    count = torch.bincount(item, minlength=n_items).float()
    bias = nn.Parameter((count + 1).log() - (count + 1).log().mean())
    optimiser = torch.optim.Adam([inputs, table, bias], LEARNING_RATE)
    known = torch.ones(n_items + 1, 1)
    known[-1] = 0
    for update in range(UPDATES):
        rows = torch.randint(len(item), (BATCH,), generator=random)
        z = summarise(inputs * known, memory[rows]) @ table.T + bias
        decay = WEIGHT_DECAY * (inputs.square().sum() + table.square().sum()) / BATCH
        optimiser.zero_grad()
        (nn.functional.cross_entropy(z, item[rows]) + decay).backward()
        optimiser.step()
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * (1 - update / UPDATES)
    return PickPolicy((inputs * known).detach(), table.detach(), bias.detach())


def sample_lists(z: Tensor, k: int, random: torch.Generator) -> Tensor:
    """[n, k] items sampled without replacement from softmax(z): the first k distinct ones of draws with replacement."""
    total = z.softmax(1).double().cumsum(1)
    uniform = torch.rand(len(z), DRAWS, generator=random, dtype=torch.double) * total[:, -1:]
    drawn = torch.searchsorted(total, uniform).clamp(max=z.shape[1] - 1)
    is_new = ~(drawn[:, :, None] == drawn[:, None, :]).tril(-1).any(2)
    lists = drawn.gather(1, (~is_new).long().argsort(dim=1, stable=True)[:, :k])
    count = is_new.sum(1)
    rest = (count < k).nonzero()[:, 0]
    if len(rest):  # rare: sample the missing items from those that were not drawn
        uniform = torch.rand(len(rest), z.shape[1], generator=random).clamp(min=1e-30)  # faster than `exponential_`
        more = (z[rest] - (-uniform.log()).log()).scatter(1, drawn[rest], -torch.inf).topk(k, 1).indices
        place = torch.arange(k) - count[rest, None]
        lists[rest] = torch.where(place < 0, lists[rest], more.gather(1, place.clamp(min=0)))
    return lists


class Sampled(Player):
    """Samples lists without replacement from a policy."""

    play = "sample"

    def __init__(self, shop: Shop, policy: PickPolicy) -> None:
        super().__init__(shop.dynamics)
        self.policy, self.name = policy, "sampled"

    def offer(self, visitors: Visitors, rows: Tensor, step: int) -> Tensor:
        random = generator(self.seed, Purpose.LISTS, step)
        parts = visitors.memory.split(CHUNK)
        return torch.cat([sample_lists(self.policy.logits(memory), self.k, random) for memory in parts])


@torch.no_grad()
def write_log(shop: Shop, player: Player, sessions: int, seed: int, max_steps: int = MAX_STEPS) -> ServedLog:
    """Simulate sessions and return their decisions."""
    parts: dict[str, list[Tensor]] = {name: [] for name in ("session", "step", "memory", "lists", "item", "reward")}

    def watch(rows: Tensor, number: int, lists: Tensor, visitors: Visitors, result: Step) -> None:
        columns = (rows, torch.full_like(rows, number), visitors.memory, lists, result.item, result.reward)
        for name, values in zip(parts, columns, strict=True):
            parts[name].append(values.cpu())

    run_sessions(shop.dynamics, player, sessions, seed, max_steps, watch)
    columns = {name: torch.cat(values) for name, values in parts.items()}
    order = torch.from_numpy(np.lexsort((columns["step"].numpy(), columns["session"].numpy())))
    columns = {name: values[order] for name, values in columns.items()}
    counts = np.bincount(columns["session"].numpy(), minlength=sessions)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    reward = columns["reward"].double().numpy()
    return ServedLog(offsets, columns["memory"], columns["lists"], columns["item"], reward, float(counts.mean()))


@dataclass(frozen=True)
class Blend:
    """A policy that makes each decision with probability `share`; the served policy makes the others."""

    policy: PickPolicy
    share: float = 1.0


@torch.no_grad()
def simulate_blends(
    shop: Shop, served: PickPolicy, blends: list[Blend], visitors: int, seed: int, max_steps: int = MAX_STEPS
) -> Doubles:
    """[blends, visitors] reward of each session; all blends serve the same visitors with common random numbers."""
    dynamics, random = shop.dynamics, generator(seed, Purpose.LISTS)
    everyone = dynamics.arrive(visitors, seed)
    blend = torch.arange(len(blends)).repeat_interleave(visitors)
    visitor = torch.arange(visitors).repeat(len(blends))
    state, total = everyone[visitor], torch.zeros(len(blend), dtype=torch.double)
    rows = torch.arange(len(blend))
    share = torch.tensor([one.share for one in blends])
    for number in range(max_steps):
        if not len(rows):
            break
        uniforms = outcome_uniforms(seed, number, visitors, dynamics.device, dynamics.items.worth.dtype)[
            :, visitor[rows]
        ]
        own = torch.rand(len(rows), generator=random) < share[blend[rows]]
        lists = torch.zeros(len(rows), shop.world.k, dtype=torch.long)
        for policy in [served, *{id(one.policy): one.policy for one in blends}.values()]:
            mine = torch.tensor([one.policy is policy for one in blends])[blend[rows]] & own
            chosen = (mine if policy is not served else mine | ~own).nonzero()[:, 0]
            for part in chosen.split(CHUNK):
                lists[part] = sample_lists(policy.logits(state.memory[part]), shop.world.k, random)
        result = dynamics.step(state, lists, uniforms)
        total[rows] += result.reward
        rows, state = rows[~result.leaves], result.visitors[~result.leaves]
    return total.view(len(blends), visitors).numpy()


def logging_player(shop: Shop) -> Player:
    """Return the shop's own policy."""
    return Logging(shop.dynamics)
