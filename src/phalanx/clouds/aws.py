"""The user's AWS account, with the credentials that every AWS tool uses."""

from __future__ import annotations

from boto3.session import Session

from phalanx.clouds.aws_api import ApiCloud
from phalanx.clouds.protocol import SshRoute
from phalanx.clouds.refusals import translate


class AwsCloud(ApiCloud):
    """AWS, with credentials from the environment, ~/.aws, SSO or an instance's role."""

    name = "aws"

    def session(self) -> Session:
        try:
            return Session(region_name=self.region)
        except Exception as error:  # the constructor raises ProfileNotFound and the like
            raise translate(error, "sts:GetCallerIdentity", f"AWS in {self.region}") from error

    def endpoint_url(self) -> str | None:
        return None

    def ssh_route(self) -> SshRoute:
        """Return no options: the head has a public address."""
        return SshRoute()

    def file_system_place(self, file_system: str) -> tuple[str, str]:
        command = f"aws efs delete-file-system --region {self.region} --file-system-id {file_system}"
        return f"EFS in {self.region}", command

    def accounts_separated(self) -> bool:
        return True

    def stop_if_idle(self) -> None:
        """Do nothing: on AWS nothing runs beside the clusters."""


def connect(region: str, name: str) -> AwsCloud:
    return AwsCloud(region, name)
