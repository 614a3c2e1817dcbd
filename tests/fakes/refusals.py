"""Auto Scaling's reports of failed launches (docs/aws-behaviour.md 3.27): what can't pass, and what may."""

from __future__ import annotations

END = " Launching EC2 instance failed."
LOST = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "
FINAL = (
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket that the"
    " specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an"
    f" adjustment to this limit.{END}",
    "You have requested more instances (1) than your current instance limit of 0 allows for the specified instance"
    f" type. Please visit http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.{END}",
    f"Max spot instance count exceeded.{END}",
    "The requested configuration is currently not supported. Please check the documentation for supported"
    f" configurations.{END}",
    "Your requested instance type (p3.2xlarge) is not supported in your requested Availability Zone (us-east-1e)."
    f" Please retry your request by not specifying an Availability Zone or choosing us-east-1a.{END}",
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/AWSServiceRoleFor"
    "AutoScaling/AutoScaling is not authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-2:"
    f"123456789012:instance/* with an explicit deny in a service control policy.{END}",
    f"{LOST}Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state",
    f"{LOST}Client.InternalError: Client error on launch",
    "One or more of the attached Amazon EBS volumes are encrypted with an inaccessible AWS KMS key.",
    f"The image id '[ami-0123456789abcdef0]' does not exist.{END}",
    f"The key pair 'mine' does not exist.{END}",
    f"In order to use this AWS Marketplace product you need to accept terms and subscribe.{END}",
    f"This account is currently blocked and not recognized as a valid account.{END}",
    "The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of the specified"
    f" AMI.{END}",
    f"The tag policy does not allow the specified value for the following tag key: 'phalanx:cluster'.{END}",
    f"The specified instance type is not eligible for Free Tier.{END}",
)
PASSING = (
    "We currently do not have sufficient c5.large capacity in the Availability Zone you requested (us-east-1a). Our"
    f" system will be working on provisioning additional capacity.{END}",
    "Your request for accessing resources in this region is being validated, and you will not be able to launch"
    f" additional resources in this region until the validation is complete.{END}",
    f"{LOST}Server.InternalError: Internal error on launch",
    f"Invalid IAM Instance Profile name{END}",
    f"The security group 'sg-0123456789abcdef0' does not exist{END}",
    f"You are not authorized to perform this operation.{END}",
    f"There is no Spot capacity available that matches your request.{END}",
    f"Request limit exceeded.{END}",
)
