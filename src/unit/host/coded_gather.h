// The gather between hosts with a codec: what LaneExchange moves as it is, this moves coded, as one
// operation of the lane. delta_gather.h and block_gather.h say how; here is what they share.
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
  // Of a rank of the lane, over what it exchanges, with the unit's gather_codec. Places what it
  // keeps in the pool. FSCCL_ERR_OUT_OF_MEMORY: there is no room.
  static Result<std::unique_ptr<CodedGather>> create(HostPool& pool, Communicator& lane,
                                                     const LaneExchange& exchange,
                                                     const CodecSpec& spec,
                                                     const std::string& unit);
  ~CodedGather() override;

  // Once for each gather, before it: the codec stays out of this one, which is plain. The same on
  // all ranks.
  virtual bool stays_out() { return false; }
  // Into the slots, behind what the chain has; not waited for. `called`: what ranks compare.
  // `changed`: the shards may have changed since the last gather; the same on all ranks.
  Status run(const SlotSet& slots, const Fingerprint& called, bool changed, Chain* chain);

  // Any thread.
  void report(fsccl_codec_report_t* report) const;

 protected:
  CodedGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec, std::string name);

  virtual Status place(const std::string& unit) = 0;
  virtual Completion encode(Operation& op, bool changed) = 0;  // begins
  virtual bool covers(fsccl_dtype_t dtype) const = 0;

  Status allocate(uint64_t bytes, const std::string& unit);  // memory_
  // Lists what `hosts` bring: as so many bytes coded, which lie at `sent`; 0: from slot to slot.
  // `others`: also what the codec does not cover. Returns the bytes of each host.
  std::vector<uint64_t> list(const std::vector<bool>& hosts, const std::vector<uint64_t>& coded,
                             bool others, uint8_t* sent, ListShape* shape);
  std::vector<uint64_t> plain_bytes() const;  // of each host
  size_t hosts() const { return static_cast<size_t>(lane_.size()); }

  // The gather is over. `how` counts in the lane's sums.
  struct Gathered {
    bool coded = false, mended = false;
    uint64_t sent = 0;  // bytes of this rank to each other
  };
  void count(const Gathered& what);

  HostPool& pool_;
  const CodecSpec spec_;
  const std::vector<LaneExchange::Range> ranges_;
  std::byte* memory_ = nullptr;
  std::shared_ptr<CodecStaging> staging_;
  std::vector<std::byte*> slots_;  // of the gather that runs

  mutable std::mutex mutex_;  // the figures
  fsccl_codec_report_t figures_ = FSCCL_CODEC_REPORT_INIT;

 private:
  static Completion begun(Operation& op);
  bool changed_ = true;
};

}  // namespace fsccl
