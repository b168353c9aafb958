#include "allocators/host/fault_notes.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "base/fork.h"

namespace fsccl {
namespace {

constexpr size_t kTextBytes = 200;

// A writer makes `version` odd, changes the note and makes `version` even again. All members that a
// handler reads are atomic, because the handler may run in the middle of that.
struct Note {
  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> begin{0}, end{0}, set{0};  // `set`: a larger number was set later
  std::array<std::atomic<uint64_t>, kTextBytes / sizeof(uint64_t)> text{};
  bool used = false;
};

std::array<Note, kFaultNotes> notes;
std::atomic<size_t> highest{0};  // one above the highest index that was ever used
std::atomic<uint64_t> settings{0};
std::mutex notes_mutex;
struct sigaction previous;

// Finds the text of the latest note for the address. Returns false if there is none, or if it is
// being changed at this moment.
bool find(uint64_t address, char* text, uint64_t* begin) {
  uint64_t latest = 0;
  // This load pairs with the store in add_fault_note(), those below with the stores in
  // set_fault_note().
  for (size_t i = 0; i < highest.load(std::memory_order_acquire); i++) {
    Note& note = notes[i];
    const uint64_t version = note.version.load(std::memory_order_acquire);
    if (version % 2 || address < note.begin || address >= note.end || note.set <= latest) continue;
    std::array<uint64_t, kTextBytes / sizeof(uint64_t)> words;
    for (size_t w = 0; w < words.size(); w++)
      // Each of these loads pairs with the store of the same word in set_fault_note().
      words[w] = note.text[w].load(std::memory_order_acquire);
    const uint64_t from = note.begin.load(std::memory_order_acquire),
                   set = note.set.load(std::memory_order_acquire);
    if (note.version.load(std::memory_order_relaxed) != version) continue;
    latest = set;
    *begin = from;
    std::memcpy(text, words.data(), kTextBytes);
    text[kTextBytes - 1] = '\0';
  }
  return latest > 0;
}

// A text that can be made and written inside a signal handler, which may call little but write().
class Line {
 public:
  void text(const char* from) {
    while (*from && size_ < sizeof line_) line_[size_++] = *from++;
  }
  void number(uint64_t value, uint64_t base) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = "0123456789abcdef"[value % base];
    while ((value /= base) > 0);
    while (count > 0 && size_ < sizeof line_) line_[size_++] = digits[--count];
  }
  void write() const { (void)!::write(STDERR_FILENO, line_, size_); }

 private:
  char line_[512];
  size_t size_ = 0;
};

const char* access_of([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;  // bit of the page fault's error code
  return static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite ? "write to "
                                                                                      : "read of ";
#else
  return "access to ";
#endif
}

void tell(uint64_t address, void* context) {
  char text[kTextBytes];
  uint64_t begin = 0;
  if (!find(address, text, &begin)) return;
  Line line;
  line.text("fsccl: ");
  line.text(access_of(context));
  line.text("0x");
  line.number(address, 16);
  line.text(", byte ");
  line.number(address - begin, 10);
  line.text(" of ");
  line.text(text);
  if (forked()) line.text("; this is a child of fork(), which does not have the memory of pools");
  line.text("\n");
  line.write();
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  if (info->si_code > 0) tell(reinterpret_cast<uint64_t>(info->si_addr), context);
  errno = saved;
  if (previous.sa_flags & SA_SIGINFO) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
    return previous.sa_handler(signal);
  struct sigaction once = previous;
  sigaction(signal, &once, nullptr);
  // A signal that a process has sent is raised again. An access faults again by itself when this
  // handler returns.
  if (info->si_code <= 0) raise(signal);
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

}  // namespace

int add_fault_note() {
  static std::once_flag once;
  std::call_once(once, install);
  const std::lock_guard lock(notes_mutex);
  const auto free =
      std::find_if(notes.begin(), notes.end(), [](const Note& note) { return !note.used; });
  if (free == notes.end()) return -1;
  free->used = true;
  const auto index = static_cast<size_t>(free - notes.begin());
  if (index >= highest.load(std::memory_order_relaxed))
    // This store pairs with the load in find().
    highest.store(index + 1, std::memory_order_release);
  return static_cast<int>(index);
}

void set_fault_note(int index, const void* begin, uint64_t bytes, std::string_view text) {
  if (index < 0) return;
  const std::lock_guard lock(notes_mutex);
  Note& note = notes[static_cast<size_t>(index)];
  std::array<uint64_t, kTextBytes / sizeof(uint64_t)> words{};
  std::memcpy(words.data(), text.data(), std::min(text.size(), kTextBytes - 1));
  // Each of these stores pairs with the load of the same word in find(): a reader that has seen a
  // new word sees afterwards that the version has changed.
  note.version.fetch_add(1, std::memory_order_relaxed);
  for (size_t w = 0; w < words.size(); w++) note.text[w].store(words[w], std::memory_order_release);
  note.begin.store(reinterpret_cast<uint64_t>(begin), std::memory_order_release);
  note.end.store(reinterpret_cast<uint64_t>(begin) + bytes, std::memory_order_release);
  note.set.store(++settings, std::memory_order_release);
  note.version.fetch_add(1, std::memory_order_release);
}

void remove_fault_note(int index) {
  if (index < 0) return;
  set_fault_note(index, nullptr, 0, "");
  const std::lock_guard lock(notes_mutex);
  notes[static_cast<size_t>(index)].used = false;
}

}  // namespace fsccl
