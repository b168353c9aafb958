// Joining and leaving groups, which Python does between programs of XLA.
// SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "../../communicators.h"
#include "sites.h"

namespace fsccl_jax {
namespace {
using Members = std::map<int, std::shared_ptr<Rank>>;  // by device ordinal
std::mutex lock;
std::map<int64_t, Members> groups;
fsccl_counters_t gone = FSCCL_COUNTERS_INIT;  // counters of groups that were left

int tell(const std::string& text, char* why, size_t capacity) {
  if (capacity > 0) {
    const size_t bytes = std::min(capacity - 1, text.size());
    std::memcpy(why, text.data(), bytes);
    why[bytes] = 0;
  }
  return 1;
}

std::string create(Rank& rank, const fsccl_unique_id_t* id, const char* name) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = id;
  config.rank = rank.rank;
  config.ranks = rank.ranks;
  config.name = name;
  const fsccl_status_t status = fsccl_comm_create(&config, &rank.comm);
  return status == FSCCL_OK ? "" : last_error(status);
}
}  // namespace

std::shared_ptr<Rank> find(int64_t group, int device) {
  const std::lock_guard guard(lock);
  const auto members = groups.find(group);
  if (members == groups.end()) return nullptr;
  const auto rank = members->second.find(device);
  return rank == members->second.end() ? nullptr : rank->second;
}

}  // namespace fsccl_jax

extern "C" {
using fsccl_jax::Members;
using fsccl_jax::Rank;

// Makes the unique id of a group. 0, or 1 and the reason.
FSCCL_API int fsccl_jax_unique_id(fsccl_unique_id_t* id, char* why, size_t capacity) {
  const fsccl_status_t status = fsccl_unique_id_create(id);
  return status == FSCCL_OK ? 0 : fsccl_jax::tell(fsccl_jax::last_error(status), why, capacity);
}

// Makes group `group` of `ranks` ranks. This process has `count` of them: the devices ordinals[i],
// as ranks numbers[i]. Blocks until all ranks have come. 0, or 1 and the reason.
FSCCL_API int fsccl_jax_join(const fsccl_unique_id_t* id, int64_t group, int ranks, int count,
                             const int* ordinals, const int* numbers, const char* name, char* why,
                             size_t capacity) {
  fsccl_jax::site_of(fsccl_jax::kUnordered);
  Members members;
  std::vector<std::string> reasons(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    auto rank = std::make_shared<Rank>();
    rank->rank = numbers[i];
    rank->ranks = ranks;
    members[ordinals[i]] = rank;
    threads.emplace_back([rank, id, name, &reason = reasons[static_cast<size_t>(i)]] {
      reason = fsccl_jax::create(*rank, id, name);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& reason : reasons) {
    if (reason.empty()) continue;
    for (auto& [device, rank] : members) {
      if (rank->comm != nullptr) fsccl_comm_destroy(rank->comm);
    }
    return fsccl_jax::tell(reason, why, capacity);
  }
  const std::lock_guard guard(fsccl_jax::lock);
  fsccl_jax::groups[group] = std::move(members);
  return 0;
}

// Operations in flight are aborted: let the programs that use the group end before.
FSCCL_API int fsccl_jax_leave(int64_t group, char* why, size_t capacity) {
  Members members;
  {
    const std::lock_guard guard(fsccl_jax::lock);
    const auto found = fsccl_jax::groups.find(group);
    if (found == fsccl_jax::groups.end()) return 0;
    members = std::move(found->second);
    fsccl_jax::groups.erase(found);
    for (const auto& [device, rank] : members)
      fsccl_bindings::add_counters(rank->comm, fsccl_jax::gone);
  }
  int result = 0;
  for (auto& [device, rank] : members) {
    const fsccl_status_t status = fsccl_bindings::leave(rank->comm);
    if (status != FSCCL_OK) result = fsccl_jax::tell(fsccl_jax::last_error(status), why, capacity);
  }
  return result;
}

FSCCL_API fsccl_status_t fsccl_jax_counters(fsccl_counters_t* counters) {
  if (counters == nullptr || counters->size != sizeof(fsccl_counters_t))
    return FSCCL_ERR_INVALID_ARGUMENT;
  const std::lock_guard guard(fsccl_jax::lock);
  fsccl_counters_t sum = fsccl_jax::gone;
  for (const auto& [group, members] : fsccl_jax::groups) {
    for (const auto& [device, rank] : members) fsccl_bindings::add_counters(rank->comm, sum);
  }
  *counters = sum;
  return FSCCL_OK;
}
}
