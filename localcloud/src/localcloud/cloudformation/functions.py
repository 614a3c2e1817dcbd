"""CloudFormation's intrinsic functions: evaluates them, and finds the names that an expression refers to."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from localcloud.api import parameters
from localcloud.cloudformation.errors import Refused

NO_VALUE = object()
PSEUDO_PARAMETERS = frozenset(
    (
        "AWS::AccountId",
        "AWS::NoValue",
        "AWS::NotificationARNs",
        "AWS::Partition",
        "AWS::Region",
        "AWS::StackId",
        "AWS::StackName",
        "AWS::URLSuffix",
    )
)
SUB_PLACE = re.compile(r"\$\{(!?)([^${}]*)\}")
DYNAMIC_REFERENCE = re.compile(r"\{\{resolve:([a-z-]+):([^{}]+)\}\}")


class Reference(NamedTuple):
    """A name that an expression uses: `attribute` is "" for Ref, `kind` is "Ref", "GetAtt" or "Condition"."""

    kind: str
    name: str
    attribute: str = ""


@dataclass
class Scope:
    """The values of names while a template is evaluated.

    `references` and `attributes` hold the created resources' values for Ref and GetAtt.
    `zones(region)` returns availability zones; `parameter(name)` returns the value of an SSM parameter, and
    `imported(name)` that of another stack's export; `imports` are the names that were asked for.
    """

    pseudo: Mapping[str, Any]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mappings: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    references: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    zones: Callable[[str], list[str]] = lambda region: [f"{region}a"]
    parameter: Callable[[str], str] = lambda name: name
    imported: Callable[[str], str] = lambda name: refuse_import(name)
    imports: set[str] = field(default_factory=set)
    _decided: dict[str, bool] = field(default_factory=dict)

    def ref(self, name: str) -> Any:
        """Return the value of `Ref: name`."""
        for names in (self.references, self.parameters, self.pseudo):
            if name in names:
                return names[name]
        raise Refused(f"Template format error: Unresolved resource dependencies [{name}] in the template")

    def get_att(self, name: str, attribute: str) -> Any:
        """Return the value of `Fn::GetAtt: [name, attribute]`."""
        if attribute in self.attributes.get(name, {}):
            return self.attributes[name][attribute]
        raise Refused(f"Template error: resource {name} does not support attribute type {attribute} in Fn::GetAtt")

    def condition(self, name: str) -> bool:
        """Whether the named condition holds."""
        if name not in self._decided:
            if name not in self.conditions:
                raise Refused(f"Template format error: Unresolved condition dependency {name} in the template")
            self._decided[name] = _truth(resolve(self.conditions[name], self))
        return self._decided[name]


def refuse_import(name: str) -> str:
    """Refuse Fn::ImportValue of a name that nobody exports."""
    raise Refused(f"No export named {name} found.")


def resolve(value: Any, scope: Scope) -> Any:
    """Return `value` with every function replaced by its result; members that are AWS::NoValue are removed."""
    if isinstance(value, dict):
        function = _function(value)
        if function:
            name, argument = function
            return FUNCTIONS[name](argument, scope)
        pairs = ((key, resolve(item, scope)) for key, item in value.items())
        return {key: item for key, item in pairs if item is not NO_VALUE}
    if isinstance(value, list):
        return [item for item in (resolve(item, scope) for item in value) if item is not NO_VALUE]
    if isinstance(value, str) and "{{resolve:" in value:
        return DYNAMIC_REFERENCE.sub(lambda found: _dynamic(found, scope), value)
    return value


def references(value: Any) -> Iterator[Reference]:
    """Yield every name that an expression refers to, including those inside Fn::Sub."""
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        function = _function(value)
        if not function:
            for item in value.values():
                yield from references(item)
        else:
            yield from _referred(*function)


def chosen(value: Any, scope: Scope) -> Any:
    """Return `value` with each Fn::If replaced by the chosen branch; other functions stay."""
    if isinstance(value, list):
        return [chosen(item, scope) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Fn::If"}:
        condition, then, otherwise = _arguments("Fn::If", value["Fn::If"], 3)
        return chosen(then if scope.condition(condition) else otherwise, scope)
    return {key: chosen(item, scope) for key, item in value.items()}


def _function(value: Mapping[str, Any]) -> tuple[str, Any] | None:
    if len(value) != 1:
        return None
    ((name, argument),) = value.items()
    if name in FUNCTIONS and not (name == "Condition" and not isinstance(argument, str)):
        return name, argument
    if isinstance(name, str) and name.startswith("Fn::"):
        raise Refused(f"Template error: the local cloud does not support the function {name}")
    return None


def _referred(name: str, argument: Any) -> Iterator[Reference]:
    if name in ("Ref", "Condition"):
        yield Reference(name, argument if isinstance(argument, str) else "")
    elif name == "Fn::GetAtt":
        resource, attribute = _get_att_names(argument)
        yield Reference("GetAtt", resource, attribute if isinstance(attribute, str) else "")
        yield from references(attribute)
    elif name == "Fn::FindInMap":
        _check_places(argument)
        yield from references(argument)
    elif name == "Fn::Sub":
        yield from _sub_references(argument)
    elif name == "Fn::If":
        condition, *branches = _arguments(name, argument, 3)
        yield Reference("Condition", condition)
        yield from references(branches)
    else:
        yield from references(argument)


def _sub_references(argument: Any) -> Iterator[Reference]:
    text, names = _sub_parts(argument)
    yield from references(list(names.values()))
    for literal, place in SUB_PLACE.findall(text):
        if not literal and place.strip() not in names:
            name, _, attribute = place.strip().partition(".")
            yield Reference("GetAtt", name, attribute) if attribute else Reference("Ref", name)


def _arguments(name: str, argument: Any, count: int) -> list[Any]:
    if not isinstance(argument, list) or len(argument) != count:
        raise Refused(f"Template error: {name} requires a list argument with {count} elements")
    return argument


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)) or value is NO_VALUE:
        raise Refused(f"Template error: every {name} object must have values that are strings")
    return str(value)


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _ref(argument: Any, scope: Scope) -> Any:
    if not isinstance(argument, str):
        raise Refused("Template format error: All Ref references must be of type string")
    return scope.ref(argument)


def _get_att_names(argument: Any) -> tuple[str, Any]:
    parts = argument.split(".", 1) if isinstance(argument, str) else argument
    if not isinstance(parts, list) or len(parts) != 2 or not isinstance(parts[0], str):
        raise Refused("Template error: every Fn::GetAtt object requires two non-empty parameters")
    return parts[0], parts[1]


def _get_att(argument: Any, scope: Scope) -> Any:
    name, attribute = _get_att_names(argument)
    return scope.get_att(name, resolve(attribute, scope))


def _sub_parts(argument: Any) -> tuple[str, Mapping[str, Any]]:
    parts = [argument, {}] if isinstance(argument, str) else argument
    if (
        not isinstance(parts, list)
        or len(parts) != 2
        or not isinstance(parts[0], str)
        or not isinstance(parts[1], dict)
    ):
        raise Refused(
            "Template error: One or more Fn::Sub intrinsic functions don't specify expected arguments. Specify a "
            "string as first argument, and an optional second argument to specify a mapping of values to replace in "
            "the string"
        )
    return parts[0], parts[1]


def _sub(argument: Any, scope: Scope) -> str:
    text, names = _sub_parts(argument)
    own = resolve(dict(names), scope)

    def place(found: re.Match[str]) -> str:
        literal, name = found[1], found[2].strip()
        if literal:
            return f"${{{found[2]}}}"
        if name in own:
            return _text("Fn::Sub", own[name])
        return _text("Fn::Sub", scope.get_att(*name.split(".", 1)) if "." in name else scope.ref(name))

    return SUB_PLACE.sub(place, text)


def _join(argument: Any, scope: Scope) -> str:
    separator, values = _arguments("Fn::Join", argument, 2)
    items = resolve(values, scope)
    if not isinstance(separator, str) or not isinstance(items, list):
        raise Refused("Template error: every Fn::Join object requires two parameters, a string delimiter and a list")
    return separator.join(_text("Fn::Join", item) for item in items)


def _select(argument: Any, scope: Scope) -> Any:
    index, values = resolve(_arguments("Fn::Select", argument, 2), scope)
    items = values.split(",") if isinstance(values, str) else values
    if not isinstance(items, list) or not str(index).isdigit() or int(index) >= len(items):
        raise Refused(f"Template error: Fn::Select cannot select nonexistent value at index {index}")
    return items[int(index)]


def _split(argument: Any, scope: Scope) -> list[str]:
    delimiter, text = resolve(_arguments("Fn::Split", argument, 2), scope)
    if not isinstance(delimiter, str) or not isinstance(text, str):
        raise Refused("Template error: every Fn::Split object requires two parameters, a delimiter and a string")
    return text.split(delimiter)


def _if(argument: Any, scope: Scope) -> Any:
    condition, then, otherwise = _arguments("Fn::If", argument, 3)
    return resolve(then if scope.condition(condition) else otherwise, scope)


def _equals(argument: Any, scope: Scope) -> bool:
    # One by one, because a list without AWS::NoValue would be shorter.
    left, right = (resolve(item, scope) for item in _arguments("Fn::Equals", argument, 2))
    return left == right or _comparable(left) == _comparable(right)


def _comparable(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) or value is NO_VALUE else _text("Fn::Equals", value)


def _several(name: str, argument: Any, scope: Scope) -> list[bool]:
    if not isinstance(argument, list) or not 2 <= len(argument) <= 10:
        raise Refused(
            f"Template error: every {name} object requires a list of at least 2 and at most 10 boolean parameters."
        )
    return [_truth(resolve(item, scope)) for item in argument]


def _not(argument: Any, scope: Scope) -> bool:
    (value,) = _arguments("Fn::Not", argument, 1)
    return not _truth(resolve(value, scope))


# A default is a fourth, and needs the transform AWS::LanguageExtensions.
_PLACES_IN_MAP = 3


def _check_places(argument: Any) -> None:
    if not isinstance(argument, list) or len(argument) != _PLACES_IN_MAP:
        raise Refused(
            "Template error: every Fn::FindInMap object requires three parameters, the map name, map key and the"
            " attribute for return value"
        )


def _find_in_map(argument: Any, scope: Scope) -> Any:
    _check_places(argument)
    keys = [_text("Fn::FindInMap", item) for item in resolve(argument, scope)]
    found: Any = scope.mappings
    for key in keys:
        if not isinstance(found, Mapping) or key not in found:
            raise Refused(f"Template error: Unable to get mapping for {'::'.join(keys)}")
        found = found[key]
    return found


def _base64(argument: Any, scope: Scope) -> str:
    return base64.b64encode(_text("Fn::Base64", resolve(argument, scope)).encode()).decode()


def _get_azs(argument: Any, scope: Scope) -> list[str]:
    region = resolve(argument, scope)
    return scope.zones(region or scope.pseudo["AWS::Region"])


def _cidr(argument: Any, scope: Scope) -> list[str]:
    block, count, *bits = resolve(argument, scope)
    network = ipaddress.ip_network(block)
    size = network.max_prefixlen - int(bits[0] if bits else 8 if network.version == 4 else 64)
    if not network.prefixlen <= size <= network.max_prefixlen or int(count) > 2 ** (size - network.prefixlen):
        raise Refused(f"Template error: Fn::Cidr can't make {count} blocks of /{size} from {block}")
    subnets = network.subnets(new_prefix=size)
    return [str(next(subnets)) for _ in range(int(count))]


def _import_value(argument: Any, scope: Scope) -> Any:
    name = _text("Fn::ImportValue", resolve(argument, scope))
    scope.imports.add(name)
    return scope.imported(name)


def _dynamic(found: re.Match[str], scope: Scope) -> str:
    if found[1] != "ssm":
        raise Refused(f"The local cloud does not support dynamic references to {found[1]}: {found[0]}")
    name = found[2].split(":")[0]
    try:
        return scope.parameter(name)
    except KeyError:
        raise Refused(parameters.not_served(name) or f"Parameters: [ssm:{name}] cannot be found.") from None


FUNCTIONS: dict[str, Callable[[Any, Scope], Any]] = {
    "Ref": _ref,
    "Condition": lambda name, scope: scope.condition(name),
    "Fn::GetAtt": _get_att,
    "Fn::Sub": _sub,
    "Fn::Join": _join,
    "Fn::Select": _select,
    "Fn::Split": _split,
    "Fn::If": _if,
    "Fn::Equals": _equals,
    "Fn::And": lambda items, scope: all(_several("Fn::And", items, scope)),
    "Fn::Or": lambda items, scope: any(_several("Fn::Or", items, scope)),
    "Fn::Not": _not,
    "Fn::FindInMap": _find_in_map,
    "Fn::Base64": _base64,
    "Fn::GetAZs": _get_azs,
    "Fn::Cidr": _cidr,
    "Fn::ImportValue": _import_value,
}
