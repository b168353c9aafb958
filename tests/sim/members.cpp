// The work of a rank of a simulated job (members.h).
#include "members.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/unique_id.h"
#include "fsccl/insight.h"

namespace fsccl::sim {
namespace {

constexpr int64_t kGatherMs = 30'000, kAskMs = 40'000, kSeenMs = 12'000;
// The time until all know that a rank has left. It is well before links are mended.
constexpr int64_t kNewsNs = 600 * kMillisecond;
// The time until the tree is whole again after a rank has left.
constexpr int64_t kMendedNs = 2200 * kMillisecond;
constexpr int64_t kComputeNs = 50 * kMillisecond;  // the longest time between two acts of a rank
// The time for which a rendezvous stays after a failure.
constexpr int64_t kLingerNs = 31 * kSecond;
constexpr int kMaker = 0;  // the rank that makes the unique id

uint8_t byte_of(int rank, int gather, size_t i) {
  return static_cast<uint8_t>(
      mix_hash(static_cast<uint64_t>(rank), mix_hash(static_cast<uint64_t>(gather), i)));
}

}  // namespace

Members::Members(uint64_t seed, bool traced)
    : world_(seed, traced),
      setting_(random_members(world_)),
      wires_(std::make_unique<Wires>(world_, setting_.weather)) {
  Process::fault.reset();
  ranks_.resize(static_cast<size_t>(setting_.ranks));
  for (int r = 0; r < setting_.ranks; r++) {
    rank(r).process =
        std::make_shared<Process>(world_, r, setting_.host_of[static_cast<size_t>(r)]);
    rank(r).process->on_kill = [this, r] {
      dead_.insert(r);
      last_death_ns_ = world_.now();
    };
    if (setting_.mishap == Mishap::missing && r == setting_.chosen) continue;
    world_.after(world_.between(0, setting_.start_ns), [this, r] {
      if (!rank(r).process->over()) rank(r).process->start([this, r] { main(r); });
    });
  }
  for (int i = 0; setting_.mishap == Mishap::strangers && i < 3; i++) {
    const int host = static_cast<int>(world_.below(static_cast<uint64_t>(setting_.hosts)));
    strangers_.push_back(std::make_shared<Process>(world_, setting_.ranks + i, host));
    strangers_.back()->start([this, i] { knock(i); });
  }
  plan_mishap();
}

Members::~Members() {
  for (Rank& one : ranks_) one.process->finish();
  for (const auto& stranger : strangers_) stranger->finish();
  rank(kMaker).process->tidy_up([&] { end_rendezvous(); });
}

void Members::end_rendezvous() {
  if (!has_id_) return;
  if (const Result<UniqueId> id = decode_unique_id(id_); id.ok())
    RendezvousServer::cancel(id.value().job);
}

void Members::main(int r) {
  Rank& me = rank(r);
  Process& process = *me.process;
  while (r != kMaker && !has_id_ && !process.over() && !rank(kMaker).process->over())
    process.sleep(kMillisecond);
  if (!process.over() && (r == kMaker || has_id_)) {
    std::shared_ptr<Job> job = join(r);
    std::vector<int> members(static_cast<size_t>(setting_.ranks));
    for (int i = 0; i < setting_.ranks; i++) members[static_cast<size_t>(i)] = i;
    if (job && !process.over()) gather_all(r, *job);
    if (job && !process.over() && !broken_) pass_descriptors(r, *job);
    for (int phase = 0;
         job && !process.over() && !me.expelled && !broken_ && phase < setting_.phases; phase++)
      agree(r, *job, phase, &members);
    if (job && !process.over() && !me.expelled) see_the_dead(r, *job);
    if (job && !process.over() && setting_.mishap == Mishap::farewells)
      process.sleep(leaves_after_[static_cast<size_t>(r)] * kMillisecond);
    me.leaving = true;
    std::set<int> known;
    for (const auto& [lost, left] : me.lost)
      if (left) known.insert(lost);
    // If the tree has just lost another rank, or loses one at this moment, this rank's goodbye may
    // reach nobody.
    const int64_t now = world_.now();
    if (now - std::exchange(last_leave_ns_, now) > kMendedNs) known.insert(r);
    if (job && !process.over()) world_.note("rank {} leaves", r);
    const bool leaves = job && !process.over();
    job.reset();
    if (leaves && !process.over() && setting_.mishap == Mishap::farewells)
      farewell(r, now, std::move(known));
    if (!process.over() && r == kMaker && me.error && world_.chance(0.7)) process.sleep(kLingerNs);
  }
  if (process.over()) return;
  me.over = true;
  if (!me.alive.expired())
    break_down(fmt::format("the job of rank {} is still there after it left", r));
  // The rendezvous waits for ranks that come late, if a rank died or joining failed.
  if (r == kMaker && (me.error || !dead_.empty())) end_rendezvous();
  if (process.over()) return;
  if (!process.sockets.empty())
    break_down(fmt::format("rank {} has {} sockets open at its end", r, process.sockets.size()));
  process.exit();
}

std::shared_ptr<Job> Members::join(int r) {
  Rank& me = rank(r);
  if (r == kMaker) {
    if (const Status made = create_unique_id(&id_); !made.ok())
      return break_down(made.text()), nullptr;
    has_id_ = true;
  }
  const bool misfit = setting_.mishap == Mishap::misfit && r == setting_.chosen,
             twice = misfit && setting_.start_ns % 2 == 0;
  JoinRequest request;
  request.unique_id = &id_;
  request.rank = twice ? r - 1 : r;
  request.ranks = setting_.ranks + (misfit && !twice ? 1 : 0);
  request.deadline = Deadline::in_ms(setting_.join_ms);
  me.began = true;
  me.began_ns = world_.now();
  Result<std::shared_ptr<Job>> joined = Job::join(request);
  if (me.process->over()) return nullptr;
  me.ended_ns = world_.now();
  if (!joined.ok()) {
    me.error = joined.status().error();
    world_.note("rank {} does not join: {}", r, me.error->text);
    return nullptr;
  }
  std::shared_ptr<Job> job = joined.take();
  me.joined = true;
  me.job = job->id();
  me.alive = job;
  world_.note("rank {} has joined", r);
  for (int other = 0; other < setting_.ranks; other++)
    if (job->member(other).pid != rank(other).process->pid)
      break_down(
          fmt::format("rank {} takes process {} for rank {}", r, job->member(other).pid, other));
  job->on_loss([this, r](int lost, bool left) { note_loss(r, lost, left); });
  const auto life = [this, r](int other, const PeerLife& seen) {
    if (rank(r).process->over()) return;
    world_.note("to rank {}, rank {} is {}", r, other,
                seen.state == FSCCL_PEER_SUSPECT ? "suspect: " + describe(seen) : "alive");
    suspects_++;
    if (seen.state == FSCCL_PEER_SUSPECT) judge_suspicion(r, other);
  };
  (void)job->begin_beats(setting_.times, life, Deadline::in_ms(kGatherMs)).ok();
  return job;
}

void Members::note_loss(int r, int lost, bool left) {
  Rank& me = rank(r);
  if (me.process->over()) return;
  world_.note("rank {} hears that rank {} {}", r, lost, left ? "has left" : "is dead");
  if (!me.lost.emplace(lost, left).second)
    break_down(fmt::format("rank {} hears twice of the loss of rank {}", r, lost));
  // If a rank leaves and nobody is left to pass its goodbye on, only ranks of its own host can tell
  // that it has left and is not dead. If all leave in peace, all hear the goodbye in time.
  const bool one_by_one = setting_.mishap == Mishap::farewells && setting_.hosts == 1;
  if (!left && (setting_.mishap == Mishap::none || one_by_one) && setting_.weather.loss == 0)
    break_down(fmt::format("rank {} takes rank {} for dead, which has left", r, lost));
  if (!gone(lost) && !may_split())
    break_down(fmt::format("rank {} takes rank {} for gone, which is there", r, lost));
}

// Plans the check of a goodbye: the ranks that stay must then know that all ranks in `known` have
// left. These are the ranks of which rank r knew this and, if no other rank leaves at about the
// same time, rank r itself.
void Members::farewell(int r, int64_t left_ns, std::set<int> known) {
  world_.after(kNewsNs, [this, r, left_ns, known = std::move(known)]() mutable {
    if (last_leave_ns_ != left_ns) known.erase(r);
    for (int other = 0; other < setting_.ranks && !broken_; other++) {
      const Rank& one = rank(other);
      if (one.leaving || one.process->over() || !one.joined) continue;
      for (const int lost : known)
        if (lost != other && !one.lost.contains(lost))
          break_down(fmt::format("rank {} has left, and rank {} does not know that rank {} has", r,
                                 other, lost));
    }
  });
}

void Members::gather_all(int r, Job& job) {
  Rank& me = rank(r);
  const auto ranks = static_cast<size_t>(setting_.ranks);
  for (int i = 0; i < setting_.gathers && !me.process->over(); i++) {
    me.process->sleep(world_.between(0, kComputeNs));
    size_t bytes = mix_hash(static_cast<uint64_t>(i), setting_.bytes) % (setting_.bytes + 1);
    if (setting_.mishap == Mishap::differing && r == setting_.chosen && i == setting_.gathers - 1)
      bytes++;
    std::vector<uint8_t> mine(bytes), all(bytes * ranks);
    for (size_t k = 0; k < bytes; k++) mine[k] = byte_of(r, i, k);
    const Status status =
        job.all_gather(mine.data(), all.data(), bytes, Deadline::in_ms(kGatherMs));
    if (me.process->over()) return;
    if (!status.ok()) {
      me.gather_error = status.error();
      return world_.note("rank {} cannot gather: {}", r, status.text());
    }
    world_.note("rank {} has gathered {} bytes", r, bytes);
    me.gathered++;
    for (size_t k = 0; k < all.size(); k++)
      if (all[k] != byte_of(static_cast<int>(k / bytes), i, k % bytes))
        return break_down(fmt::format("rank {} gathered wrong bytes of rank {}", r, k / bytes));
  }
}

// The first rank of each host offers a descriptor, and the others of the host fetch it, as ranks do
// for the memory that they share. A rank that knows of a death offers nothing any more, and a rank
// that hears of a death does not wait for a descriptor any longer.
void Members::pass_descriptors(int r, Job& job) {
  Rank& me = rank(r);
  constexpr uint64_t kTag = 77;
  int owner = 0;
  while (job.member(owner).host != job.member(r).host) owner++;
  const auto knows_of_a_death = [&]() -> Status {
    const bool any =
        std::any_of(me.lost.begin(), me.lost.end(), [](const auto& one) { return !one.second; });
    return any ? fail(FSCCL_ERR_PEER_DEAD, "a rank is dead") : success();
  };
  me.process->sleep(world_.between(0, kComputeNs));
  if (me.process->over()) return;
  if (r == owner) {
    const Fd shared(knows_of_a_death().ok() ? memfd_create("members", MFD_CLOEXEC) : -1);
    if (shared.valid() && !job.publish_fd(kTag, shared.get()).ok())
      world_.note("rank {} cannot offer its descriptor", r);
    return;
  }
  const Result<Fd> fetched =
      job.fetch_fd(owner, kTag, Deadline::in_ms(kGatherMs), knows_of_a_death);
  if (me.process->over()) return;
  world_.note("rank {} fetches: {}", r, fetched.ok() ? "has it" : fetched.status().text());
  if (fetched.ok() || may_split()) return;
  if (calm())
    return break_down(
        fmt::format("rank {} cannot fetch a descriptor: {}", r, fetched.status().text()));
  if (fetched.status().code() == FSCCL_ERR_TIMEOUT && !knows_of_a_death().ok())
    break_down(fmt::format(
        "rank {} waits for a descriptor until its deadline, although it knows of a death", r));
}

std::optional<Job::Agreed> Members::ask(int r, Job& job, uint64_t meeting,
                                        const std::vector<int>& members) {
  Rank& me = rank(r);
  const auto [asked, first] = asked_.try_emplace(meeting);
  if (first) asked->second = {world_.now(), dead_};
  Job::Question question;
  question.meeting = meeting;
  question.members = members;
  if (world_.chance(0.1)) question.refusal = {r, FSCCL_ERR_LINK, "refused"};
  const Deadline deadline = Deadline::in_ms(kAskMs);
  for (;;) {
    if (setting_.mishap == Mishap::deaths && world_.chance(0.05))
      me.process->kill_at_send(1 + world_.below(8));
    const int64_t patience_ms = world_.chance(0.1) ? world_.between(100, kAskMs) : kAskMs;
    Result<Job::Agreed> agreed = job.agree(
        question, Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(patience_ms).at_ns())));
    if (me.process->over()) return std::nullopt;
    if (!agreed.ok()) {
      world_.note("rank {} cannot ask who is left: {}", r, agreed.status().text());
      me.expelled = true;
      if (!may_split() && !silent(r))
        break_down(fmt::format("rank {} cannot ask who is left: {}", r, agreed.status().text()));
      return std::nullopt;
    }
    if (agreed.value().reached) return agreed.take();
    if (!deadline.passed()) continue;
    me.expelled = true;  // the rank gives up
    world_.note("rank {} asks in vain who is left", r);
    if (!may_split()) break_down(fmt::format("rank {} asks in vain who is left", r));
    return std::nullopt;
  }
}

