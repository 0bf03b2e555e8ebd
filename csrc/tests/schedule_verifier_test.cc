// The verifier refuses every kind of fault: schedules that are right but for one change.
#include "schedule/verify/verifier.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/str_cat.h"
#include "schedule/algorithms.h"
#include "tests/schedule_rails.h"
#include "tests/schedule_shapes.h"
#include "tests/schedule_topologies.h"

namespace dmlcomm::schedule {
namespace {

// All ranks of one collective, to be damaged.
struct Group {
  std::vector<OpShape> shapes;
  std::vector<Schedule> schedules;

  Group(OpKind kind, const std::string& algorithm, uint32_t num_ranks, uint64_t count)
      : shapes(even_shapes(kind, num_ranks, 0, count)) {
    const Algorithm& named = *find_algorithm(kind, algorithm);
    const topology::Topology topology = topologies_of(named, num_ranks).front();
    for (const OpShape& shape : shapes) schedules.push_back(named.generate(shape, topology));
  }

  // Without steps, to be written by hand.
  Group(OpKind kind, uint32_t num_ranks, uint64_t count)
      : shapes(even_shapes(kind, num_ranks, 0, count)), schedules(num_ranks) {}

  Step& step(uint32_t rank, uint32_t id) { return schedules[rank].steps[id]; }

  // The n-th step of a kind.
  Step& nth(uint32_t rank, StepKind kind, uint32_t n) {
    for (Step& step : schedules[rank].steps) {
      if (step.kind == kind && n-- == 0) return step;
    }
    ADD_FAILURE() << "rank " << rank << " has no such step";
    return schedules[rank].steps[0];
  }

  void add(uint32_t rank, Step step, uint16_t stream = 0) {
    if (step.kind == StepKind::recv_reduce && step.source.length == 0) step.source = step.range;
    schedules[rank].steps.push_back(step);
    schedules[rank].stream_of.push_back(stream);
  }

  void remove(uint32_t rank, uint32_t id) {
    Schedule& schedule = schedules[rank];
    schedule.steps.erase(schedule.steps.begin() + id);
    schedule.stream_of.pop_back();
    for (Step& step : schedule.steps) {
      std::erase(step.deps, id);
      for (uint32_t& dep : step.deps) dep -= dep > id ? 1 : 0;
    }
  }

