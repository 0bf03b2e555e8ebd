"""How much ``benchmarks.multi_nic`` measures."""

from dataclasses import dataclass

RATE = "200mbit"
RATE_BPS = 200_000_000
QUARTER, HALF = "50mbit", "100mbit"  # of it
UNEQUAL_RATES = "200mbit,50mbit"
MTU = 9000
# Frames of Ethernet at MTU 1500 have 1514 bytes, 1448 of them of messages.
ETHERNET_MTU = 1500
WITH_HEADERS = 1514 / 1448
WARM_UP = 9  # calls in which ranks find out rates
WARM_UP_SMALL = 30  # in which they also try algorithms, some of them twice

LENET5 = 12_500_000  # bytes: the gradient of the BML paper's smaller model
LARGE = 100_000_000
SMALL = 64 * 1024


@dataclass(frozen=True)
class Settings:
    """Topologies, sizes in bytes, and how long.

    Attributes:
        bcubes: for the time of one bucket; the first also for the other BCube experiments.
        sizes: of one bucket.
        flat, unequal: topologies with two NICs for the peer with both, and with unequal rates.
        shared: topology of the hosts with two ranks each.
        unknown: topologies and rates for the measurement of rates that ranks have to find out.
        unknown_sizes: bytes, there.
        meeting: of these, the topology on which ranks also meet before each call.
        by_hand: algorithms to compare with there, where they apply.
        changing: topologies with a rail that changes in the middle of a job, its rate then, and
            sizes; the first for the other unkind networks of two NICs, too.
        lossy: topologies with two NICs, one of which loses packets.
        four_rates: a topology with four NICs.
        congested: topologies, rates and operations, for congestion controls.
        controls: congestion controls, where the kernel has them.
        settled: calls that count, after the first ones under a condition.
        seconds: of measuring, per case and backend, about.
        small_iterations: of the small all_reduce.
        small_labs: for the small all_reduce where rates are unknown.
        iterations_down, iterations_up: with the link down, and after it is put back.
        only_cases: of the networks with unknown rates and the unkind ones, those whose name
            contains one of these; empty: all.
    """

    bcubes: tuple[str, ...]
    sizes: tuple[int, ...]
    flat: str
    unequal: str
    shared: str
    unknown: tuple[tuple[str, str], ...]
    unknown_sizes: tuple[int, ...]
    meeting: str
    by_hand: tuple[str, ...]
    changing: tuple[tuple[str, str, int], ...]
    lossy: tuple[str, ...]
    four_rates: str
    congested: tuple[tuple[str, str, str], ...]
    controls: tuple[str, ...]
    settled: int
    seconds: float
    small_iterations: int
    small_labs: int
    iterations_down: int
    iterations_up: int
    only_cases: tuple[str, ...] = ()

    def wants(self, case: str) -> bool:
        """Whether a case of that name is measured; see ``only_cases``."""
        return not self.only_cases or any(text in case for text in self.only_cases)


FULL = Settings(
    bcubes=("bcube:3,2", "bcube:2,3", "bcube:4,2"),
    sizes=(LENET5, LARGE),
    flat="flat:9,2",
    unequal="flat:4,2",
    shared="bcube:2,2",
    unknown=(
        ("bcube:3,2", RATE),
        ("bcube:2,3", RATE),
        ("bcube:4,2", RATE),
        ("flat:9,2", RATE),
        ("flat:9,1", RATE),
        ("flat:4,2", UNEQUAL_RATES),
        ("flat:4,3", "200mbit,100mbit,20mbit"),
    ),
    unknown_sizes=(LENET5, SMALL),
    meeting="bcube:2,3",
    by_hand=("direct", "halving_doubling", "recursive_doubling", "tree", "ring", "bml", "bml_ring"),
    changing=(
        ("flat:4,2", QUARTER, LENET5),
        ("flat:2,2", QUARTER, LENET5 // 5),
        ("bcube:3,2", QUARTER, LENET5),
        ("bcube:3,2", HALF, LENET5),
    ),
    lossy=("flat:2,2", "flat:4,2"),
    four_rates="flat:4,4",
    congested=(
        ("bcube:3,2", RATE, "all_reduce"),
        ("bcube:2,3", RATE, "all_reduce"),
        ("bcube:2,3", "50mbit", "all_reduce"),
        ("flat:9,2", RATE, "all_reduce"),
        ("flat:5,1", RATE, "all_to_all"),
        ("flat:5,1", RATE, "gather"),
    ),
    controls=("bbr", "cubic", "reno"),
    settled=10,
    seconds=6.0,
    small_iterations=200,
    small_labs=3,
    iterations_down=5,
    iterations_up=10,
)

# Two to four hosts and a fifth of LeNet-5: says that everything works, not how fast it is. Most of
# its time goes into starting ranks.
QUICK = Settings(
    bcubes=("bcube:2,2",),
    sizes=(LENET5 // 5,),
    flat="flat:2,2",
    unequal="flat:2,2",
    shared="flat:2,2",
    unknown=(("flat:2,2", RATE),),
    unknown_sizes=(LENET5 // 5, SMALL),
    meeting="flat:2,2",
    by_hand=("direct",),
    changing=(("flat:2,2", QUARTER, LENET5 // 5),),
    lossy=("flat:2,2",),
    four_rates="flat:2,4",
    congested=(("flat:2,1", RATE, "gather"),),
    controls=("reno",),
    settled=3,
    seconds=0.2,
    small_iterations=20,
    small_labs=1,
    iterations_down=3,
    iterations_up=5,
)
