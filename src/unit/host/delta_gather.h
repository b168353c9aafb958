// The gather between hosts with the delta codec (codec/delta.h): words that LaneExchange moves as
// they are travel as differences from the last gather, as one operation of the lane in four parts.
//
// First every host encodes its words against its copy, and tells all hosts how many bytes that
// takes and the states of its copies. All hosts then know alike whose words go coded: those of a
// host whose copy has the same state everywhere, and whose code takes at most half of the plain
// bytes. The others go plain, straight between the slots. Second, the bytes move. Third, receivers
// decode into their copies and from there into the slots, and tell whose words were wrong, because
// a copy's memory or the bytes have changed. Fourth, those words, if any, go plain.
//
// After every gather all copies equal the slots. The parts are plans of the lane (list_plans.h),
// which are made during the gather, when the sizes are known. Facts that differ from host to host
// are exchanged with them, so all hosts choose alike.
#pragma once
#include <memory>
#include <mutex>

#include "comm/chain.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"
#include "plan/list_plans.h"
#include "unit/host/codec_staging.h"
#include "unit/unit_definition.h"

namespace fsccl {

class DeltaGather {
 public:
  // Creates the gather of a rank of the lane, over the ranges that it exchanges, and places the
  // copies in the pool. Returns FSCCL_ERR_OUT_OF_MEMORY if there is no room.
  static Result<std::unique_ptr<DeltaGather>> create(HostPool& pool, Communicator& lane,
                                                     const LaneExchange& exchange,
                                                     const CodecSpec& spec,
                                                     const std::string& unit);
  ~DeltaGather();

  // Once for each gather, before it: the codec stays out of this one, which is plain. The same on
  // all ranks.
  bool stays_out();
  // Into the slots, behind what the chain has; not waited for. `called`: what ranks compare.
  Status run(const SlotSet& slots, const Fingerprint& called, Chain* chain);

  // Any thread.
  void report(fsccl_codec_report_t* report) const;

 private:
  DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec);
  // The message of a host in the first part; the states of its copies of all hosts follow.
  struct Head {
    uint64_t bytes = 0;      // coded; 0: none
    uint64_t state = 0;      // state of its own copy, now
    uint64_t encode_ns = 0;  // time of the encoding, and known costs, in picoseconds
    uint64_t decode_ps = 0;  // a word
    uint64_t byte_ps = 0;    // cost of a byte of the lane
    uint64_t exchange_ns = 0;
  };
  static constexpr size_t kHeadWords = sizeof(Head) / sizeof(uint64_t);

  static DeltaGather& of(Operation& op) { return *static_cast<DeltaGather*>(op.owner); }
  static Completion begun(Operation& op);
  static Completion heads_are_here(Operation& op);
  static Completion window_is_over(Operation& op);
  static Completion verdicts_are_here(Operation& op);
  Completion encode(Operation& op);
  Completion choose(Operation& op);
  Completion move(Operation& op, const std::vector<bool>& hosts);
  Completion arrived(Operation& op);
  std::vector<uint64_t> list(const std::vector<bool>& hosts, ListShape* shape);
  bool take_plain(Operation& op, const std::vector<bool>& hosts);
  bool mending() const;
  Completion end(Operation& op);
  Completion exchange(Operation& op, const Plan& plan, Completion (*then)(Operation&));
  Completion fail(Operation& op, size_t host, const char* what) const;
  void judge(const std::vector<uint64_t>& plain);

  Head head(size_t host) const;
  uint64_t told_state(size_t teller, size_t host) const {
    return all_[teller * row_ + kHeadWords + host];
  }
  uint64_t most_coded(size_t host) const { return copies_.words(host); }  // half of the plain bytes
  uint64_t busiest(const std::vector<uint64_t>& bytes) const;

  HostPool& pool_;
  Communicator& lane_;
  const size_t self_;
  const CodecSpec spec_;
  const std::vector<LaneExchange::Range> ranges_;
  DeltaCopies copies_;
  std::byte* memory_ = nullptr;  // memory of the copies
  std::shared_ptr<CodecStaging> staging_;
  CodecChoice choice_;
  size_t row_ = 0;  // words of a head with its states

  Plan nothing_, heads_plan_, verdicts_plan_;
  std::vector<uint64_t> mine_, all_, verdict_, verdicts_;

  // State of the gather in flight.
  std::vector<std::byte*> slots_;
  std::vector<bool> coded_, mends_;  // by host
  std::vector<Plan> windows_;
  std::vector<Binding> bindings_;
  size_t window_ = 0;
  uint64_t moved_ = 0;  // bytes of the busiest way
  uint64_t sent_ = 0;   // bytes of this rank to each other
  int64_t moves_since_ns_ = 0;
  DeltaForm form_{};
  double encode_ns_ = 0, decode_word_ns_ = 0;

  mutable std::mutex mutex_;  // the figures
  fsccl_codec_report_t figures_ = FSCCL_CODEC_REPORT_INIT;
};

}  // namespace fsccl
