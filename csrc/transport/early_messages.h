// EarlyMessages: what has come over a link before its receive was posted, by tag, and of one tag in
// the order of arrival. Any number of tags is found in constant time.
//
// In small collectives the faster rank's messages are early in every operation. So the memory of
// the last one that was taken serves the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include "transport/frame.h"

namespace dmlcomm::transport {

// A message, or its announcement.
struct EarlyMessage {
  FrameHeader header;
  std::vector<std::byte> bytes;
  uint64_t order = 0;  // of arrival, across links
};

class EarlyMessages {
 public:
  // Takes the contents of `bytes`, and leaves it empty.
  void add(const FrameHeader& header, std::vector<std::byte>& bytes, uint64_t order);
  // The oldest message with this tag, or null.
  const EarlyMessage* oldest(Tag tag) const;
  // The same, which leaves the list. It is valid until the next call of take().
  const EarlyMessage* take(Tag tag);

 private:
  using ByTag = std::unordered_map<Tag, std::list<EarlyMessage>>;

  std::list<EarlyMessage>& of(Tag tag);

  ByTag by_tag_;                   // no list is empty
  std::list<EarlyMessage> taken_;  // the last one, or none
  ByTag::node_type spare_;         // an entry without messages, or null
};

}  // namespace dmlcomm::transport
