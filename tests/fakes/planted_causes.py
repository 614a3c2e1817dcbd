"""Causes of failures, planted as AWS and the nodes record them, with a part of the name that `why` gives each."""

from __future__ import annotations

from phalanx.aws.model import ScalingActivity, StackEvent
from phalanx.cluster.why import Evidence

TIMED_OUT = "WaitCondition timed out. Received 0 conditions when expecting 1"
VCPUS = (
    "You have requested more vCPU capacity than your current vCPU limit of 32 allows for the instance bucket that the "
    "specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an "
    "adjustment to this limit. Launching EC2 instance failed."
)
FULL = (
    "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you requested (us-east-1a). "
    "Our system will be working on provisioning additional capacity. Launching EC2 instance failed."
)

RESERVED = (
    "The requested reservation does not have sufficient compatible and available capacity for this request. Launching "
    "EC2 instance failed."
)


def event(reason: str, logical_id: str = "HeadGroup", status: str = "CREATE_FAILED") -> StackEvent:
    return StackEvent("e", 1.0, logical_id, "physical", "AWS::AutoScaling::AutoScalingGroup", status, reason)


def of_lustre(kind: str, reason: str, status: str = "CREATE_FAILED") -> StackEvent:
    return StackEvent("e", 1.0, "Lustre", "fs-1", f"AWS::FSx::{kind}", status, reason)


def of_emr(reason: str) -> StackEvent:
    return StackEvent("e", 1.0, "EmrCluster", "j-1", "AWS::EMR::Cluster", "CREATE_FAILED", reason)


def signalled(text: str) -> StackEvent:
    words = f"WaitCondition received failed message: '{text}' for uniqueId: phalanx"
    return StackEvent("e", 1.0, "Ready1", "h", "AWS::CloudFormation::WaitCondition", "CREATE_FAILED", words)


def refused(message: str, status: str = "Failed") -> ScalingActivity:
    return ScalingActivity(1.0, 2.0, "Launching a new EC2 instance.", "At …", status, message)


def ended(cause: str) -> ScalingActivity:
    return ScalingActivity(1.0, 2.0, "Terminating EC2 instance: i-1", cause, "Successful")


def of_stack(*events: StackEvent, **more) -> Evidence:
    return Evidence(status="ROLLBACK_COMPLETE", events=events, **more)


