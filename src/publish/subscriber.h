// A process that receives a publication. A thread of its own receives from every rank that holds
// some of the wanted elements, and applies a version when all of its bytes have come. update()
// copies the newest applied version to the caller's memory.
//
// The thread asks all ranks for one version, the target: the newest version that all ranks have. If
// a rank no longer has the target, because the ranks have gone on meanwhile, the next target is a
// version that no rank has yet: each rank answers when it comes to that version.
//
// Invariant: while the lock is free, all links are at version complete_.version, or
// complete_.version is 0. The words of links change in commit() alone, without the lock, so that no
// call waits for it: while complete_.version is 0, update() reads no words, and commit() does not
// begin while copying_ is not 0, nor before an update() that waits has taken the version for which
// it waited. However fast versions follow each other, a waiting update() therefore gets one.
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
#include "publish/reach.h"
#include "publish/wanted.h"

namespace fsccl::publish {

struct SubscribeRequest {
  const fsccl_unique_id_t* ticket = nullptr;
  std::string address;  // used if there is no ticket
  std::vector<WantedParam> params;
  fsccl_sharding_t sharding{};
  int64_t timeout_ms = 0;
  std::string name;
};

class Subscriber {
 public:
  // Returns when all ranks that hold wanted elements are connected, or fails. Attempts to connect
  // go on until timeout_ms has passed.
  static Result<std::unique_ptr<Subscriber>> create(SubscribeRequest request);
  ~Subscriber();

  // Waits for a complete version newer than the last one delivered, and copies it to the caller's
  // memory. Returns that version, or version 0 if none came before the deadline.
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
    std::optional<Reach> search;  // the attempts since the link was lost
    int refusals = 0;             // attempts whose error was FSCCL_ERR_LINK
  };

  Subscriber() = default;
  static void leave_to_parent(void* self);
  BreakCheck until_it_ends();
  Result<Reach> reach(int rank);
  Status open(const SubscribeRequest& request);
  Status find(const SubscribeRequest& request, Deadline deadline);

  // The subscriber's thread runs these; open() uses failed(), too.
  void run();
  Status round();
  void wait_for_bytes();
  bool silent_for_long(const Peer& peer) const;
  Status read(Peer& peer);
  Status lost(Peer& peer, Status why);
  Status reconnect(Peer& peer);
  Status go_on();
  Status commit();
  const Peer* apply(uint64_t version, double* cpu_s);
  void choose_target();
  Status ask_all();
  void copy_words(double* cpu_s) const;
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
  int fork_hook_ = -1;
  std::atomic<bool> stopping_{false};

  uint64_t target_ = 0;  // the version that all ranks are asked for; 0: none
  int64_t target_since_ns_ = 0;
  uint64_t ahead_ = 0;  // how far the target lies beyond the newest version of any rank
  int failures_ = 0;    // wrong messages and damaged versions since the last complete version

  std::mutex mutex_;
  Condition changed_;
  fsccl_publication_t complete_ = FSCCL_PUBLICATION_INIT;
  uint64_t delivered_ = 0;
  int copying_ = 0;  // calls of update() that read the words of complete_.version
  int waiting_ = 0;  // calls of update() that wait for a version
  Status fatal_;     // why the thread has ended
  fsccl_subscribe_report_t counts_ = FSCCL_SUBSCRIBE_REPORT_INIT;
};

}  // namespace fsccl::publish
