// The metrics of ranks as text, and how requests for them are answered.

#include "engine/metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/metrics_server.h"

namespace dmlcomm::tests {
namespace {

TEST(Metrics, HaveOneFamilyEachWithTheSamplesOfAllGroups) {
  transport::RailCounters rail;
  rail.interface = "eth0";
  rail.bytes_sent = 7;
  engine::Samples samples = engine::samples_of("a\"b", 3, {2, 5, true}, {rail});
  const engine::Samples others = engine::samples_of("c", 0, {}, {});
  samples.insert(samples.end(), others.begin(), others.end());
  const std::string text = engine::metrics_text("job_number=\"1\"", samples);
  EXPECT_NE(text.find("# TYPE dmlcomm_rank_operations gauge\n"
                      "dmlcomm_rank_operations{job_number=\"1\",group=\"a\\\"b\",rank=\"3\"} 2\n"
                      "dmlcomm_rank_operations{job_number=\"1\",group=\"c\",rank=\"0\"} 0\n"
                      "# HELP dmlcomm_rank_last_collective "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE dmlcomm_rail_sent_bytes_total counter\n"
                      "dmlcomm_rail_sent_bytes_total{job_number=\"1\",group=\"a\\\"b\",rank=\"3\","
                      "rail=\"eth0\"} 7\n"),
            std::string::npos)
      << text;
}

TEST(Metrics, HaveTheMeasuredRateAndRoundTripOfEachRail) {
  transport::RailCounters rail;
  rail.interface = "eth0";
  rail.bits_per_second = 200e6;
  rail.round_trip_us = 310;
  rail.agreed_round_trip_us = 400;
  rail.agreed_message_us = 210;
  rail.blocking_us = 1900;
  const std::string text = engine::metrics_text("", engine::samples_of("g", 0, {}, {rail}));
  const std::string labels = "{,group=\"g\",rank=\"0\",rail=\"eth0\"} ";
  for (const std::string& line : {"dmlcomm_rail_bits_per_second" + labels + "200000000\n",
                                  "dmlcomm_rail_round_trip_microseconds" + labels + "310\n",
                                  "dmlcomm_rail_agreed_round_trip_microseconds" + labels + "400\n",
                                  "dmlcomm_rail_agreed_message_microseconds" + labels + "210\n",
                                  "dmlcomm_rail_blocking_microseconds" + labels + "1900\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
}

TEST(MetricsServer, AnswersOnlyGetOfMetrics) {
  const auto answer = [](const std::string& head) {
    return engine::http_answer(head, [] { return std::string("figures"); });
  };
  const std::string good = answer("GET /metrics?name=up HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(good.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_NE(good.find("\r\nContent-Length: 7\r\n"), std::string::npos);
  EXPECT_TRUE(good.ends_with("\r\n\r\nfigures"));
  EXPECT_TRUE(answer("GET /metricsx HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(answer("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(answer("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  EXPECT_TRUE(answer("\x16\x03\x01").starts_with("HTTP/1.1 405 "));
}

}  // namespace
}  // namespace dmlcomm::tests
