// The flows of bytes between ranks when state that was sharded by one layout is to be sharded by
// another, and some of the ranks that held the old shards are gone. This is pure arithmetic: each
// rank works out its own flows, and both ends of a flow work out the same runs in the same order.
//
// Invariant: the bytes that a taker needs of a shard come from itself if it holds that shard.
// Otherwise all ranks that hold it give an equal share each; if some of these are on the taker's
// host, only they do. So each byte goes to each rank that needs it once, and copies share the work.
#pragma once
#include <cstdint>
#include <vector>

#include "layout/layout.h"

namespace fsccl {

struct Redistribution {
  struct Buffer {
    size_t param = 0;  // it is sharded as this parameter is
    uint64_t element_bytes = 0;
  };
  struct Member {
    int holds = -1, takes = -1;  // a shard of `from` and one of `to`; -1: none
    uint64_t host = 0;
  };
  // Bytes that are contiguous both in the old piece and in the new one. `from` and `to` are their
  // offsets in these pieces, in bytes.
  struct Run {
    size_t buffer = 0;
    uint64_t from = 0, to = 0, bytes = 0;
  };

  Layout from, to;
  std::vector<Buffer> buffers;
  std::vector<Member> members;  // by rank

  // Returns the bytes that rank `giver` hands to rank `taker`; both may be the same.
  std::vector<Run> runs(int giver, int taker) const;
  // Return the shards of `from` that no member holds, and the shards of `to` that no member takes.
  // Shards without an element of the buffers are left out.
  std::vector<int> not_held() const;
  std::vector<int> not_taken() const;

 private:
  std::vector<Run> needed(int shard, int taker) const;
  std::vector<int> missing(const Layout& layout, int Member::* role) const;
};

}  // namespace fsccl
