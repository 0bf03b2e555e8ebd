#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/dtype.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/str_cat.h"
#include "base/ticket.h"
#include "base/unique_fd.h"

namespace dmlcomm {
namespace {

// --- status

TEST(Status, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, PrintsCodeAndMessage) {
  const Status status(StatusCode::peer_lost, "rank 3 (host b)");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "peer_lost: rank 3 (host b)");
  std::ostringstream out;
  out << status;
  EXPECT_EQ(out.str(), status.to_string());
}

TEST(Status, NamesTheSystemCallAndItsError) {
  const Status status = errno_status(StatusCode::io_error, "connect(10.0.0.2:4711)", ECONNREFUSED);
  EXPECT_EQ(status.message(), "connect(10.0.0.2:4711): Connection refused");
  EXPECT_EQ(status.code(), StatusCode::io_error);
}

Result<int> half_of(int number) {
  if (number % 2 != 0) return Status(StatusCode::invalid_argument, "odd");
  return number / 2;
}

Status check_quarter(int number) {
  const Result<int> half = half_of(number);
  DMLCOMM_RETURN_IF_ERROR(half.status());
  DMLCOMM_RETURN_IF_ERROR(half_of(*half).status());
  return {};
}

TEST(Result, HoldsAValueOrAStatus) {
  EXPECT_EQ(*half_of(6), 3);
  EXPECT_EQ(half_of(3).status().code(), StatusCode::invalid_argument);
  EXPECT_TRUE(check_quarter(8).ok());
  EXPECT_EQ(check_quarter(6).message(), "odd");
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorAborts) {
  EXPECT_DEATH(half_of(3).value(), "check failed: ok()");
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  EXPECT_DEATH(DMLCOMM_CHECK(1 + 1 == 3), "base_test.cc:.*1 \\+ 1 == 3");
}

// --- dtype

TEST(DType, NamesAndSizesAreThoseOfTheList) {
  EXPECT_EQ(kNumDTypes, 17u);
  EXPECT_EQ(size_of(DType::c128), 16u);
  EXPECT_EQ(size_of(DType::f8e5m2), 1u);
  EXPECT_STREQ(to_string(DType::bf16), "bf16");
  EXPECT_STREQ(to_string(ReduceOp::bxor), "bxor");
}

TEST(DType, NumbersOfTheWireThatNameNothingAreRecognised) {
  EXPECT_EQ(size_of(static_cast<DType>(kNumDTypes)), 0u);
  EXPECT_STREQ(to_string(static_cast<DType>(200)), "unknown_dtype");
  EXPECT_STREQ(to_string(static_cast<ReduceOp>(kNumReduceOps)), "unknown_reduce_op");
}

// The numbers are on the wire: a change here breaks mixed versions.
TEST(DType, NumbersStay) {
  EXPECT_EQ(static_cast<int>(DType::u8), 0);
  EXPECT_EQ(static_cast<int>(DType::f16), 8);
  EXPECT_EQ(static_cast<int>(DType::boolean), 14);
  EXPECT_EQ(static_cast<int>(DType::f8e5m2), 16);
  EXPECT_EQ(static_cast<int>(ReduceOp::sum), 0);
  EXPECT_EQ(static_cast<int>(ReduceOp::bxor), 7);
}

// --- configuration

const char* const kVariables[] = {"DMLCOMM_SOCKET_IFNAME",
                                  "DMLCOMM_TOPOLOGY",
                                  "DMLCOMM_TRANSPORT",
                                  "DMLCOMM_UCX_REMOTE_MEMORY",
                                  "DMLCOMM_TICKET_MARK",
                                  "DMLCOMM_CHECKSUM",
                                  "DMLCOMM_CREDIT_BYTES",
                                  "DMLCOMM_CUDA_CHUNK_BYTES",
                                  "DMLCOMM_CUDA_NCCL",
                                  "DMLCOMM_ALGORITHM",
                                  "DMLCOMM_TICKET_CONNECTIONS",
                                  "DMLCOMM_AUTOTUNE",
                                  "DMLCOMM_PROBE",
                                  "DMLCOMM_PORT_RANGE",
                                  "DMLCOMM_PEER_TIMEOUT_S",
                                  "DMLCOMM_LOG_LEVEL",
                                  "DMLCOMM_SPIN_US",
                                  "DMLCOMM_SHM_BOARD_BYTES",
                                  "DMLCOMM_SHM_SINGLE_COPY",
                                  "DMLCOMM_HUGE_PAGES",
                                  "DMLCOMM_SHARE_TENSORS",
                                  "DMLCOMM_TCP_CONGESTION",
                                  "DMLCOMM_TCP_BUFFER_BYTES",
                                  "DMLCOMM_PS_SERVERS",
                                  "DMLCOMM_PS_TOKEN",
                                  "DMLCOMM_PS_WORKER",
                                  "DMLCOMM_PS_TOKEN_FILE",
                                  "DMLCOMM_SECRET",
                                  "DMLCOMM_SECRET_FILE",
                                  "DMLCOMM_JOB_PRIORITY",
                                  "DMLCOMM_METRICS_PORT",
                                  "DMLCOMM_METRICS_HOST",
                                  "RANK",
                                  "LOCAL_RANK"};

// Every test starts and ends without any of the variables.
class ConfigTest : public testing::Test {
 protected:
  ConfigTest() { clear(); }
  ~ConfigTest() override { clear(); }

  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
  }

