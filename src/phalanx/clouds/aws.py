"""The user's AWS account, with the credentials that every AWS tool finds."""

from __future__ import annotations

from boto3.session import Session

from phalanx.clouds.aws_api import ApiCloud
from phalanx.clouds.protocol import SshRoute
from phalanx.clouds.refusals import translate
from phalanx.cluster.cluster_record import HEAD


class AwsCloud(ApiCloud):
    """AWS itself: credentials from the environment, ~/.aws, SSO or an instance's role."""

    name = "aws"

    def session(self) -> Session:
        try:
            return Session(region_name=self.region)
        except Exception as error:  # ProfileNotFound and its like come from the constructor
            raise translate(error, "sts:GetCallerIdentity", f"AWS in {self.region}") from error

    def endpoint_url(self) -> str | None:
        return None

    def ssh_route(self) -> SshRoute:
        """Workers have no public address: through the head."""
        return SshRoute(worker_options=(f"ProxyJump={HEAD}",))

    def file_system_place(self, file_system: str) -> tuple[str, str]:
        words = f"aws efs delete-file-system --region {self.region} --file-system-id {file_system}"
        return f"EFS in {self.region}", words

    def accounts_separated(self) -> bool:
        return True

    def stop_if_idle(self) -> None:
        """Nothing runs beside the clusters."""


def connect(region: str) -> AwsCloud:
    return AwsCloud(region)
