"""One session of a run in a service that shows nothing but what is printed, and keeps what lies in one folder at the end."""
