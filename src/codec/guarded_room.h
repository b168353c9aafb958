// Memory in which a function of a program, which the library does not trust, reads its input and
// writes its output (custom.h). Around the output lie bytes with a pattern, which show afterwards
// whether the function wrote there. Around these, and around the input, lie pages that nobody may
// touch, so a write that goes farther ends the process at the instruction that makes it, and
// changes nothing of others. Each thread has one room, which is made at its first use.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

class GuardedRoom {
 public:
  static constexpr size_t kMost = 4224;    // bytes of an input, and of an output
  static constexpr size_t kBehind = 4096;  // bytes behind an output that have the pattern

  // Returns the room of this thread. Throws std::bad_alloc if there is no memory for it.
  static GuardedRoom& of_thread();
  GuardedRoom();
  ~GuardedRoom();
  GuardedRoom(const GuardedRoom&) = delete;

  uint8_t* input() const { return input_; }
  // Returns the place of an output of `bytes` bytes, at a multiple of 64.
  uint8_t* output(size_t bytes) const { return end_ - kBehind - (bytes + 63) / 64 * 64; }

  struct Overrun {
    size_t beyond = 0;  // bytes from the output's end to the last byte that was overwritten
    size_t before = 0;  // the same from its begin, if nothing beyond the end was overwritten
  };
  // Says what was overwritten around an output of `bytes` bytes, and makes the room ready for the
  // next output.
  Overrun check(size_t bytes);

 private:
  uint8_t *memory_ = nullptr, *end_ = nullptr, *input_ = nullptr;
  size_t mapped_ = 0;
};

}  // namespace fsccl
