"""Stands for a program that the server of forks runs: `fork_stand_in.py SOCKET ARGUMENTS…`.

A request has the number of arguments, the arguments, the folder, the umask and the variables, with zeros between them.
This module imports next to nothing, and so costs as little as a process can.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

FORWARDED = [_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1]


def main() -> None:
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(sys.argv[1])
    umask = os.umask(0)
    os.umask(umask)
    arguments = [os.fsencode(argument) for argument in sys.argv[2:]]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    request = b"\0".join([b"%d" % len(arguments), *arguments, os.getcwdb(), b"%d" % umask, *variables])
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([len(request).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    server.sendall(request)
    for number in FORWARDED:
        _signal.signal(number, lambda number, _: server.send(bytes([number])))
    for number in (0, 1, 2):  # Readers of a pipe see its end when the program ends.
        os.close(number)
    answer = server.recv(4)
    status = int.from_bytes(answer, "big", signed=True) if answer else 255
    if status < 0:
        _signal.signal(-status, _signal.SIG_DFL) if -status != _signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
