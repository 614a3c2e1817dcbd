"""A spec with several types: each is looked up and judged, and the mistakes of all are reported at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from phalanx.errors import Mistakes, SpecError
from phalanx.plan.facts import Facts
from phalanx.plan.machine_images import is_ami
from phalanx.spec.cloud_names import is_local
from phalanx.spec.spec import ClusterSpec

_T = TypeVar("_T")
_Known = Sequence[tuple[ClusterSpec, Facts]]


def single(spec: ClusterSpec) -> list[ClusterSpec]:
    """Return the spec once for each of its types, with only that type."""
    return [replace(spec, type=one, other_types=()) for one in dict.fromkeys(spec.types)]


def look_up(
    spec: ClusterSpec, look: Callable[[ClusterSpec], Facts], judge: Callable[[ClusterSpec, Facts], object]
) -> Facts:
    """Return the facts of the first type, which have those of the others. Raises SpecError with all mistakes.

    `look` returns the facts of one type; `judge` is for the types that were found, if others were not.
    """
    if not spec.other_types:
        return look(spec)
    looked = _MistakesOfTypes()
    found = [(one, looked.check(one, look, one)) for one in single(spec)]
    known = [(one, facts) for one, facts in found if facts]
    if len(known) < len(found):
        mistakes = Mistakes()
        looked.report_to(mistakes)
        mistakes.check(judged, spec, known, judge)
        mistakes.report()
    (_, first), *others = known
    return replace(first, others=tuple(facts for _, facts in others))


def pairs(spec: ClusterSpec, facts: Facts) -> _Known:
    """Return the spec with only one type each, and that type's facts."""
    return list(zip(single(spec), (facts, *facts.others), strict=False))


def judged(spec: ClusterSpec, known: _Known, judge: Callable[[ClusterSpec, Facts], _T]) -> list[_T]:
    """Return what `judge` returns for each type. Raises SpecError with the mistakes of all."""
    of_types, mistakes = _MistakesOfTypes(), Mistakes()
    found = [of_types.check(one, judge, one, facts) for one, facts in known]
    of_types.report_to(mistakes)
    mistakes.check(_refuse_two_processors, spec, known)
    mistakes.report()
    return [one for one in found if one is not None]


def _refuse_two_processors(spec: ClusterSpec, known: _Known) -> None:
    """Raise SpecError for types of two processors and one image, if nobody asked EC2 which of them it is for."""
    is_one_image = is_ami(spec.image) or (spec.image or "").startswith("/")
    if is_local(spec.cloud) or not is_one_image:
        return
    processors = {facts.architecture: one.type for one, facts in known if not facts.image}
    if len(processors) > 1:
        types = ", ".join(f"{one} is {processor}" for processor, one in processors.items())
        raise SpecError(
            f"image: {spec.image} is for one processor, and {types}",
            "Write types for one processor, or an alias such as ubuntu-24.04, which has an image for each.",
            code="other-architecture",
        )


class _MistakesOfTypes:
    """Collects the mistakes by type: those of every type are reported once, the others with their type's name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[SpecError, ...]] = {}

    def check(self, spec: ClusterSpec, look: Callable[..., _T], *arguments: object) -> _T | None:
        """Return what a check of one type returns; None if it finds a mistake."""
        self._found[spec.type] = ()
        try:
            return look(*arguments)
        except SpecError as mistake:
            self._found[spec.type] = mistake.mistakes or (mistake,)
            return None

    def report_to(self, mistakes: Mistakes) -> None:
        for kind, found in self._found.items():
            for one in found:
                mistakes.add(one if kind in one.message or self._is_of_all(one) else _named(one, kind))

    def _is_of_all(self, mistake: SpecError) -> bool:
        return all(str(mistake) in map(str, found) for found in self._found.values())


def _named(mistake: SpecError, kind: str) -> SpecError:
    return SpecError(f"{mistake.message}, for {kind}", mistake.hint, code=mistake.code)
