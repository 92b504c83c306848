"""The agent's diagnosis of logs, for the client. Both use one table."""

from launcher.agent.diagnosis.cures import is_of_input
from launcher.agent.diagnosis.diagnose import Diagnosis, ProcessEnd, diagnose
from launcher.agent.diagnosis.failures import BY_NAME
from launcher.agent.diagnosis.good_exit import diagnose_log
from launcher.agent.logs.log_file import LogFile

__all__ = ["BY_NAME", "Diagnosis", "LogFile", "ProcessEnd", "diagnose", "diagnose_log", "is_of_input"]
