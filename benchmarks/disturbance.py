"""Whether others took the machine's time while it measured."""

# A share of the CPU's time. Without it medians vary by less than the bars ask for.
MUCH_STOLEN = 0.02


def remark(stolen: float) -> str:
    """What to say of figures during which a virtual machine missed so much; empty for little."""
    if stolen < MUCH_STOLEN:
        return ""
    return f"this virtual machine was not given {stolen:.0%} of its CPU time; measure again"
