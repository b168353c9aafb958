#include "transports/nccl/nccl_comm.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <system_error>

#include "base/log.h"
#include "base/wait.h"

namespace fsccl::nccl {
namespace {

constexpr int kJoinsJobs = 22700;  // from this version on, ncclCommGetAsyncError does join()'s work

// How long an abort may take. An abort that ends at all does not take longer.
constexpr int64_t kLongestEndMs = 30'000;

// Runs work that may never return in a detached thread, or in this thread if the system gives no
// other.
std::shared_future<void> apart(std::function<void()> work) {
  const auto task = std::make_shared<std::packaged_task<void()>>(std::move(work));
  std::shared_future<void> over = task->get_future();
  try {
    std::thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();
  }
  return over;
}

// NCCL offers no event to wait for, so its state is polled: often at first, later once in a
// millisecond.
Naps naps() { return Naps(0, 20'000, 1'000'000); }

}  // namespace

Result<ncclUniqueId> Communicator::make_id(const Library& library) {
  ncclUniqueId id{};
  if (const ncclResult_t code = library.ncclGetUniqueId(&id); code != ncclSuccess)
    return failed(library, "ncclGetUniqueId", code, nullptr);
  return id;
}

Result<std::unique_ptr<Communicator>> Communicator::create(Request request) {
  std::unique_ptr<Communicator> made(new Communicator(std::move(request)));
  const Request& r = made->request_;
  const cuda::Current current(*r.device);
  ncclConfig_t settings;
  settings.version = static_cast<unsigned>(std::min(r.library->version, 22809));
  settings.blocking = 0;
  settings.maxCTAs = r.most_ctas;
  if (r.copy_engines) settings.CTAPolicy = kCtaPolicyZero;
  const std::lock_guard lock(made->mutex_);
  const ncclResult_t code =
      r.library->ncclCommInitRankConfig(&made->comm_, r.ranks, r.id, r.rank, &settings);
  if (code != ncclSuccess && code != ncclInProgress)
    return failed(*r.library, "ncclCommInitRankConfig", code, made->comm_);
  Status status = made->wait_over("ncclCommInitRankConfig", code, r.start_ms);
  if (!status.ok()) return status;
  return made;
}

Communicator::~Communicator() {
  if (!finish())
    FSCCL_LOG(kError,
              "NCCL has not ended a communicator within {} ms: it waits for a rank that does not "
              "answer, and keeps memory of the GPU "
              "until the process ends",
              patience_ms());
}

bool Communicator::finish() {
  if (ender_.joinable()) ender_.join();
  const cuda::Current current(device());
  const std::lock_guard lock(mutex_);
  if (comm_ && !ended()) close();
  free_comm();
  return in_time(freed_);
}

// The caller holds the lock.
void Communicator::close() {
  const auto close_windows = [deregister = library().ncclCommWindowDeregister, on = request_.device,
                              comm = comm_, windows = windows_] {
    const cuda::Current current(*on);
    for (const Registered& one : windows) (void)deregister(comm, one.window);
  };
  if (!windows_.empty()) {
    freed_ = apart(close_windows);
    if (!in_time(freed_)) comm_ = nullptr;  // the thread that closes the windows still uses it
  }
  if (!comm_ ||
      !wait_over("ncclCommFinalize", library().ncclCommFinalize(comm_), request_.timeout_ms).ok())
    return;
  (void)library().ncclCommDestroy(comm_);
  comm_ = nullptr;
}

int64_t Communicator::patience_ms() const { return std::min(request_.timeout_ms, kLongestEndMs); }

bool Communicator::in_time(const std::shared_future<void>& over) const {
  return !over.valid() ||
         over.wait_for(std::chrono::milliseconds(patience_ms())) == std::future_status::ready;
}

// The caller holds the lock. The communicator is freed in a thread of its own, which is not waited
// for, except with a version of NCCL that needs join(): then the function waits a limited time for
// the abort, which joins the thread's job.
void Communicator::free_comm() {
  if (!comm_) return;
  freed_ = apart([abort = library().ncclCommAbort, on = request_.device, comm = comm_] {
    const cuda::Current current(*on);
    (void)abort(comm);
  });
  comm_ = nullptr;
  if (library().version < kJoinsJobs) (void)in_time(freed_);  // the abort joins the job
}

// The caller holds the lock.
Status Communicator::wait_over(const char* operation, ncclResult_t code, int64_t timeout_ms) {
  const auto over = [&] {
    if (code == ncclInProgress && !ended()) code = state();
    return code != ncclInProgress || ended();
  };
  Result<bool> in_time = wait_unless(request_.broken, over, Deadline::in_ms(timeout_ms), naps());
  if (in_time.ok() && !in_time.value())
    in_time = fail(FSCCL_ERR_TIMEOUT,
                   "{} was not over in {} ms: some rank did not come, or the network between them "
                   "does not work "
                   "(NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO)",
                   operation, timeout_ms);
  if (!in_time.ok()) {
    give_up(in_time.status());
    return in_time.take_status();
  }
  if (code == ncclInProgress) {                  // another thread has ended the communicator
    if (library().version < kJoinsJobs) stop();  // stop() joins the job
    return why_ended();
  }
  if (code == ncclSuccess) {
    join();
    return success();
  }
  Status status = failed(library(), operation, code, comm_);
  give_up(status);
  return status;
}

// The caller holds the lock and is the thread of the call that is over. Before 2.27 NCCL keeps the
// job of that call in the thread's memory, and the thread's next group on another communicator goes
// astray (NVIDIA/nccl#1605) unless a call that needs the communicator ready has joined the job.
// ncclCommCount is such a call.
void Communicator::join() const {
  int ranks = 0;
  if (library().version < kJoinsJobs && library().ncclCommCount)
    (void)library().ncclCommCount(comm_, &ranks);
}

// The caller holds the lock. Returns ncclInProgress while NCCL is at work, or the error that it has
// found.
ncclResult_t Communicator::state() const {
  ncclResult_t code = ncclSuccess;
  const ncclResult_t asked = library().ncclCommGetAsyncError(comm_, &code);
  return asked == ncclSuccess ? code : asked;
}

// The caller holds the lock.
void Communicator::give_up(const Status& why) noexcept {
  {
    const std::lock_guard lock(why_mutex_);
    if (why_.ok()) why_ = why.clone();
  }
  // This store pairs with the load in ended().
  ended_.store(true, std::memory_order_release);
  free_comm();
}

Status Communicator::group(const std::function<Status()>& issue) {
  Share share{this, issue, {}};
  group({&share, 1});
  return std::move(share.outcome);
}

void Communicator::group(std::span<Share> shares) {
  enqueue(shares);
  for (const Share& one : shares)
    if (!one.outcome.ok() && one.comm->ended() && one.comm->request_.refused)
      one.comm->request_.refused(one.outcome);
}

void Communicator::enqueue(std::span<Share> shares) {
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<Share*> going;
  for (Share& one : shares) {
    locks.emplace_back(one.comm->mutex_);
    if (one.comm->ended() || one.comm->refused_)
      one.outcome = one.comm->why_ended();
    else
      going.push_back(&one);
  }
  if (going.empty()) return;
  const Library& nccl = going[0]->comm->library();
  ncclResult_t code = nccl.ncclGroupStart();
  Status status = code == ncclSuccess ? success() : failed(nccl, "ncclGroupStart", code, nullptr);
  try {
    for (Share* const one : going)
      if (status.ok()) status = one->issue();
  } catch (const std::bad_alloc&) {
    // Without ncclGroupEnd NCCL would keep all later calls of this thread for the group.
    status = fail(FSCCL_ERR_OUT_OF_MEMORY, "memory was short in a group of calls of NCCL");
  }
  if (code == ncclSuccess) code = nccl.ncclGroupEnd();
  for (Share* const one : going) {
    if (status.ok()) {
      one->outcome = one->comm->wait_over("ncclGroupEnd", code, one->comm->request_.timeout_ms);
    } else {
      one->comm->give_up(status);
      one->outcome = status.clone();
    }
  }
}

Status Communicator::check(const char* operation, ncclResult_t code) const {
  return code == ncclSuccess || code == ncclInProgress ? success()
                                                       : failed(library(), operation, code, comm_);
}

Status Communicator::register_window(void* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (ended() || refused_) return why_ended();
  const cuda::Current current(device());
  // A thread of NCCL writes new_window_ until NCCL reports that the registration is over, or until
  // the communicator is freed. A local variable could therefore end too early.
  new_window_ = nullptr;
  ncclResult_t code =
      library().ncclCommWindowRegister(comm_, memory, bytes, &new_window_, kWindowSymmetric);
  if (code == ncclSuccess) code = state();  // NCCL answers ncclSuccess even while it is at work
  // This does not use wait_over(), because a refusal must not end the work on streams. A rank that
  // was refused waits for the others in an exchange that the caller makes.
  const auto over = [&] { return code != ncclInProgress || (code = state()) != ncclInProgress; };
  const auto ended_or_broken = [&] {
    return ended() || (request_.broken && !request_.broken().ok());
  };
  if (wait_until(over, Deadline::in_ms(request_.start_ms), ended_or_broken, naps()) !=
      WaitEnd::held) {
    FSCCL_TRY(wait_over("ncclCommWindowRegister", ncclInProgress, 0));
    code = ncclSuccess;  // the registration has ended in the meantime
  }
  if (code != ncclSuccess) {
    Status status = failed(library(), "ncclCommWindowRegister", code, comm_);
    refused_ = true;
    const std::lock_guard why_lock(why_mutex_);
    why_ = status.clone();
    return status;
  }
  // If NCCL succeeds without a window, then it has no symmetric memory here.
  if (!new_window_)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "NCCL makes no windows here: ranks cannot map each other's memory");
  windows_.push_back({static_cast<const char*>(memory), bytes, new_window_});
  return success();
}

void Communicator::close_window(void* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(windows_.begin(), windows_.end(), [&](const Registered& one) {
    return one.base == static_cast<char*>(memory);
  });
  if (found == windows_.end()) return;
  const cuda::Current current(device());
  if (comm_ && !ended()) (void)library().ncclCommWindowDeregister(comm_, found->window);
  windows_.erase(found);
}

bool Communicator::in_window(const void* memory, size_t bytes) const {
  const auto* const first = static_cast<const char*>(memory);
  return std::any_of(windows_.begin(), windows_.end(), [&](const Registered& one) {
    return first >= one.base && bytes <= one.bytes &&
           static_cast<size_t>(first - one.base) <= one.bytes - bytes;
  });
}

bool Communicator::touches_window(const void* memory, size_t bytes) const {
  const auto* const first = static_cast<const char*>(memory);
  return std::any_of(windows_.begin(), windows_.end(), [&](const Registered& one) {
    return first < one.base + one.bytes && one.base < first + bytes;
  });
}

Status Communicator::look() {
  if (ended()) return why_ended();
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !comm_ || refused_) return success();  // a call that has the lock sees the state
  const ncclResult_t code = state();
  return code == ncclSuccess || code == ncclInProgress ? success()
                                                       : failed(library(), "NCCL", code, comm_);
}

void Communicator::end(const Status& why) noexcept {
  {
    const std::lock_guard lock(why_mutex_);
    if (ended()) return;
    why_ = why.clone();
    // This store pairs with the load in ended().
    ended_.store(true, std::memory_order_release);
  }
  try {
    ender_ = std::thread([this] {
      const std::lock_guard lock(mutex_);
      stop();
    });
  } catch (
      // The system gives no thread, so this thread stops the communicator, unless a call is under
      // way: this thread may be the one that makes it.
      const std::system_error&) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) stop();
  }
}

// The caller holds the lock. Revokes the communicator if it can, and frees it otherwise. A revoked
// communicator is freed with this object. NCCL must not revoke in the middle of a call or after an
// error, because it then uses memory that it has freed.
void Communicator::stop() {
  if (!comm_) return;
  const cuda::Current current(device());
  if (request_.can_revoke && state() == ncclSuccess)
    if (const ncclResult_t code = library().ncclCommRevoke(comm_, 0);
        code == ncclSuccess || code == ncclInProgress)
      return;
  free_comm();
}

Status Communicator::why_ended() const {
  const std::lock_guard lock(why_mutex_);
  return why_.clone();
}

}  // namespace fsccl::nccl