  void expect_refused(const std::string& reason, Aliasing aliasing = Aliasing::separate) const {
    const Status status = verify(shapes, schedules, aliasing);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find(reason), std::string::npos)
        << "expected \"" << reason << "\" in: " << status.message();
  }
};

Range output(uint64_t offset, uint64_t length) { return {BufferId::output, offset, length}; }
Range input(uint64_t offset, uint64_t length) { return {BufferId::input, offset, length}; }
Range scratch(uint64_t offset, uint64_t length) { return {BufferId::scratch, offset, length}; }
Step send(Range range, uint32_t peer, std::vector<uint32_t> deps = {}) {
  return {StepKind::send, kAnyRail, peer, range, {}, deps, false};
}
Step recv(Range range, uint32_t peer, std::vector<uint32_t> deps = {}) {
  return {StepKind::recv, kAnyRail, peer, range, {}, deps, false};
}
Step recv_reduce(Range range, Range source, uint32_t peer, std::vector<uint32_t> deps = {}) {
  return {StepKind::recv_reduce, kAnyRail, peer, range, source, deps, false};
}

TEST(VerifierTest, RefusesReadingWhatMayNotBeThereYet) {
  Group group(OpKind::all_reduce, "ring", 4, 16);
  group.nth(1, StepKind::send, 1).deps.clear();  // passes on a part before it was combined
  group.expect_refused("no dependency orders them");
}

TEST(VerifierTest, RefusesOverwritingWhatIsBeingSent) {
  Group group(OpKind::all_reduce, "direct", 3, 9);
  group.nth(0, StepKind::recv, 0).deps.clear();
  group.expect_refused("touches the same memory as step");
}

TEST(VerifierTest, RefusesARaceThatOnlyInPlaceOperationsHave) {
  Group group(OpKind::reduce, "direct", 3, 9);
  group.nth(0, StepKind::recv, 0).deps.clear();
  EXPECT_TRUE(verify(group.shapes, group.schedules, Aliasing::separate).ok());
  group.expect_refused("touches the same memory as step", Aliasing::in_place);
}

TEST(VerifierTest, RefusesReadingWhatWasNeverWritten) {
  Group group(OpKind::broadcast, 3, 4);
  group.add(0, send(output(0, 4), 1));
  group.add(1, recv(output(0, 4), 0));
  group.add(1, send(scratch(0, 4), 2, {0}));
  group.schedules[1].scratch_elements = 4;
  group.add(2, recv(output(0, 4), 1));
  group.expect_refused("nothing is yet");
}

TEST(VerifierTest, RefusesASwappedPeer) {
  Group group(OpKind::all_gather, "direct", 4, 3);
  std::swap(group.nth(2, StepKind::send, 0).peer, group.nth(2, StepKind::send, 1).peer);
  // The same bytes go to both, so only a piece of another length shows a difference.
  EXPECT_TRUE(verify(group.shapes, group.schedules).ok());
  std::swap(group.nth(2, StepKind::recv, 0).peer, group.nth(2, StepKind::recv, 1).peer);
  group.expect_refused("expected element 0 of rank");
}

TEST(VerifierTest, RefusesMessagesWithoutAnOtherEnd) {
  Group group(OpKind::all_gather, "direct", 4, 3);
  group.nth(2, StepKind::send, 0).peer = 0;
  group.expect_refused("has no step for the other end");
}

TEST(VerifierTest, MatchesMessagesPerStreamWhichHasOneRailToAPeer) {
  Group group(OpKind::all_reduce, "direct", 2, 8);
  group.nth(0, StepKind::send, 0).rail = 1;
  group.expect_refused("is not on the one rail that its stream has from 0");
  group.nth(1, StepKind::recv_reduce, 0).rail = 1;
  group.expect_refused("is not on the one rail that its stream has from 0");
  group.nth(0, StepKind::send, 1).rail = 1;
  group.nth(1, StepKind::recv, 0).rail = 1;
  EXPECT_TRUE(verify(group.shapes, group.schedules).ok());
  for (Schedule& schedule : group.schedules) schedule.num_streams = 2;
  group.schedules[0].stream_of[0] = 1;
  group.expect_refused("has no step for the other end");
}

TEST(VerifierTest, RefusesLengthsThatDiffer) {
  Group group(OpKind::all_gather, "direct", 2, 3);
  group.nth(1, StepKind::send, 0).range.length = 2;
  group.expect_refused("expects 3 elements, but step 0 of rank 1 sends 2");
}

TEST(VerifierTest, RefusesAContributionThatCountsTwice) {
  Group twice(OpKind::all_reduce, 2, 2);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const uint32_t peer = 1 - rank;
    twice.add(rank, send(output(peer, 1), peer));
    twice.add(rank, send(output(peer, 1), peer));
    twice.add(rank, recv_reduce(output(rank, 1), output(rank, 1), peer));
    twice.add(rank, recv_reduce(output(rank, 1), output(rank, 1), peer));
    twice.schedules[rank].steps.back().finalizes = true;
    twice.add(rank, send(output(rank, 1), peer, {3}));
    twice.add(rank, recv(output(peer, 1), peer, {0, 1}));
  }
  twice.expect_refused("element 0 of each of 2 ranks exactly once, got final(((0:0 + 1:0) + 1:0))");
}

TEST(VerifierTest, RefusesAMissingContribution) {
  Group group(OpKind::reduce_scatter, "direct", 3, 2);
  group.nth(0, StepKind::send, 0).range.offset = 4;  // piece 2 instead of piece 1
  group.expect_refused("rank 1 output[0]: expected element 2 of each of 3 ranks exactly once");
}

// Each rank adds the others to its own in another order: a rounding sum would differ between ranks.
TEST(VerifierTest, RefusesSumsInDifferentOrders) {
  Group group(OpKind::all_reduce, 3, 1);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const uint32_t a = rank == 0 ? 1 : 0, b = rank == 2 ? 1 : 2;
    group.schedules[rank].scratch_elements = 1;
    group.add(rank, send(output(0, 1), a));
    group.add(rank, send(output(0, 1), b));
    group.add(rank, recv_reduce(scratch(0, 1), output(0, 1), a));
    group.add(rank, recv_reduce(scratch(0, 1), scratch(0, 1), b));
    group.schedules[rank].steps.back().finalizes = true;
    group.add(rank,
              {StepKind::copy, kAnyRail, rank, output(0, 1), scratch(0, 1), {0, 1, 3}, false});
  }
  group.expect_refused(
      "rank 1 output[0]: expected what rank 0 has: final(((0:0 + 1:0) + 2:0)), "
      "got final(((1:0 + 0:0) + 2:0))");
}

