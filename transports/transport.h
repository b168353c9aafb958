// A transport opens channels (channel.h) between the ranks of communicators. A transport that first
// connects the ranks of a job has nodes: a node keeps what all channels of a rank share. The
// built-in transports derive from these classes. A plug-in fills the table of functions of
// fsccl/transport.h, which plugin_transport.h adapts.
#pragma once
#include <span>
#include <vector>

#include "base/fd.h"
#include "transports/channel.h"

namespace fsccl {

// A job keeps so many bytes for the endpoint address of a rank. Addresses of UCX have about a
// hundred bytes for each device of the machine.
inline constexpr uint32_t kEndpointRoom = 4096;

// A rank's part of the connections of a job. Its destructor does what leave() of fsccl/transport.h
// does.
class TransportNode {
 public:
  virtual ~TransportNode() = default;
  TransportNode(const TransportNode&) = delete;
  // Returns the bytes that other ranks need to reach this one.
  const std::vector<uint8_t>& endpoint() const { return endpoint_; }
  // Takes the addresses of all ranks, which are `address_bytes` apart. Does not block.
  virtual Status connect(const uint8_t* addresses, size_t address_bytes) = 0;

 protected:
  TransportNode() = default;
  std::vector<uint8_t> endpoint_;
};

// The functions of the library that a transport may call while it opens a channel.
// fsccl_transport_request_t says what each one does.
class Opening {
 public:
  virtual Status publish_fd(int fd) = 0;
  virtual Result<Fd> fetch_fd(int rank) = 0;
  virtual bool cancelled() = 0;

 protected:
  ~Opening() = default;
};

// The arguments of open(), with the names of fsccl_transport_request_t. The pointers are valid
// during open() only, except the node and describe().
struct ChannelRequest {
  int rank = 0, ranks = 1;
  TransportNode* node = nullptr;
  std::span<const int32_t> members, pids;
  uint64_t meeting = 0, tag = 0;
  int64_t deadline_ns = 0;
  bool single_copy = false, known = false;
  // With single_copy: write to peers' private memory as well, if all ranks can. If `known`, it is
  // known that they can.
  bool writes = false;
  size_t slot_bytes = 0;
  int32_t* concerns = nullptr;
  Opening* opening = nullptr;
  std::span<const int32_t> known_as = {};
  void (*describe)(const fsccl_transport_line_t* line, char* text, size_t capacity) = nullptr;
};

class Transport {
 public:
  explicit Transport(const char* name, bool keeps_pages = false, bool signals_one = true)
      : name_(name), keeps_pages_(keeps_pages), signals_one_(signals_one) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  const char* name() const { return name_; }
  bool keeps_pages() const { return keeps_pages_; }
  // Returns true if the transport's channels between hosts can signal one peer only.
  bool signals_one() const { return signals_one_; }

  // Returns an error if the transport cannot work on this machine.
  virtual Status available() const = 0;
  // Makes a node. Only transports that have nodes have this function.
  virtual Result<std::unique_ptr<TransportNode>> join(const fsccl_transport_job_t& job) const;
  virtual Result<OpenedChannel> open(const ChannelRequest& request) const = 0;

 private:
  const char* const name_;
  const bool keeps_pages_, signals_one_;
};

inline Result<std::unique_ptr<TransportNode>> Transport::join(const fsccl_transport_job_t&) const {
  return fail(FSCCL_ERR_INTERNAL, "the transport {} has no nodes", name_);
}

}  // namespace fsccl
