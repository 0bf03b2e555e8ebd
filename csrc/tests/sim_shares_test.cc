// Max-min fair shares: the definition holds after every change, on random links and flows.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "sim/fair_shares.h"
#include "sim/max_min_rates.h"

namespace dmlcomm::sim {
namespace {

struct Group {
  Path path;
  uint8_t priority = 0;
  uint32_t id = 0;
  double weight = 0;
};

// Links and groups of flows, kept beside the shares that are tested.
class Network {
 public:
  Network(uint32_t num_links, uint32_t num_groups, uint32_t num_priorities, uint32_t seed)
      : random_(seed), capacities_(random_capacities(num_links)), shares_(capacities_) {
    for (uint32_t i = 0; i < num_groups; ++i) {
      Group group;
      const uint32_t hops = 1 + below(5);
      for (uint32_t hop = 0; hop < hops; ++hop) group.path.push_back(below(num_links));
      group.priority = static_cast<uint8_t>(below(num_priorities));
      group.id = shares_.group(group.path, group.priority);
      if (group.id == groups_.size()) groups_.push_back(group);
    }
  }

  uint32_t below(uint32_t bound) {
    return std::uniform_int_distribution<uint32_t>(0, bound - 1)(random_);
  }

  void change_weight() {
    Group& group = groups_[below(static_cast<uint32_t>(groups_.size()))];
    group.weight = group.weight > 0 && below(2) == 0 ? 0 : 1 + below(4);
    shares_.set_weight(group.id, group.weight);
  }

  void change_capacity() {
    const uint32_t link = below(static_cast<uint32_t>(capacities_.size()));
    capacities_[link] = below(8) == 0 ? 0 : 1 + below(100);
    shares_.set_capacity(link, capacities_[link]);
  }

  void update() { shares_.update(); }

  // No link is too full, and each group has a bottleneck: a link that its priority and more urgent
  // ones fill, and on which no group of its priority has a higher level, and none of a later one
  // anything.
  void check() const {
    std::vector<std::vector<const Group*>> on(capacities_.size());
    for (const Group& group : groups_) {
      if (group.weight == 0) {
        EXPECT_EQ(shares_.level(group.id), 0);
        continue;
      }
      for (uint32_t link : group.path) on[link].push_back(&group);
    }
    for (size_t link = 0; link < on.size(); ++link) {
      EXPECT_LE(used(on[link], 255), capacities_[link] * (1 + 1e-8));
    }
    for (const Group& group : groups_) {
      if (group.weight == 0) continue;
      EXPECT_TRUE(std::any_of(
          group.path.begin(), group.path.end(),
          [&](uint32_t link) { return is_bottleneck(group, on[link], capacities_[link]); }))
          << "group " << group.id;
    }
  }

  std::vector<double> levels() const {
    std::vector<double> found;
    for (const Group& group : groups_) found.push_back(shares_.level(group.id));
    return found;
  }

  // The levels if all is shared at once.
  std::vector<double> fresh_levels() const {
    FairShares fresh(capacities_);
    for (const Group& group : groups_) {
      fresh.set_weight(fresh.group(group.path, group.priority), group.weight);
    }
    fresh.update();
    std::vector<double> found;
    for (const Group& group : groups_) found.push_back(fresh.level(group.id));
    return found;
  }

 private:
  std::vector<double> random_capacities(uint32_t num_links) {
    std::vector<double> found;
    for (uint32_t i = 0; i < num_links; ++i) found.push_back(1 + below(100));
    return found;
  }

  double used(const std::vector<const Group*>& groups, uint8_t last_priority) const {
    double found = 0;
    for (const Group* group : groups) {
      if (group->priority <= last_priority) found += group->weight * shares_.level(group->id);
    }
    return found;
  }

  bool is_bottleneck(const Group& group, const std::vector<const Group*>& others,
                     double capacity) const {
    if (used(others, group.priority) < capacity * (1 - 1e-8)) return false;
    return std::all_of(others.begin(), others.end(), [&](const Group* other) {
      return other->priority != group.priority ||
             shares_.level(other->id) <= shares_.level(group.id) * (1 + 1e-8) + 1e-12;
    });
  }

