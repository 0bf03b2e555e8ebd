// RankReport: what a rank has measured, in a few bytes that every frame of a collective carries:
// the rates of its rails, how long the operation before took, and whether it gives tickets, to how
// many operations at once.
//
// Ranks combine reports by the minimum, which does not depend on the order. A rank puts its own
// report and all that it has received for the operation into each message. So at the end of an
// operation whose result needs all ranks, all of them hold the same report.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace dmlcomm::transport {

struct RankReport {
  // Rails beyond count as the last one.
  static constexpr size_t kMaxRails = 8;
  static constexpr uint8_t kUnknown = 255;

  // Eighths of powers of two, so that neighbours differ by 9 %.
  std::array<uint8_t, kMaxRails> rates = unknown();
  // The longest round trip has the smallest number.
  uint8_t nearness = kUnknown;
  // Where a rank gives tickets other than the default: how many of its operations have not ended,
  // in powers of two. The most has the smallest number.
  uint8_t ticketed = kUnknown;
  // Of the operation before. The shortest time is that of the rank that came last. The longest has
  // the smallest number.
  uint16_t shortest = kNoTime;
  uint16_t briefness = kNoTime;
  uint16_t reserved_too = 0;

  void merge(const RankReport& other) {
    for (size_t i = 0; i < kMaxRails; ++i) rates[i] = std::min(rates[i], other.rates[i]);
    nearness = std::min(nearness, other.nearness);
    ticketed = std::min(ticketed, other.ticketed);
    shortest = std::min(shortest, other.shortest);
    briefness = std::min(briefness, other.briefness);
  }

  void add_rate(size_t rail, double bits_per_second) {
    uint8_t& rate = rates[std::min(rail, kMaxRails - 1)];
    rate = std::min(rate, code(bits_per_second / kLeastBitsPerSecond));
  }
  void add_round_trip(double microseconds) {
    nearness = std::min<uint8_t>(nearness, kUnknown - code(microseconds));
  }
  // `places`: 1 or more.
  void add_ticketed(uint64_t places) {
    ticketed = std::min<uint8_t>(ticketed, kUnknown - 1 - std::bit_width(places - 1));
  }
  bool uses_tickets() const { return ticketed != kUnknown; }
  static uint64_t places(uint8_t ticketed) { return uint64_t{1} << (kUnknown - 1 - ticketed); }
  uint8_t rate(size_t rail) const { return rates[std::min(rail, kMaxRails - 1)]; }
  // Between rates that are so many numbers apart.
  static double ratio(double steps) { return std::exp2(steps / kStepsPerOctave); }
  static double bits_per_second(uint8_t rate) { return kLeastBitsPerSecond * value(rate); }
  double round_trip_us() const { return nearness == kUnknown ? 0 : value(kUnknown - nearness); }

  // 0 s: not known.
  void set_time(double seconds) {
    if (seconds <= 0) return;
    const double steps = kTimeStepsPerOctave * std::log2(std::max(seconds / kLeastSeconds, 1.0));
    shortest = static_cast<uint16_t>(std::min(std::round(steps), kMostTime));
    briefness = static_cast<uint16_t>(kMostTime - shortest);
  }
  double shortest_s() const { return shortest == kNoTime ? 0 : seconds(shortest); }
  double longest_s() const { return briefness == kNoTime ? 0 : seconds(kMostTime - briefness); }

  bool operator==(const RankReport&) const = default;

 private:
  static constexpr double kLeastBitsPerSecond = 1e5;
  static constexpr double kStepsPerOctave = 8;
  static constexpr uint16_t kNoTime = 65535;
  static constexpr double kMostTime = kNoTime - 1;
  static constexpr double kLeastSeconds = 1e-7;
  static constexpr double kTimeStepsPerOctave = 1024;

  static constexpr std::array<uint8_t, kMaxRails> unknown() {
    std::array<uint8_t, kMaxRails> all{};
    all.fill(kUnknown);
    return all;
  }
  static uint8_t code(double ratio) {
    const double steps = std::round(kStepsPerOctave * std::log2(std::max(ratio, 1.0)));
    return static_cast<uint8_t>(std::min(1 + steps, kUnknown - 1.0));
  }
  static double seconds(double steps) {
    return kLeastSeconds * std::exp2(steps / kTimeStepsPerOctave);
  }
  static double value(uint8_t code) { return ratio(code - 1); }
};
static_assert(sizeof(RankReport) == 16);

}  // namespace dmlcomm::transport