LOST = "PublicRouteTable (rtb-1) has lost its route to 0.0.0.0/0"
PLANTED = {
    "a route that somebody deleted": (Evidence(status="CREATE_COMPLETE", drift=(LOST,)), "somebody has removed a part"),
    "a job that stands still": (
        Evidence(
            status="CREATE_COMPLETE",
            stalled="job 261127-195709-d4302d is stalled: no step for 601 s; rank 3 waits in nvidia-smi (Throttl:1)",
        ),
        "a job stands still",
    ),
    "a node that was lost and replaced": (
        Evidence(status="CREATE_COMPLETE", lost=("i-1 was lost at 06:35 UTC: it gave no sign of life",)),
        "a node was lost",
    ),
    "a job that filled a disk": (
        Evidence(status="CREATE_COMPLETE", full=("deeplearning-worker1",)),
        "the disk of a node is full",
    ),
    "a shared directory that does not answer": (
        Evidence(status="CREATE_COMPLETE", hung=("deeplearning-worker5",)),
        "the shared directory does not answer",
    ),
    "a closed shared directory": (
        Evidence(status="CREATE_COMPLETE", closed="/efs belongs to x, so jobs can't write at its top"),
        "jobs can't write at the top",
    ),
    "quota of vCPUs, from the function": (of_stack(signalled("The head could not be launched: " + VCPUS)), "of vCPUs"),
    "a reservation that is full": (
        Evidence(status="CREATE_COMPLETE", missing=(RESERVED,)),
        "the reservation has no place",
    ),
    "a reservation that was cancelled": (
        of_stack(signalled("The head could not be launched: The capacity reservation ID 'cr-0123abcd' was not found")),
        "the reservation has no place",
    ),
    "quota of vCPUs of a worker": (Evidence(status="CREATE_COMPLETE", missing=(VCPUS,)), "quota of vCPUs"),
    "quota of Spot": (of_stack(event("Max spot instance count exceeded.")), "quota of Spot"),
    "a zone without an endpoint": (
        of_stack(
            event(
                "The VPC endpoint service com.amazonaws.us-east-1.sns does not support the availability zone of the "
                "subnet: subnet-1. (Service: Ec2, Status Code: 400)",
                "SnsEndpoint",
            )
        ),
        "no endpoint in this zone",
    ),
    "a service's name that leads elsewhere": (
        of_stack(
            event(
                "private-dns-enabled cannot be set because there is already a conflicting DNS domain for "
                "sqs.us-east-1.amazonaws.com in the VPC vpc-1 (Service: Ec2, Status Code: 400)",
                "SqsEndpoint",
            )
        ),
        "has the name of a service already",
    ),
    "quota of endpoints": (
        of_stack(
            event(
                "The maximum number of VPC endpoints has been reached. (Service: Ec2, Status Code: 400)", "SqsEndpoint"
            )
        ),
        "quota of VPC endpoints",
    ),
    "an endpoint that is missing": (
        of_stack(event(TIMED_OUT, "Ready1"), without_endpoint=("sqs",)),
        "a VPC endpoint is missing",
    ),
    "quota of addresses": (
        of_stack(
            event("The maximum number of addresses has been reached. (Service: Ec2, Status Code: 400)", "HeadAddress")
        ),
        "quota of Elastic IPs",
    ),
    "quota of VPCs": (of_stack(event("The maximum number of VPCs has been reached.", "Vpc")), "quota of VPCs"),
    "capacity, seen in activities only": (
        of_stack(event(TIMED_OUT, "Ready1"), activities=(refused(FULL), refused(FULL))),
        "no capacity left for this type",
    ),
    "no capacity for Lustre": (
        of_stack(of_lustre("FileSystem", "The file system could not be created: insufficient capacity")),
        "for the Lustre file system",
    ),
    "a Lustre file system that grew a moment ago": (
        of_stack(of_lustre("FileSystem", "The storage capacity was increased in the last 6 hours", "UPDATE_FAILED")),
        "grew less than six hours ago",
    ),
    "a Lustre file system that is being changed": (
        of_stack(
            of_lustre(
                "FileSystem",
                "Unable to perform the storage capacity update. There is an update already in progress. (Service: "
                "AmazonFSx; Status Code: 400; Error Code: BadRequest; Request ID: 1; Proxy: null)",
                "UPDATE_FAILED",
            )
        ),
        "still changing the Lustre file system",
    ),
    "quota of Lustre": (
        of_stack(
            of_lustre(
                "FileSystem",
                "… (Service: AmazonFSx; Status Code: 400; Error Code: ServiceLimitExceeded; Request ID: 1)",
            )
        ),
        "quota of Lustre storage",
    ),
    "Lustre's servers that can't reach each other": (
        of_stack(
            of_lustre(
                "FileSystem",
                "The file system cannot be created because the default security group in the subnet provided or the "
                "provided security groups do not permit Lustre LNET network traffic on port 988 (Service: AmazonFSx)",
            )
        ),
        "servers reach each other",
    ),
    "a bucket that Lustre can't be linked to": (
        of_stack(of_lustre("DataRepositoryAssociation", "The bucket b does not exist or can't be accessed.")),
        "could not link the file system",
    ),
    "a link to S3 without the right": (
        of_stack(
            of_lustre(
                "DataRepositoryAssociation",
                "User: arn:aws:iam::1:user/me is not authorized to perform: fsx:CreateDataRepositoryAssociation",
            )
        ),
        "a right is missing",
    ),
    "a type that the zone lacks": (
        of_stack(
            event("Your requested instance type (trn1.2xlarge) is not supported in your requested Availability Zone")
        ),
        "not offered in this zone",
    ),
    "an organisation's rule": (
        of_stack(
            event(
                "You are not authorized to perform this operation. … with an explicit deny in a service control policy"
            )
        ),
        "rule of the organisation",
    ),
    "an organisation that makes networks itself": (
        of_stack(
            event("… is not authorized to perform: ec2:CreateVpc on resource: … with an explicit deny in a service")
        ),
        "make no networks",
    ),
    "an organisation that bounds roles": (
        of_stack(
            event("… is not authorized to perform: iam:CreateRole on resource: … with an explicit deny in a service")
        ),
        "permissions boundary",
    ),
    "no role for spot instances": (
        of_stack(event("AuthFailure.ServiceLinkedRoleCreationNotPermitted: The provided credentials do not have …")),
        "role for spot instances",
    ),
    "a tag policy": (
        of_stack(event("TagPolicyViolation: The tag policy does not allow the specified value")),
        "tag policy",
    ),
    "no service-linked role": (
        of_stack(event("The default Service-Linked Role for Auto Scaling could not be created. AccessDenied")),
        "service-linked role",
    ),
    "a disk's key": (
        of_stack(
            event(TIMED_OUT, "Ready1"),
            activities=(
                refused(
                    "Instance became unhealthy while waiting for instance to be in InService state. Termination "
                    "Reason: Client.InternalError: Client error on launch",
                    "Cancelled",
                ),
            ),
        ),
        "key that encrypts the disks",
    ),
    "a key pair": (of_stack(event("The key pair 'mine' does not exist")), "key pair does not exist"),
    "an image": (of_stack(event("The image id '[ami-1]' does not exist")), "machine image does not exist"),
    "an image for another processor": (
        of_stack(
            event(
                "The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of …"
            )
        ),
        "for another processor",
    ),
    "an image in Marketplace": (
        of_stack(event("OptInRequired: In order to use this AWS Marketplace product …")),
        "Marketplace",
    ),
    "a new account": (
        of_stack(event("PendingVerification: Your request for accessing resources in this region is being validated")),
        "still checking this account",
    ),
    "a blocked account": (
        of_stack(
            event(
                "This account is currently blocked and not recognized as a valid account. Please contact "
                "aws-verification@amazon.com if you have questions."
            )
        ),
        "has blocked the account",
    ),
    "a small disk on EMR": (
        of_stack(of_emr("The root volume of 15 GiB is smaller than the snapshot of the custom AMI")),
        "root volume is smaller",
    ),
    "an image that EMR does not take": (
        of_stack(of_emr("The custom AMI ami-1 (ubuntu) is not an Amazon Linux image")),
        "not Amazon Linux",
    ),
    "a bootstrap action": (
        of_stack(of_emr("On the master instance (i-1), bootstrap action 1 returned a non-zero return code")),
        "bootstrap action of EMR failed",
    ),
    "a start of EMR's that does not end": (
        Evidence(status="CREATE_IN_PROGRESS", activities=(refused("EMR reports the cluster as STARTING for 25 min"),)),
        "EMR starts the cluster for more than 20",
    ),
    "a master that died": (
        Evidence(verdict="EMR has ended the cluster (The master node was terminated)"),
        "the master node died",
    ),
    "an address that somebody released": (
        of_stack(signalled("boot step 'address' failed on i-1: InvalidAllocationID.NotFound")),
        "could not take its Elastic IP",
    ),
    "the boot script": (
        of_stack(signalled("boot step 'boot script' failed on i-1: the boot script: exit 1: no disk")),
        "the boot script failed",
    ),
    "packages": (
        Evidence(
            status="CREATE_COMPLETE",
            missing=("boot step 'packages' failed on i-1: apt-get install: exit 100: Connection timed out",),
        ),
        "packages could not be installed",
    ),
    "the shared directory": (
        of_stack(signalled("boot step 'shared directory' failed on i-1: mount: exit 32: timed out")),
        "shared directory could not be mounted",
    ),
    "a lost GPU": (
        of_stack(signalled("boot step 'agent' failed on i-1: nvidia-smi -L: exit 0: only 7 of 8 GPUs work:")),
        "GPUs of a node do not work",
    ),
    "no way out": (
        of_stack(
            event(TIMED_OUT, "Ready1"),
            logs={"10.0.0.5": "phalanx: the rest of the agent: [Errno 110] Connection timed out; trying again"},
        ),
        "no way out",
    ),
    "no credentials": (
        of_stack(signalled("boot step 'agent' failed: AssumeRoleUnauthorizedAccess: EC2 cannot assume the role")),
        "had no credentials",
    ),
    "an agent that never spoke": (
        Evidence(
            verdict="the head i-1 runs, but its agent has reported nothing for 600 s: does the image run user data?"
        ),
        "never reported anything",
    ),
    "a worker that never spoke": (
        Evidence(status="CREATE_COMPLETE", missing=("i-2 never said hello in 600 s",)),
        "never reported",
    ),
    "heads that end": (
        Evidence(verdict="3 heads were launched one after another, and each ended during its step 'boot script': At …"),
        "one machine after another",
    ),
    "heads that are not launched": (
        Evidence(
            verdict="3 heads were launched one after another, and each ended: At …",
            activities=(refused(FULL), ended("At …")),
        ),
        "no capacity left for this type",
    ),
    "sshd": (
        Evidence(status="CREATE_COMPLETE", missing=("i-2 acknowledged, but ssh deeplearning-worker2 failed: denied",)),
        "accepted no login",
    ),
    "a login that times out": (
        Evidence(
            status="CREATE_COMPLETE",
            missing=(
                "i-2 acknowledged, but ssh deeplearning-worker2 failed: ssh: connect to host: Connection timed out",
            ),
        ),
        "accepted no login",
    ),
    "a missing right": (
        of_stack(
            event(
                "User: arn:aws:iam::1:user/me is not authorized to perform: iam:CreateRole on resource: …", "HeadRole"
            )
        ),
        "a right is missing",
    ),
    "a name that is taken": (of_stack(event("demo-head already exists in stack arn:…", "HeadGroup")), "exists already"),
    "throttled": (of_stack(event("Rate exceeded (Service: AutoScaling, Status Code: 400)")), "throttled"),
    "a neighbour in the VPC": (
        Evidence(
            status="DELETE_FAILED",
            events=(event("The vpc 'vpc-1' has dependencies and cannot be deleted.", "Vpc", "DELETE_FAILED"),),
        ),
        "did not make is in the cluster's VPC",
    ),
    "a lease that ended": (
        Evidence(
            status="CREATE_COMPLETE",
            stopped=True,
            activities=(
                ended("At … a scheduled action update of AutoScalingGroup constraints to min: 0, max: 0, desired: 0"),
            ),
        ),
        "the lease ended",
    ),
    "nobody used it": (
        Evidence(
            status="CREATE_COMPLETE",
            stopped=True,
            activities=(
                ended(
                    "At … a user request explicitly set group desired capacity changing the desired capacity from 1 "
                    "to 0."
                ),
            ),
        ),
        "nobody used it",
    ),
    "no room here": (
        Evidence(
            status="CREATE_COMPLETE",
            missing=(
                "We currently do not have sufficient c5.large capacity in the Availability Zone you requested "
                "(us-east-1a). This machine has no room for another node. sudo sysctl -w kernel.pid_max=65536 (…)",
            ),
        ),
        "this machine has no room",
    ),
    "no launch and no reason": (of_stack(event(TIMED_OUT, "Ready1"), unlaunched=True), "launched no machine"),
}
