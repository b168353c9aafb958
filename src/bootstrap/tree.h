// A job as its members run it: a tree of authenticated links, whose order is the order of arrival.
// Messages are handled in the service thread. A caller changes the state under mutex_, may send at
// once, and then waits for a state. Threads of the mender make links in place of lost ones. News of
// a failure travels once along all links that remain, so no rank waits for a message that cannot
// come.
//
// tree_steps.h says which message is sent when, and heartbeat.h which ranks are held for silent.
// Eight files: tree.cpp (links, joining), tree_losses.cpp (losses, leaving), tree_mending.cpp
// (links in place of those to ranks that are lost), tree_membership.cpp (votes on the survivors of
// a group), tree_beats.cpp (heartbeats), tree_ends.cpp (threads of neighbours that end),
// tree_gather.cpp (all-gather), tree_descriptors.cpp (published descriptors).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "base/socket.h"
#include "base/threads.h"
#include "bootstrap/job.h"
#include "bootstrap/membership.h"
#include "bootstrap/reception.h"
#include "bootstrap/tree_steps.h"

namespace fsccl {

struct TreeConfig {
  Credentials credentials;
  uint64_t job = 0;
  int32_t rank = 0;
  int32_t ranks = 1;
  int32_t order = 0;  // order of arrival
  int32_t parent_rank = -1;
  MemberRecord self;
  // the address at which this rank has reached the rendezvous; zero: over a Unix socket
  IpAddress rendezvous = {};
  int32_t rendezvous_rank = -1;  // the rank in whose process the rendezvous is, if that is known
  uint32_t link = 0;  // the interface by which link-local addresses of others are reached
};

// The listeners that a rank opens before others know of it.
struct Doors {
  std::vector<Fd> listeners;  // where other ranks connect
  Fd beats;                   // takes datagrams (tree_beats.cpp); may be none
};

class TreeJob final : public Job, public std::enable_shared_from_this<TreeJob> {
 public:
  // Without listeners, this is the only rank of a job, which needs no rendezvous and has joined.
  static Result<std::shared_ptr<TreeJob>> open(TreeConfig config, Doors doors);
  ~TreeJob() override { leave(); }
  TreeJob(const TreeJob&) = delete;
  TreeJob& operator=(const TreeJob&) = delete;

  // Adds the link to the parent or, for the root of the tree, the connection that the rendezvous
  // keeps.
  Status add_parent(FramedSocket channel);
  Status add_rendezvous(FramedSocket channel);
  // Waits until all ranks have joined, or joining has failed.
  Status finish_join(Deadline deadline);
  // Tells all neighbours that this rank cannot join.
  void give_up(const Status& why);

  int order() const { return config_.order; }  // order of arrival; 0 is the root
  int rank() const override { return config_.rank; }
  int size() const override { return config_.ranks; }
  uint64_t id() const override { return config_.job; }
  const Member& member(int rank) const override { return members_[static_cast<size_t>(rank)]; }
  SecretKey derive_key(std::string_view label, ByteView with) const override {
    return SecretKey(authenticate(config_.credentials.key, label, with));
  }
  Status all_gather(const void* mine, void* all, size_t bytes, Deadline deadline) override;
  Status barrier(Deadline deadline) override { return all_gather(nullptr, nullptr, 0, deadline); }
  Status publish_fd(uint64_t tag, int fd) override;
  void withdraw_fd(uint64_t tag) override;
  Result<Fd> fetch_fd(int rank, uint64_t tag, Deadline deadline, const BreakCheck& broken) override;
  void on_loss(LossHandler handler) override;
  Result<Agreed> agree(const Question& question, Deadline deadline) override;
  Refusal refusal(uint64_t meeting) const override;
  void decline(uint64_t meeting) override;
  Status begin_beats(const HeartbeatTimes& times, LifeHandler handler, Deadline deadline) override;
  PeerLife life(int rank) const override;
  bool nobody_listens(int rank) const override;
  void abandon() noexcept override;
  void leave() override;

 private:
  enum class Phase { kJoining, kJoined, kFailed, kLeft };
  struct Link {
    int32_t rank = -1;  // -1: the rendezvous
    bool is_parent = false;
    bool unread = false;  // frames may have arrived before the reactor watched
    bool met = true;      // false: the other end may have given up before it knew of the link
    std::shared_ptr<FramedSocket> channel;
  };
  using LinkPtr = std::shared_ptr<Link>;
  struct FetchWaiting {
    uint64_t tag = 0;
    std::shared_ptr<FramedSocket> channel;
  };
  struct GatherState {
    uint64_t sequence = 0;
    size_t bytes = 0;
    bool active = false, sent_up = false;
    Bytes mine;
    // by child: what its subtree has given to the current all-gather, or to the next
    std::map<int32_t, Bytes> parts;
    std::optional<Bytes> result;  // the payload of Gathered
  };

  explicit TreeJob(TreeConfig config);

  // The functions below are called with mutex_ held, except these, which take it themselves or need
  // no lock: callbacks (admit and on_...), break_off(), deliver_losses(), mend(), by_unix(),
  // ip_to(), has_door(), door_of(), reach(), beat(), deliver_lives(), tell(), owner_lost() and
  // fetch_over().