  static Result<Config> read_with(const char* name, const std::string& value) {
    clear();
    setenv(name, value.c_str(), 1);
    return read_config();
  }

  // The field that `value` gives, or the default's (after a reported failure).
  template <typename Field>
  static Field field_of(const char* name, const std::string& value, Field Config::*field) {
    const Result<Config> config = read_with(name, value);
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? (*config).*field : Config().*field;
  }

  static void expect_illegal(const char* name, const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      const Result<Config> config = read_with(name, value);
      EXPECT_FALSE(config.ok()) << name << "=" << value;
      if (config.ok()) continue;
      EXPECT_EQ(config.status().code(), StatusCode::invalid_argument);
      const std::string start = str_cat(name, "=\"", value, "\" is not legal: expected ");
      EXPECT_EQ(config.status().message().substr(0, start.size()), start);
    }
  }
};

TEST_F(ConfigTest, WithoutVariablesEverythingIsAtItsDefault) {
  const Result<Config> config = read_config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->socket_ifname, "");
  EXPECT_EQ(config->topology, "auto");
  EXPECT_EQ(config->transport, TransportChoice::automatic);
  EXPECT_EQ(config->ticket_mark, TicketMarking::dscp);
  EXPECT_EQ(config->checksum, Checksum::none);
  EXPECT_EQ(config->algorithm, "");
  EXPECT_EQ(config->port_first, 0);
  EXPECT_EQ(config->port_last, 0);
  EXPECT_EQ(config->peer_timeout_s, 10.0);
  EXPECT_EQ(config->log_level, LogLevel::warning);
  EXPECT_EQ(config->spin_us, 50u);
  EXPECT_EQ(config->shm_board_bytes, 1048576u);
  EXPECT_TRUE(config->shm_single_copy);
  EXPECT_TRUE(config->huge_pages);
  EXPECT_EQ(config->tcp_congestion, "");
  EXPECT_FALSE(config->credit_bytes.has_value());
  EXPECT_EQ(config->cuda_chunk_bytes, 4194304u);
  EXPECT_EQ(config->cuda_nccl, CudaNccl::never);
  EXPECT_EQ(config->ticket_connections, 3u);
  EXPECT_FALSE(config->tcp_buffer_bytes.has_value());
}

