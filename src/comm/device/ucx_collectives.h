// Collectives on device memory that only move bytes, as exchanges of their parts between the ranks
// (transports/exchange.h), straight from place to place. A part is sent from its rank to each rank
// that gets it. A long part for all ranks is scattered first, and then every rank passes on what it
// got, so that no rank sends the part more than twice.
//
// Calls are in stream order: a call sees what was put on the streams before it, and later work on
// the streams sees the result. To achieve this, the call itself waits until the streams have
// reached it, and for the other ranks.
// ranks.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "base/wait.h"
#include "comm/communicator.h"
#include "comm/device/device_call.h"
#include "transports/exchange.h"

namespace fsccl {

class UcxCollectives {
 public:
  // Collective, blocking. If it fails on one rank, the other ranks know that only if the rank tells
  // them. `broken` returns an error if the other ranks need not be waited for any more.
  static Result<std::unique_ptr<UcxCollectives>> create(Communicator& comm,
                                                        const cuda::Device& device,
                                                        std::function<Status()> broken);
  UcxCollectives(const UcxCollectives&) = delete;

  // Runs the calls together: all_gather, all_to_all, broadcast, gather and scatter. The caller
  // holds a Current. An error ends the communicator.
  Status run(const std::vector<const DeviceCall*>& calls);

 private:
  // The messages that are sent and received together.
  struct Round {
    std::vector<Exchange::Part> sends, receives;
  };
  UcxCollectives(Communicator& comm, const cuda::Device& device, std::function<Status()> broken,
                 cuda::OwnedEvent reached)
      : comm_(comm), device_(device), broken_(std::move(broken)), reached_(std::move(reached)) {}
  void add(const DeviceCall& call, Round& round) const;
  void add_long_broadcast(const DeviceCall& call, Round& scattered, Round& passed_on) const;
  Status copy_own(const DeviceCall& call) const;
  Status move(const std::vector<const DeviceCall*>& calls);

  Communicator& comm_;
  const cuda::Device& device_;
  const BreakCheck broken_;
  cuda::OwnedEvent reached_;
  std::unique_ptr<Exchange> by_;
};

}  // namespace fsccl
