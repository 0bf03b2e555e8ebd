#include "sim/share_layer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace dmlcomm::sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Relative. Rounding is 10^-16 per addition, and a link may have many thousand groups.
constexpr double kNegligible = 1e-10;

// Of the largest value since it was summed: below this share, rounding may be much of a difference.
constexpr double kTrusted = 1.0 / 64;

bool is_higher(double level, double other) { return level > other * (1 + 2 * kNegligible); }

// The level at which the link is full, if nothing is frozen before.
template <typename Link>
double full_at(const Link& link) {
  // `used` may differ from what it should be by a rounding, which is much beside no capacity.
  if (link.num_open > 0 && link.capacity == 0) return 0;
  if (link.num_open > 0) return std::max(0.0, (link.capacity - link.used) / link.open_weight);
  const bool is_too_full = link.used > link.capacity * (1 + 2 * kNegligible);
  return is_too_full ? 0 : kInfinity;
}

}  // namespace

bool ShareLayer::differ(double level, double other) {
  return std::abs(level - other) > kNegligible * std::max(level, other);
}

uint32_t ShareLayer::add_link(double capacity) {
  links_.push_back({.capacity = capacity, .uses = {}});
  return static_cast<uint32_t>(links_.size() - 1);
}

uint32_t ShareLayer::add_group(const std::vector<uint32_t>& path) {
  DMLCOMM_CHECK(!path.empty());
  const auto first = static_cast<uint32_t>(hops_.size());
  std::vector<uint32_t> sorted = path;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t link : sorted) {
    if (hops_.size() > first && hops_.back().link == link) {
      ++hops_.back().times;
    } else {
      hops_.push_back({link, 1, kNone});
    }
  }
  groups_.push_back({first, static_cast<uint32_t>(hops_.size()) - first});
  return static_cast<uint32_t>(groups_.size() - 1);
}

void ShareLayer::set_weight(uint32_t group, double weight) {
  if (groups_[group].new_weight == weight) return;
  groups_[group].new_weight = weight;
  if (std::exchange(groups_[group].is_dirty, true)) return;
  dirty_groups_.push_back(group);
}

void ShareLayer::set_capacity(uint32_t link, double capacity) {
  links_[link].capacity = capacity;
  if (std::exchange(links_[link].is_dirty, true)) return;
  dirty_links_.push_back(link);
}

void ShareLayer::update() {
  touched_links_.clear();
  changed_groups_.clear();
  now_ = 0;
  apply_changes();
  while (!events_.empty()) {
    const Event event = events_.front();
    // Links that are too full already come first, at level 0; the others matter to open groups
    // only.
    if (num_open_ == 0 && event.level > 0) break;
    std::pop_heap(events_.begin(), events_.end(), std::greater<>());
    events_.pop_back();
    now_ = std::max(now_, event.level);
    if (event.what == What::full) {
      on_full(event.link, event.level);
    } else {
      on_passed(links_[event.link]);
    }
  }
  events_.clear();
  finish();
}

