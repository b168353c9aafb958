// The transport within a host, which signals through cache lines of a shared segment. signal()
// fills this rank's line and then stores its tick, by the sleeping rule of base/futex.h; poll() is
// one load of a line that the peer owns.
#include "transports/shm/shm.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/fetch.h"
#include "base/futex.h"
#include "base/populate.h"
#include "base/reserve_file.h"
#include "base/round_up.h"
#include "base/status.h"
#include "base/wait.h"
#include "base/write_file.h"
#include "transports/shm/claims.h"
#include "transports/shm/mapping.h"
#include "transports/shm/peer_memory.h"
#include "transports/shm/segment.h"

namespace fsccl::shm {
namespace {

// open_channel() opens a channel. Once it is open, only the engine calls it.
struct Channel final : fsccl::Channel {
  explicit Channel(bool shares_rings)
      : fsccl::Channel({.transport = "shm", .prepares = true, .shares_rings = shares_rings}) {}
  ~Channel() override;

  void signal(const fsccl_transport_line_t& line) override;
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override;
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override;
  bool can_read() const override { return reads; }
  Status read(int peer, uint64_t address, void* destination, size_t bytes) override;
  bool can_write() const override { return writes; }
  Status write(int peer, uint64_t address, const void* source, size_t bytes) override;
  bool touch() override { return around ? around->touch() : begin_touch(*header, blocks[rank]); }
  void touched() override { around ? around->touched() : end_touch(blocks[rank]); }
  void await_untouched(Deadline deadline) override;
  std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const override;
  Status reserve() override;
  void prepare(uint32_t tick) override;
  void fail(const fsccl_transport_failure_t& failure) override;
  const fsccl_transport_failure_t* failure() override;
  bool left(int peer) const override;
  Result<OpenedChannel> pair(int from, int to) override;

  std::byte* ring_of(int of) const { return rings + static_cast<size_t>(of) * bytes_of_ring; }

