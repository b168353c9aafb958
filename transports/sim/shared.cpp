#include "transports/sim/shared.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "base/round_up.h"

namespace fsccl::sim {

using Lines = std::array<fsccl_transport_line_t, FSCCL_TRANSPORT_TICKS>;

using SegmentPtr = std::shared_ptr<SharedSegment>;

// The memory that the ranks of a channel share.
struct SharedSegment : std::enable_shared_from_this<SharedSegment> {
  SharedSegment(SharedMachine& machine_, std::vector<int> members_)
      : machine(machine_), members(std::move(members_)) {
    const size_t ranks = members.size();
    slot_bytes = round_up(machine.slot_bytes, size_t{64});
    slots.resize(ranks * FSCCL_TRANSPORT_SLOTS * slot_bytes);
    seen.resize(ranks * ranks);
    board_seen.resize(ranks);
    left.resize(ranks);
  }
  size_t ring_bytes() const { return FSCCL_TRANSPORT_SLOTS * slot_bytes; }

  SharedMachine& machine;
  std::vector<int> members;  // ranks of the machine
  size_t slot_bytes;
  std::vector<std::byte> slots;
  std::vector<Lines> seen;  // [owner][reader]
  bool failed = false;
  fsccl_transport_failure_t board{};
  std::vector<bool> board_seen, left;  // by reader; by rank
  SharedSegment* around = nullptr;     // the segment of the channel around a pair, which owns it
  std::map<std::pair<int, int>, SegmentPtr> pairs;
};

namespace {

class Channel final : public fsccl::Channel {
 public:
  Channel(SegmentPtr segment, int rank)
      : fsccl::Channel({.transport = "sim", .shares_rings = true}),
        segment_(std::move(segment)),
        rank_(rank) {}
  ~Channel() override;

  void signal(const fsccl_transport_line_t& line) override;
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override;
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override;
  bool can_read() const override { return segment_->machine.can_read; }
  Status read(int peer, uint64_t address, void* destination, size_t bytes) override;
  std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const override;
  void fail(const fsccl_transport_failure_t& failure) override;
  const fsccl_transport_failure_t* failure() override;
  bool left(int peer) const override { return segment_->left[static_cast<size_t>(peer)]; }
  Result<OpenedChannel> pair(int from, int to) override;

 private:
  bool dead() const { return segment_->machine.dead(member(rank_)); }
  int member(int of) const { return segment_->members[static_cast<size_t>(of)]; }
  fsccl_transport_line_t& line_of(int peer, uint32_t tick) const;
  void turn_a_bit(int peer, fsccl_transport_line_t* line) const;
  // The board of a pair is that of the channel around it.
  SharedSegment& board() const { return segment_->around ? *segment_->around : *segment_; }

