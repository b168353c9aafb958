#include "transports/sim/shared.h"

#include <algorithm>
#include <array>
#include <cstdio>
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
  std::vector<bool> board_seen, left;  // by reader; and the ranks that left
  SharedSegment* around = nullptr;     // the segment that a pair lies in, and is kept by
  std::map<std::pair<int, int>, SegmentPtr> pairs;
};

namespace {

struct Channel {
  SegmentPtr segment;
  int rank = 0;
  bool dead() const { return segment->machine.dead(member(rank)); }
  int member(int of) const { return segment->members[static_cast<size_t>(of)]; }
};

Channel& as_channel(void* channel) { return *static_cast<Channel*>(channel); }

void later(const SegmentPtr& segment, int rank, std::function<void()> happens) {
  SharedMachine& machine = segment->machine;
  machine.world.after(machine.world.between(0, machine.latest_ns),
                      [segment, rank, happens = std::move(happens)] {
                        happens();
                        segment->machine.wake(segment->members[static_cast<size_t>(rank)]);
                      });
}

// The segment of a channel lives as long as one of its ranks has it open; the first to come makes
// it.
fsccl_status_t op_open(const fsccl_transport_request_t* request, void** channel,
                       uint32_t* first_tick, char*, size_t) {
  auto& machine = *static_cast<SharedMachine*>(request->node);
  SegmentPtr segment = machine.segment.lock();
  if (!segment) {
    segment = std::make_shared<SharedSegment>(
        machine, std::vector<int>(request->members, request->members + request->ranks));
    machine.segment = segment;
  }
  *channel = new Channel{std::move(segment), request->rank};
  *first_tick = 1;
  return FSCCL_OK;
}

fsccl_status_t op_pair(void* around, int from, int to, void** pair, uint32_t* first_tick, char*,
                       size_t) {
  const Channel& channel = as_channel(around);
  SegmentPtr& segment = channel.segment->pairs[{from, to}];
  if (!segment) {
    segment = std::make_shared<SharedSegment>(
        channel.segment->machine, std::vector<int>{channel.member(from), channel.member(to)});
    segment->around = channel.segment.get();
  }
  *pair = new Channel{segment, channel.rank == from ? 0 : 1};
  *first_tick = 1;
  return FSCCL_OK;
}

void op_close(void* opened) {
  const std::unique_ptr<Channel> channel(&as_channel(opened));
  if (channel->dead()) return;
  SharedMachine& machine = channel->segment->machine;  // behind all that it has signalled
  machine.world.after(machine.latest_ns,
                      [segment = channel->segment, rank = static_cast<size_t>(channel->rank)] {
                        segment->left[rank] = true;
                      });
}

// In what a signal carries, on its way to one peer, or in the slots that its sender has written.
void turn_a_bit(const Channel& channel, int peer, fsccl_transport_line_t* line) {
  SharedSegment& segment = *channel.segment;
  SharedMachine& machine = segment.machine;
  const bool in_slot = machine.world.chance(0.5);
  const size_t bytes = in_slot ? std::min<size_t>(segment.ring_bytes(), 4 * segment.slot_bytes)
                               : sizeof line->payload;
  auto* const first =
      in_slot ? segment.slots.data() + static_cast<size_t>(channel.rank) * segment.ring_bytes()
              : reinterpret_cast<std::byte*>(line->payload);
  const size_t bit = machine.world.below(bytes * 8);
  first[bit / 8] ^= std::byte{1} << bit % 8;
  machine.damaged.emplace_back(channel.member(channel.rank), in_slot ? -1 : channel.member(peer));
  machine.world.note("bit {} of rank {}'s {} is wrong", bit, channel.member(channel.rank),
                     in_slot ? "slots" : "signal");
}

void op_signal(void* opened, const fsccl_transport_line_t* line) {
  const Channel& channel = as_channel(opened);
  const size_t ranks = channel.segment->members.size();
  for (size_t peer = 0; peer < ranks; peer++) {
    if (static_cast<int>(peer) == channel.rank) continue;
    if (!channel.segment->machine.speaks(channel.member(channel.rank))) return;
    SharedSegment* const segment = channel.segment.get();
    const size_t place = static_cast<size_t>(channel.rank) * ranks + peer;
    fsccl_transport_line_t seen_line = *line;
    if (SharedMachine& machine = segment->machine;
        machine.damage > 0 && machine.world.chance(machine.damage))
      turn_a_bit(channel, static_cast<int>(peer), &seen_line);
    later(channel.segment, static_cast<int>(peer), [segment, place, line = seen_line] {
      fsccl_transport_line_t& seen = segment->seen[place][line.tick % FSCCL_TRANSPORT_TICKS];
      if (static_cast<int32_t>(line.tick - seen.tick) <= 0 && seen.tick != 0) return;
      seen = line;
      seen.processor = -1;
    });
  }
}

fsccl_transport_line_t& line_of(const Channel& channel, int peer, uint32_t tick) {
  const size_t ranks = channel.segment->members.size();
  return channel.segment->seen[static_cast<size_t>(peer) * ranks +
                               static_cast<size_t>(channel.rank)][tick % FSCCL_TRANSPORT_TICKS];
}

const fsccl_transport_line_t* op_poll(void* opened, int peer, uint32_t tick) {
  const Channel& channel = as_channel(opened);
  const fsccl_transport_line_t& line = line_of(channel, peer, tick);
  return line.tick == tick && !channel.dead() ? &line : nullptr;
}

void op_word(void* opened, int peer, uint32_t tick, fsccl_transport_word_t* word) {
  static uint32_t sleepers = 0;
  uint32_t& seen = line_of(as_channel(opened), peer, tick).tick;
  *word = {&seen, seen, &sleepers, -1};
}

int op_can_read(void* channel) { return as_channel(channel).segment->machine.can_read ? 1 : 0; }

fsccl_status_t op_read(void* opened, int peer, uint64_t address, void* destination, size_t bytes,
                       char* error, size_t capacity) {
  const Channel& channel = as_channel(opened);
  if (channel.segment->machine.dead(channel.member(peer))) {
    std::snprintf(error, capacity, "cannot read %zu bytes of its memory: it is dead", bytes);
    return FSCCL_ERR_PEER_DEAD;
  }
  std::memcpy(destination, reinterpret_cast<const void*>(address), bytes);
  return FSCCL_OK;
}

void* op_slots(void* opened, int rank, size_t* ring_bytes, size_t* slot_bytes) {
  SharedSegment& segment = *as_channel(opened).segment;
  *ring_bytes = segment.ring_bytes();
  *slot_bytes = segment.slot_bytes;
  return segment.slots.data() + static_cast<size_t>(rank) * segment.ring_bytes();
}

// The board of a pair is that of the channel around it.
SharedSegment& board_of(const Channel& channel) {
  return channel.segment->around ? *channel.segment->around : *channel.segment;
}

void op_fail(void* opened, const fsccl_transport_failure_t* failure) {
  const Channel& channel = as_channel(opened);
  SharedSegment& board = board_of(channel);
  if (channel.dead() || board.failed) return;
  board.failed = true;
  board.board = *failure;
  for (size_t i = 0; i < board.members.size(); i++)
    later(board.shared_from_this(), static_cast<int>(i),
          [&board, i] { board.board_seen[i] = true; });
}

const fsccl_transport_failure_t* op_failure(void* opened) {
  const Channel& channel = as_channel(opened);
  SharedSegment& board = board_of(channel);
  const auto self =
      std::find(board.members.begin(), board.members.end(), channel.member(channel.rank)) -
      board.members.begin();
  return board.board_seen[static_cast<size_t>(self)] ? &board.board : nullptr;
}

int op_left(void* channel, int peer) {
  return as_channel(channel).segment->left[static_cast<size_t>(peer)] ? 1 : 0;
}

}  // namespace

const fsccl_transport_ops_t* shared_transport() {
  static const fsccl_transport_ops_t ops = {
      .size = sizeof(fsccl_transport_ops_t),
      .abi = FSCCL_TRANSPORT_ABI,
      .name = "sim",
      .available = [](char*, size_t) { return 1; },
      .open = op_open,
      .close = op_close,
      .signal = op_signal,
      .poll = op_poll,
      .word = op_word,
      .can_read = op_can_read,
      .read = op_read,
      .slots = op_slots,
      .reserve = [](void*, char*, size_t) { return FSCCL_OK; },
      .fail = op_fail,
      .failure = op_failure,
      .left = op_left,
      .pair = op_pair};
  return &ops;
}

}  // namespace fsccl::sim
