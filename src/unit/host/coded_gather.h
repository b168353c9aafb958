// The gather between hosts with a codec. As one operation of the lane, it moves those words coded
// that LaneExchange would move as they are. delta_gather.h and block_gather.h say how. This file
// has the part that both share.
#pragma once
#include <memory>
#include <mutex>

#include "fsccl/insight.h"
#include "unit/host/codec_staging.h"
#include "unit/host/lane_exchange.h"
#include "unit/host/lane_operation.h"
#include "unit/unit_definition.h"

namespace fsccl {

class CodedGather : public LaneOperation {
 public:
  // Makes the gather of a rank of the lane, over the ranges of `exchange`, with the unit's
  // gather_codec. The pool has the memory that the gather keeps. FSCCL_ERR_OUT_OF_MEMORY: the pool
  // has no room.
  static Result<std::unique_ptr<CodedGather>> create(HostPool& pool, Communicator& lane,
                                                     const LaneExchange& exchange,
                                                     const CodecSpec& spec,
                                                     const std::string& unit);
  ~CodedGather() override;

  // Is called once before each gather. Returns true if this gather must be plain. All ranks get the
  // same answer.
  virtual bool stays_out() { return false; }
  // Submits the gather into the slots behind the operations of the chain, and does not wait.
  // `called` is the fingerprint that ranks compare. `changed` says that the shards may have changed
  // since the last gather; it is the same on all ranks.
  Status run(const SlotSet& slots, const Fingerprint& called, bool changed, Chain* chain);

  // Any thread may call it.
  void report(fsccl_codec_report_t* report) const;

 protected:
  CodedGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec, std::string name);

  virtual Status place(const std::string& unit) = 0;
  virtual Completion start(Operation& op, bool changed) = 0;
  virtual bool covers(fsccl_dtype_t dtype) const = 0;

  Status allocate(uint64_t bytes, const std::string& unit);  // sets memory_
  // Lists the tensors of `hosts`. `coded` has the number of coded bytes by host. This rank has them
  // at `sent`; if that is null, they are not listed. 0: the host's words are sent plain, from slot
  // to slot. With `others`, tensors that the codec does not cover are listed, too. Returns the
  // bytes of each host.
  std::vector<uint64_t> list(const std::vector<bool>& hosts, const std::vector<uint64_t>& coded,
                             bool others, uint8_t* sent, ListShape* shape);
  std::vector<uint64_t> plain_bytes() const;  // by host
  size_t hosts() const { return static_cast<size_t>(lane_.size()); }

  // The outcome of a gather. count() adds it to the lane's sums and to the figures.
  struct Gathered {
    bool coded = false, mended = false;
    uint64_t sent = 0;  // bytes that this rank sent to each other rank
  };
  void count(const Gathered& what);

  HostPool& pool_;
  const CodecSpec spec_;
  const std::vector<LaneExchange::Range> ranges_;
  std::byte* memory_ = nullptr;
  std::shared_ptr<CodecStaging> staging_;
  std::vector<std::byte*> slots_;  // addresses of the slots in the gather that runs

  mutable std::mutex mutex_;  // protects figures_, whose state_bytes is without the staging
  fsccl_codec_report_t figures_ = FSCCL_CODEC_REPORT_INIT;

 private:
  static Completion begun(Operation& op);
  bool changed_ = true;
};

}  // namespace fsccl
