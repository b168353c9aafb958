#include "comm/device/agreement.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "base/hash.h"
#include "comm/device/transport_names.h"
#include "cuda/device.h"
#include "kernels/cuda/device_kernels.h"
#include "transports/nccl/nccl_comm.h"

namespace fsccl {
namespace {

const char* choice_name(int32_t choice) {
  const char* const name = device_transport_name(static_cast<size_t>(choice));
  return name ? name : "unknown";
}

Status same_settings(const std::vector<DeviceTerms>& terms) {
  for (size_t rank = 1; rank < terms.size(); rank++) {
    if (terms[rank].choice != terms[0].choice)
      return fail(FSCCL_ERR_MISMATCH,
                  "rank {} has FSCCL_DEVICE_TRANSPORT {}, rank 0 has {}: set it alike on all ranks",
                  rank, choice_name(terms[rank].choice), choice_name(terms[0].choice));
    if (terms[rank].reproducible != terms[0].reproducible)
      return fail(FSCCL_ERR_MISMATCH,
                  "rank {} and rank 0 differ in FSCCL_REPRODUCIBLE: set it alike on all ranks",
                  rank);
  }
  return success();
}

// NCCL needs a GPU for each rank, except if it takes two ranks for two hosts, or was told to share.
std::string shared_gpu(const std::vector<DeviceTerms>& terms) {
  std::map<std::pair<std::string, uint64_t>, size_t> owners;
  for (size_t rank = 0; rank < terms.size(); rank++) {
    const DeviceTerms& one = terms[rank];
    if (one.shares_gpus && one.version >= 23000) continue;
    const std::string gpu(reinterpret_cast<const char*>(one.device), sizeof one.device);
    const auto [owner, fresh] = owners.try_emplace({gpu, one.nccl_host}, rank);
    if (!fresh)
      return fmt::format(
          "ranks {} and {} are on one GPU, and NCCL wants one for each "
          "(NCCL_MULTI_RANK_GPU_ENABLE=1 from 2.30 on)",
          owner->second, rank);
  }
  return "";
}

int most_on_one_gpu(const std::vector<DeviceTerms>& terms) {
  std::map<std::string, int> ranks;
  int most = 1;
  for (const DeviceTerms& one : terms)
    most = std::max(most, ++ranks[{reinterpret_cast<const char*>(one.device), sizeof one.device}]);
  return most;
}

// For NCCL a machine is what NCCL_HOSTID says, if that is set.
int hosts_of_nccl(const std::vector<DeviceTerms>& terms, const std::vector<uint64_t>& hosts) {
  std::set<std::pair<uint64_t, uint64_t>> found;
  for (size_t rank = 0; rank < terms.size(); rank++)
    found.emplace(terms[rank].nccl_host ? 0 : hosts[rank], terms[rank].nccl_host);
  return static_cast<int>(found.size());
}

template <size_t size>
std::string text_in(const char (&from)[size]) {  // the text may lack its final zero
  return {from, strnlen(from, size)};
}

// Returns the reason why NCCL cannot be used, or an empty text if it can.
std::string obstacle(const std::vector<DeviceTerms>& terms) {
  std::vector<int> versions;
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < terms.size(); rank++) {
    if (!terms[rank].version) return fmt::format("rank {}: {}", rank, text_in(terms[rank].why));
    if (terms[rank].blocks)
      return fmt::format(
          "rank {}: NCCL_COMM_BLOCKING is 1, with which calls of NCCL wait for other ranks without "
          "a deadline: unset it",
          rank);
    hosts.push_back(text_in(terms[rank].host));
    versions.push_back(terms[rank].version);
  }
  if (Status status = nccl::compare_versions(versions, hosts); !status.ok()) return status.text();
  nccl::Facts facts;
  facts.version = versions[0];
  if (const nccl::Features features = nccl::features_of(facts); !features.base.usable)
    return features.base.why;
  return shared_gpu(terms);
}

// p2p is for units only. For collectives it means auto.
bool wants_nccl(DeviceTransport asked) {
  return asked != DeviceTransport::kStaged && asked != DeviceTransport::kUcx;
}

void set_text(char (&to)[160], const std::string& text) { text.copy(to, sizeof to - 1); }

}  // namespace

bool nccl_usable(std::string* why) {
  if (!cuda::device_count(why)) return false;
  const nccl::Library* const library = nccl::library(why);
  if (!library) return false;
  nccl::Facts facts;
  facts.version = library->version;
  *why = nccl::features_of(facts).base.why;
  return why->empty();
}

