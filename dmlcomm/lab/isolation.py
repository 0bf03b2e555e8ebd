"""How the holder of a lab leaves the machine: as root, or inside a user namespace of its own."""

import errno
import os
from pathlib import Path

from dmlcomm.errors import LabError
from dmlcomm.lab import namespaces as ns

# Sysctl -> value with which unprivileged users may not make user namespaces, and what to do.
_SWITCHES = {
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "sysctl kernel.unprivileged_userns_clone=1",
    ),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl user.max_user_namespaces=10000"),
}


def isolate() -> bool:
    """New mount and PID namespaces, the latter for children.

    With the right to do so directly; else inside a new user namespace, in which this user is root.
    Returns whether it is the latter. Raises LabError where neither is allowed.
    """
    try:
        ns.unshare(ns.CLONE_NEWNS | ns.CLONE_NEWPID)
        return False
    except PermissionError:
        pass
    user, group = os.geteuid(), os.getegid()
    try:
        ns.unshare(ns.CLONE_NEWUSER | ns.CLONE_NEWNS | ns.CLONE_NEWPID)
        _become_root_inside(user, group)
    except OSError as error:
        raise LabError(_why_not(error)) from error
    return True


def _become_root_inside(user: int, group: int) -> None:
    # The kernel lets a user map its own ids only, and its group only after giving up setgroups.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def settle(hosts_file: str) -> None:
    """The first process of the PID namespace makes its mounts fit: its own /proc, and /etc/hosts.

    Mounts of the machine still arrive here; those made here do not leave. Raises LabError.
    """
    try:
        ns.mount("none", "/", "", ns.MS_REC | ns.MS_SLAVE)
        if os.path.isfile("/etc/hosts"):
            _replace_hosts_file(hosts_file)
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    except OSError as error:
        raise LabError(
            f"a lab needs mounts of its own, and this system refuses them ({error}). In a "
            "container, /proc must not be masked: start it privileged, or run the lab outside of it"
        ) from error


def _replace_hosts_file(text: str) -> None:
    """A file that exists nowhere else: on a file system that is mounted for this moment only."""
    ns.mount("tmpfs", "/proc", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    Path("/proc/hosts").write_text(text)
    ns.mount("/proc/hosts", "/etc/hosts", "", ns.MS_BIND)
    ns.unmount("/proc")


def _why_not(error: OSError) -> str:
    advice = [fix for path, (bad, fix) in _SWITCHES.items() if _reads(path, bad)]
    if error.errno == errno.ENOSPC:
        advice.append("sysctl user.max_user_namespaces (the limit is reached)")
    hint = f"enable them as root with: {'; '.join(advice)}" if advice else "run it as root"
    return (
        f"a lab needs root (CAP_SYS_ADMIN) or user namespaces, and has neither here ({error}): "
        f"{hint}. In a container, both may be refused by its security profile"
    )


def _reads(path: str, value: str) -> bool:
    try:
        return Path(path).read_text().strip() == value
    except OSError:
        return False
