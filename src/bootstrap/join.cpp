#include "bootstrap/join.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/config.h"
#include "base/descriptors.h"
#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"
#include "bootstrap/rendezvous_server.h"
#include "bootstrap/tree.h"

namespace fsccl {

namespace {

// The parent listened before its address was given out, so over a Unix socket a refusal means that
// it has ended. Over TCP, or when a crowd is at its door, a connection may fail though the parent
// lives. So there are kParentAttempts attempts, in about half a second. They are counted and not
// timed: if this process is stopped after the first attempt, it still makes the others.
constexpr int kParentAttempts = 28;
constexpr int64_t kReportPatienceMs = 1000;
constexpr int64_t kTcpAttemptMs = 2000;

Deadline sooner(Deadline deadline, int64_t ms) {
  return Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(ms).at_ns()));
}

// Returns true if another attempt may succeed, because nobody listened yet, or a crowd at the door
// had this rank sent away.
bool worth_another_try(const Status& status) { return status.code() == FSCCL_ERR_LINK; }

struct Admission {
  FramedSocket channel;
  Assign assign;
};

Result<Admission> register_once(const RendezvousPoint& place, const SocketAddress& address,
                                MemberRecord* self, int32_t ranks, Deadline deadline) {
  Status versions;
  const Deadline attempt = address.is_unix() ? deadline : sooner(deadline, kTcpAttemptMs);
  Result<FramedSocket> connected = connect_as(address, place.credentials, Purpose::kRegister,
                                              place.meeting, self->rank, ranks, attempt, &versions);
  if (!connected.ok()) {
    if (connected.status().code() == FSCCL_ERR_TIMEOUT && !deadline.passed())
      return fail(FSCCL_ERR_LINK, "{}: no answer", describe(address));
    return connected.take_status();
  }
  Admission admission;
  admission.channel = connected.take();
  self->via_unix = address.is_unix();
  const auto left_ms = static_cast<uint64_t>(deadline.left_ns() / 1'000'000);
  FSCCL_TRY(
      admission.channel.send(FrameType::kRegister, encode(Register{*self, left_ms}), deadline));
  Result<Bytes> answer = admission.channel.expect(FrameType::kAssign, deadline);
  // The rendezvous has seen the difference, too, and fails the job.
  if (!versions.ok()) return versions;
  if (!answer.ok()) return answer.take_status();
  FSCCL_ASSIGN(admission.assign, decode_assign(answer.value(), ranks));
  return admission;
}

Result<Admission> register_rank(const RendezvousPoint& place, MemberRecord* self, int32_t ranks,
                                Deadline deadline) {
  Status last;
  std::optional<Admission> registered;
  const SocketAddress* tried = nullptr;
  const int64_t begin_ns = now_ns();
  const auto decided = [&] {
    for (const SocketAddress& address : place.addresses) {
      tried = &address;
      Result<Admission> admission = register_once(place, address, self, ranks, deadline);
      if (admission.ok()) registered = admission.take();
      last = admission.take_status();
      if (!worth_another_try(last)) return true;
    }
    return false;
  };
  wait_until(decided, deadline, kNothingBreaks, between_attempts());
  if (registered) return std::move(*registered);
  if (last.code() == FSCCL_ERR_PROTOCOL && last.error().peer < 0)
    return fail(FSCCL_ERR_PROTOCOL, "rank {}: at {}, where the {} ranks are to meet: {}",
                self->rank, describe(*tried), ranks, last.text());
  if (!worth_another_try(last) && last.code() != FSCCL_ERR_TIMEOUT) return last;
  // The rendezvous itself has said why.
  if (last.error().peer >= 0 || last.text().find("joined") != std::string::npos) return last;
  return fail(FSCCL_ERR_TIMEOUT,
              "rank {} did not reach the place where the {} ranks meet in {} ms; is {} running? "
              "(last attempt: {})",
              self->rank, ranks, (now_ns() - begin_ns) / 1'000'000, place.who_listens, last.text());
}

Result<FramedSocket> link_to_parent(const RendezvousPoint& place, const Admission& admission,
                                    const MemberRecord& self, int32_t ranks, Deadline deadline) {
  const MemberRecord& parent = admission.assign.parent;
  const bool by_unix = parent.via_unix && self.via_unix;
  const SocketAddress address = by_unix ? unix_address(listener_name(parent.listener))
                                        : tcp_address(parent.ip, parent.port, place.link);
  Status versions, last;
  std::optional<FramedSocket> linked;
  int attempts = 0;
  const auto decided = [&] {
    Result<Fd> fd = connect_to(address, deadline);
    if (!fd.ok()) {
      last = fd.take_status();
      // A Unix socket that refuses has no listener any more, so another attempt is of no use.
      return by_unix || !worth_another_try(last) || ++attempts == kParentAttempts;
    }
    Result<FramedSocket> channel =
        introduce_as(fd.take(), place.credentials, Purpose::kLink, admission.assign.job, self.rank,
                     ranks, deadline, &versions);
    last = channel.ok() ? channel.value().expect(FrameType::kLinked, deadline).take_status()
                        : channel.take_status();
    if (last.ok()) linked = channel.take();
    return !worth_another_try(last) || ++attempts == kParentAttempts;
  };
  wait_until(decided, deadline, kNothingBreaks, between_attempts());
  if (linked) return std::move(*linked);
  if (last.code() == FSCCL_ERR_TIMEOUT && last.error().peer < 0)
    return fail(FSCCL_ERR_TIMEOUT,
                "rank {} got no answer from rank {} at {}, below which it belongs; is a firewall "
                "between them?",
                self.rank, parent.rank, describe(address))
        .with_peer(self.rank, parent.rank);
  if (!worth_another_try(last)) return last;
  return fail(FSCCL_ERR_PEER_DEAD,
              "rank {} cannot connect to rank {} (process {}), below which it belongs: {}",
              self.rank, parent.rank, parent.pid, last.text())
      .with_peer(self.rank, parent.rank);
}

