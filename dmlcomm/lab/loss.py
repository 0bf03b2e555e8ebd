"""Random loss of arriving packets, by nftables (``meta random``, in the netdev family)."""

import contextlib
import errno

from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nfnetlink.nftsocket import Cmp, Meta, Regs
from pyroute2.nftables.expressions import genex, verdict
from pyroute2.nftables.main import NFTables

from dmlcomm.errors import LabError

_FAMILY_NETDEV = 5
_HOOK_INGRESS = 0
_DROP = 0
_ACCEPT = 1
_CHAIN = "loss"
_RANDOM_NUMBERS = 1 << 32


def lose(interface: str, share: float) -> None:
    """Drops ``share`` (0 to 1) of what arrives at ``interface`` of this network namespace.

    Raises LabError where the kernel has no nftables for devices.
    """
    keep(interface)
    try:
        with contextlib.closing(NFTables(nfgen_family=_FAMILY_NETDEV)) as nft:
            _add_chain(nft, interface)
            expressions = [_random_below(share), verdict(_DROP)]
            nft.rule("add", table=_table(interface), chain=_CHAIN, expressions=expressions)
    except (NetlinkError, OSError) as error:
        raise LabError(
            f"this kernel cannot lose packets: nftables refused a rule for {interface} ({error}). "
            "It needs CONFIG_NF_TABLES_NETDEV (as root: modprobe nf_tables)"
        ) from error


def keep(interface: str) -> None:
    try:
        with contextlib.closing(NFTables(nfgen_family=_FAMILY_NETDEV)) as nft:
            nft.table("del", name=_table(interface))
    except NetlinkError as error:
        if error.code not in (errno.ENOENT, errno.EOPNOTSUPP):
            raise
    except OSError:
        pass  # a kernel without nftables has no rule either


def _table(interface: str) -> str:
    return f"dmlcomm_{interface}"


def _add_chain(nft: NFTables, interface: str) -> None:
    hook = {
        "attrs": [
            ("NFTA_HOOK_HOOKNUM", _HOOK_INGRESS),
            ("NFTA_HOOK_PRIORITY", 0),
            ("NFTA_HOOK_DEV", interface),
        ]
    }
    table = _table(interface)
    nft.table("add", name=table)
    # pyroute2 knows the names of other families' hooks only; "kwarg" passes attributes as they are.
    chain = {"table": table, "name": _CHAIN, "hook": hook, "type": "filter", "policy": _ACCEPT}
    nft.chain("add", kwarg=chain)


def _random_below(share: float) -> list[dict[str, object]]:
    """Matches a share of the packets: a random 32-bit number, compared as bytes of a big-endian
    one.

    nftables compares registers byte by byte; a random number has no byte order, the bound has.
    """
    bound = min(round(share * _RANDOM_NUMBERS), _RANDOM_NUMBERS - 1)
    data = {"attrs": [("NFTA_DATA_VALUE", bound.to_bytes(4, "big"))]}
    register = Regs.NFT_REG_1
    return [
        genex("meta", {"key": Meta.NFT_META_PRANDOM, "dreg": register}),
        genex("cmp", {"sreg": register, "op": Cmp.NFT_CMP_LTE, "data": data}),
    ]
