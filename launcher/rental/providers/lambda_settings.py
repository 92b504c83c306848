"""How machines are rented from an account at Lambda Cloud: the keys of a `[hosts.NAME]` table with `kind = "lambda-cloud"`."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from launcher.rental.rental_settings import OWN_MACHINE, RentalSettings

API = "https://cloud.lambda.ai/api/v1"
SECOND_API = "https://cloud.lambdalabs.com/api/v1"
"""The service's older address, which it calls deprecated, and which other tools still use."""


class LambdaSettings(RentalSettings):
    """What is rented at Lambda Cloud, and how much it may cost."""

    provider: ClassVar[str] = "lambda"
    variable: ClassVar[str] = "LAMBDA_API_KEY"
    usual_user: ClassVar[str] = "ubuntu"
    api: str = API

    @property
    def is_lambdas_own(self) -> bool:
        """Whether a person's key goes to Lambda itself, or stays on this machine."""
        return self.api in (API, SECOND_API) or urlsplit(self.api).hostname in OWN_MACHINE
