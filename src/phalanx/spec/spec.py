"""ClusterSpec: what the user wants, read from phalanx.yaml with every mistake reported at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from phalanx.errors import SpecError
from phalanx.spec import spec_checks as checks
from phalanx.spec import spec_yaml
from phalanx.spec.spec_yaml import Mistake, Value

DEFAULT_FILE = "phalanx.yaml"


class ClusterSpec(BaseModel):
    """One cluster as the user asked for it: frozen, valid, with defaults for all but what only the cloud knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, AfterValidator(checks.name)]
    """Name of the cluster and of its stack."""
    cloud: Annotated[str, AfterValidator(checks.cloud)] = "local"
    region: Annotated[str, AfterValidator(checks.region)] = "us-east-1"
    nodes: Annotated[int, AfterValidator(checks.nodes)]
    """Machines, the head included."""
    min: int = 1
    """Fewest nodes that are still a cluster."""
    type: Annotated[str, AfterValidator(checks.instance_type)] = "c5.large"
    image: Annotated[str, AfterValidator(checks.image)] | None = None
    """An alias of data/images.json or the path of an SSM parameter; None: by the instance type."""
    shared: Annotated[str, AfterValidator(checks.shared)] = "/efs"
    slots: Annotated[int, AfterValidator(checks.slots)] | None = None
    """Processes a node is meant to run; None: its GPUs, else its vCPUs."""
    ssh_from: str = Field(default="", validate_default=True)
    """The network (CIDR) that may reach the head by ssh. 127.0.0.1/32 in the local cloud; on AWS it must be given."""
    key_pair: Annotated[str, AfterValidator(checks.key_pair)] | None = None
    node_timeout_s: Annotated[int, AfterValidator(checks.node_timeout_s)] = 600
    """Seconds after which a node that did not answer counts as missing."""
    file_system: Annotated[str, AfterValidator(checks.file_system)] | None = None
    """An EFS file system that is there already, for the shared directory; None: one is made."""
    keep: Annotated[str, AfterValidator(checks.keep)] | None = None
    """yes, no or ask: whether the shared directory outlives `down`; None: yes for one that was there, else ask."""
    boot: Annotated[str, AfterValidator(checks.boot)] | None = None
    """Shell script that root runs on every node once the shared directory is mounted."""
    bucket: Annotated[str, AfterValidator(checks.bucket)] | None = None
    """An S3 bucket of the user's, for a template that is too large for a request; None: such a spec is refused."""

    # These two look at a field above them, which is absent from info.data when it is wrong itself.
    @field_validator("min")
    @classmethod
    def _min_fits_nodes(cls, value: int, info: ValidationInfo) -> int:
        return checks.minimum(value, info.data.get("nodes"))

    @field_validator("ssh_from")
    @classmethod
    def _ssh_from_fits_cloud(cls, value: str, info: ValidationInfo) -> str:
        return checks.ssh_from(value, info.data.get("cloud"))


KEYS = {
    "name": "text",
    "cloud": "text",
    "region": "text",
    "nodes": "whole number",
    "min": "whole number",
    "type": "text",
    "image": "text",
    "shared": "text",
    "slots": "whole number",
    "ssh_from": "text",
    "key_pair": "text",
    "node_timeout": "time",
    "file_system": "text",
    "keep": "word",
    "boot": "text",
    "bucket": "text",
}
"""The keys of phalanx.yaml and the kind of value that each holds."""


def load(path: Path | str) -> ClusterSpec:
    """Reads and checks a spec. SpecError lists all mistakes as `file:line: field: what; hint`, in order of lines."""
    entries, mistakes = spec_yaml.read(Path(path))
    mistakes += [_unknown(key, value) for key, value in entries.items() if key not in KEYS]
    values, wrong_kinds = _values(entries)
    spec, wrong_values = _checked(values, entries)
    told = {mistake.field for mistake in wrong_kinds}
    mistakes += wrong_kinds + [mistake for mistake in wrong_values if mistake.field not in told]
    if mistakes or spec is None:
        raise SpecError("\n".join(m.text(str(path)) for m in sorted(mistakes, key=lambda m: (m.line, m.field))))
    return spec


@contextmanager
def told_where(path: Path | str) -> Iterator[None]:
    """Gives a SpecError from within that begins with a key, such as "type: …", the place of that key in the file."""
    try:
        yield
    except SpecError as error:
        key = error.message.partition(":")[0]
        if key not in KEYS:
            raise
        entries, _ = spec_yaml.read(Path(path))
        line = f":{entries[key].line}" if key in entries else ""
        raise SpecError(f"{path}{line}: {error.message}", error.hint) from error


