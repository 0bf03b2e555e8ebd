#include "ps/feeder.h"

#include <utility>

#include "ps/pair.h"

namespace dmlcomm::ps {

uint64_t Feeder::add(Item item) {
  uint64_t number;
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(item));
    number = ++num_added_;
  }
  feed();
  return number;
}

engine::OperationPtr Feeder::oldest(uint64_t last) const {
  std::lock_guard lock(mutex_);
  if (in_flight_.empty() || in_flight_.front().number > last) return nullptr;
  return in_flight_.front().op;
}

engine::OperationPtr Feeder::start(const Item& item) {
  const engine::OpOptions options{.timeout = kForever,
                                  .inline_wait = item.inline_wait,
                                  .element = std::nullopt,
                                  .ticket = item.ticket};
  return direction_ == Direction::send ? communicator_.send(item.memory, peer_, tag_, options)
                                       : communicator_.recv(item.memory, peer_, tag_, options);
}

// Operations that fail at once call back from within on_done(): `feeding_` keeps that from becoming
// a recursion as deep as the queue.
void Feeder::feed() {
  std::unique_lock lock(mutex_);
  if (feeding_) return;
  feeding_ = true;
  while (!waiting_.empty() && in_flight_.size() < max_in_flight_) {
    Item item = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    engine::OperationPtr op = start(item);
    lock.lock();
    in_flight_.push_back({++num_started_, op});
    lock.unlock();
    op->on_done([self = shared_from_this(), raw = op.get(),
                 done = std::move(item.done)](const Status& status) {
      {
        std::lock_guard finished(self->mutex_);
        std::erase_if(self->in_flight_, [&](const Pending& one) { return one.op.get() == raw; });
      }
      self->feed();
      done(status);
    });
    lock.lock();
  }
  feeding_ = false;
}

}  // namespace dmlcomm::ps
