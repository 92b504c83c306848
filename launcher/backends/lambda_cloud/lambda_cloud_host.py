"""The configuration table of a Lambda Cloud account."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from launcher.rental.providers.lambda_settings import LambdaSettings
from launcher.rental.rental_settings import CONFIRM_ABOVE, PROPOSED_HOURS
from launcher.values.host import Host, HostKind, MachineKeys

NAME = "lambda"
"""The default name of an account. An account without a table is not a host, because spending needs a limit."""


class _Table(LambdaSettings, MachineKeys):
    """A table as written in the file: the settings beside the keys of the rented machine."""

    kind: Literal["lambda-cloud"]


class LambdaCloudHost(Host):
    """A Lambda Cloud account.

    The table's keys for a machine apply to each rented machine. Its address is known only after the rental.
    """

    has_login = False

    kind: Literal["lambda-cloud"] = "lambda-cloud"
    lambda_cloud: LambdaSettings

    @model_validator(mode="after")
    def _is_no_machine(self) -> Self:
        if self.address is not None or self.known_hosts is not None:
            raise ValueError(
                "a host of kind 'lambda-cloud' has no address and no known_hosts: each rental has"
            )
        return self


class LambdaCloudKind(HostKind):
    """The kind of host for Lambda Cloud accounts."""

    title = "a Lambda Cloud account"
    host = LambdaCloudHost
    key = "lambda_cloud"
    settings = LambdaSettings
    table = _Table
    foreign: ClassVar = {
        "address": "each rented machine has its own, which the service reports",
        "known_hosts": "launcher makes the host key of each machine that it rents, and keeps it with the rental",
        "variables": "a run on a rented machine inherits no variables from here; use -e NAME=VALUE",
        "hold": "a rented machine may be terminated at any moment, so no connection to it is kept open",
    }
    free = ()
    offering = LambdaCloudHost(name=NAME, lambda_cloud=LambdaSettings())

    def project_objection(self, host: Host) -> tuple[str, str] | None:
        """Return a key that a project's file may not set.

        It is `api` if a user's key would go elsewhere than to Lambda, or `confirm_above` if it is raised.
        """
        if not isinstance(host, LambdaCloudHost):
            return None
        cloud = host.lambda_cloud
        if not cloud.is_lambdas_own:
            return "api", "your key for Lambda Cloud would go there"
        if cloud.confirm_above > CONFIRM_ABOVE:
            return "confirm_above", "only your own file may set how much is spent without asking you"
        return None

    def without_table(self, name: str, user_folder: str) -> str | None:
        """Return a message with the table to write, because the spending limit has no default."""
        if name != NAME:
            return None
        return (
            f"{NAME} has no table here, and is no alias in ~/.ssh/config\n"
            f"  to rent machines at Lambda Cloud, write into {user_folder}/hosts.toml\n"
            f"    [hosts.{NAME}]\n"
            '    kind = "lambda-cloud"\n'
            f"    max_hours = {PROPOSED_HOURS}           # or max_cost = 20, in dollars: the most that one rental may take\n"
            "  hourly prices   launch offers     your own machine   address = …  instead of  kind"
        )


KIND = LambdaCloudKind()
