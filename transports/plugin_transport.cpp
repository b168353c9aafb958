#include "transports/plugin_transport.h"

#include <algorithm>

#include "wire/told.h"

namespace fsccl {
namespace {

using Table = fsccl_transport_ops_t;
using Text = char[512];

// Neither the code nor the text is trusted: the text may have no end.
Status status_of(fsccl_status_t code, const Text& text) {
  return code == FSCCL_OK ? success() : fail(told_code(code), "{}", told_text({text, sizeof text}));
}

class PluginNode final : public TransportNode {
 public:
  PluginNode(const Table& table, void* node, std::vector<uint8_t> endpoint)
      : table_(table), node_(node) {
    endpoint_ = std::move(endpoint);
  }
  ~PluginNode() override { table_.leave(node_); }
  Status connect(const uint8_t* addresses, size_t address_bytes) override {
    Text error = "";
    return status_of(table_.connect(node_, addresses, address_bytes, error, sizeof error), error);
  }
  void* node() const { return node_; }

 private:
  const Table& table_;
  void* const node_;
};

class PluginChannel final : public Channel {
 public:
  PluginChannel(const Table& table, void* channel)
      : Channel({.transport = table.name,
                 .mirrors = true,
                 .signals_one = table.signal_to != nullptr,
                 .places = table.expect != nullptr,
                 .prepares = table.prepare != nullptr}),
        table_(table),
        channel_(channel) {}
  ~PluginChannel() override { table_.close(channel_); }

  void signal(const fsccl_transport_line_t& line) override { table_.signal(channel_, &line); }
  const fsccl_transport_line_t* poll(int peer, uint32_t tick) override {
    return table_.poll(channel_, peer, tick);
  }
  void word(int peer, uint32_t tick, fsccl_transport_word_t* word) override {
    table_.word(channel_, peer, tick, word);
  }

  bool can_read() const override { return table_.can_read(channel_) != 0; }
  Status read(int peer, uint64_t address, void* destination, size_t bytes) override {
    Text error = "";
    return status_of(table_.read(channel_, peer, address, destination, bytes, error, sizeof error),
                     error);
  }
  std::byte* slots(int rank, size_t* ring_bytes, size_t* slot_bytes) const override {
    return static_cast<std::byte*>(table_.slots(channel_, rank, ring_bytes, slot_bytes));
  }
  Status reserve() override {
    Text error = "";
    return status_of(table_.reserve(channel_, error, sizeof error), error);
  }

  void put(int peer, size_t at, const void* source, size_t bytes) override {
    table_.put(channel_, peer, at, source, bytes);
  }
  void rest() override { table_.rest(channel_); }
  void expect(int peer, uint32_t tick, size_t at, std::byte* destination, size_t bytes) override {
    table_.expect(channel_, peer, tick, at, destination, bytes);
  }
  bool placed(int peer, uint32_t tick, size_t at, size_t bytes) const override {
    return table_.placed(channel_, peer, tick, at, bytes) != 0;
  }
  void hold() override {
    if (table_.hold) table_.hold(channel_);
  }
  void signal_to(int peer, const fsccl_transport_line_t& line) override {
    table_.signal_to ? table_.signal_to(channel_, peer, &line) : table_.signal(channel_, &line);
  }
  void prepare(uint32_t tick) override { table_.prepare(channel_, tick); }

  void fail(const fsccl_transport_failure_t& failure) override { table_.fail(channel_, &failure); }
  const fsccl_transport_failure_t* failure() override { return table_.failure(channel_); }
  bool left(int peer) const override { return table_.left(channel_, peer) != 0; }
  void hear_out() override {
    if (table_.hear_out) table_.hear_out(channel_);
  }

  Result<OpenedChannel> pair(int from, int to) override {
    Text error = "";
    void* pair = nullptr;
    uint32_t first_tick = 0;
    FSCCL_TRY(
        status_of(table_.pair(channel_, from, to, &pair, &first_tick, error, sizeof error), error));
    return OpenedChannel{std::make_unique<PluginChannel>(table_, pair), first_tick};
  }
  const char* path(int number) const override {
    return table_.path ? table_.path(channel_, number) : nullptr;
  }
  int take_path(int peer, int number) override {
    return table_.take_path ? table_.take_path(channel_, peer, number) : -1;
  }

 private:
  const Table& table_;
  void* const channel_;
};

int report_failure(const Status& status, char* error, size_t capacity) {
  report(status, error, capacity);
  return -1;
}

Opening& opening(void* context) { return *static_cast<Opening*>(context); }

int publish_fd(void* context, int fd, char* error, size_t capacity) {
  const Status published = opening(context).publish_fd(fd);
  return published.ok() ? 0 : report_failure(published, error, capacity);
}

int fetch_fd(void* context, int rank, char* error, size_t capacity) {
  Result<Fd> fetched = opening(context).fetch_fd(rank);
  return fetched.ok() ? fetched.value().release()
                      : report_failure(fetched.status(), error, capacity);
}

}  // namespace

Status PluginTransport::available() const {
  Text why = "";
  return table_.available(why, sizeof why) ? success() : fail(FSCCL_ERR_NOT_AVAILABLE, "{}", why);
}

Result<std::unique_ptr<TransportNode>> PluginTransport::join(
    const fsccl_transport_job_t& job) const {
  Text error = "";
  void* node = nullptr;
  std::vector<uint8_t> endpoint(kEndpointRoom);
  size_t bytes = endpoint.size();
  FSCCL_TRY(
      status_of(table_.join(&job, &node, endpoint.data(), &bytes, error, sizeof error), error));
  const size_t room = endpoint.size();
  endpoint.resize(std::min(bytes, room));
  std::unique_ptr<TransportNode> made;  // it leaves if the address is too long
  if (node) made = std::make_unique<PluginNode>(table_, node, std::move(endpoint));
  if (!made || bytes > room)
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "its join() made no node, or an endpoint address of more than {} bytes", room);
  return made;
}

Result<OpenedChannel> PluginTransport::open(const ChannelRequest& request) const {
  fsccl_transport_request_t asked{};
  asked.size = sizeof asked;
  asked.rank = request.rank;
  asked.ranks = request.ranks;
  asked.node = static_cast<PluginNode*>(request.node)->node();
  asked.members = request.members.data();
  asked.pids = request.pids.data();
  asked.meeting = request.meeting;
  asked.tag = request.tag;
  asked.deadline_ns = request.deadline_ns;
  asked.single_copy = request.single_copy ? 1 : 0;
  asked.known = request.known ? 1 : 0;
  asked.slot_bytes = request.slot_bytes;
  asked.concerns = request.concerns;
  asked.context = request.opening;
  asked.publish_fd = publish_fd;
  asked.fetch_fd = fetch_fd;
  asked.cancelled = [](void* context) { return opening(context).cancelled() ? 1 : 0; };
  asked.known_as = request.known_as.empty() ? nullptr : request.known_as.data();
  asked.describe = request.describe;
  Text error = "";
  void* channel = nullptr;
  uint32_t first_tick = 0;
  FSCCL_TRY(status_of(table_.open(&asked, &channel, &first_tick, error, sizeof error), error));
  return OpenedChannel{std::make_unique<PluginChannel>(table_, channel), first_tick};
}

}  // namespace fsccl
