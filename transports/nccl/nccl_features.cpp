#include "transports/nccl/nccl_features.h"

#include <algorithm>
#include <map>

#include "transports/nccl/nccl_library.h"

namespace fsccl::nccl {
namespace {

// Judges a feature by NCCL's version, then by the functions of the library's file, because a build
// may leave functions out.
Feature since(const Facts& facts, int version, bool has, const char* function) {
  if (facts.version < version)
    return {false, fmt::format("NCCL is {}, this needs {}", version_text(facts.version),
                               version_text(version))};
  if (!has) return {false, fmt::format("this build of NCCL has no {}", function)};
  return {true, ""};
}

// Says whether symmetric windows can be used, on which other features depend.
Feature symmetric_of(const Facts& facts) {
  Feature feature = since(facts, 22700, facts.has_windows, "ncclCommWindowRegister");
  if (feature.usable && facts.ranks == 1) return {false, "one rank has no peers"};
  if (feature.usable && facts.hosts > 1 && facts.version < 22807)
    return {false,
            fmt::format("there are {} hosts: NCCL {} makes windows inside one, 2.28.7 between them",
                        facts.hosts, version_text(facts.version))};
  if (feature.usable && !facts.windows_off.empty()) return {false, facts.windows_off};
  if (feature.usable && !facts.peer_access)
    return {false, "GPUs of a host cannot map each other's memory"};
  return feature;
}

Feature windows_of(const Facts& facts) {
  Feature feature = symmetric_of(facts);
  if (feature.usable && facts.version < 22900)
    return {
        false,
        fmt::format("NCCL is {}: before 2.29 nothing ends its kernels for windows when a rank dies",
                    version_text(facts.version))};
  return feature;
}

Feature copy_gather_of(const Facts& facts) {
  if (facts.version < 22800) return since(facts, 22800, true, "");
  if (!facts.copy_engines)
    return {false,
            "NCCL_CTA_POLICY is not ZERO (before 2.29: 2) on all ranks: nothing ends such a gather "
            "when a rank dies in the middle "
            "of it"};
  if (const Feature windows = symmetric_of(facts); !windows.usable)
    return {false, "it needs windows: " + windows.why};
  if (facts.driver < 12050)
    return {false, fmt::format("the driver is for CUDA {}.{}, this needs 12.5", facts.driver / 1000,
                               facts.driver % 1000 / 10)};
  if (facts.hosts > 1 && facts.version < 23006)
    return {false,
            fmt::format("there are {} hosts: NCCL {} does it inside one, 2.30.6 between them",
                        facts.hosts, version_text(facts.version))};
  return {true, ""};
}

}  // namespace

Features features_of(const Facts& facts) {
  Features features;
  features.base = since(facts, kOldest, true, "");
  if (!features.base.usable) {
    const Feature none{false, features.base.why};
    features.windows = features.copy_gather = features.all_to_all = features.revoke = none;
    return features;
  }
  features.windows = windows_of(facts);
  features.copy_gather = copy_gather_of(facts);
  // Between hosts, newer versions too want both buffers in windows.
  features.send_needs_window = facts.version < 22900 || facts.hosts > 1;
  features.all_to_all = since(facts, 22800, facts.has_all_to_all, "ncclAlltoAll");
  features.revoke = since(facts, 22807, facts.has_revoke, "ncclCommRevoke");
  return features;
}

Status compare_versions(const std::vector<int>& versions, const std::vector<std::string>& hosts) {
  std::map<int, std::map<std::string, std::string>> who;  // the ranks, by version and host
  for (size_t rank = 0; rank < versions.size(); rank++) {
    std::string& ranks = who[versions[rank]][hosts[rank]];
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (who.size() < 2) return success();
  std::string text;
  for (const auto& [version, places] : who)
    for (const auto& [host, ranks] : places)
      text += fmt::format("{}{} on rank{} {} ({})", text.empty() ? "" : "; ", version_text(version),
                          ranks.find(',') == std::string::npos ? "" : "s", ranks,
                          host.empty() ? "no name" : host);
  return fail(FSCCL_ERR_MISMATCH,
              "NCCL is not the same on all ranks: {}. Install one version everywhere "
              "(LD_LIBRARY_PATH, pip)",
              text);
}

}  // namespace fsccl::nccl
