"""The known causes of clusters that fail or are stuck: by what AWS or a node says, with a name and what to do about it.

The texts are those of docs/aws-behaviour.md 2.17, 2.33, 3.27, 3.40, 4.18, 11.6 to 11.12, and the agent's own messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A cause: its name for people, and what to do. `pattern` recognizes it in a message.

    `quota` recognizes the names of the quotas that may be used up, "" if none is.
    """

    name: str
    advice: str
    pattern: str = "(?!)"
    quota: str = ""


UNKNOWN = Cause("the reason is not among the causes that phalanx knows", "Read the evidence; it is all that AWS said.")
NO_MACHINE = Cause(
    "Auto Scaling launched no machine for the head, and gave no reason",
    "Look at the group's activities in the EC2 console; run `phalanx down`, then `phalanx up` again.",
    r"launched no machine for the head",
)
MUTE = Cause(
    "a machine started, and its agent never reported anything",
    "Does the image run user data with cloud-init, and have Python 3.9 or newer? Can its subnet reach AWS's API? The "
    "system log of the instance in the EC2 console shows more.",
    r"never said hello|agent has reported nothing|WaitCondition timed out",
)
STOPPED = Cause(
    "the cluster stopped its nodes: nobody used it, or they were set to 0 by hand",
    "`phalanx up` starts them again. `idle` in phalanx.yaml decides how long nobody may use it.",
    r"explicitly set group desired capacity changing the desired capacity from \d+ to 0",
)
LEASE = Cause(
    "the lease ended, or the budget was spent, and AWS stopped the nodes",
    "`phalanx up` starts them again with a new lease; `phalanx extend` moves the end of one that runs.",
    r"scheduled action update of AutoScalingGroup constraints to min: 0, max: 0",
)
LOST = Cause(
    "a node was lost in the last hour",
    "Auto Scaling, or EMR, replaces it by itself: `phalanx nodes` shows whether all are there. A job that ran on it "
    "was restarted if it had --restarts, and has failed otherwise: `phalanx jobs --state failed`.",
    r"was lost at \d\d:\d\d UTC",
)
ENDED = Cause(
    "one machine after another ended while it started",
    "The step during which they ended is the place to look: the boot script, or an image that restarts its machine.",
    r"heads were launched one after another|its agent was silent for",
)
STALLED = Cause(
    "a job stands still",
    "`phalanx stacks` shows what each of its ranks does; the one that is named first has ended, or does something else "
    "than the others, which may wait for it.",
    r"^job \S+ is stalled: ",
)

