// Memory in which a function of a program, which the library does not trust, reads its input and
// writes its output (custom.h). Around the output lie bytes with a pattern, which show afterwards
// whether the function wrote there. Around these, and around the input, lie pages that nobody may
// touch, so a write that goes farther, by up to kUntouchable bytes, ends the process at the
// instruction that makes it. Each thread has one room, which is made at its first use.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

class GuardedRoom {
 public:
  static constexpr size_t kMost = 4224;    // bytes of an input, and of an output
  static constexpr size_t kBehind = 4096;  // bytes with the pattern behind an output
  static constexpr size_t kUntouchable = size_t{1} << 20;

  // Returns the room of this thread. Throws std::bad_alloc if there is no memory for it.
  static GuardedRoom& of_thread();
  GuardedRoom();
  ~GuardedRoom();
  GuardedRoom(const GuardedRoom&) = delete;

  uint8_t* input() const { return input_; }
  // Returns the place of an output of `bytes` bytes, at a multiple of 64.
  uint8_t* output(size_t bytes) const {
    return begin_ + usable_ - kBehind - (bytes + 63) / 64 * 64;
  }

  struct Stray {
    size_t beyond = 0;  // bytes from the output's end to the last byte that was overwritten
    size_t before = 0;  // the same from its begin, if nothing beyond the end was overwritten
  };
  // Says what was overwritten around an output of `bytes` bytes, and makes the room ready for the
  // next output.
  Stray check(size_t bytes);

 private:
  bool intact(size_t from, size_t to) const;
  void fill(size_t from, size_t to);

  size_t usable_ = 0, mapped_ = 0;
  uint8_t *memory_ = nullptr, *begin_ = nullptr, *input_ = nullptr;
};

}  // namespace fsccl