  SegmentPtr segment_;
  const int rank_;
};

void later(const SegmentPtr& segment, int rank, std::function<void()> happens) {
  SharedMachine& machine = segment->machine;
  machine.world.after(machine.world.between(0, machine.latest_ns),
                      [segment, rank, happens = std::move(happens)] {
                        happens();
                        segment->machine.wake(segment->members[static_cast<size_t>(rank)]);
                      });
}

Result<OpenedChannel> Channel::pair(int from, int to) {
  SegmentPtr& segment = segment_->pairs[{from, to}];
  if (!segment) {
    segment = std::make_shared<SharedSegment>(segment_->machine,
                                              std::vector<int>{member(from), member(to)});
    segment->around = segment_.get();
  }
  return OpenedChannel{std::make_unique<Channel>(segment, rank_ == from ? 0 : 1)};
}

Channel::~Channel() {
  if (dead()) return;
  SharedMachine& machine = segment_->machine;  // peers see this rank leave after all its signals
  machine.world.after(machine.latest_ns, [segment = segment_, rank = static_cast<size_t>(rank_)] {
    segment->left[rank] = true;
  });
}

// Damages what a signal carries on its way to one peer, or the slots that its sender has written.
void Channel::turn_a_bit(int peer, fsccl_transport_line_t* line) const {
  SharedSegment& segment = *segment_;
  SharedMachine& machine = segment.machine;
  const bool in_slot = machine.world.chance(0.5);
  const size_t bytes = in_slot ? std::min<size_t>(segment.ring_bytes(), 4 * segment.slot_bytes)
                               : sizeof line->payload;
  auto* const first = in_slot
                          ? segment.slots.data() + static_cast<size_t>(rank_) * segment.ring_bytes()
                          : reinterpret_cast<std::byte*>(line->payload);
  const size_t bit = machine.world.below(bytes * 8);
  first[bit / 8] ^= std::byte{1} << bit % 8;
  machine.damaged.emplace_back(member(rank_), in_slot ? -1 : member(peer));
  // If the ranks exchange their rings, the peer may have written these bytes.
  if (in_slot && traits().exchanges_rings(static_cast<int>(segment.members.size())))
    machine.damaged.emplace_back(member(peer), -1);
  machine.world.note("bit {} of rank {}'s {} is wrong", bit, member(rank_),
                     in_slot ? "slots" : "signal");
}

void Channel::signal(const fsccl_transport_line_t& line) {
  const size_t ranks = segment_->members.size();
  for (size_t peer = 0; peer < ranks; peer++) {
    if (static_cast<int>(peer) == rank_) continue;
    if (!segment_->machine.speaks(member(rank_))) return;
    SharedSegment* const segment = segment_.get();
    const size_t place = static_cast<size_t>(rank_) * ranks + peer;
    fsccl_transport_line_t seen_line = line;
    if (SharedMachine& machine = segment->machine;
        machine.damage > 0 && machine.world.chance(machine.damage))
      turn_a_bit(static_cast<int>(peer), &seen_line);
    later(segment_, static_cast<int>(peer), [segment, place, line = seen_line] {
      fsccl_transport_line_t& seen = segment->seen[place][line.tick % FSCCL_TRANSPORT_TICKS];
      if (static_cast<int32_t>(line.tick - seen.tick) <= 0 && seen.tick != 0) return;
      seen = line;
      seen.processor = -1;
    });
  }
}

fsccl_transport_line_t& Channel::line_of(int peer, uint32_t tick) const {
  const size_t ranks = segment_->members.size();
  return segment_->seen[static_cast<size_t>(peer) * ranks + static_cast<size_t>(rank_)]
                       [tick % FSCCL_TRANSPORT_TICKS];
}

const fsccl_transport_line_t* Channel::poll(int peer, uint32_t tick) {
  const fsccl_transport_line_t& line = line_of(peer, tick);
  return line.tick == tick && !dead() ? &line : nullptr;
}

void Channel::word(int peer, uint32_t tick, fsccl_transport_word_t* word) {
  static uint32_t sleepers = 0;
  uint32_t& seen = line_of(peer, tick).tick;
  *word = {&seen, seen, &sleepers, -1};
}

Status Channel::read(int peer, uint64_t address, void* destination, size_t bytes) {
  if (segment_->machine.dead(member(peer)))
    return ::fsccl::fail(FSCCL_ERR_PEER_DEAD, "cannot read {} bytes of its memory: it is dead",
                         bytes);
  std::memcpy(destination, reinterpret_cast<const void*>(address), bytes);
  return success();
}

std::byte* Channel::slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const {
  *ring_bytes = segment_->ring_bytes();
  *slot_bytes = segment_->slot_bytes;
  return segment_->slots.data() + static_cast<size_t>(rank) * segment_->ring_bytes();
}

void Channel::fail(const fsccl_transport_failure_t& failure) {
  SharedSegment& board = this->board();
  if (dead() || board.failed) return;
  board.failed = true;
  board.board = failure;
  for (size_t i = 0; i < board.members.size(); i++)
    later(board.shared_from_this(), static_cast<int>(i),
          [&board, i] { board.board_seen[i] = true; });
}

const fsccl_transport_failure_t* Channel::failure() {
  SharedSegment& board = this->board();
  const auto self =
      std::find(board.members.begin(), board.members.end(), member(rank_)) - board.members.begin();
  return board.board_seen[static_cast<size_t>(self)] ? &board.board : nullptr;
}

class SharedTransport final : public Transport {
 public:
  SharedTransport() : Transport("sim") {}
  Status available() const override { return success(); }
  // The first rank that opens a channel makes its segment, which lives as long as a rank has the
  // channel open.
  Result<OpenedChannel> open(const ChannelRequest& request) const override {
    SharedMachine& machine = static_cast<SharedNode*>(request.node)->machine;
    SegmentPtr segment = machine.segment.lock();
    if (!segment) {
      segment = std::make_shared<SharedSegment>(
          machine, std::vector<int>(request.members.begin(), request.members.end()));
      machine.segment = segment;
    }
    return OpenedChannel{std::make_unique<Channel>(std::move(segment), request.rank)};
  }
};

}  // namespace

const Transport* shared_transport() {
  static const SharedTransport transport;
  return &transport;
}

}  // namespace fsccl::sim
