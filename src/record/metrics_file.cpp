#include "record/metrics_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/fork.h"
#include "base/immortal.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/whole_file.h"
#include "record/metrics.h"

namespace fsccl {
namespace {

std::string path_of(const std::string& pattern, int rank) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); i++) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'r' || next == 'p') {
      path += std::to_string(next == 'r' ? rank : static_cast<int>(getpid()));
      i++;
    } else {
      path += pattern[i];
    }
  }
  return path;
}

}  // namespace

// The shared state is used last while the process exits, so it is never destroyed.
struct MetricsFile::Shared {
  std::mutex mutex;  // also held during a write, so that a later write has the later numbers
  std::vector<MetricsFile*> living;
  bool at_exit = false;
  // True after the writes at exit. The service thread may now end at any point, so it must not
  // begin to write a file.
  bool over = false;
};

MetricsFile::Shared& MetricsFile::shared() {
  static Immortal<Shared> all;
  return all.get();
}

std::unique_ptr<MetricsFile> MetricsFile::create(const Config& settings, int rank) {
  if (settings.metrics_file.empty()) return nullptr;
  return std::unique_ptr<MetricsFile>(
      new MetricsFile(path_of(settings.metrics_file, rank), settings.metrics_ms * 1'000'000));
}

MetricsFile::MetricsFile(std::string path, int64_t period_ns)
    : path_(std::move(path)), period_ns_(period_ns) {
  {
    const std::lock_guard lock(shared().mutex);
    shared().living.push_back(this);
    if (!std::exchange(shared().at_exit, true)) std::atexit(write_all);
  }
  hook_ = Reactor::instance().add_hook([this] { return turn(); });
}

MetricsFile::~MetricsFile() {
  Reactor::instance().remove_hook(hook_);
  const std::lock_guard lock(shared().mutex);
  std::erase(shared().living, this);
}

// Writes what is due. Returns how long the service thread may sleep.
int64_t MetricsFile::turn() {
  const int64_t now = now_ns();
  if (now < next_ns_) return next_ns_ - now;
  write();
  next_ns_ = now + period_ns_;
  return period_ns_;
}

void MetricsFile::write() {
  const std::lock_guard lock(shared().mutex);
  if (!shared().over) write_whole();
}

// The caller holds the lock. After all objects have ended, the file keeps their last numbers.
void MetricsFile::write_whole() {
  bool objects = false;
  const std::string text = metrics_text(&objects);
  if (std::exchange(written_, true) && !objects) return;
  const auto written = [&]() -> Status {
    // The reader of a FIFO must not hold up the service thread.
    FSCCL_ASSIGN(WholeFile file, WholeFile::create(path_, {.patience_ms = 100}));
    file.append(text);
    return file.commit();
  };
  if (const Status status = written(); !status.ok() && !std::exchange(complained_, true))
    FSCCL_LOG(kWarn, "FSCCL_METRICS_FILE: {}. It is tried again, and not told of again",
              status.text());
}

// Runs at the exit of the process, which may still have communicators. The child of a fork has
// none, so it writes nothing.
void MetricsFile::write_all() {
  if (forked()) return;
  const std::lock_guard lock(shared().mutex);
  for (MetricsFile* file : shared().living) file->write_whole();
  shared().over = true;
}

}  // namespace fsccl