  int rank = 0, ranks = 0;
  Channel* around = nullptr;  // the channel that a pair is in
  Fd fd;
  std::shared_ptr<Mapping> mapping;
  Header* header = nullptr;
  RankBlock* blocks = nullptr;
  std::byte* rings = nullptr;
  size_t bytes_of_ring = 0, bytes_of_slot = 0;
  std::vector<int32_t> pids;
  int32_t processor = -1;  // the core from which this rank signalled, some signals ago
  bool reads = false;      // this rank can read the private memory of peers
  bool writes = false;     // and write to it
  bool opened = false;     // if false, the end of the channel does not count as leaving
};

// Returns how long a rank's ring of slots should be: twice a core's own cache. Then ranks that have
// read a line no longer hold it in their caches when another rank writes it again, which would take
// several times as long. The rings of all ranks leave half of the last cache to others.
size_t wanted_ring(int ranks) {
  const auto cache = [](int which) { return static_cast<size_t>(std::max(sysconf(which), 0L)); };
  const size_t share = cache(_SC_LEVEL3_CACHE_SIZE) / 2 / static_cast<size_t>(ranks);
  return round_up(std::min(2 * cache(_SC_LEVEL2_CACHE_SIZE), share), kPage);
}
// A slot has room for a line of every rank.
size_t least_slot_bytes(int ranks) {
  return round_up(static_cast<size_t>(ranks) * sizeof(fsccl_transport_line_t), kPage);
}
// Returns the bytes of a slot: as many as were asked for, or else as suit a ring of wanted_ring().
size_t slot_bytes_of(size_t asked, int ranks) {
  constexpr size_t kLeast = 16u << 10, kMost = 128u << 10;
  const size_t slot =
      asked ? asked : std::clamp(wanted_ring(ranks) / FSCCL_TRANSPORT_SLOTS, kLeast, kMost);
  return std::max(round_up(slot, kPage), least_slot_bytes(ranks));
}
Geometry geometry_of(const ChannelRequest& request) {
  Geometry geometry{.magic = kMagic,
                    .ranks = static_cast<uint32_t>(request.ranks),
                    .reserved = 0,
                    .tag = request.tag,
                    .ring_bytes = wanted_ring(request.ranks),
                    .slot_bytes = slot_bytes_of(request.slot_bytes, request.ranks)};
  geometry.ring_bytes = std::max(geometry.ring_bytes, FSCCL_TRANSPORT_SLOTS * geometry.slot_bytes);
  return geometry;
}

// Slots of pairs are smaller in large groups, which have many pairs, each of them rarely used.
size_t pair_slot_bytes(int ranks) { return (ranks <= 16 ? 8 : 1) * kPage; }
size_t pair_bytes(int ranks) {
  return 2 * sizeof(RankBlock) + FSCCL_TRANSPORT_SLOTS * pair_slot_bytes(ranks);
}

// Returns the bytes of the segment that all ranks use. Behind them the file grows with each pair
// that is opened.
size_t segment_bytes(const Geometry& geometry) {
  return sizeof(Header) + geometry.ranks * (sizeof(RankBlock) + geometry.ring_bytes);
}

Status reserve_bytes(int fd, size_t offset, size_t bytes, const char* what) {
  uint64_t from = offset;
  const int failed = reserve_file(fd, &from, offset + bytes);
  return failed ? fail_errno(failed, fmt::format("cannot reserve {} bytes of shared memory for {}",
                                                 bytes, what))
                : success();
}

Result<Fd> create_segment(const Geometry& geometry) {
  Fd fd = make_fd([] { return memfd_create("fsccl-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!fd.valid()) return fail_errno(errno, "memfd_create for a shm channel");
  if (const int error = resize_file(fd.get(), segment_bytes(geometry)))
    return fail_errno(error, "cannot size a shm channel");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL))
    return fail_errno(errno, "cannot seal a shm channel");
  FSCCL_TRY(reserve_bytes(fd.get(), 0, sizeof(Header) + geometry.ranks * sizeof(RankBlock),
                          "the signals of a communicator"));
  return fd;
}

// Checks a segment of rank 0 before it is mapped, let alone written.
Result<Geometry> check_segment(int fd, const ChannelRequest& request) {
  Geometry geometry{};
  static_assert(offsetof(Header, geometry) == 0);
  const bool complete = pread(fd, &geometry, sizeof geometry, 0) == sizeof geometry;
  if (!complete || geometry.magic != kMagic)
    return fail(FSCCL_ERR_PROTOCOL,
                "the shared memory channel of rank 0 has another form than expected: the ranks run "
                "different versions");
  if (geometry.tag != request.tag || geometry.ranks != static_cast<uint32_t>(request.ranks))
    return fail(FSCCL_ERR_MISMATCH,
                "the first rank makes a communicator of other ranks than this one: give all ranks "
                "the same list");
  struct stat st{};
  const int seals = fcntl(fd, F_GET_SEALS);
  const bool sealed =
      !fstat(fd, &st) && S_ISREG(st.st_mode) && seals >= 0 && (seals & F_SEAL_SHRINK);
  // the size of the file; a file that could shrink counts as empty
  const uint64_t room = sealed && st.st_size > 0 ? static_cast<uint64_t>(st.st_size) : 0;
  const auto pages = [&](uint64_t bytes) { return bytes % kPage == 0 && bytes <= room; };
  if (!pages(geometry.ring_bytes) || !pages(geometry.slot_bytes) ||
      geometry.slot_bytes < least_slot_bytes(request.ranks) ||
      geometry.slot_bytes > geometry.ring_bytes / FSCCL_TRANSPORT_SLOTS ||
      (room - sizeof(Header)) / geometry.ranks < sizeof(RankBlock) + geometry.ring_bytes)
    return fail(FSCCL_ERR_PROTOCOL,
                "rank 0 offered {} sealed bytes of shared memory for rings of {} bytes and slots "
                "of {}, which do not fit together: "
                "run the same version on all ranks",
                room, geometry.ring_bytes, geometry.slot_bytes);
  return geometry;
}

Status map_segment(Channel& channel, int fd, const Geometry& geometry) {
  FSCCL_ASSIGN(channel.mapping, Mapping::of(fd, 0, segment_bytes(geometry)));
  std::byte* const base = channel.mapping->base();
  channel.header = reinterpret_cast<Header*>(base);
  channel.blocks = reinterpret_cast<RankBlock*>(base + sizeof(Header));
  channel.rings = base + sizeof(Header) + geometry.ranks * sizeof(RankBlock);
  channel.bytes_of_ring = geometry.ring_bytes;
  channel.bytes_of_slot = geometry.slot_bytes;
  return success();
}

void Channel::signal(const fsccl_transport_line_t& line) {
  RankBlock& block = blocks[rank];
  fsccl_transport_line_t& mine = block.lines[line.tick % FSCCL_TRANSPORT_TICKS];
  // The processor is asked for only now and then: a waiter uses it to judge whether this rank can
  // run at all while the waiter spins.
  if (line.tick % FSCCL_TRANSPORT_TICKS == 0) processor = sched_getcpu();
  // This store is atomic because peers may read the processor before the tick comes.
  std::atomic_ref(mine.processor).store(processor, std::memory_order_relaxed);
  std::memcpy(mine.fingerprint, line.fingerprint, sizeof(line.fingerprint) + sizeof(line.payload));
  futex_store(&mine.tick, line.tick, &block.sleepers);
}

const fsccl_transport_line_t* Channel::poll(int peer, uint32_t tick) {
  fsccl_transport_line_t& line = blocks[peer].lines[tick % FSCCL_TRANSPORT_TICKS];
  // This load pairs with the store of the tick in signal(), by futex_store().
  return std::atomic_ref<uint32_t>(line.tick).load(std::memory_order_acquire) == tick ? &line
                                                                                      : nullptr;
}

// Waits until all ranks of the channel have signalled `tick`. Used while a channel is opened.
Status meet(Channel& channel, uint32_t tick, const ChannelRequest& request) {
  fsccl_transport_line_t line{};
  line.tick = tick;
  channel.signal(line);
  const auto cancelled = [&] { return request.opening->cancelled(); };
  for (int peer = 0; peer < channel.ranks; peer++) {
    FutexSleeper sleeper;
    auto sleep = [&, yields = 20](int64_t left_ns) mutable {
      if (yields-- > 0) return yield_core();
      RankBlock& block = channel.blocks[peer];
      uint32_t& word = block.lines[tick % FSCCL_TRANSPORT_TICKS].tick;
      const uint32_t seen = std::atomic_ref<uint32_t>(word).load(std::memory_order_relaxed);
      if (seen != tick)
        sleeper.sleep(&word, seen, &block.sleepers, std::min(left_ns, kBreakCheckNs));
    };
    const auto opened = [&] { return channel.poll(peer, tick) != nullptr; };
    const WaitEnd end = wait_until(opened, Deadline::at(request.deadline_ns), cancelled, sleep);
    if (end == WaitEnd::broken)
      return fail(FSCCL_ERR_PEER_DEAD,
                  "a rank was lost while the shared memory channel was opened");
    if (end == WaitEnd::held) continue;
    *request.concerns = peer;
    return fail(FSCCL_ERR_TIMEOUT, "rank {} did not open its shared memory channel in time", peer);
  }
  return success();
}

// A peer that tries whether it may write to this process writes here. Nobody reads it. It is there
// as long as the process, because a late peer may still try when this rank has given up.
uint64_t landing = 0;

// Tests whether private memory can be read and written. The result holds for the whole channel:
// every rank tries its neighbour, and all must succeed.
Status probe_single_copy(Channel& channel, const ChannelRequest& request, uint32_t& tick) {
  Hello& mine = channel.blocks[channel.rank].hello;
  const uint64_t value =
      request.tag ^ (0x9e3779b97f4a7c15ull * static_cast<uint64_t>(channel.rank + 1));
  mine.probe_address = reinterpret_cast<uint64_t>(&value);
  mine.probe_value = value;
  mine.landing_address = reinterpret_cast<uint64_t>(&landing);
  FSCCL_TRY(meet(channel, tick++, request));
  const int neighbour = (channel.rank + 1) % channel.ranks;
  const Hello& other = channel.blocks[neighbour].hello;
  const int32_t pid = channel.pids[static_cast<size_t>(neighbour)];
  uint64_t seen = 0;
  mine.can_read = request.single_copy &&
                  read_memory(pid, other.probe_address, &seen, sizeof seen) &&
                  seen == other.probe_value;
  mine.can_write = mine.can_read && request.writes &&
                   write_memory(pid, other.landing_address, &seen, sizeof seen, 0);
  FSCCL_TRY(meet(channel, tick++, request));
  channel.reads = channel.writes = true;
  for (int rank = 0; rank < channel.ranks; rank++) {
    channel.reads &= channel.blocks[rank].hello.can_read == 1;
    channel.writes &= channel.blocks[rank].hello.can_write == 1;
  }
  return success();
}

// Rank 0 makes the segment and publishes it once its header is complete; the others fetch and check
// it.
Status open_segment(Channel& channel, const ChannelRequest& request) {
  Fd& fd = channel.fd;
  if (request.rank == 0) {
    const Geometry geometry = geometry_of(request);
    FSCCL_ASSIGN(fd, create_segment(geometry));
    FSCCL_TRY(map_segment(channel, fd.get(), geometry));
    *channel.header = Header{.geometry = geometry};
    const Status published = request.opening->publish_fd(fd.get());
    return published.ok() ? success() : fail(FSCCL_ERR_LINK, "{}", published.text());
  }
  Result<Fd> fetched = request.opening->fetch_fd(0);
  if (!fetched.ok())
    return fail(FSCCL_ERR_LINK, "cannot get the shared memory channel from rank 0: {}",
                fetched.status().text());
  fd = fetched.take();
  FSCCL_ASSIGN(const Geometry geometry, check_segment(fd.get(), request));
  return map_segment(channel, fd.get(), geometry);
}

Result<OpenedChannel> open_channel(const ChannelRequest& request) {
  auto channel = std::make_unique<Channel>(true);
  channel->rank = request.rank;
  channel->ranks = request.ranks;
  channel->pids.assign(request.pids.begin(), request.pids.end());
  FSCCL_TRY(open_segment(*channel, request));
  uint32_t tick = 1;
  channel->reads = request.single_copy, channel->writes = request.writes;
  if (!request.known) FSCCL_TRY(probe_single_copy(*channel, request, tick));
  channel->opened = true;
  return OpenedChannel{std::move(channel), tick};
}

Result<OpenedChannel> Channel::pair(int from, int to) {
  auto pair = std::make_unique<Channel>(false);  // it has the sender's ring only
  const size_t index =
      static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(to);
  const size_t bytes = pair_bytes(ranks), begin = mapping->bytes() + index * bytes;
  FSCCL_TRY(reserve_bytes(fd.get(), begin, bytes, "sending between two ranks"));
  FSCCL_ASSIGN(pair->mapping, Mapping::of(fd.get(), begin, bytes));
  pair->rank = rank == from ? 0 : 1;
  pair->ranks = 2;
  pair->around = this;
  pair->header = header;
  pair->blocks = reinterpret_cast<RankBlock*>(pair->mapping->base());
  pair->rings = pair->mapping->base() + 2 * sizeof(RankBlock);
  pair->bytes_of_ring = FSCCL_TRANSPORT_SLOTS * pair_slot_bytes(ranks);
  pair->bytes_of_slot = pair_slot_bytes(ranks);
  pair->pids = {pids[static_cast<size_t>(from)], pids[static_cast<size_t>(to)]};
  pair->reads = reads;
  pair->opened = true;
  return OpenedChannel{std::move(pair)};
}

void wake(RankBlock& block) {
  for (auto& line : block.lines) futex_wake_all(&line.tick);
}

// Wakes every waiter of the channel and of its pairs. This includes the pairs that this process
// does not use, so it looks for them in the file.
void wake_all(const Channel& channel) {
  for (int rank = 0; rank < channel.ranks; rank++) wake(channel.blocks[rank]);
  const int fd = channel.fd.get();
  const auto ranks = static_cast<off_t>(channel.ranks),
             bytes = static_cast<off_t>(pair_bytes(channel.ranks)),
             begin = static_cast<off_t>(channel.mapping->bytes()),
             end = begin + ranks * ranks * bytes;
  for (off_t pair = begin; pair < end; pair += bytes) {
    const off_t data = lseek(fd, pair, SEEK_DATA);
    if (data < 0 || data >= end) return;
    pair = data - (data - begin) % bytes;
    void* const blocks =
        mmap(nullptr, 2 * sizeof(RankBlock), PROT_READ | PROT_WRITE, MAP_SHARED, fd, pair);
    if (blocks == MAP_FAILED) return;  // the waiters notice by themselves, a little later
    for (int rank = 0; rank < 2; rank++) wake(static_cast<RankBlock*>(blocks)[rank]);
    munmap(blocks, 2 * sizeof(RankBlock));
  }
}

Channel::~Channel() {
  if (!opened) return;
  // This store pairs with the load in left().
  std::atomic_ref<uint32_t>(blocks[rank].left).store(1, std::memory_order_release);
  wake(blocks[rank]);
}

bool Channel::left(int peer) const {
  // This load pairs with the store in ~Channel().
  return std::atomic_ref<uint32_t>(blocks[peer].left).load(std::memory_order_acquire) == 1;
}

void Channel::word(int peer, uint32_t tick, fsccl_transport_word_t* word) {
  RankBlock& block = blocks[peer];
  word->word = &block.lines[tick % FSCCL_TRANSPORT_TICKS].tick;
  word->value = std::atomic_ref<uint32_t>(*word->word).load(std::memory_order_relaxed);
  word->sleepers = &block.sleepers;
  word->processor = std::atomic_ref(block.lines[(tick - 1) % FSCCL_TRANSPORT_TICKS].processor)
                        .load(std::memory_order_relaxed);
}

void Channel::prepare(uint32_t tick) {
  fsccl_transport_line_t& line = blocks[rank].lines[tick % FSCCL_TRANSPORT_TICKS];
  fetch_to_write(&line, sizeof line);
}

Status Channel::read(int peer, uint64_t address, void* destination, size_t bytes) {
  if (read_memory(pids[static_cast<size_t>(peer)], address, destination, bytes)) return success();
  return ::fsccl::fail(
      errno == ESRCH ? FSCCL_ERR_PEER_DEAD : FSCCL_ERR_LINK,
      "cannot read {} bytes of its memory: {}; is its buffer as large as the call says? "
      "(FSCCL_SINGLE_COPY=off avoids such reads)",
      bytes, std::strerror(errno));
}

Status Channel::write(int peer, uint64_t address, const void* source, size_t bytes) {
  return write_under_claim(*header, blocks[rank], {peer, pids[static_cast<size_t>(peer)]}, address,
                           source, bytes);
}

std::byte* Channel::slots(int of, size_t* ring_bytes, size_t* slot_bytes) const {
  *ring_bytes = bytes_of_ring;
  *slot_bytes = bytes_of_slot;
  return ring_of(of);
}

Status Channel::reserve() {
  if (!fd.valid()) return success();  // a pair has its memory from the start
  const auto begin = static_cast<size_t>(ring_of(rank) - mapping->base());
  FSCCL_TRY(reserve_bytes(fd.get(), begin, bytes_of_ring, "the slots of a communicator"));
  // With a fault at the first touch of each page, the first calls would take several times as long.
  // The rings of many peers are left to faults, because it would take long to map them all.
  constexpr int kMostRanks = 4;
  if (ranks <= kMostRanks)
    populate(ring_of(0), static_cast<size_t>(ranks) * bytes_of_ring);
  else
    populate(ring_of(rank), bytes_of_ring);
  return success();
}

void Channel::fail(const fsccl_transport_failure_t& failure) {
  if (around) return around->fail(failure);
  std::atomic_ref<uint32_t> state(header->failure_state);
  uint32_t none = 0;
  if (!state.compare_exchange_strong(none, 1)) return;
  header->failure = failure;
  header->failure.text[sizeof(failure.text) - 1] = '\0';
  // This store pairs with the load in failure(): a rank that sees state 2 sees the failure.
  state.store(2, std::memory_order_release);
  wake_all(*this);
}

void Channel::await_untouched(Deadline deadline) {
  if (around) return around->await_untouched(deadline);
  await_claims(blocks, rank, pids, deadline);
}

const fsccl_transport_failure_t* Channel::failure() {
  // This load pairs with the store in fail().
  return std::atomic_ref<uint32_t>(header->failure_state).load(std::memory_order_acquire) == 2
             ? &header->failure
             : nullptr;
}

class ShmTransport final : public Transport {
 public:
  ShmTransport() : Transport("shm") {}
  Status available() const override {
    const Fd fd =
        make_fd([] { return memfd_create("fsccl-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
    return fd.valid() ? success()
                      : fail(FSCCL_ERR_SYSTEM, "memfd_create: {}", std::strerror(errno));
  }
  Result<OpenedChannel> open(const ChannelRequest& request) const override {
    return open_channel(request);
  }
};

}  // namespace
}  // namespace fsccl::shm

namespace fsccl {

size_t shm_slot_bytes(int ranks) { return shm::slot_bytes_of(0, ranks); }

const Transport* shm_transport() {
  static const shm::ShmTransport transport;
  return &transport;
}

}  // namespace fsccl
