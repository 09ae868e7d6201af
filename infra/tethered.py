"""Run a command that the kernel kills when its parent dies: `python tethered.py PARENT_PID COMMAND...`.

The command replaces this process, so its pid is the one that the parent started. A script of its own, not a
`preexec_fn`: that may deadlock in a parent with threads. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Never returns; exits with 127 when the command cannot be run."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call: no signal will come
            sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - arguments are a list, there is no shell
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
