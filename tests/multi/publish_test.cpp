// Tests weights for processes outside of the job: ranks publish, and other processes subscribe.
// Whatever happens to a subscriber, another one always has, bit for bit, a version of all ranks.
// The weights of version V follow from V alone, so each process knows what they must be.
#include <arpa/inet.h>
#include <fsccl/publish.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "fsccl/redistribute.h"
#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::publish_tests {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kLimitMs = 150'000;

int64_t number_of(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}
std::string text_of(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

void need(const char* what, fsccl_status_t status) {
  if (!good(what, status)) exit(1);
}

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

struct Weight {
  const char* name;
  std::vector<int64_t> shape;
  fsccl_dtype_t dtype;
  int tied_to;  // index in the same unit, or -1
};
// Two units of 5 and 3 parameters.
const std::vector<Weight> kWeights = {{"embedding", {1000, 150}, FSCCL_BFLOAT16, -1},
                                      {"weight", {257, 520}, FSCCL_BFLOAT16, -1},
                                      {"bias", {7}, FSCCL_BFLOAT16, -1},
                                      {"scale", {}, FSCCL_BFLOAT16, -1},
                                      {"head", {1000, 150}, FSCCL_BFLOAT16, 0},
                                      {"master", {333, 31}, FSCCL_FLOAT32, -1},
                                      {"bytes", {5, 3}, FSCCL_UINT8, -1},
                                      {"count", {3}, FSCCL_INT64, -1}};
const std::vector<size_t> kUnits = {5, 3};

size_t elements_of(const Weight& weight) {
  return static_cast<size_t>(
      std::accumulate(weight.shape.begin(), weight.shape.end(), int64_t{1}, std::multiplies<>()));
}

// All parameters of a version, whole. Each step changes one 16-bit word in eight by some units in
// the last place, and gives a few words arbitrary bits: NaNs, infinities, denormals.
class Model {
 public:
  // If `exact`, fp32 parameters use all of their bits; otherwise they are bf16 numbers.
  explicit Model(bool exact) : exact_(exact) {
    for (const Weight& weight : kWeights)
      bytes_.emplace_back(weight.tied_to < 0 ? elements_of(weight) * fsccl_dtype_size(weight.dtype)
                                             : 0);
    for (size_t i = 0; i < bytes_.size(); i++) change(i, 0, true);
  }
  void advance_to(uint64_t version) {
    while (version_ < version) {
      version_++;
      for (size_t i = 0; i < bytes_.size(); i++) change(i, version_, false);
    }
  }
  uint8_t* at(size_t param, uint64_t element) {
    if (kWeights[param].tied_to >= 0) param = static_cast<size_t>(kWeights[param].tied_to);
    return bytes_[param].data() + element * fsccl_dtype_size(kWeights[param].dtype);
  }

 private:
  void change(size_t param, uint64_t version, bool all) {
    std::vector<uint8_t>& bytes = bytes_[param];
    const bool upper_only = kWeights[param].dtype == FSCCL_FLOAT32 && !exact_;
    for (size_t word = upper_only ? 1 : 0; 2 * word < bytes.size(); word += upper_only ? 2 : 1) {
      const uint64_t random = mix(mix(version * 1'000'003 + param) + word);
      if (!all && random % 8) continue;
      uint16_t value = 0;
      const size_t size = std::min<size_t>(2, bytes.size() - 2 * word);
      std::memcpy(&value, &bytes[2 * word], size);
      if (all || random >> 8 & 0xfff)
        value = all ? static_cast<uint16_t>(0x3c00 + (random >> 40) % 0x400)
                    : static_cast<uint16_t>(value + (random >> 40) % 7 - 3);
      else
        value = static_cast<uint16_t>(random >> 48);
      std::memcpy(&bytes[2 * word], &value, size);
    }
  }

  bool exact_;
  uint64_t version_ = 0;
  std::vector<std::vector<uint8_t>> bytes_;
};

std::vector<fsccl_param_t> params() {
  std::vector<fsccl_param_t> all;
  for (const Weight& weight : kWeights) {
    all.push_back(FSCCL_PARAM_INIT);
    all.back().name = weight.name;
    all.back().dims = static_cast<int>(weight.shape.size());
    std::copy(weight.shape.begin(), weight.shape.end(), all.back().shape);
    all.back().dtype = weight.dtype;
    all.back().tied_to = weight.tied_to;
  }
  return all;
}

// Returns the piece of each parameter that a rank has, units one after the other.
std::vector<fsccl_piece_t> pieces(fsccl_layout_t layout, const std::vector<fsccl_param_t>& all,
                                  const std::vector<size_t>& units, int ranks, int rank) {
  std::vector<fsccl_piece_t> made(all.size());
  size_t first = 0;
  for (const size_t count : units) {
    need("layout", fsccl_layout_plan(layout, all.data() + first, count, ranks, rank,
                                     made.data() + first, nullptr));
    first += count;
  }
  return made;
}

fsccl_layout_t layout_of(const char* variable) {
  return static_cast<fsccl_layout_t>(number_of(variable, FSCCL_LAYOUT_PER_PARAM));
}

void write_ticket(const fsccl_unique_id_t& ticket) {
  const std::string path = text_of("TICKET"), part = path + ".part";
  std::ofstream(part, std::ios::binary)
      .write(reinterpret_cast<const char*>(ticket.bytes), sizeof ticket.bytes);
  chmod(part.c_str(), 0600);
  rename(part.c_str(), path.c_str());
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void tell_report(fsccl_publisher_t publisher) {
  fsccl_publish_report_t report = FSCCL_PUBLISH_REPORT_INIT;
  need("report", fsccl_publisher_report(publisher, &report));
  printf(
      "version %llu words %llu held %llu peak %llu limit %llu records %llu of %llu whole %llu "
      "given_up %llu strangers %llu subscribers %d port %d\n",
      (unsigned long long)report.version, (unsigned long long)report.words_bytes,
      (unsigned long long)report.held_bytes, (unsigned long long)report.held_peak_bytes,
      (unsigned long long)report.limit_bytes, (unsigned long long)report.records,
      (unsigned long long)report.records_bytes, (unsigned long long)report.whole_copies,
      (unsigned long long)report.given_up, (unsigned long long)report.strangers, report.subscribers,
      report.port);
  if (report.held_peak_bytes > report.limit_bytes) {
    puts("more is held than the limit");
    exit(1);
  }
}

// Publishes STEPS versions, or publishes until the file TICKET.stop exists.
int train(const Child& child) {
  fsccl_comm_t comm = nullptr;
  need("comm", fsccl_comm_create(nullptr, &comm));
  const bool exact = number_of("EXACT", 0);
  Model model(exact);
  std::vector<fsccl_param_t> all = params();
  const auto mine = pieces(layout_of("LAYOUT"), all, kUnits, child.ranks, child.rank);
  const auto shards = [&] {
    std::vector<const void*> made;
    for (size_t i = 0; i < all.size(); i++) made.push_back(model.at(i, mine[i].begin));
    return made;
  };
  fsccl_publish_config_t config = FSCCL_PUBLISH_CONFIG_INIT;
  config.params = all.data();
  config.count = all.size();
  config.unit_params = kUnits.data();
  config.units = kUnits.size();
  config.layout = layout_of("LAYOUT");
  config.limit_bytes = static_cast<uint64_t>(number_of("LIMIT", 0));
  config.linger_ms = number_of("LINGER_MS", 20'000);
  if (number_of("ODD", -1) == child.rank) all[1].name = "weights";
  if (exact) config.wire_dtype = FSCCL_PUBLISH_EXACT;
  if (number_of("NIBBLES", 0)) config.flags = FSCCL_CODEC_NIBBLES_ONLY;
  fsccl_publisher_t publisher = nullptr;
  need("publisher", fsccl_publisher_create(&config, comm, &publisher));
  fsccl_unique_id_t ticket;
  need("ticket", fsccl_publisher_ticket(publisher, &ticket));
  if (child.rank == 0) write_ticket(ticket);
  tell_report(publisher);
  const auto steps = static_cast<uint64_t>(number_of("STEPS", 0));
  const auto fails_every = static_cast<uint64_t>(number_of("FAILS_EVERY", 0));
  const std::string stop = text_of("TICKET") + ".stop";
  // Ranks go on together, as in training, so that they stop after the same version.
  for (uint64_t step = 1; steps ? step <= steps : true; step++) {
    int64_t ends = !steps && exists(stop);
    need("all reduce",
         fsccl_all_reduce(&ends, &ends, 1, FSCCL_INT64, FSCCL_MAX, comm, nullptr, nullptr));
    if (ends) break;
    model.advance_to(step);
    if (child.rank == 1 && fails_every && step % fails_every == 0) {
      const std::vector<const void*> none(all.size());
      if (fsccl_publish(publisher, none.data(), 10 * step) != FSCCL_ERR_INVALID_ARGUMENT) return 1;
    } else {
      need("publish", fsccl_publish(publisher, shards().data(), 10 * step));
    }
    usleep(static_cast<useconds_t>(number_of("PACE_US", 0)));
    if (step == static_cast<uint64_t>(number_of("TELL_AT", 0))) puts("there");
  }
  tell_report(publisher);
  need("publisher destroy", fsccl_publisher_destroy(publisher));
  need("comm destroy", fsccl_comm_destroy(comm));
  puts("trained");
  return 0;
}

// Rank 0 holds the only row of a parameter that no memory can hold, and the other ranks hold
// nothing. All are told, and their communicator goes on.
int starve(const Child&) {
  fsccl_comm_t comm = nullptr;
  need("comm", fsccl_comm_create(nullptr, &comm));
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.name = "w";
  param.dims = 2;
  param.shape[0] = 1;
  param.shape[1] = int64_t{1} << 46;
  param.dtype = FSCCL_BFLOAT16;
  fsccl_publish_config_t config = FSCCL_PUBLISH_CONFIG_INIT;
  config.params = &param;
  config.count = 1;
  config.layout = FSCCL_LAYOUT_PER_PARAM;
  fsccl_publisher_t publisher = nullptr;
  const fsccl_status_t status = fsccl_publisher_create(&config, comm, &publisher);
  printf("%s: %s\n", fsccl_status_string(status), last_error().text);
  int64_t one = 1;
  need("all reduce",
       fsccl_all_reduce(&one, &one, 1, FSCCL_INT64, FSCCL_SUM, comm, nullptr, nullptr));
  need("comm destroy", fsccl_comm_destroy(comm));
  return 0;
}

bool is_nan(const uint8_t* bf16) {
  uint16_t bits = 0;
  std::memcpy(&bits, bf16, sizeof bits);
  return (bits & 0x7fff) > 0x7f80;
}

// A subscriber's memory: its pieces of all parameters but `bytes`, which it does not want.
class Copy {
 public:
  Copy(fsccl_layout_t layout, int ranks, int rank, bool exact) {
    for (fsccl_param_t param : params()) {
      if (std::string(param.name) == "bytes") continue;
      // The subscriber ties no parameter, unlike the publication.
      param.tied_to = -1;
      if (!exact && param.dtype == FSCCL_FLOAT32) param.dtype = FSCCL_BFLOAT16;
      wanted_.push_back(param);
    }
    mine_ = pieces(layout, wanted_, {wanted_.size()}, ranks, rank);
    for (size_t i = 0; i < wanted_.size(); i++) {
      memory_.emplace_back(mine_[i].count * fsccl_dtype_size(wanted_[i].dtype));
      wanted_[i].shard = memory_.back().data();
    }
  }
  std::vector<fsccl_param_t>& wanted() { return wanted_; }
  // Returns the name of the first parameter that differs from the model's.
  std::string differs_from(Model& model) const {
    for (size_t i = 0; i < wanted_.size(); i++) {
      size_t there = 0;
      while (std::string(kWeights[there].name) != wanted_[i].name) there++;
      const size_t size = fsccl_dtype_size(wanted_[i].dtype),
                   stored = fsccl_dtype_size(kWeights[there].dtype);
      for (uint64_t at = 0; at < mine_[i].count; at++) {
        const uint8_t *have = memory_[i].data() + at * size,
                      *expected = model.at(there, mine_[i].begin + at) + (stored - size);
        if (std::memcmp(have, expected, size) == 0) continue;
        // A conversion makes a NaN a quiet one.
        if (size != stored && is_nan(have) && is_nan(expected)) continue;
        return std::string(wanted_[i].name) + " at " + std::to_string(mine_[i].begin + at);
      }
    }
    return "";
  }

 private:
  std::vector<fsccl_param_t> wanted_;
  std::vector<fsccl_piece_t> mine_;
  std::vector<std::vector<uint8_t>> memory_;
};

fsccl_status_t subscribe(Copy& copy, const fsccl_sharding_t& sharding, const char* address,
                         fsccl_subscriber_t* subscriber) {
  fsccl_subscribe_config_t config = FSCCL_SUBSCRIBE_CONFIG_INIT;
  fsccl_unique_id_t ticket{};
  const std::string path = text_of("TICKET");
  while (!exists(path)) usleep(1000);
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(ticket.bytes), sizeof ticket.bytes);
  config.ticket = address ? nullptr : &ticket;
  config.address = address;
  config.params = copy.wanted().data();
  config.count = copy.wanted().size();
  config.sharding = sharding;
  config.timeout_ms = number_of("READER_TIMEOUT_MS", 20'000);
  config.name = "reader";
  return fsccl_subscribe(&config, subscriber);
}

// Takes every version until the publication ends, and compares it.
int read_all(const Child&) {
  const bool exact = number_of("EXACT", 0);
  const fsccl_sharding_t sharding{layout_of("READER_LAYOUT"),
                                  static_cast<int>(number_of("READER_RANKS", 1)),
                                  static_cast<int>(number_of("READER_RANK", 0))};
  Copy copy(sharding.layout, sharding.ranks, sharding.rank, exact);
  Model model(exact);
  fsccl_subscriber_t subscriber = nullptr;
  const std::string address = text_of("ADDRESS");
  if (!good("subscribe",
            subscribe(copy, sharding, address.empty() ? nullptr : address.c_str(), &subscriber)))
    return 2;
  puts("subscribed");
  int versions = 0;
  fsccl_publication_t got = FSCCL_PUBLICATION_INIT;
  fsccl_status_t status = FSCCL_OK;
  for (;;) {
    status = fsccl_subscriber_update(subscriber, -1, &got);
    if (status == FSCCL_IN_PROGRESS) continue;
    if (status != FSCCL_OK) break;
    if (got.label != 10 * got.version) printf("label %llu\n", (unsigned long long)got.label);
    model.advance_to(got.version);
    const std::string differs = copy.differs_from(model);
    if (!differs.empty()) {
      printf("version %llu differs: %s\n", (unsigned long long)got.version, differs.c_str());
      return 3;
    }
    if (versions++ == 0) puts("first");
    usleep(static_cast<useconds_t>(number_of("READER_PACE_US", 0)));
  }
  good("update", status);
  fsccl_subscribe_report_t report = FSCCL_SUBSCRIBE_REPORT_INIT;
  need("report", fsccl_subscriber_report(subscriber, &report));
  printf("last %llu seen %d whole %llu received %llu of %llu a version damaged %llu again %llu\n",
         (unsigned long long)got.version, versions, (unsigned long long)report.whole_copies,
         (unsigned long long)report.received_bytes, (unsigned long long)report.words_bytes,
         (unsigned long long)report.damaged, (unsigned long long)report.reconnections);
  need("subscriber destroy", fsccl_subscriber_destroy(subscriber));
  return 0;
}

class Publishing : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/fsccl_publish_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    for (const char* name : {"/ticket", "/ticket.stop", "/ticket.part", "/secret", "/other"})
      unlink((folder_ + name).c_str());
    rmdir(folder_.c_str());
  }
  Variables common() const { return {{"TICKET", folder_ + "/ticket"}}; }
  void start_ranks(int ranks, const Variables& more, const char* role = "train_and_publish") {
    for (int rank = 0; rank < ranks; rank++)
      processes_.start(role, rank, ranks, with(with(job(rank, ranks, kPort), common()), more));
  }
  int start_reader(const Variables& more = {}) {
    return processes_.start("read", 0, 1, with(common(), more));
  }
  void stop() { std::ofstream(folder_ + "/ticket.stop") << "stop"; }
  std::string secret(const char* name, char letter) const {
    const std::string path = folder_ + name;
    std::ofstream(path) << std::string(32, letter);
    chmod(path.c_str(), 0600);
    return path;
  }
  std::string number_after(int process, const std::string& word) const {
    const std::string& text = processes_.output(process);
    const size_t at = text.rfind(word + " ");
    return at == std::string::npos
               ? ""
               : text.substr(at + word.size() + 1, text.find_first_of(" \n", at + word.size() + 1) -
                                                       at - word.size() - 1);
  }
  uint64_t last_number(int process, const std::string& word) const {
    const std::string text = number_after(process, word);
    return text.empty() ? 0 : std::stoull(text);
  }

  static constexpr int kPort = 29'731;
  std::string folder_;
  Processes processes_;
};

TEST_F(Publishing, TwoSubscribersHaveEveryBitOfAThousandSteps) {
  start_ranks(2, {{"STEPS", "1000"}, {"PACE_US", "1500"}});
  const int whole = start_reader();
  const int half = start_reader({{"READER_LAYOUT", std::to_string(FSCCL_LAYOUT_FLAT)},
                                 {"READER_RANKS", "2"},
                                 {"READER_RANK", "1"}});
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  for (const int reader : {whole, half}) {
    EXPECT_EQ(last_number(reader, "last"), 1000u) << processes_.report();
    // A loaded machine shows few of the versions to a reader, which takes the newest one each time.
    EXPECT_GT(last_number(reader, "seen"), 4u) << processes_.report();
    EXPECT_EQ(last_number(reader, "damaged"), 0u) << processes_.report();
  }
}

class Forms : public Publishing, public ::testing::WithParamInterface<Variables> {};
TEST_P(Forms, AreTheSameBits) {
  start_ranks(3, with({{"STEPS", "60"}, {"PACE_US", "5000"}}, GetParam()));
  const int reader = start_reader(GetParam());
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_EQ(last_number(reader, "last"), 60u) << processes_.report();
}
INSTANTIATE_TEST_SUITE_P(All, Forms,
                         ::testing::Values(Variables{{"LAYOUT", std::to_string(FSCCL_LAYOUT_FLAT)}},
                                           Variables{
                                               {"LAYOUT", std::to_string(FSCCL_LAYOUT_RAGGED)}},
                                           Variables{{"EXACT", "1"}}, Variables{{"NIBBLES", "1"}}));

TEST_F(Publishing, ReachesAnotherHost) {
  start_ranks(2, {{"STEPS", "60"}, {"PACE_US", "5000"}});
  const int reader = start_reader({{"FSCCL_HOST_ID", "elsewhere"}});  // no Unix socket leads there
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_EQ(last_number(reader, "last"), 60u) << processes_.report();
}

TEST_F(Publishing, ALateSubscriberGetsAWholeCopyAndThenRecords) {
  start_ranks(2, {{"TELL_AT", "40"}, {"PACE_US", "3000"}});
  ASSERT_TRUE(processes_.wait_for_output(0, "there", kLimitMs)) << processes_.report();
  const int reader = start_reader();
  ASSERT_TRUE(processes_.wait_for_output(reader, "first", kLimitMs)) << processes_.report();
  usleep(300'000);
  stop();
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_GE(last_number(reader, "whole"), 2u) << processes_.report();  // a copy from each rank
  EXPECT_EQ(last_number(reader, "last"), last_number(0, "version")) << processes_.report();
}

// A rank's failed call counts, so the versions of the ranks stay together: each one that the
// subscriber sees is of one step, or it would differ from what the step makes.
TEST_F(Publishing, AFailedCallLeavesOutItsVersionAlone) {
  start_ranks(2, {{"STEPS", "299"}, {"FAILS_EVERY", "4"}, {"PACE_US", "1000"}});
  const int reader = start_reader();
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_GT(last_number(reader, "seen"), 1u) << processes_.report();
  EXPECT_EQ(last_number(reader, "last"), 299u) << processes_.report();
}

// While a subscriber is stopped, it takes nothing, and the ranks hold no more than their limit (a
// rank that holds more ends). Then the subscriber gets a whole copy.
TEST_F(Publishing, ASlowSubscriberCostsALimitedAmountOfMemory) {
  start_ranks(2, {{"PACE_US", "2000"}, {"LIMIT", "400000"}});
  const int slow = start_reader(), fast = start_reader();
  ASSERT_TRUE(processes_.wait_for_output(slow, "first", kLimitMs)) << processes_.report();
  ASSERT_TRUE(processes_.wait_for_output(fast, "first", kLimitMs)) << processes_.report();
  processes_.kill(slow, SIGSTOP);
  usleep(2'000'000);
  processes_.kill(slow, SIGCONT);
  usleep(500'000);
  stop();
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  EXPECT_GE(last_number(slow, "whole"), 4u) << processes_.report();
  EXPECT_GT(last_number(0, "version"), last_number(slow, "seen")) << processes_.report();
  EXPECT_EQ(last_number(slow, "last"), last_number(0, "version")) << processes_.report();
  EXPECT_EQ(last_number(fast, "last"), last_number(0, "version")) << processes_.report();
}

TEST_F(Publishing, ASubscriberMayDie) {
  start_ranks(2, {{"PACE_US", "2000"}});
  const int dies = start_reader(), lives = start_reader();
  ASSERT_TRUE(processes_.wait_for_output(dies, "first", kLimitMs)) << processes_.report();
  processes_.kill(dies, SIGKILL);
  ASSERT_TRUE(processes_.wait_for_output(lives, "first", kLimitMs)) << processes_.report();
  usleep(200'000);
  stop();
  processes_.finish(kLimitMs);
  EXPECT_EQ(processes_.exit_code(dies), 128 + SIGKILL);
  for (const int process : {0, 1, lives})
    EXPECT_EQ(processes_.exit_code(process), 0) << processes_.report();
  EXPECT_EQ(last_number(lives, "last"), last_number(0, "version")) << processes_.report();
}

TEST_F(Publishing, ADeadRankIsNamed) {
  start_ranks(2, {{"PACE_US", "2000"}});
  const int reader = start_reader();
  ASSERT_TRUE(processes_.wait_for_output(reader, "first", kLimitMs)) << processes_.report();
  processes_.kill(1, SIGKILL);
  ASSERT_TRUE(processes_.wait_for_output(reader, "last", 20'000)) << processes_.report();
  processes_.finish(kLimitMs);
  EXPECT_EQ(processes_.exit_code(reader), 0) << processes_.report();
  EXPECT_THAT(processes_.output(reader),
              AnyOf(HasSubstr("rank 1 of the publication has ended without a word"),
                    // Rank 0 fails because rank 1 died, and its process ends, too. The subscriber
                    // may see that first.
                    HasSubstr("rank 0 of the publication has ended without a word")));
}

TEST_F(Publishing, WhoHasTheSecretNeedsAnAddressOnly) {
  const std::string right = secret("/secret", 's'), wrong = secret("/other", 'o');
  start_ranks(2, {{"PACE_US", "2000"}, {"FSCCL_JOB_SECRET_FILE", right}});
  ASSERT_TRUE(processes_.wait_for_output(0, "port", kLimitMs)) << processes_.report();
  const std::string address = "127.0.0.1:" + number_after(0, "port");
  const int friendly = start_reader({{"FSCCL_JOB_SECRET_FILE", right}, {"ADDRESS", address}});
  const int stranger = start_reader(
      {{"FSCCL_JOB_SECRET_FILE", wrong}, {"ADDRESS", address}, {"READER_TIMEOUT_MS", "1000"}});
  ASSERT_TRUE(processes_.wait_for_output(friendly, "first", kLimitMs)) << processes_.report();
  ASSERT_TRUE(processes_.wait_for_output(stranger, "subscribe", kLimitMs)) << processes_.report();
  // Strangers send bytes of another protocol, and none at all.
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\xff'), std::string()}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(last_number(0, "port")));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  usleep(200'000);
  stop();
  processes_.finish(kLimitMs);
  EXPECT_EQ(processes_.exit_code(stranger), 2) << processes_.report();
  EXPECT_THAT(processes_.output(stranger), Not(HasSubstr("subscribed")));
  EXPECT_THAT(processes_.output(stranger), HasSubstr("or another secret"));
  EXPECT_EQ(processes_.exit_code(friendly), 0) << processes_.report();
  EXPECT_EQ(last_number(friendly, "last"), last_number(0, "version")) << processes_.report();
  EXPECT_GE(last_number(0, "strangers"), 3u) << processes_.report();
}

// The rank's process is stopped, so its connections stay open.
TEST_F(Publishing, ASilentRankIsNamedAfterTheTimeout) {
  start_ranks(1, {{"PACE_US", "2000"}});
  const int reader = start_reader({{"READER_TIMEOUT_MS", "3000"}});
  ASSERT_TRUE(processes_.wait_for_output(reader, "first", kLimitMs)) << processes_.report();
  processes_.kill(0, SIGSTOP);
  ASSERT_TRUE(processes_.wait_for_output(reader, "last", 20'000)) << processes_.report();
  processes_.kill(0, SIGKILL);
  processes_.finish(kLimitMs);
  EXPECT_THAT(processes_.output(reader),
              HasSubstr("rank 0 of the publication has been silent for"));
}

TEST_F(Publishing, RanksThatPublishOtherParametersAreTold) {
  start_ranks(3, {{"STEPS", "1"}, {"ODD", "1"}});
  processes_.finish(kLimitMs);
  for (const int rank : {0, 1, 2})
    EXPECT_THAT(processes_.output(rank), HasSubstr("publishes other parameters than rank"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end such a program
TEST_F(Publishing, ARankWithoutMemoryIsToldToAll) {
  start_ranks(2, {}, "starve");
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  for (const int rank : {0, 1})
    EXPECT_THAT(processes_.output(rank), HasSubstr("no memory for the words that it publishes"));
}
#endif

TEST(PublishCalls, MistakesAreNamed) {
  fsccl_unique_id_t id;
  ASSERT_EQ(fsccl_unique_id_create(&id), FSCCL_OK);
  fsccl_comm_config_t alone = FSCCL_COMM_CONFIG_INIT;
  alone.unique_id = &id;
  alone.rank = 0;
  alone.ranks = 1;
  fsccl_comm_t comm = nullptr;
  ASSERT_EQ(fsccl_comm_create(&alone, &comm), FSCCL_OK);
  std::vector<uint16_t> weights(20), got(20);
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.name = "w";
  param.dims = 1;
  param.shape[0] = 20;
  param.dtype = FSCCL_BFLOAT16;
  fsccl_publish_config_t config = FSCCL_PUBLISH_CONFIG_INIT;
  config.params = &param;
  config.count = 1;
  fsccl_publisher_t publisher = nullptr;
  const auto refused = [&](const char* text) {
    EXPECT_LT(fsccl_publisher_create(&config, comm, &publisher), 0) << text;
    EXPECT_THAT(last_error().text, HasSubstr(text));
  };
  config.wire_dtype = FSCCL_INT8;
  refused("wire_dtype is 0");
  config.wire_dtype = FSCCL_BFLOAT16;
  const size_t units[] = {2};
  config.unit_params = units;
  config.units = 1;
  refused("unit 0 has 2 of 1 parameters");
  config.unit_params = nullptr;
  config.flags = 8;
  refused("flags are 0x8");
  config.flags = 0;
  param.dims = 9;
  refused("dims is 9");
  param.dims = 1;
  const std::string long_name(5000, 'w');
  param.name = long_name.c_str();
  refused("parameter 0: its name has 5000 bytes: give one of at most 4096");
  param.name = "w";
  ASSERT_EQ(fsccl_publisher_create(&config, comm, &publisher), FSCCL_OK);
  EXPECT_EQ(fsccl_publish(publisher, nullptr, 0), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_THAT(last_error().text, HasSubstr("'w'): its shard is NULL"));
  const void* shards[] = {weights.data()};
  ASSERT_EQ(fsccl_publish(publisher, shards, 6), FSCCL_OK);
  const void* none[] = {nullptr};
  EXPECT_EQ(fsccl_publish(publisher, none, 7), FSCCL_ERR_INVALID_ARGUMENT);
  ASSERT_EQ(fsccl_publish(publisher, nullptr, 7), FSCCL_OK) << "the shards of 6 are still there";
  EXPECT_EQ(fsccl_publish(reinterpret_cast<fsccl_publisher_t>(comm), nullptr, 0),
            FSCCL_ERR_INVALID_HANDLE);

  fsccl_unique_id_t ticket;
  ASSERT_EQ(fsccl_publisher_ticket(publisher, &ticket), FSCCL_OK);
  fsccl_subscribe_config_t wanted = FSCCL_SUBSCRIBE_CONFIG_INIT;
  wanted.ticket = &ticket;
  wanted.params = &param;
  wanted.count = 1;
  fsccl_subscriber_t subscriber = nullptr;
  param.name = "v";
  EXPECT_EQ(fsccl_subscribe(&wanted, &subscriber), FSCCL_ERR_MISMATCH);
  EXPECT_THAT(last_error().text, HasSubstr("'v' is not published"));
  param.name = "w";
  param.shard = got.data();
  fsccl_unique_id_t forged = ticket;
  forged.bytes[20] ^= 1;
  wanted.ticket = &forged;
  EXPECT_EQ(fsccl_subscribe(&wanted, &subscriber), FSCCL_ERR_INVALID_ARGUMENT);
  wanted.ticket = nullptr;
  wanted.address = "localhost:port";
  EXPECT_EQ(fsccl_subscribe(&wanted, &subscriber), FSCCL_ERR_INVALID_ARGUMENT);
  wanted.ticket = &ticket;
  ASSERT_EQ(fsccl_subscribe(&wanted, &subscriber), FSCCL_OK);
  fsccl_publication_t version = FSCCL_PUBLICATION_INIT;
  ASSERT_EQ(fsccl_subscriber_update(subscriber, -1, &version), FSCCL_OK);
  EXPECT_EQ(version.label, 7u);
  EXPECT_EQ(fsccl_subscriber_update(subscriber, 0, &version), FSCCL_IN_PROGRESS);
  // The subscriber and the communicator may be destroyed before the publisher.
  ASSERT_EQ(fsccl_subscriber_destroy(subscriber), FSCCL_OK);
  EXPECT_EQ(fsccl_subscriber_update(subscriber, 0, &version), FSCCL_ERR_INVALID_HANDLE);
  ASSERT_EQ(fsccl_comm_destroy(comm), FSCCL_OK);  // the publication goes on without it
  ASSERT_EQ(fsccl_publish(publisher, shards, 8), FSCCL_OK);
  ASSERT_EQ(fsccl_publisher_destroy(publisher), FSCCL_OK);
  EXPECT_EQ(fsccl_publish(publisher, shards, 9), FSCCL_ERR_INVALID_HANDLE);
}

TEST_F(Publishing, NobodyPublishesThereAnyMore) {
  start_ranks(1, {{"STEPS", "1"}, {"LINGER_MS", "0"}});
  ASSERT_TRUE(processes_.finish(kLimitMs)) << processes_.report();
  const int reader = start_reader();
  processes_.finish(kLimitMs);
  EXPECT_EQ(processes_.exit_code(reader), 2) << processes_.report();
  EXPECT_THAT(processes_.output(reader), HasSubstr("nobody publishes there any more"));
}

const AddRoles roles{{"train_and_publish", train}, {"starve", starve}, {"read", read_all}};

}  // namespace
}  // namespace fsccl::testing::publish_tests
