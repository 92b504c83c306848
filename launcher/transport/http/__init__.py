"""HTTP to cloud services, with limits of time and size for each call.

`service_wire` is the main module: it gives each kind of failure a name. A redirect is never followed with a
credential.
"""
