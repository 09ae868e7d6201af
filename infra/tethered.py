"""Run a command that the kernel kills when its parent dies:
`python tethered.py PARENT_PID [--user NAME] COMMAND...`.

The command replaces this process, so its pid is the one that the parent started. A script of its own, not a
`preexec_fn`: that may deadlock in a parent with threads. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns; exits with 127 when the command cannot be run."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if command[0] == "--user":  # before the tether: the kernel forgets it when a process changes its user
        _become(command[1])
        command = command[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call: no signal will come
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - arguments are a list, there is no shell
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        sys.exit(127)


def _become(user: str) -> None:
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)


if __name__ == "__main__":
    main()
