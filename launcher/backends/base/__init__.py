"""What every backend has: `Backend`, what shared code asks of a kind of host, and `Runtime`, how a job runs there.

The defaults are those of a machine that one logs in to.
`inside` and `making` are shared by runtimes.
"""
