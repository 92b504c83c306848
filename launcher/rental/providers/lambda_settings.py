"""The settings of an account at Lambda Cloud: a `[hosts.NAME]` table with `kind = "lambda-cloud"`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from launcher.rental.rental_settings import OWN_MACHINE, RentalSettings

API = "https://cloud.lambda.ai/api/v1"
SECOND_API = "https://cloud.lambdalabs.com/api/v1"
"""The service's older address. Lambda calls it deprecated, and other tools still use it."""


class LambdaSettings(RentalSettings):
    """The machine to rent at Lambda Cloud, and its cost limits."""

    provider: ClassVar[str] = "lambda"
    variable: ClassVar[str] = "LAMBDA_API_KEY"
    usual_user: ClassVar[str] = "ubuntu"
    api: str = API

    @property
    def is_lambdas_own(self) -> bool:
        """Whether `api` is an address of Lambda or of this machine, so that no third party gets the user's key."""
        return self.api in (API, SECOND_API) or urlsplit(self.api).hostname in OWN_MACHINE
