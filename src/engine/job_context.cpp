#include "engine/job_context.h"

#include <sched.h>

#include <algorithm>
#include <bit>

#include "engine/communicator.h"

namespace fsccl {

std::atomic<int> oversubscribed_communicators{0};

Result<std::shared_ptr<JobContext>> JobContext::join(const JoinRequest& request) {
  auto context = std::make_shared<JobContext>();
  FSCCL_ASSIGN(context->job_, Job::join(request));
  context->lost_ranks_.resize(static_cast<size_t>(context->job_->size()));
  context->job_->on_loss([raw = context.get()](int rank, bool left) { raw->on_loss(rank, left); });
  FSCCL_TRY(context->exchange_cores(request.deadline));
  return context;
}

JobContext::~JobContext() {
  if (job_) job_->leave();
}

Status JobContext::exchange_cores(Deadline deadline) {
  Cores mine{};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (size_t cpu = 0; cpu < 1024 && cpu < CPU_SETSIZE; cpu++)
      if (CPU_ISSET(cpu, &set)) mine.words[cpu / 64] |= uint64_t{1} << (cpu % 64);
  mine.taken = oversubscribed_communicators > 0;
  cores_.resize(static_cast<size_t>(job_->size()));
  FSCCL_TRY(job_->all_gather(&mine, cores_.data(), sizeof mine, deadline));
  for (const Cores& cores : cores_) taken_ |= cores.taken != 0;
  return success();
}

bool JobContext::oversubscribed(const std::vector<int>& ranks) const {
  if (taken_) return true;
  size_t cores = 0;
  for (size_t word = 0; word < 16; word++) {
    uint64_t together = 0;
    for (const int rank : ranks) together |= cores_[static_cast<size_t>(rank)].words[word];
    cores += static_cast<size_t>(std::popcount(together));
  }
  return cores < ranks.size();
}

void JobContext::add(Communicator* comm) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(comm);
  for (int rank = 0; rank < comm->size(); rank++)
    if (const uint8_t lost = lost_ranks_[static_cast<size_t>(comm->job_rank(rank))]) comm->engine().lost(rank, lost == 2);
}

void JobContext::remove(Communicator* comm) {
  const std::lock_guard lock(mutex_);
  std::erase(communicators_, comm);
}

bool JobContext::any_died(const std::vector<int>& ranks) {
  if (!lost_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return lost_ranks_[static_cast<size_t>(rank)] == 1; });
}

void JobContext::on_loss(int rank, bool left) {
  const std::lock_guard lock(mutex_);
  lost_ranks_[static_cast<size_t>(rank)] = left ? 2 : 1;
  if (!left) lost_.store(true, std::memory_order_release);
  for (Communicator* comm : communicators_)
    if (const int member = comm->rank_of(rank); member >= 0) comm->engine().lost(member, left);
}

}  // namespace fsccl
