"""A cloud with AWS's API. All calls go through `call`, which retries them and translates errors."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from botocore.parsers import ResponseParserError
from botocore.session import Session

from phalanx.aws import (
    change_sets,
    drift,
    foreign,
    lustre_file_systems,
    pages,
    price_list,
    remains,
    s3_objects,
    sent_templates,
    transcript,
)
from phalanx.aws.auto_scaling import AutoScaling
from phalanx.aws.model import (
    CLUSTER_TAG,
    ChangeSet,
    Heads,
    Machines,
    Resource,
    Running,
    ScalingActivity,
    SshRoute,
    StackEvent,
    StackState,
)
from phalanx.aws.refusals import code, is_gone, translate
from phalanx.errors import CloudError
from phalanx.node.sigv4 import Credentials
from phalanx.objects.sent_document import InBucket
from phalanx.waits import waiting

if TYPE_CHECKING:
    from phalanx.plan.machine_images import Image
    from phalanx.plan.money import Prices, Use
    from phalanx.plan.plan import Facts
    from phalanx.spec.spec import ClusterSpec

# A WaitCondition takes up to 55 minutes, after the network and the file system.
CREATION_TIMEOUT_MIN = 75


class ApiCloud(s3_objects.S3Objects, ABC):
    """The calls that AWS and the local cloud share. See `phalanx.aws.protocol.Cloud`."""

    name = "api"
    poll_interval_s = 2.0
    retry_mode: Literal["standard", "adaptive"] = "adaptive"

    def __init__(self, region: str, name: str = "") -> None:
        self.region = region
        self.name = name or self.name
        self.machines: Machines = AutoScaling(self)
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._most_attempts = 10

    def attempts(self) -> int:
        """How often a call is tried that is throttled, or gets no answer."""
        return self._most_attempts

    def limit_attempts(self, most: int) -> None:
        self._most_attempts = most

    @abstractmethod
    def session(self) -> Session:
        """Return a botocore session with the credentials to use."""

    @abstractmethod
    def endpoint_url(self) -> str | None:
        """Return where to send the calls; None means AWS's own endpoints."""

    @abstractmethod
    def ssh_route(self, by_session: bool = False) -> SshRoute: ...

    def open_networks(self) -> str:
        """Return "": networks decide, unless a cloud knows better."""
        return ""

    @abstractmethod
    def accounts_separated(self) -> bool: ...

    @abstractmethod
    def stop_if_idle(self) -> None: ...

    @abstractmethod
    def require_full_system(self, image: str) -> None: ...

    def kept_contents(self, image_id: str) -> dict[str, Any]:  # noqa: ARG002 - the local cloud needs it
        """Return nothing: nobody sees the files of an AMI."""
        return {}

    # -- calls -------------------------------------------------------------------------------------------------

    def call(self, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        """Make an API call by botocore's names. Raises CloudError, with its error as the cause."""
        action = f"{service}:{''.join(word.title() for word in operation.split('_'))}"
        try:
            with waiting(f"the answer to {action}"):
                return getattr(self.client(service), operation)(**arguments)
        except (BotoCoreError, ClientError, ResponseParserError) as error:
            raise translate(error, action, self.endpoint_url() or f"AWS in {self.region}") from error

    def pages(self, service: str, operation: str, key: str, **arguments: Any) -> Iterator[Any]:
        """Yield the entries under `key` of all pages. Raises CloudError, also if they repeat themselves."""
        token: dict[str, Any] = {}
        while True:
            page = self.call(service, operation, **arguments, **token)
            yield from page.get(key, [])
            token = pages.token(service, page, token)
            if not token:
                return

    def exists(self, service: str, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer, or None when the resource does not exist."""
        try:
            return self.call(service, operation, **arguments)
        except CloudError as error:
            if isinstance(error.__cause__, Exception) and is_gone(error.__cause__):
                return None
            raise

    def client(self, service: str) -> Any:
        """Return the service's client, created once. (Creating one is not thread-safe; using it is.)"""
        if service not in self._clients:
            with self._lock:
                if service not in self._clients:
                    self._clients[service] = self._make_client(service)
        return self._clients[service]

    def prepare(self, services: Iterable[str]) -> None:
        """Create clients ahead, in a thread: the eight that a clean-up needs take half a second."""
        threading.Thread(target=lambda: [self.client(service) for service in services], daemon=True).start()

    def _make_client(self, service: str) -> Any:
        if self._session is None:
            self._session = self.session()
        retries = {"mode": self.retry_mode, "max_attempts": self.attempts()}
        config = Config(retries=cast("Any", retries), connect_timeout=10, read_timeout=60)
        where: dict[str, Any] = {"config": config, "region_name": self.region}
        if service == price_list.SERVICE:
            where = {"config": price_list.SHORTLY, "region_name": price_list.endpoint_region(self.region)}
        client = cast("Any", self._session).create_client(service, endpoint_url=self.endpoint_url(), **where)
        transcript.attach(client)
        return client

    # -- phalanx.aws.protocol.Cloud -----------------------------------------------------------------------------

    def s3_endpoint(self) -> str:
        return self.client("s3").meta.endpoint_url

    def user_keys(self) -> Credentials:
        found = (self._session or self.session()).get_credentials()
        if found is None:
            raise translate(NoCredentialsError(), "s3:GetObject", self.endpoint_url() or "S3")
        frozen = found.get_frozen_credentials()
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    def facts(self, spec: ClusterSpec, ssh_public_key: str) -> Facts:
        # Here, because only a plan needs it, and the models of specs are slow to import.
        from phalanx.aws import lookups

        return lookups.facts(self, spec, ssh_public_key)

    def promised_bit_s(self, instance_type: str) -> float | None:
        from phalanx.aws import lookups

        return lookups.promised_bit_s(self, instance_type)

    def image(self, parameter: str) -> Image | None:
        from phalanx.aws import lookups

        return lookups.image(self, parameter)

    def create_stack(
        self, name: str, template: str | InBucket, parameters: Mapping[str, str], tags: Mapping[str, str] | None = None
    ) -> str:
        created = self.call(
            "cloudformation",
            "create_stack",
            StackName=name,
            **s3_objects.as_template(self, template),
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
            Capabilities=["CAPABILITY_IAM"],
            OnFailure="ROLLBACK",
            TimeoutInMinutes=CREATION_TIMEOUT_MIN,
            Tags=[{"Key": key, "Value": value} for key, value in {**(tags or {}), CLUSTER_TAG: name}.items()],
        )
        return sent_templates.required_stack(self, created["StackId"], template)

    def review_changes(
        self,
        stack: StackState,
        template: str | InBucket,
        parameters: Mapping[str, str],
        kept: Collection[str],
        tags: Mapping[str, str] | None = None,
    ) -> ChangeSet | None:
        wanted = {**(tags or {}), CLUSTER_TAG: stack.name}
        return change_sets.review(self, stack.stack_id, template, parameters, kept, wanted)

    def forget_reviews(self, stack_id: str) -> None:
        change_sets.forget_all(self, stack_id)

    def execute_changes(self, change_set_id: str) -> None:
        change_sets.execute(self, change_set_id)

    def forget_changes(self, change_set_id: str) -> None:
        change_sets.forget(self, change_set_id)

    def prices(self, types: Collection[str], spot_in: str = "") -> Prices:
        return price_list.ask(self, types, spot_in)

    def describe_stack(self, name_or_id: str) -> StackState | None:
        answer = self.exists("cloudformation", "describe_stacks", StackName=name_or_id)
        return _state(answer["Stacks"][0]) if answer and answer["Stacks"] else None

    def events(self, stack_id: str, after: str | None) -> list[StackEvent]:
        """Read pages, which have the newest event first, until a known event."""
        found: list[StackEvent] = []
        for entry in self.pages("cloudformation", "describe_stack_events", "StackEvents", StackName=stack_id):
            if entry["EventId"] == after:
                break
            found.append(_event(entry))
        return found[::-1]

    def resources(self, stack_id: str) -> list[Resource]:
        entries = self.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack_id)
        return [_resource(entry) for entry in entries if entry.get("PhysicalResourceId")]

    def drift(self, resources: Sequence[Resource]) -> list[str]:
        return drift.find(self, resources)

    def delete_stack(self, stack_id: str) -> None:
        self.exists("cloudformation", "delete_stack", StackName=stack_id)
        self.prepare(remains.SERVICES)

    def leftovers(self, cluster: str, resources: Sequence[Resource]) -> list[str]:
        return remains.find(self, cluster, resources)

    def item(self, table: str, key: str) -> dict[str, str] | None:
        answer = self.exists("dynamodb", "get_item", TableName=table, Key={"item": {"S": key}}, ConsistentRead=True)
        item = (answer or {}).get("Item")
        return {name: next(iter(value.values())) for name, value in item.items()} if item else None

    @property
    def admin_user(self) -> str:
        return self.machines.admin_user

    def running(self, cluster: str) -> Running | None:
        return self.machines.running(cluster)

    def use(self, cluster: str, file_system: str, now_s: float) -> Use:
        return self.machines.use(cluster, file_system, now_s)

    def end_at(self, cluster: str, at_s: float | None) -> None:
        self.machines.end_at(cluster, at_s)

    def keep_until(self, cluster: str, at_s: float) -> None:
        self.machines.keep_until(cluster, at_s)

    def start_nodes(self, cluster: str, workers: int) -> None:
        self.machines.start_nodes(cluster, workers)

    def allow_workers(self, cluster: str, most: int) -> None:
        self.machines.allow_workers(cluster, most)

    def outdated(self, cluster: str) -> list[str]:
        return self.machines.outdated(cluster)

    def activities(self, group: str) -> list[ScalingActivity]:
        return self.machines.activities(group)

    def heads(self, group: str) -> Heads:
        return self.machines.heads(group)

    def boot_logs(self, log_group: str) -> dict[str, str]:
        if self.exists("logs", "describe_log_streams", logGroupName=log_group, limit=1) is None:
            return {}
        streams = self.pages("logs", "describe_log_streams", "logStreams", logGroupName=log_group)
        return {stream["logStreamName"]: self._boot_log(log_group, stream["logStreamName"]) for stream in streams}

    def delete_file_system(self, file_system: str) -> None:
        self.exists("efs", "delete_file_system", FileSystemId=file_system)

    def delete_lustre(self, file_system: str) -> str:
        return lustre_file_systems.delete(self, file_system)

    def has_lustre(self, file_system: str) -> bool:
        return lustre_file_systems.describe(self, file_system) is not None

    def lustre_usd_per_hour(self, cluster: str, file_system: str) -> float:
        return lustre_file_systems.usd_per_hour(self, cluster, file_system)

    @abstractmethod
    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]: ...

    def allow_ssh(self, group: str, network: str) -> bool:
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": network}]}
        try:
            self.call("ec2", "authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
        except CloudError as error:
            if isinstance(error.__cause__, Exception) and code(error.__cause__) == "InvalidPermission.Duplicate":
                return False
            raise
        return True

    def remove_policies(self, role: str) -> tuple[str, ...]:
        attached = (self.exists("iam", "list_attached_role_policies", RoleName=role) or {}).get("AttachedPolicies", [])
        for policy in attached:
            self.exists("iam", "detach_role_policy", RoleName=role, PolicyArn=policy["PolicyArn"])
        inline = (self.exists("iam", "list_role_policies", RoleName=role) or {}).get("PolicyNames", [])
        for name in inline:
            self.exists("iam", "delete_role_policy", RoleName=role, PolicyName=name)
        return (*(f"detached {policy['PolicyName']}" for policy in attached), *(f"deleted {name}" for name in inline))

    def delete_guard_duty(self, vpc: str) -> list[str]:
        return foreign.delete_guard_duty(self, vpc)

    def foreign(self, cluster: str, vpc: str) -> list[str]:
        return foreign.find(self, cluster, vpc)

    def sharers(self, cluster: str, resources: Sequence[Resource]) -> list[str]:
        return foreign.sharers(self, cluster, resources)

    def delete_role(self, role: str) -> None:
        self.remove_policies(role)
        self.exists("iam", "delete_role", RoleName=role)

    def endpoints(self, vpc: str, subnets: tuple[str, ...] = ()) -> list[str] | None:
        if not subnets:
            return foreign.services(self, vpc)
        from phalanx.aws import vpcs

        return vpcs.services(self, vpc, subnets)

    def delete_log_group(self, log_group: str) -> None:
        self.exists("logs", "delete_log_group", logGroupName=log_group)

    def _boot_log(self, log_group: str, stream: str) -> str:
        answer = self.call("logs", "get_log_events", logGroupName=log_group, logStreamName=stream, startFromHead=False)
        return "\n".join(event["message"].rstrip("\n") for event in answer["events"])


def _state(entry: Mapping[str, Any]) -> StackState:
    return StackState(
        name=entry["StackName"],
        stack_id=entry["StackId"],
        status=entry["StackStatus"],
        reason=entry.get("StackStatusReason", ""),
        created_s=entry["CreationTime"].timestamp(),
        updated_s=entry["LastUpdatedTime"].timestamp() if entry.get("LastUpdatedTime") else 0.0,
        resolved={
            one["ParameterKey"]: one["ResolvedValue"] for one in entry.get("Parameters", []) if "ResolvedValue" in one
        },
        outputs={output["OutputKey"]: output["OutputValue"] for output in entry.get("Outputs", [])},
        parameters={value["ParameterKey"]: value.get("ParameterValue", "") for value in entry.get("Parameters", [])},
        tags={tag["Key"]: tag["Value"] for tag in entry.get("Tags", [])},
    )


def _event(entry: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        event_id=entry["EventId"],
        time_s=entry["Timestamp"].timestamp(),
        logical_id=entry.get("LogicalResourceId", ""),
        physical_id=entry.get("PhysicalResourceId", ""),
        resource_type=entry.get("ResourceType", ""),
        status=entry.get("ResourceStatus", ""),
        reason=entry.get("ResourceStatusReason", ""),
    )


def _resource(entry: Mapping[str, Any]) -> Resource:
    return Resource(entry["LogicalResourceId"], entry["PhysicalResourceId"], entry["ResourceType"])
