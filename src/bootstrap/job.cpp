#include "bootstrap/job.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/descriptors.h"
#include "bootstrap/environment.h"
#include "bootstrap/join.h"
#include "bootstrap/member_info.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/tree_steps.h"
#include "bootstrap/unique_id.h"
#include "wire/told.h"

namespace fsccl {

namespace {

// Descriptors of the service thread, the listeners, the connections to join the job, and the memory
// of a communicator.
constexpr int kOwnDescriptors = 12;
constexpr int kMeetingDescriptors = 5;  // the listeners and visitors of the rendezvous

Status check_rank(int rank, int ranks) {
  if (ranks < 1 || ranks > kMaxRanks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "a communicator of {} ranks: the number must be from 1 to {}", ranks, kMaxRanks);
  if (rank < 0 || rank >= ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} is outside 0 .. {}", rank, ranks - 1);
  return success();
}

// If `problem` is an error, this rank cannot join whatever the id says, and the others are told.
Result<std::shared_ptr<Job>> join_by_id(const fsccl_unique_id_t& bytes, int rank, int ranks,
                                        Status problem, Deadline deadline) {
  FSCCL_ASSIGN(const UniqueId id, decode_unique_id(bytes));
  const ConfigRef settings = config();
  FSCCL_ASSIGN(const RendezvousPoint place,
               meeting_place(id, host_number(settings->host_id), settings->bootstrap_tcp,
                             settings->host_id));
  if (problem.ok()) problem = check_rank(rank, ranks);
  if (problem.ok()) problem = check_descriptors(descriptors_to_join(ranks, false), "join a job");
  if (!problem.ok()) return report_failure(place, rank, ranks, std::move(problem), deadline);
  return join_at(place, rank, ranks, deadline);
}

Result<std::shared_ptr<Job>> join_by_environment(Deadline deadline) {
  static std::atomic<uint64_t> instances{0};
  const uint64_t instance = instances++;
  const ConfigRef settings = config();
  FSCCL_ASSIGN(
      const LaunchEnvironment launch,
      read_environment([](const char* name) { return std::getenv(name); }, settings->launcher));
  if (launch.ranks == 1) return join_alone(settings->host_id);
  Status problem =
      check_descriptors(descriptors_to_join(launch.ranks, launch.rank == 0), "join a job");
  FSCCL_ASSIGN(const RendezvousPoint place,
               meet_from_environment(launch, *settings, instance, deadline, std::move(problem)));
  return join_at(place, launch.rank, launch.ranks, deadline);
}

// The entry that each rank passes through the caller's all-gather. Every rank makes the same single
// call with the same form, whatever fails before.
struct CallbackEntry {
  uint32_t magic;
  int32_t rank, ranks;
  int32_t code;          // why this rank cannot join, or FSCCL_OK
  fsccl_unique_id_t id;  // rank 0's counts
  char text[240];
};
constexpr uint32_t kCallbackMagic = 0x42435346;  // "FSCB"

Status check_entries(const std::vector<CallbackEntry>& entries) {
  const auto ranks = static_cast<int32_t>(entries.size());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const CallbackEntry& entry = entries[static_cast<size_t>(rank)];
    if (entry.magic != kCallbackMagic)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the caller's all-gather gave something else than what rank {} put in; it must "
                  "gather bytes, in rank order",
                  rank);
    if (entry.code != FSCCL_OK) {
      return to_status(
          {told_code(entry.code), rank,
           fmt::format("rank {}: {}", rank, told_text({entry.text, sizeof entry.text}))});
    }
    if (entry.rank != rank || entry.ranks != ranks)
      return fail(FSCCL_ERR_MISMATCH,
                  "the caller's all-gather gave at place {} of {} what comes from rank {} of {}",
                  rank, ranks, entry.rank, entry.ranks)
          .with_peer(-1, rank);
  }
  return success();
}

Result<std::shared_ptr<Job>> join_by_callback(const JoinRequest& request, Status problem) {
  if (request.ranks < 1 || request.ranks > kMaxRanks)
    return check_rank(request.rank, request.ranks);  // no room can be made for the answer
  CallbackEntry mine = {kCallbackMagic, request.rank, request.ranks, FSCCL_OK, {}, {}};
  if (problem.ok()) problem = check_rank(request.rank, request.ranks);
  if (problem.ok() && request.rank == 0) problem = create_unique_id(&mine.id);
  if (!problem.ok()) {
    mine.code = problem.code();
    std::strncpy(mine.text, problem.text().c_str(), sizeof(mine.text) - 1);
  }
  std::vector<CallbackEntry> all(static_cast<size_t>(request.ranks));
  const int answer =
      request.all_gather(request.all_gather_context, &mine, all.data(), sizeof(mine));
  Status status = std::move(problem);
  if (status.ok() && answer != 0)
    status = fail(FSCCL_ERR_LINK, "the caller's all-gather failed: it returned {}", answer);
  if (status.ok()) status = check_entries(all);
  if (status.ok())
    return join_by_id(all.front().id, request.rank, request.ranks, {}, request.deadline);
  if (request.rank == 0)
    if (const Result<UniqueId> id = decode_unique_id(mine.id); id.ok())
      RendezvousServer::cancel(id.value().job);
  return status;
}

}  // namespace

int descriptors_to_join(int ranks, bool meets_here) {
  return kOwnDescriptors + std::min(ranks - 1, kFanOut) + (meets_here ? kMeetingDescriptors : 0);
}

Result<std::shared_ptr<Job>> Job::join(const JoinRequest& request) {
  Status settings = config_status();
  if (request.all_gather && !request.unique_id)
    return join_by_callback(request, std::move(settings));
  if (request.unique_id)
    return join_by_id(*request.unique_id, request.rank, request.ranks, std::move(settings),
                      request.deadline);
  FSCCL_TRY(std::move(settings));
  return join_by_environment(request.deadline);
}

}  // namespace fsccl
