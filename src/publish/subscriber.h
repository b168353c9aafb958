// A process that receives a publication. A thread of its own receives from every rank that holds
// something of what is wanted, and applies a version when all of it is there; update() copies the
// newest one to the caller's memory.
//
// A round: one version is asked of all ranks, the newest that all have. Where a rank has it no
// more, because the ranks have gone on meanwhile, the next round asks for a version that none of
// them has yet: each rank answers when it comes to it.
//
// Invariant: between rounds all links are at one version, or complete_.version is 0. The words of
// links change in commit() alone, under the lock.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/threads.h"
#include "base/wait.h"
#include "bootstrap/credentials.h"
#include "fsccl/publish.h"
#include "fsccl/redistribute.h"
#include "publish/link.h"
#include "publish/wanted.h"

namespace fsccl::publish {

struct SubscribeRequest {
  const fsccl_unique_id_t* ticket = nullptr;
  std::string address;  // where there is no ticket
  std::vector<WantedParam> params;
  fsccl_sharding_t sharding{};
  int64_t timeout_ms = 0;
  std::string name;
};

class Subscriber {
 public:
  // Blocks until the ranks are connected.
  static Result<std::unique_ptr<Subscriber>> create(SubscribeRequest request);
  ~Subscriber();

  // The version that was delivered; 0: none within the time.
  Result<fsccl_publication_t> update(Deadline deadline);
  int64_t timeout_ms() const { return timeout_ms_; }
  void report(fsccl_subscribe_report_t* report);

 private:
  struct Peer {
    Peer(int number, Wanted::OfRank&& what) : rank(number), wanted(std::move(what)) {}
    int rank;
    Wanted::OfRank wanted;
    Link link{wanted.range};
    int64_t retry_ns = 0;
    int attempts = 0;  // to connect again, since it was connected
  };

  Subscriber() = default;
  Result<FramedSocket> connect(const SocketAddress& address, Deadline deadline, Bytes* catalog);
  Result<FramedSocket> connect(int rank, Deadline deadline);
  Status open(const SubscribeRequest& request);
  Status find(const SubscribeRequest& request, Deadline deadline, FramedSocket* first,
              Bytes* catalog);

  // the thread
  void run();
  Status round();
  void wait_for_bytes();
  Status read(Peer& peer);
  Status lost(Peer& peer, Status why);
  Status reconnect(Peer& peer);
  Status go_on();
  Status commit();
  void choose_target();
  Status ask_all();
  Status failed(const Peer& peer, fsccl_status_t code, const std::string& text) const;

  Credentials credentials_;
  uint64_t number_ = 0, host_ = 0;
  std::string name_;
  int64_t timeout_ms_ = 0;
  Catalog catalog_;
  Bytes catalog_bytes_;
  std::vector<std::unique_ptr<Peer>> peers_;
  DeltaScratch scratch_;
  Fd wake_;
  Thread thread_;
  std::atomic<bool> stopping_{false};

  uint64_t target_ = 0;  // the version that this round is after; 0: none
  int64_t target_since_ns_ = 0;
  uint64_t ahead_ = 0;  // the newest version, when a rank had the target no more
  int failures_ = 0;    // connections that were of no use, since a version was complete

  std::mutex mutex_;
  Condition changed_;
  fsccl_publication_t complete_ = FSCCL_PUBLICATION_INIT;
  uint64_t delivered_ = 0;
  Status fatal_;  // why the thread has ended
  fsccl_subscribe_report_t counts_ = FSCCL_SUBSCRIBE_REPORT_INIT;
};

}  // namespace fsccl::publish
