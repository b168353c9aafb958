#include "comm/communicator.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/config.h"
#include "base/descriptors.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "comm/consensus.h"
#include "comm/together.h"
#include "fsccl/insight.h"

namespace fsccl {
namespace {

constexpr const char* kSplits = "split a communicator";
constexpr uint64_t kSubsets = UINT64_MAX;   // no number of a split
constexpr uint64_t kSums = UINT64_MAX - 1;  // the tag of the part that makes sums
// It keeps the tags of parts apart from those that programs give to subsets.
constexpr uint64_t kParts = 0x7061727473000000;
// With so many ranks a core, or fewer, there is a core for the service thread of each rank.
constexpr double kRanksWithSpareCores = 0.5;

}  // namespace

int Communicator::rank_of(int job_rank) const {
  const auto found = std::find(members_.begin(), members_.end(), job_rank);
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

Result<std::unique_ptr<Communicator>> Communicator::create(const JoinRequest& request,
                                                           const CommunicatorOptions& options) {
  FSCCL_ASSIGN(std::shared_ptr<JobContext> context, JobContext::join(request));
  set_log_rank(context->job().rank());
  std::vector<int> members(static_cast<size_t>(context->job().size()));
  for (size_t i = 0; i < members.size(); i++) members[i] = static_cast<int>(i);
  const uint64_t tag = mix_hash(context->job().id(), 1);
  CommunicatorOptions in_time = options;
  in_time.made_by = request.deadline;  // joining has taken a part of the time
  return open(std::move(context), std::move(members), tag, in_time, nullptr);
}

void Communicator::tell(MetricSamples& samples, std::string_view id) const {
  const std::string rank = std::to_string(rank_), size = std::to_string(this->size());
  const auto labels = [&](std::string_view name = {}, std::string_view value = {}) {
    std::string text =
        MetricSamples::labels({{"comm", name_}, {"id", id}, {"rank", rank}, {"size", size}});
    return name.empty() ? text : text + ',' + MetricSamples::labels({{name, value}});
  };
  const std::string own = labels();
  const Tally& tally = engine_->tally();
  const fsccl_counters_t counters = tally.counters();
  tally.each_kind([&](OpCode op, uint64_t count) {
    samples.add(Metric::operations, labels("operation", op_name(op)), count);
  });
  samples.add(Metric::in_flight, own, engine_->under_way());
  samples.add(Metric::read_bytes, own, counters.bytes_read);
  samples.add(Metric::written_bytes, own, counters.bytes_written);
  samples.add(Metric::kernel_copies, own, counters.kernel_copies);
  samples.add(Metric::sleeps, own, counters.sleeps);
  samples.add_ns(Metric::sleep_seconds, own, tally.slept_ns());
  samples.add(Metric::failed, own, engine_->failed() ? 1 : 0);
  constexpr const char* kStates[] = {"alive", "suspect", "left", "dead"};
  std::array<uint64_t, 4> peers{};  // by fsccl_peer_state_t
  for (int peer = 0; peer < this->size(); peer++)
    if (peer != rank_) peers[static_cast<size_t>(peer_state(peer))]++;
  for (size_t state = 0; state < peers.size(); state++)
    samples.add(Metric::peers, labels("state", kStates[state]), peers[state]);
}

Result<std::unique_ptr<Communicator>> Communicator::pair(int from, int to) {
  std::unique_ptr<Communicator> made(new Communicator);
  made->context_ = context_;
  made->members_ = {job_rank(from), job_rank(to)};
  made->rank_ = rank_ == from ? 0 : 1;
  made->tag_ = mix_hash(tag_, static_cast<uint64_t>(from) << 32 | static_cast<uint32_t>(to));
  made->timeout_ms_ = timeout_ms_;
  made->ranks_per_core_ = ranks_per_core_;
  made->paths_ = paths_;
  made->name_ = fmt::format("{}, rank {} to {}", name_, from, to);
  EngineOptions engine;
  engine.inside = engine_.get();
  engine.numbers = {from, to};
  for (const int rank : engine.numbers)
    engine.same_process.push_back(engine_->options().same_process[static_cast<size_t>(rank)]);
  FSCCL_ASSIGN(OpenedChannel opened, engine_->options().channel->pair(from, to));
  FSCCL_TRY(check_slots(*opened.channel));
  engine.channel = std::move(opened.channel);
  engine.first_tick = opened.first_tick;
  const SelectOptions& mine = collectives_->options().select;
  made->start(std::move(engine), mine.costs, mine.rules);
  return made;
}

Result<std::unique_ptr<Communicator>> Communicator::split(int color, int key,
                                                          const CommunicatorOptions& options) {
  struct Choice {
    int32_t color, key;
  };
  Status room =
      color == FSCCL_COLOR_NONE ? success() : check_descriptors(kDescriptorsToMake, kSplits);
  room = all_ok(*this, std::move(room), kSplits);
  const uint64_t number = ++splits_;
  FSCCL_TRY(std::move(room));
  FSCCL_ASSIGN(const std::vector<Choice> all, all_gather(*this, Choice{color, key}));
  if (color == FSCCL_COLOR_NONE) return std::unique_ptr<Communicator>();
  std::vector<int> group;
  for (int rank = 0; rank < size(); rank++)
    if (all[static_cast<size_t>(rank)].color == color) group.push_back(rank);
  std::stable_sort(group.begin(), group.end(), [&](int a, int b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  for (int& rank : group) rank = job_rank(rank);
  return open(context_, std::move(group),
              mix_hash(mix_hash(tag_, number), static_cast<uint32_t>(color)), options, this);
}

// The first rank and the tag name the place to meet. There the others compare the list.
Result<std::unique_ptr<Communicator>> Communicator::subset(const std::vector<int>& ranks,
                                                           uint64_t tag,
                                                           const CommunicatorOptions& options) {
  engine_->look_for_failure();
  if (engine_->failed()) return engine_->failure();
  uint64_t name =
      mix_hash(mix_hash(mix_hash(tag_, kSubsets), tag), static_cast<uint64_t>(ranks.front()));
  {
    const std::lock_guard lock(subsets_mutex_);
    name = mix_hash(name, ++subsets_[name]);
  }
  Together together(*this);
  together.begin();
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(job_rank(rank));
  Result<std::unique_ptr<Communicator>> made =
      open(context_, std::move(members), name, options, this);
  if (made.ok() ||
      (made.status().code() != FSCCL_ERR_TIMEOUT && made.status().code() != FSCCL_ERR_MISMATCH))
    return made;
  return fail(made.status().code(),
              "{}. This is rank {} of the communicator they are taken from, with ranks [{}] and "
              "tag {:#x}: all "
              "listed ranks call, with the same list and tag",
              made.status().text(), rank_, fmt::join(ranks, ", "), tag)
      .with_peer(rank_, made.status().error().peer);
}

bool Communicator::one_host() const { return context_->one_host(members_); }

Result<Hosts*> Communicator::hosts() {
  if (!hosts_) {
    FSCCL_ASSIGN(hosts_, Hosts::create(*this));
  }
  return hosts_.get();
}

// A rank that has left this communicator may still be in others.
fsccl_peer_state_t Communicator::peer_state(int rank) const {
  const fsccl_peer_state_t state = context_->job().life(job_rank(rank)).state;
  return state != FSCCL_PEER_DEAD && rank != rank_ && engine_->has_left(rank) ? FSCCL_PEER_LEFT
                                                                              : state;
}

bool Communicator::is_here(int rank) const {
  const Job& job = context_->job();
  return job.member(job_rank(rank)).host == job.member(job.rank()).host;
}

std::vector<int> Communicator::ranks_here() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size(); rank++)
    if (is_here(rank)) ranks.push_back(rank);
  return ranks;
}

Result<std::unique_ptr<Communicator>> Communicator::part(const std::vector<int>& ranks,
                                                         uint64_t tag, const char* what) {
  return subset(ranks, mix_hash(kParts, tag),
                {timeout_ms_, fmt::format("{}, {}", name_, what), ranks, engine_.get()});
}

Result<Engine*> Communicator::sums() {
  if (!sums_) {
    FSCCL_ASSIGN(sums_, part({rank_}, kSums, "sums"));
    sums_->engine().reduce_over(size());
    engine_->make_sums_apart(sums_->engine());
  }
  return &sums_->engine();
}

bool Communicator::sums_later() const {
  const SumThread thread = config()->sum_thread;
  return thread == SumThread::kService ||
         (thread == SumThread::kAuto && ranks_per_core_ <= kRanksWithSpareCores);
}

uint64_t Communicator::unfinished() const {
  if (engine_->failed()) return 0;
  return engine_->under_way() + (sums_ ? sums_->engine().under_way() : 0);
}

Communicator::~Communicator() {
  device_collectives.reset();
  sums_.reset();
  if (!engine_) return;
  engine_->unbind();
  engine_->retire();
  will_not_shrink();
  if (metrics_) context_->write_metrics();
  metrics_.reset();
  context_->remove(this);
  context_->recorder().remove(engine_->options().recorded_as);
  if (oversubscribed()) oversubscribed_communicators--;
}

}  // namespace fsccl
