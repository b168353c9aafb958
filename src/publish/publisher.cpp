#include "publish/publisher.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"
#include "bootstrap/unique_id.h"
#include "comm/consensus.h"
#include "publish/cpu_time.h"
#include "publish/host_memory.h"
#include "publish/key.h"

namespace fsccl::publish {

namespace {

constexpr int64_t kNewsNs = 1'000'000'000;
constexpr uint64_t kLeastLimit = uint64_t{16} << 20;  // bytes; the least default of limit_bytes
constexpr size_t kMostMessageBytes = 64;              // the largest message of a subscriber

}  // namespace

Result<std::shared_ptr<Publisher>> Publisher::create(Communicator& comm,
                                                     Result<PublishRequest> request) {
  std::shared_ptr<Publisher> made;
  std::vector<Fd> listeners;
  RankAddress mine;
  Status status = request.ok() ? success() : request.take_status();
  if (status.ok()) try {
      made.reset(new Publisher(request.take()));
      made->rank_ = comm.rank();
      made->request_.catalog.addresses.resize(static_cast<size_t>(comm.size()));
      status = made->prepare();
      if (status.ok()) status = made->listen(&listeners, &mine);
    } catch (const std::bad_alloc&) {  // the other ranks are told, which would wait otherwise
      status = fail(FSCCL_ERR_OUT_OF_MEMORY,
                    "this rank has no memory for the words that it publishes, 2 bytes of each of "
                    "its elements");
    }
  FSCCL_TRY(all_ok(comm, std::move(status), "publish"));
  FSCCL_TRY(made->meet(comm, mine, std::move(listeners)));
  return made;
}

// Does the part of create() that needs no other rank.
Status Publisher::prepare() {
  FSCCL_TRY(check_size(request_.catalog));
  FSCCL_ASSIGN(const std::vector<Layout> layouts, layouts_of(request_.catalog));
  range_ = words_of_rank(request_.catalog, layouts, rank_);
  if (!request_.limit_bytes)
    request_.limit_bytes = std::max(kLeastLimit, range_.words * sizeof(uint16_t));
  history_ = std::make_unique<History>(range_.words, request_.limit_bytes);
  staged_.resize(std::min<uint64_t>(range_.words, kDeltaBlockWords));
  return success();
}

Status Publisher::listen(std::vector<Fd>* listeners, RankAddress* address) {
  const ConfigRef settings = config();
  address->host = host_number(settings->host_id);
  random_bytes(address->listener.data(), address->listener.size());
  FSCCL_ASSIGN(Fd unix_listener, listen_unix(listener_name(address->listener)));
  listeners->push_back(std::move(unix_listener));
  if (!settings->bootstrap_tcp) return success();
  Result<Fd> tcp_listener = listen_tcp(request_.port);
  if (!tcp_listener.ok() && tcp_listener.status().code() == FSCCL_ERR_INVALID_STATE)
    return fail(FSCCL_ERR_CONFIG, "port {} is in use; choose another, or 0 for any", request_.port);
  if (!tcp_listener.ok()) return tcp_listener.take_status();
  address->port = port_of(local_address(tcp_listener.value().get()));
  address->ips = local_ips(settings->bootstrap_interface);
  if (address->ips.size() > kMostAddresses) address->ips.resize(kMostAddresses);
  port_ = address->port;
  listeners->push_back(tcp_listener.take());
  return success();
}

// Compares the values that must be equal on all ranks, exchanges the addresses and the salt of the
// key, and begins to serve subscribers.
Status Publisher::meet(Communicator& comm, const RankAddress& mine, std::vector<Fd> listeners) {
  Catalog& catalog = request_.catalog;
  const Bytes params = encode_params(catalog);
  const std::string_view text(reinterpret_cast<const char*>(params.data()), params.size());
  FSCCL_ASSIGN(const int odd, first_that_differs(comm, hash_of(text)));
  if (odd >= 0)
    return fail(
        FSCCL_ERR_MISMATCH,
        "rank {} publishes other parameters than rank {}: names, shapes, types, ties, units "
        "and layout are the same on all ranks",
        odd, rank_);
  std::array<uint8_t, kRankAddressBytes> address{};
  const Bytes bytes = encode(mine);
  std::copy(bytes.begin(), bytes.end(), address.begin());
  FSCCL_ASSIGN(const auto addresses, all_gather(comm, address));
  for (size_t rank = 0; rank < addresses.size(); rank++) {
    FSCCL_ASSIGN(catalog.addresses[rank], decode_rank_address(addresses[rank]));
  }
  FSCCL_ASSIGN(const Salt salt, from_rank(comm, 0, Salt::random()));
  Result<PublicationKey> made = key_of_publication(comm.context().job(), salt);
  FSCCL_TRY(all_ok(comm, made.status().clone(), "read the key of the publication"));
  const PublicationKey key = made.take();
  FSCCL_ASSIGN(const int other, first_that_differs(comm, key.number));
  if (other >= 0)
    return fail(FSCCL_ERR_MISMATCH,
                "rank {} has another secret in FSCCL_JOB_SECRET_FILE than rank {}, or none", other,
                rank_);
  catalog.number = key.number;
  catalog_bytes_ = encode(catalog);
  const RankAddress& first = catalog.addresses.front();
  ticket_ = fsccl::encode(UniqueId{key.number, key.credentials.key, first.listener, first.host,
                                   getpid(), first.port, first.ips});
  return all_ok(comm, begin_to_serve(key.credentials, std::move(listeners)), "serve subscribers");
}

Status Publisher::begin_to_serve(const Credentials& credentials, std::vector<Fd> listeners) {
  FSCCL_ASSIGN(reception_,
               Reception::open(credentials, request_.catalog.number, rank_, std::move(listeners),
                               [weak = weak_from_this()](Guest guest) {
                                 if (const auto self = weak.lock()) self->welcome(std::move(guest));
                               }));
  hook_ = Reactor::instance().add_hook([weak = weak_from_this()]() -> int64_t {
    const auto self = weak.lock();
    return self ? self->on_timer() : -1;
  });
  return success();
}

void Publisher::welcome(Guest guest) {
  if (guest.hello.purpose != Purpose::kSubscribe || guest.request.type != FrameType::kSubscribe)
    return;
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  Status refused = std::move(guest.versions);
  if (refused.ok() && feeds_.size() >= request_.max_subscribers)
    refused =
        fail(FSCCL_ERR_LIMIT,
             "rank {} of publication '{}' has {} subscribers, as many as max_subscribers says",
             rank_, request_.name, feeds_.size());
  if (!refused.ok()) {
    guest.channel->queue(FrameType::kFailure, fsccl::encode(to_failure(refused)));
    (void)guest.channel->pump_out().ok();
    return;
  }
  const int fd = guest.channel->fd();
  guest.channel->allow(kMostMessageBytes);
  const auto [at, fresh] = feeds_.try_emplace(fd, std::move(guest.channel), now_ns());
  Undo undo([&, place = at] { feeds_.erase(place); });
  at->second.greet(catalog_bytes_);
  const auto weak = weak_from_this();
  const Status watched = Reactor::instance().watch(
      fd,
      [weak, fd] {
        if (const auto self = weak.lock()) self->on_readable(fd);
      },
      [weak, fd] {
        if (const auto self = weak.lock()) self->on_writable(fd);
      });
  if (!watched.ok()) return;
  undo.keep();
  serve(fd, at->second);
}

// Sends what the subscriber can take now.
void Publisher::serve(int fd, Feed& feed) {
  const CpuTime time(&serving_cpu_s_);
  const Result<bool> more = feed.write(*history_, now_ns());
  if (!more.ok()) return drop(fd);
  Reactor::instance().want_writable(fd, more.value());
}

void Publisher::on_readable(int fd) {
  const std::lock_guard lock(mutex_);
  const auto found = feeds_.find(fd);
  if (closed_ || found == feeds_.end()) return;
  {
    const CpuTime time(&serving_cpu_s_);
    if (!found->second.read(*history_).ok()) return drop(fd);
  }
  changed_.notify_all();
  serve(fd, found->second);
}

void Publisher::on_writable(int fd) {
  const std::lock_guard lock(mutex_);
  const auto found = feeds_.find(fd);
  if (!closed_ && found != feeds_.end()) serve(fd, found->second);
}

void Publisher::drop(int fd) {
  const auto found = feeds_.find(fd);
  Feed& feed = found->second;
  feed.stop(*history_);
  gone_sent_bytes_ += feed.sent_bytes();
  gone_whole_copies_ += feed.whole_copies();
  Reactor::instance().unwatch(fd);
  feeds_.erase(found);
  changed_.notify_all();
}

// Sends signs of life each second, and drops subscribers that have taken nothing for too long.
int64_t Publisher::on_timer() {
  const std::lock_guard lock(mutex_);
  if (closed_) return -1;
  const int64_t now = now_ns();
  if (now < next_news_ns_) return next_news_ns_ - now;
  next_news_ns_ = now + kNewsNs;
  std::vector<int> fds;
  for (const auto& [fd, feed] : feeds_) fds.push_back(fd);
  for (const int fd : fds) {
    Feed& feed = feeds_.at(fd);
    if (feed.stuck_for_ns(now) > request_.timeout_ms * 1'000'000) {
      disconnected_++;
      drop(fd);
      continue;
    }
    feed.tell_alive();
    serve(fd, feed);
  }
  return kNewsNs;
}

// Gathers the words of a block from the pieces that it covers.
void Publisher::fill(size_t block, uint16_t* words) const {
  const uint64_t begin = range_.block_begin(block), end = begin + range_.block_words(block);
  auto piece =
      std::upper_bound(range_.pieces.begin(), range_.pieces.end(), begin,
                       [](uint64_t word, const WordPiece& one) { return word < one.first_word; }) -
      1;
  for (uint64_t word = begin; word < end; ++piece) {
    const fsccl_dtype_t sent = request_.catalog.params[piece->param].dtype;
    const uint64_t first = word - piece->first_word;
    const uint64_t count = std::min(end - word, words_of(sent, piece->count) - first);
    read_words(request_.shards[piece->param], request_.stored[piece->param], sent, piece->count,
               first, count, words + (word - begin));
    word += count;
  }
}

Status Publisher::check_shards(const void* const* shards) const {
  for (const WordPiece& piece : range_.pieces) {
    const std::string& name = request_.catalog.params[piece.param].name;
    if (!shards[piece.param])
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "parameter {} ('{}'): its shard is NULL, and this rank holds {} elements of it",
                  piece.param, name, piece.count);
    FSCCL_TRY(check_host_memory(shards[piece.param], piece.param, name));
  }
  return success();
}