TEST(VerifierTest, RefusesOperandsThatAreExchangedOnOneSide) {
  Group group(OpKind::all_reduce, "recursive_doubling", 2, 3);
  group.nth(1, StepKind::recv_reduce, 0).received_first = false;
  group.expect_refused("rank 1 output[0]: expected what rank 0 has");
  Group in_run(OpKind::all_reduce, "direct", 3, 3);
  in_run.nth(1, StepKind::recv_reduce, 0).received_first = true;
  in_run.expect_refused("exchanges the operands inside a run");
}

TEST(VerifierTest, RefusesAMissingOrEarlyOrRepeatedFinalisation) {
  Group missing(OpKind::all_reduce, "ring", 3, 9);
  missing.nth(1, StepKind::recv_reduce, 1).finalizes = false;
  missing.expect_refused("and final");
  Group early(OpKind::all_reduce, "ring", 3, 9);
  early.nth(1, StepKind::recv_reduce, 0).finalizes = true;
  early.expect_refused("final already");
  Group on_copy(OpKind::all_reduce, "recursive_doubling", 2, 9);
  on_copy.nth(1, StepKind::copy, 0).finalizes = true;
  on_copy.expect_refused("only a recv_reduce can");
}

TEST(VerifierTest, RefusesACycleOfWaits) {
  Group group(OpKind::all_gather, 2, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    group.add(rank, recv(output(1 - rank, 1), 1 - rank));
    group.add(rank, send(input(0, 1), 1 - rank, {0}));
  }
  group.expect_refused("deadlock");
}

// Right only where a send may complete before its receive has begun.
TEST(VerifierTest, RefusesToRelyOnBufferedSends) {
  Group group(OpKind::all_gather, 2, 1);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    group.add(rank, send(input(0, 1), 1 - rank));
    group.add(rank, recv(output(1 - rank, 1), 1 - rank, {0}));
    group.add(rank, {StepKind::copy, kAnyRail, rank, output(rank, 1), input(0, 1), {}, false});
  }
  group.expect_refused("deadlock");
}

// Rank 2 sends only after rank 0 has taken rank 1's message, but rank 0 takes both in one pass.
TEST(VerifierTest, RefusesARunWhoseMessagesWaitForEachOther) {
  Group group(OpKind::reduce, 3, 1);
  group.add(0, recv_reduce(output(0, 1), input(0, 1), 1));
  group.add(0, recv_reduce(output(0, 1), output(0, 1), 2));
  group.add(1, send(input(0, 1), 0));
  group.add(1, send({}, 2, {0}));
  group.add(2, recv({}, 1));
  group.add(2, send(input(0, 1), 0, {0}));
  group.expect_refused("deadlock");
}

TEST(VerifierTest, RefusesBadRanges) {
  Group outside(OpKind::all_gather, "direct", 2, 3);
  outside.nth(0, StepKind::send, 0).range.offset = 1;
  outside.expect_refused("outside its buffer of 3 elements");
  Group overflow(OpKind::all_gather, "direct", 2, 3);
  overflow.nth(0, StepKind::recv, 0).range = output(~uint64_t{0}, 3);
  overflow.expect_refused("outside its buffer");
  Group crossing(OpKind::all_gather, "direct", 3, 3);
  crossing.nth(0, StepKind::recv, 0).range.offset = 4;
  crossing.expect_refused("crosses the border between two pieces at 6");
  Group no_scratch(OpKind::reduce, "tree", 4, 3);
  no_scratch.schedules[2].scratch_elements = 2;
  no_scratch.expect_refused("rank 2");
  Group to_input(OpKind::reduce, "tree", 4, 3);
  to_input.nth(2, StepKind::recv_reduce, 0).range.buffer = BufferId::input;
  to_input.expect_refused("writes to the input");
  Group overlapping(OpKind::reduce, "tree", 2, 3);
  overlapping.nth(0, StepKind::recv_reduce, 0).source = output(1, 2);
  overlapping.expect_refused("source and range differ in length");
}

