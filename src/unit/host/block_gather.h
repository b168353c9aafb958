// The gather between hosts with a block codec (codec/blocks.h), which loses something. When its
// shards have changed, each host encodes its words and tells how many bytes they take. It keeps
// these bytes, so that the gathers of forward and of backward send the same. All hosts decode them,
// including the host that encoded them, so every rank has the same parameters. If too many blocks
// of a host would be sent exactly, all its words are sent plain.
//
// Only the words decide which of them are sent exactly or plain, and never times. So this codec
// never declines.
//
// A custom codec that writes beyond its size, or whose block is beyond its stated bound, fails the
// gather on all ranks.
#pragma once
#include "codec/blocks.h"
#include "unit/host/coded_gather.h"

namespace fsccl {

class BlockGather final : public CodedGather {
 public:
  BlockGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec);

 private:
  Status place(const std::string& unit) override;
  Completion start(Operation& op, bool changed) override;
  bool covers(fsccl_dtype_t dtype) const override { return blocks_take(dtype); }

  static BlockGather& of(Operation& op) { return static_cast<BlockGather&>(owner_of(op)); }
  // Returns the coded bytes. 0: the words are sent plain, or broken_ says what the codec did wrong.
  uint64_t encode_own();
  void count_blocks(const BlocksWritten& sum);
  Completion choose(Operation& op);
  Completion move(Operation& op);
  Completion decode(Operation& op);
  bool decode_host(size_t host, const uint8_t* in, uint64_t size);
  // fixed_bytes() returns the coded bytes of a host's words if none are sent exactly. exact_bytes()
  // returns the most bytes of words that are sent exactly.
  uint64_t fixed_bytes(size_t host) const;
  uint64_t exact_bytes(size_t host) const;
  uint64_t most_coded(size_t host) const { return fixed_bytes(host) + exact_bytes(host); }

  const BlockForm form_;
  Table sizes_;  // coded bytes, by host
  bool known_ = false;
  uint64_t encodings_ = 0;  // it chooses the audited blocks
  uint64_t sent_ = 0;
  std::string broken_;  // how the custom codec broke its word; empty: it has not
};

}  // namespace fsccl