  // tree.cpp
  void admit(Guest guest);
  Status add_link(LinkPtr link);
  void on_readable(const LinkPtr& link);
  void on_writable(const LinkPtr& link);
  Status handle(Link& link, const Frame& frame);
  void link_closed(const LinkPtr& link, const char* what);
  void drop_link(const LinkPtr& link);
  void push(Link& link);
  void send(Link& link, FrameType type, ByteView payload);
  void send_all(FrameType type, ByteView payload, const Link* but);
  void perform(const TreeSteps::Sends& sends, ByteView carried);
  Status take_members(ByteView payload);
  void advance_join(const TreeSteps::Sends& sends, ByteView carried);
  void fail_all(const Status& why, const Link* from);
  void break_off(const LinkPtr& link);
  std::string what_is_missing() const;
  int32_t ended_here() const;

  // tree_losses.cpp
  void be_expelled(const Link* from);
  void lose(const LostRank& lost, const Link* from);
  void send_leavers(const Link* but);
  void hear_out(Link& link);
  void say_goodbye(const std::vector<LinkPtr>& links);
  void deliver_losses();
  void tell(FunctionRef<void()> handler);
  int64_t on_timer();

  // tree_mending.cpp
  void admit_mended(Guest& guest);
  Status add_mended(LinkPtr link);
  int64_t mend_if_due(int64_t now);
  void mend();
  class Mending;
  struct Wanted {
    int32_t rank = -1;
    int64_t due_ns = 0;
  };
  std::vector<Wanted> wanted_links() const;
  bool linked(int32_t rank) const;
  bool by_unix(const MemberRecord& member) const {
    return member.via_unix && config_.self.via_unix;
  }
  IpAddress ip_to(const MemberRecord& member) const;
  enum class Reached : uint8_t { yes, nobody, unreachable, closed, silent, refused };
  // Returns false for a rank of another host that does not listen at TCP.
  bool has_door(const MemberRecord& member) const;
  SocketAddress door_of(const MemberRecord& member) const;
  Reached reach(const MemberRecord& member, int64_t answer_ms, FramedSocket* channel) const;

  // tree_membership.cpp
  Status hear_votes(const Link& from, ByteView payload);
  void advance_memberships();

  // tree_beats.cpp
  class Beats;
  int64_t beat();  // returns the time until it is due again, in ns; negative: never
  Status hear_beat(const Link& link, ByteView payload);
  Status watch_datagrams();
  void on_datagrams();
  void begin_watch(int rank);  // over a new link
  void end_watch(const LostRank& lost);
  void lose_unreachable(int rank, bool host_lost);
  bool host_is_lost(int rank) const;
  void end_beats();
  int32_t beating_thread(int rank) const;
  void deliver_lives();

  // tree_ends.cpp
  struct ThreadEnd {
    int32_t thread = 0;
    Fd fd;  // none: it cannot be watched, or has ended
  };
  void watch_ends();
  void on_thread_end(const LinkPtr& link);

  // tree_gather.cpp
  void advance_gather();
  Result<Bytes> add_up_gather() const;
  Status gather_broken() const;
  std::string gather_missing() const;

  // tree_descriptors.cpp
  void answer_fetch(Guest& guest);
  Status owner_lost(const Status& status, int rank);
  Result<Fd> own_fd(uint64_t tag, Deadline deadline, std::unique_lock<std::mutex>& lock);
  Result<Fd> fetch_over(Fd connected, int rank, uint64_t tag, Deadline deadline,
                        const BreakCheck& broken) const;
  void on_fetch_readable(int fd);

  const TreeConfig config_;
  mutable std::mutex mutex_;
  Condition changed_;
  Phase phase_ = Phase::kJoining;
  Status failure_;  // failure of the join or of an all-gather: nothing collective works afterwards
  std::shared_ptr<Reception> reception_;
  int hook_ = -1;
  std::vector<LinkPtr> links_;
  TreeSteps steps_;
  std::vector<Member> members_;        // by rank
  std::vector<MemberRecord> records_;  // by rank
  std::vector<int32_t> arrivals_;      // ranks by order
  Status no_memory_;                   // made in advance, while there is memory

  std::map<int32_t, bool> lost_;  // by lost rank: whether it has left
  int32_t first_lost_ = -1;       // the rank of whose loss this rank has heard first
  // Ranks that have left. The neighbours are told of them together and a little later, because the
  // ranks of a job usually leave at the same time.
  std::vector<LostRank> leavers_;
  int64_t leavers_due_ns_ = INT64_MAX;
  std::deque<LostRank> undelivered_;
  LossHandler loss_handler_;
  bool telling_ = false;  // the service thread runs a handler, and leave() waits for its end
  std::shared_ptr<Beats> beats_;
  std::map<int32_t, ThreadEnd> ends_;  // by rank
  Fd datagrams_;  // Doors::beats; from begin_beats() on only if the job has several hosts
  std::set<int32_t> early_beats_;  // neighbours whose beats came before this rank's begin_beats()

  Thread mender_;  // runs while links are missing
  bool mending_ = false;
  int64_t mend_due_ns_ = INT64_MAX, last_loss_ns_ = 0;

  std::map<uint64_t, Membership> memberships_;  // by meeting
  bool expelled_ = false;                       // others hold this rank for dead

  std::mutex gather_callers_;  // one all-gather at a time
  GatherState gather_;

  std::map<uint64_t, Fd> published_;
  std::map<int, FetchWaiting> fetches_;  // by descriptor of the connection
};

}  // namespace fsccl