// Opens the listeners of this rank, before the rendezvous tells other ranks their addresses.
Result<Doors> open_doors(const RendezvousPoint& place, MemberRecord* self) {
  Doors doors;
  FSCCL_ASSIGN(Fd unix_listener, listen_unix(listener_name(self->listener)));
  doors.listeners.push_back(std::move(unix_listener));
  if (!place.tcp) return doors;
  FSCCL_ASSIGN(Fd tcp_listener, listen_tcp(0));
  self->port = port_of(local_address(tcp_listener.get()));
  doors.listeners.push_back(std::move(tcp_listener));
  // If there is no socket for datagrams, beats come in frames alone.
  Result<Fd> beats = config()->heartbeat_ms ? open_datagrams() : Fd();
  if (beats.ok()) doors.beats = beats.take();
  if (doors.beats.valid()) self->beat_port = port_of(local_address(doors.beats.get()));
  return doors;
}

}  // namespace

Result<std::shared_ptr<Job>> join_at(const RendezvousPoint& place, int32_t rank, int32_t ranks,
                                     Deadline deadline) {
  MemberRecord self = describe_process(place.host_id);
  self.rank = rank;
  Result<Doors> doors = open_doors(place, &self);
  if (!doors.ok()) return report_failure(place, rank, ranks, doors.take_status(), deadline);
  Result<Admission> registered = register_rank(place, &self, ranks, deadline);
  if (!registered.ok() && is_shortage(registered.status().code()))
    return report_failure(place, rank, ranks, registered.take_status(), deadline);
  FSCCL_ASSIGN(Admission admission, std::move(registered));

  TreeConfig tree_place{
      place.credentials, admission.assign.job, rank, ranks, admission.assign.order, -1, self};
  tree_place.rendezvous_rank = place.rendezvous_rank;
  tree_place.rendezvous = ip_of(peer_address(admission.channel.fd()));
  tree_place.link = place.link;
  if (tree_place.order > 0) tree_place.parent_rank = admission.assign.parent.rank;
  Result<std::shared_ptr<TreeJob>> opened = TreeJob::open(std::move(tree_place), doors.take());
  if (!opened.ok()) return report_failure(place, rank, ranks, opened.take_status(), deadline);
  const std::shared_ptr<TreeJob> tree = opened.take();
  Status status;
  if (admission.assign.order == 0) {
    status = tree->add_rendezvous(std::move(admission.channel));
  } else {
    Result<FramedSocket> parent = link_to_parent(place, admission, self, ranks, deadline);
    status = parent.ok() ? tree->add_parent(parent.take())
                         : report_failure(place, rank, ranks, parent.take_status(), deadline);
  }
  if (!status.ok()) {
    tree->give_up(status);
    return status;
  }
  if (status = tree->finish_join(deadline); !status.ok()) {
    RendezvousServer::hear(admission.assign.job, rank, status);
    return status;
  }
  return std::shared_ptr<Job>(tree);
}

Result<std::shared_ptr<Job>> join_alone(const std::string& host_id) {
  MemberRecord self = describe_process(host_id);
  self.rank = 0;
  FSCCL_ASSIGN(const std::shared_ptr<TreeJob> tree,
               TreeJob::open(TreeConfig{{}, random_number(), 0, 1, 0, -1, self}, {}));
  return std::shared_ptr<Job>(tree);
}

Status report_failure(const RendezvousPoint& place, int32_t rank, int32_t ranks, Status why,
                      Deadline deadline) {
  const MoreDescriptors room(why.code() == FSCCL_ERR_LIMIT);
  const Deadline patience = sooner(deadline, kReportPatienceMs);
  Status answered;  // the failure of the job, if an earlier one than `why` has ended it
  bool reached = false;
  const auto reported = [&] {
    for (const SocketAddress& address : place.addresses) {
      Status versions;
      Result<FramedSocket> channel = connect_as(address, place.credentials, Purpose::kReport,
                                                place.meeting, rank, ranks, patience, &versions);
      if (!channel.ok() && worth_another_try(channel.status())) continue;
      reached = true;
      if (!channel.ok() ||
          !channel.value().send(FrameType::kFailure, encode(to_failure(why)), patience).ok())
        return true;
      Result<Frame> answer = channel.value().receive(patience);  // a Failure comes as a status
      if (!answer.ok() && answer.status().code() != FSCCL_ERR_LINK &&
          answer.status().code() != FSCCL_ERR_TIMEOUT)
        answered = answer.take_status();
      return true;
    }
    return false;
  };
  wait_until(reported, patience, kNothingBreaks, between_attempts());
  // If a rank is dead and the rendezvous cannot be reached either, the rank where the ranks meet
  // has probably ended first and is the cause.
  const int32_t meets_at = place.rendezvous_rank;
  if (!reached && why.code() == FSCCL_ERR_PEER_DEAD && meets_at >= 0 && meets_at != rank)
    return fail(FSCCL_ERR_PEER_DEAD,
                "rank {}, where the ranks meet, has ended while the job was being joined ({})",
                meets_at, why.text())
        .with_peer(rank, meets_at);
  return answered.ok() ? std::move(why) : std::move(answered);
}

}  // namespace fsccl
