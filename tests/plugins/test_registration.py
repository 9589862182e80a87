"""Records that cannot be registered are refused with one sentence that names the record and the mistake."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import offrec
from offrec.algorithms import LEARNERS, LossTerms, Needs, Symbols
from offrec.backbones import BACKBONES
from offrec.baselines import BASELINES
from offrec.data.formats import FORMATS
from offrec.errors import InputError
from offrec.evaluation.metrics import METRICS
from offrec.plugins import PRESET_NAMES
from offrec.runs.presets import PRESETS

REGISTRIES: list[tuple[Any, Callable[[Any], Any]]] = [
    (LEARNERS, offrec.register_learner),
    (BACKBONES, offrec.register_backbone),
    (BASELINES, offrec.register_baseline),
    (FORMATS, offrec.register_format),
    (METRICS, offrec.register_metric),
]
EACH_REGISTRY = pytest.mark.parametrize(
    ("registry", "register"), REGISTRIES, ids=[registry.kind for registry, _ in REGISTRIES]
)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries keep no record of these tests."""
    for registry, _ in REGISTRIES:
        monkeypatch.setattr(registry, "_records", {**registry})


@dataclass(frozen=True)
class Complete:
    strength: float = 1.0

    needs = Needs()
    needs_reward = False

    def loss(self, x: Symbols) -> LossTerms:
        raise NotImplementedError


@dataclass(frozen=True)
class RequiredField(Complete):
    size: int = field(kw_only=True)


@dataclass(frozen=True)
class FieldCalledName(Complete):
    name: str = ""


@dataclass(frozen=True)
class WithoutLoss:
    needs = Needs()
    needs_reward = False


@dataclass(frozen=True)
class WithoutNeedsReward:
    needs = Needs()

    def loss(self, x: Symbols) -> LossTerms:
        raise NotImplementedError


@dataclass(frozen=True)
class NeedsAsText(Complete):
    needs = "actor"  # type: ignore[assignment]


class NotADataclass:
    needs = Needs()
    needs_reward = False
    loss = Complete.loss


@EACH_REGISTRY
@pytest.mark.parametrize("name", ["", "two words", "a:b", "a/b", "a,b", "ünder", "-x", "NDCG@3", None, 3])
def test_names_that_commands_cannot_read_are_refused(registry: Any, register: Any, name: Any) -> None:
    record = replace(next(iter(registry.values())), name=name)
    with pytest.raises(InputError, match=f"^The {registry.kind} {name!r} cannot be registered: its name must consist"):
        register(record)


@EACH_REGISTRY
@pytest.mark.parametrize("name", ["all", "none"])
def test_reserved_names_are_refused(registry: Any, register: Any, name: str) -> None:
    with pytest.raises(InputError, match=f"{name!r} cannot be registered: all and none are reserved names"):
        register(replace(next(iter(registry.values())), name=name))


@EACH_REGISTRY
def test_only_metrics_may_have_upper_case_names(registry: Any, register: Any) -> None:
    record = replace(next(iter(registry.values())), name="Mine")
    if registry is METRICS:
        assert register(record) is record
    else:
        with pytest.raises(InputError, match="lower-case letters, digits"):
            register(record)


@EACH_REGISTRY
def test_a_taken_name_is_refused_unless_the_record_is_the_same_object(registry: Any, register: Any) -> None:
    known = next(iter(registry.values()))
    before = list(registry)
    assert register(known) is known
    assert list(registry) == before
    with pytest.raises(InputError, match="is already registered by offrec"):
        register(replace(known))


@EACH_REGISTRY
def test_other_objects_are_not_records(registry: Any, register: Any) -> None:
    with pytest.raises(InputError, match=f"The {registry.kind} 'sl' cannot be registered: it must be a [A-Z]"):
        register("sl")


@EACH_REGISTRY
def test_help_must_be_text(registry: Any, register: Any) -> None:
    with pytest.raises(InputError, match="'mine' cannot be registered: its help must be text that is not empty"):
        register(replace(next(iter(registry.values())), name="mine", help=" "))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"label": ""}, "its label must be text"),
        ({"family": "imitating"}, "its family must be one of imitation, mixed, .*; got 'imitating'"),
        ({"presets": {"papers": {}}}, "its presets may be strong and paper; got 'papers'"),
        ({"presets": {"paper": 3}}, "its presets must map the name of a preset to settings"),
        ({"learner": Complete()}, "its learner must be a class decorated with @dataclass"),
        ({"learner": NotADataclass}, "its learner must be a class decorated with @dataclass"),
        ({"learner": RequiredField}, "the field 'size' of RequiredField must have a default"),
        ({"learner": FieldCalledName}, "must not have a field 'name'"),
        ({"learner": WithoutLoss}, "it lacks 'loss'"),
        ({"learner": WithoutNeedsReward}, "it lacks 'needs_reward'"),
        ({"learner": NeedsAsText}, "`needs` of NeedsAsText must be a Needs; got 'actor'"),
    ],
)
def test_a_learner_is_checked(changes: dict[str, Any], reason: str) -> None:
    record = offrec.LearnerRecord("mine", "Mine", Complete, "My own learner.")
    with pytest.raises(InputError, match=f"^The algorithm 'mine' cannot be registered: .*{reason}"):
        offrec.register_learner(replace(record, **changes))
    assert "mine" not in LEARNERS
    offrec.register_learner(record)
    assert LEARNERS["mine"] is record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"family": "convolution"}, "its family must be one of recurrent, convolutional, attention, other"),
        ({"presets": {"weak": {}}}, "its presets may be strong and paper; got 'weak'"),
        ({"build": None}, "its build must be callable"),
        ({"reads": frozenset({"depth"})}, "its reads may contain layers, heads, window; got 'depth'"),
    ],
)
def test_a_backbone_is_checked(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"^The backbone 'mine' cannot be registered: {reason}"):
        offrec.register_backbone(replace(BACKBONES["gru"], name="mine", **changes))


def test_functions_of_baselines_formats_and_metrics_are_checked() -> None:
    with pytest.raises(InputError, match="The baseline 'mine' cannot be registered: its build must be callable"):
        offrec.register_baseline(replace(BASELINES["recent"], name="mine", build=3))
    with pytest.raises(InputError, match="The metric 'mine' cannot be registered: its compute must be callable"):
        offrec.register_metric(replace(METRICS["HR"], name="mine", compute=3))
    for readers in ({"read": None, "read_whole": None}, {"read": print, "read_whole": print}):
        with pytest.raises(InputError, match="The format 'mine' cannot be registered: it must have either `read` or"):
            offrec.register_format(replace(FORMATS["events"], name="mine", **readers))


def test_records_may_name_exactly_the_presets_that_exist() -> None:
    assert tuple(PRESETS) == PRESET_NAMES
