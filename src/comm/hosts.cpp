#include "comm/hosts.h"

#include <algorithm>

#include "comm/communicator.h"
#include "comm/together.h"

namespace fsccl {
namespace {

constexpr uint64_t kTag = 0x6869657261726368;  // tag of the subsets

// Returns the ranks of each host. Hosts are in the order of their first ranks.
std::vector<std::vector<int>> ranks_by_host(Communicator& whole) {
  Job& job = whole.context().job();
  std::vector<uint64_t> hosts;
  std::vector<std::vector<int>> ranks;
  for (int rank = 0; rank < whole.size(); rank++) {
    const uint64_t host = job.member(whole.job_rank(rank)).host;
    const auto found =
        static_cast<size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin());
    if (found == hosts.size()) hosts.push_back(host), ranks.emplace_back();
    ranks[found].push_back(rank);
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<Hosts>> Hosts::create(Communicator& whole) {
  const std::vector<std::vector<int>> hosts = ranks_by_host(whole);
  std::unique_ptr<Hosts> made(new Hosts);
  made->hosts_ = hosts.size();
  made->lanes_ = hosts[0].size();
  made->places_.resize(static_cast<size_t>(whole.size()));
  for (size_t host = 0; host < hosts.size(); host++) {
    made->lanes_ = std::min(made->lanes_, hosts[host].size());
    for (size_t index = 0; index < hosts[host].size(); index++)
      made->places_[static_cast<size_t>(hosts[host][index])] = {host, index};
  }
  made->own_place_ = made->places_[static_cast<size_t>(whole.rank())];
  const std::vector<int>& mates = hosts[made->own_place_.host];
  made->host_size_ = mates.size();
  Together together(whole);
  together.begin();
  FSCCL_ASSIGN(made->host_, whole.part(mates, kTag, "ranks of a host"));
  if (hosts.size() == static_cast<size_t>(whole.size())) made->lane_ = &whole;
  if (made->lane_ || made->own_place_.index >= made->lanes_) return made;
  std::vector<int> across;
  for (const std::vector<int>& ranks : hosts) across.push_back(ranks[made->own_place_.index]);
  FSCCL_ASSIGN(made->made_lane_, whole.part(across, kTag + 1, "a lane between hosts"));
  made->lane_ = made->made_lane_.get();
  return made;
}

Hosts::~Hosts() = default;

}  // namespace fsccl