TEST(VerifierTest, RefusesBadForm) {
  Group later(OpKind::all_reduce, "ring", 3, 9);
  later.step(0, 1).deps = {2};
  later.expect_refused("depends on step 2, which is not earlier");
  Group descending(OpKind::all_reduce, "ring", 3, 9);
  descending.step(0, 3).deps = {1, 0};
  descending.expect_refused("do not ascend");
  Group peer(OpKind::all_reduce, "ring", 3, 9);
  peer.step(0, 0).peer = 0;
  peer.expect_refused("peer 0 is not another rank of 3");
  Group stream(OpKind::all_reduce, "ring", 3, 9);
  stream.schedules[0].stream_of[0] = 1;
  stream.expect_refused("its stream does not exist");
  Group streams(OpKind::all_reduce, "ring", 3, 9);
  streams.schedules[1].stream_of.pop_back();
  streams.expect_refused("entries in stream_of");
  Group moving(OpKind::all_gather, "direct", 2, 3);
  moving.step(0, 2).kind = StepKind::recv_reduce;
  moving.step(0, 2).source = moving.step(0, 2).range;
  moving.expect_refused("only moves data");
}

TEST(VerifierTest, RefusesBadRuns) {
  Group source(OpKind::reduce, "direct", 3, 9);
  source.nth(1, StepKind::recv_reduce, 1).source = input(3, 3);
  source.expect_refused("only the first step of a run may name another source");
  Group waiting(OpKind::all_reduce, "direct", 3, 9);
  waiting.step(0, 3).deps = {2};
  waiting.expect_refused("depends on a step of its own run");
}

TEST(VerifierTest, RefusesABarrierThatLetsSomeoneLeaveEarly) {
  Group group(OpKind::barrier, "dissemination", 4, 0);
  for (uint32_t rank = 0; rank < 4; ++rank) group.nth(rank, StepKind::send, 1).deps.clear();
  group.expect_refused("may leave before rank");
}

TEST(VerifierTest, RefusesShapesThatAreNotOneCollective) {
  Group group(OpKind::all_to_all, "pairwise", 2, 3);
  group.shapes[0].recv_counts[1] = 2;
  group.expect_refused("ranks 0 and 1 disagree on their counts");
  Group root(OpKind::broadcast, "tree", 2, 3);
  root.shapes[1].root = 1;
  root.expect_refused("in one collective");
}

TEST(VerifierTest, RefusesRailsThatLeadElsewhereOrAreShared) {
  const topology::Topology topology =
      topology::grid_network(one_rank_per_host(4), {2, 2}, 1e9, true);
  const Algorithm& bml = *find_algorithm(OpKind::all_reduce, "bml");
  Group group(OpKind::all_reduce, 4, 64);
  for (uint32_t r = 0; r < 4; ++r) group.schedules[r] = bml.generate(group.shapes[r], topology);
  EXPECT_TRUE(check_rails(topology, group.schedules).ok());
  EXPECT_TRUE(check_rails_are_not_shared(group.schedules).ok());
  Group elsewhere = group;
  elsewhere.step(0, 0).rail = 1;
  EXPECT_NE(check_rails(topology, elsewhere.schedules).message().find("not reached on its rail"),
            std::string::npos);
  Group shared = group;
  for (Step& step : shared.schedules[0].steps) {
    if (step.peer == 2) step = shared.step(0, 0);
  }
  EXPECT_NE(check_rails_are_not_shared(shared.schedules).message().find("shares its rail"),
            std::string::npos);
}

// No generator does more than it must: without any one step, the rest is wrong, and seen to be.
TEST(VerifierTest, RefusesEveryScheduleThatLacksAStep) {
  for (const Algorithm& algorithm : all_schedules()) {
    const Group whole(algorithm.kind, algorithm.name, 4, 10);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      for (uint32_t id = 0; id < whole.schedules[rank].steps.size(); ++id) {
        Group damaged = whole;
        damaged.remove(rank, id);
        EXPECT_FALSE(verify(damaged.shapes, damaged.schedules).ok())
            << name_of(whole.schedules[rank]) << " rank " << rank << " without step " << id;
      }
    }
  }
}

TEST(VerifierTest, RefusesEveryShiftedRange) {
  for (const Algorithm& algorithm : all_schedules()) {
    if (algorithm.kind == OpKind::barrier) continue;
    const Group whole(algorithm.kind, algorithm.name, 4, 10);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      for (uint32_t id = 0; id < whole.schedules[rank].steps.size(); ++id) {
        for (uint64_t shift : {uint64_t{1}, ~uint64_t{0}}) {
          Group damaged = whole;
          damaged.step(rank, id).range.offset += shift;
          EXPECT_FALSE(verify(damaged.shapes, damaged.schedules).ok())
              << name_of(whole.schedules[rank]) << " rank " << rank << " step " << id;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dmlcomm::schedule
