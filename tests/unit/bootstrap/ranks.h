// Ranks as threads: runs one function per rank and collects what they return.
#pragma once
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/job.h"

namespace fsccl::testing {

// The patience of calls that must succeed; only a failing test takes that long.
inline constexpr int64_t kPatienceMs = 20'000;

inline std::string text_of(const Status& status) { return status.ok() ? "success" : status.text(); }

template <class T>
std::vector<T> on_each_rank(int ranks, const std::function<T(int rank)>& run) {
  std::vector<T> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = run(rank); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline Result<std::shared_ptr<Job>> join_by_id(const fsccl_unique_id_t& id, int rank, int ranks,
                                               int64_t timeout_ms = kPatienceMs) {
  JoinRequest request;
  request.unique_id = &id;
  request.rank = rank;
  request.ranks = ranks;
  request.deadline = Deadline::in_ms(timeout_ms);
  return Job::join(request);
}

// Jobs of all ranks, empty where joining failed.
struct Joined {
  std::shared_ptr<Job> job;
  Status status;
};

inline std::vector<Joined> join_all(
    int ranks, const std::function<Result<std::shared_ptr<Job>>(int rank)>& join) {
  return on_each_rank<Joined>(ranks, [&](int rank) {
    Result<std::shared_ptr<Job>> job = join(rank);
    return job.ok() ? Joined{job.take(), {}} : Joined{nullptr, job.take_status()};
  });
}

inline std::vector<Joined> join_all_by_id(int ranks) {
  fsccl_unique_id_t id;
  if (!create_unique_id(&id).ok()) return {};
  return join_all(ranks, [&](int rank) { return join_by_id(id, rank, ranks); });
}

}  // namespace fsccl::testing
