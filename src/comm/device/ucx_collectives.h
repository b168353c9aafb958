// Collectives on device memory that only move bytes, as exchanges of their parts between the ranks
// (transports/exchange.h): straight from where they lie to where they are to be. A part goes from
// every rank to each that wants it; a long one for all is scattered first, and then every rank
// passes on what it got, so that no rank sends it more than twice.
//
// In stream order: what was put on the streams before is seen, what is put there afterwards sees
// the result. For that the call itself waits until the streams have come to it, and for the other
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
  // Collective, blocking. On a rank that fails the others know it only if it tells them.
  // `broken`: an error when the others need not be waited for any more.
  static Result<std::unique_ptr<UcxCollectives>> create(Communicator& comm,
                                                        const cuda::Device& device,
                                                        std::function<Status()> broken);
  UcxCollectives(const UcxCollectives&) = delete;

  // Runs the calls together: all_gather, all_to_all, broadcast, gather and scatter. The caller
  // holds a Current. An error ends the communicator.
  Status run(const std::vector<const DeviceCall*>& calls);

 private:
  // The messages that are sent and received at once.
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
