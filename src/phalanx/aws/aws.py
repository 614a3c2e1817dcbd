"""The user's AWS account, with the credentials that every AWS tool uses."""

from __future__ import annotations

import shlex
import sys

from botocore.session import Session

from phalanx.aws import sessions
from phalanx.aws.aws_api import ApiCloud
from phalanx.aws.model import SshRoute
from phalanx.aws.refusals import translate
from phalanx.ssh import session_manager


class AwsCloud(ApiCloud):
    """AWS, with credentials from the environment, ~/.aws, SSO or an instance's role."""

    name = "aws"

    def session(self) -> Session:
        try:
            return sessions.make(self.region)
        except Exception as error:  # the constructor raises ProfileNotFound and the like
            raise translate(error, "sts:GetCallerIdentity", f"AWS in {self.region}") from error

    def endpoint_url(self) -> str | None:
        return None

    def ssh_route(self, by_session: bool = False) -> SshRoute:
        """Return no options for a head with a public address, and a ProxyCommand for one without."""
        if not by_session:
            return SshRoute()
        session_manager.require_programs()
        argv = (sys.executable, "-IS", session_manager.__file__, self.region)
        command = " ".join(shlex.quote(word).replace("%", "%%") for word in argv)
        return SshRoute((f"ProxyCommand {command} %h %p",))

    def file_system_place(self, file_system: str, is_lustre: bool = False) -> tuple[str, str]:
        service = "fsx" if is_lustre else "efs"
        command = f"aws {service} delete-file-system --region {self.region} --file-system-id {file_system}"
        return f"{'FSx' if is_lustre else 'EFS'} in {self.region}", command

    def accounts_separated(self) -> bool:
        return True

    def require_full_system(self, image: str) -> None:
        """Raise nothing: machines of AWS run every image."""

    def stop_if_idle(self) -> None:
        """Do nothing: on AWS nothing runs beside the clusters."""
