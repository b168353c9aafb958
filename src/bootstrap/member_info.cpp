#include "bootstrap/member_info.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/boot_id.h"
#include "base/small_file.h"
#include "wire/authentication.h"

namespace fsccl {

namespace {

std::string read_link(const char* path) {
  char text[256];
  const ssize_t count = readlink(path, text, sizeof(text));
  return count > 0 ? std::string(text, static_cast<size_t>(count)) : std::string();
}

}  // namespace

uint64_t host_number(const std::string& host_id) {
  std::string text = "chosen " + host_id;
  if (host_id.empty()) {
    text = fmt::format("system {} {} {}", boot_id(), read_link("/proc/self/ns/net"),
                       read_link("/proc/self/ns/pid"));
  }
  const Digest digest = fingerprint_text(text);
  uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof(number));
  return number;
}

uint64_t parse_start_time(const std::string& stat) {
  // The start time is the 22nd field. The second field is the program's name in parentheses and may
  // hold anything, so fields are counted from the last parenthesis.
  size_t position = stat.rfind(')');
  if (position == std::string::npos) return 0;
  for (int field = 2; field < 22; ++field) {
    position = stat.find(' ', position + 1);
    if (position == std::string::npos) return 0;
  }
  uint64_t ticks = 0;
  const auto result = std::from_chars(stat.data() + position + 1, stat.data() + stat.size(), ticks);
  return result.ec == std::errc() ? ticks : 0;
}

uint64_t start_time_of(int32_t pid) {
  return parse_start_time(read_small_file(fmt::format("/proc/{}/stat", pid)));
}

char state_of(int32_t pid, uint64_t start_time, int32_t thread) {
  const auto state = [](const std::string& stat) {
    const size_t name_end = stat.rfind(')');
    return name_end == std::string::npos || name_end + 2 >= stat.size() ? 'X' : stat[name_end + 2];
  };
  errno = 0;
  const std::string process = read_small_file(fmt::format("/proc/{}/stat", pid));
  // This process may lack descriptors or memory to look. That says nothing about the other one.
  if (process.empty() && errno != 0 && errno != ENOENT && errno != ESRCH) return 0;
  if (start_time == 0 || parse_start_time(process) != start_time) return 'X';
  const std::string stat = read_small_file(fmt::format("/proc/{}/task/{}/stat", pid, thread));
  // The process's state is that of its first thread. If that runs, this thread may wait for it.
  if (!stat.empty() && state(process) == 'R') return 'R';
  if (!stat.empty() && state(stat) != 'Z') return state(stat);
  // The process shows Z, too, when its first thread alone has ended, so this thread comes first.
  return state(process) == 'Z' ? 'Z' : 0;
}

Fd end_of_thread(int32_t pid, uint64_t start_time, int32_t thread) {
  constexpr int kOneThread = O_EXCL;  // PIDFD_THREAD, which headers of older systems lack
  Fd end = make_fd([&] { return syscall(SYS_pidfd_open, thread, kOneThread); });
  // The state is read after the descriptor was opened. If the thread is there now, the descriptor
  // is its own, and not that of another thread which had its number before.
  const char state = end.valid() ? state_of(pid, start_time, thread) : 'X';
  if (state == 0 || state == 'X' || state == 'Z') end = Fd();
  return end;
}

MemberRecord describe_process(const std::string& host_id) {
  MemberRecord record;
  record.host = host_number(host_id);
  record.pid = getpid();
  record.uid = geteuid();
  record.start_time = parse_start_time(read_small_file("/proc/self/stat"));
  random_bytes(record.listener.data(), record.listener.size());
  return record;
}

}  // namespace fsccl
