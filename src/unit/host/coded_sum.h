// The sum between hosts with a codec: what LaneExchange sums as it is, this sends coded
// (codec/blocks.h), as one operation. Each rank encodes what it has for each other one; all are
// exchanged; then each adds up what it gets, in the order of the ranks and in fp32, with its own
// part as it is. Sizes follow from the unit, the order of additions is always the same, and nothing
// depends on times.
//
// With feedback a rank keeps, in the pool, what each element that it sent was short of, and adds it
// the next time: 4 bytes for each element that it sends.
#pragma once
#include <memory>
#include <mutex>

#include "fsccl/insight.h"
#include "unit/host/codec_staging.h"
#include "unit/host/lane_exchange.h"
#include "unit/host/lane_operation.h"
#include "unit/unit_definition.h"

namespace fsccl {

class CodedSum final : public LaneOperation {
 public:
  // Of a rank of those that `exchange` is among. FSCCL_ERR_OUT_OF_MEMORY: the pool has no room.
  static Result<std::unique_ptr<CodedSum>> create(HostPool& pool, Communicator& among,
                                                  const LaneExchange& exchange,
                                                  const CodecSpec& spec, fsccl_dtype_t grad_dtype,
                                                  const std::string& unit);
  ~CodedSum() override;

  // As LaneExchange::run: behind what the chain has, and not waited for. `finishes`: how sums of
  // contributions are finished; those of partial sums are as they are.
  Status run(const SlotSet& slots, const std::vector<std::byte*>& sharded_grads,
             const OperationSettings& finishes, const Fingerprint& called, Chain* chain);

  void report(fsccl_codec_report_t* report) const;  // adds what it has done; any thread

 private:
  CodedSum(HostPool& pool, Communicator& among, const LaneExchange& exchange, const CodecSpec& spec,
           fsccl_dtype_t grad_dtype);
  static CodedSum& of(Operation& op) { return static_cast<CodedSum&>(owner_of(op)); }
  Completion encode(Operation& op);
  Completion sum(Operation& op);
  void plan_exchange();
  bool sum_chunk(Operation& op, const LaneExchange::Range& range, uint64_t at, size_t count);
  void finish(const LaneExchange::Range& range, uint64_t at, size_t count);
  size_t ranks() const { return static_cast<size_t>(lane_.size()); }
  uint64_t coded_bytes(size_t holder) const;

  HostPool& pool_;
  const BlockForm form_;
  const bool partial_sums_, feeds_back_;
  const fsccl_dtype_t grad_dtype_;
  const std::vector<LaneExchange::Range> ranges_;
  std::shared_ptr<CodecStaging> staging_;
  float* feedback_ = nullptr;
  std::vector<float> sums_, own_;  // of a chunk
  Plan plan_;
  uint64_t plain_bytes_ = 0, sent_bytes_ = 0, state_bytes_ = 0;  // of one sum

  // Of the sum that runs.
  std::vector<std::byte*> slots_, sharded_grads_;
  OperationSettings finishes_;
  std::vector<const uint8_t*> received_;  // of each rank, as far as it was read

  std::atomic<uint64_t> runs_{0};
};

}  // namespace fsccl
