"""System calls for namespaces that Python 3.11 has no function for. All act on this process."""

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_text = ctypes.c_char_p
_libc.mount.argtypes = (_text, _text, _text, ctypes.c_ulong, _text)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """New namespaces of the kinds in ``flags``; CLONE_NEWPID is for children. Raises OSError."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Enters the namespace behind ``fd``. Raises OSError."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    arguments = (source.encode(), target.encode(), kind.encode() or None, flags, None)
    _check(_libc.mount(*arguments), f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Takes a mount away even if it is in use. Raises OSError."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def die_with_parent() -> None:
    """This process is killed when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def show_interfaces_of_this_namespace() -> None:
    """Makes /sys/class/net show this process's interfaces, not those of the mounter.

    In a mount namespace of its own. Raises OSError.
    """
    unshare(CLONE_NEWNS)
    mount("none", "/", "", MS_REC | MS_SLAVE)
    mount("sysfs", "/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def open_own(kind: str) -> int:
    """A descriptor of this process's namespace: "net", "uts", "mnt", "pid", "user"."""
    return os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
