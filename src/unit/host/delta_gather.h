// The gather between hosts with the delta codec (codec/delta.h). As one operation of the lane, it
// sends those words as differences from the last gather that LaneExchange would move as they are.
//
// The words of a host are sent coded if every host has the same copy of them. All hosts know this,
// because they told each other the states of their copies after the last gather, or do so first.
// The words of other hosts are sent plain, straight between the slots. Coded words are sent in
// pieces (plan/coded_pieces.h). A host encodes a piece against its copy, straight into the
// transport's slot, and encodes the next one while the network moves this one. Receivers decode a
// piece into their copies, and from there into the slots, while the next pieces arrive. If a piece
// takes more than half of the plain bytes, its host stops there. In the end all hosts tell the
// states of their copies. Some words are then sent plain once: those whose copy on some host has
// another state than on their own host, because the copy's memory or the bytes have changed, and
// those of a host that has stopped. After that all hosts tell their states again.
//
// After every gather all copies equal the slots. Parts of the operation are plans that are made
// while it runs. Facts that differ from host to host are sent with the states, so all hosts make
// the same choices.
#pragma once
#include "plan/coded_pieces.h"
#include "unit/host/coded_gather.h"

namespace fsccl {

class DeltaGather final : public CodedGather {
 public:
  DeltaGather(HostPool& pool, Communicator& lane, const LaneExchange& exchange,
              const CodecSpec& spec);
  bool stays_out() override;

 private:
  // The begin of the row that a host sends. The states of its copies of all hosts follow.
  struct Told {
    uint64_t encode_ns = 0, decode_ns = 0;  // times of this gather
    uint64_t sent = 0;                      // coded bytes, to each other host
    uint64_t stopped = 0;                   // 1: a piece took too many bytes
    uint64_t byte_ps = 0;                   // cost of a byte of the lane, in picoseconds
    uint64_t exchange_ns = 0;
  };
  static constexpr size_t kToldWords = sizeof(Told) / sizeof(uint64_t);

  static DeltaGather& of(Operation& op) { return static_cast<DeltaGather&>(owner_of(op)); }
  Status place(const std::string& unit) override;
  Completion start(Operation& op, bool changed) override;
  bool covers(fsccl_dtype_t dtype) const override { return DeltaCopies::covers(dtype); }
  Completion tell_states(Operation& op, Then then);
  Completion choose(Operation& op);
  Completion move_plain(Operation& op, const std::vector<bool>& of_hosts);
  Completion take_plain(Operation& op);
  Completion stream(Operation& op);
  uint64_t encode_piece(uint64_t words, uint8_t* out);
  void decode_piece(size_t host, uint64_t words, const uint8_t* in, uint64_t size);
  Completion tell_and_compare(Operation& op);
  Completion compare(Operation& op);
  bool differs(size_t host) const;
  bool mending() const;
  Completion end();
  void measure();
  void judge(const std::vector<uint64_t>& plain);

  Told told(size_t host) const;
  uint64_t told_state(size_t teller, size_t host) const {
    return told_.all[teller * told_.mine.size() + kToldWords + host];
  }
  double byte_ns() const;  // the time of a byte, as all hosts know it
  uint64_t busiest(const std::vector<uint64_t>& bytes) const;

  DeltaCopies copies_;
  CodecChoice choice_;
  Table told_;
  bool agreed_ = false;  // all hosts have told equal states, and nothing has changed a copy since
  // the plans of the pieces of these hosts
  std::vector<Plan> pieces_;
  std::vector<bool> pieces_of_;

  // The state of the gather that runs.
  std::vector<bool> coded_, mends_, plain_;  // by host; `plain_`: its words are moved plain now
  std::vector<bool> broken_;                 // by host: a piece could not be decoded
  uint64_t moved_ = 0;                       // bytes that the busiest host sends or receives
  uint64_t plain_sent_ = 0;                  // bytes that this rank sends to each other rank
  int64_t moves_since_ns_ = 0;
  DeltaForm form_{};
  Told mine_;
  // For pieces of other hosts: the times when the first and the last was there, and the bytes of
  // all but the first.
  int64_t first_ns_ = 0, last_ns_ = 0;
  uint64_t arrived_ = 0;
};

}  // namespace fsccl
