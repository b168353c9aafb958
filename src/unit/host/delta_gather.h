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
#include "unit/host/coded_gather.h"

namespace fsccl {

class DeltaGather final : public CodedGather {
 public:
  DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec);
  bool stays_out() override;

 private:
  // The begin of the row that a host tells in the first part; the states of its copies of all hosts
  // follow.
  struct Head {
    uint64_t bytes = 0;      // coded bytes; 0: none
    uint64_t state = 0;      // state of its own copy, now
    uint64_t encode_ns = 0;  // time of the encoding
    uint64_t decode_ps = 0;  // time to decode a word, in picoseconds
    uint64_t byte_ps = 0;    // cost of a byte of the lane, in picoseconds
    uint64_t exchange_ns = 0;
  };
  static constexpr size_t kHeadWords = sizeof(Head) / sizeof(uint64_t);

  static DeltaGather& of(Operation& op) { return static_cast<DeltaGather&>(owner_of(op)); }
  Status place(const std::string& unit) override;
  Completion encode(Operation& op, bool changed) override;
  bool covers(fsccl_dtype_t dtype) const override { return DeltaCopies::covers(dtype); }
  Completion choose(Operation& op);
  Completion move(Operation& op, const std::vector<bool>& of_hosts);
  Completion arrived(Operation& op);
  bool take_plain(Operation& op, const std::vector<bool>& plain);
  Completion judge_words(Operation& op);
  bool mending() const;
  Completion end();
  void judge(const std::vector<uint64_t>& plain);

  Head head(size_t host) const;
  uint64_t told_state(size_t teller, size_t host) const {
    return heads_.all[teller * heads_.mine.size() + kHeadWords + host];
  }
  uint64_t most_coded(size_t host) const { return copies_.words(host); }  // half of the plain bytes
  static uint64_t busiest(const std::vector<uint64_t>& bytes);

  DeltaCopies copies_;
  CodecChoice choice_;
  Table heads_, verdicts_;

  // The state of the gather that runs.
  std::vector<bool> coded_, mends_;  // by host
  uint64_t moved_ = 0;               // bytes that the busiest host sends or receives
  uint64_t sent_ = 0;                // bytes that this rank sends to each other rank
  int64_t moves_since_ns_ = 0;
  DeltaForm form_{};
  double encode_ns_ = 0, decode_word_ns_ = 0;
};

}  // namespace fsccl