TEST_F(ConfigTest, AnEmptyVariableCountsAsNotSet) {
  for (const char* name : kVariables) setenv(name, "", 1);
  const Result<Config> config = read_config();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->spin_us, 50u);
  EXPECT_TRUE(config->shm_single_copy);
}

TEST_F(ConfigTest, SocketIfname) {
  const char* name = "DMLCOMM_SOCKET_IFNAME";
  for (const std::string value : {"eth0", "eth,ib", "=eth0", "eth,=ib0", "^lo,docker0", "^=lo",
                                  "br-1a2b3c4d5e6f", "eth0.100"}) {
    EXPECT_EQ(field_of(name, value, &Config::socket_ifname), value);
  }
  expect_illegal(name, {",", "eth0,", "eth0,,ib0", "^", "=", "^=", "==eth0", "eth0 ", "eth0,^lo",
                        "a/b", "sixteencharacter"});
}

TEST_F(ConfigTest, PlaceOfMetrics) {
  EXPECT_EQ(read_config()->metrics_port, 0);
  EXPECT_EQ(read_config()->metrics_host, "127.0.0.1");
  EXPECT_EQ(field_of("DMLCOMM_METRICS_PORT", "9400", &Config::metrics_port), 9400);
  expect_illegal("DMLCOMM_METRICS_PORT", {"0", "65536", "-1", "9400 ", "http"});
  EXPECT_EQ(field_of("DMLCOMM_METRICS_HOST", "::", &Config::metrics_host), "::");
  expect_illegal("DMLCOMM_METRICS_HOST", {"localhost", "0.0.0", "127.0.0.1:1", "[::]"});
  EXPECT_EQ(field_of("LOCAL_RANK", "3", &Config::local_rank), uint16_t{3});
  EXPECT_EQ(field_of("LOCAL_RANK", "none", &Config::local_rank), std::nullopt);
}

TEST_F(ConfigTest, TopologyIsKeptAsWritten) {
  const char* name = "DMLCOMM_TOPOLOGY";
  for (const std::string value : {"auto", "flat", "bcube:3,2", "file:/etc/my cluster.yaml"}) {
    EXPECT_EQ(field_of(name, value, &Config::topology), value);
  }
}

TEST_F(ConfigTest, Transport) {
  const char* name = "DMLCOMM_TRANSPORT";
  EXPECT_EQ(field_of(name, "auto", &Config::transport), TransportChoice::automatic);
  EXPECT_EQ(field_of(name, "tcp", &Config::transport), TransportChoice::tcp);
  EXPECT_EQ(field_of(name, "shm", &Config::transport), TransportChoice::shm);
  expect_illegal(name, {"automatic", "TCP", "tcp ", "tcp,shm"});
}

TEST_F(ConfigTest, Algorithm) {
  const char* name = "DMLCOMM_ALGORITHM";
  for (const std::string value : {"ring", "all_reduce=ring", "all_reduce=ring,broadcast=tree2"}) {
    EXPECT_EQ(field_of(name, value, &Config::algorithm), value);
  }
  expect_illegal(name, {"=", "all_reduce=", "=ring", "ring,tree", "all_reduce=ring,",
                        "all_reduce=ring,all_reduce=tree", "all_reduce=a=b", "all reduce"});
}

TEST_F(ConfigTest, PortRange) {
  const char* name = "DMLCOMM_PORT_RANGE";
  EXPECT_EQ(field_of(name, "29500-29599", &Config::port_first), 29500);
  EXPECT_EQ(field_of(name, "29500-29599", &Config::port_last), 29599);
  EXPECT_EQ(field_of(name, "1-65535", &Config::port_last), 65535);
  EXPECT_EQ(field_of(name, "7-7", &Config::port_first), 7);
  expect_illegal(
      name, {"29500", "29500-", "-29500", "0-10", "10-9", "1-65536", "1-2-3", "1 - 2", "a-b", "-"});
}