def _unknown(key: str, value: Value) -> Mistake:
    return Mistake(value.line, key, "is no key of phalanx.yaml", checks.nearest(key, KEYS))


def _values(entries: dict[str, Value]) -> tuple[dict[str, Any], list[Mistake]]:
    values: dict[str, Any] = {}
    mistakes: list[Mistake] = []
    for key in KEYS.keys() & entries.keys():
        outcome = _of_kind_or_mistake(key, entries[key])
        if isinstance(outcome, Mistake):
            mistakes.append(outcome)
        else:
            values[_field_of(key)] = outcome
    return values, mistakes


def _of_kind_or_mistake(key: str, value: Value) -> str | int | Mistake:
    try:
        return _of_kind(KEYS[key], value)
    except checks.WrongError as wrong:
        return Mistake(value.line, key, wrong.what, wrong.hint)


def _of_kind(kind: str, value: Value) -> str | int:
    if value.plain is None:
        raise checks.WrongError("has no value", "write one, or remove the line")
    if kind == "time":
        return _time_s(value)
    if kind == "word":
        # YAML reads yes and no as truth values.
        return value.text.lower()
    if kind == "whole number" and (not isinstance(value.plain, int) or isinstance(value.plain, bool)):
        raise checks.WrongError(
            f"must be a whole number, is {value.described}", "write digits only, such as 4, without quotes"
        )
    if kind == "text" and not isinstance(value.plain, str):
        raise checks.WrongError(
            f"must be text, is {value.described}", "put it in quotes if that is what you mean" if value.text else ""
        )
    return value.plain


def _time_s(value: Value) -> int:
    if not value.text or isinstance(value.plain, bool):
        raise checks.WrongError(f"must be a time with its unit, is {value.described}", "such as 90s, 10m or 1h30m")
    return checks.duration_s(value.text)


def _checked(values: dict[str, Any], entries: dict[str, Value]) -> tuple[ClusterSpec | None, list[Mistake]]:
    try:
        return ClusterSpec(**values), []
    except ValidationError as error:
        found = (_mistake(detail, entries) for detail in error.errors())
        return None, [mistake for mistake in found if mistake]


def _mistake(detail: Any, entries: dict[str, Value]) -> Mistake | None:
    key = _key_of(str(detail["loc"][0]))
    if detail["type"] == "missing":
        # A field of the wrong kind was reported already and is "missing" only here.
        return None if key in entries else Mistake(1, key, "is missing", f"add a line such as `{_EXAMPLES[key]}`")
    line = entries[key].line if key in entries else 1
    error = detail.get("ctx", {}).get("error")
    return (
        Mistake(line, key, error.what, error.hint)
        if isinstance(error, checks.WrongError)
        else Mistake(line, key, detail["msg"])
    )


_EXAMPLES = {"name": "name: demo", "nodes": "nodes: 4"}


def _field_of(key: str) -> str:
    return "node_timeout_s" if key == "node_timeout" else key


def _key_of(field: str) -> str:
    return "node_timeout" if field == "node_timeout_s" else field


INIT_TEXT = """\
# A phalanx cluster. `phalanx plan` shows what this makes, `phalanx up` makes it.
name: {name}
cloud: {cloud}            # local: this machine, nothing to pay; aws: your AWS account
region: us-east-1
nodes: 4                # machines, the head included
min: 2                  # fewer than these are no cluster: `up` fails and takes everything down again
type: c5.large          # instance type, of the head and of the workers
{image}
shared: /efs            # directory that all nodes share
{ssh_from}
# slots: 2              # processes a node is meant to run; default: its GPUs, else its vCPUs
# key_pair: my-key      # an EC2 key pair that may log in too
# file_system: fs-…     # an EFS file system of yours for the shared directory; default: a new one
# keep: ask             # whether `down` keeps what is in the shared directory: yes, no or ask
# node_timeout: 10m     # a node that has not answered by then counts as missing
# boot: |               # shell script that root runs on every node
#   pip install my-package
# bucket: my-bucket     # a private S3 bucket of yours; wanted for a boot script beyond some 4 KiB compressed
"""


def init_text(name: str, cloud: str = "local") -> str:
    """The commented file that `phalanx init` writes. On AWS the network for ssh is left for the user to say."""
    image = "# image: ubuntu-24.04   # or an SSM parameter, /aws/service/…; default: by the type (GPUs: dlami-pytorch)"
    ssh_from = "ssh_from:               # the network that may reach the head, such as 203.0.113.7/32, or anywhere"
    if cloud != "aws":
        ssh_from = "# ssh_from: 127.0.0.1/32  # on AWS: the network that may reach the head, such as 203.0.113.7/32"
    return INIT_TEXT.format(name=name, cloud=cloud, image=image, ssh_from=ssh_from)
