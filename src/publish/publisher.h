// A publishing rank's side of a publication. The public functions run in the caller's threads. The
// service thread serves the subscribers: a Reception admits those that have proved the key, and
// each has a Feed.
//
// One lock guards the history and the feeds. publish() takes it anew for each block: to keep the
// old words, and to add the encoded block. It writes the new words (encode(), copy()) without the
// lock (keep() in history.cpp says why this is safe).
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/threads.h"
#include "bootstrap/reception.h"
#include "fsccl/publish.h"
#include "publish/catalog.h"
#include "publish/feed.h"
#include "publish/history.h"
#include "publish/words.h"

namespace fsccl {
class Communicator;
}

namespace fsccl::publish {

struct PublishRequest {
  Catalog catalog;                    // its number and addresses are not set yet
  std::vector<fsccl_dtype_t> stored;  // the type of each parameter's shard
  std::vector<const void*> shards;
  uint64_t limit_bytes = 0;
  int64_t timeout_ms = 0, linger_ms = 0;
  bool nibbles_only = false;
  uint16_t port = 0;
  size_t max_subscribers = 0;
  std::string name;
};

class Publisher : public std::enable_shared_from_this<Publisher> {
 public:
  // Collective and blocking. If `request` is an error, this rank cannot take part; the call then
  // fails on all ranks, and the others are told why.
  static Result<std::shared_ptr<Publisher>> create(Communicator& comm,
                                                   Result<PublishRequest> request);
  ~Publisher() { close(); }

  // `shards` has one address for each parameter, or is null: then the addresses stay as they were.
  // One thread at a time may call this.
  Status publish(const void* const* shards, uint64_t label);
  size_t params() const { return request_.catalog.params.size(); }
  const fsccl_unique_id_t& ticket() const { return ticket_; }
  void report(fsccl_publish_report_t* report);
  // Waits until all connected subscribers have the newest version, for at most linger_ms, and then
  // closes.
  void finish();
  void close();

 private:
  explicit Publisher(PublishRequest request) : request_(std::move(request)) {}
  Status prepare();
  Status listen(std::vector<Fd>* listeners, RankAddress* address);
  Status meet(Communicator& comm, const RankAddress& mine, std::vector<Fd> listeners);
  Status begin_to_serve(const Credentials& credentials, std::vector<Fd> listeners);
  Status check_shards(const void* const* shards) const;
  void fill(size_t block, uint16_t* words) const;
  void welcome(Guest guest);
  void on_readable(int fd);
  void on_writable(int fd);
  void serve(int fd, Feed& feed);
  void drop(int fd);
  int64_t on_timer();
  bool all_have_newest() const;

  PublishRequest request_;
  WordRange range_;
  int rank_ = 0;
  Bytes catalog_bytes_;
  fsccl_unique_id_t ticket_{};
  int port_ = 0;
  std::shared_ptr<Reception> reception_;
  int hook_ = -1;

  std::mutex mutex_;
  Condition changed_;  // notified when a subscriber has gone or has said something
  std::unique_ptr<History> history_;
  std::map<int, Feed> feeds_;
  bool closed_ = false;
  int64_t next_news_ns_ = 0;
  uint64_t records_bytes_ = 0, records_ = 0, disconnected_ = 0;
  uint64_t gone_sent_bytes_ = 0, gone_whole_copies_ = 0;  // sums over the feeds that have gone
  double publish_cpu_s_ = 0, serving_cpu_s_ = 0;

  std::vector<uint16_t> staged_;  // used by the publishing thread alone
  DeltaScratch scratch_;
};

}  // namespace fsccl::publish
