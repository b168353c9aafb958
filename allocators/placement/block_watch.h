// Debug mode of blocks: what a program did wrong with one, found out at the next call that can see
// it. Three means:
//
//   red zones   bytes before and behind a block, looked at when it is freed: somebody wrote beyond
//               its ends.
//   poison      freed bytes are 0xff, a NaN in every type of floating point, and looked at before
//               they are given out again: other bytes mean that somebody wrote after the free.
//               Fresh blocks are full of it, too, so that what was never written shows.
//   places      an address carries a tag of its generation: a block begins at one of several places
//               in its bytes, one whose address none of the last blocks had, so that an old address
//               is not taken for the new block's.
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
  uint64_t bytes = 0;            // that were asked for
  uint64_t begin = 0, end = 0;   // range of the region that it takes
  uint64_t data = 0;             // where it is in the region
  uint64_t call = 0;             // that made it: calls for blocks are numbered from 1
  bool import = false;           // the caller's own memory, which has no red zones
};
// "block of 8 bytes at 0x40 (made by call 3)"
std::string block_text(const Block& block);

class BlockWatch {
 public:
  // blocks that were freed last, for the text of an error
  static constexpr size_t kRemembered = 1024;
  static constexpr uint64_t kPlaces = 4;
  static constexpr uint64_t kZone = 64;  // at least, behind a block; before it is its alignment

  // `memory`: of the region.
  explicit BlockWatch(std::byte* memory) : memory_(memory) {}

  static uint64_t room(uint64_t bytes, uint64_t alignment);  // that a block takes
  // Before [begin, end) is given out: was any of it written after it was freed? Not to be asked
  // again.
  Status reuse(uint64_t begin, uint64_t end);
  uint64_t place(uint64_t begin, uint64_t alignment) const;  // where a block in these bytes begins
  void given(const Block& block);                            // writes what the block begins with
  Status intact(const Block& block);                         // its red zones
  void freed(const Block& block, uint64_t call);
  // through all free bytes from this offset on, which are forgotten
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
  // begin -> (end, whose it was), of what nobody has taken since
  std::map<uint64_t, std::pair<uint64_t, Freed>> free_;
  std::unordered_map<const std::byte*, Freed> last_at_;              // by address
  std::deque<std::pair<const std::byte*, uint64_t>> order_of_last_;  // (address, call)
};

}  // namespace fsccl