// Asks who is left in rounds, until two have the same answer, as a communicator that goes on
// without lost ranks does.
void Members::agree(int r, Job& job, int phase, std::vector<int>* members) {
  Rank& me = rank(r);
  std::optional<std::vector<int32_t>> before;
  for (uint64_t round = 0; !me.process->over() && !broken_; round++) {
    me.process->sleep(world_.between(0, kComputeNs));
    if (me.process->over()) return;
    const uint64_t meeting = static_cast<uint64_t>(phase + 1) * 1000 + round;
    const std::optional<Job::Agreed> agreed = ask(r, job, meeting, *members);
    if (!agreed || me.process->over()) return;
    world_.note("rank {} agrees in {} that {} are gone, code {}", r, meeting, agreed->failed.size(),
                static_cast<int>(agreed->refusal.code));
    check_agreed(r, meeting, *agreed, *members);
    if (before == agreed->failed) break;
    before = agreed->failed;
  }
  std::erase_if(*members, [&](int one) {
    return before && std::binary_search(before->begin(), before->end(), one);
  });
}

// Waits until this rank has learned of every death, and that every living rank lives.
void Members::see_the_dead(int r, Job& job) {
  Rank& me = rank(r);
  const Deadline deadline = Deadline::in_ms(kSeenMs);
  const auto unseen = [&] {
    for (int other = 0; other < setting_.ranks; other++) {
      const fsccl_peer_state_t state = job.life(other).state;
      const bool dead = rank(other).process->killed();
      if (dead && state != FSCCL_PEER_DEAD && state != FSCCL_PEER_LEFT) return other;
      if (!dead && state == FSCCL_PEER_SUSPECT) return other;
    }
    return -1;
  };
  int other = -1;
  while (!me.process->over() && (other = unseen()) >= 0 && !deadline.passed())
    me.process->sleep(10 * kMillisecond);
  if (me.process->over() || other < 0 || may_split()) return;
  break_down(fmt::format("to rank {}, rank {} is {}", r, other,
                         rank(other).process->killed() ? "not dead" : "still a suspect"));
}

