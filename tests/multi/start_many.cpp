// Starts N ranks as processes of this host and prints how long it took until all had joined, process creation included.
//
//   start_many [ranks = 256] [id | environment]
#include <chrono>
#include <cstring>

#include "bootstrap/job.h"
#include "multi/processes.h"

namespace {

using fsccl::testing::Child;
using fsccl::testing::Processes;

constexpr int64_t kTimeoutMs = 60'000;

// From the environment when no id was passed.
int join(const Child& child) {
  fsccl::JoinRequest request;
  fsccl_unique_id_t id;
  if (const char* hex = std::getenv("START_MANY_ID"); hex != nullptr) {
    for (size_t i = 0; i < sizeof(id.bytes); ++i) {
      unsigned value = 0;
      if (std::sscanf(hex + 2 * i, "%2x", &value) != 1) return 3;
      id.bytes[i] = static_cast<unsigned char>(value);
    }
    request.unique_id = &id;
    request.rank = child.rank;
    request.ranks = child.ranks;
  }
  request.deadline = fsccl::Deadline::in_ms(kTimeoutMs);
  const auto job = fsccl::Job::join(request);
  if (!job.ok()) {
    std::printf("%s\n", job.status().text().c_str());
    return 1;
  }
  return 0;
}

std::string hexadecimal(const fsccl_unique_id_t& id) {
  std::string text;
  char pair[3];
  for (const unsigned char byte : id.bytes) {
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = fsccl::testing::run_role(argc, argv, {{"join", join}})) return *code;
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 256;
  const bool by_id = argc <= 2 || std::strcmp(argv[2], "id") == 0;
  const auto begin = std::chrono::steady_clock::now();
  fsccl::testing::Variables variables;
  if (by_id) {
    fsccl_unique_id_t id;
    if (const fsccl::Status status = fsccl::create_unique_id(&id); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.text().c_str());
      return 1;
    }
    variables = {{"START_MANY_ID", hexadecimal(id)}};
  }
  Processes processes;
  for (int rank = 0; rank < ranks; ++rank) {
    fsccl::testing::Variables own = variables;
    if (!by_id) {
      own = {{"RANK", std::to_string(rank)},
             {"WORLD_SIZE", std::to_string(ranks)},
             {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
             {"MASTER_ADDR", "127.0.0.1"},
             {"MASTER_PORT", std::to_string(20000 + getpid() % 20000)}};
    }
    processes.start("join", rank, ranks, own);
  }
  const std::chrono::duration<double> started = std::chrono::steady_clock::now() - begin;
  const bool good = processes.finish(kTimeoutMs);
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  std::printf("%d ranks %s: %.2f s (processes created after %.2f s)\n", ranks, good ? "joined and left" : "FAILED", all.count(),
              started.count());
  if (!good) std::printf("%s", processes.report().c_str());
  return good ? 0 : 1;
}
