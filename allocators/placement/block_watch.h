// Debug mode of blocks: what a program did wrong with one, found out at the next call that can see
// it. Four means:
//
//   red zones   bytes before and behind a block, looked at when it is freed: somebody wrote beyond
//               its ends.
//   poison      freed bytes are 0xff, a NaN in every type of floating point, and looked at before
//               they are given out again: other bytes mean that somebody wrote after the free.
//               Fresh blocks are full of it, too, so that what was never written shows.
//   places      an address carries a tag of its generation: a block begins at one of several places
//               in its bytes, one whose address none of the last blocks had, so that an old address
//               is not taken for the new block's.
//   uses        the work that was declared on a block: a use must be ordered behind the writes
//               before it, a write behind the reads.
//
// Bytes are only written to when the program itself has waited for all work on them (`over`); until
// then they belong to a stream's queue. So a block that takes over bytes in the order of a stream
// alone has no red zones.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocators/placement/block_streams.h"

namespace fsccl {

struct Block {
  std::byte* address = nullptr;  // as the caller knows it
  uint64_t bytes = 0;            // that were asked for
  uint64_t begin = 0, end = 0;   // range of the region that it takes
  uint64_t data = 0;             // where it is in the region
  uint64_t call = 0;             // that made it: calls for blocks are numbered from 1
  const void* stream = nullptr;  // that it was made on
  bool import = false;           // the caller's own memory
  bool zones = false;            // it has red zones
  StreamClock done{};            // its last use on each stream so far
};
// "block of 8 bytes at 0x40 (made by call 3 on stream 0x10)"
std::string block_text(const Block& block);

class BlockWatch {
 public:
  // blocks that were freed last, for the text of an error
  static constexpr size_t kRemembered = 1024;
  static constexpr uint64_t kPlaces = 4;
  static constexpr uint64_t kZone = 64;  // at least, behind a block; before it is its alignment

  // `memory`: of the region.
  BlockWatch(std::byte* memory, const BlockStreams& streams) : memory_(memory), streams_(streams) {}

  static uint64_t room(uint64_t bytes, uint64_t alignment);  // that a block takes
  // Before [begin, end) is given out: was any of it written after it was freed? Not to be asked
  // again.
  Status reuse(uint64_t begin, uint64_t end);
  uint64_t place(uint64_t begin, uint64_t alignment) const;  // where a block in these bytes begins
  void given(Block& block, uint32_t stream, bool over);  // content of the block at its beginning
  Status use(const Block& block, uint64_t begin, uint64_t end, uint32_t stream, bool writes,
             uint64_t call);
  Status intact(const Block& block);          // its red zones
  Status may_end(const Block& import) const;  // is all work on it over?
  void freed(const Block& block, uint64_t call, const void* stream);
  Status cool();  // the program has waited for something
  // through all free bytes from this offset on, which are forgotten
  Status look(uint64_t from);
  // "; it was ..." if it points into a block that is freed
  std::string past_of(const void* pointer) const;

 private:
  struct Use {
    uint64_t begin, end;  // in the block
    uint32_t stream;
    bool writes;
    uint64_t clock, call;
  };
  struct Freed {
    Block block;
    uint64_t call = 0;
    const void* stream = nullptr;
    bool poisoned = false;
  };
  static std::string freed_text(const Freed& freed);
  Status unchanged(uint64_t begin, uint64_t end, const Freed& freed) const;
  void poison(uint64_t begin, uint64_t end, Freed& freed);
  void remember(const Freed& freed);

  std::byte* memory_;
  const BlockStreams& streams_;
  // begin -> (end, whose it was), of what nobody has taken since
  std::map<uint64_t, std::pair<uint64_t, Freed>> free_;
  std::unordered_map<const std::byte*, Freed> last_at_;              // by address
  std::deque<std::pair<const std::byte*, uint64_t>> order_of_last_;  // (address, call)
  // by the call that made the block
  std::unordered_map<uint64_t, std::vector<Use>> uses_;
};

}  // namespace fsccl