Status Publisher::publish(const void* const* shards, uint64_t label) {
  // A call that fails, or has no memory, takes the number of its version along.
  Undo failed([&] {
    const std::lock_guard lock(mutex_);
    history_->skip();
  });
  double cpu_s = 0;
  {
    const CpuTime time(&cpu_s);
    // Shards that are refused must not take the place of those of the last call.
    const void* const* const from = shards ? shards : request_.shards.data();
    FSCCL_TRY(check_shards(from));
    if (shards) std::copy_n(shards, params(), request_.shards.begin());
    bool listened_to = false;
    {
      const std::lock_guard lock(mutex_);
      listened_to = !feeds_.empty();
      history_->begin(listened_to);
    }
    const DeltaForm form = request_.nibbles_only ? DeltaForm::nibbles : DeltaForm::coded;
    for (size_t block = 0; block < range_.blocks(); block++) {
      fill(block, staged_.data());
      {
        const std::lock_guard lock(mutex_);
        history_->keep(block);
      }
      if (!listened_to) {
        history_->copy(block, staged_.data());
        continue;
      }
      history_->encode(block, staged_.data(), form, scratch_);
      const std::lock_guard lock(mutex_);
      history_->add_encoded(block);
    }
  }
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = history_->end(label);
  failed.keep();
  records_bytes_ += bytes;
  records_ += bytes ? 1 : 0;
  publish_cpu_s_ += cpu_s;
  for (const auto& [fd, feed] : feeds_) Reactor::instance().want_writable(fd, true);
  return success();
}

