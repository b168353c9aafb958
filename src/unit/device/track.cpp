#include "unit/device/track.h"

#include "base/hash.h"
#include "base/wait.h"
#include "comm/device/drain.h"
#include "unit/device/watchdog.h"

namespace fsccl {
namespace {

constexpr int kWordsOfTrack = 4;
constexpr int64_t kTrackNapNs = 50'000;

}  // namespace

Track::Track(Communicator& comm, InboxChannel channel, Kind kind)
    : comm_(comm),
      channel_(std::move(channel)),
      ready_(kind == Kind::parameters ? 0 : kWordsOfTrack),
      done_(ready_ + 2),
      begun_(ready_) {
  Watchdog::instance().add(this);
}

Track::~Track() {
  finish();
  finish_with_peers();
  Watchdog::instance().remove(this);
}

Status Track::put(std::vector<cuda::CUstreamBatchMemOpParams> operations,
                  cuda::CUstream stream) const {
  if (operations.empty()) return success();
  const cuda::Device& device = inboxes().device();
  const cuda::Current current(device);
  return device.put_values(std::move(operations), stream);
}

Status Track::begin(cuda::CUstream stream) {
  std::vector<cuda::CUstreamBatchMemOpParams> operations;
  const int me = rank();
  if (steps_ && stream != stream_)
    operations.push_back(inboxes().wait(number(), me, begun_ + 1, steps_, Inboxes::Until::reached));
  operations.push_back(inboxes().write(me, number(), me, begun_, steps_ + 1));
  FSCCL_TRY(put(std::move(operations), stream));
  stream_ = stream;
  return success();
}

// Waits for streams. After a failure they end by themselves, unless the device no longer runs, so
// the wait has a limit then.
template <class Holds>
void Track::wait_for_streams(const Holds& holds) const {
  const auto failed = [this] { return !comm_.engine().intact().ok(); };
  if (wait_until(holds, Deadline::never(), failed, Naps(kTrackNapNs)) == WaitEnd::broken)
    wait_until(holds, Deadline::in_ms(kDrainMs), kNothingBreaks, Naps(kTrackNapNs));
}

void Track::note(const Outstanding& one) {
  // There is no room if the program is too far ahead of its streams.
  wait_for_streams([&] {
    const std::lock_guard lock(mutex_);
    while (first_ < next_ && inboxes().reached(inboxes().read(number(), rank(), begun_ + 1),
                                               outstanding_[first_ % kMostOutstanding].step))
      first_++;
    const bool room = next_ - first_ < kMostOutstanding;
    if (room) outstanding_[next_++ % kMostOutstanding] = one;
    return room;
  });
  Watchdog::instance().wake();
}

void Track::take_only(OpCode op) {
  Inboxes::LogEntry entry;
  entry.op = static_cast<uint8_t>(op);
  note({++steps_, entry, 0});
}

void Track::enter(OpCode op, uint8_t flags, uint64_t hash) {
  sequence_++;
  hash = mix_in_order(hash, sequence_);
  // never the hash of the previous operation in the same word
  hash_ = inboxes().wide() ? hash : hash << 1 | (sequence_ >> 1 & 1);
  const Inboxes::LogEntry entry{inboxes().next_number(),  hash_, number(),
                                static_cast<uint8_t>(op), flags, sequence_};
  inboxes().log(entry);
  note({++steps_, entry, 0});
}

Status Track::signal(int tick, cuda::CUstream stream) {
  std::vector<cuda::CUstreamBatchMemOpParams> operations;
  for (int peer = 0; peer < ranks(); peer++) {
    if (peer == rank()) continue;
    operations.push_back(tick == 0
                             ? inboxes().write(peer, number(), rank(), ready_word(sequence_), hash_)
                             : inboxes().write(peer, number(), rank(), done_, sequence_));
  }
  if (tick != 0) moved_ = sequence_;
  return put(std::move(operations), stream);
}

Status Track::wait(const std::vector<int>& peers, int tick, cuda::CUstream stream) {
  std::vector<cuda::CUstreamBatchMemOpParams> operations;
  const auto add = [&](int peer) {
    operations.push_back(
        tick == 0
            ? inboxes().wait(number(), peer, ready_word(sequence_), hash_, Inboxes::Until::equal)
            : inboxes().wait(number(), peer, done_, sequence_, Inboxes::Until::reached));
  };
  for (const int peer : peers) add(peer);
  for (int peer = 0; peers.empty() && peer < ranks(); peer++)
    if (peer != rank()) add(peer);
  return put(std::move(operations), stream);
}

Status Track::end(cuda::CUstream stream, bool reads_no_more) {
  std::vector<cuda::CUstreamBatchMemOpParams> operations;
  for (int peer = 0; reads_no_more && peer < ranks(); peer++)
    if (peer != rank())
      operations.push_back(inboxes().write(peer, number(), rank(), done_, sequence_));
  if (reads_no_more) moved_ = sequence_;
  operations.push_back(inboxes().write(rank(), number(), rank(), begun_ + 1, steps_));
  return put(std::move(operations), stream);
}

std::vector<cuda::CUstreamBatchMemOpParams> Track::released() const {
  std::vector<cuda::CUstreamBatchMemOpParams> waits;
  for (int peer = 0; moved_ && peer < ranks(); peer++)
    if (peer != rank())
      waits.push_back(inboxes().wait(number(), peer, done_, moved_, Inboxes::Until::reached));
  return waits;
}

void Track::finish() const {
  wait_for_streams([this] { return idle(); });
}

void Track::finish_with_peers() {
  Engine& engine = comm_.engine();
  const Deadline deadline = comm_.deadline();
  for (int peer = 0; moved_ && peer < ranks(); peer++) {
    const auto over = [&] {
      return peer == rank() || inboxes().reached(inboxes().read(number(), peer, done_), moved_);
    };
    const auto ends = [&] { return !engine.intact().ok() || engine.has_left(peer); };
    if (wait_until(over, deadline, ends, Naps(kTrackNapNs)) != WaitEnd::held)
      return let_streams_go();
  }
}

bool Track::look() {
  const std::lock_guard lock(mutex_);
  const uint64_t ended = inboxes().read(number(), rank(), begun_ + 1);
  while (first_ < next_ && inboxes().reached(ended, outstanding_[first_ % kMostOutstanding].step))
    first_++;
  if (first_ == next_) return false;
  Outstanding& one = outstanding_[first_ % kMostOutstanding];
  if (comm_.engine().failed()) return true;
  compare_logs(one);
  check_time(one);
  return true;
}

// Writes the values for which this track's streams may wait in vain: the present operation's
// `ready`, and every `done`. A late peer may overwrite such a value; the watchdog's next look
// writes it again.
void Track::let_streams_go() {
  const std::lock_guard lock(mutex_);
  for (int peer = 0; peer < ranks(); peer++) {
    if (peer == rank()) continue;
    inboxes().let_go(number(), peer, done_, moved_ + Inboxes::kBeyond);
    if (first_ == next_) continue;
    const Inboxes::LogEntry& entry = outstanding_[first_ % kMostOutstanding].entry;
    if (entry.number) inboxes().let_go(number(), peer, ready_word(entry.sequence), entry.hash);
  }
}

std::string Track::describe(const Inboxes::LogEntry& entry) const {
  return fmt::format("{} of unit '{}' (its operation {})", op_name(static_cast<OpCode>(entry.op)),
                     inboxes().unit_of(entry.channel), entry.sequence);
}

void Track::compare_logs(const Outstanding& one) {
  for (int peer = 0; one.entry.number && peer < ranks(); peer++) {
    Inboxes::LogEntry theirs;
    if (peer == rank() || !inboxes().read_log(peer, one.entry.number, &theirs) ||
        theirs.hash == one.entry.hash)
      continue;
    const bool same = theirs.channel == one.entry.channel && theirs.op == one.entry.op &&
                      theirs.sequence == one.entry.sequence;
    Error error;
    error.code = FSCCL_ERR_MISMATCH;
    error.rank = rank();
    error.peer = peer;
    error.operation = op_name(static_cast<OpCode>(one.entry.op));
    error.sequence = one.entry.sequence;
    error.text = same ? fmt::format(
                            "ranks disagree: ranks {} and {} call {} with another mode (writable "
                            "or not, changed or not, scale, "
                            "accumulate), or took and gave back other slots before. All ranks must "
                            "issue the same operations "
                            "in the same order",
                            rank(), peer, describe(one.entry))
                      : fmt::format(
                            "ranks disagree: rank {} calls {}, rank {} calls {}. All ranks must "
                            "issue the same operations in "
                            "the same order",
                            rank(), describe(one.entry), peer, describe(theirs));
    return comm_.engine().fail_all(error);
  }
}

// Returns the ranks whose signals have not come, and the first of them in *peer.
std::string Track::missing(const Outstanding& one, int* peer) const {
  std::string text;
  const auto list = [&](int late) {
    if (*peer < 0) *peer = late;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", late);
  };
  for (int other = 0; one.entry.number && other < ranks(); other++)
    if (other != rank() &&
        !inboxes().equal(inboxes().read(number(), other, ready_word(one.entry.sequence)),
                         one.entry.hash))
      list(other);
  return text;
}

// Checks the operation's deadline. Its time begins when the stream has reached it, because the
// caller's earlier work on the stream may take any time.
void Track::check_time(Outstanding& one) {
  Engine& engine = comm_.engine();
  if (!inboxes().reached(inboxes().read(number(), rank(), begun_), one.step)) return;
  if (one.deadline_ns == 0) one.deadline_ns = Deadline::in_ms(comm_.timeout_ms()).at_ns();
  int peer = -1;
  std::string late = missing(one, &peer);
  const bool left = peer >= 0 && engine.has_left(peer);
  if (left) {  // all signals that it sent before are visible now
    peer = -1;
    late = missing(one, &peer);
  }
  const bool passed = now_ns() >= one.deadline_ns;
  if (!passed && !(left && peer >= 0 && engine.has_left(peer))) return;
  Error error;
  error.code = passed ? FSCCL_ERR_TIMEOUT : FSCCL_ERR_PEER_DEAD;
  error.rank = rank();
  error.peer = peer;
  error.operation = op_name(static_cast<OpCode>(one.entry.op));
  error.sequence = one.entry.sequence;
  const auto op = static_cast<OpCode>(one.entry.op);
  const std::string what =
      one.entry.number
          ? describe(one.entry)
          : fmt::format("{} of unit '{}'", op == OpCode::none ? "the gradient slot" : op_name(op),
                        inboxes().unit_of(number()));
  if (!passed)
    error.text = fmt::format(
        "rank {} has left (destroyed its communicator, or its process ended) while {} waited for "
        "it",
        peer, what);
  else if (late.empty())
    error.text = fmt::format(
        "{} on '{}' passed its timeout of {} ms, and all ranks are there: the device of rank {} "
        "does not get on, "
        "or a rank does not give a slot back. See FSCCL_TIMEOUT_MS",
        what, comm_.name(), comm_.timeout_ms(), rank());
  else
    error.text = fmt::format(
        "{} on '{}' passed its timeout of {} ms; rank {} still waits for rank(s) {}: late, "
        "stopped, or they "
        "cannot be reached. See FSCCL_TIMEOUT_MS",
        what, comm_.name(), comm_.timeout_ms(), rank(), late);
  engine.fail_all(error);
}

}  // namespace fsccl