void ShareLayer::push(const Event& event) {
  events_.push_back(event);
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

// All weights change before any link is touched: touching opens groups, with the weight they have.
void ShareLayer::apply_changes() {
  for (uint32_t id : dirty_groups_) {
    if (groups_[id].weight == 0 && groups_[id].new_weight > 0) enlist(id);
    apply_weight(&groups_[id]);
  }
  for (uint32_t id : dirty_groups_) {
    Group& group = groups_[id];
    group.is_dirty = false;
    for (uint32_t hop = 0; hop < group.num_hops; ++hop) touch(hops_of(group)[hop].link);
  }
  for (uint32_t link : dirty_links_) {
    links_[link].is_dirty = false;
    touch(link);
  }
  dirty_groups_.clear();
  dirty_links_.clear();
}

void ShareLayer::apply_weight(Group* group) {
  if (group->weight > 0) open(group);
  const double before = std::exchange(group->weight, group->new_weight);
  const bool begins = before == 0 && group->weight > 0;
  if (begins) {
    group->state = State::open;
    opened_groups_.push_back(group);
    ++num_open_;
  }
  for (uint32_t hop = 0; hop < group->num_hops; ++hop) {
    const Hop& at = hops_of(*group)[hop];
    if (begins) ++links_[at.link].num_open;
    add_open_weight(&links_[at.link], (group->weight - before) * at.times);
  }
  if (before > 0 && group->weight == 0) delist(group);
}

// Small weights are what is left of large ones: their sum must not be what rounding has left.
void ShareLayer::add_open_weight(Link* link, double change) {
  link->open_weight += change;
  link->largest_open_weight = std::max(link->largest_open_weight, link->open_weight);
  if (link->open_weight >= kTrusted * link->largest_open_weight) return;
  link->open_weight = 0;
  for (const Use& use : link->uses) {
    const Group& group = groups_[use.group];
    if (group.state == State::open)
      link->open_weight += group.weight * hops_of(group)[use.hop].times;
  }
  link->largest_open_weight = link->open_weight;
}

void ShareLayer::remove_open(Link* link, double weight) {
  if (--link->num_open > 0) return add_open_weight(link, -weight);
  link->open_weight = link->largest_open_weight = 0;
}

void ShareLayer::finish() {
  for (Group* group : opened_groups_) {
    DMLCOMM_CHECK(group->state != State::open);
    group->state = State::closed;
  }
  opened_groups_.clear();
  for (uint32_t link : touched_links_) links_[link].is_touched = false;
}

// Opens the groups whose bottleneck the link is. It may be full at another level from now on.
void ShareLayer::touch(uint32_t id) {
  Link& link = links_[id];
  if (link.is_touched) return;
  double old_level = kInfinity;
  for (uint32_t i = 0; i < link.num_limited; ++i) {
    Group& group = groups_[link.uses[i].group];
    if (group.state != State::closed) continue;
    old_level = std::min(old_level, group.level);
    open(&group);
  }
  link.is_touched = true;
  link.queued = kInfinity;
  touched_links_.push_back(id);
  if (old_level < kInfinity) {
    push({old_level * (1 + 2 * kNegligible), What::passed, id});
  }
  queue_full(id);
}

void ShareLayer::open(Group* group) {
  group->state = State::open;
  opened_groups_.push_back(group);
  ++num_open_;
  for (uint32_t hop = 0; hop < group->num_hops; ++hop) {
    const Hop& at = hops_of(*group)[hop];
    Link& link = links_[at.link];
    const double weight = group->weight * at.times;
    add_open_weight(&link, weight);
    ++link.num_open;
    link.used = link.num_open == link.uses.size() ? 0 : link.used - weight * group->level;
    if (link.is_touched) queue_full(at.link);
  }
}

// An event that has become too early is put off when it comes; one that is too late is overtaken.
void ShareLayer::queue_full(uint32_t id) {
  Link& link = links_[id];
  const double level = full_at(link);
  if (level >= link.queued) return;
  link.queued = level;
  push({level, What::full, id});
}

void ShareLayer::on_full(uint32_t id, double level) {
  Link& link = links_[id];
  if (level != link.queued) return;  // overtaken
  link.queued = kInfinity;
  const double now_full_at = full_at(link);
  if (now_full_at > now_) return queue_full(id);
  if (open_higher(link, now_)) return queue_full(id);
  // A group that gets another bottleneck changes places with one that was here before it.
  for (uint32_t i = 0; i < link.uses.size(); ++i) {
    const auto [group, hop] = link.uses[i];
    if (groups_[group].state == State::open) freeze(group, hop, now_);
  }
}

// Opens groups that the link lets rise to `level` only. Returns whether there are any.
bool ShareLayer::open_higher(const Link& link, double level) {
  bool has_opened = false;
  for (const Use& use : link.uses) {
    Group& group = groups_[use.group];
    if (group.state != State::closed || !is_higher(group.level, level)) continue;
    has_opened = true;
    // Opens this one, and the groups that have been its equals.
    touch(hops_of(group)[group.bottleneck].link);
    if (group.state == State::closed) open(&group);
  }
  return has_opened;
}

void ShareLayer::freeze(uint32_t id, uint32_t hop, double level) {
  Group& group = groups_[id];
  const bool is_new = differ(level, group.level);
  if (is_new) {
    group.level = level;
    changed_groups_.push_back(id);
  }
  group.state = State::frozen;
  --num_open_;
  set_bottleneck(&group, hop);
  for (uint32_t i = 0; i < group.num_hops; ++i) {
    const Hop& at = hops_of(group)[i];
    Link& link = links_[at.link];
    const double weight = group.weight * at.times;
    link.used += weight * group.level;
    remove_open(&link, weight);
    if (is_new) touch(at.link);
  }
}

// Groups that had their bottleneck here rise beyond their old level.
void ShareLayer::on_passed(const Link& link) {
  for (uint32_t i = 0; i < link.num_limited; ++i) {
    const Group& group = groups_[link.uses[i].group];
    if (group.state != State::open) continue;
    for (uint32_t hop = 0; hop < group.num_hops; ++hop) touch(hops_of(group)[hop].link);
  }
}

void ShareLayer::enlist(uint32_t id) {
  const Group& group = groups_[id];
  for (uint32_t hop = 0; hop < group.num_hops; ++hop) {
    Hop& at = hops_of(group)[hop];
    Link& link = links_[at.link];
    at.place = static_cast<uint32_t>(link.uses.size());
    link.uses.push_back({id, hop});
  }
}

// Takes a group without flows out of its links.
void ShareLayer::delist(Group* group) {
  set_bottleneck(group, kNone);
  group->level = 0;
  group->state = State::frozen;
  --num_open_;
  for (uint32_t hop = 0; hop < group->num_hops; ++hop) {
    const Hop& at = hops_of(*group)[hop];
    Link& link = links_[at.link];
    remove_open(&link, 0);
    swap_uses(&link, at.place, static_cast<uint32_t>(link.uses.size() - 1));
    link.uses.pop_back();
    if (link.uses.size() == link.num_open) link.used = 0;
  }
}

void ShareLayer::set_bottleneck(Group* group, uint32_t hop) {
  if (group->bottleneck == hop) return;
  if (group->bottleneck != kNone) {
    const Hop& old = hops_of(*group)[group->bottleneck];
    Link& link = links_[old.link];
    swap_uses(&link, old.place, --link.num_limited);
  }
  group->bottleneck = hop;
  if (hop == kNone) return;
  const Hop& now = hops_of(*group)[hop];
  Link& link = links_[now.link];
  swap_uses(&link, now.place, link.num_limited++);
}

void ShareLayer::swap_uses(Link* link, uint32_t a, uint32_t b) {
  std::swap(link->uses[a], link->uses[b]);
  for (uint32_t place : {a, b}) {
    const Use& use = link->uses[place];
    hops_of(groups_[use.group])[use.hop].place = place;
  }
}

}  // namespace dmlcomm::sim
