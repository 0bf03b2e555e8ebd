// Latency: the time of an operation's messages if bytes took none: so many times the alpha between
// hosts (topology.h), one after the other, and the rest.
#pragma once

namespace dmlcomm::schedule {

struct Latency {
  double alphas = 0;
  double rest_s = 0;

  double seconds(double alpha_s) const { return alphas * alpha_s + rest_s; }
};

}  // namespace dmlcomm::schedule
