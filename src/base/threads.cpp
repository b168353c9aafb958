#include "base/threads.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/immortal.h"
#include "base/small_file.h"

namespace fsccl {

void Condition::wait_for(std::unique_lock<std::mutex>& lock, int64_t ns) {
  condition_.wait_for(lock, std::chrono::nanoseconds(ns));
}

void Condition::notify_all() { condition_.notify_all(); }

namespace {

// The ids of the threads that run a function given to Thread::start().
struct OurThreads {
  std::mutex mutex;
  std::vector<int32_t> numbers;
};
OurThreads& ours() {
  static Immortal<OurThreads> all;
  return all.get();
}

// Registers this thread. If there is no memory for its entry, it counts as a thread of the program.
class Registered {
 public:
  Registered() {
    const std::lock_guard lock(ours().mutex);
    try {
      ours().numbers.push_back(thread_number());
    } catch (const std::bad_alloc&) {
    }
  }
  ~Registered() {
    const std::lock_guard lock(ours().mutex);
    std::erase(ours().numbers, thread_number());
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;
};

// Returns the state letter in /proc/self/task/NUMBER/stat. It follows the thread's name, which may
// have any characters. 0 means that it is unknown.
char state_of(int32_t thread) {
  const std::string text = read_start(fmt::format("/proc/self/task/{}/stat", thread));
  const size_t name_end = text.rfind(") ");
  return name_end == text.npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

}  // namespace

Status Thread::start(std::function<void()> run) {
  try {
    thread_ = std::make_shared<std::thread>([run = std::move(run)] {
      const Registered registered;
      run();
    });
  } catch (const std::system_error& error) {
    return fail(FSCCL_ERR_LIMIT,
                "a thread cannot start: {}; raise the limit of processes (ulimit -u)",
                error.what());
  } catch (const std::bad_alloc&) {
    return fail(FSCCL_ERR_OUT_OF_MEMORY, "there is no memory for a thread");
  }
  return success();
}

void Thread::join() {
  static_cast<std::thread*>(thread_.get())->join();
  thread_.reset();
}

void Thread::leave() {
  static_cast<std::thread*>(thread_.get())->detach();
  thread_.reset();
}

bool only_library_threads_left() {
  const int32_t first = getpid();
  if (state_of(first) != 'Z') return false;
  Fd folder = make_fd([] { return ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  DIR* const listing = folder.valid() ? fdopendir(folder.get()) : nullptr;
  if (!listing) return false;
  (void)folder.release();  // the listing owns it now
  bool only_ours = true;
  const std::lock_guard lock(ours().mutex);
  while (const dirent* entry = readdir(listing)) {
    int32_t number = 0;  // remains 0 for the entries "." and ".."
    std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), number);
    if (number > 0 && number != first) only_ours &= std::ranges::count(ours().numbers, number) > 0;
  }
  closedir(listing);
  return only_ours;
}

void sleep_ns(int64_t ns) {
  const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&time, nullptr);
}

void yield_core() { sched_yield(); }

int32_t thread_number() {
  static thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace fsccl
