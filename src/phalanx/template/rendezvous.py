"""The rendezvous of the nodes: queue, table, topic, function, and the WaitCondition of a ready cluster."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from troposphere import GetAtt, Ref, Sub, Template, awslambda, cloudformation, dynamodb, sns, sqs

from phalanx.node.decision import FINAL
from phalanx.plan.plan import Plan
from phalanx.template import removal, storage
from phalanx.template.access import RULES
from phalanx.template.naming import DELETE, HEAD_GROUP
from phalanx.template.userdata import strip

READY_TIMEOUT_S = 3300
FUNCTION_TIMEOUT_S = 60
MESSAGE_RETENTION_S = 24 * 3600

_NODE_DEPENDENCIES = (
    *RULES,
    *("NodePolicy", "HeadQueuePolicy", "QueueSubscription", "FunctionSubscription", "FunctionPermission"),
)


def node_dependencies(plan: Plan) -> list[str]:
    """Return what, beside the network, must exist before a node boots and is not referred to by its launch template.

    Some of it must also outlive the workers: a node whose shared directory does not answer takes minutes to shut down.
    The workers' group, which is created empty, depends on all of it, and the head's resources depend on that group.
    """
    return [*storage.reached_by(plan), *_NODE_DEPENDENCIES]


def add_to(template: Template, plan: Plan) -> None:
    for resource in (queue(), _queue_policy(), table(), *_topic(), *_function(plan), *ready(plan, "WorkersGroup")):
        template.add_resource(resource)


def handle_name(plan: Plan) -> str:
    """Name this deployment's handle: a WaitCondition and its handle can't be reused (docs/aws-behaviour.md 1.12)."""
    return f"ReadyHandle{plan.deployment}"


def condition_name(plan: Plan) -> str:
    return f"Ready{plan.deployment}"


def queue() -> sqs.Queue:
    return sqs.Queue(
        "HeadQueue",
        MessageRetentionPeriod=MESSAGE_RETENTION_S,
        ReceiveMessageWaitTimeSeconds=20,
        SqsManagedSseEnabled=True,
        **DELETE,
    )


def _queue_policy() -> sqs.QueuePolicy:
    only_topic = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": GetAtt("HeadQueue", "Arn"),
        "Condition": {"ArnEquals": {"aws:SourceArn": Ref("FleetTopic")}},
    }
    return sqs.QueuePolicy(
        "HeadQueuePolicy",
        Queues=[Ref("HeadQueue")],
        PolicyDocument={"Version": "2012-10-17", "Statement": [only_topic]},
    )


def table() -> dynamodb.Table:
    return dynamodb.Table(
        "RosterTable",
        AttributeDefinitions=[dynamodb.AttributeDefinition(AttributeName="item", AttributeType="S")],
        KeySchema=[dynamodb.KeySchema(AttributeName="item", KeyType="HASH")],
        BillingMode="PAY_PER_REQUEST",
        **DELETE,
    )


def _topic() -> tuple[sns.Topic | sns.SubscriptionResource, ...]:
    # The function handles failed launches of the head only: a thousand workers must not invoke it, nor Auto Scaling's
    # test notification, nor the head's launch and termination (docs/aws-behaviour.md 3.4, 3.23, 8).
    only_head = {"AutoScalingGroupName": [HEAD_GROUP], "Event": ["autoscaling:EC2_INSTANCE_LAUNCH_ERROR"]}
    return (
        # The head reads the idle time from the stack's parameters; CloudFormation takes no update of a parameter that
        # no resource has (docs/aws-behaviour.md 1.31).
        sns.Topic("FleetTopic", Metadata={"idle": Ref("Idle")}),
        _subscription("QueueSubscription", "sqs", "HeadQueue", RawMessageDelivery=False),
        _subscription(
            "FunctionSubscription", "lambda", "Function", FilterPolicyScope="MessageBody", FilterPolicy=only_head
        ),
        # Auto Scaling's messages have no attributes (docs/aws-behaviour.md 3.23), so that nobody gets them by mail.
        sns.SubscriptionResource(
            "MailSubscription",
            Condition="HasMail",
            TopicArn=Ref("FleetTopic"),
            Protocol="email",
            Endpoint=Ref("Mail"),
            FilterPolicy={"kind": ["notice"]},
        ),
    )


def _subscription(title: str, protocol: str, endpoint: str, **more: Any) -> sns.SubscriptionResource:
    return sns.SubscriptionResource(
        title, TopicArn=Ref("FleetTopic"), Protocol=protocol, Endpoint=GetAtt(endpoint, "Arn"), **more
    )


def _function(plan: Plan) -> tuple[awslambda.Function, awslambda.Permission]:
    """Make the function. ReservedConcurrentExecutions would fail in small accounts (docs/aws-behaviour.md 8)."""
    function = awslambda.Function(
        "Function",
        Runtime="python3.12",
        Handler="index.look" if plan.spec.down_after_s else "index.handler",
        Code=awslambda.Code(ZipFile=_configured(plan)),
        Role=GetAtt("FunctionRole", "Arn"),
        Timeout=FUNCTION_TIMEOUT_S,
        MemorySize=128,
        LoggingConfig=awslambda.LoggingConfig(LogGroup=Ref("LogGroup")),
    )
    permission = awslambda.Permission(
        "FunctionPermission",
        FunctionName=Ref("Function"),
        Action="lambda:InvokeFunction",
        Principal="sns.amazonaws.com",
        SourceArn=Ref("FleetTopic"),
    )
    return function, permission


def _configured(plan: Plan) -> Sub:
    """Return the function's source with its settings, the wait handle's secret URL among them.

    As variables they would be shown to everyone who may list functions.
    """
    group, handle = HEAD_GROUP.data["Fn::Sub"], f"${{{handle_name(plan)}}}"
    given = {"HEAD_GROUP": group, "WAIT_HANDLE": handle, "FINAL": FINAL, **removal.settings(plan)}
    settings = f"os.environ.update({','.join(f'{name}={value!r}' for name, value in given.items())})"
    source = function_source(removes=bool(plan.spec.down_after_s))
    return Sub(f"import os\n{settings}\n" + source.replace("${", "${!"))


@functools.cache
def function_source(removes: bool = False) -> str:
    """Return the function's source without what only readers need, which is a third of it.

    `removes`: with what removes a forgotten cluster.
    """
    files = resources.files("phalanx.template") / "lambda_source"
    names = ("index.py", "remover.py") if removes else ("index.py",)
    lines = [line for name in names for line in (files / name).read_text(encoding="utf-8").splitlines()]
    # What the second imports again takes bytes.
    source = "\n".join(line for n, line in enumerate(lines) if not line.startswith("import ") or line not in lines[:n])
    return strip(source)


def ready(plan: Plan, *after: str) -> tuple[cloudformation.WaitConditionHandle, cloudformation.WaitCondition]:
    """Make the wait condition, in parallel to the head's group: a head that can't be launched fails the stack at once.

    Its time begins when the resources `after` are there.

    Auto Scaling's failed launches alone might not fail the group for hours (docs/aws-behaviour.md 1.3, 1.4).
    """
    return (
        cloudformation.WaitConditionHandle(handle_name(plan)),
        cloudformation.WaitCondition(
            condition_name(plan),
            Handle=Ref(handle_name(plan)),
            Timeout=str(READY_TIMEOUT_S),
            Count=1,
            DependsOn=list(after),
        ),
    )