  std::mt19937 random_;
  std::vector<double> capacities_;
  FairShares shares_;
  std::vector<Group> groups_;
};

struct Size {
  uint32_t num_links, num_groups, num_priorities;
};

class SharesTest : public ::testing::TestWithParam<Size> {};

TEST_P(SharesTest, AreFairAfterEveryChange) {
  const auto [num_links, num_groups, num_priorities] = GetParam();
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Network network(num_links, num_groups, num_priorities, seed);
    for (int step = 0; step < 100; ++step) {
      const uint32_t num_changes = 1 + network.below(3);
      for (uint32_t i = 0; i < num_changes; ++i) network.change_weight();
      if (network.below(4) == 0) network.change_capacity();
      network.update();
      network.check();
      const std::vector<double> levels = network.levels();
      const std::vector<double> fresh = network.fresh_levels();
      for (size_t i = 0; i < levels.size(); ++i) {
        EXPECT_NEAR(levels[i], fresh[i], 1e-8 * fresh[i] + 1e-12);
      }
      if (HasFailure()) FAIL() << "seed " << seed << ", step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Networks, SharesTest,
                         ::testing::Values(Size{1, 5, 1}, Size{3, 10, 1}, Size{10, 20, 1},
                                           Size{40, 80, 1}, Size{100, 40, 1}, Size{5, 20, 3},
                                           Size{30, 60, 4}));

TEST(SharesTest, AChangeElsewhereChangesNothing) {
  FairShares shares({10, 10});
  const uint32_t left = shares.group({0}, 0);
  const uint32_t right = shares.group({1}, 0);
  shares.set_weight(left, 2);
  shares.set_weight(right, 1);
  shares.update();
  EXPECT_EQ(shares.changed_groups(), (std::vector<uint32_t>{left, right}));
  shares.set_weight(left, 4);
  shares.update();
  EXPECT_EQ(shares.changed_groups(), std::vector<uint32_t>{left});
  EXPECT_EQ(shares.level(left), 2.5);
  EXPECT_EQ(shares.level(right), 10);
}

TEST(SharesTest, AChangeTravelsToHigherLevelsOnly) {
  // Link 0 limits the first two groups to 5 each, and link 1 leaves the third 15.
  FairShares shares({10, 20});
  const uint32_t short_one = shares.group({0}, 0);
  const uint32_t long_one = shares.group({0, 1}, 0);
  const uint32_t high_one = shares.group({1}, 0);
  for (uint32_t group : {short_one, long_one, high_one}) shares.set_weight(group, 1);
  shares.update();
  EXPECT_EQ(shares.level(high_one), 15);
  shares.set_weight(high_one, 3);
  shares.update();
  EXPECT_EQ(shares.changed_groups(), std::vector<uint32_t>{high_one});
  EXPECT_EQ(shares.level(high_one), 5);
}

TEST(MaxMinRatesTest, NamesWhatIsWrong) {
  const auto message = [](const Result<std::vector<double>>& result) {
    return result.ok() ? std::string("nothing") : result.status().message();
  };
  EXPECT_EQ(
      message(max_min_rates({{0}, {0, 2}}, {1, 1}, {}, {})),
      "flow 1 names link 2, but links are numbered from 0 to 1: give a capacity to each link");
  EXPECT_EQ(message(max_min_rates({{0}}, {-1}, {}, {})),
            "link 0 has the capacity -1: expected 0 to 1e+18 bits per second");
  EXPECT_EQ(message(max_min_rates({{0}}, {1}, {0}, {})),
            "flow 0 has the weight 0: expected 1e-06 to 1e+06");
  EXPECT_EQ(message(max_min_rates({{0}}, {1}, {}, {256})),
            "flow 0 has the priority 256: expected 0 (first) to 255");
  EXPECT_EQ(message(max_min_rates({{0}}, {1}, {1, 1}, {})),
            "there are 1 paths, but 2 weights: give one to each");
}

}  // namespace
}  // namespace dmlcomm::sim
