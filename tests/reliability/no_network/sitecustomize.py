"""Put on the path of a process, this takes the network away from it and from every Python process it starts.

Each attempt is refused and written to the file named by NETWORK_ATTEMPTS, so that one that is caught and
forgotten by a library is seen too. Sockets between processes of this machine that have a file name stay.
"""

import os
import socket

_plain = socket.socket


class NoSocket(_plain):
    def __init__(self, family=-1, *arguments, **options):
        if family not in (socket.AF_UNIX, -1) or (family == -1 and "fileno" not in options):
            refuse(f"socket({family})")
        super().__init__(family, *arguments, **options)


def refuse(what):
    with open(os.environ["NETWORK_ATTEMPTS"], "a", encoding="utf-8") as file:
        file.write(f"{what} in process {os.getpid()}\n")
    raise OSError(f"no network here: {what}")


socket.socket = NoSocket
socket.create_connection = lambda address, *a, **k: refuse(f"create_connection({address})")
socket.getaddrinfo = lambda host, *a, **k: refuse(f"getaddrinfo({host})")
