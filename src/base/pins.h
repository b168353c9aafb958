// The objects that threads are using now, so that no thread frees an object that another thread
// uses. A thread that uses an object pins it. A thread that ends an object first removes it from
// the table of handles, and then waits until no thread has it pinned.
//
// A pin is a store into a word of the thread's own, followed by a look whether the object is still
// in the table (handle.h). The processor must not reorder the two. The thread that ends the object
// ensures this with membarrier(2), so a pin costs nothing. Where the system has no membarrier, the
// pin contains the barrier.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>

namespace fsccl {

class Pins {
 public:
  using Word = std::atomic<const void*>;
  static constexpr size_t kMost = 8;  // objects that one thread pins at once

  // Before the first object is made.
  static void prepare();
  // Says that this thread uses the object at this address, in the order that is described above.
  // Returns null if the thread has too many objects pinned, or is ending.
  static Word* set(const void* what) noexcept {
    Record* record = mine;
    if (!record) [[unlikely]]
      if (!(record = begin())) return nullptr;
    for (Word& word : record->words) {
      if (word.load(std::memory_order_relaxed)) continue;
      if (light_.load(std::memory_order_relaxed)) [[likely]] {
        // This store pairs with the load in held(), behind the membarrier of fence_all_threads().
        word.store(what, std::memory_order_release);
        std::atomic_signal_fence(std::memory_order_seq_cst);
      } else {
        (void)word.exchange(what, std::memory_order_seq_cst);
      }
      return &word;
    }
    return nullptr;
  }
  // pairs with the load in held()
  static void clear(Word* word) noexcept { word->store(nullptr, std::memory_order_release); }
  // After this call, for every other thread, either held() sees the words that the thread has set
  // before, or the thread sees what the calling thread has done before.
  static void fence_all_threads() noexcept;
  // held() returns whether any thread has the object pinned, held_here() whether this thread has.
  static bool held(const void* what) noexcept;
  static bool held_here(const void* what) noexcept;

 private:
  struct Record {
    std::array<Word, kMost> words{};
    std::atomic<bool> taken{true};  // by a thread that lives
    Record* next = nullptr;
  };
  struct End;
  static Record* begin() noexcept;

  // By the local-dynamic model one look-up finds this and other variables of the library.
  [[gnu::visibility("hidden"), gnu::tls_model("local-dynamic")]]
  static constinit thread_local Record* mine;
  static std::atomic<Record*> all_;
  static std::atomic<bool> light_;
};

}  // namespace fsccl
