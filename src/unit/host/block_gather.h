// The gather between hosts with a block codec (codec/blocks.h), which loses something. Each host
// encodes what it brings when its shards have changed, and tells how many bytes that takes; it
// keeps them, so that the gathers of forward and of backward send the same. All hosts decode, the
// one that brought them as well: every rank has the same parameters. Where too many blocks would go
// exactly, all of a host's words go plain.
//
// The words alone decide which of them go exactly or plain, never times: this codec does not
// decline.
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
  uint64_t encode_own();  // returns the coded bytes; 0: the words go plain
  Completion choose(Operation& op);
  Completion move(Operation& op);
  Completion decode(Operation& op);
  bool decode_host(size_t host, const uint8_t* in, uint64_t size);
  // fixed_bytes() returns the coded bytes of a host's words if none go exactly, exact_bytes() the
  // most bytes of words that go exactly.
  uint64_t fixed_bytes(size_t host) const;
  uint64_t exact_bytes(size_t host) const;
  uint64_t most_coded(size_t host) const { return fixed_bytes(host) + exact_bytes(host); }

  const BlockForm form_;
  Table sizes_;  // coded bytes, by host
  bool known_ = false;
  uint64_t phase_ = 0;  // number of blocks so far; it chooses the audited ones
  uint64_t sent_ = 0;
};

}  // namespace fsccl
