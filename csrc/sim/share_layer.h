// ShareLayer: max-min fair shares of links among groups of flows, kept up to date.
//
// Vocabulary: a *group* is all flows of one path; its *weight* is the sum of theirs. Its *level* is
// the rate of a flow of weight 1, so a flow has its weight times the level. Shares are max-min fair
// if every group has a *bottleneck*: a link of its path that is full, and on which no group has a
// higher level (Bertsekas, Gallager, "Data Networks", 1992).
//
// Water-filling finds them. The level of all groups rises, until a link is full: this
// freezes the level of the groups that pass it. The rest rises on. After a change it would find
// most levels as they were, so update() opens a group again only if
//  - its weight or the capacity of one of its links was changed, or
//  - its bottleneck carries something else than before, or
//  - a link of its path would be full at a lower level than the group has.
// A group that is open disturbs the other links of its path as soon as the level passes its old
// one, or when it is frozen at another level. So a change travels to higher levels only, and a link
// that is not touched costs nothing.
//
// Levels are exact but for rounding; changes of less than a part in 10^10 are dropped.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dmlcomm::sim {

class ShareLayer {
 public:
  // Returns the id of the link, counted from 0. Capacity: 0 or more.
  uint32_t add_link(double capacity);

  // Returns the id of the group, counted from 0. It has no flow yet. `path` has at least one link;
  // one that it has twice carries the group twice.
  uint32_t add_group(const std::vector<uint32_t>& path);

  // Both take effect in update(). A weight of 0 is a group without flows.
  void set_weight(uint32_t group, double weight);
  void set_capacity(uint32_t link, double capacity);

  // Shares the links anew. Nothing may be read between a change and its update.
  void update();

  // Of a group with a weight; else 0.
  double level(uint32_t group) const { return groups_[group].level; }
  // What groups take of the link, in total.
  double used(uint32_t link) const { return links_[link].used; }

  // What the last update changed: groups whose level is new, and links of which `used` may be.
  const std::vector<uint32_t>& changed_groups() const { return changed_groups_; }
  const std::vector<uint32_t>& changed_links() const { return touched_links_; }

  // Whether two levels differ by more than rounding does.
  static bool differ(double level, double other);

 private:
  enum class State : uint8_t {
    closed,  // frozen before this update, and not opened by it
    open,    // rises
    frozen,  // by this update
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  // A link of a group's path. `place` is the index in the link's `uses`.
  struct Hop {
    uint32_t link;
    uint32_t times;
    uint32_t place;
  };
  struct Group {
    uint32_t first_hop, num_hops;  // in hops_
    uint32_t bottleneck = kNone;   // index of a hop
    State state = State::closed;
    bool is_dirty = false;
    double weight = 0;
    double new_weight = 0;
    double level = 0;
  };
  struct Use {
    uint32_t group, hop;
  };
  struct Link {
    double capacity;
    double used = 0;                 // by groups that are closed or frozen
    double open_weight = 0;          // of open groups, by the times that they pass
    double largest_open_weight = 0;  // since it was summed
    uint32_t num_open = 0;
    // The groups with a weight that pass the link; first those whose bottleneck it is.
    uint32_t num_limited = 0;
    bool is_touched = false;
    bool is_dirty = false;
    double queued = 0;  // level of the youngest event `full`
    std::vector<Use> uses;
  };
  // At a level: the link may be full, or it was the bottleneck of groups that may be open still.
  enum class What : uint8_t { full, passed };
  struct Event {
    double level;
    What what;
    uint32_t link;
    bool operator>(const Event& other) const { return level > other.level; }
  };

  void apply_changes();
  void apply_weight(Group* group);
  void add_open_weight(Link* link, double change);
  void remove_open(Link* link, double weight);
  void finish();

  void touch(uint32_t link);
  void open(Group* group);
  bool open_higher(const Link& link, double level);
  void freeze(uint32_t group, uint32_t hop, double level);
  void on_full(uint32_t link, double level);
  void on_passed(const Link& link);
  void queue_full(uint32_t link);
  void push(const Event& event);

  void enlist(uint32_t group);
  void delist(Group* group);
  void swap_uses(Link* link, uint32_t a, uint32_t b);
  void set_bottleneck(Group* group, uint32_t hop);

  // The hops of a group, by the index of the path.
  Hop* hops_of(const Group& group) { return hops_.data() + group.first_hop; }
  const Hop* hops_of(const Group& group) const { return hops_.data() + group.first_hop; }

  std::vector<Link> links_;
  std::vector<Group> groups_;
  std::vector<Hop> hops_;
  std::vector<uint32_t> dirty_groups_, dirty_links_;

  // Of one update.
  std::vector<Event> events_;  // a heap, the lowest level first
  double now_ = 0;             // the level that the filling has reached
  size_t num_open_ = 0;
  std::vector<uint32_t> touched_links_, changed_groups_;
  std::vector<Group*> opened_groups_;
};

}  // namespace dmlcomm::sim