bool Publisher::all_have_newest() const {
  return std::all_of(feeds_.begin(), feeds_.end(),
                     [&](const auto& one) { return one.second.have() == history_->version(); });
}

void Publisher::finish() {
  {
    std::unique_lock lock(mutex_);
    wait_until([&] { return all_have_newest(); }, Deadline::in_ms(request_.linger_ms),
               kNothingBreaks, UntilNotified{lock, changed_});
  }
  close();
}

// Callbacks may run until unwatch() and remove_hook() have returned, so the feeds that they use are
// destroyed after that.
void Publisher::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;  // no callback changes anything from here on
    for (auto& [fd, feed] : feeds_) feed.say_goodbye();
  }
  if (reception_) reception_->close();
  if (hook_ >= 0) Reactor::instance().remove_hook(hook_);
  for (const auto& [fd, feed] : feeds_) Reactor::instance().unwatch(fd);
  const std::lock_guard lock(mutex_);
  for (auto& [fd, feed] : feeds_) feed.stop(*history_);
  feeds_.clear();
}

void Publisher::report(fsccl_publish_report_t* report) {
  const std::lock_guard lock(mutex_);
  report->version = history_->version();
  report->words_bytes = range_.words * sizeof(uint16_t);
  report->copy_bytes = history_->copy_bytes();
  report->held_bytes = history_->held_bytes();
  report->held_peak_bytes = history_->held_peak_bytes();
  report->limit_bytes = history_->limit_bytes();
  report->record_bytes = history_->newest_record_bytes();
  report->records_bytes = records_bytes_;
  report->records = records_;
  report->sent_bytes = gone_sent_bytes_;
  report->whole_copies = gone_whole_copies_;
  for (const auto& [fd, feed] : feeds_) {
    report->sent_bytes += feed.sent_bytes();
    report->whole_copies += feed.whole_copies();
    report->sending_bytes += feed.room_bytes();
  }
  report->given_up = history_->given_up();
  report->disconnected = disconnected_;
  report->strangers = static_cast<uint64_t>(reception_->strangers());
  report->publish_cpu_s = publish_cpu_s_;
  report->serving_cpu_s = serving_cpu_s_;
  report->subscribers = static_cast<int>(feeds_.size());
  report->port = port_;
}

}  // namespace fsccl::publish