DeviceTerms device_terms(const cuda::Device& device, int rank) {
  DeviceTerms terms;
  const ConfigRef settings = config();
  terms.choice = static_cast<int32_t>(settings->device_transport);
  terms.reproducible = static_cast<uint8_t>(settings->reproducible);
  terms.driver = device.driver().version;
  if (gethostname(terms.host, sizeof terms.host) != 0) terms.host[0] = '\0';
  terms.kernels = cuda::DeviceKernels::of(device).ok();
  std::memcpy(terms.device, device.uuid(), sizeof terms.device);
  if (const char* const host = std::getenv("NCCL_HOSTID"); host && *host)
    terms.nccl_host = hash_of(std::string_view(host)) | 1;
  const char* const shares = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  terms.shares_gpus = shares && std::strcmp(shares, "1") == 0;
  if (!wants_nccl(settings->device_transport)) return terms;
  std::string why;
  const nccl::Library* const library = nccl::library(&why);
  if (!library) {
    set_text(terms.why, why);
    return terms;
  }
  if (rank == 0 && library->version >= nccl::kOldest) {
    const Result<nccl::ncclUniqueId> id = nccl::Communicator::make_id(*library);
    if (!id.ok()) {
      set_text(terms.why, id.status().text());
      return terms;
    }
    terms.id = id.value();
  }
  terms.version = library->version;
  terms.has_windows = library->ncclCommWindowRegister && library->ncclCommWindowDeregister;
  terms.has_all_to_all = library->ncclAlltoAll != nullptr;
  terms.has_revoke = library->ncclCommRevoke != nullptr;
  terms.blocks = nccl::made_to_block();
  terms.copy_engines = nccl::wants_copy_engines(library->version);
  return terms;
}

Result<DeviceDecision> decide(const std::vector<DeviceTerms>& terms,
                              const std::vector<uint64_t>& hosts) {
  FSCCL_TRY(same_settings(terms));
  DeviceDecision decision;
  decision.by_placement = terms[0].reproducible == static_cast<uint8_t>(Reproducible::kPlacement);
  decision.kernels = decision.facts.has_windows = decision.facts.has_all_to_all =
      decision.facts.has_revoke = true;
  decision.facts.copy_engines = true;
  decision.facts.version = terms[0].version;
  decision.facts.ranks = static_cast<int>(terms.size());
  decision.facts.hosts = hosts_of_nccl(terms, hosts);
  decision.facts.driver = terms[0].driver;
  decision.ranks_on_gpu = most_on_one_gpu(terms);
  for (const DeviceTerms& one : terms) {
    decision.kernels &= one.kernels != 0;
    decision.facts.has_windows &= one.has_windows != 0;
    decision.facts.has_all_to_all &= one.has_all_to_all != 0;
    decision.facts.has_revoke &= one.has_revoke != 0;
    decision.facts.copy_engines &= one.copy_engines != 0;
    decision.facts.driver = std::min(decision.facts.driver, one.driver);
  }
  const auto choice = static_cast<DeviceTransport>(terms[0].choice);
  decision.asked = choice;
  decision.why = wants_nccl(choice)
                     ? obstacle(terms)
                     : fmt::format("FSCCL_DEVICE_TRANSPORT is {}", choice_name(terms[0].choice));
  decision.nccl = decision.why.empty();
  if (choice == DeviceTransport::kNccl && !decision.nccl)
    return fail(FSCCL_ERR_NOT_AVAILABLE, "FSCCL_DEVICE_TRANSPORT is nccl, which cannot be used: {}",
                decision.why);
  return decision;
}

bool tries_exchange(const DeviceDecision& decision, std::string* why) {
  if (decision.asked != DeviceTransport::kNccl && decision.asked != DeviceTransport::kStaged)
    return true;
  *why = fmt::format("FSCCL_DEVICE_TRANSPORT is {}",
                     choice_name(static_cast<int32_t>(decision.asked)));
  return false;
}

std::string obstacle_to_exchange(const std::vector<ExchangeTerms>& terms,
                                 const std::vector<uint64_t>& hosts, DeviceTransport asked) {
  const auto named = [](uint32_t version) {
    return fmt::format("{}.{}", version >> 16, version & 0xffff);
  };
  const bool one_host =
      std::all_of(hosts.begin(), hosts.end(), [&](uint64_t host) { return host == hosts[0]; });
  for (size_t rank = 0; rank < terms.size(); rank++) {
    const ExchangeTerms& one = terms[rank];
    if (!one.version) return fmt::format("rank {}: {}", rank, text_in(one.why));
    if (one.version != terms[0].version)
      return fmt::format("rank {} has UCX {}, rank 0 {}", rank, named(one.version),
                         named(terms[0].version));
    if (asked != DeviceTransport::kUcx && !one_host && !one.rdma)
      return fmt::format(
          "rank {} has no device for RDMA, without which UCX goes through memory of the host, too "
          "(FSCCL_DEVICE_TRANSPORT=ucx asks "
          "for it all the same)",
          rank);
  }
  return "";
}

}  // namespace fsccl
