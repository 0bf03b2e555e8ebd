#include "transport/tcp/flow.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace dmlcomm::transport::tcp {

Channel::Flow flow_of(int fd, size_t queue_bytes) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  Channel::Flow flow;
  flow.some_on_the_way = info.tcpi_unacked > 0;
  flow.confirmed_bytes = info.tcpi_bytes_acked;
  flow.busy_us = info.tcpi_busy_time;
  flow.bytes_resent = info.tcpi_bytes_retrans;
  // A connection that has not measured a round trip says "for ever".
  flow.min_rtt_us = info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt;
  flow.queued_bytes = info.tcpi_notsent_bytes + uint64_t{info.tcpi_unacked} * info.tcpi_snd_mss;
  flow.most_queued_bytes = queue_bytes + uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
  // With too little to send, the rate is what there was to send.
  const bool is_known = info.tcpi_delivery_rate_app_limited == 0;
  flow.bytes_per_second = is_known ? static_cast<double>(info.tcpi_delivery_rate) : 0;
  return flow;
}

}  // namespace dmlcomm::transport::tcp