TEST_F(ConfigTest, ParameterServer) {
  EXPECT_EQ(field_of("DMLCOMM_PS_SERVERS", "a:1,[::1]:2", &Config::ps_servers), "a:1,[::1]:2");
  EXPECT_EQ(field_of("DMLCOMM_PS_TOKEN", "any text", &Config::ps_token), "any text");
  const char* name = "DMLCOMM_PS_WORKER";
  EXPECT_EQ(field_of(name, "4095", &Config::ps_worker), 4095);
  expect_illegal(name, {"4096", "-1", "1.5", "one"});
}

TEST_F(ConfigTest, JobPriority) {
  const char* name = "DMLCOMM_JOB_PRIORITY";
  EXPECT_EQ(Config().job_priority, std::nullopt);
  EXPECT_EQ(field_of(name, "0", &Config::job_priority), 0u);
  EXPECT_EQ(field_of(name, "7", &Config::job_priority), 7u);
  expect_illegal(name, {"8", "-1", "1.5", "first"});
}

TEST_F(ConfigTest, SecretsComeFromFiles) {
  const std::string path = testing::TempDir() + "dmlcomm_secret_" + std::to_string(getpid());
  std::ofstream(path) << "from a file\r\nsecond line\n";
  EXPECT_EQ(field_of("DMLCOMM_PS_TOKEN_FILE", path, &Config::ps_token), "from a file");
  std::ofstream(path).flush();
  expect_illegal("DMLCOMM_PS_TOKEN_FILE", {path, path + ".none"});
  EXPECT_EQ(field_of("DMLCOMM_SECRET", "any text", &Config::secret), "any text");
  expect_illegal("DMLCOMM_SECRET_FILE", {path});
  std::remove(path.c_str());
}

TEST_F(ConfigTest, TheWorkerIsTheRankWhereNothingElseIsSaid) {
  EXPECT_EQ(field_of("RANK", "3", &Config::ps_worker), 3);
  EXPECT_EQ(field_of("RANK", "three", &Config::ps_worker), -1);
  EXPECT_EQ(field_of("RANK", "-1", &Config::ps_worker), -1);
}

TEST_F(ConfigTest, PeerTimeout) {
  const char* name = "DMLCOMM_PEER_TIMEOUT_S";
  EXPECT_EQ(field_of(name, "0.2", &Config::peer_timeout_s), 0.2);
  EXPECT_EQ(field_of(name, "3600", &Config::peer_timeout_s), 3600.0);
  EXPECT_EQ(field_of(name, "2.5", &Config::peer_timeout_s), 2.5);
  expect_illegal(name, {"0.1", "0", "-1", "3600.1", "nan", "inf", "10s", "1,5", " 1", "ten"});
}

TEST_F(ConfigTest, LogLevel) {
  const char* name = "DMLCOMM_LOG_LEVEL";
  EXPECT_EQ(field_of(name, "error", &Config::log_level), LogLevel::error);
  EXPECT_EQ(field_of(name, "warning", &Config::log_level), LogLevel::warning);
  EXPECT_EQ(field_of(name, "info", &Config::log_level), LogLevel::info);
  EXPECT_EQ(field_of(name, "debug", &Config::log_level), LogLevel::debug);
  expect_illegal(name, {"warn", "INFO", "3"});
}

TEST_F(ConfigTest, SpinMicroseconds) {
  const char* name = "DMLCOMM_SPIN_US";
  EXPECT_EQ(field_of(name, "0", &Config::spin_us), 0u);
  EXPECT_EQ(field_of(name, "1000000", &Config::spin_us), 1000000u);
  expect_illegal(name, {"1000001", "-1", "1.5", "4294967296", "50us", "0x10"});
}

TEST_F(ConfigTest, ShmBoardBytes) {
  const char* name = "DMLCOMM_SHM_BOARD_BYTES";
  EXPECT_EQ(field_of(name, "0", &Config::shm_board_bytes), 0u);
  EXPECT_EQ(field_of(name, "67108864", &Config::shm_board_bytes), 67108864u);
  expect_illegal(name, {"67108865", "-1", "1M", "18446744073709551616"});
}