CAUSES = (
    STALLED,  # the first, because a job can call its functions what it likes
    Cause(
        "a VPC endpoint is missing",
        "Nothing of `network: {access: private}` may be removed: add the endpoint that the evidence names to the VPC "
        "again, with private DNS, or create the cluster from an unchanged template.",
        r"has no endpoint for",
    ),
    Cause(
        "another endpoint of the VPC, or a private hosted zone of Route 53, has the name of a service already",
        "`phalanx plan` sees endpoints, not hosted zones: remove the zone's association with the VPC, give the subnet "
        "a way out to the endpoints behind it, or choose another VPC.",
        r"conflicting DNS domain|already has a route with destination-prefix-list-id",
    ),
    Cause(
        "the account's quota of VPC endpoints is used up",
        "A VPC may have 50 interface endpoints, and a region 20 gateway endpoints: delete those that nobody uses, or "
        "request more.",
        r"VpcEndpointLimitExceeded|maximum number of VPC endpoints",
        "VPC endpoints",
    ),
    Cause(
        "an AWS service has no endpoint in this zone, and private access needs one",
        "Choose other `zones`, or leave `access: private` out.",
        r"does not support the availability zone of the subnet",
    ),
    LEASE,
    STOPPED,
    Cause(
        "the disk of a node is full",
        "`phalanx exec --sudo --node NAME -- du -xh --max-depth=3 /` shows what takes it, and `du --inodes` what has "
        "many files; remove it in the same way. While the head's disk is full, no node can join.",
        r"the node's own disk is full",
    ),
    Cause(
        "the shared directory does not answer on a node",
        "On all nodes: was the file system, its mount target, or a rule of its security group removed? On one node: "
        "restart its machine with `phalanx exec --sudo --node NAME -- reboot -f`. What waits for it goes on when it "
        "answers again.",
        r"the shared directory \S* ?does not answer",
    ),
    LOST,
    Cause(
        "jobs can't write at the top of the shared directory",
        "`phalanx exec --sudo -- chmod o+rwx,+t DIRECTORY` lets them. Otherwise they may write only where the user "
        "phalanx may: the owner of the directory decides.",
        r"so jobs can't write at its top",
    ),
    Cause(
        "this machine has no room for more local nodes",
        "Run the command that the evidence names, then `phalanx up` or `phalanx scale` again; or choose fewer nodes. "
        "What `ulimit` shows counts for a local cloud from its start: `phalanx local stop` before.",
        r"This machine has no room for another node",
    ),
    Cause(
        "somebody has removed a part of what the stack made",
        "Add it again, as the evidence names it; or run `phalanx down`, then `phalanx up`.",
        r"has lost (its route|its rules|a policy)",
    ),
    Cause(
        "the account's quota of vCPUs for this type is used up",
        "`phalanx plan` shows the quota and what is in use; request more with `aws service-quotas "
        "request-service-quota-increase`, or choose fewer nodes or a smaller type.",
        r"current (vCPU|instance) limit|VcpuLimitExceeded",
        "On-Demand",
    ),
    Cause(
        "the account's quota of Spot instances is used up",
        "Request more in Service Quotas, or use on-demand instances.",
        r"spot instance count exceeded|MaxSpotInstanceCountExceeded",
        "Spot",
    ),
    Cause(
        "the account's quota of Elastic IPs is used up",
        "Release an address that nothing uses, or request more: a cluster takes two.",
        r"AddressLimitExceeded|maximum number of addresses",
        "Elastic IPs",
    ),
    Cause(
        "the account's quota of VPCs is used up",
        "Delete a VPC that nothing uses, or request more: each cluster makes one.",
        r"VpcLimitExceeded|maximum number of VPCs",
        "VPCs per",
    ),
    Cause(
        "the Lustre file system grew less than six hours ago, and FSx lets it grow once in that time",
        "Run `phalanx up` again later; until then the cluster has its former size.",
        r"AWS::FSx::FileSystem\).*\b(6|six) hours",
    ),
    Cause(
        "FSx is still changing the Lustre file system",
        "`aws fsx describe-file-systems --query 'FileSystems[].AdministrativeActions'` shows the changes. Run "
        "`phalanx up` again when none is PENDING or IN_PROGRESS.",
        r"AWS::FSx::FileSystem\).*update already in progress",
    ),
    Cause(
        "the account's quota of Lustre storage is used up",
        "`phalanx plan` shows the quota and what is in use. Choose a smaller `size_gib`, delete a file system that "
        "nobody uses, or request more in Service Quotas.",
        r"AWS::FSx::FileSystem\).*ServiceLimitExceeded",
        "Lustre",
    ),
    Cause(
        "AWS has no capacity left for the Lustre file system in this zone",
        "Try again later, or choose other `zones`, or another `size_gib` or `type` of `lustre`.",
        r"AWS::FSx::FileSystem\).*insufficient (storage )?capacity",
    ),
    Cause(
        "a security group does not let the Lustre file system's servers reach each other",
        "TCP 988 and 1018 to 1023 must be open between them: create the cluster from an unchanged template.",
        r"do not permit Lustre",
    ),
    Cause(
        "FSx could not link the file system to a prefix in S3",
        "Does the bucket of that entry of `data` exist in this region, and may you change its policy? Another file "
        "system may be linked to the same prefix, or the bucket has notifications of its own.",
        r"\(AWS::FSx::DataRepositoryAssociation\)(?!.*not authorized to perform)",
    ),
    Cause(
        "the reservation has no place left for a node, or has ended",
        "`aws ec2 describe-capacity-reservations` shows its state and its free places. Wait until one is free, or name "
        "another reservation in `capacity`; nothing can start in a Capacity Block in its last half hour.",
        r"compatible and available capacity|ReservationCapacityExceeded|capacity reservation ID '[^']*' was not found"
        r"|InvalidCapacityReservation",
    ),
    Cause(
        "AWS has no capacity left for this type in this zone",
        "Try again later, or choose other `zones`, another `type`, or a smaller `min`.",
        r"sufficient \S+ capacity|InsufficientInstanceCapacity|insufficient capacity|no Spot capacity",
    ),
    Cause(
        "the type is not offered in this zone",
        "`phalanx plan` shows a zone that offers it; leave `zones` out to have it chosen.",
        r"not supported in your requested Availability Zone|requested configuration is currently not supported",
    ),
    Cause(
        "the organisation lets this account make no networks",
        "Name subnets that exist, or are shared with the account: `network: {access: private, head_subnet: …, "
        "worker_subnet: …}` in phalanx.yaml.",
        r"ec2:(AllocateAddress|\w+(InternetGateway|NatGateway|Route|RouteTable|Subnet|Vpc))\b.*explicit deny",
    ),
    Cause(
        "the organisation wants a permissions boundary for every role",
        "Set `permissions_boundary` in phalanx.yaml to the policy that it asks for.",
        r"iam:CreateRole\b.*explicit deny",
    ),
    Cause(
        "a rule of the organisation denies it",
        "Ask whoever looks after the service control policies; no policy of your own can allow it.",
        r"explicit deny in a service control policy|explicit deny",
    ),
    Cause(
        "a tag policy of the organisation refuses a tag's value",
        "Change `tags` in phalanx.yaml to a value that the message allows.",
        r"TagPolicyViolation|tag policy",
    ),
    Cause(
        "the account has no service-linked role for Auto Scaling, and you may not create it",
        "Have an administrator run `aws iam create-service-linked-role --aws-service-name autoscaling.amazonaws.com` "
        "once.",
        r"Service-Linked Role for Auto Scaling could not be created",
    ),
    Cause(
        "EC2 lacks its own role for spot instances, and nobody may create it",
        "Have an administrator run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once.",
        r"ServiceLinkedRoleCreationNotPermitted|service-linked role for EC2 Spot",
    ),
    Cause(
        "Auto Scaling may not use the key that encrypts the disks",
        "Let the role AWSServiceRoleForAutoScaling use that key, or use AWS's own for EBS encryption.",
        r"client error on launch|inaccessible AWS KMS key|InvalidKMSKey|KMS",
    ),
    Cause(
        "the EC2 key pair does not exist in this region",
        "Correct `key_pair`, or leave it out: phalanx makes a key for each cluster.",
        r"key pair '[^']*' does not exist|InvalidKeyPair",
    ),
    Cause(
        "the machine image does not exist, or is not shared with this account",
        "Correct `image`; an AMI's id is valid in one region only.",
        r"image id '[^']*' does not exist|InvalidAMIID|not authorized for images",
    ),
    Cause(
        "the machine image is for another processor",
        "Choose an image for the architecture of `type`; `phalanx plan` shows both.",
        r"not match the arch|architecture '[^']*' of the specified instance type",
    ),
    Cause(
        "the machine image must be subscribed to in AWS Marketplace first",
        "Open the link in the message and accept the terms, or choose another image.",
        r"accept terms|OptInRequired",
    ),
    Cause(
        "AWS is still checking this account or region, which is new",
        "Wait: it takes minutes as a rule, and up to four hours.",
        r"PendingVerification|being validated",
    ),
    Cause(
        "AWS has blocked the account",
        "Write to AWS's support: only they can lift it.",
        r"account is (currently )?blocked|Blocked:",
    ),
    Cause(
        "a bootstrap action of EMR failed on a node",
        "Its output is in the place of `emr: logs`, below CLUSTER/node/INSTANCE/bootstrap-actions/1/stderr.gz; that of "
        "phalanx's own action is in the boot log, too.",
        r"bootstrap action \d+ (returned a non-zero|timed out)|bootstrap failure",
    ),
    Cause(
        "EMR starts the cluster for more than 20 minutes, and gives no reason",
        "Is the root volume large enough for the image (`disk`)? Can the subnet reach S3 and EMR? Leave Hue and "
        "Zeppelin out of `emr: applications`, and look at the cluster's events in the EMR console.",
        r"EMR reports the cluster as (STARTING|BOOTSTRAPPING) for",
    ),
    Cause(
        "the master node died, and EMR ended the cluster",
        "Data in EFS are kept: `phalanx down --keep yes`, then `phalanx up`. A shared directory on the master's "
        "own disk (`storage: head`) is lost.",
        r"master node was terminated",
    ),
    Cause(
        "the root volume is smaller than the image's disk",
        "Write a larger `disk: {size_gib: …}`, up to 100, or choose a smaller image.",
        r"root (device )?volume.*(smaller|less|at least)|smaller than (the )?snapshot",
    ),
    Cause(
        "the image is not Amazon Linux, which EMR requires",
        "Write amazon-linux-2023, dlami-base-amazon-linux-2023, or your own image that was made from one.",
        r"not (an )?Amazon Linux",
    ),
    Cause(
        "the boot script failed",
        "Correct `boot` in phalanx.yaml: its last output is in the evidence.",
        r"boot step 'boot script' failed",
    ),
    Cause(
        "packages could not be installed while the node started",
        "Can the node reach its distribution's package servers? An image that has the packages needs no network.",
        r"boot step 'packages' failed",
    ),
    Cause(
        "the shared directory could not be mounted",
        "Does the file system exist, with a mount target in the cluster's VPC? Does its policy demand TLS or a role?",
        r"boot step 'shared directory' failed",
    ),
    Cause(
        "GPUs of a node do not work",
        "A machine that has lost one is replaced; if all have none, the image lacks NVIDIA's driver for the type.",
        r"GPUs work|boot step 'GPUs' failed|nvidia-smi",
    ),
    Cause(
        "the head could not take its Elastic IP",
        "Was the address released or moved by hand? `phalanx down` and `phalanx up` make a new one.",
        r"boot step 'address' failed",
    ),
    Cause(
        "a node had no credentials: its instance profile did not work",
        "Was the role or the instance profile changed by hand? IAM takes a minute as a rule; then try again.",
        r"AssumeRoleUnauthorizedAccess|security-credentials|no credentials",
    ),
    Cause(
        "a node accepted no login of the head's",
        "Did its machine end, or was a rule of its security group revoked? Has the image an sshd that reads "
        "/etc/ssh/sshd_config.d, and does nothing on it deny the user phalanx?",
        r"acknowledged, but ssh",
    ),
    Cause(
        "a node has no way out to AWS's API",
        "Was a route, a NAT gateway or a security group changed? Does a firewall of the organisation stand between?",
        r"(?<!WaitCondition )timed out|Network is unreachable|No route to host|name resolution|Connection refused",
    ),
    Cause(
        "a right is missing",
        "The message names the action: `phalanx policy` prints all that are needed.",
        r"not authorized to perform|AccessDenied|UnauthorizedOperation",
    ),
    Cause(
        "something of this name exists already",
        "Choose another `name`, or delete the resource that the message names.",
        r"already exists|AlreadyExists",
    ),
    Cause(
        "AWS throttled the calls",
        "Try again in a few minutes; many stacks at a time in one account bring this about.",
        r"Rate exceeded|Throttl|RequestLimitExceeded",
    ),
    Cause(
        "something that phalanx did not make is in the cluster's VPC",
        "Delete what the message names, then run `phalanx down` again.",
        r"DependencyViolation|has dependencies and cannot be deleted",
    ),
    NO_MACHINE,
    ENDED,
    MUTE,
)


def name(text: str) -> Cause:
    """Return the cause that a message describes; UNKNOWN if none does."""
    return next((cause for cause in CAUSES if re.search(cause.pattern, text, re.IGNORECASE)), UNKNOWN)