// A stranger, which does not belong to the job, tries to get in.
void Members::knock(int stranger) {
  Process& process = *strangers_[static_cast<size_t>(stranger)];
  for (int i = 0; i < 40 && !process.over(); i++) {
    process.sleep(world_.between(0, 40 * kMillisecond));
    const Result<UniqueId> id = decode_unique_id(id_);
    if (!has_id_ || !id.ok()) continue;
    Result<RendezvousPoint> place = meeting_place(id.value(), host_number(""), true, "");
    if (!place.ok()) continue;
    const Deadline deadline = Deadline::in_ms(world_.between(1, 300));
    const int32_t as = static_cast<int32_t>(world_.below(static_cast<uint64_t>(setting_.ranks)));
    if (world_.chance(0.5)) {
      place.value().credentials.key = SecretKey::random();
      Status versions;
      const Result<FramedSocket> channel =
          connect_as(place.value().addresses.front(), place.value().credentials, Purpose::kRegister,
                     place.value().meeting, as, setting_.ranks, deadline, &versions);
      if (channel.ok()) world_.note("a stranger believes that it is through");
      continue;
    }
    Result<Fd> connected = connect_to(place.value().addresses.front(), deadline);
    if (!connected.ok()) continue;
    std::vector<uint8_t> noise(world_.below(2000));
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(world_.random());
    (void)send_some(connected.value().get(), noise.data(), noise.size()).ok();
    process.sleep(world_.between(0, 300 * kMillisecond));
  }
  process.exit();
}

}  // namespace fsccl::sim