TEST_F(ConfigTest, ShmSingleCopy) {
  const char* name = "DMLCOMM_SHM_SINGLE_COPY";
  EXPECT_TRUE(field_of(name, "1", &Config::shm_single_copy));
  EXPECT_FALSE(field_of(name, "0", &Config::shm_single_copy));
  expect_illegal(name, {"true", "2", "yes", "01"});
}

TEST_F(ConfigTest, HugePages) {
  const char* name = "DMLCOMM_HUGE_PAGES";
  EXPECT_TRUE(field_of(name, "1", &Config::huge_pages));
  EXPECT_FALSE(field_of(name, "0", &Config::huge_pages));
  expect_illegal(name, {"always", "2"});
}

TEST_F(ConfigTest, Autotune) {
  const char* name = "DMLCOMM_AUTOTUNE";
  EXPECT_TRUE(field_of(name, "1", &Config::autotune));
  EXPECT_FALSE(field_of(name, "0", &Config::autotune));
  expect_illegal(name, {"on", "2"});
}

TEST_F(ConfigTest, ShareTensors) {
  const char* name = "DMLCOMM_SHARE_TENSORS";
  EXPECT_TRUE(field_of(name, "1", &Config::share_tensors));
  EXPECT_FALSE(field_of(name, "0", &Config::share_tensors));
  expect_illegal(name, {"always", "2"});
}

TEST_F(ConfigTest, CreditBytes) {
  const char* name = "DMLCOMM_CREDIT_BYTES";
  EXPECT_EQ(field_of(name, "16384", &Config::credit_bytes), 16384u);
  EXPECT_EQ(field_of(name, "1073741824", &Config::credit_bytes), 1073741824u);
  expect_illegal(name, {"16383", "1073741825", "0", "64k"});
}

TEST_F(ConfigTest, CudaChunkBytes) {
  const char* name = "DMLCOMM_CUDA_CHUNK_BYTES";
  EXPECT_EQ(field_of(name, "262144", &Config::cuda_chunk_bytes), 262144u);
  EXPECT_EQ(field_of(name, "1073741824", &Config::cuda_chunk_bytes), 1073741824u);
  expect_illegal(name, {"262143", "1073741825", "4M"});
}

TEST_F(ConfigTest, UcxRemoteMemory) {
  const char* name = "DMLCOMM_UCX_REMOTE_MEMORY";
  EXPECT_EQ(field_of(name, "auto", &Config::ucx_remote_memory), UcxRemoteMemory::automatic);
  EXPECT_EQ(field_of(name, "on", &Config::ucx_remote_memory), UcxRemoteMemory::on);
  EXPECT_EQ(field_of(name, "off", &Config::ucx_remote_memory), UcxRemoteMemory::off);
  expect_illegal(name, {"1", "cma"});
}

TEST_F(ConfigTest, CudaNccl) {
  const char* name = "DMLCOMM_CUDA_NCCL";
  EXPECT_EQ(field_of(name, "auto", &Config::cuda_nccl), CudaNccl::automatic);
  EXPECT_EQ(field_of(name, "always", &Config::cuda_nccl), CudaNccl::always);
  EXPECT_EQ(field_of(name, "never", &Config::cuda_nccl), CudaNccl::never);
  expect_illegal(name, {"1", "nccl"});
}

TEST_F(ConfigTest, TicketConnections) {
  const char* name = "DMLCOMM_TICKET_CONNECTIONS";
  EXPECT_EQ(field_of(name, "0", &Config::ticket_connections), 0u);
  EXPECT_EQ(field_of(name, "4", &Config::ticket_connections), 4u);
  expect_illegal(name, {"5", "-1", "two"});
}

