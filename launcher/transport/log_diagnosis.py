"""The agent's reading of a log, here on the client: one table for both."""

from launcher.remote.diagnosis.diagnose import Diagnosis, Ended, diagnose
from launcher.remote.diagnosis.failures import BY_NAME
from launcher.remote.diagnosis.good_exit import diagnose_log
from launcher.remote.diagnosis.log_file import LogFile

__all__ = ["BY_NAME", "Diagnosis", "Ended", "LogFile", "diagnose", "diagnose_log"]
