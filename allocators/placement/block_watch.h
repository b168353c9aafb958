// Debug mode of blocks. It finds what a program did wrong with a block, at the next call that can
// see it. There are three means:
//
//   red zones   bytes before and behind a block, which are checked when it is freed: if they have
//               changed, the program wrote beyond its ends.
//   poison      freed bytes are 0xff, a NaN in every type of floating point, and are checked before
//               they are given out again: if they have changed, the program wrote after the free.
//               Fresh blocks are full of poison, too, so that what was never written shows.
//   places      a block begins at one of kPlaces addresses in its bytes: at one where none of the
//               last kRemembered freed blocks began, or else at the one that was freed longest ago.
//               So an old address is rarely the address of the new block.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <unordered_map>

#include "base/status.h"

namespace fsccl {

struct Block {
  std::byte* address = nullptr;  // as the caller knows it
  uint64_t bytes = 0;            // requested bytes
  uint64_t begin = 0, end = 0;   // range of the region that it takes
  uint64_t data = 0;             // offset of `address` in the region
  uint64_t call = 0;             // the call that made it; calls for blocks are numbered from 1
  bool import = false;           // the caller's own memory, which has no red zones
};
// "block of 8 bytes at 0x40 (made by call 3)"
std::string block_text(const Block& block);

class BlockWatch {
 public:
  // The number of blocks freed last that are remembered, for the texts of errors.
  static constexpr size_t kRemembered = 1024;
  static constexpr uint64_t kPlaces = 4;
  // A red zone has at least this many bytes behind a block, and before it at least its alignment.
  static constexpr uint64_t kZone = 64;

  // `memory` is the first byte of the region's memory.
  explicit BlockWatch(std::byte* memory) : memory_(memory) {}

  static uint64_t room(uint64_t bytes, uint64_t alignment);  // bytes that a block takes
  // Checks that [begin, end) was not written since it was freed, before it is given out again, and
  // forgets what was freed there.
  Status reuse(uint64_t begin, uint64_t end);
  uint64_t place(uint64_t begin, uint64_t alignment) const;  // offset of the block in these bytes
  void given(const Block& block);                            // fills its zones and itself
  Status intact(const Block& block);                         // checks its red zones
  void freed(const Block& block, uint64_t call);
  // Checks all free bytes from this offset on, as reuse() does.
  Status look(uint64_t from);
  // Returns a text about the freed block that the pointer is in; empty if it is in none.
  std::string past_of(const void* pointer) const;

 private:
  struct Freed {
    Block block;
    uint64_t call = 0;
  };
  static std::string freed_text(const Freed& freed);
  Status unchanged(uint64_t begin, uint64_t end, const Freed& freed) const;
  void remember(const Freed& freed);

  std::byte* memory_;
  // freed ranges that were not given out again: begin -> (end, the freed block)
  std::map<uint64_t, std::pair<uint64_t, Freed>> free_;
  std::unordered_map<const std::byte*, Freed> last_at_;              // by address
  std::deque<std::pair<const std::byte*, uint64_t>> order_of_last_;  // (address, call)
};

}  // namespace fsccl
