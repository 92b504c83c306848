"""HTTP to cloud services, with limits of time and size for each call.

`service_wire` is the front door: it names each way in which a call fails.
It never follows a redirect with a credential.
"""
