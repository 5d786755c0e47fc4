"""Every place of a request where a client chooses how much there is, from the declarations alone.

These are its arrays, and the tagged fields of each of its structs.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kits.wire.wire_messages import UNKNOWN_TAG, Always, Case, fill
from millstream.wire.schema import Message, Struct

TAGS = "unknown_tags"


class Site(NamedTuple):
    """One such place of one version: the fields on the way to it, and the array or `TAGS`."""

    case: Case
    way: tuple[str, ...]
    name: str
    is_tagged: bool
    """Whether it is inside of a tagged field, or is one."""

    @property
    def shapes(self) -> tuple["Shape", ...]:
        return (TAGGED,) if self.is_tagged else (USUAL, TAGGED)

    def __str__(self) -> str:
        return f"{self.case}: {'.'.join((*self.way, self.name))}"


class Shape(Always):
    """What is in the rest of the request: everything once, and nothing is null."""

    def __init__(self, *, has_tags: bool) -> None:
        super().__init__(is_full=True, items=1, tags={UNKNOWN_TAG: b"x"} if has_tags else {})
        self._has_tags = has_tags

    def is_set(self) -> bool:
        return self._has_tags


USUAL = Shape(has_tags=False)
"""As clients send them."""
TAGGED = Shape(has_tags=True)
"""With all tagged fields there are, and an unknown one in every struct."""


def sites_of(case: Case) -> Iterator[Site]:
    yield from _sites_in(case.message, Site(case, (), TAGS, is_tagged=False))


def _sites_in(struct: type[Struct], here: Site) -> Iterator[Site]:
    if here.case.is_flexible:
        yield here
    for field in struct.FIELDS:
        if here.case.version not in field.versions:
            continue
        is_tagged = here.is_tagged or field.tag is not None
        if field.element is not None:
            yield here._replace(name=field.name, is_tagged=is_tagged)
        if field.struct is not None:
            way = (*here.way, field.name)
            yield from _sites_in(field.struct, here._replace(way=way, is_tagged=is_tagged))


def request_with(site: Site, shape: Shape, count: int) -> Message:
    """The request with that many items at the site."""
    message: Message = fill(site.case, shape)
    target: Any = message
    for name in site.way:
        target = getattr(target, name)
        if isinstance(target, list):
            target = target[0]
    if site.name == TAGS:
        target.unknown_tags = {UNKNOWN_TAG + number: b"" for number in range(count)}
    else:
        setattr(target, site.name, getattr(target, site.name) * count)
    return message


def items_in(struct: Struct, version: int) -> int:
    """Items of its arrays, and tagged fields that are encoded, in it and all structs inside."""
    count = len(struct.unknown_tags)
    for field in struct.FIELDS:
        if version not in field.versions:
            continue
        value = getattr(struct, field.name)
        if field.tag is not None:
            if value == field.default:
                continue
            count += 1
        if isinstance(value, list):
            count += len(value)
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, Struct):
                count += items_in(one, version)
    return count
