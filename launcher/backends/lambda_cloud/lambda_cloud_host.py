"""The table of a Lambda Cloud account."""

from __future__ import annotations

from typing import ClassVar, Literal

from launcher.values.host import Host, MachineKeys
from launcher.values.host_kind import HostKind
from launcher.values.lambda_settings import LambdaSettings
from launcher.values.rental_settings import CONFIRM_ABOVE, PROPOSED_HOURS

NAME = "lambda"
"""The name that an account would have; without a table it is no host, since money needs a limit."""


class _Table(LambdaSettings, MachineKeys):
    """A table as it is written: the settings stand beside the keys of the machine that is rented."""

    kind: Literal["lambda-cloud"]


class LambdaCloudKind(HostKind):
    """An account."""

    title = "an account at Lambda Cloud"
    key = "lambda_cloud"
    settings = LambdaSettings
    table = _Table
    foreign: ClassVar = {
        "address": "each machine that is rented has its own, which the service tells",
        "known_hosts": "launcher makes the host key of each machine that it rents, and keeps it with the rental",
        "variables": "a run on a rented machine inherits no variables from here; use -e NAME=VALUE",
        "hold": "no connection to a machine is kept that may be given back at any moment",
    }
    free = ()
    is_reached = False
    offering = Host(name=NAME, kind="lambda-cloud", lambda_cloud=LambdaSettings())

    def project_objection(self, host: Host) -> tuple[str, str] | None:
        """Return the key `api` if a person's key would go elsewhere than to Lambda, or `confirm_above` if it is raised."""
        cloud = host.lambda_cloud
        if cloud is not None and not cloud.is_lambdas_own:
            return "api", "your key for Lambda Cloud would go there"
        if cloud is not None and cloud.confirm_above > CONFIRM_ABOVE:
            return "confirm_above", "how much is spent without asking you is yours to say"
        return None

    def without_table(self, name: str, user_folder: str) -> str | None:
        """Return the table that rents machines: what that may cost has no default."""
        if name != NAME:
            return None
        return (
            f"{NAME} has no table here, and no alias of ~/.ssh/config is called so\n"
            f"  to rent machines at Lambda Cloud, write into {user_folder}/hosts.toml\n"
            f"    [hosts.{NAME}]\n"
            '    kind = "lambda-cloud"\n'
            f"    max_hours = {PROPOSED_HOURS}           # or max_cost = 20, in dollars: the most that one rental may take\n"
            "  what an hour costs   launch offers     a machine of your own   address = …  instead of  kind"
        )


KIND = LambdaCloudKind()
