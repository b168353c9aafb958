// The sum between hosts with a codec, of all gradients of a unit or of one gradient. As one
// operation, it sends those elements coded (codec/blocks.h) that LaneExchange would send as they
// are. Each rank encodes its elements for each other rank, and the ranks exchange the blocks. Then
// each rank adds up the elements that it gets and its own elements, which are not coded, in the
// order of the ranks and in fp32. Sizes follow from the unit, the order of additions is always the
// same, and nothing depends on times.
//
// With feedback a rank keeps, in the pool, the error of each element that it sent, and adds it to
// the element the next time. The errors take 4 bytes for each element that the rank sends.
//
// A custom codec that writes beyond its size, or whose block is beyond its stated bound, fails the
// communicator. Ranks that have their sums already learn of it in the next call.
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
  // Makes the sum of a rank of `among`, over the ranges of `exchange`. FSCCL_ERR_OUT_OF_MEMORY: the
  // pool has no room.
  static Result<std::unique_ptr<CodedSum>> create(HostPool& pool, Communicator& among,
                                                  const LaneExchange& exchange,
                                                  const CodecSpec& spec, fsccl_dtype_t grad_dtype,
                                                  const std::string& unit);
  ~CodedSum() override;

  // Submits the sum, as LaneExchange::run() does, behind the operations of the chain, and does not
  // wait. `finishes` says how sums of contributions are finished. It has no effect on partial sums.
  Status run(const SlotSet& slots, const std::vector<std::byte*>& sharded_grads,
             const OperationSettings& finishes, const Fingerprint& called, Chain* chain);

  void report(fsccl_codec_report_t* report) const;  // adds to the fields of reductions; any thread

 private:
  CodedSum(HostPool& pool, Communicator& among, const LaneExchange& exchange, const CodecSpec& spec,
           fsccl_dtype_t grad_dtype);
  static CodedSum& of(Operation& op) { return static_cast<CodedSum&>(owner_of(op)); }
  Completion encode(Operation& op);
  // Returns the bytes written, or 0 if the custom codec did something wrong; broken_ says what.
  // `blocks` is the number of blocks so far.
  uint64_t encode_range(size_t range, uint8_t* out, float* feedback, uint64_t* blocks);
  Completion sum(Operation& op);
  void plan_exchange();
  // Returns false if the operation has failed.
  bool sum_chunk(Operation& op, size_t range, uint64_t at, size_t count);
  void finish(size_t range, uint64_t at, size_t count);
  size_t ranks() const { return static_cast<size_t>(lane_.size()); }
  uint64_t coded_bytes(size_t holder) const;

  HostPool& pool_;
  const CodecSpec spec_;
  const BlockForm form_;
  const bool partial_sums_, feeds_back_;
  const fsccl_dtype_t grad_dtype_;
  const std::vector<LaneExchange::Range> ranges_;
  std::shared_ptr<CodecStaging> staging_;
  float* feedback_ = nullptr;
  Plan plan_;
  uint64_t plain_bytes_ = 0, sent_bytes_ = 0, state_bytes_ = 0;  // sizes for one sum

  // The arguments of the sum that runs, and how far it has come.
  // By range: where its elements lie, and of contributions where their sums go.
  std::vector<std::byte*> elements_, sharded_grads_;
  OperationSettings finishes_;
  std::vector<const uint8_t*> received_;  // by rank: the next chunk to add
  std::string broken_;                    // how the custom codec broke its word; empty: it has not

  std::atomic<uint64_t> runs_{0};
};

}  // namespace fsccl