std::string hex_of(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(Sha256Test, HasTheDigestsOfTheStandards) {
  EXPECT_EQ(hex_of(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of(hmac_sha256(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex_of(hmac_sha256(bytes_of(std::string(131, '\xaa')),
                               bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256Test, DigestsDifferInAnyByte) {
  const Digest digest = sha256({});
  EXPECT_TRUE(same_digest(digest, digest));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(same_digest(digest, other));
  }
}

TEST(TicketTest, ClassesAreDoublingsOfTheTicket) {
  const auto classes_of = [](size_t num_classes) {
    std::vector<size_t> classes;
    for (const uint8_t ticket : {0, 1, 2, 3, 4, 127, 128, 255}) {
      classes.push_back(ticket_class(ticket, num_classes));
    }
    return classes;
  };
  EXPECT_EQ(classes_of(0), (std::vector<size_t>{0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(classes_of(1), (std::vector<size_t>{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(classes_of(3), (std::vector<size_t>{1, 2, 3, 3, 3, 3, 0, 0}));
  EXPECT_EQ(classes_of(4), (std::vector<size_t>{1, 2, 3, 3, 4, 4, 0, 0}));
}

TEST_F(ConfigTest, TcpCongestion) {
  const char* name = "DMLCOMM_TCP_CONGESTION";
  EXPECT_EQ(field_of(name, "cubic", &Config::tcp_congestion), "cubic");
  EXPECT_EQ(field_of(name, "bbr", &Config::tcp_congestion), "bbr");
  expect_illegal(name, {"cubic bbr", "cubic,bbr", "sixteencharacter"});
}

TEST_F(ConfigTest, TcpBufferBytes) {
  const char* name = "DMLCOMM_TCP_BUFFER_BYTES";
  EXPECT_EQ(field_of(name, "0", &Config::tcp_buffer_bytes), 0u);
  EXPECT_EQ(field_of(name, "1073741824", &Config::tcp_buffer_bytes), 1073741824u);
  expect_illegal(name, {"1073741825", "-4", "4MiB"});
}

TEST_F(ConfigTest, TheMessageNamesTheLegalValues) {
  EXPECT_EQ(
      read_with("DMLCOMM_SPIN_US", "x").status().message(),
      "DMLCOMM_SPIN_US=\"x\" is not legal: expected a number from 0 to 1000000 (microseconds)");
  EXPECT_EQ(read_with("DMLCOMM_TRANSPORT", "x").status().message(),
            "DMLCOMM_TRANSPORT=\"x\" is not legal: expected one of auto, tcp, shm, ucx");
}

TEST_F(ConfigTest, TheProcessReadsItsConfigurationOnce) {
  const Config& config = *process_config();
  const uint32_t spin_us = config.spin_us;
  setenv("DMLCOMM_SPIN_US", "77", 1);
  EXPECT_EQ((*process_config()).spin_us, spin_us);
  EXPECT_EQ(&*process_config(), &config);
}

// --- log and text

TEST(StrCat, JoinsTextNumbersAndFlags) {
  EXPECT_EQ(str_cat("rank ", 3, ' ', std::string("of"), ' ', size_t{8}, ' ', -1.5, ' ', true),
            "rank 3 of 8 -1.5 true");
  EXPECT_EQ(str_cat(static_cast<uint8_t>(7), INT64_MIN, UINT64_MAX),
            "7-922337203685477580818446744073709551615");
  EXPECT_EQ(str_cat(), "");
}

TEST(Log, WritesOneLineWithItsPrefix) {
  set_log_level(LogLevel::info);
  set_log_identity(3, "host-b");
  testing::internal::CaptureStderr();
  log_info("peer ", 4, " sent\n\"a\tb\"");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[dmlcomm rank 3 host host-b info] peer 4 sent \"a b\"\n");
}

TEST(Log, LeavesOutWhatIsBelowTheLevel) {
  set_log_level(LogLevel::warning);
  testing::internal::CaptureStderr();
  log_info("not this");
  log_text(LogLevel::debug, "nor this");
  log_line(LogLevel::debug, "nor this");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_TRUE(log_enabled(LogLevel::error));
  EXPECT_FALSE(log_enabled(LogLevel::info));
}

// --- clock

TEST(Deadline, DefaultNeverExpires) {
  const Deadline never;
  EXPECT_TRUE(never.is_never());
  EXPECT_FALSE(never.expired());
  EXPECT_EQ(never.remaining_ns(), INT64_MAX);
  EXPECT_EQ(never.remaining_poll_ms(), -1);
}

TEST(Deadline, ExpiresAtItsTime) {
  const Deadline past = Deadline::after_ns(0);
  EXPECT_TRUE(past.expired());
  EXPECT_EQ(past.remaining_ns(), 0);
  EXPECT_EQ(past.remaining_poll_ms(), 0);
  EXPECT_TRUE(Deadline::after_s(-1).expired());
  const Deadline later = Deadline::after_s(3600);
  EXPECT_FALSE(later.expired());
  EXPECT_GT(later.remaining_ns(), 3000 * kNsPerS);
}

TEST(Deadline, PollTimeIsRoundedUpAndBounded) {
  EXPECT_EQ(Deadline::after_ns(10 * kNsPerS - 1).remaining_poll_ms() > 0, true);
  EXPECT_EQ(Deadline::after_ns(365 * 86400 * kNsPerS).remaining_poll_ms(), INT_MAX);
  // Less than a millisecond is left: 0 would make the caller poll again and again.
  const Deadline soon = Deadline::after_ns(kNsPerMs);
  const int poll_ms = soon.remaining_poll_ms();
  EXPECT_TRUE(poll_ms == 1 || soon.expired());
}

TEST(Deadline, BeyondTheClockIsNever) {
  EXPECT_TRUE(Deadline::after_ns(INT64_MAX).is_never());
  EXPECT_TRUE(Deadline::after_s(1e300).is_never());
  EXPECT_TRUE(Deadline::after_s(std::numeric_limits<double>::infinity()).is_never());
}

// --- descriptors

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFd, ClosesOnceAndMoves) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  {
    UniqueFd first(fds[0]);
    UniqueFd second(std::move(first));
    EXPECT_FALSE(first.valid());
    EXPECT_EQ(second.get(), fds[0]);
    second = UniqueFd(fds[1]);
    EXPECT_FALSE(is_open(fds[0]));
    EXPECT_TRUE(is_open(fds[1]));
  }
  EXPECT_FALSE(is_open(fds[1]));
}

TEST(ForkGuard, AConnectionEndsWithItsOwnerWhileAChildLives) {
  int connection[2];
  int release[2];
  ASSERT_EQ(pipe(connection), 0);
  ASSERT_EQ(pipe(release), 0);
  const UniqueFd reader(connection[0]);
  UniqueFd writer(connection[1]);
  const UniqueFd release_out(release[0]);
  UniqueFd release_in(release[1]);
  drop_in_children(writer.get());
  drop_in_children(release_in.get());
  const int generation = fork_generation();
  const pid_t child = fork();
  char byte;
  if (child == 0) {
    // Lives until the parent lets go, which it would never see with a copy of that descriptor.
    const bool ended = read(release_out.get(), &byte, 1) == 0;
    _exit(ended && fork_generation() == generation + 1 ? 0 : 1);
  }
  writer.reset();
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
  release_in.reset();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(UniqueFd, ReleaseGivesTheDescriptorAway) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const UniqueFd reader(fds[0]);
  int released = -1;
  {
    UniqueFd writer(fds[1]);
    released = writer.release();
  }
  EXPECT_TRUE(is_open(released));
  close(released);
}

TEST(UniqueFd, ClosingKeepsErrno) {
  errno = EPIPE;
  { const UniqueFd closed_already(INT_MAX); }
  EXPECT_EQ(errno, EPIPE);
}

}  // namespace
}  // namespace dmlcomm
