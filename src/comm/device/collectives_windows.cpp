// Symmetric memory for NCCL: a window on the slots, and a second communicator whose all-gathers use
// the copy engines. If NCCL refuses, everything goes on without them. NCCL keeps an error of a
// communicator for good, so another communicator then takes its place.
#include "comm/device/collectives.h"

#include "comm/consensus.h"
#include "comm/together.h"

namespace fsccl {
namespace {

constexpr int64_t kIdleNapNs = 1'000'000;

// The outcome on this rank, for the other ranks.
struct WindowOutcome {
  int32_t code = FSCCL_OK;
  char text[252] = "";
};

}  // namespace

// Returns the outcome on all ranks: "" if all succeeded, otherwise which rank could not and why.
// *lasting says that NCCL has a lasting error on some rank, and did not merely refuse.
Result<std::string> DeviceCollectives::agree_on(const Status& mine, bool* lasting) {
  WindowOutcome own;
  own.code = mine.code();
  if (!mine.ok()) mine.text().copy(own.text, sizeof own.text - 1);
  FSCCL_ASSIGN(std::vector<WindowOutcome> outcomes, all_gather(comm_, own));
  std::string why;
  *lasting = false;
  for (size_t rank = 0; rank < outcomes.size(); rank++) {
    WindowOutcome& one = outcomes[rank];
    if (one.code == FSCCL_OK) continue;
    *lasting |= one.code != FSCCL_ERR_NOT_AVAILABLE;
    one.text[sizeof one.text - 1] = '\0';
    if (why.empty()) why = fmt::format("rank {}: {}", rank, one.text);
  }
  return why;
}

// Gives the id of rank 0 to all ranks. It is all zeros if rank 0 could not make one.
Result<nccl::ncclUniqueId> DeviceCollectives::share_id() {
  nccl::ncclUniqueId mine{};
  if (comm_.rank() == 0) {
    const Result<nccl::ncclUniqueId> id = nccl::Communicator::make_id(nccl_->library());
    if (id.ok()) mine = id.value();
  }
  FSCCL_ASSIGN(const std::vector<nccl::ncclUniqueId> ids, all_gather(comm_, mine));
  return ids[0];
}

// Every rank takes part in every exchange.
Status DeviceCollectives::open_window(cuda::CUdeviceptr memory, uint64_t bytes) {
  if (!nccl_ || (!features_.windows.usable && !features_.copy_gather.usable)) return success();
  window_users_[memory]++;
  const Together together(comm_);
  auto* const begin = reinterpret_cast<void*>(memory);
  bool lasting = false;
  std::string why;
  if (features_.windows.usable && !nccl_->in_window(begin, bytes)) {
    FSCCL_ASSIGN(why, agree_on(nccl_->register_window(begin, bytes), &lasting));
    if (!why.empty()) {
      features_.windows = features_.copy_gather = {false, why};
      return lasting ? restart_nccl(why) : success();
    }
  }
  if (!features_.copy_gather.usable || (copier_ && copier_->in_window(begin, bytes)))
    return success();
  FSCCL_ASSIGN(const nccl::ncclUniqueId id, share_id());
  FSCCL_ASSIGN(why, agree_on(make_copier(memory, bytes, id), &lasting));
  if (why.empty()) return success();
  features_.copy_gather = {false, why};
  std::unique_lock lock(copier_mutex_);
  const std::unique_ptr<nccl::Communicator> ended = std::move(copier_);
  lock.unlock();
  if (ended) ended->end(fail(FSCCL_ERR_NOT_AVAILABLE, "{}", why));
  return success();
}

// Makes a communicator in the place of one that has a lasting error, when the work that this one
// has put on streams is over.
Status DeviceCollectives::restart_nccl(const std::string& why) {
  const auto idle = [this] { return watch_->idle(); };
  FSCCL_TRY(wait_unless([this] { return intact(); }, idle, Deadline::never(), Naps(kIdleNapNs))
                .take_status());
  FSCCL_ASSIGN(const nccl::ncclUniqueId id, share_id());
  watch_.reset();
  exchanged_sum_.reset();
  nccl_->end(fail(FSCCL_ERR_NOT_AVAILABLE, "{}", why));
  nccl_.reset();
  bool lasting = false;
  FSCCL_ASSIGN(const std::string again, agree_on(start_nccl(id), &lasting));
  if (again.empty()) return success();
  return fail(FSCCL_ERR_NOT_AVAILABLE, "NCCL refused a window ({}), and does not start again: {}",
              why, again);
}

void DeviceCollectives::close_window(cuda::CUdeviceptr memory) {
  const auto users = window_users_.find(memory);
  if (users == window_users_.end() || --users->second) return;
  window_users_.erase(users);
  if (nccl_) nccl_->close_window(reinterpret_cast<void*>(memory));
  if (copier_) copier_->close_window(reinterpret_cast<void*>(memory));
}

Status DeviceCollectives::make_copier(cuda::CUdeviceptr memory, uint64_t bytes,
                                      const nccl::ncclUniqueId& id) {
  if (!copier_) {
    FSCCL_ASSIGN(auto made, open_nccl(*device_, id, true));
    const std::lock_guard lock(copier_mutex_);
    copier_ = std::move(made);
  }
  return copier_->register_window(reinterpret_cast<void*>(memory), bytes);
}

}  // namespace fsccl
